-- What must hold in any database of ours. All read-only. A check answers how many things are wrong, and three of them as examples.
-- Those of runs look at %(runs)s, an array of ids as text; those of small tables at %(limit)s rows at most, the oldest.

-- name: read_server
SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_setting('wal_level'),
       extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery();

-- name: list_migrations
SELECT name FROM schema_migration;

-- == which runs ============================================================================================================
-- name: estimate_runs
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'run'::regclass;

-- name: choose_runs
-- Open ones and the newest ones, %(limit)s of each, and %(percent)s of all, in chunks of %(chunk)s.
SELECT array_agg(run_id)::text, count(*)::int
FROM (
  SELECT run_id, (row_number() OVER (ORDER BY run_id) - 1) / %(chunk)s AS chunk
  FROM (
    (SELECT run_id FROM run WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention') ORDER BY run_id LIMIT %(limit)s)
    UNION
    (SELECT run_id FROM run ORDER BY run_id DESC LIMIT %(limit)s)
    UNION
    (SELECT run_id FROM run TABLESAMPLE SYSTEM (%(percent)s) LIMIT %(limit)s)) AS chosen) AS numbered
GROUP BY chunk ORDER BY chunk;

-- name: next_runs
-- The next %(chunk)s behind %(after)s, for a pass over all.
SELECT array_agg(run_id)::text, count(*)::int, (array_agg(run_id ORDER BY run_id DESC))[1]
FROM (SELECT run_id FROM run WHERE run_id > %(after)s ORDER BY run_id LIMIT %(chunk)s) AS page;

-- == the engine ============================================================================================================
-- name: list_slots
SELECT slot_name, active, coalesce(wal_status, ''), coalesce(confirmed_flush_lsn - '0/0'::pg_lsn, 0)::bigint,
       coalesce(pg_current_wal_lsn() - confirmed_flush_lsn, 0)::bigint
FROM pg_replication_slots;

-- name: list_relays
SELECT slot, owner, extract(epoch FROM clock_timestamp() - renewed_at)::float8, (acked_lsn - '0/0'::pg_lsn)::bigint
FROM relay_owner
ORDER BY renewed_at DESC;

-- name: list_failovers
-- Timelines that others came before, of the last %(seconds)s, newest first.
SELECT number, noted_at, taken_over_until, lost_records
FROM timeline WHERE epoch > 0 AND noted_at > clock_timestamp() - make_interval(secs => %(seconds)s) ORDER BY epoch DESC;

-- name: count_sessions
-- Sessions whose lease ran out and that nobody has ended yet.
SELECT count(*) FILTER (WHERE expires_at > clock_timestamp())::int,
       count(*) FILTER (WHERE expires_at < clock_timestamp() - make_interval(secs => %(seconds)s))::int
FROM worker_session WHERE ended_at IS NULL;

-- name: find_late_timers
SELECT count(*)::int, coalesce(max(extract(epoch FROM clock_timestamp() - due_at)), 0)::float8
FROM timer WHERE due_at < clock_timestamp() - make_interval(secs => %(seconds)s);

-- name: find_unapplied_requests
-- Those of a run that stands aside wait for its release.
SELECT count(*)::int, coalesce(max(extract(epoch FROM clock_timestamp() - i.created_at)), 0)::float8
FROM inbox i LEFT JOIN run r ON r.run_id = i.run_id
WHERE i.applied_at IS NULL AND i.created_at < clock_timestamp() - make_interval(secs => %(seconds)s)
  AND (r.attention IS NOT TRUE OR i.kind IN ('cancelled', 'terminated', 'released'));

-- name: list_passes
SELECT name, extract(epoch FROM clock_timestamp() - at)::float8 FROM sweep_pass ORDER BY name;

-- name: read_ticks
-- Seconds since the last tick that arrived; null: none ever did.
SELECT extract(epoch FROM clock_timestamp() - at)::float8 FROM watermark WHERE name = 'sessions';

-- name: list_positions
SELECT topic, partition, next_offset, topic_id, owner FROM partition_owner ORDER BY topic, partition;

-- name: find_wrong_holders
-- What is listed by a session that is not there, or still by one that ended long enough ago for a sweep to have said so; and running tasks
-- that nobody has for longer than their lease.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM (
  SELECT 'session ' || h.session_id || CASE WHEN s.session_id IS NULL THEN ', which is not there, lists ' ELSE ', which ended, still lists ' END
         || h.run_id || ' task ' || h.task AS what
  FROM (SELECT * FROM held_task LIMIT %(limit)s) AS h LEFT JOIN worker_session s ON s.session_id = h.session_id
  WHERE s.session_id IS NULL OR s.ended_at < clock_timestamp() - make_interval(secs => %(seconds)s)
  UNION ALL
  SELECT t.run_id || ' task ' || t.task || ': runs, and no live session has it'
  FROM (SELECT run_id FROM run WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating') ORDER BY run_id LIMIT %(limit)s) AS r
  JOIN task t ON t.run_id = r.run_id AND t.status = 'running'
  JOIN watermark w ON w.name = 'sessions'
  WHERE t.changed_at < w.at - make_interval(secs => %(seconds)s) - coalesce((SELECT max(lease) FROM worker_session), interval '30 s')
    AND NOT EXISTS (
      SELECT FROM held_task h JOIN worker_session l ON l.session_id = h.session_id
      WHERE h.run_id = t.run_id AND h.task = t.task AND h.token = t.token
        AND (l.ended_at IS NULL OR l.ended_at > clock_timestamp() - make_interval(secs => %(seconds)s)))) AS wrong;

-- == runs ==================================================================================================================
-- name: find_wrong_status
-- A run's status derived again from its tasks, as `derive_status` in the machine does: items of maps count while they are open; what is undone
-- counts once the tasks of the graph have ended, which it comes after.
WITH version AS MATERIALIZED (
  SELECT version_id, (SELECT count(*) FROM json_object_keys(definition -> 'tasks')) AS tasks FROM workflow_version),
derived AS (
  SELECT r.run_id, r.status,
         CASE WHEN r.attention THEN 'needs_attention'
              WHEN t.ended = v.tasks AND r.control & 4 /* TERMINATED */ > 0 THEN 'terminated'
              WHEN t.ended = v.tasks AND t.undone > 0 AND t.to_undo = 0 THEN CASE WHEN t.not_undone > 0 THEN 'compensation_failed' ELSE 'compensated' END
              WHEN t.ended = v.tasks AND t.undone > 0 AND r.control & 163 /* WITHHOLDS */ = 0 THEN 'compensating'
              WHEN t.ended = v.tasks AND t.undone = 0 AND (t.failed > 0 OR r.control & 8 /* OVERDUE */ > 0) THEN 'failed'
              WHEN t.ended = v.tasks AND t.undone = 0 AND (t.cancelled > 0 OR r.control & 64 /* CANCELLING */ > 0) THEN 'cancelled'
              WHEN t.ended = v.tasks AND t.undone = 0 THEN 'completed'
              WHEN r.control & 35 /* PAUSES */ > 0 AND t.handed_out > 0 THEN 'pausing'
              WHEN r.control & 35 /* PAUSES */ > 0 THEN 'paused'
              WHEN r.control & 64 /* CANCELLING */ > 0 THEN 'cancelling'
              WHEN r.control & 128 /* AWAITS_PERMIT */ > 0 THEN 'waiting'
              WHEN t.waiting > 0 AND t.busy = 0 THEN 'waiting'
              ELSE 'running' END::run_status AS derived
  FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN run r ON r.run_id = given.run_id
  LEFT JOIN version v ON v.version_id = r.version_id
  CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE status IN ('completed', 'failed', 'skipped', 'cancelled') AND task < 10000) AS ended,
           count(*) FILTER (WHERE status = 'failed' AND task < 10000) AS failed,
           count(*) FILTER (WHERE status = 'cancelled' AND task < 10000) AS cancelled,
           count(*) FILTER (WHERE task >= 200000000) AS undone,
           count(*) FILTER (WHERE task >= 200000000 AND status NOT IN ('completed', 'failed', 'skipped', 'cancelled')) AS to_undo,
           count(*) FILTER (WHERE task >= 200000000 AND status = 'failed') AS not_undone,
           count(*) FILTER (WHERE status = 'waiting') AS waiting,
           count(*) FILTER (WHERE status IN ('queued', 'running')) AS handed_out,
           count(*) FILTER (WHERE status IN ('queued', 'running') OR due_at IS NOT NULL AND status = 'pending' OR withheld IS NOT NULL) AS busy
    FROM task WHERE task.run_id = r.run_id) AS t)
