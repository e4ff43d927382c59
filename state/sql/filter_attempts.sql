-- Conditions of filters on attempts that ended (t) of runs (r), one a field; those on the run itself stand in filter_runs.

-- name: outcome
t.outcome = ANY({values}::text[])

-- name: task
spot_of(r.version_id, t.task) = ANY({spots}::bigint[])

-- name: queue
spot_of(r.version_id, t.task) = ANY({spots}::bigint[])

-- name: worker
t.worker LIKE ANY({patterns}::text[])

-- name: attempt
t.attempt >= {low}::bigint AND t.attempt < {high}::bigint

-- name: started
t.started_at >= {low}::timestamptz AND t.started_at < {high}::timestamptz

-- name: ended
t.ended_at >= {low}::timestamptz AND t.ended_at < {high}::timestamptz

-- name: took
(extract(epoch FROM t.finished_at - t.started_at) * 1000000)::bigint >= {low}::bigint
AND (extract(epoch FROM t.finished_at - t.started_at) * 1000000)::bigint < {high}::bigint

-- name: code
text_at(t.error, 'code') LIKE ANY({patterns}::text[])

-- name: error
lower(text_at(t.error, 'message')) LIKE ANY({patterns}::text[])
