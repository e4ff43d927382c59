-- Signals that records of users' topics say, as the trigger agent stores them: set-based, each once by its sender's id.

-- name: post_signals
-- $1 namespace, $2 ids, $3 names, $4 keys, $5 data, $6 senders' ids, $7 actors, $8 seconds to keep them. Answers the signal of every sender's
-- id, the one that came first; waits for a racing transaction that has one. A row of that is not seen by this statement's snapshot, so the
-- conflict touches it, and only then it is answered.
INSERT INTO posted_signal (posted_id, namespace, name, key, data, sender_id, actor, expires_at)
SELECT DISTINCT ON (sender_id) id, $1, name, key, data::json, sender_id, actor, now() + make_interval(secs => keep)
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::float8[]) WITH ORDINALITY
  AS given (id, name, key, data, sender_id, actor, keep, place)
ORDER BY sender_id, place
ON CONFLICT (namespace, sender_id) DO UPDATE SET sender_id = excluded.sender_id
RETURNING sender_id, posted_id;

-- name: find_signal_targets
-- $1 namespace, $2 run ids, $3 senders' ids. The runs that are there, how much each keeps already, and which of the ids it has.
SELECT r.run_id, r.status::text, r.version_id, kept.signals, kept.bytes,
       ARRAY(SELECT s.sender_id FROM signal s WHERE s.run_id = r.run_id AND s.sender_id = ANY($3::text[]))
FROM run r
CROSS JOIN LATERAL (
  SELECT count(*)::int AS signals, coalesce(sum(octet_length(s.data::text)), 0)::bigint AS bytes
  FROM signal s WHERE s.run_id = r.run_id AND s.status IN ('sent', 'kept')) AS kept
WHERE r.run_id = ANY($2::uuid[]) AND r.namespace = $1;

-- name: send_signals
-- $1 namespace, $2 ids, $3 run ids, $4 names, $5 keys, $6 data, $7 senders' ids, $8 actors. As post_signals, each with the request that carries it to
-- its run.
WITH sent AS (
  INSERT INTO signal (signal_id, namespace, run_id, name, key, data, sender_id, actor)
  SELECT DISTINCT ON (run_id, sender_id) id, $1, run_id, name, key, data::json, sender_id, actor
  FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[]) WITH ORDINALITY
    AS given (id, run_id, name, key, data, sender_id, actor, place)
  ORDER BY run_id, sender_id, place
  ON CONFLICT (run_id, sender_id) WHERE sender_id IS NOT NULL DO UPDATE SET sender_id = excluded.sender_id
  RETURNING run_id, sender_id, signal_id, actor),
requested AS (
  INSERT INTO inbox (inbox_id, run_id, kind, body, actor)
  SELECT signal_id, run_id, 'signalled', '{}', actor FROM sent WHERE signal_id = ANY($2::uuid[]))
SELECT run_id, sender_id, signal_id FROM sent;