SELECT count(*)::int, (array_agg(run_id || ' is ' || status || ', derived ' || derived))[1:3] FROM derived WHERE status <> derived;

-- name: find_wrong_attempts
-- Attempts that ended are 1..k without a gap; one more than they is running, or none. A lookup that runs is no attempt. No more than the
-- policy allows were counted, and none has ended of a hand-out that is open.
WITH looked_at AS MATERIALIZED (
  SELECT r.run_id, r.version_id FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN run r ON r.run_id = given.run_id),
spec AS MATERIALIZED (
  SELECT v.version_id, (s.place - 1)::int AS task,
         CASE json_typeof(s.task -> 'retry') WHEN 'number' THEN (s.task ->> 'retry')::int
              WHEN 'object' THEN coalesce((s.task -> 'retry' ->> 'attempts')::int, 3) ELSE 3 END AS attempts_max,
         CASE json_typeof(s.task -> 'compensate' -> 'retry') WHEN 'object' THEN coalesce((s.task -> 'compensate' -> 'retry' ->> 'attempts')::int, 3)
              ELSE 3 END AS compensation_attempts_max
  FROM workflow_version v, json_each(v.definition -> 'tasks') WITH ORDINALITY AS s (name, task, place)
  WHERE v.version_id IN (SELECT version_id FROM looked_at)),
compared AS (
  SELECT t.run_id, t.task, t.status, t.attempt, t.retries_from, t.token, t.lookups, a.ended, a.highest, a.open,
         CASE WHEN t.task < 200000000 THEN s.attempts_max ELSE s.compensation_attempts_max END AS attempts_max
  FROM looked_at r JOIN task t ON t.run_id = r.run_id
  LEFT JOIN spec s ON s.version_id = r.version_id AND s.task = CASE WHEN t.task < 10000 THEN t.task WHEN t.task >= 200000000 THEN t.task - 200000000 ELSE t.task / 10000 - 1 END
  CROSS JOIN LATERAL (
    SELECT count(DISTINCT attempt) AS ended, coalesce(max(attempt), 0) AS highest,
           count(*) FILTER (WHERE token = t.token AND t.status IN ('queued', 'running')) AS open
    FROM attempt WHERE attempt.run_id = t.run_id AND attempt.task = t.task) a)
SELECT count(*)::int,
       (array_agg(run_id || ' task ' || task || ': ' || CASE
          WHEN open > 0 THEN 'is ' || status || ', but that attempt has ended'
          WHEN attempt - retries_from > attempts_max THEN attempt - retries_from || ' tries of ' || attempts_max
          ELSE ended || ' ended of ' || attempt END))[1:3]
FROM compared
WHERE highest <> ended OR ended <> attempt - CASE WHEN status = 'running' AND lookups = 0 THEN 1 ELSE 0 END
   OR open > 0 OR attempt - retries_from > attempts_max;

-- name: find_wrong_tokens
-- Later attempts have higher tokens, and none is above the task's.
WITH ordered AS (
  SELECT a.run_id, a.task, a.token, a.attempt, lag(a.token) OVER (PARTITION BY a.run_id, a.task ORDER BY a.attempt, a.token) AS before,
         lag(a.attempt) OVER (PARTITION BY a.run_id, a.task ORDER BY a.token) AS attempt_before, t.token AS latest
  FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN attempt a ON a.run_id = given.run_id
  LEFT JOIN task t ON t.run_id = a.run_id AND t.task = a.task)
