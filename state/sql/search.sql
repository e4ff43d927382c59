-- What the lists read that take a filter. In the braces stand the conditions of the filter, see state/filter_sql.py:
--   candidates  the newest %(scanned)s rows that an index finds, see candidates.sql
--   look        what is asked of each of them; so a filter costs at most so many looks, however few rows it lets through

-- == what names stand for =================================================================================================
-- name: find_versions
SELECT v.version_id FROM workflow_version v WHERE v.namespace = %(namespace)s AND {look} ORDER BY v.version_id;

-- name: find_spots_of_tasks
-- Tasks of the graphs with such names, as `spot_of` numbers them.
SELECT spot_of(v.version_id, s.position::int - 1)
FROM workflow_version v CROSS JOIN LATERAL json_each(v.definition -> 'tasks') WITH ORDINALITY AS s (name, task, position)
WHERE v.namespace = %(namespace)s AND s.name LIKE ANY(%(patterns)s::text[]) LIMIT %(limit)s;

-- name: find_spots_of_queues
SELECT spot_of(v.version_id, s.position::int - 1)
FROM workflow_version v CROSS JOIN LATERAL json_each(v.definition -> 'tasks') WITH ORDINALITY AS s (name, task, position)
WHERE v.namespace = %(namespace)s AND s.task -> 'run' IS NOT NULL AND coalesce(s.task ->> 'queue', 'default') LIKE ANY(%(patterns)s::text[])
LIMIT %(limit)s;

-- name: find_spots_unserved
-- Tasks whose queue no worker has served for %(seconds)s, of versions that the newest %(scanned)s open runs are on; what undoes a task below zero.
WITH served AS (
  SELECT DISTINCT queue FROM worker_session CROSS JOIN LATERAL unnest(queues) AS queue
  WHERE NOT draining AND least(ended_at, expires_at) > clock_timestamp() - make_interval(secs => %(seconds)s))
SELECT s.spot FROM (
  SELECT spot_of(v.version_id, s.position::int - 1) * u.sign AS spot,
         coalesce(CASE WHEN u.sign < 0 THEN s.task -> 'compensate' ->> 'queue' END, s.task ->> 'queue', 'default') AS queue
  FROM workflow_version v
  CROSS JOIN LATERAL json_each(v.definition -> 'tasks') WITH ORDINALITY AS s (name, task, position)
  CROSS JOIN (VALUES (1), (-1)) AS u (sign)
  WHERE v.version_id IN (SELECT o.version_id FROM (
      SELECT version_id FROM run
      WHERE namespace = %(namespace)s
        AND status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention')
      ORDER BY run_id DESC LIMIT %(scanned)s) AS o)
    AND (u.sign > 0 OR s.task -> 'compensate' IS NOT NULL)) AS s
WHERE s.queue NOT IN (SELECT queue FROM served) LIMIT %(limit)s;

-- name: find_runs_of_keys
SELECT run_id FROM trigger_key WHERE namespace = %(namespace)s AND key = ANY(%(values)s::text[]);

-- name: find_runs_of_parents
-- The newest of them.
SELECT run_id FROM child_run WHERE parent_run_id = ANY(%(values)s::uuid[]) AND namespace = %(namespace)s ORDER BY run_id DESC LIMIT %(limit)s;

-- name: read_now
SELECT clock_timestamp();

-- == runs ==================================================================================================================
-- name: find_runs
SELECT r.run_id FROM {candidates} AS r WHERE {look} ORDER BY r.place DESC LIMIT %(limit)s;

-- name: find_last_candidate
-- The last run that was looked at; none when there were fewer than that.
SELECT r.run_id, r.created_at FROM {candidates} AS r ORDER BY r.place DESC OFFSET %(scanned)s - 1 LIMIT 1;

-- name: count_runs
SELECT count(*)::int, (count(*) FILTER (WHERE {look}))::int, min(r.created_at) FROM {candidates} AS r;

