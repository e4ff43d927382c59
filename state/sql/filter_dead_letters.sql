-- Conditions of filters on dead letters (d), one a field.

-- name: kind
d.kind = ANY({values}::text[])

-- name: workflow
d.workflow LIKE ANY({patterns}::text[])

-- name: version
d.version >= {low}::bigint AND d.version < {high}::bigint

-- name: task
d.task_name LIKE ANY({patterns}::text[])

-- name: topic
d.topic LIKE ANY({patterns}::text[])

-- name: fingerprint
d.fingerprint = ANY({values}::text[])

-- name: code
d.code LIKE ANY({patterns}::text[])

-- name: error
lower(d.reason || ' ' || d.message) LIKE ANY({patterns}::text[])

-- name: run
d.run_id = ANY({values}::uuid[])

-- name: letter
d.dead_letter_id = ANY({values}::uuid[])

-- name: at
d.created_at >= {low}::timestamptz AND d.created_at < {high}::timestamptz

-- name: by
d.closed_by LIKE ANY({patterns}::text[])
