-- Runs, as the API reads them. Nothing here locks a row.

-- name: get_run
SELECT r.run_id, r.version_id, v.name, v.version, r.status::text, r.input::text, r.trigger_source, r.row_version, r.created_at, r.updated_at,
       r.finished_at, r.namespace, r.output::text, r.output_error::text, r.deadline_at, r.priority, r.paused_tasks,
       (SELECT json_object_agg(l.name, l.value ORDER BY l.name) FROM run_label l WHERE l.run_id = r.run_id)
FROM run r JOIN workflow_version v ON v.version_id = r.version_id
WHERE r.run_id = %(run_id)s AND r.namespace = %(namespace)s;

-- name: read_runs
-- Those named, newest first. Ends early when inputs and outputs pass %(bytes)s (stored size), but is never empty.
WITH page AS (
  SELECT r.run_id, r.version_id, v.name, v.version, r.status, r.input, r.trigger_source, r.row_version, r.created_at, r.updated_at, r.finished_at,
         r.namespace, r.output, r.output_error, r.deadline_at, r.priority, r.paused_tasks
  FROM run r JOIN workflow_version v ON v.version_id = r.version_id
  WHERE r.namespace = %(namespace)s AND r.run_id = ANY(%(run_ids)s::uuid[])),
sized AS (
  SELECT *, sum(bytes) OVER (ORDER BY run_id DESC) - bytes AS bytes_before
  FROM (SELECT *, pg_column_size(input) + coalesce(pg_column_size(output), 0) AS bytes FROM page) AS measured)
SELECT run_id, version_id, name, version, status::text, input::text, trigger_source, row_version, created_at, updated_at, finished_at, namespace,
       output::text, output_error::text, deadline_at, priority, paused_tasks,
       (SELECT json_object_agg(l.name, l.value ORDER BY l.name) FROM run_label l WHERE l.run_id = sized.run_id)
FROM sized WHERE bytes_before < %(bytes)s ORDER BY run_id DESC;

-- name: count_running
-- Along run_open, and no further than %(limit)s: the limit is what a count may cost at most. Runs that wait for slots of pools are work that was
-- accepted and not done, so that they count as well.
SELECT count(*)::int FROM (
  SELECT 1 FROM run WHERE status = 'running'
  UNION ALL
  SELECT 1 FROM (SELECT DISTINCT run_id FROM pool_waiter) AS w JOIN run r ON r.run_id = w.run_id AND r.status = 'waiting'
  LIMIT %(limit)s) AS found;

-- name: count_tasks
-- Only tasks that were ever handed out or ended; the others are PENDING. Those of the graph: the items of a map are counted with it.
SELECT run_id, status::text, count(*)::int FROM task WHERE run_id = ANY(%(run_ids)s::uuid[]) AND task < 10000 GROUP BY run_id, status;

-- name: list_outputs
-- Outputs of the tasks asked for, as far as they have completed. `total` counts them all: fewer rows mean that %(bytes)s cut the list.
WITH found AS (
  SELECT t.run_id, t.task, coalesce(t.output, a.output) AS output
  FROM unnest(%(run_ids)s::uuid[], %(tasks)s::int[]) AS given (run_id, task)
  JOIN task t ON t.run_id = given.run_id AND t.task = given.task
  LEFT JOIN attempt a ON a.run_id = t.run_id AND a.task = t.task AND a.token = t.token
  WHERE t.status = 'completed'),
sized AS (
  SELECT *, count(*) OVER () AS total,
         sum(coalesce(pg_column_size(output), 0)) OVER (ORDER BY run_id DESC, task) - coalesce(pg_column_size(output), 0) AS bytes_before
  FROM found)
SELECT run_id, task, output::text, total::int FROM sized WHERE bytes_before < %(bytes)s ORDER BY run_id DESC, task;

-- name: read_position
-- How far a run has come; what a stream of changes polls.
SELECT r.status::text, r.row_version, r.version_id, v.name
FROM run r JOIN workflow_version v ON v.version_id = r.version_id
WHERE r.run_id = %(run_id)s AND r.namespace = %(namespace)s;