SELECT count(*)::int, (array_agg(run_id || ' task ' || task || ': attempt ' || attempt || ' has token ' || token || CASE
         WHEN latest IS NULL THEN ' of no task' WHEN token > latest THEN ', the task ' || latest
         WHEN token <= before THEN ', the one before it ' || before ELSE ', attempt ' || attempt_before || ' a lower one' END))[1:3]
FROM ordered WHERE token <= before OR attempt <= attempt_before OR latest IS NULL OR token > latest;

-- name: find_history_gaps
-- What moved a run is numbered 1..row_version.
SELECT count(*)::int, (array_agg(r.run_id || ' has ' || e.numbers || ' of ' || r.row_version))[1:3]
FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN run r ON r.run_id = given.run_id
CROSS JOIN LATERAL (
  SELECT count(DISTINCT row_version) AS numbers, coalesce(min(row_version), 0) AS lowest, coalesce(max(row_version), 0) AS highest
  FROM (SELECT row_version FROM history WHERE history.run_id = r.run_id
        UNION ALL SELECT row_version FROM attempt WHERE attempt.run_id = r.run_id) AS event) e
WHERE e.numbers <> r.row_version OR e.lowest <> 1 OR e.highest <> r.row_version;

-- name: find_moved_after_end
-- A run that has ended was not moved afterwards, and nothing of it waits.
SELECT count(*)::int, (array_agg(r.run_id || ' ended, then ' || e.what))[1:3]
FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN run r ON r.run_id = given.run_id
CROSS JOIN LATERAL (
  SELECT 'task ' || t.task || ' became ' || t.status AS what FROM task t WHERE t.run_id = r.run_id AND t.changed_at > r.finished_at
  UNION ALL SELECT h.kind FROM history h WHERE h.run_id = r.run_id AND h.at > r.finished_at
  UNION ALL SELECT 'attempt ' || a.attempt || ' ended' FROM attempt a WHERE a.run_id = r.run_id AND a.ended_at > r.finished_at
  UNION ALL SELECT CASE WHEN m.is_deadline THEN 'the deadline of task ' ELSE 'a timer of task ' END || m.task || ' was left' FROM timer m WHERE m.run_id = r.run_id
  UNION ALL SELECT 'task ' || p.task || ' was left parked' FROM parked_task p WHERE p.run_id = r.run_id
  UNION ALL SELECT 'task ' || w.task || ' was left waiting for a signal' FROM signal_wait w WHERE w.run_id = r.run_id
  LIMIT 1) AS e
WHERE r.finished_at IS NOT NULL;

-- name: find_orphan_waits
-- An open run has something that will move it: a command, a timer (a deadline only ends it), a question, a signal or a child that it waits for, a
-- request, or a person whose attention it has, or who paused it, or it is in line for its permit. What a pause withholds begins when that is over.
SELECT count(*)::int, (array_agg(r.run_id || ' is ' || r.status || ', and nothing will move it'))[1:3]
FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN run r ON r.run_id = given.run_id
WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating')
  AND NOT EXISTS (SELECT FROM task t WHERE t.run_id = r.run_id AND t.status IN ('queued', 'running'))
  AND NOT EXISTS (SELECT FROM timer m WHERE m.run_id = r.run_id AND NOT m.is_deadline)
  AND NOT EXISTS (SELECT FROM approval a WHERE a.run_id = r.run_id AND a.status = 'waiting')
  AND NOT EXISTS (SELECT FROM parked_task p WHERE p.run_id = r.run_id AND p.resolved_at IS NULL)
  AND NOT EXISTS (SELECT FROM task t WHERE t.run_id = r.run_id AND t.withheld IS NOT NULL AND (r.control & 35 /* PAUSES */ > 0 OR CASE WHEN t.task < 10000 THEN t.task WHEN t.task < 200000000 THEN t.task / 10000 - 1 END = ANY(r.paused_tasks)))
  AND NOT EXISTS (SELECT FROM run_permit p WHERE p.run_id = r.run_id AND p.granted_at IS NULL AND r.control & 128 /* AWAITS_PERMIT */ > 0)
  AND NOT EXISTS (SELECT FROM signal_wait w WHERE w.run_id = r.run_id)
  AND NOT EXISTS (SELECT FROM pool_waiter w WHERE w.run_id = r.run_id)
  AND NOT EXISTS (
    SELECT FROM child_run c JOIN task t ON t.run_id = c.parent_run_id AND t.task = c.task AND t.token = c.token AND t.status = 'waiting'
    WHERE c.parent_run_id = r.run_id AND c.status IN ('asked', 'started'))
  AND NOT EXISTS (SELECT FROM inbox i WHERE i.run_id = r.run_id AND i.applied_at IS NULL);

