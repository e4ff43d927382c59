-- Control of runs by people: what an act has to know before it is accepted.

-- name: find_run
-- Where a run stands.
SELECT status::text, control, row_version FROM run WHERE run_id = %(run_id)s AND namespace = %(namespace)s;

-- name: touch_run
-- Keeps a run that has ended from the retention, and others who ask for something like this waiting, until this is committed.
UPDATE run SET updated_at = greatest(now(), updated_at) WHERE run_id = %(run_id)s AND namespace = %(namespace)s
RETURNING run_id;

-- name: find_unapplied
-- What was asked of a run and has not been applied.
SELECT kind FROM inbox WHERE run_id = %(run_id)s AND applied_at IS NULL ORDER BY created_at LIMIT 1;