-- name: list_positions
-- Open runs, newest first, those that began since %(since)s, and those named: what the stream of all changes compares.
SELECT r.run_id, r.status::text, r.row_version, r.version_id, v.name
FROM (
  (SELECT run_id FROM run WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention') ORDER BY run_id DESC LIMIT %(limit)s)
  UNION (SELECT run_id FROM run WHERE run_id > %(since)s ORDER BY run_id DESC LIMIT %(limit)s)
  UNION (SELECT unnest(%(run_ids)s::uuid[]))) AS looked_at
JOIN run r ON r.run_id = looked_at.run_id
JOIN workflow_version v ON v.version_id = r.version_id
WHERE r.namespace = %(namespace)s;

-- name: list_acts
-- What somebody did, ascending. All of one run's history is looked at: it has an index by row_version only, and this is for people.
SELECT row_version, at, kind, task, token, actor, detail::text FROM history
WHERE run_id = %(run_id)s AND row_version > %(after)s AND actor IS NOT NULL
ORDER BY row_version LIMIT %(limit)s;

-- name: list_history
-- Ascending. A cancel ends several attempts under one row_version; its own row comes first, then they by task.
-- Attempts have no order by row_version, since an index for it would cost every step. So all of a run's are looked at, but only for their
-- places, and the page is filled from the few rows that are on it.
WITH place AS MATERIALIZED (
  (SELECT row_version, kind ^@ 'attempt_' AS is_attempt, coalesce(task, -1) AS task, NULL::int AS attempt_token
   FROM history
   WHERE run_id = %(run_id)s AND row_version >= %(row_version)s
     AND (row_version, kind ^@ 'attempt_', coalesce(task, -1)) > (%(row_version)s, %(is_attempt)s, %(task)s)
   ORDER BY row_version LIMIT %(limit)s)
  UNION ALL
  (SELECT row_version, true, task, token
   FROM attempt
   WHERE run_id = %(run_id)s AND row_version >= %(row_version)s AND (row_version, true, task) > (%(row_version)s, %(is_attempt)s, %(task)s)
   ORDER BY row_version, task LIMIT %(limit)s)
  ORDER BY row_version, is_attempt, task LIMIT %(limit)s)
SELECT e.row_version, e.at, e.kind, e.task, e.token, e.actor, e.detail::text
FROM place p
CROSS JOIN LATERAL (
  SELECT at, kind, task, token, actor, detail, row_version FROM history
  WHERE p.attempt_token IS NULL AND run_id = %(run_id)s AND row_version = p.row_version
  UNION ALL
  SELECT at, kind, task, token, actor, detail, row_version FROM attempt_event
  WHERE run_id = %(run_id)s AND task = p.task AND token = p.attempt_token) AS e
ORDER BY p.row_version, p.is_attempt, p.task;

-- name: list_history_back
-- The same, descending: the newest first.
WITH place AS MATERIALIZED (
  (SELECT row_version, kind ^@ 'attempt_' AS is_attempt, coalesce(task, -1) AS task, NULL::int AS attempt_token
   FROM history
   WHERE run_id = %(run_id)s AND row_version <= %(row_version)s
     AND (row_version, kind ^@ 'attempt_', coalesce(task, -1)) < (%(row_version)s, %(is_attempt)s, %(task)s)
   ORDER BY row_version DESC LIMIT %(limit)s)
  UNION ALL
  (SELECT row_version, true, task, token
   FROM attempt
   WHERE run_id = %(run_id)s AND row_version <= %(row_version)s AND (row_version, true, task) < (%(row_version)s, %(is_attempt)s, %(task)s)
   ORDER BY row_version DESC, task DESC LIMIT %(limit)s)
  ORDER BY row_version DESC, is_attempt DESC, task DESC LIMIT %(limit)s)
SELECT e.row_version, e.at, e.kind, e.task, e.token, e.actor, e.detail::text
FROM place p
CROSS JOIN LATERAL (
  SELECT at, kind, task, token, actor, detail, row_version FROM history
  WHERE p.attempt_token IS NULL AND run_id = %(run_id)s AND row_version = p.row_version
  UNION ALL
  SELECT at, kind, task, token, actor, detail, row_version FROM attempt_event
  WHERE run_id = %(run_id)s AND task = p.task AND token = p.attempt_token) AS e
ORDER BY p.row_version DESC, p.is_attempt DESC, p.task DESC;

-- name: list_history_between
-- Whole row_versions only, so that a stream can be resumed behind any of them.
SELECT row_version, at, kind, task, token, actor, detail::text
FROM run_event
WHERE run_id = %(run_id)s AND row_version > %(after)s AND row_version <= %(upto)s
ORDER BY row_version, kind ^@ 'attempt_', coalesce(task, -1);
