-- Signals that are posted for whoever waits for their name and key.

-- name: insert_posted
-- Answers nothing when the sender has posted it already; waits for a racing transaction that does.
INSERT INTO posted_signal (posted_id, namespace, name, key, data, sender_id, actor, expires_at)
VALUES (%(posted_id)s, %(namespace)s, %(name)s, %(key)s, %(data)s::json, %(sender_id)s, %(actor)s,
        now() + make_interval(secs => %(keep_seconds)s))
ON CONFLICT (namespace, sender_id) DO NOTHING
RETURNING posted_id;

-- name: find_posted_of_sender
SELECT posted_id, name, key, data::text FROM posted_signal WHERE namespace = %(namespace)s AND sender_id = %(sender_id)s;

-- name: get_posted
SELECT p.posted_id, p.name, p.key, p.data::text, p.sender_id, p.actor, p.sent_at, p.expires_at,
       CASE WHEN p.taken_as IS NOT NULL THEN 'taken' WHEN p.expires_at <= now() THEN 'expired' ELSE 'open' END
FROM posted_signal p WHERE p.namespace = %(namespace)s AND p.posted_id = %(posted_id)s;

-- name: list_posted
-- Newest first, along posted_signal_newest; as many as have %(bytes_max)s of data in all, and the one behind.
SELECT p.posted_id, p.name, p.key, p.data::text, p.sender_id, p.actor, p.sent_at, p.expires_at,
       CASE WHEN p.taken_as IS NOT NULL THEN 'taken' WHEN p.expires_at <= now() THEN 'expired' ELSE 'open' END
FROM (
  SELECT *, sum(octet_length(data::text)) OVER (ORDER BY sent_at DESC, posted_id DESC) - octet_length(data::text) AS bytes_before
  FROM (SELECT * FROM posted_signal WHERE namespace = %(namespace)s AND (sent_at, posted_id) < (%(before)s, %(before_id)s)
        ORDER BY sent_at DESC, posted_id DESC LIMIT %(limit)s) AS page) AS p
WHERE p.bytes_before < %(bytes_max)s ORDER BY p.sent_at DESC, p.posted_id DESC;

-- name: list_offers
-- What came of a posted signal, the first first; %(limit)s at most.
SELECT s.run_id, r.version_id, s.offered_task, s.status, s.row_version, s.settled_at, s.reason
FROM signal s JOIN run r ON r.run_id = s.run_id WHERE s.posted_id = %(posted_id)s
ORDER BY s.settled_at NULLS FIRST, s.signal_id LIMIT %(limit)s;

-- name: offer_posted
-- $1 namespaces, $2 names, $3 keys, $4 at most. Offers what is posted for these keys to those who wait for them: to each of `first` one that
-- nobody has, the oldest to whoever waits longest; to each of `all` the oldest that it has not heard. A wait has one offer at a time. Of two
-- that offer the same at once, the second waits for the first and finds it done.
WITH asked AS (
  SELECT DISTINCT namespace, name, key FROM unnest($1::text[], $2::text[], $3::text[]) AS a (namespace, name, key)),
posted AS MATERIALIZED (
  SELECT p.*, p.taken_as IS NULL AND NOT EXISTS (
           SELECT FROM signal s WHERE s.posted_id = p.posted_id AND s.is_exclusive AND s.status IN ('sent', 'taken')) AS is_free
  FROM asked JOIN posted_signal p ON p.namespace = asked.namespace AND p.name = asked.name AND p.key = asked.key
  WHERE p.expires_at > now()),
waits AS MATERIALIZED (
  SELECT w.* FROM asked JOIN signal_wait w ON w.namespace = asked.namespace AND w.name = asked.name AND w.key = asked.key
  WHERE EXISTS (SELECT FROM posted p WHERE p.namespace = w.namespace AND p.name = w.name AND p.key = w.key)
    AND NOT EXISTS (SELECT FROM signal s WHERE s.run_id = w.run_id AND s.offered_task = w.task AND s.offered_token = w.token
                    AND s.status = 'sent')),
firsts AS (
  SELECT p.posted_id, w.run_id, w.task, w.token, true AS is_exclusive
  FROM (SELECT *, row_number() OVER (PARTITION BY namespace, name, key ORDER BY sent_at, posted_id) AS place FROM posted WHERE is_free) p
  JOIN (SELECT *, row_number() OVER (PARTITION BY namespace, name, key ORDER BY began_at, run_id, task) AS place
        FROM waits WHERE delivery = 'first') w USING (namespace, name, key, place)),
copies AS (
  SELECT DISTINCT ON (w.run_id, w.task) p.posted_id, w.run_id, w.task, w.token, false AS is_exclusive
  FROM waits w JOIN posted p USING (namespace, name, key)
  WHERE w.delivery = 'all'
    AND NOT EXISTS (SELECT FROM signal s WHERE s.posted_id = p.posted_id AND s.run_id = w.run_id AND s.offered_task = w.task
                    AND s.offered_token = w.token)
  ORDER BY w.run_id, w.task, p.sent_at, p.posted_id),
offered AS (
  INSERT INTO signal (signal_id, namespace, run_id, name, key, data, actor, sent_at, posted_id, is_exclusive, offered_task, offered_token)
  SELECT gen_random_uuid(), p.namespace, o.run_id, p.name, p.key, p.data, p.actor, p.sent_at, p.posted_id, o.is_exclusive, o.task, o.token
  FROM (SELECT * FROM firsts UNION ALL SELECT * FROM copies LIMIT $4) AS o JOIN posted p ON p.posted_id = o.posted_id
  ORDER BY o.posted_id, o.run_id, o.task
  ON CONFLICT DO NOTHING
  RETURNING signal_id, run_id, actor),
requested AS (
  INSERT INTO inbox (inbox_id, run_id, kind, body, actor) SELECT signal_id, run_id, 'signalled', '{}', actor FROM offered)
SELECT signal_id, run_id FROM offered;

-- name: next_keys
-- Keys for which something is posted, behind the one given; $4 at most.
SELECT DISTINCT namespace, name, key FROM posted_signal
WHERE (namespace, name, key) > ($1, $2, $3) AND expires_at > now() ORDER BY namespace, name, key LIMIT $4;
