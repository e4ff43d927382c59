-- Filters that people keep under a name.

-- name: list_views
-- Those that %(owner)s may see, by name.
SELECT view_id, of, name, owner, is_shared, filter, layout::text, created_at, updated_at FROM saved_view
WHERE namespace = %(namespace)s AND (%(of)s::text IS NULL OR of = %(of)s) AND (is_shared OR owner = %(owner)s)
ORDER BY of, name, is_shared LIMIT %(limit)s;

-- name: get_view
SELECT view_id, of, name, owner, is_shared, filter, layout::text, created_at, updated_at FROM saved_view
WHERE namespace = %(namespace)s AND view_id = %(view_id)s AND (is_shared OR owner = %(owner)s);

-- name: insert_view
INSERT INTO saved_view (view_id, namespace, of, name, owner, is_shared, filter, layout)
VALUES (%(view_id)s, %(namespace)s, %(of)s, %(name)s, %(owner)s, %(is_shared)s, %(filter)s, %(layout)s::json);

-- name: count_views
SELECT count(*)::int FROM saved_view WHERE namespace = %(namespace)s AND owner = %(owner)s;

-- name: update_view
UPDATE saved_view SET of = %(of)s, name = %(name)s, is_shared = %(is_shared)s, filter = %(filter)s, layout = %(layout)s::json, updated_at = now()
WHERE namespace = %(namespace)s AND view_id = %(view_id)s;

-- name: delete_view
DELETE FROM saved_view WHERE namespace = %(namespace)s AND view_id = %(view_id)s;
