-- Signals: stored when they are accepted, and read by the run agent and by people.

-- name: find_signal_target
-- The run that a signal is for, and how much it keeps already.
SELECT r.status::text, r.version_id, kept.signals, kept.bytes
FROM run r
CROSS JOIN LATERAL (
  SELECT count(*)::int AS signals, coalesce(sum(octet_length(s.data::text)), 0)::bigint AS bytes
  FROM signal s WHERE s.run_id = r.run_id AND s.status IN ('sent', 'kept')) AS kept
WHERE r.run_id = %(run_id)s AND r.namespace = %(namespace)s;

-- name: insert_signal
-- Answers nothing when the sender has sent it already; waits for a racing transaction that does.
INSERT INTO signal (signal_id, namespace, run_id, name, key, data, sender_id, actor)
VALUES (%(signal_id)s, %(namespace)s, %(run_id)s, %(name)s, %(key)s, %(data)s::json, %(sender_id)s, %(actor)s)
ON CONFLICT (run_id, sender_id) WHERE sender_id IS NOT NULL DO NOTHING
RETURNING signal_id;

-- name: find_signal_of_sender
SELECT signal_id, name, key, data::text FROM signal WHERE run_id = %(run_id)s AND sender_id = %(sender_id)s;

-- name: list_signals
-- Of one run, in the order in which they were stored; as many as have %(bytes_max)s of data in all, and the one behind.
SELECT s.signal_id, s.run_id, s.name, s.key, s.data::text, s.sender_id, s.actor, s.sent_at, s.status, s.task, s.token, s.row_version,
       s.settled_at, s.reason
FROM (
  SELECT *, sum(octet_length(data::text)) OVER (ORDER BY sent_at, signal_id) - octet_length(data::text) AS bytes_before
  FROM (SELECT * FROM signal WHERE run_id = %(run_id)s AND (sent_at, signal_id) > (%(after)s, %(after_id)s)
        ORDER BY sent_at, signal_id LIMIT %(limit)s) AS page) AS s
WHERE s.bytes_before < %(bytes_max)s ORDER BY s.sent_at, s.signal_id;

-- name: get_signal
SELECT s.signal_id, s.run_id, s.name, s.key, s.data::text, s.sender_id, s.actor, s.sent_at, s.status, s.task, s.token, s.row_version,
       s.settled_at, s.reason
FROM signal s WHERE s.signal_id = %(signal_id)s;
