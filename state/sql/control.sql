-- Control of runs by people: what an act has to know before it is accepted.

-- name: find_run
-- Where a run stands.
SELECT status::text, control, row_version FROM run WHERE run_id = %(run_id)s AND namespace = %(namespace)s;

-- name: find_runs
-- Where runs stand, and what was asked of each first and is not applied yet.
SELECT r.run_id, r.status::text, r.control, r.row_version,
       (SELECT i.kind FROM inbox i WHERE i.run_id = r.run_id AND i.applied_at IS NULL ORDER BY i.created_at LIMIT 1)
FROM run r WHERE r.run_id = ANY(%(run_ids)s::uuid[]) AND r.namespace = %(namespace)s;

-- name: touch_runs
-- The same as `touch_run` for many, in one order for all who do so.
WITH locked AS MATERIALIZED (
  SELECT run_id FROM run WHERE run_id = ANY(%(run_ids)s::uuid[]) AND namespace = %(namespace)s ORDER BY run_id FOR UPDATE)
UPDATE run SET updated_at = greatest(now(), run.updated_at) FROM locked
WHERE run.run_id = locked.run_id;

-- name: touch_run
-- Keeps a run that has ended from the retention, and others who ask for something like this waiting, until this is committed.
UPDATE run SET updated_at = greatest(now(), updated_at) WHERE run_id = %(run_id)s AND namespace = %(namespace)s
RETURNING run_id;

-- name: find_unapplied
-- What was asked of a run and has not been applied.
SELECT kind FROM inbox WHERE run_id = %(run_id)s AND applied_at IS NULL ORDER BY created_at LIMIT 1;
