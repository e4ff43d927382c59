-- Pools, for people.

-- name: set_pool
-- A new rate begins with all that it allows at once; one that changes keeps what it has.
INSERT INTO pool (namespace, name, slots_max, rate_count, rate_seconds, allowance, updated_by)
VALUES (%(namespace)s, %(name)s, %(slots)s, %(count)s, %(seconds)s, coalesce(%(count)s::int, 0), %(actor)s)
ON CONFLICT (namespace, name) DO UPDATE SET slots_max = excluded.slots_max, rate_count = excluded.rate_count, rate_seconds = excluded.rate_seconds,
  allowance = CASE WHEN pool.rate_count IS NULL THEN excluded.allowance ELSE least(pool.allowance, excluded.allowance) END,
  allowed_at = CASE WHEN pool.rate_count IS NULL THEN now() ELSE pool.allowed_at END,
  updated_at = now(), updated_by = excluded.updated_by;

-- name: find_pool_for_removal
-- Locked, so that nobody is granted a slot meanwhile.
SELECT name FROM pool WHERE namespace = %(namespace)s AND name = %(name)s FOR UPDATE;

-- name: remove_pool
WITH turned AS (DELETE FROM pool_turn t WHERE t.namespace = %(namespace)s AND t.pool = %(name)s)
DELETE FROM pool p WHERE p.namespace = %(namespace)s AND p.name = %(name)s
  AND NOT EXISTS (SELECT FROM pool_slot s WHERE s.namespace = p.namespace AND s.pool = p.name)
  AND NOT EXISTS (SELECT FROM pool_waiter w WHERE w.namespace = p.namespace AND w.pool = p.name)
RETURNING p.name;

-- name: list_pools
-- By name behind %(after)s; also those that somebody waits for and nobody has set.
SELECT n.name, p.name IS NOT NULL, p.slots_max, p.rate_count, p.rate_seconds,
       (SELECT count(*)::int FROM pool_slot s WHERE s.namespace = %(namespace)s AND s.pool = n.name),
       (SELECT count(*)::int FROM pool_waiter w WHERE w.namespace = %(namespace)s AND w.pool = n.name AND w.granted_at IS NULL),
       p.created_at, p.updated_at, coalesce(p.updated_by, '')
FROM (
  SELECT name FROM pool WHERE namespace = %(namespace)s
  UNION SELECT pool FROM pool_waiter WHERE namespace = %(namespace)s AND granted_at IS NULL) AS n
LEFT JOIN pool p ON p.namespace = %(namespace)s AND p.name = n.name
WHERE n.name > %(after)s AND (%(name)s::text IS NULL OR n.name = %(name)s)
ORDER BY n.name LIMIT %(limit)s;

-- name: list_holders
-- Who holds a slot of a pool, those who have had it for longest first.
SELECT s.run_id, s.task, r.version_id, s.token, s.granted_at, r.priority, nullif(s.fairness_key, '')
FROM pool_slot s JOIN run r ON r.run_id = s.run_id
WHERE s.namespace = %(namespace)s AND s.pool = %(name)s ORDER BY s.granted_at, s.run_id, s.task LIMIT %(limit)s;

-- name: list_waiters
-- Who waits for a slot of a pool, in the order in which they would get one if nothing ended meanwhile, as in `grant_slots`.
SELECT w.run_id, w.task, r.version_id, w.token, w.began_at, r.priority, nullif(w.fairness_key, '')
FROM (
  SELECT next.*, k.held, k.place, row_number() OVER (PARTITION BY k.fairness_key ORDER BY next.ranked_at, next.run_id, next.task) AS nth
  FROM pool_keys(%(namespace)s, %(name)s) k CROSS JOIN LATERAL (
    SELECT * FROM pool_waiter w
    WHERE w.namespace = %(namespace)s AND w.pool = %(name)s AND w.fairness_key = k.fairness_key AND w.granted_at IS NULL
    ORDER BY w.ranked_at, w.run_id, w.task LIMIT %(limit)s::int - k.place + 1) next
  WHERE k.place <= %(limit)s::int) w
JOIN run r ON r.run_id = w.run_id
ORDER BY w.held + w.nth, w.nth, w.place LIMIT %(limit)s::int;
