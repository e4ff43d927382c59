-- What the sweeps find. A sweep never changes a run: it says an event on the run's partition, in the transaction that notes that it did.

-- name: claim_due_timers
-- $1: how many at most, $2: seconds after which to say it again; at once when the clock was stepped back behind the last time. Several
-- processes share the work.
WITH due AS MATERIALIZED (
  SELECT run_id, task, is_deadline FROM timer
  WHERE due_at <= now() AND (said_at IS NULL OR said_at < now() - make_interval(secs => $2) OR said_at > now() + interval '10 s')
  ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE timer SET said_at = now() FROM due
WHERE timer.run_id = due.run_id AND timer.task = due.task AND timer.is_deadline = due.is_deadline
RETURNING timer.run_id, timer.task, timer.token, timer.kind;

-- name: next_timer
-- Seconds until the next timer that nobody has said, if it is near.
SELECT extract(epoch FROM due_at - clock_timestamp())::double precision FROM timer
WHERE said_at IS NULL AND due_at < now() + interval '2 seconds' ORDER BY due_at LIMIT 1;

-- name: restore_timers
-- A task that counts on a timer whose row is gone gets it again: the task says what it waits for. $1 at most. The task is locked, so
-- that a batch which moves it on at this moment comes before or behind, and takes the row away again.
INSERT INTO timer (run_id, task, token, kind, due_at)
SELECT t.run_id, t.task, t.token, CASE t.status WHEN 'pending' THEN CASE WHEN t.rounds > 0 AND t.attempt = t.retries_from THEN 'repeat' ELSE 'backoff' END
       WHEN 'queued' THEN 'start' WHEN 'waiting' THEN 'wait' ELSE 'timeout' END, t.due_at
FROM run r JOIN task t ON t.run_id = r.run_id AND t.due_at IS NOT NULL
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating') AND t.changed_at < now() - interval '1 second'
  AND NOT EXISTS (SELECT FROM timer m WHERE m.run_id = t.run_id AND m.task = t.task AND NOT m.is_deadline)
LIMIT $1 FOR NO KEY UPDATE OF t SKIP LOCKED
ON CONFLICT (run_id, task, is_deadline) DO NOTHING
RETURNING run_id, task, due_at;

-- name: restore_deadlines
-- The same for the deadlines of tasks. $1 at most.
INSERT INTO timer (run_id, task, token, kind, due_at, is_deadline)
SELECT t.run_id, t.task, 0, 'deadline', t.deadline_at, true
FROM run r JOIN task t ON t.run_id = r.run_id AND t.deadline_at IS NOT NULL
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling') AND t.changed_at < now() - interval '1 second'
  AND NOT EXISTS (SELECT FROM timer m WHERE m.run_id = t.run_id AND m.task = t.task AND m.is_deadline)
LIMIT $1 FOR NO KEY UPDATE OF t SKIP LOCKED
ON CONFLICT (run_id, task, is_deadline) DO NOTHING
RETURNING run_id, task, due_at;

-- name: restore_run_deadlines
-- The same for those of runs. $1 at most.
INSERT INTO timer (run_id, task, token, kind, due_at, is_deadline)
SELECT r.run_id, -1, 0, 'deadline', r.deadline_at, true
FROM run r
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused') AND r.deadline_at IS NOT NULL AND r.updated_at < now() - interval '1 second'
  AND NOT EXISTS (SELECT FROM timer m WHERE m.run_id = r.run_id AND m.task = -1 AND m.is_deadline)
LIMIT $1 FOR NO KEY UPDATE OF r SKIP LOCKED
ON CONFLICT (run_id, task, is_deadline) DO NOTHING
RETURNING run_id, task, due_at;

-- name: restore_parked_tasks
-- The same for a task that waits for a person after an ambiguous end. $1 at most.
INSERT INTO parked_task (run_id, task, token, namespace, error)
SELECT t.run_id, t.task, t.token, r.namespace, t.error
FROM run r JOIN task t ON t.run_id = r.run_id AND t.status = 'waiting' AND t.error IS NOT NULL
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating') AND t.changed_at < now() - interval '1 second'
  AND NOT EXISTS (SELECT FROM parked_task p WHERE p.run_id = t.run_id AND p.task = t.task)
LIMIT $1 FOR NO KEY UPDATE OF t SKIP LOCKED
ON CONFLICT (run_id, task) DO NOTHING
RETURNING run_id, task;

-- name: expire_sessions
-- Sessions whose lease had run out when the session agent's watermark passed it. Their end is final. When the clock was stepped back: a
-- mark ahead of it says nothing, and a session that was last renewed in what is the future now has not been renewed since.
UPDATE worker_session s SET ended_at = now()
FROM watermark w
WHERE w.name = 'sessions' AND w.at <= now() AND s.ended_at IS NULL AND (s.expires_at < w.at OR s.renewed_at > now() + s.lease)
RETURNING session_id, worker;

-- name: release_ended
-- What sessions that ended still list, if it is still open under that token and nobody else lists it.
WITH dropped AS (
  DELETE FROM held_task h USING worker_session s
  WHERE s.session_id = h.session_id AND s.ended_at IS NOT NULL
  RETURNING h.run_id, h.task, h.token, h.session_id)
SELECT d.run_id, d.task, d.token, d.session_id FROM dropped d
JOIN task t ON t.run_id = d.run_id AND t.task = d.task AND t.token = d.token AND t.status IN ('queued', 'running')
WHERE NOT EXISTS (
  SELECT FROM held_task o JOIN worker_session s ON s.session_id = o.session_id AND s.ended_at IS NULL
  WHERE o.run_id = d.run_id AND o.task = d.task AND o.token = d.token AND o.session_id <> d.session_id);

-- name: find_lost_running
-- RUNNING, but its session has ended, is unknown, or has not listed it for a lease. $1 lease seconds, $2 at most. What was decided in the
-- future was so before the clock was stepped back, and is judged like anything old; 10 s are what concurrent transactions may differ by.
SELECT t.run_id, t.task, t.token
FROM run r
JOIN task t ON t.run_id = r.run_id AND t.status = 'running'
JOIN watermark w ON w.name = 'sessions'
LEFT JOIN worker_session s ON s.session_id = t.session_id
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating')
  AND (t.changed_at < w.at - make_interval(secs => $1) OR t.changed_at > now() + interval '10 s')
  AND NOT EXISTS (
    SELECT FROM held_task h JOIN worker_session l ON l.session_id = h.session_id AND l.ended_at IS NULL
    WHERE h.run_id = t.run_id AND h.task = t.task AND h.token = t.token)
LIMIT $2;

-- name: find_lost_queued
-- QUEUED since before $1, and no live session lists it. Whether its command was published and received, or is gone, the caller knows, by
-- queue. $2 at most. One decided in the future is given as the oldest, as above. One that was kept back counts from its release.
SELECT t.run_id, t.task, t.token, CASE WHEN t.changed_at > now() THEN to_timestamp(0) ELSE greatest(t.changed_at, c.released_at) END, r.version_id
FROM run r
JOIN task t ON t.run_id = r.run_id AND t.status = 'queued'
LEFT JOIN held_command c ON c.run_id = t.run_id AND c.task = t.task AND c.token = t.token
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating') AND (c.run_id IS NULL OR c.released_at < $1)
  AND (t.changed_at < $1 OR t.changed_at > now() + interval '10 s')
  AND NOT EXISTS (
    SELECT FROM held_task h JOIN worker_session l ON l.session_id = h.session_id AND l.ended_at IS NULL
    WHERE h.run_id = t.run_id AND h.task = t.task AND h.token = t.token)
LIMIT $2;

-- name: find_strays
-- What live sessions list under a token that its task does not have, or of a run that is not there. $1 at most.
SELECT h.run_id, h.task, h.token
FROM held_task h
JOIN worker_session s ON s.session_id = h.session_id AND s.ended_at IS NULL
LEFT JOIN task t ON t.run_id = h.run_id AND t.task = h.task
WHERE t.token IS DISTINCT FROM h.token
LIMIT $1;

-- name: find_stuck
-- Commands that have waited for $1 seconds in a live worker that lists more than it has slots, the oldest first: as many as workers that serve
-- all of its queues and were heard of within $2 seconds have slots free, $3 at most.
SELECT run_id, task, token FROM (
  SELECT h.run_id, h.task, h.token, t.changed_at, i.free, row_number() OVER (PARTITION BY s.queues ORDER BY t.changed_at, h.run_id, h.task) AS place
  FROM worker_session s
  CROSS JOIN LATERAL (
    SELECT sum(o.slots - o.held) AS free FROM worker_session o
    WHERE o.ended_at IS NULL AND NOT o.draining AND o.held < o.slots AND o.queues @> s.queues
      AND o.renewed_at > now() - make_interval(secs => $2)) i
  JOIN held_task h ON h.session_id = s.session_id
  JOIN task t ON t.run_id = h.run_id AND t.task = h.task AND t.token = h.token AND t.status = 'queued'
  WHERE s.ended_at IS NULL AND s.held > s.slots AND i.free > 0 AND t.changed_at < now() - make_interval(secs => $1)) AS stuck
WHERE place <= free ORDER BY changed_at LIMIT $3;

-- name: read_tick
-- What a tick may claim: everything decided before this instant has been committed. now() is the start of its transaction, and under load one
-- commits long after that; so a tick is no later than the oldest that is still under way. Older than a minute is none of the engine's, and one
-- that has written nothing for 15 s either: somebody's session must not hold it back.
SELECT (extract(epoch FROM least(now(), min(a.xact_start))) * 1000000)::bigint
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
  AND a.xact_start > now() - interval '1 min' AND (a.backend_xid IS NOT NULL OR a.xact_start > now() - interval '15 s');

-- name: read_marks
-- The session agent's watermark (null: never), when the relay's slot was last found lost.
SELECT (SELECT at FROM watermark WHERE name = 'sessions'), (SELECT max(gap_at) FROM relay_owner);

-- name: note_logs
-- $1 topics, $2 their ids. Answers since when each log is the one it is; a topic seen for the first time was never another.
INSERT INTO topic_log AS l (topic, topic_id, since) SELECT topic, topic_id, '1970-01-01Z' FROM unnest($1::text[], $2::text[]) AS given (topic, topic_id)
ORDER BY topic
ON CONFLICT (topic) DO UPDATE SET topic_id = excluded.topic_id, since = CASE WHEN l.topic_id = excluded.topic_id THEN l.since ELSE now() END
RETURNING topic, since;

-- name: claim_unapplied
-- Requests that nobody has applied for a while: their wake-up may be gone. $1 seconds, $2 at most. One said in what is the future now, since
-- the clock was stepped back, was said long ago.
WITH late AS MATERIALIZED (
  SELECT inbox_id FROM inbox WHERE applied_at IS NULL AND (said_at < now() - make_interval(secs => $1) OR said_at > now() + interval '10 s')
  ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE inbox SET said_at = now() FROM late
WHERE inbox.inbox_id = late.inbox_id
RETURNING inbox.inbox_id, inbox.run_id;

-- name: escalate_expired
-- Questions whose time is over and that are escalated then: the next step of the chain is asked besides, and the time begins again. Before
-- expire_approvals, which takes those that have no step left. $1 at most.
WITH due AS MATERIALIZED (
  SELECT a.approval_id FROM approval a
  WHERE a.status = 'waiting' AND a.expires_at <= now() AND a.on_expiry = 'escalate'
    AND EXISTS (SELECT FROM approval_timer m WHERE m.approval_id = a.approval_id AND m.kind = 'escalate' AND m.fired_at IS NULL)
  LIMIT $1 FOR UPDATE SKIP LOCKED),
step AS MATERIALIZED (
  SELECT DISTINCT ON (m.approval_id) m.approval_id, m.position, m.targets
  FROM approval_timer m JOIN due ON due.approval_id = m.approval_id
  WHERE m.kind = 'escalate' AND m.fired_at IS NULL ORDER BY m.approval_id, m.position),
fired AS (
  UPDATE approval_timer m SET fired_at = now() FROM step
  WHERE m.approval_id = step.approval_id AND m.kind = 'escalate' AND m.position = step.position),
told AS (
  INSERT INTO approval_history (approval_id, kind, detail)
  SELECT approval_id, 'escalated', json_build_object('step', position + 1, 'to', targets, 'because', 'expired') FROM step)
UPDATE approval a SET approvers = (a.approvers::jsonb || step.targets::jsonb)::json, expires_at = now() + make_interval(secs => a.expires_seconds)
FROM step WHERE a.approval_id = step.approval_id
RETURNING a.approval_id, a.run_id, 'escalate', step.position, step.targets::text;

-- name: expire_approvals
-- Questions whose time is over. The row is the arbiter: whoever sets its status decides.
WITH due AS MATERIALIZED (
  SELECT approval_id FROM approval a
  WHERE status = 'waiting' AND expires_at <= now() AND NOT (on_expiry = 'escalate' AND EXISTS (
    SELECT FROM approval_timer m WHERE m.approval_id = a.approval_id AND m.kind = 'escalate' AND m.fired_at IS NULL))
  LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE approval SET
  status = CASE on_expiry WHEN 'approve' THEN 'approved' WHEN 'reject' THEN 'rejected' ELSE 'expired' END,
  decided_at = now(), decided_by = 'expiry', comment = 'nobody answered in time'
FROM due WHERE approval.approval_id = due.approval_id
RETURNING approval.run_id, approval.task, approval.token, approval.status, votes_of(approval.approval_id)::text;

-- name: fire_approval_timers
-- Reminders and steps of escalation that are due: each fires once, and only while its question waits; of a closed one it is dropped. The
-- question is locked, so one that is decided at this moment is not escalated. $1 at most.
WITH due AS MATERIALIZED (
  SELECT m.approval_id, m.kind, m.position, m.targets, a.status = 'waiting' AS is_open
  FROM approval_timer m JOIN approval a ON a.approval_id = m.approval_id
  WHERE m.due_at <= now() AND m.fired_at IS NULL ORDER BY m.due_at LIMIT $1 FOR UPDATE OF m, a SKIP LOCKED),
dropped AS (
  DELETE FROM approval_timer m USING due
  WHERE NOT due.is_open AND m.approval_id = due.approval_id AND m.kind = due.kind AND m.position = due.position),
fired AS (
  UPDATE approval_timer m SET fired_at = now() FROM due
  WHERE due.is_open AND m.approval_id = due.approval_id AND m.kind = due.kind AND m.position = due.position
  RETURNING m.approval_id, m.kind, m.position, m.targets),
asked AS (
  UPDATE approval a SET approvers = (a.approvers::jsonb || more.targets)::json
  FROM (SELECT approval_id, jsonb_agg(target ORDER BY position) AS targets
        FROM fired CROSS JOIN jsonb_array_elements(fired.targets::jsonb) AS target WHERE kind = 'escalate' GROUP BY approval_id) AS more
  WHERE a.approval_id = more.approval_id),
told AS (
  INSERT INTO approval_history (approval_id, kind, detail)
  SELECT approval_id, CASE kind WHEN 'remind' THEN 'reminded' ELSE 'escalated' END,
         CASE kind WHEN 'escalate' THEN json_build_object('step', position + 1, 'to', targets, 'because', 'due')
                   ELSE json_build_object('reminder', position + 1) END
  FROM fired ORDER BY kind, position)
SELECT fired.approval_id, a.run_id, fired.kind, fired.position, fired.targets::text
FROM fired JOIN approval a ON a.approval_id = fired.approval_id;

-- name: insert_requests
INSERT INTO inbox (inbox_id, run_id, kind, body, actor)
SELECT inbox_id, run_id, $3, body, $4 FROM unnest($1::uuid[], $2::uuid[], $5::json[]) AS given (inbox_id, run_id, body);

-- name: note_passes
-- Names in order (two processes that write at once wait, and do not lock each other out), seconds since each, what each found.
INSERT INTO sweep_pass (name, at, found)
SELECT name, now() - ago * interval '1 s', found FROM unnest($1::text[], $2::float8[], $3::int[]) AS passed (name, ago, found)
ON CONFLICT (name) DO UPDATE SET at = excluded.at, found = excluded.found;

-- name: list_queues
-- Queues named by any published version.
SELECT DISTINCT coalesce(value ->> 'queue', 'default') FROM workflow_version, json_each(definition -> 'tasks');