-- name: find_missed_joins
-- A task of an open run whose join is decided is handed out, asked about, or skipped: all its needs have ended; enough of them completed for
-- `any` or a number; or one failed, or was skipped because of a failure, for `all`. From what has ended to what needs it, so that a wide run
-- costs as much as it has rows.
WITH open AS MATERIALIZED (
  SELECT r.run_id, r.version_id FROM unnest(%(runs)s::uuid[]) AS given (run_id)
  JOIN run r ON r.run_id = given.run_id AND r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating')),
spec AS MATERIALIZED (
  SELECT v.version_id, (s.place - 1)::int AS task, s.name,
         CASE json_typeof(s.task -> 'needs') WHEN 'array' THEN s.task -> 'needs' WHEN 'string' THEN json_build_array(s.task ->> 'needs')
              ELSE '[]' END AS needs, coalesce(s.task ->> 'join', 'all') AS asked
  FROM workflow_version v, json_each(v.definition -> 'tasks') WITH ORDINALITY AS s (name, task, place)
  WHERE v.version_id IN (SELECT version_id FROM open)),
named AS MATERIALIZED (
  SELECT s.version_id, s.task, s.name, json_array_length(s.needs) AS needs, n.name AS need,
         CASE WHEN s.asked = 'any' THEN 1 WHEN s.asked ~ '^[0-9]+$' THEN s.asked::int ELSE json_array_length(s.needs) END AS quorum,
         s.asked = 'all' AS stops_at_failure
  FROM spec s, json_array_elements_text(s.needs) AS n (name)),
edge AS MATERIALIZED (
  SELECT n.*, o.task AS needed FROM named n JOIN spec o ON o.version_id = n.version_id AND o.name = n.need),
met AS (
  SELECT r.run_id, e.task, e.name
  FROM open r
  JOIN task t ON t.run_id = r.run_id AND t.status IN ('completed', 'failed', 'skipped', 'cancelled')
  JOIN edge e ON e.version_id = r.version_id AND e.needed = t.task
  GROUP BY r.run_id, e.task, e.name, e.needs, e.quorum, e.stops_at_failure
  HAVING count(*) = e.needs OR count(*) FILTER (WHERE t.status = 'completed') >= e.quorum
    OR (e.stops_at_failure AND bool_or(t.status = 'failed' OR (t.status = 'skipped' AND t.error ->> 'code' = 'UPSTREAM_FAILED')))
  UNION ALL
  SELECT r.run_id, s.task, s.name FROM open r JOIN spec s ON s.version_id = r.version_id AND json_array_length(s.needs) = 0)
SELECT count(*)::int, (array_agg(m.run_id || ' task ' || m.name || ': its join is decided, and it was left'))[1:3]
FROM met m
WHERE NOT EXISTS (SELECT FROM task t WHERE t.run_id = m.run_id AND t.task = m.task AND (t.token > 0 OR t.status <> 'pending' OR t.withheld IS NOT NULL));

-- name: find_wrong_cancels
-- Of a run that was cancelled, and that cleans up, nothing but its clean-ups is open; and it has no deadline any more.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN run r ON r.run_id = given.run_id AND r.control & 64 /* CANCELLING */ > 0
JOIN workflow_version v ON v.version_id = r.version_id
CROSS JOIN LATERAL (
  SELECT r.run_id || ' task ' || s.name || ': is ' || coalesce(t.status, 'pending') || ', and the run was cancelled' AS what
  FROM json_each(v.definition -> 'tasks') WITH ORDINALITY AS s (name, task, place)
  LEFT JOIN task t ON t.run_id = r.run_id AND t.task = s.place - 1
  WHERE s.task ->> 'join' IS DISTINCT FROM 'finally' AND coalesce(t.status, 'pending') NOT IN ('completed', 'failed', 'skipped', 'cancelled')
  UNION ALL
  SELECT r.run_id || ': was cancelled, and has a deadline' WHERE r.deadline_at IS NOT NULL) AS wrong;

-- name: find_wrong_maps
-- The counters of a map are those of its items' states, the first items of its list have begun, and those only; while it waits, it has some under
-- way, and none once it has ended. Items belong to a map; of one that starts over there may be some that have not begun again.
WITH counted AS (
  SELECT t.run_id, t.task / 10000 - 1 AS task, count(*) AS begun, max(mod(t.task, 10000)) + 1 AS highest,
         count(*) FILTER (WHERE t.status = 'completed') AS completed, count(*) FILTER (WHERE t.status = 'failed') AS failed,
         count(*) FILTER (WHERE t.status NOT IN ('completed', 'failed', 'skipped', 'cancelled')) AS open
  FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN task t ON t.run_id = given.run_id AND t.task >= 10000 AND t.task < 200000000
    AND NOT (t.status = 'pending' AND t.withheld IS NULL AND t.due_at IS NULL)
  GROUP BY t.run_id, t.task / 10000 - 1),
map AS (
  SELECT t.run_id, t.task, t.status, t.items, t.items_begun, t.items_completed, t.items_failed
  FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN task t ON t.run_id = given.run_id AND t.items IS NOT NULL)
SELECT count(*)::int, (array_agg(coalesce(m.run_id, c.run_id) || ' task ' || coalesce(m.task, c.task) || ': ' || CASE
         WHEN m.task IS NULL THEN c.begun || ' items of no map'
         WHEN coalesce(c.open, 0) > 0 AND m.status <> 'waiting' THEN 'is ' || m.status || ', and items of it are open'
         WHEN coalesce(c.open, 0) = 0 AND m.status = 'waiting' THEN 'waits, and none of its items is open'
         ELSE coalesce(c.completed, 0) || ' completed and ' || coalesce(c.failed, 0) || ' failed of ' || coalesce(c.begun, 0) || ', counted '
              || m.items_completed || ' and ' || m.items_failed || ' of ' || m.items_begun END))[1:3]
FROM map m FULL JOIN counted c ON c.run_id = m.run_id AND c.task = m.task
WHERE m.task IS NULL OR (coalesce(c.begun, 0), coalesce(c.completed, 0), coalesce(c.failed, 0), coalesce(c.highest, 0))
                        IS DISTINCT FROM (m.items_begun, m.items_completed, m.items_failed, m.items_begun)
   OR (coalesce(c.open, 0) > 0) <> (m.status = 'waiting');

-- name: find_orphan_timers
-- Timers of no current hand-out, or due at another instant than their task says; and tasks that count on a timer that is not there. The same
-- for deadlines of open tasks and runs.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM (
  SELECT m.run_id || ' task ' || m.task || CASE WHEN t.due_at IS NULL THEN ': timer of no task' ELSE ': its timer is due at another time' END AS what
  FROM (SELECT * FROM timer WHERE NOT is_deadline ORDER BY due_at LIMIT %(limit)s) AS m
  LEFT JOIN task t ON t.run_id = m.run_id AND t.task = m.task AND t.token = m.token
  WHERE t.due_at IS DISTINCT FROM m.due_at
  UNION ALL
  SELECT t.run_id || ' task ' || t.task || ': due without a timer'
  FROM (SELECT run_id FROM run WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention') ORDER BY run_id LIMIT %(limit)s) AS r
  JOIN task t ON t.run_id = r.run_id
  WHERE (t.due_at IS NOT NULL OR (t.status = 'pending' AND t.withheld IS NULL AND (t.lookups > 0 OR t.attempt > t.retries_from)))
    AND NOT EXISTS (SELECT FROM timer m WHERE m.run_id = t.run_id AND m.task = t.task AND m.token = t.token)
  UNION ALL
  SELECT m.run_id || CASE WHEN m.task = -1 THEN '' ELSE ' task ' || m.task END || ': its deadline is ' || coalesce(d.deadline_at::text, 'none')
         || ', its timer due at ' || m.due_at
  FROM (SELECT * FROM timer WHERE is_deadline ORDER BY due_at LIMIT %(limit)s) AS m
  LEFT JOIN LATERAL (
    SELECT t.deadline_at FROM task t WHERE t.run_id = m.run_id AND t.task = m.task AND t.status NOT IN ('completed', 'failed', 'skipped', 'cancelled')
    UNION ALL SELECT r.deadline_at FROM run r WHERE r.run_id = m.run_id AND m.task = -1 AND r.finished_at IS NULL) AS d ON true
  WHERE d.deadline_at IS DISTINCT FROM m.due_at
  UNION ALL
  SELECT d.run_id || CASE WHEN d.task = -1 THEN '' ELSE ' task ' || d.task END || ': has a deadline, and no timer for it'
  FROM (SELECT run_id, deadline_at FROM run WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'needs_attention')
        ORDER BY run_id LIMIT %(limit)s) AS r
  CROSS JOIN LATERAL (
    SELECT t.run_id, t.task FROM task t WHERE t.run_id = r.run_id AND t.deadline_at IS NOT NULL
    UNION ALL SELECT r.run_id, -1 WHERE r.deadline_at IS NOT NULL) AS d
  WHERE NOT EXISTS (SELECT FROM timer m WHERE m.run_id = d.run_id AND m.task = d.task AND m.is_deadline)) AS orphan;

-- name: find_wrong_pauses
-- What is withheld waits for the end of a pause, or for its run's permit, and a run is paused because somebody has said so.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN run r ON r.run_id = given.run_id
CROSS JOIN LATERAL (
  SELECT r.run_id || ' task ' || t.task || ': withheld, and nothing pauses the run' AS what
  FROM task t WHERE t.run_id = r.run_id AND t.withheld <> 'room' AND r.control & 163 /* WITHHOLDS */ = 0 AND NOT CASE WHEN t.task < 10000 THEN t.task WHEN t.task < 200000000 THEN t.task / 10000 - 1 END = ANY(coalesce(r.paused_tasks, '{}'))
  UNION ALL
  SELECT r.run_id || ': is paused to be moved, and no bulk has it in hand'
  WHERE r.control & 32 /* MOVING */ > 0 AND r.finished_at IS NULL
    AND NOT EXISTS (SELECT FROM bulk_item b JOIN bulk USING (bulk_id)
                    WHERE b.act = 'move' AND b.item_id = r.run_id AND b.outcome IS NULL AND bulk.finished_at IS NULL)
    AND NOT EXISTS (SELECT FROM inbox i WHERE i.run_id = r.run_id AND i.applied_at IS NULL AND i.kind IN ('migrated', 'resumed'))
  UNION ALL
  SELECT r.run_id || ': tasks of it are paused, and its control says otherwise' WHERE (r.control & 16 /* TASKS_PAUSED */ > 0) <> (r.paused_tasks IS NOT NULL)
  UNION ALL
  SELECT r.run_id || ' task ' || p.task || ': is paused, and nobody is known to have said so'
  FROM unnest(r.paused_tasks) AS p (task)
  WHERE (SELECT h.kind FROM history h WHERE h.run_id = r.run_id AND h.task = p.task AND h.kind IN ('paused', 'resumed')
         ORDER BY h.row_version DESC LIMIT 1) IS DISTINCT FROM 'paused'
  UNION ALL
  SELECT r.run_id || ': ' || CASE WHEN r.control & 35 /* PAUSES */ > 0 THEN 'is paused, and nobody is known to have said so' ELSE 'is not paused as was said last' END
  FROM (SELECT coalesce(bit_or((h.detail ->> 'scope')::int) FILTER (WHERE h.kind = 'paused' AND NOT EXISTS (
                 SELECT FROM history e WHERE e.run_id = h.run_id AND e.row_version > h.row_version
                   AND (e.kind = 'resumed' AND e.detail ->> 'scope' = h.detail ->> 'scope'
                        OR e.kind IN ('migrated', 'migration_refused') AND e.detail ->> 'resumes' = h.detail ->> 'scope'))), 0) AS said
        FROM history h WHERE h.run_id = r.run_id AND h.kind = 'paused' AND h.task IS NULL) AS told
  WHERE r.finished_at IS NULL AND told.said <> r.control & 35 /* PAUSES */) AS wrong;

-- name: find_wrong_permits
-- An open run of a workflow with a limit has its permit, unless it is in line for one; what it was given, it is told; and whoever has ended holds none.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM (
  (SELECT 'run ' || p.run_id || coalesce(' is ' || r.status, ' is not there') || ', and has a permit of ' || p.workflow || ' ' || p.key AS what
   FROM (SELECT * FROM run_permit ORDER BY run_id LIMIT %(limit)s) p LEFT JOIN run r ON r.run_id = p.run_id
   WHERE r.run_id IS NULL OR r.finished_at IS NOT NULL)
  UNION ALL
  (SELECT 'run ' || p.run_id || CASE
       WHEN p.granted_at IS NULL THEN ' is in line for a permit of ' || p.workflow || ', and does not wait for one'
       ELSE ' was given a permit of ' || p.workflow || ', and nothing tells it' END
   FROM (SELECT * FROM run_permit ORDER BY run_id LIMIT %(limit)s) p JOIN run r ON r.run_id = p.run_id AND r.finished_at IS NULL
   WHERE (p.granted_at IS NULL) <> (r.control & 128 /* AWAITS_PERMIT */ > 0)
     AND (p.granted_at IS NULL OR NOT EXISTS (
       SELECT FROM inbox i WHERE i.run_id = p.run_id AND i.kind = 'permitted' AND i.applied_at IS NULL)))
  UNION ALL
  (SELECT 'run ' || r.run_id || ' is open under the limit of ' || v.name || ', and neither has a permit nor is in line for one'
   FROM run r JOIN workflow_version v ON v.version_id = r.version_id AND v.definition -> 'limit' IS NOT NULL
   WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention')
     AND NOT EXISTS (SELECT FROM run_permit p WHERE p.run_id = r.run_id)
   LIMIT %(limit)s)) AS wrong;

-- name: find_orphan_approvals
-- Questions that wait for a task which waits for nothing.
SELECT count(*)::int, (array_agg('approval ' || a.approval_id || ' of ' || a.run_id || ' task ' || a.task || ': nobody waits for it'))[1:3]
FROM (SELECT * FROM approval WHERE status = 'waiting' ORDER BY asked_at LIMIT %(limit)s) AS a
LEFT JOIN task t ON t.run_id = a.run_id AND t.task = a.task AND t.token = a.token
WHERE t.status IS DISTINCT FROM 'waiting' OR t.error IS NOT NULL OR t.due_at IS NOT NULL OR t.items IS NOT NULL;

-- name: find_wrong_approvals
-- One question has one outcome, that of its row and of its votes, and a task that waits for one has its question. A decision travels as a
-- request.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM unnest(%(runs)s::uuid[]) AS given (run_id)
CROSS JOIN LATERAL (
  SELECT a.run_id || ' task ' || a.task || ': decided ' || count(*) || ' times' AS what
  FROM approval a JOIN history h ON h.run_id = a.run_id AND h.kind = 'decided' AND h.task = a.task AND h.token = a.token
  WHERE a.run_id = given.run_id GROUP BY a.run_id, a.task, a.token HAVING count(*) > 1
  UNION ALL
  SELECT a.run_id || ' task ' || a.task || ': moved as ' || coalesce(h.detail ->> 'outcome', '?') || ', decided ' || a.status
  FROM approval a JOIN history h ON h.run_id = a.run_id AND h.kind = 'decided' AND h.task = a.task AND h.token = a.token
  WHERE a.run_id = given.run_id AND h.detail ->> 'outcome' IS DISTINCT FROM a.status
  UNION ALL
  SELECT a.run_id || ' task ' || a.task || ': ' || a.status || ' by ' || coalesce(a.decided_by, 'nobody') || ', and of its votes ' || v.yes
         || ' of ' || a.needed || ' are for it and ' || v.no || ' against'
  FROM approval a CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE decision = 'approve') AS yes, count(*) FILTER (WHERE decision = 'reject') AS no
    FROM approval_vote o WHERE o.approval_id = a.approval_id) AS v
  WHERE a.run_id = given.run_id AND a.decided_by IS DISTINCT FROM 'expiry'
    AND CASE a.status WHEN 'approved' THEN v.yes < a.needed OR v.no > 0 WHEN 'rejected' THEN v.no <> 1
                      WHEN 'waiting' THEN v.yes >= a.needed OR v.no > 0 ELSE false END
  UNION ALL
  SELECT t.run_id || ' task ' || t.task || ': waits, and ' || CASE WHEN a.status IS NULL THEN 'nobody is asked' ELSE 'was ' || a.status END
  FROM task t LEFT JOIN approval a ON a.run_id = t.run_id AND a.task = t.task AND a.token = t.token
  WHERE t.run_id = given.run_id AND t.status = 'waiting' AND t.error IS NULL AND t.due_at IS NULL AND t.items IS NULL AND t.pool IS NULL
    AND a.status IS DISTINCT FROM 'waiting'
    AND NOT EXISTS (SELECT FROM signal_wait w WHERE w.run_id = t.run_id AND w.task = t.task AND w.token = t.token)
    AND NOT EXISTS (SELECT FROM child_run c WHERE c.parent_run_id = t.run_id AND c.task = t.task AND c.token = t.token)
    AND NOT EXISTS (SELECT FROM inbox i WHERE i.run_id = t.run_id AND i.kind = 'decided' AND i.applied_at IS NULL)) AS wrong;

