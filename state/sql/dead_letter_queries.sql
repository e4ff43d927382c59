-- Dead letters: parked, then replayed or discarded, once.

-- name: read_dead_letters
-- Newest first. Ends early when the values pass %(bytes)s, but is never empty.
WITH sized AS (
  SELECT d.*, sum(coalesce(octet_length(value), 0)) OVER (ORDER BY created_at DESC, dead_letter_id DESC) - coalesce(octet_length(value), 0)
    AS bytes_before
  FROM dead_letter d WHERE d.namespace = %(namespace)s AND d.dead_letter_id = ANY(%(ids)s))
SELECT d.dead_letter_id, d.kind, d.status, d.run_id, coalesce(d.workflow, v.name), coalesce(d.version, v.version), r.version_id, d.task,
       d.task_name, d.token, d.topic, d.partition, d."offset", d.key, d.value, d.headers::text, d.reason, d.error::text, d.code, d.message,
       d.fingerprint, d.created_at, d.closed_at, d.closed_by, d.close_reason, d.replay_of, d.replay_token, o.replayed_as, o.outcome
FROM sized d
LEFT JOIN run r ON r.run_id = d.run_id
LEFT JOIN workflow_version v ON v.version_id = r.version_id
LEFT JOIN replay_outcome o ON o.dead_letter_id = d.dead_letter_id
WHERE d.bytes_before < %(bytes)s ORDER BY d.created_at DESC, d.dead_letter_id DESC;

-- name: list_letter_attempts
-- Attempts of a task up to a hand-out, the newest %(limit)s of them, in order.
SELECT * FROM (
  SELECT attempt, token, outcome, worker, started_at, finished_at, ended_at, NULL::text AS output, error::text, round
  FROM attempt WHERE run_id = %(run_id)s AND task = %(task)s AND token <= %(token)s ORDER BY token DESC LIMIT %(limit)s) AS newest
ORDER BY token;

-- name: read_letter_run
-- The run a letter belongs to, and the input that its task was given by hand before it: that of the last replay that had one.
SELECT r.input::text, r.traceparent,
       (SELECT h.detail::text FROM history h
        WHERE h.run_id = r.run_id AND h.kind IN ('replayed', 'reran') AND h.task = %(task)s AND h.token < %(token)s AND h.detail IS NOT NULL
        ORDER BY h.row_version DESC LIMIT 1)
FROM run r WHERE r.run_id = %(run_id)s;

-- name: close_dead_letter
-- Takes the row out of 'parked', once: the second of two racing callers finds nothing. A task goes out under the token behind the one that
-- failed, or behind the floor of the timeline. %(value)s: what a record is published with instead of its own bytes.
UPDATE dead_letter SET status = %(status)s, closed_at = now(), closed_by = %(closed_by)s, close_reason = %(reason)s,
  replay_token = CASE WHEN %(status)s = 'replayed' AND kind = 'task'
    THEN greatest(token, (SELECT max(token_floor) FROM timeline)) + 1 END,
  replay_digest = CASE WHEN %(status)s = 'replayed' AND kind = 'record' THEN sha256(coalesce(%(value)s::bytea, value, '')) END
WHERE dead_letter_id = %(dead_letter_id)s AND namespace = %(namespace)s AND status = 'parked'
RETURNING kind, run_id, task, token, topic, partition, key, value, headers::text;

-- name: discard_dead_letters
-- Those of the named that are still parked.
UPDATE dead_letter SET status = 'discarded', closed_at = now(), closed_by = %(closed_by)s, close_reason = %(reason)s
WHERE dead_letter_id = ANY(%(ids)s) AND namespace = %(namespace)s AND status = 'parked';

-- name: find_task_state
-- What a replay would meet.
SELECT r.attention,
       CASE WHEN %(task)s < 200000000 AND r.control & 64 /* CANCELLING */ > 0 THEN NOT EXISTS (
              SELECT FROM workflow_version v, json_each(v.definition -> 'tasks') WITH ORDINALITY AS s (name, task, place)
              WHERE v.version_id = r.version_id AND s.task ->> 'join' = 'finally'
                AND s.place = CASE WHEN %(task)s < 10000 THEN %(task)s + 1 ELSE %(task)s / 10000 END)
            ELSE EXISTS (
              SELECT FROM task c WHERE c.run_id = r.run_id AND c.status = 'cancelled' AND c.error ->> 'code' IS DISTINCT FROM 'CHILD_CANCELLED'
                AND (c.task < 10000 AND %(task)s < 200000000 OR c.task >= 200000000 AND %(task)s >= 200000000)) END,
       t.status::text, t.token,
       EXISTS (SELECT FROM task m WHERE m.run_id = r.run_id AND m.task = %(task)s / 10000 - 1 AND %(task)s < 200000000 AND m.status = 'completed'),
       %(task)s < 200000000 AND EXISTS (SELECT FROM task u WHERE u.run_id = r.run_id AND u.task >= 200000000)
FROM run r LEFT JOIN task t ON t.run_id = r.run_id AND t.task = %(task)s
WHERE r.run_id = %(run_id)s AND r.namespace = %(namespace)s;
