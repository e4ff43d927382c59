-- What must hold in any database of ours. All read-only; a row or a count that is not empty is a finding.

-- name: read_server
SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_setting('wal_level'),
       extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery();

-- name: list_migrations
SELECT name FROM schema_migration;

-- name: read_slot
SELECT o.slot, o.owner, extract(epoch FROM clock_timestamp() - o.renewed_at)::float8, s.slot_name IS NOT NULL, coalesce(s.active, false),
       coalesce(s.wal_status, ''), pg_wal_lsn_diff(pg_current_wal_lsn(), coalesce(s.confirmed_flush_lsn, o.acked_lsn))::bigint
FROM relay_owner o LEFT JOIN pg_replication_slots s ON s.slot_name = o.slot
ORDER BY o.renewed_at DESC;

-- name: find_wrong_status
-- A run's status derived again from its tasks, as `derive_status` in the machine does.
WITH looked_at AS (
  (SELECT run_id, version_id, status, attention FROM run WHERE status IN ('running', 'waiting', 'needs_attention') ORDER BY run_id DESC LIMIT %(limit)s)
  UNION
  (SELECT run_id, version_id, status, attention FROM run ORDER BY run_id DESC LIMIT %(limit)s)),
counted AS (
  SELECT l.run_id, l.status, l.attention,
         (SELECT count(*) FROM json_object_keys(v.definition -> 'tasks')) AS tasks,
         (SELECT count(*) FROM task t WHERE t.run_id = l.run_id AND t.status IN ('completed', 'failed', 'skipped', 'cancelled')) AS ended,
         (SELECT count(*) FROM task t WHERE t.run_id = l.run_id AND t.status = 'failed') AS failed,
         (SELECT count(*) FROM task t WHERE t.run_id = l.run_id AND t.status = 'cancelled') AS cancelled,
         (SELECT count(*) FROM task t WHERE t.run_id = l.run_id AND t.status = 'waiting') AS waiting,
         (SELECT count(*) FROM task t WHERE t.run_id = l.run_id
            AND (t.status IN ('queued', 'running') OR (t.status = 'pending' AND (t.token > 0 OR t.due_at IS NOT NULL)))) AS busy
  FROM looked_at l JOIN workflow_version v ON v.version_id = l.version_id),
derived AS (
  SELECT run_id, status,
         CASE WHEN attention THEN 'needs_attention'
              WHEN ended = tasks AND failed > 0 THEN 'failed'
              WHEN ended = tasks AND cancelled > 0 THEN 'cancelled'
              WHEN ended = tasks THEN 'completed'
              WHEN waiting > 0 AND busy = 0 THEN 'waiting'
              ELSE 'running' END::run_status AS derived
  FROM counted)
SELECT count(*)::int, count(*) FILTER (WHERE status <> derived)::int,
       (array_agg(run_id::text || ' is ' || status || ', derived ' || derived) FILTER (WHERE status <> derived))[1:3]
FROM derived;

-- name: find_wrong_attempts
-- Attempts that ended are 1..k without a gap, none above the task's token; one more than they is running, or none.
WITH looked_at AS (
  (SELECT run_id FROM run WHERE status IN ('running', 'waiting', 'needs_attention') ORDER BY run_id DESC LIMIT %(limit)s)
  UNION
  (SELECT run_id FROM run ORDER BY run_id DESC LIMIT %(limit)s)),
compared AS (
  SELECT t.run_id, t.task, t.status, t.attempt, t.token, a.ended, a.highest, a.highest_token
  FROM looked_at l JOIN task t ON t.run_id = l.run_id
  CROSS JOIN LATERAL (
    SELECT count(DISTINCT attempt) AS ended, coalesce(max(attempt), 0) AS highest, coalesce(max(token), 0) AS highest_token
    FROM attempt WHERE attempt.run_id = t.run_id AND attempt.task = t.task) a)
SELECT count(*)::int,
       (array_agg(run_id::text || ' task ' || task || ': ' || ended || ' ended of ' || attempt))[1:3]
FROM compared
WHERE highest <> ended OR highest_token > token OR ended <> attempt - CASE WHEN status = 'running' THEN 1 ELSE 0 END;

-- name: find_orphan_timers
-- Timers of no current hand-out, and tasks that count on a timer that is not there.
SELECT count(*)::int, (array_agg(what))[1:3]
FROM (
  SELECT m.run_id::text || ' task ' || m.task || ': timer of no task' AS what
  FROM timer m LEFT JOIN task t ON t.run_id = m.run_id AND t.task = m.task AND t.token = m.token
  WHERE t.due_at IS NULL
  UNION ALL
  SELECT t.run_id::text || ' task ' || t.task || ': due without a timer'
  FROM (SELECT run_id FROM run WHERE status IN ('running', 'waiting', 'needs_attention') ORDER BY run_id DESC LIMIT %(limit)s) AS r
  JOIN task t ON t.run_id = r.run_id
  WHERE t.due_at IS NOT NULL AND NOT EXISTS (SELECT FROM timer m WHERE m.run_id = t.run_id AND m.task = t.task AND m.token = t.token)) AS orphan;

-- name: find_late_timers
SELECT count(*)::int, coalesce(max(extract(epoch FROM clock_timestamp() - due_at)), 0)::float8
FROM timer WHERE due_at < clock_timestamp() - make_interval(secs => %(seconds)s);

-- name: find_unapplied_requests
SELECT count(*)::int, coalesce(max(extract(epoch FROM clock_timestamp() - created_at)), 0)::float8
FROM inbox WHERE applied_at IS NULL AND created_at < clock_timestamp() - make_interval(secs => %(seconds)s);

-- name: find_orphan_approvals
-- Questions that wait for a run which waits for nothing.
SELECT count(*)::int, (array_agg(a.approval_id::text))[1:3]
FROM approval a LEFT JOIN task t ON t.run_id = a.run_id AND t.task = a.task AND t.token = a.token
WHERE a.status = 'waiting' AND t.status IS DISTINCT FROM 'waiting';

-- name: find_history_gaps
-- What moved a run is numbered 1..row_version.
WITH looked_at AS (
  (SELECT run_id, row_version FROM run WHERE status IN ('running', 'waiting', 'needs_attention') ORDER BY run_id DESC LIMIT %(limit)s)
  UNION
  (SELECT run_id, row_version FROM run ORDER BY run_id DESC LIMIT %(limit)s))
SELECT count(*)::int, (array_agg(l.run_id::text || ' has ' || e.numbers || ' of ' || l.row_version))[1:3]
FROM looked_at l
CROSS JOIN LATERAL (
  SELECT count(DISTINCT row_version) AS numbers, coalesce(min(row_version), 0) AS lowest, coalesce(max(row_version), 0) AS highest
  FROM run_event WHERE run_event.run_id = l.run_id) e
WHERE e.numbers <> l.row_version OR e.lowest <> 1 OR e.highest <> l.row_version;

-- name: count_sessions
-- Sessions whose lease ran out and that nobody has ended yet.
SELECT count(*) FILTER (WHERE expires_at > clock_timestamp())::int,
       count(*) FILTER (WHERE expires_at < clock_timestamp() - make_interval(secs => %(seconds)s))::int
FROM worker_session WHERE ended_at IS NULL;