-- name: find_wrong_signals
-- A signal completes one task, and a task that waits is not left waiting beside a signal that its run keeps for it; one that nobody has taken
-- note of has its request.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM unnest(%(runs)s::uuid[]) AS given (run_id)
CROSS JOIN LATERAL (
  SELECT 'signal ' || s.signal_id || ': taken by task ' || s.task || ' of ' || s.run_id || ', which is ' || coalesce(t.status::text, 'not there')
         || ' under token ' || coalesce(t.token, 0) AS what
  FROM signal s LEFT JOIN task t ON t.run_id = s.run_id AND t.task = s.task
  WHERE s.run_id = given.run_id AND s.status = 'taken'
    AND (t.status IS DISTINCT FROM 'completed' OR t.token <> s.token OR t.output ->> 'signal_id' IS DISTINCT FROM s.signal_id::text)
  UNION ALL
  SELECT w.run_id || ' task ' || w.task || ': waits, and the run keeps signal ' || s.signal_id || ' for it'
  FROM signal_wait w JOIN signal s ON s.run_id = w.run_id AND s.name = w.name AND s.status = 'kept' AND (s.key IS NULL OR s.key = w.key)
  WHERE w.run_id = given.run_id
  UNION ALL
  SELECT w.run_id || ' task ' || w.task || ': waits for signal ' || w.name || ', but is ' || coalesce(t.status::text, 'not there')
         || ' under token ' || coalesce(t.token, 0)
  FROM signal_wait w LEFT JOIN task t ON t.run_id = w.run_id AND t.task = w.task
  WHERE w.run_id = given.run_id AND (t.status IS DISTINCT FROM 'waiting' OR t.token <> w.token)
  UNION ALL
  SELECT 'signal ' || s.signal_id || ': its run took no note of it, and nothing says it again'
  FROM signal s
  WHERE s.run_id = given.run_id AND s.status = 'sent'
    AND NOT EXISTS (SELECT FROM inbox i WHERE i.inbox_id = s.signal_id AND i.applied_at IS NULL)) AS wrong;

