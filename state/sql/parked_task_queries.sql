-- Parked tasks: those whose effect may have happened. The row is the arbiter between people: whoever sets resolved_at has decided.

-- name: list_parked_tasks
-- Newest first, along parked_task_newest; those that nobody has resolved.
SELECT p.run_id, r.version_id, v.name, p.task, p.token, p.parked_at, p.error::text
FROM parked_task p JOIN run r ON r.run_id = p.run_id JOIN workflow_version v ON v.version_id = r.version_id
WHERE p.namespace = %(namespace)s AND p.resolved_at IS NULL
  AND (p.parked_at, p.run_id, p.task) < (%(before)s, %(before_id)s, %(before_task)s)
ORDER BY p.parked_at DESC, p.run_id DESC, p.task DESC LIMIT %(limit)s;

-- name: resolve_parked_task
UPDATE parked_task SET resolved_at = now(), resolved_by = %(actor)s
WHERE run_id = %(run_id)s AND task = %(task)s AND namespace = %(namespace)s AND resolved_at IS NULL
RETURNING token;

-- name: find_resolver
SELECT resolved_by FROM parked_task WHERE run_id = %(run_id)s AND task = %(task)s AND namespace = %(namespace)s;
