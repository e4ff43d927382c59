-- Runs in flight by version.

-- name: list_in_flight
-- The oldest ones of a workflow, on whatever version, in the order in which they began.
SELECT r.run_id
FROM run r
JOIN workflow_version v ON v.version_id = r.version_id
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention') AND v.namespace = %(namespace)s AND v.name = %(name)s
ORDER BY r.run_id LIMIT %(limit)s;

-- name: count_in_flight
-- Walks the open runs by their partial index: costs as much as there are open runs, however many have ended. Run ids rise with time, so the
-- lowest is the oldest.
SELECT v.version, r.status::text, count(*)::int, min(r.run_id::text)::uuid, min(r.created_at)
FROM run r
JOIN workflow_version v ON v.version_id = r.version_id
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention') AND v.namespace = %(namespace)s AND v.name = %(name)s
GROUP BY v.version, r.status
ORDER BY v.version DESC, r.status;