-- name: count_facets
-- How many of the runs found have each value, each label, and each value of the label %(label_counted)s; of errors, over the newest %(errors)s that failed. A row '' tells how many were looked at and found.
WITH looked_at AS MATERIALIZED (
  SELECT r.run_id, r.version_id, r.status, r.trigger_source, r.created_at, coalesce(({look}), false) AS is_found FROM {candidates} AS r),
found AS MATERIALIZED (SELECT * FROM looked_at WHERE is_found),
of_version AS MATERIALIZED (
  SELECT v.version_id, v.name, v.version, v.definition, f.runs
  FROM (SELECT version_id, count(*) AS runs FROM found GROUP BY version_id) f JOIN workflow_version v ON v.version_id = f.version_id),
failed AS (
  SELECT DISTINCT f.run_id, text_at(t.error, 'code') AS code
  FROM (SELECT run_id FROM found WHERE status NOT IN ('running', 'waiting', 'completed') ORDER BY run_id DESC LIMIT %(errors)s) f
  CROSS JOIN LATERAL (SELECT error FROM task WHERE task.run_id = f.run_id AND task.error IS NOT NULL OFFSET 0) t),
counted AS (
  SELECT 'status' AS field, status::text AS value, count(*) AS runs FROM found GROUP BY status
  UNION ALL SELECT 'workflow', name, sum(runs) FROM of_version GROUP BY name
  UNION ALL SELECT 'version', version::text, sum(runs) FROM of_version GROUP BY version
  UNION ALL SELECT 'trigger', trigger_source, count(*) FROM found GROUP BY trigger_source
  UNION ALL SELECT 'label', l.name, count(*)
    FROM found f CROSS JOIN LATERAL (SELECT name FROM run_label WHERE run_label.run_id = f.run_id OFFSET 0) l GROUP BY l.name
  UNION ALL SELECT 'label.' || %(label_counted)s::text, l.value, count(*)
    FROM (SELECT run_id FROM found WHERE %(label_counted)s::text <> '') f
    CROSS JOIN LATERAL (SELECT value FROM run_label WHERE run_label.run_id = f.run_id AND name = %(label_counted)s::text OFFSET 0) l GROUP BY l.value
  UNION ALL SELECT 'queue', queue, sum(runs) FROM (
    SELECT DISTINCT v.version_id, v.runs, coalesce(s.task ->> 'queue', 'default') AS queue
    FROM of_version v CROSS JOIN LATERAL json_each(v.definition -> 'tasks') AS s (name, task) WHERE s.task -> 'run' IS NOT NULL) q GROUP BY queue
  UNION ALL SELECT 'code', code, count(*) FROM failed WHERE code IS NOT NULL GROUP BY code),
ranked AS (SELECT *, row_number() OVER (PARTITION BY field ORDER BY runs DESC, value) AS place FROM counted)
SELECT '' AS field, count(*)::text AS value, (count(*) FILTER (WHERE is_found))::int AS runs FROM looked_at
UNION ALL (SELECT field, value, runs::int FROM ranked WHERE place <= %(values_max)s ORDER BY field, place);

-- name: count_by_time
-- Runs found by when they were started, in steps of the shortest length of which %(buckets)s cover them, and by how they stand now. The first
-- row tells how many were looked at and found, and the length in seconds.
WITH looked_at AS MATERIALIZED (SELECT r.status, r.created_at, coalesce(({look}), false) AS is_found FROM {candidates} AS r),
found AS MATERIALIZED (SELECT status, created_at FROM looked_at WHERE is_found),
step AS MATERIALIZED (
  SELECT coalesce(min(s.seconds), 2592000) AS seconds
  FROM unnest(ARRAY[1, 5, 10, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 86400, 604800, 2592000]) AS s (seconds)
  WHERE s.seconds * (%(buckets)s - 1) >= (SELECT coalesce(extract(epoch FROM max(created_at) - min(created_at)), 0) FROM found))
SELECT min(created_at), '', (SELECT seconds FROM step), count(*)::int, (count(*) FILTER (WHERE is_found))::int FROM looked_at
UNION ALL (
  SELECT date_bin(make_interval(secs => (SELECT seconds FROM step)), created_at, 'epoch'), status::text, 0, 0, count(*)::int
  FROM found GROUP BY 1, 2 ORDER BY 1, 2);

