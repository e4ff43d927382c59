-- Dead letters: parked, then replayed or discarded, once.

-- name: list_dead_letters
-- Newest first, along dead_letter_newest. A page ends early when the values on it pass %(bytes)s, and never has none.
WITH page AS (
  SELECT d.dead_letter_id, d.kind, d.status, d.run_id, r.version_id, v.name, d.task, d.token, d.topic, d.partition, d."offset", d.key, d.value,
         d.reason, d.error, d.created_at, d.closed_at, d.closed_by, d.close_reason
  FROM dead_letter d LEFT JOIN run r ON r.run_id = d.run_id LEFT JOIN workflow_version v ON v.version_id = r.version_id
  WHERE d.namespace = %(namespace)s AND d.status = %(status)s AND (%(kind)s::text IS NULL OR d.kind = %(kind)s)
    AND (d.created_at, d.dead_letter_id) < (%(before)s, %(before_id)s)
  ORDER BY d.created_at DESC, d.dead_letter_id DESC LIMIT %(limit)s),
sized AS (
  SELECT *, sum(coalesce(octet_length(value), 0)) OVER (ORDER BY created_at DESC, dead_letter_id DESC) - coalesce(octet_length(value), 0)
    AS bytes_before FROM page)
SELECT dead_letter_id, kind, status, run_id, version_id, name, task, token, topic, partition, "offset", key, value, reason, error::text,
       created_at, closed_at, closed_by, close_reason
FROM sized WHERE bytes_before < %(bytes)s ORDER BY created_at DESC, dead_letter_id DESC;

-- name: get_dead_letter
SELECT d.dead_letter_id, d.kind, d.status, d.run_id, r.version_id, v.name, d.task, d.token, d.topic, d.partition, d."offset", d.key, d.value,
       d.reason, d.error::text, d.created_at, d.closed_at, d.closed_by, d.close_reason
FROM dead_letter d LEFT JOIN run r ON r.run_id = d.run_id LEFT JOIN workflow_version v ON v.version_id = r.version_id
WHERE d.namespace = %(namespace)s AND d.dead_letter_id = %(dead_letter_id)s;

-- name: close_dead_letter
-- Takes the row out of 'parked', once: the second of two racing callers finds nothing.
UPDATE dead_letter SET status = %(status)s, closed_at = now(), closed_by = %(closed_by)s, close_reason = %(reason)s
WHERE dead_letter_id = %(dead_letter_id)s AND namespace = %(namespace)s AND status = 'parked'
RETURNING kind, run_id, task, token, topic, partition, key, value;

-- name: find_task_state
-- What a replay would meet.
SELECT r.attention, EXISTS (SELECT FROM task c WHERE c.run_id = r.run_id AND c.status = 'cancelled'), t.status::text, t.token
FROM run r LEFT JOIN task t ON t.run_id = r.run_id AND t.task = %(task)s
WHERE r.run_id = %(run_id)s AND r.namespace = %(namespace)s;
