-- What `explain` reads: a constant number of statements, each over one run, one partial index, or a table with few rows.

-- name: read_run
-- The run, which of its tasks have ended, what ended or stopped it as a whole, and the pauses of it that have not ended.
SELECT r.version_id, r.status::text, r.control & 64 /* CANCELLING */ > 0, r.updated_at, clock_timestamp(), r.deadline_at,
       ARRAY(SELECT task FROM task t WHERE t.run_id = r.run_id AND (t.task < 10000 OR t.task >= 200000000)
             AND t.status IN ('completed', 'failed', 'skipped', 'cancelled')),
       CASE WHEN r.status IN ('failed', 'cancelled', 'terminated', 'cancelling', 'compensating', 'compensated', 'compensation_failed', 'needs_attention') OR r.control & 64 /* CANCELLING */ > 0 THEN (
         SELECT json_build_object('kind', h.kind, 'at', h.at, 'actor', coalesce(h.actor, ''), 'detail', h.detail)::text FROM history h
         WHERE h.run_id = r.run_id AND (h.kind IN ('cancelled', 'terminated', 'isolated') OR (h.kind = 'due' AND h.task IS NULL)) ORDER BY h.row_version DESC LIMIT 1) END,
       CASE WHEN r.status = 'needs_attention' THEN (
         SELECT d.dead_letter_id FROM dead_letter d
         WHERE d.run_id = r.run_id AND d.kind = 'record' AND d.status = 'parked' ORDER BY d.created_at DESC LIMIT 1) END,
       CASE WHEN r.control & 51 /* PAUSES | TASKS_PAUSED */ > 0 THEN (
         SELECT json_agg(json_build_object('at', p.at, 'actor', coalesce(p.actor, ''), 'detail', p.detail, 'task', p.task) ORDER BY p.row_version)::text
         FROM (SELECT DISTINCT ON (h.detail ->> 'scope', h.task) h.* FROM history h
               WHERE h.run_id = r.run_id AND h.kind = 'paused' AND (h.detail ->> 'scope')::int & r.control > 0
                 AND (h.task IS NULL OR h.task = ANY(r.paused_tasks))
               ORDER BY h.detail ->> 'scope', h.task, h.row_version DESC) AS p) END,
       r.control & 128 /* AWAITS_PERMIT */ > 0
FROM run r WHERE r.run_id = %(run_id)s AND r.namespace = %(namespace)s;

-- name: read_tasks
-- Those of the tasks asked for that are open or failed, or were cancelled with their children, and the first one asked for whatever it is; and of %(maps)s the items that are open. With
-- all they hang on. At most %(limit)s: in the order asked for, or, by_status, first what waits longest for a person, a timer, an answer, a worker.
WITH looked_at AS (
  SELECT t.task, t.status, t.changed_at, asked.place
  FROM unnest(%(tasks)s::int[]) WITH ORDINALITY AS asked (task, place)
  JOIN task t ON t.run_id = %(run_id)s AND t.task = asked.task
  WHERE t.status NOT IN ('completed', 'skipped', 'cancelled') OR t.error ->> 'code' = 'CHILD_CANCELLED' OR (asked.place = 1 AND NOT %(by_status)s)
  UNION ALL
  SELECT t.task, t.status, t.changed_at, t.task
  FROM unnest(%(maps)s::int[]) AS map (task)
  JOIN task t ON t.run_id = %(run_id)s AND t.task >= (map.task + 1) * 10000 AND t.task < (map.task + 2) * 10000
  WHERE t.status NOT IN ('completed', 'failed', 'skipped', 'cancelled')),
chosen AS MATERIALIZED (
  SELECT t.task, row_number() OVER (ORDER BY
           CASE WHEN %(by_status)s THEN CASE WHEN t.task >= 200000000 AND t.status = 'pending' THEN 5 END END,
           CASE WHEN %(by_status)s THEN CASE t.status WHEN 'waiting' THEN 1 WHEN 'pending' THEN 2 WHEN 'running' THEN 3 WHEN 'queued' THEN 4 END END,
           CASE WHEN %(by_status)s THEN t.changed_at END, t.place) AS place,
         (count(*) FILTER (WHERE t.status NOT IN ('completed', 'failed', 'skipped', 'cancelled')) OVER ())::int AS open_tasks
  FROM looked_at t
  ORDER BY place LIMIT %(limit)s)
