-- Pools: who is admitted next. Whoever grants has locked the pool first, in a statement of its own, so that the next one sees every slot that was
-- granted before; so there are never more than the limit, whoever grants at once.

-- name: has_waiters
SELECT EXISTS (SELECT FROM pool_waiter);

-- name: pin_plans
-- To the end of the transaction: what is wanted is looked up by an index, whatever the statistics say. It is a few rows of a queue of any length, and the
-- planner does not know how few, so it would now and then read the whole queue.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('random_page_cost', '0', true);

-- name: lock_pools
-- Those that somebody waits for and that seem to have a slot, and whether each has a rate. The lock decides who counts; this look only spares the others.
SELECT p.namespace, p.name, p.rate_count IS NOT NULL FROM pool p
WHERE (SELECT true FROM pool_waiter w WHERE w.namespace = p.namespace AND w.pool = p.name AND w.granted_at IS NULL LIMIT 1)
  AND (p.slots_max IS NULL OR p.slots_max > (SELECT count(*) FROM pool_slot s WHERE s.namespace = p.namespace AND s.pool = p.name))
ORDER BY p.namespace, p.name FOR NO KEY UPDATE;

-- name: read_keys
-- $1 namespaces, $2 names of pools that this transaction has locked; $3: how many slots of each at most. Of each that has slots to give: how many, and the
-- keys that are waited for, in the order of their turns (`pool_keys`). Slots that are being freed are still counted. The turns of keys that nobody waits
-- for any more are forgotten.
WITH free AS MATERIALIZED (
  SELECT p.namespace, p.name,
         least($3, CASE WHEN p.slots_max IS NOT NULL THEN
           p.slots_max - (SELECT count(*) FROM pool_slot s WHERE s.namespace = p.namespace AND s.pool = p.name) END, floor(allowance_of(p)))::int AS slots
  FROM unnest($1::text[], $2::text[]) AS given (namespace, name)
  JOIN pool p ON p.namespace = given.namespace AND p.name = given.name),
forgotten AS (
  DELETE FROM pool_turn t USING free
  WHERE t.namespace = free.namespace AND t.pool = free.name AND free.slots > 0
    AND (SELECT true FROM pool_waiter w WHERE w.namespace = t.namespace AND w.pool = t.pool AND w.fairness_key = t.fairness_key
         AND w.granted_at IS NULL LIMIT 1) IS NOT TRUE)
SELECT free.slots, free.namespace, free.name, k.fairness_key, k.held, k.turned_at, k.is_known, k.is_shared
FROM free CROSS JOIN LATERAL pool_keys(free.namespace, free.name) k
WHERE free.slots > 0 ORDER BY free.namespace, free.name, k.place;

-- name: claim_waiters
-- $1 namespaces, $2 pools, $3 fairness keys, each once, $4 how many of each; $5 ranks, $6 run ids, $7 tasks behind which to look, or null. Those who are
-- next, by their rank, each with the number of its key. One that somebody is moving at this moment is passed over.
SELECT given.number::int, next.run_id, next.task, next.token, next.ranked_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::timestamptz[], $6::uuid[], $7::int[])
  WITH ORDINALITY AS given (namespace, pool, key, most, ranked_at, run_id, task, number)
CROSS JOIN LATERAL (
  SELECT w.run_id, w.task, w.token, w.ranked_at FROM pool_waiter w
  WHERE w.namespace = given.namespace AND w.pool = given.pool AND w.fairness_key = given.key AND w.granted_at IS NULL
    AND (w.ranked_at, w.run_id, w.task) > (coalesce(given.ranked_at, '-infinity'), given.run_id, given.task)
  ORDER BY w.ranked_at, w.run_id, w.task LIMIT given.most FOR NO KEY UPDATE SKIP LOCKED) AS next
ORDER BY given.number, next.ranked_at, next.run_id, next.task;

-- name: give_slots
-- $1 run ids, $2 tasks, $3 tokens, $4 namespaces, $5 pools, $6 fairness keys of those that this transaction has claimed.
WITH held AS (
  INSERT INTO pool_slot (run_id, task, token, namespace, pool, fairness_key)
  SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::text[], $6::text[])
  ON CONFLICT (run_id, task) DO UPDATE SET token = excluded.token, namespace = excluded.namespace, pool = excluded.pool,
    fairness_key = excluded.fairness_key, granted_at = now())
UPDATE pool_waiter w SET granted_at = now(), said_at = now()
FROM unnest($1::uuid[], $2::int[]) AS given (run_id, task) WHERE w.run_id = given.run_id AND w.task = given.task;

