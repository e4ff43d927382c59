-- Pools: who is admitted next. Whoever grants has locked the pool first, in a statement of its own, so that the next one sees every slot that was
-- granted before; so there are never more than the limit, whoever grants at once.

-- name: has_waiters
SELECT EXISTS (SELECT FROM pool_waiter);

-- name: lock_pools
-- Those that somebody waits for and that seem to have a slot. The lock decides who counts; this look only spares the others.
SELECT p.namespace, p.name FROM pool p
WHERE EXISTS (SELECT FROM pool_waiter w WHERE w.namespace = p.namespace AND w.pool = p.name AND w.granted_at IS NULL)
  AND (p.slots_max IS NULL OR p.slots_max > (SELECT count(*) FROM pool_slot s WHERE s.namespace = p.namespace AND s.pool = p.name))
ORDER BY p.namespace, p.name FOR NO KEY UPDATE;

-- name: grant_slots
-- $1 namespaces, $2 names of pools that this transaction has locked; $3: how many of each at most. The keys go in turns (`pool_keys`), as if each slot
-- were granted by itself, and those who wait for one key by their rank. Of the key that is the n-th there is nothing to be had before n - 1 others, so
-- no more are looked at. Those of one grant had their turns one after another, a microsecond apart. A waiter that somebody is moving at this moment is passed over. Slots that are being freed are still counted. What a clock that was stepped back would have
-- the rate wait for is forgotten.
WITH free AS (
  SELECT p.namespace, p.name, a.allowance,
         least($3, p.slots_max - (SELECT count(*) FROM pool_slot s WHERE s.namespace = p.namespace AND s.pool = p.name), floor(a.allowance)::int) AS slots
  FROM unnest($1::text[], $2::text[]) AS given (namespace, name)
  JOIN pool p ON p.namespace = given.namespace AND p.name = given.name
  CROSS JOIN LATERAL (
    SELECT least(p.rate_count, p.allowance + p.rate_count / p.rate_seconds * greatest(0, extract(epoch FROM now() - p.allowed_at)::float8)) AS allowance) a),
keys AS (
  SELECT free.namespace, free.name AS pool, free.slots, k.* FROM free CROSS JOIN LATERAL pool_keys(free.namespace, free.name) k WHERE free.slots > 0),
candidate AS (
  SELECT next.*, k.slots, k.held, k.place, row_number() OVER (PARTITION BY k.namespace, k.pool, k.fairness_key ORDER BY next.ranked_at, next.run_id, next.task) AS nth
  FROM keys k CROSS JOIN LATERAL (
    SELECT w.run_id, w.task, w.token, w.namespace, w.pool, w.fairness_key, w.ranked_at FROM pool_waiter w
    WHERE w.namespace = k.namespace AND w.pool = k.pool AND w.fairness_key = k.fairness_key AND w.granted_at IS NULL
    ORDER BY w.ranked_at, w.run_id, w.task LIMIT k.slots - k.place + 1 FOR NO KEY UPDATE SKIP LOCKED) next
  WHERE k.place <= k.slots),
chosen AS (
  SELECT * FROM (
    SELECT c.*, row_number() OVER (PARTITION BY c.namespace, c.pool ORDER BY c.held + c.nth, c.nth, c.place) AS turn FROM candidate c) c
  WHERE c.turn <= c.slots),
held AS (
  INSERT INTO pool_slot (run_id, task, token, namespace, pool, fairness_key) SELECT run_id, task, token, namespace, pool, fairness_key FROM chosen
  ON CONFLICT (run_id, task) DO UPDATE SET token = excluded.token, namespace = excluded.namespace, pool = excluded.pool,
    fairness_key = excluded.fairness_key, granted_at = now()),
turned AS (
  INSERT INTO pool_turn (namespace, pool, fairness_key, turned_at)
  SELECT k.namespace, k.pool, k.fairness_key, coalesce(now() + c.turn * interval '1 us', k.turned_at)
  FROM keys k LEFT JOIN (SELECT namespace, pool, fairness_key, max(turn) AS turn FROM chosen GROUP BY 1, 2, 3) c USING (namespace, pool, fairness_key)
  WHERE k.is_shared AND (c.fairness_key IS NOT NULL OR NOT k.is_known)
  ON CONFLICT (namespace, pool, fairness_key) DO UPDATE SET turned_at = excluded.turned_at),
forgotten AS (
  DELETE FROM pool_turn t USING free
  WHERE t.namespace = free.namespace AND t.pool = free.name AND free.slots > 0
    AND NOT EXISTS (SELECT FROM keys k WHERE k.namespace = t.namespace AND k.pool = t.pool AND k.fairness_key = t.fairness_key)),
paid AS (
  UPDATE pool p SET
    allowance = free.allowance - (SELECT count(*) FROM chosen c WHERE c.namespace = p.namespace AND c.pool = p.name),
    allowed_at = CASE WHEN p.allowed_at > now() + interval '10 s' THEN now() ELSE greatest(p.allowed_at, now()) END
  FROM free WHERE p.namespace = free.namespace AND p.name = free.name AND p.rate_count IS NOT NULL 
    AND (free.allowance >= 1 OR p.allowed_at > now() + interval '10 s')),
granted AS (
  UPDATE pool_waiter w SET granted_at = now(), said_at = now() FROM chosen c WHERE w.run_id = c.run_id AND w.task = c.task
  RETURNING w.run_id, w.task, w.token, w.namespace, w.pool, c.turn)
SELECT run_id, task, token FROM granted ORDER BY namespace, pool, turn;

-- name: say_granted
-- Those who have a slot and do not know it: what told them may be gone. $1 seconds, $2 at most.
WITH late AS MATERIALIZED (
  SELECT run_id, task FROM pool_waiter
  WHERE granted_at IS NOT NULL AND (said_at < now() - make_interval(secs => $1) OR said_at > now() + interval '10 s')
  ORDER BY said_at LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE pool_waiter SET said_at = now() FROM late
WHERE pool_waiter.run_id = late.run_id AND pool_waiter.task = late.task
RETURNING pool_waiter.run_id, pool_waiter.task, pool_waiter.token;
