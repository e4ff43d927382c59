-- Approvals as people look at them.

-- name: list_waiting_approvals
-- Newest first, along approval_waiting.
SELECT a.approval_id, a.run_id, r.version_id, v.name, a.task, a.token, a.title, a.approvers::text, a.status, a.asked_at, a.expires_at,
       a.decided_at, a.decided_by, a.comment, a.context::text, a.form::text, a.digest, a.needed, a.no_self_approval, a.on_expiry, a.answer::text,
       votes_of(a.approval_id)::text
FROM approval a JOIN run r ON r.run_id = a.run_id JOIN workflow_version v ON v.version_id = r.version_id
WHERE a.namespace = %(namespace)s AND a.status = 'waiting' AND (a.asked_at, a.approval_id) < (%(before)s, %(before_id)s)
ORDER BY a.asked_at DESC, a.approval_id DESC LIMIT %(limit)s;

-- name: list_approvals_for
-- Those of the waiting ones that this person may decide and has not: by name, by role, or in place of somebody.
SELECT a.approval_id, a.run_id, r.version_id, v.name, a.task, a.token, a.title, a.approvers::text, a.status, a.asked_at, a.expires_at,
       a.decided_at, a.decided_by, a.comment, a.context::text, a.form::text, a.digest, a.needed, a.no_self_approval, a.on_expiry, a.answer::text,
       votes_of(a.approval_id)::text
FROM approval a JOIN run r ON r.run_id = a.run_id JOIN workflow_version v ON v.version_id = r.version_id
WHERE a.namespace = %(namespace)s AND a.status = 'waiting' AND (a.asked_at, a.approval_id) < (%(before)s, %(before_id)s)
  AND (json_array_length(a.approvers) = 0 OR a.approvers::jsonb ?| (%(names)s::text[] || ARRAY(
    SELECT d.from_name FROM delegation d
    WHERE d.namespace = a.namespace AND d.to_name = %(actor)s AND d.starts_at <= now() AND d.ends_at > now() AND d.ended_by IS NULL
      AND NOT (a.no_self_approval AND EXISTS (
        SELECT FROM history s WHERE s.run_id = a.run_id AND s.kind = 'started' AND s.actor = d.made_by)))))
  AND NOT EXISTS (SELECT FROM approval_vote o WHERE o.approval_id = a.approval_id AND %(actor)s IN (o.actor, o.voter))
  AND NOT (a.no_self_approval AND %(actor)s <> '' AND EXISTS (
    SELECT FROM history h WHERE h.run_id = a.run_id AND h.kind = 'started' AND h.actor = %(actor)s))
ORDER BY a.asked_at DESC, a.approval_id DESC LIMIT %(limit)s;

-- name: list_approvals
-- Of any status, or of one. Walks the table: for people, not for programs.
SELECT a.approval_id, a.run_id, r.version_id, v.name, a.task, a.token, a.title, a.approvers::text, a.status, a.asked_at, a.expires_at,
       a.decided_at, a.decided_by, a.comment, a.context::text, a.form::text, a.digest, a.needed, a.no_self_approval, a.on_expiry, a.answer::text,
       votes_of(a.approval_id)::text
FROM approval a JOIN run r ON r.run_id = a.run_id JOIN workflow_version v ON v.version_id = r.version_id
WHERE a.namespace = %(namespace)s AND (%(status)s::text IS NULL OR a.status = %(status)s)
  AND (a.asked_at, a.approval_id) < (%(before)s, %(before_id)s)
ORDER BY a.asked_at DESC, a.approval_id DESC LIMIT %(limit)s;

-- name: get_approval
SELECT a.approval_id, a.run_id, r.version_id, v.name, a.task, a.token, a.title, a.approvers::text, a.status, a.asked_at, a.expires_at,
       a.decided_at, a.decided_by, a.comment, a.context::text, a.form::text, a.digest, a.needed, a.no_self_approval, a.on_expiry, a.answer::text,
       votes_of(a.approval_id)::text
FROM approval a JOIN run r ON r.run_id = a.run_id JOIN workflow_version v ON v.version_id = r.version_id
WHERE a.namespace = %(namespace)s AND a.approval_id = %(approval_id)s;

-- name: find_approval_of_task
-- The question of the task's latest hand-out.
SELECT approval_id FROM approval
WHERE namespace = %(namespace)s AND run_id = %(run_id)s AND task = %(task)s
ORDER BY token DESC LIMIT 1;

-- name: list_votes
SELECT actor, voter, role, in_place_of, decision, comment, form::text, digest, source, address, at
FROM approval_vote WHERE approval_id = %(approval_id)s ORDER BY at, actor;

-- name: list_approval_timers
-- Reminders and steps of escalation, those that have fired as well.
SELECT kind, position, targets::text, due_at, fired_at
FROM approval_timer WHERE approval_id = %(approval_id)s ORDER BY kind DESC, position;

-- name: list_approval_history
-- The newest, oldest first.
SELECT at, kind, actor, detail::text FROM (
  SELECT entry, at, kind, actor, detail FROM approval_history WHERE approval_id = %(approval_id)s ORDER BY entry DESC LIMIT %(limit)s) AS newest
ORDER BY entry;
