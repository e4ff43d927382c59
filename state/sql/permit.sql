-- Permits: how many runs of one key of a workflow go at once. Whoever grants has locked the key first, in a statement of its own, so that the next
-- one sees every permit that was granted before; so there are never more than the limit, whoever starts and grants at once.

-- name: lock_permits
-- $1 namespaces, $2 workflows, $3 keys: to the end of the transaction, in an order that is everybody's. A key has no row of its own, which somebody
-- would have to make and to remove; of two keys with one hash each waits for the other for nothing.
SELECT pg_advisory_xact_lock(lock) FROM (
  SELECT DISTINCT hashtextextended(format('headrace.permit %s %s %s', namespace, workflow, key), 0) AS lock
  FROM unnest($1::text[], $2::text[], $3::text[]) AS given (namespace, workflow, key) ORDER BY lock) AS locks;

-- name: read_lines
-- $1 namespaces, $2 workflows, $3 keys, $4 whether those are wanted that could be replaced. For each key: how many runs go at once by the latest
-- version, how many have a permit, whether any waits, who stands in the way of one more, and the open runs that nobody has asked to end, oldest first.
SELECT given.namespace, given.workflow, given.key, w.runs_max,
       (SELECT count(*) FROM run_permit p
        WHERE p.namespace = given.namespace AND p.workflow = given.workflow AND p.key = given.key AND p.granted_at IS NOT NULL)::int,
       next.run_id IS NOT NULL, coalesce(first.run_id, next.run_id)::text,
       CASE WHEN given.wanted THEN ARRAY(
         SELECT p.run_id::text FROM run_permit p
         WHERE p.namespace = given.namespace AND p.workflow = given.workflow AND p.key = given.key AND p.replaced_by IS NULL
         ORDER BY p.asked_at, p.run_id) END
FROM (SELECT namespace, workflow, key, bool_or(wanted) AS wanted
      FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[]) AS g (namespace, workflow, key, wanted) GROUP BY 1, 2, 3) AS given
JOIN workflow w ON w.namespace = given.namespace AND w.name = given.workflow
LEFT JOIN LATERAL (
  SELECT p.run_id FROM run_permit p
  WHERE p.namespace = given.namespace AND p.workflow = given.workflow AND p.key = given.key AND p.granted_at IS NOT NULL
  ORDER BY p.granted_at LIMIT 1) AS first ON true
LEFT JOIN LATERAL (
  SELECT p.run_id FROM run_permit p
  WHERE p.namespace = given.namespace AND p.workflow = given.workflow AND p.key = given.key AND p.granted_at IS NULL
  ORDER BY p.ranked_at, p.run_id LIMIT 1) AS next ON true;

-- name: next_permit_keys
-- Keys for which runs wait, behind ($1, $2, $3), $4 at most: from one key to the next along run_permit_next, however many wait for it.
WITH RECURSIVE found AS (
  (SELECT namespace, workflow, key FROM run_permit
   WHERE granted_at IS NULL AND (namespace, workflow, key) > ($1, $2, $3) ORDER BY namespace, workflow, key LIMIT 1)
  UNION ALL
  SELECT next.namespace, next.workflow, next.key FROM found CROSS JOIN LATERAL (
    SELECT p.namespace, p.workflow, p.key FROM run_permit p
    WHERE p.granted_at IS NULL AND (p.namespace, p.workflow, p.key) > (found.namespace, found.workflow, found.key)
    ORDER BY p.namespace, p.workflow, p.key LIMIT 1) AS next)
SELECT namespace, workflow, key FROM found LIMIT $4;

-- name: grant_permits
-- $1 namespaces, $2 workflows, $3 keys that this transaction has locked, each once; $4: how many of each at most. Runs go by their rank; one that is
-- paused, or stands aside, is passed over until it goes on, and so is one that somebody is moving at this moment. Answers whom to tell. Who is next is
-- found once, as in every statement that locks so many rows and changes them: joined to the UPDATE itself, a nested loop would look again for each
-- row, pass over what it had just taken, and take the next as well.
WITH next AS MATERIALIZED (
  SELECT chosen.run_id
  FROM unnest($1::text[], $2::text[], $3::text[]) AS given (namespace, workflow, key)
  JOIN workflow w ON w.namespace = given.namespace AND w.name = given.workflow
  CROSS JOIN LATERAL (
    SELECT o.run_id FROM run_permit o JOIN run r ON r.run_id = o.run_id AND r.status IN ('waiting', 'cancelling')
    WHERE o.namespace = given.namespace AND o.workflow = given.workflow AND o.key = given.key AND o.granted_at IS NULL
    ORDER BY o.ranked_at, o.run_id
    LIMIT greatest(0, least($4, w.runs_max - (
      SELECT count(*) FROM run_permit h
      WHERE h.namespace = given.namespace AND h.workflow = given.workflow AND h.key = given.key AND h.granted_at IS NOT NULL)))
    FOR NO KEY UPDATE OF o SKIP LOCKED) AS chosen)
UPDATE run_permit p SET granted_at = clock_timestamp() FROM next WHERE p.run_id = next.run_id
RETURNING p.run_id;

-- name: find_unlisted
-- Open runs under a limit that neither have a permit nor are in line, because somebody took the row away: $1 at most, locked, so that a batch which moves
-- one comes before or behind; and whether each has its permit, or is about to be told so. Nothing is looked at while no workflow has a limit.
WITH limited AS MATERIALIZED (
  SELECT v.version_id FROM workflow w JOIN workflow_version v ON v.namespace = w.namespace AND v.name = w.name
  WHERE w.runs_max IS NOT NULL AND v.definition -> 'limit' IS NOT NULL)
SELECT r.run_id, r.version_id, r.input::text,
       r.control & 128 /* AWAITS_PERMIT */ = 0 OR EXISTS (SELECT FROM inbox i WHERE i.run_id = r.run_id AND i.kind = 'permitted' AND i.applied_at IS NULL)
FROM run r
WHERE EXISTS (SELECT FROM workflow WHERE runs_max IS NOT NULL)
  AND (r.control & 128 /* AWAITS_PERMIT */ > 0 OR r.version_id IN (SELECT version_id FROM limited))
  AND r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention')
  AND r.updated_at < now() - interval '1 second' AND NOT EXISTS (SELECT FROM run_permit p WHERE p.run_id = r.run_id)
LIMIT $1 FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: restore_permits
-- $1 run ids, $2 workflows, $3 keys, $4 whether they have it: then also above the limit, and nobody else begins until that is kept again.
INSERT INTO run_permit (run_id, namespace, workflow, key, asked_at, ranked_at, granted_at)
SELECT r.run_id, r.namespace, given.workflow, given.key, r.updated_at, r.updated_at - make_interval(mins => r.priority),
       CASE WHEN given.granted THEN now() END
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::boolean[]) AS given (run_id, workflow, key, granted) JOIN run r ON r.run_id = given.run_id
ON CONFLICT (run_id) DO NOTHING;

-- name: point_trigger_keys
-- $1 namespace, $2 keys, $3 run ids. Starts for which another run goes: that is what their key gives from now on.
UPDATE trigger_key k SET run_id = given.run_id FROM unnest($2::text[], $3::uuid[]) AS given (key, run_id)
WHERE k.namespace = $1 AND k.key = given.key;

-- name: release_trigger_keys
-- $1 namespace, $2 keys. Starts that were rejected: they may be tried again.
DELETE FROM trigger_key WHERE namespace = $1 AND key = ANY($2::text[]);
