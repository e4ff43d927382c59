-- Control of runs by people: what an act has to know before it is accepted.

-- name: find_run
-- Where a run stands.
SELECT status::text, control, row_version FROM run WHERE run_id = %(run_id)s AND namespace = %(namespace)s;
