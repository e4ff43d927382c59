-- Pauses of workflows: what people asked, and the runs that are not in line with it.

-- name: pause_workflow
-- Answers nothing when it is paused already.
INSERT INTO workflow_pause AS p (namespace, workflow, reason, paused_by)
SELECT %(namespace)s, w.name, %(reason)s, %(actor)s FROM workflow w WHERE w.namespace = %(namespace)s AND w.name = %(workflow)s
ON CONFLICT (namespace, workflow) DO UPDATE
  SET reason = excluded.reason, paused_by = excluded.paused_by, paused_at = now(), resumed_at = NULL, resumed_by = NULL, resume_reason = ''
  WHERE p.resumed_at IS NOT NULL
RETURNING workflow;

-- name: resume_workflow
UPDATE workflow_pause SET resumed_at = now(), resumed_by = %(actor)s, resume_reason = %(reason)s
WHERE namespace = %(namespace)s AND workflow = %(workflow)s AND resumed_at IS NULL
RETURNING workflow;

-- name: find_workflow
SELECT w.name, p.paused_at, p.paused_by FROM workflow w
LEFT JOIN workflow_pause p ON p.namespace = w.namespace AND p.workflow = w.name AND p.resumed_at IS NULL
WHERE w.namespace = %(namespace)s AND w.name = %(workflow)s;

-- name: list_pauses
-- By workflow, behind %(after)s; with how many of its open runs there are in each status, along run_open.
SELECT p.workflow, p.reason, p.paused_at, p.paused_by,
       (SELECT json_object_agg(s.status, s.runs)::text FROM (
          SELECT r.status, count(*)::int AS runs FROM run r JOIN workflow_version v ON v.version_id = r.version_id
          WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'compensating', 'cancelling', 'needs_attention') AND v.namespace = p.namespace AND v.name = p.workflow
          GROUP BY r.status) AS s)
FROM workflow_pause p
WHERE p.namespace = %(namespace)s AND p.resumed_at IS NULL AND p.workflow > %(after)s ORDER BY p.workflow LIMIT %(limit)s;

-- name: read_start
-- $1 namespace, $2 workflow. The clock, the pause that a run begins with, if any, and the queues that are paused.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, p.paused_by, p.reason, ARRAY(SELECT queue FROM queue_pause)
FROM (SELECT) AS one LEFT JOIN workflow_pause p ON p.namespace = $1 AND p.workflow = $2 AND p.resumed_at IS NULL;

-- name: find_paused
-- $1 namespace, $2 workflows: those of them that are paused.
SELECT workflow, paused_by, reason FROM workflow_pause WHERE namespace = $1 AND workflow = ANY($2::text[]) AND resumed_at IS NULL;

-- name: last_change
-- When somebody last paused or resumed a workflow, or long ago when only a run is left that is paused with one; null while no run can be
-- out of line.
SELECT coalesce((SELECT max(greatest(paused_at, resumed_at)) FROM workflow_pause),
                (SELECT to_timestamp(0) WHERE EXISTS (SELECT FROM run WHERE control & 2 /* WORKFLOW_PAUSED */ > 0)));

-- name: find_unpaused
-- Open runs of paused workflows that nobody has told so, oldest first, $1 at most. What was asked and is not applied comes first.
SELECT r.run_id, p.reason, p.paused_by
FROM run r
JOIN workflow_version v ON v.version_id = r.version_id
JOIN workflow_pause p ON p.namespace = v.namespace AND p.workflow = v.name AND p.resumed_at IS NULL
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'compensating', 'cancelling', 'needs_attention') AND r.control & 2 /* WORKFLOW_PAUSED */ = 0
  AND NOT EXISTS (SELECT FROM inbox i WHERE i.run_id = r.run_id AND i.applied_at IS NULL AND i.kind IN ('paused', 'resumed'))
ORDER BY r.run_id LIMIT $1;

-- name: find_unresumed
-- Open runs that are paused with a workflow that nobody pauses, likewise. A request to pause may be applied long after the pause has ended
-- and was forgotten: the run says what it is, whatever has become of the row.
SELECT r.run_id, coalesce(p.resume_reason, 'its workflow is not paused any more'), coalesce(p.resumed_by, '')
FROM run r
JOIN workflow_version v ON v.version_id = r.version_id
LEFT JOIN workflow_pause p ON p.namespace = v.namespace AND p.workflow = v.name
WHERE r.control & 2 /* WORKFLOW_PAUSED */ > 0 AND (p.workflow IS NULL OR p.resumed_at IS NOT NULL)
  AND NOT EXISTS (SELECT FROM inbox i WHERE i.run_id = r.run_id AND i.applied_at IS NULL AND i.kind IN ('paused', 'resumed'))
ORDER BY r.run_id LIMIT $1;

-- name: forget_pauses
-- Those that were resumed $1 seconds ago, of which no run is left paused: later ones are told without the words of who resumed.
DELETE FROM workflow_pause p WHERE p.resumed_at < now() - make_interval(secs => $1)
  AND NOT EXISTS (
    SELECT FROM run r JOIN workflow_version v ON v.version_id = r.version_id AND v.namespace = p.namespace AND v.name = p.workflow
    WHERE r.control & 2 /* WORKFLOW_PAUSED */ > 0);

-- == queues
-- name: pause_queue
-- Answers nothing when it is paused already.
INSERT INTO queue_pause (queue, reason, paused_by) VALUES (%(queue)s, %(reason)s, %(actor)s) ON CONFLICT (queue) DO NOTHING RETURNING queue;

-- name: resume_queue
DELETE FROM queue_pause WHERE queue = %(queue)s RETURNING queue;

-- name: is_queue
-- Whether any version, or any worker that lives, names it.
SELECT EXISTS (SELECT FROM workflow_version, json_each(definition -> 'tasks') WHERE coalesce(value ->> 'queue', 'default') = %(queue)s)
    OR EXISTS (SELECT FROM worker_session WHERE ended_at IS NULL AND %(queue)s = ANY(queues));

-- name: list_queue_pauses
-- With how many commands are kept back.
SELECT q.queue, q.reason, q.paused_at, q.paused_by,
       (SELECT count(*) FROM held_command h WHERE h.queue = q.queue AND h.released_at IS NULL)::int
FROM queue_pause q ORDER BY q.queue;

-- name: read_paused_queues
SELECT queue FROM queue_pause;

-- name: has_held_commands
SELECT EXISTS (SELECT FROM held_command);

-- name: release_commands
-- Commands of queues that nobody pauses any more, oldest first, $1 at most. Of a task that has moved on nothing is left to be released.
WITH due AS MATERIALIZED (
  SELECT h.run_id, h.task FROM held_command h
  WHERE h.released_at IS NULL AND NOT EXISTS (SELECT FROM queue_pause q WHERE q.queue = h.queue)
  ORDER BY h.held_at LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE held_command h SET released_at = now()
FROM due LEFT JOIN task t ON t.run_id = due.run_id AND t.task = due.task
WHERE h.run_id = due.run_id AND h.task = due.task
RETURNING h.run_id, h.queue, h.partition, h.value::text, h.traceparent, coalesce(t.status = 'queued' AND t.token = h.token, false);

-- name: forget_commands
-- Released ones whose task has moved on.
DELETE FROM held_command h
WHERE h.released_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM task t WHERE t.run_id = h.run_id AND t.task = h.task AND t.token = h.token AND t.status = 'queued');
