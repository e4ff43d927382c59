-- Workflows and their versions.

-- name: lock_workflow
-- Makes the row when there is none and holds it to the end of the transaction, so that versions of one workflow are counted one by one.
INSERT INTO workflow (namespace, name, latest_version) VALUES (%(namespace)s, %(name)s, 0)
ON CONFLICT (namespace, name) DO UPDATE SET latest_version = workflow.latest_version
RETURNING latest_version;

-- name: find_digest
SELECT version_id, version, published_at FROM workflow_version
WHERE namespace = %(namespace)s AND name = %(name)s AND digest = %(digest)s;

-- name: insert_version
INSERT INTO workflow_version (namespace, name, version, digest, definition, published_by)
VALUES (%(namespace)s, %(name)s, %(version)s, %(digest)s, %(definition)s::json, %(published_by)s)
RETURNING version_id, version, published_at;

-- name: set_latest_version
UPDATE workflow SET latest_version = %(version)s, runs_max = %(runs_max)s, updated_at = now()
WHERE namespace = %(namespace)s AND name = %(name)s;

-- name: list_workflows
-- By name.
SELECT w.name, w.latest_version, w.created_at, w.updated_at, (SELECT count(*) FROM json_object_keys(v.definition -> 'tasks'))::int
FROM workflow w
JOIN workflow_version v ON v.namespace = w.namespace AND v.name = w.name AND v.version = w.latest_version
WHERE w.namespace = %(namespace)s AND w.name > %(after)s
ORDER BY w.name LIMIT %(limit)s;

-- name: list_versions
-- Newest first.
SELECT version, digest, published_at, published_by
FROM workflow_version WHERE namespace = %(namespace)s AND name = %(name)s ORDER BY version DESC;

-- name: get_version
-- The version asked for, or the latest.
SELECT v.version_id, v.name, v.version, v.digest, v.published_at, v.published_by, v.definition::text
FROM workflow w
JOIN workflow_version v ON v.namespace = w.namespace AND v.name = w.name AND v.version = coalesce(%(version)s::int, w.latest_version)
WHERE w.namespace = %(namespace)s AND w.name = %(name)s;

-- name: get_input_schema
-- JSON Schema of the input of a version's runs; null when it takes anything.
SELECT (definition -> 'input')::text FROM workflow_version WHERE version_id = %(version_id)s;

-- name: lock_children
-- To the end of the transaction: of two publishes that together make a cycle of workflows, the second sees the first.
SELECT pg_advisory_xact_lock(hashtextextended('headrace.publish', 0));

-- name: walk_children
-- What workflows lead to by their latest versions, or by those they name: (workflow, one that its tasks start). From those that are asked for, and
-- not through %(name)s, which is about to be published.
WITH RECURSIVE edge AS (
  SELECT %(name)s::text AS workflow, asked.name AS child, asked.version FROM unnest(%(names)s::text[], %(versions)s::int[]) AS asked (name, version)
  UNION
  SELECT e.child, s.task -> 'workflow' ->> 'name', (s.task -> 'workflow' ->> 'version')::int
  FROM edge e
  JOIN workflow w ON w.namespace = %(namespace)s AND w.name = e.child AND e.child <> %(name)s
  JOIN workflow_version v ON v.namespace = w.namespace AND v.name = w.name AND v.version = coalesce(e.version, w.latest_version)
  CROSS JOIN LATERAL json_each(v.definition -> 'tasks') AS s (name, task)
  WHERE s.task -> 'workflow' IS NOT NULL)
SELECT DISTINCT workflow, child FROM edge ORDER BY workflow, child;
