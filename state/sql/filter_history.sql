-- Conditions of filters on what moved runs (t, rows of run_event) of runs (r), one a field; those on the run itself stand in filter_runs.

-- name: kind
t.kind LIKE ANY({patterns}::text[])

-- name: task
spot_of(r.version_id, t.task) = ANY({spots}::bigint[])

-- name: by
t.actor LIKE ANY({patterns}::text[])

-- name: at
t.at >= {low}::timestamptz AND t.at < {high}::timestamptz

-- name: detail
lower(t.detail::text) LIKE ANY({patterns}::text[])