-- == what runs consist of =================================================================================================
-- name: find_tasks
-- Of the newest run first, in the order of the graph; those that were never handed out have no row.
SELECT r.place, r.version_id, r.status::text, t.task, t.status::text, t.attempt, t.token, t.due_at, t.changed_at, t.pool,
       coalesce(t.error, (SELECT a.error FROM attempt a WHERE a.run_id = t.run_id AND a.task = t.task ORDER BY a.token DESC LIMIT 1))::text
FROM {candidates} AS r
CROSS JOIN LATERAL (
  SELECT t.* FROM task t
  WHERE t.run_id = r.run_id AND (r.run_id < %(at_run)s OR t.task > %(at_task)s) AND {look}
  ORDER BY t.task LIMIT %(limit)s) t
ORDER BY r.place DESC, t.task LIMIT %(limit)s;

-- name: find_attempts
SELECT r.place, r.version_id, r.status::text, t.task, t.token, t.attempt, t.outcome, t.worker, t.started_at, t.finished_at, t.ended_at, t.error::text
FROM {candidates} AS r
CROSS JOIN LATERAL (
  SELECT t.* FROM attempt t
  WHERE t.run_id = r.run_id AND (r.run_id < %(at_run)s OR (t.task, t.token) > (%(at_task)s, %(at_token)s)) AND {look}
  ORDER BY t.task, t.token LIMIT %(limit)s) t
ORDER BY r.place DESC, t.task, t.token LIMIT %(limit)s;

-- name: find_events
-- Of the newest run first; within a run in the order in which it was moved.
SELECT r.place, r.version_id, r.status::text, t.row_version, t.at, t.kind, t.task, t.token, t.actor, t.detail::text
FROM {candidates} AS r
CROSS JOIN LATERAL (
  SELECT t.*, t.kind ^@ 'attempt_' AS is_attempt, coalesce(t.task, -1) AS of_task FROM run_event t
  WHERE t.run_id = r.run_id
    AND (r.run_id < %(at_run)s OR (t.row_version, t.kind ^@ 'attempt_', coalesce(t.task, -1)) > (%(at_row_version)s, %(at_attempt)s, %(at_task)s))
    AND {look}
  ORDER BY t.row_version, is_attempt, of_task LIMIT %(limit)s) t
ORDER BY r.place DESC, t.row_version, t.is_attempt, t.of_task LIMIT %(limit)s;

-- == dead letters ==========================================================================================================
-- name: find_letters
SELECT d.dead_letter_id FROM {candidates} AS d WHERE {look} ORDER BY d.place_at DESC, d.place DESC LIMIT %(limit)s;

-- name: find_last_letter
SELECT d.created_at, d.dead_letter_id FROM {candidates} AS d ORDER BY d.place_at DESC, d.place DESC OFFSET %(scanned)s - 1 LIMIT 1;

-- name: group_letters
-- Groups of those found, the one with the newest letter first; that letter is its sample.
WITH found AS (SELECT d.dead_letter_id, d.fingerprint, d.created_at FROM {candidates} AS d WHERE {look}),
grouped AS (
  SELECT fingerprint, count(*)::int AS letters, min(created_at) AS first_at, max(created_at) AS last_at,
         (array_agg(dead_letter_id ORDER BY created_at DESC, dead_letter_id DESC))[1] AS sample_id
  FROM found GROUP BY fingerprint),
page AS (
  SELECT * FROM grouped WHERE (last_at, fingerprint) < (%(after_at)s, %(after_fingerprint)s)
  ORDER BY last_at DESC, fingerprint DESC LIMIT %(limit)s)
SELECT p.fingerprint, p.letters, p.first_at, p.last_at, p.sample_id, d.kind, d.workflow, d.version, d.task_name, d.topic, d.code, d.message
FROM page p JOIN dead_letter d ON d.dead_letter_id = p.sample_id
ORDER BY p.last_at DESC, p.fingerprint DESC;
