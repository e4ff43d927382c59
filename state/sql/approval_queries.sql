-- Approvals. The row is the arbiter between people and the expiry: whoever takes it out of 'waiting' has decided.

-- name: list_waiting_approvals
-- Newest first, along approval_waiting.
SELECT a.approval_id, a.run_id, r.version_id, v.name, a.task, a.token, a.title, a.approvers::text, a.status, a.asked_at, a.expires_at,
       a.decided_at, a.decided_by, a.comment
FROM approval a JOIN run r ON r.run_id = a.run_id JOIN workflow_version v ON v.version_id = r.version_id
WHERE a.namespace = %(namespace)s AND a.status = 'waiting' AND (a.asked_at, a.approval_id) < (%(before)s, %(before_id)s)
ORDER BY a.asked_at DESC, a.approval_id DESC LIMIT %(limit)s;

-- name: list_approvals
-- Of any status, or of one. Walks the table: for people, not for programs.
SELECT a.approval_id, a.run_id, r.version_id, v.name, a.task, a.token, a.title, a.approvers::text, a.status, a.asked_at, a.expires_at,
       a.decided_at, a.decided_by, a.comment
FROM approval a JOIN run r ON r.run_id = a.run_id JOIN workflow_version v ON v.version_id = r.version_id
WHERE a.namespace = %(namespace)s AND (%(status)s::text IS NULL OR a.status = %(status)s)
  AND (a.asked_at, a.approval_id) < (%(before)s, %(before_id)s)
ORDER BY a.asked_at DESC, a.approval_id DESC LIMIT %(limit)s;

-- name: get_approval
SELECT a.approval_id, a.run_id, r.version_id, v.name, a.task, a.token, a.title, a.approvers::text, a.status, a.asked_at, a.expires_at,
       a.decided_at, a.decided_by, a.comment
FROM approval a JOIN run r ON r.run_id = a.run_id JOIN workflow_version v ON v.version_id = r.version_id
WHERE a.namespace = %(namespace)s AND a.approval_id = %(approval_id)s;

-- name: find_approval_of_task
-- The question of the task's latest hand-out.
SELECT approval_id FROM approval
WHERE namespace = %(namespace)s AND run_id = %(run_id)s AND task = %(task)s
ORDER BY token DESC LIMIT 1;

-- name: decide_approval
-- Takes the row out of 'waiting', once. One that has expired is left to the sweep, so that a late decision never wins.
UPDATE approval SET status = %(status)s, decided_at = now(), decided_by = %(actor)s, comment = %(comment)s
WHERE approval_id = %(approval_id)s AND namespace = %(namespace)s AND status = 'waiting'
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
RETURNING run_id, task, token;