-- name: find_wrong_slots
-- A task that waits for a slot stands in the queue of its pool, and whoever was granted one there has it; what was handed out with a slot holds it;
-- and nobody else does either. Rows somebody took away come back within seconds.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM (
  (SELECT 'task ' || t.run_id || '.' || t.task || ' waits for a slot of ' || t.pool || ', and is not in its queue' AS what
   FROM run r JOIN task t ON t.run_id = r.run_id AND t.status = 'waiting' AND t.pool IS NOT NULL
   WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention')
     AND NOT EXISTS (SELECT FROM pool_waiter w WHERE w.run_id = t.run_id AND w.task = t.task AND w.token = t.token AND w.pool = t.pool)
   LIMIT %(limit)s)
  UNION ALL
  (SELECT 'task ' || t.run_id || '.' || t.task || ' works, and holds no slot of ' || t.pool
   FROM run r JOIN task t ON t.run_id = r.run_id AND t.status IN ('queued', 'running') AND t.pool IS NOT NULL
   WHERE r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention')
     AND NOT EXISTS (SELECT FROM pool_slot s WHERE s.run_id = t.run_id AND s.task = t.task AND s.token = t.token AND s.pool = t.pool)
   LIMIT %(limit)s)
  UNION ALL
  (SELECT 'a slot of ' || s.pool || ' is held for task ' || s.run_id || '.' || s.task || ', which has no use for it'
   FROM (SELECT * FROM pool_slot ORDER BY granted_at LIMIT %(limit)s) s
   LEFT JOIN task t ON t.run_id = s.run_id AND t.task = s.task AND t.token = s.token AND t.pool = s.pool
   LEFT JOIN pool_waiter w ON w.run_id = s.run_id AND w.task = s.task AND w.token = s.token AND w.granted_at IS NOT NULL
   WHERE t.status IS NULL OR (t.status = 'waiting') <> (w.run_id IS NOT NULL))
  UNION ALL
  (SELECT 'the queue of ' || w.pool || ' has task ' || w.run_id || '.' || w.task || ', which does not wait'
   FROM (SELECT * FROM pool_waiter ORDER BY began_at LIMIT %(limit)s) w
   LEFT JOIN task t ON t.run_id = w.run_id AND t.task = w.task AND t.token = w.token AND t.pool = w.pool AND t.status = 'waiting'
   LEFT JOIN pool_slot s ON s.run_id = w.run_id AND s.task = w.task AND s.token = w.token
   WHERE t.run_id IS NULL OR (w.granted_at IS NULL) <> (s.run_id IS NULL))) AS wrong;

