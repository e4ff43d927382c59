-- Parts of the statements of search.sql: the rows that an index finds, newest first; and what bulks ask of them besides. In the braces of `narrow` stand
-- the conditions of a filter that an index finds.

-- name: walk
(SELECT r.run_id AS place, r.* FROM run r
 WHERE r.namespace = %(namespace)s AND r.run_id < %(before)s AND {narrow}
 ORDER BY r.run_id DESC LIMIT %(scanned)s)

-- name: walk_versions
-- One short walk of run_of_a_version for each version: a merge that the planner does not find by itself. The version is given as a range on purpose: as
-- an equality it lets the planner walk the primary key instead and throw away what is of another version, which for a workflow with few runs among
-- millions is nearly all. The rows themselves are read afterwards, one by one, and only as many as are asked for.
(SELECT f.run_id AS place, r.* FROM (
   SELECT f.run_id FROM unnest(%(versions)s::int[]) AS v (version_id)
   CROSS JOIN LATERAL (
     SELECT r.run_id FROM run r
     WHERE r.version_id >= v.version_id AND r.version_id <= v.version_id AND r.run_id < %(before)s AND {narrow}
     ORDER BY r.version_id, r.run_id DESC LIMIT %(scanned)s) f
   ORDER BY f.run_id DESC LIMIT %(scanned)s) f
 CROSS JOIN LATERAL (SELECT * FROM run WHERE run.run_id = f.run_id OFFSET 0) r)

-- name: walk_labels
-- One short walk of run_label_of_a_value for each value, which stands as a range for the same reason. What is walked are labels, so of their runs only the
-- ids can be asked on the way.
(SELECT f.run_id AS place, r.* FROM (
   SELECT f.run_id FROM unnest(%(values)s::text[]) AS v (value)
   CROSS JOIN LATERAL (
     SELECT r.run_id FROM run_label r
     WHERE r.namespace = %(namespace)s AND r.name = %(label)s AND r.value >= v.value AND r.value <= v.value AND r.run_id < %(before)s AND {narrow}
     ORDER BY r.value, r.run_id DESC LIMIT %(scanned)s) f
   ORDER BY f.run_id DESC LIMIT %(scanned)s) f
 CROSS JOIN LATERAL (SELECT * FROM run WHERE run.run_id = f.run_id OFFSET 0) r)

-- name: walk_letters
-- Along dead_letter_newest, or dead_letter_of_a_group; one walk for each status.
(SELECT f.created_at AS place_at, f.dead_letter_id AS place, d.* FROM (
   SELECT f.created_at, f.dead_letter_id FROM unnest(%(statuses)s::text[]) AS s (status)
   CROSS JOIN LATERAL (
     SELECT d.created_at, d.dead_letter_id FROM dead_letter d
     WHERE d.namespace = %(namespace)s AND d.status = s.status AND (d.created_at, d.dead_letter_id) < (%(before_at)s, %(before)s) AND {narrow}
     ORDER BY d.created_at DESC, d.dead_letter_id DESC LIMIT %(scanned)s) f
   ORDER BY f.created_at DESC, f.dead_letter_id DESC LIMIT %(scanned)s) f
 CROSS JOIN LATERAL (SELECT * FROM dead_letter WHERE dead_letter.dead_letter_id = f.dead_letter_id OFFSET 0) d)

-- name: is_in_no_bulk
NOT coalesce((SELECT true FROM bulk_item b WHERE b.act = {act} AND b.item_id = r.run_id AND b.outcome IS NULL LIMIT 1), false)

-- name: is_in_no_replay
NOT coalesce((SELECT true FROM bulk_item b WHERE b.act = 'replay' AND b.item_id = d.dead_letter_id AND b.outcome IS NULL LIMIT 1), false)