-- name: note_turns
-- $1 namespaces, $2 pools, $3 fairness keys; $4 the place of each key's last slot among those of this grant, or null where it had none: then $5, since
-- when it waits. Those of one grant had their turns one after another, a microsecond apart.
INSERT INTO pool_turn (namespace, pool, fairness_key, turned_at)
SELECT namespace, pool, fairness_key, coalesce(now() + turn * interval '1 us', turned_at)
FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::timestamptz[]) AS given (namespace, pool, fairness_key, turn, turned_at)
ON CONFLICT (namespace, pool, fairness_key) DO UPDATE SET turned_at = excluded.turned_at;

-- name: pay_rates
-- $1 namespaces, $2 names of pools with a rate that this transaction has locked, $3 how many hand-outs of each were granted. What a clock that was
-- stepped back would have the rate wait for is forgotten.
UPDATE pool p SET allowance = allowance_of(p) - given.granted,
  allowed_at = CASE WHEN p.allowed_at > now() + interval '10 s' THEN now() ELSE greatest(p.allowed_at, now()) END
FROM unnest($1::text[], $2::text[], $3::int[]) AS given (namespace, name, granted)
WHERE p.namespace = given.namespace AND p.name = given.name AND p.rate_count IS NOT NULL
  AND (given.granted > 0 OR p.allowed_at > now() + interval '10 s');

-- name: say_granted
-- Those who have a slot and do not know it: what told them may be gone. $1 seconds, $2 at most.
WITH late AS MATERIALIZED (
  SELECT run_id, task FROM pool_waiter
  WHERE granted_at IS NOT NULL AND (said_at < now() - make_interval(secs => $1) OR said_at > now() + interval '10 s')
  ORDER BY said_at LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE pool_waiter SET said_at = now() FROM late
WHERE pool_waiter.run_id = late.run_id AND pool_waiter.task = late.task
RETURNING pool_waiter.run_id, pool_waiter.task, pool_waiter.token;

-- name: find_lost_waiters
-- Tasks that wait for a slot and are in no queue, because somebody took the row away: $1 at most, locked, so that a batch which moves one comes before or
-- behind. With the fairness key where a slot still says it.
SELECT t.run_id, t.task, r.version_id, s.fairness_key
FROM run r JOIN task t ON t.run_id = r.run_id AND t.status = 'waiting' AND t.pool IS NOT NULL
LEFT JOIN pool_slot s ON s.run_id = t.run_id AND s.task = t.task AND s.token = t.token
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating') AND t.changed_at < now() - interval '1 second'
  AND NOT EXISTS (SELECT FROM pool_waiter w WHERE w.run_id = t.run_id AND w.task = t.task)
LIMIT $1 FOR NO KEY UPDATE OF t SKIP LOCKED;

-- name: restore_pool_waiters
-- $1 run ids, $2 tasks, $3 fairness keys of those. One that was granted is told so again.
INSERT INTO pool_waiter (run_id, task, token, namespace, pool, fairness_key, began_at, ranked_at, granted_at, said_at)
SELECT t.run_id, t.task, t.token, r.namespace, t.pool, given.key, t.changed_at, t.changed_at - make_interval(mins => r.priority), s.granted_at, s.granted_at
FROM unnest($1::uuid[], $2::int[], $3::text[]) AS given (run_id, task, key)
JOIN run r ON r.run_id = given.run_id JOIN task t ON t.run_id = given.run_id AND t.task = given.task
LEFT JOIN pool_slot s ON s.run_id = t.run_id AND s.task = t.task AND s.token = t.token
ON CONFLICT (run_id, task) DO NOTHING;

-- name: find_lost_slots
-- The same for tasks that work, or were granted a slot, and have none; the key, where the queue still says it.
SELECT t.run_id, t.task, r.version_id, w.fairness_key
FROM run r JOIN task t ON t.run_id = r.run_id AND t.pool IS NOT NULL
LEFT JOIN pool_waiter w ON w.run_id = t.run_id AND w.task = t.task AND w.token = t.token AND w.granted_at IS NOT NULL
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating') AND t.changed_at < now() - interval '1 second'
  AND (t.status <> 'waiting' OR w.run_id IS NOT NULL)
  AND NOT EXISTS (SELECT FROM pool_slot s WHERE s.run_id = t.run_id AND s.task = t.task)
LIMIT $1 FOR NO KEY UPDATE OF t SKIP LOCKED;

-- name: restore_pool_slots
-- $1 run ids, $2 tasks, $3 fairness keys of those. Also above the limit: until that is kept again, nothing is granted.
INSERT INTO pool_slot (run_id, task, token, namespace, pool, fairness_key)
SELECT t.run_id, t.task, t.token, r.namespace, t.pool, given.key
FROM unnest($1::uuid[], $2::int[], $3::text[]) AS given (run_id, task, key)
JOIN run r ON r.run_id = given.run_id JOIN task t ON t.run_id = given.run_id AND t.task = given.task
ON CONFLICT (run_id, task) DO NOTHING;
