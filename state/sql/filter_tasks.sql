-- Conditions of filters on tasks (t) of runs (r), one a field; those on the run itself stand in filter_runs.

-- name: status
t.status = ANY({values}::task_status[])

-- name: task
spot_of(r.version_id, t.task) = ANY({spots}::bigint[])

-- name: queue
spot_of(r.version_id, t.task) = ANY({spots}::bigint[])

-- name: changed
t.changed_at >= {low}::timestamptz AND t.changed_at < {high}::timestamptz

-- name: due
t.due_at >= {low}::timestamptz AND t.due_at < {high}::timestamptz

-- name: attempt
t.attempt >= {low}::bigint AND t.attempt < {high}::bigint

-- name: pool
t.pool LIKE ANY({patterns}::text[])

-- name: code
-- Its own, or that of its last attempt, behind which another will follow.
text_at(coalesce(t.error, (SELECT a.error FROM attempt a WHERE a.run_id = t.run_id AND a.task = t.task ORDER BY a.token DESC LIMIT 1)), 'code') LIKE ANY({patterns}::text[])

-- name: error
lower(text_at(coalesce(t.error, (SELECT a.error FROM attempt a WHERE a.run_id = t.run_id AND a.task = t.task ORDER BY a.token DESC LIMIT 1)), 'message')) LIKE ANY({patterns}::text[])

-- name: output
text_at(coalesce(t.output, (SELECT a.output FROM attempt a WHERE a.run_id = t.run_id AND a.task = t.task AND a.token = t.token)),
        VARIADIC {path}::text[]) LIKE ANY({patterns}::text[])

-- name: output_number
number_at(coalesce(t.output, (SELECT a.output FROM attempt a WHERE a.run_id = t.run_id AND a.task = t.task AND a.token = t.token)),
          VARIADIC {path}::text[]) <@ {range}::numrange
