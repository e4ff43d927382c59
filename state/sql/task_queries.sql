-- Tasks and attempts, as the API reads them. A task that was never handed out has no row.

-- name: list_tasks
-- Tasks of one run with a position from %(first)s up to, without, %(end)s. `total` as in list_outputs.
WITH found AS (
  SELECT t.task, t.status, t.attempt, t.token, t.retries_from, t.session_id, t.due_at, t.changed_at, t.input, t.error,
         t.items, t.items_begun, t.items_completed, t.items_failed, t.deadline_at, t.rounds,
         CASE WHEN t.status = 'completed' THEN coalesce(t.output, a.output) END AS output, p.approval_id,
         CASE WHEN t.status IN ('queued', 'running') THEN (
           SELECT h.detail FROM held_task h WHERE h.run_id = t.run_id AND h.task = t.task AND h.token = t.token LIMIT 1) END AS progress,
         (SELECT u.status FROM task u WHERE t.task < 10000 AND u.run_id = t.run_id AND u.task = 200000000 + t.task) AS compensation
  FROM task t
  LEFT JOIN attempt a ON a.run_id = t.run_id AND a.task = t.task AND a.token = t.token
  LEFT JOIN LATERAL (
    SELECT approval_id FROM approval WHERE approval.run_id = t.run_id AND approval.task = t.task ORDER BY token DESC LIMIT 1) p ON true
  WHERE t.run_id = %(run_id)s AND t.task >= %(first)s AND t.task < %(end)s),
sized AS (
  SELECT *, count(*) OVER () AS total,
         sum(coalesce(pg_column_size(output), 0)) OVER (ORDER BY task) - coalesce(pg_column_size(output), 0) AS bytes_before
  FROM found)
SELECT task, status::text, attempt, token, retries_from, session_id, due_at, changed_at, input::text, output::text, error::text, approval_id,
       progress::text, total::int, items, items_begun, items_completed, items_failed, deadline_at, rounds, compensation::text
FROM sized WHERE bytes_before < %(bytes)s ORDER BY task;

-- name: list_items
-- Items of a map that have begun, a range of the primary key like tasks: from %(first)s up to, without, %(end)s. `total` as in list_outputs.
WITH found AS (
  SELECT t.task, t.status, t.attempt, t.token, t.retries_from, t.session_id, t.due_at, t.changed_at, t.input, t.error,
         CASE WHEN t.status = 'completed' THEN coalesce(t.output, a.output) END AS output,
         CASE WHEN t.status IN ('queued', 'running') THEN (
           SELECT h.detail FROM held_task h WHERE h.run_id = t.run_id AND h.task = t.task AND h.token = t.token LIMIT 1) END AS progress
  FROM (
    SELECT * FROM task
    WHERE run_id = %(run_id)s AND task >= %(first)s AND task < %(end)s
      AND (%(status)s::task_status IS NULL OR status = %(status)s::task_status)
    ORDER BY task LIMIT %(limit)s) AS t
  LEFT JOIN attempt a ON a.run_id = t.run_id AND a.task = t.task AND a.token = t.token),
sized AS (
  SELECT *, count(*) OVER () AS total,
         sum(coalesce(pg_column_size(output), 0)) OVER (ORDER BY task) - coalesce(pg_column_size(output), 0) AS bytes_before
  FROM found)
SELECT task, status::text, attempt, token, retries_from, session_id, due_at, changed_at, input::text, output::text, error::text, NULL::uuid,
       progress::text, total::int
FROM sized WHERE bytes_before < %(bytes)s ORDER BY task;

-- name: list_attempts
-- Attempts that ended, in order. `total` as in list_outputs.
WITH sized AS (
  SELECT *, count(*) OVER () AS total,
         sum(coalesce(pg_column_size(output), 0)) OVER (ORDER BY token) - coalesce(pg_column_size(output), 0) AS bytes_before
  FROM (
    SELECT * FROM attempt WHERE run_id = %(run_id)s AND task = %(task)s AND token > %(after)s ORDER BY token LIMIT %(limit)s) AS page)
SELECT attempt, token, outcome, worker, started_at, finished_at, ended_at, output::text, error::text, round
FROM sized WHERE bytes_before < %(bytes)s ORDER BY token;
