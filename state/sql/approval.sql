-- What people do to approvals. The row of the question is the arbiter between them and the expiry: each locks it first, and whoever takes
-- it out of 'waiting' has decided.

-- name: lock_approval
-- Until the end of the transaction. An answer that comes after the expiry is too late, also before the sweep has seen that; while there is
-- somebody left to escalate to, the expiry is no end.
SELECT run_id, task, token, status, approvers::text, needed, no_self_approval, form::text, digest,
       coalesce(expires_at <= clock_timestamp(), false) AND NOT (on_expiry = 'escalate' AND EXISTS (
         SELECT FROM approval_timer m WHERE m.approval_id = approval.approval_id AND m.kind = 'escalate' AND m.fired_at IS NULL)) AS is_over,
       decided_by
FROM approval WHERE approval_id = %(approval_id)s AND namespace = %(namespace)s FOR UPDATE;

-- name: read_electorate
-- Who started the run, and what has been delegated to this person, now: the approvers, and who gave them.
SELECT (SELECT actor FROM history WHERE run_id = %(run_id)s AND kind = 'started' ORDER BY row_version LIMIT 1),
       d.approvers, d.made_by
FROM (SELECT coalesce(array_agg(from_name ORDER BY starts_at, delegation_id), '{}') AS approvers,
             coalesce(array_agg(made_by ORDER BY starts_at, delegation_id), '{}') AS made_by
      FROM delegation
      WHERE namespace = %(namespace)s AND to_name = %(actor)s AND starts_at <= clock_timestamp() AND ends_at > clock_timestamp()
        AND ended_by IS NULL) AS d;

-- name: insert_vote
-- None, when this person has voted, or somebody in whose place they would.
INSERT INTO approval_vote (approval_id, actor, voter, role, in_place_of, decision, comment, form, digest, source, address)
VALUES (%(approval_id)s, %(actor)s, %(voter)s, %(role)s, %(in_place_of)s, %(decision)s, %(comment)s, %(form)s::json, %(digest)s, %(source)s,
        %(address)s)
ON CONFLICT DO NOTHING RETURNING at;

-- name: count_votes
SELECT count(*) FILTER (WHERE decision = 'approve')::int, votes_of(%(approval_id)s)::text FROM approval_vote WHERE approval_id = %(approval_id)s;

-- name: settle_approval
-- Takes the row out of 'waiting', once.
UPDATE approval SET status = %(status)s, decided_at = clock_timestamp(), decided_by = %(actor)s, comment = %(comment)s, answer = %(form)s::json
WHERE approval_id = %(approval_id)s AND status = 'waiting'
RETURNING run_id;

-- name: insert_approval_history
INSERT INTO approval_history (approval_id, kind, actor, detail) VALUES (%(approval_id)s, %(kind)s, %(actor)s, %(detail)s::json);

-- name: insert_delegation
INSERT INTO delegation (delegation_id, namespace, from_name, to_name, starts_at, ends_at, reason, made_by)
VALUES (%(delegation_id)s, %(namespace)s, %(from_name)s, %(to_name)s, coalesce(%(starts_at)s, now()), %(ends_at)s, %(reason)s, %(actor)s)
RETURNING delegation_id, from_name, to_name, starts_at, ends_at, reason, made_by, made_at, ended_by;

-- name: list_delegations
-- Those that are not over, newest first.
SELECT delegation_id, from_name, to_name, starts_at, ends_at, reason, made_by, made_at, ended_by FROM delegation
WHERE namespace = %(namespace)s AND ends_at > now() AND ended_by IS NULL ORDER BY made_at DESC, delegation_id LIMIT %(limit)s;

-- name: get_delegation
SELECT delegation_id, from_name, to_name, starts_at, ends_at, reason, made_by, made_at, ended_by FROM delegation
WHERE namespace = %(namespace)s AND delegation_id = %(delegation_id)s FOR UPDATE;

-- name: end_delegation
-- From now on; what was decided by it stands.
UPDATE delegation SET ends_at = least(ends_at, clock_timestamp()), ended_by = %(actor)s
WHERE namespace = %(namespace)s AND delegation_id = %(delegation_id)s;

-- name: insert_link
INSERT INTO approval_link (link_id, approval_id, namespace, name, role, made_by, expires_at)
VALUES (%(link_id)s, %(approval_id)s, %(namespace)s, %(name)s, %(role)s, %(actor)s, clock_timestamp() + %(length)s)
RETURNING expires_at;

-- name: read_link
SELECT approval_id, name, role, made_by, expires_at, used_at, expires_at <= clock_timestamp() AS is_over
FROM approval_link WHERE link_id = %(link_id)s AND namespace = %(namespace)s;

-- name: use_link
-- Once; none when it was used, or is over.
UPDATE approval_link SET used_at = clock_timestamp()
WHERE link_id = %(link_id)s AND namespace = %(namespace)s AND used_at IS NULL AND expires_at > clock_timestamp()
RETURNING approval_id;

-- name: make_key
-- The first of several that make it at once has made it.
INSERT INTO engine_key (name, key) VALUES (%(name)s, %(key)s) ON CONFLICT (name) DO NOTHING;

-- name: read_key
SELECT key FROM engine_key WHERE name = %(name)s;