SELECT c.task, c.status::text, c.attempt, c.token, c.retries_from, c.changed_at, c.due_at, c.session_id, c.error::text, chosen.open_tasks,
       m.due_at, m.said_at,
       o.session_id, o.worker, o.renewed_at, o.expires_at, o.ended_at, o.draining, o.slots, o.held,
       h.session_id, h.worker, h.renewed_at, h.expires_at, h.ended_at, h.draining, h.slots, h.held, h.detail::text,
       a.approval_id, a.status,
       CASE WHEN a.approval_id IS NOT NULL THEN json_build_object(
         'approvers', a.approvers, 'needed', a.needed, 'on_expiry', a.on_expiry, 'votes', votes_of(a.approval_id),
         'steps_left', (SELECT count(*) FROM approval_timer s WHERE s.approval_id = a.approval_id AND s.kind = 'escalate' AND s.fired_at IS NULL),
         'next', (SELECT json_build_object('kind', s.kind, 'at', s.due_at, 'to', s.targets) FROM approval_timer s
                  WHERE s.approval_id = a.approval_id AND s.fired_at IS NULL AND s.due_at IS NOT NULL ORDER BY s.due_at, s.kind LIMIT 1))::text
       END,
       a.asked_at, a.expires_at, a.decided_at, a.decided_by,
       d.dead_letter_id, d.status, c.lookups, p.parked_at, p.resolved_at, p.resolved_by,
       (SELECT e.error ->> 'code' FROM attempt e WHERE e.run_id = c.run_id AND e.task = c.task ORDER BY e.token DESC LIMIT 1),
       c.withheld IS NOT NULL, w.name, w.key, w.began_at,
       c.items, c.items_begun, c.items_completed, c.items_failed, c.pool, c.deadline_at, l.due_at, l.said_at, c.rounds,
       k.run_id, k.workflow, coalesce(kr.status::text, k.status), k.asked_at, coalesce(kr.finished_at, k.ended_at)
FROM chosen JOIN task c ON c.run_id = %(run_id)s AND c.task = chosen.task
LEFT JOIN timer m ON m.run_id = c.run_id AND m.task = c.task AND m.token = c.token AND NOT m.is_deadline
LEFT JOIN timer l ON l.run_id = c.run_id AND l.task = c.task AND l.is_deadline
LEFT JOIN worker_session o ON o.session_id = c.session_id
LEFT JOIN LATERAL (
  SELECT s.*, l.detail FROM held_task l JOIN worker_session s ON s.session_id = l.session_id
  WHERE l.run_id = c.run_id AND l.task = c.task AND l.token = c.token
  ORDER BY s.ended_at IS NULL DESC, s.expires_at DESC LIMIT 1) AS h ON true
LEFT JOIN approval a ON a.run_id = c.run_id AND a.task = c.task AND a.token = c.token
LEFT JOIN parked_task p ON p.run_id = c.run_id AND p.task = c.task AND p.token = c.token
LEFT JOIN dead_letter d ON d.run_id = c.run_id AND d.task = c.task AND d.token = c.token
LEFT JOIN signal_wait w ON w.run_id = c.run_id AND w.task = c.task AND w.token = c.token
LEFT JOIN child_run k ON k.parent_run_id = c.run_id AND k.task = c.task AND k.token = c.token
LEFT JOIN run kr ON kr.run_id = k.run_id
ORDER BY chosen.place;

-- name: read_places
-- Of %(tasks)s those that wait for a slot: the place of each in the queue of its fairness key, counted to 1000, and how many keys have their turn first.
SELECT w.task, (SELECT count(*)::int FROM (
         SELECT FROM pool_waiter a
         WHERE a.namespace = w.namespace AND a.pool = w.pool AND a.granted_at IS NULL
           AND a.fairness_key = w.fairness_key
           AND (a.ranked_at, a.run_id, a.task) <= (w.ranked_at, w.run_id, w.task) LIMIT 1000) AS ahead),
       w.began_at, w.granted_at, w.fairness_key, coalesce(k.place - 1, 0)::int, coalesce(k.is_shared, false)
FROM pool_waiter w JOIN unnest(%(tasks)s::int[]) AS asked (task) ON w.task = asked.task
JOIN task t ON t.run_id = w.run_id AND t.task = w.task AND t.token = w.token
LEFT JOIN (
  SELECT p.namespace, p.pool, k.* FROM (SELECT DISTINCT namespace, pool FROM pool_waiter WHERE run_id = %(run_id)s) p
  CROSS JOIN LATERAL pool_keys(p.namespace, p.pool) k) k ON k.namespace = w.namespace AND k.pool = w.pool AND k.fairness_key = w.fairness_key
WHERE w.run_id = %(run_id)s;

-- name: read_pools
SELECT p.name, p.slots_max, p.rate_count, p.rate_seconds,
       (SELECT count(*)::int FROM pool_slot s WHERE s.namespace = p.namespace AND s.pool = p.name),
       (SELECT count(*)::int FROM pool_waiter w WHERE w.namespace = p.namespace AND w.pool = p.name AND w.granted_at IS NULL)
FROM pool p WHERE p.namespace = %(namespace)s AND p.name = ANY(%(pools)s);