-- name: find_wrong_children
-- A task that waits for a child has one that is to start, or is open, or whose end is on its way to it; the row of a child says of an end what its
-- run says. What was asked for starts soon.
SELECT count(*)::int, (array_agg(parent_run_id || ' task ' || task || ': child ' || run_id || ' ' || what))[1:3]
FROM (
  SELECT c.parent_run_id, c.task, c.run_id, CASE
      WHEN c.status = 'asked' AND c.asked_at < clock_timestamp() - interval '1 min' THEN 'was asked for, and nobody starts it'
      WHEN c.status = 'started' AND r.run_id IS NULL THEN 'has started, and is not there'
      WHEN c.status = 'started' AND c.is_awaited AND r.finished_at IS NOT NULL THEN 'is ' || r.status || ', and its task was not told'
      WHEN c.status = 'asked' AND r.run_id IS NOT NULL THEN 'is there, and was never started'
      WHEN t.status = 'waiting' AND t.token = c.token AND (c.status NOT IN ('asked', 'started') OR c.status = 'started' AND NOT c.is_awaited)
        AND NOT EXISTS (
          SELECT FROM inbox i WHERE i.run_id = c.parent_run_id AND i.kind = 'child_told' AND i.applied_at IS NULL
            AND i.body ->> 'child' = c.run_id::text)
        THEN 'is ' || c.status || ', its task waits, and nothing tells it' END AS what
  FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN child_run c ON c.parent_run_id = given.run_id
  LEFT JOIN run r ON r.run_id = c.run_id
  LEFT JOIN task t ON t.run_id = c.parent_run_id AND t.task = c.task
  WHERE r.run_id IS NOT NULL OR c.status <> 'started' OR c.run_id >= first_id_of(coalesce((SELECT max(at) FROM watermark WHERE name = 'retention'),
                                                                                          to_timestamp(0)))) AS looked_at
WHERE what IS NOT NULL;

-- name: find_wrong_posted
-- What is posted and nobody has is with whoever waits for it, once a sweep has had the time to offer it; and what was taken by one, was taken
-- by no other.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM (
  SELECT 'signal ' || p.posted_id || ' for ' || p.key || ': is posted, and task ' || w.task || ' of ' || w.run_id || ' waits for it' AS what
  FROM (SELECT * FROM signal_wait WHERE key IS NOT NULL AND began_at < clock_timestamp() - make_interval(secs => %(seconds)s)
        LIMIT %(limit)s) AS w
  JOIN posted_signal p ON p.namespace = w.namespace AND p.name = w.name AND p.key = w.key AND p.expires_at > clock_timestamp()
    AND p.sent_at < clock_timestamp() - make_interval(secs => %(seconds)s)
  WHERE NOT EXISTS (SELECT FROM signal s WHERE s.run_id = w.run_id AND s.offered_task = w.task AND s.offered_token = w.token)
    AND NOT EXISTS (SELECT FROM signal s WHERE s.posted_id = p.posted_id AND s.is_exclusive AND s.status = 'refused'
                    AND s.settled_at > clock_timestamp() - make_interval(secs => %(seconds)s))
    AND (w.delivery = 'all' OR (p.taken_as IS NULL AND NOT EXISTS (
      SELECT FROM signal s WHERE s.posted_id = p.posted_id AND s.is_exclusive AND s.status = 'sent')))
  UNION ALL
  SELECT 'signal ' || p.posted_id || ': was taken as ' || p.taken_as || ', and also as ' || s.signal_id
  FROM (SELECT * FROM posted_signal WHERE taken_as IS NOT NULL ORDER BY sent_at DESC LIMIT %(limit)s) AS p
  JOIN signal s ON s.posted_id = p.posted_id AND s.is_exclusive AND s.status = 'taken' AND s.signal_id <> p.taken_as) AS wrong;

