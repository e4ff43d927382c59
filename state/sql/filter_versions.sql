-- Conditions of filters on versions of workflows (v), one a field; see state/filter_sql.py for what stands in the braces.

-- name: workflow
v.name LIKE ANY({patterns}::text[])

-- name: version
v.version >= {low}::bigint AND v.version < {high}::bigint

-- name: task
(SELECT true FROM json_each(v.definition -> 'tasks') AS s (name, task) WHERE s.name LIKE ANY({patterns}::text[]) LIMIT 1)

-- name: queue
(SELECT true FROM json_each(v.definition -> 'tasks') AS s (name, task)
 WHERE s.task -> 'run' IS NOT NULL AND coalesce(s.task ->> 'queue', 'default') LIKE ANY({patterns}::text[]) LIMIT 1)