-- name: read_holders
-- Of each pool the %(limit)s who have had their slot for longest.
SELECT given.pool, h.run_id, h.task, r.version_id, h.granted_at
FROM unnest(%(pools)s::text[]) AS given (pool)
CROSS JOIN LATERAL (
  SELECT * FROM pool_slot s WHERE s.namespace = %(namespace)s AND s.pool = given.pool ORDER BY s.granted_at LIMIT %(limit)s) h
JOIN run r ON r.run_id = h.run_id ORDER BY h.granted_at, h.run_id, h.task;

-- name: list_requests
-- What was accepted for this run and is not applied yet.
SELECT inbox_id, kind, (body ->> 'task')::int, actor, created_at
FROM inbox WHERE applied_at IS NULL AND run_id = %(run_id)s ORDER BY created_at, inbox_id LIMIT %(limit)s;

-- name: read_engine
-- The relay that renewed last and its slot, how far the ticks have come, every sweep's last pass, who applies the run's events, and
-- since when each command log is the one it is.
SELECT r.owner, r.renewed_at, r.slot, s.slot_name IS NOT NULL, coalesce(s.wal_status, ''),
       pg_wal_lsn_diff(pg_current_wal_lsn(), coalesce(s.confirmed_flush_lsn, r.acked_lsn))::bigint, r.gap_at,
       (SELECT at FROM watermark WHERE name = 'sessions'),
       (SELECT json_object_agg(name, at)::text FROM sweep_pass),
       (SELECT json_build_object('owner', owner, 'at', taken_at)::text FROM partition_owner WHERE topic = %(topic)s AND partition = %(partition)s),
       (SELECT json_object_agg(topic, since)::text FROM topic_log)
FROM (SELECT 1) AS always
LEFT JOIN LATERAL (SELECT * FROM relay_owner ORDER BY renewed_at DESC LIMIT 1) AS r ON true
LEFT JOIN pg_replication_slots s ON s.slot_name = r.slot;

-- name: read_permit
-- Of a run that waits for its permit: its key, how many go at once and how many do, who has had theirs for longest (%(limit)s of them), its place.
SELECT p.key, w.runs_max,
       (SELECT count(*) FROM run_permit h
        WHERE h.namespace = p.namespace AND h.workflow = p.workflow AND h.key = p.key AND h.granted_at IS NOT NULL)::int,
       ARRAY(SELECT h.run_id FROM run_permit h
             WHERE h.namespace = p.namespace AND h.workflow = p.workflow AND h.key = p.key AND h.granted_at IS NOT NULL
             ORDER BY h.granted_at LIMIT %(limit)s),
       (SELECT count(*) FROM run_permit o
        WHERE o.namespace = p.namespace AND o.workflow = p.workflow AND o.key = p.key AND o.granted_at IS NULL
          AND (o.ranked_at, o.run_id) <= (p.ranked_at, p.run_id))::int,
       (SELECT count(*) FROM run_permit o
        WHERE o.namespace = p.namespace AND o.workflow = p.workflow AND o.key = p.key AND o.granted_at IS NULL)::int,
       p.asked_at, p.granted_at
FROM run_permit p JOIN workflow w ON w.namespace = p.namespace AND w.name = p.workflow WHERE p.run_id = %(run_id)s;

-- name: list_held
-- Commands of the run that are kept back, and who paused their queue; nobody any more when they are about to go.
SELECT h.task, coalesce(q.paused_at, h.held_at), coalesce(q.paused_by, ''), coalesce(q.reason, '')
FROM held_command h LEFT JOIN queue_pause q ON q.queue = h.queue
WHERE h.run_id = %(run_id)s AND h.released_at IS NULL;

-- name: count_workers
-- Live sessions by queue. Full: as many commands as worker slots.
SELECT queue, count(*)::int, (count(*) FILTER (WHERE draining))::int, (count(*) FILTER (WHERE NOT draining AND held >= slots))::int,
       sum(slots)::int, sum(held)::int
FROM worker_session, unnest(queues) AS queue
WHERE ended_at IS NULL AND expires_at > clock_timestamp() GROUP BY queue;

-- name: count_ahead
-- Commands that wait, of the %(limit)s open runs before this one and at most so many, by version and position; a version's plan knows the
-- queue. Items of a map stand under it.
SELECT version_id, task, count(*)::int
FROM (
  SELECT r.version_id, CASE WHEN t.task < 10000 OR t.task >= 200000000 THEN t.task ELSE t.task / 10000 - 1 END AS task
  FROM (SELECT run_id, version_id FROM run WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention') AND run_id < %(run_id)s
        ORDER BY run_id DESC LIMIT %(limit)s) AS r
  JOIN task t ON t.run_id = r.run_id
  WHERE t.status = 'queued' AND t.changed_at < %(before)s LIMIT %(limit)s) AS waiting
GROUP BY version_id, task;