-- name: find_wrong_parked
-- Rows of `parked_task` have their task; one that was resolved waits for its request.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM (
  SELECT p.run_id || ' task ' || p.task || ': parked, but the task is ' || coalesce(t.status::text, 'not there') || ' under token '
         || coalesce(t.token, 0) AS what
  FROM (SELECT * FROM parked_task ORDER BY parked_at LIMIT %(limit)s) AS p LEFT JOIN task t ON t.run_id = p.run_id AND t.task = p.task
  WHERE t.status IS DISTINCT FROM 'waiting' OR t.error IS NULL OR t.token <> p.token
  UNION ALL
  SELECT p.run_id || ' task ' || p.task || ': resolved, and no request carries that to the run'
  FROM (SELECT * FROM parked_task WHERE resolved_at IS NOT NULL ORDER BY parked_at LIMIT %(limit)s) AS p
  WHERE NOT EXISTS (SELECT FROM inbox i WHERE i.run_id = p.run_id AND i.kind = 'resolved' AND i.applied_at IS NULL)) AS wrong;

-- name: find_unparked
-- Tasks that wait for a person to say what became of their effect are among the parked.
SELECT count(*)::int, (array_agg(t.run_id || ' task ' || t.task || ': waits for a person, and is not among the parked'))[1:3]
FROM unnest(%(runs)s::uuid[]) AS given (run_id) JOIN task t ON t.run_id = given.run_id AND t.status = 'waiting' AND t.error IS NOT NULL
WHERE NOT EXISTS (SELECT FROM parked_task p WHERE p.run_id = t.run_id AND p.task = t.task AND p.token = t.token);

-- name: find_wrong_dead_letters
-- A task that failed after a try has its dead letter, and so has an item, but not the map it belongs to; a parked letter has its failed task; a replay goes out under a new token, unless
-- a cancel overtook it; and a letter that came of one names it.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM unnest(%(runs)s::uuid[]) AS given (run_id)
CROSS JOIN LATERAL (
  SELECT t.run_id || ' task ' || t.task || ': failed without a dead letter' AS what
  FROM task t
  WHERE t.run_id = given.run_id AND t.status = 'failed' AND t.items IS NULL AND coalesce(t.error ->> 'code', '') NOT IN ('REJECTED', 'EXPIRED')
    AND NOT EXISTS (SELECT FROM dead_letter d WHERE d.run_id = t.run_id AND d.task = t.task AND d.token = t.token)
  UNION ALL
  SELECT 'dead letter ' || d.dead_letter_id || ': parked, but its task is ' || coalesce(t.status::text, 'not there')
  FROM dead_letter d LEFT JOIN task t ON t.run_id = d.run_id AND t.task = d.task
  WHERE d.run_id = given.run_id AND d.kind = 'task' AND d.status = 'parked' AND (t.status IS DISTINCT FROM 'failed' OR t.token <> d.token)
  UNION ALL
  SELECT 'dead letter ' || d.dead_letter_id || ': replayed, and nothing carries that to its run'
  FROM dead_letter d JOIN task t ON t.run_id = d.run_id AND t.task = d.task AND t.token = d.token
  WHERE d.run_id = given.run_id AND d.kind = 'task' AND d.status = 'replayed' AND t.withheld IS NULL AND t.status <> 'pending'
    AND NOT EXISTS (SELECT FROM inbox i WHERE i.run_id = d.run_id AND i.kind = 'replayed' AND i.applied_at IS NULL)
    AND NOT EXISTS (SELECT FROM history h WHERE h.run_id = d.run_id AND h.kind IN ('cancelled', 'terminated') AND h.at >= d.created_at)
    AND (d.task >= 200000000 OR (SELECT r.control & 64 /* CANCELLING */ = 0 FROM run r WHERE r.run_id = d.run_id) AND NOT EXISTS (
      SELECT FROM task c WHERE c.run_id = d.run_id AND (c.status = 'cancelled' AND c.task < 10000 AND c.error ->> 'code' IS DISTINCT FROM 'CHILD_CANCELLED' OR c.task >= 200000000)))
  UNION ALL
  SELECT 'dead letter ' || d.dead_letter_id || ': came of the replay of ' || d.replay_of || ', which was not replayed'
  FROM dead_letter d LEFT JOIN dead_letter o ON o.dead_letter_id = d.replay_of
  WHERE d.run_id = given.run_id AND d.replay_of IS NOT NULL AND o.status IS DISTINCT FROM 'replayed') AS wrong;

-- name: count_wrong_triggers
-- A trigger key has its run, unless that is so old that the retention may have removed it. Of %(percent)s of the keys.
SELECT count(*)::int, count(*) FILTER (WHERE is_wrong)::int,
       (array_agg('key ' || key || ' has no run ' || run_id) FILTER (WHERE is_wrong))[1:3]
FROM (
  SELECT k.key, k.run_id, r.run_id IS NULL AND k.run_id >= first_id_of(coalesce(removed.until, to_timestamp(0))) AS is_wrong
  FROM trigger_key k TABLESAMPLE SYSTEM (%(percent)s)
  LEFT JOIN run r ON r.run_id = k.run_id
  CROSS JOIN (SELECT max(at) AS until FROM watermark WHERE name = 'retention') AS removed) AS looked_at;
