-- How the engine is, from Postgres alone. Every statement is cheap at any size: small tables, partial indexes, limits.

-- name: read_relay
-- The relay that renewed last, and how many bytes of WAL it has not acknowledged.
SELECT o.owner, o.renewed_at, extract(epoch FROM clock_timestamp() - o.renewed_at)::float8,
       pg_wal_lsn_diff(pg_current_wal_lsn(), coalesce(s.confirmed_flush_lsn, o.acked_lsn))::bigint, o.gap_at, s.wal_status
FROM relay_owner o LEFT JOIN pg_replication_slots s ON s.slot_name = o.slot
ORDER BY o.renewed_at DESC LIMIT 1;

-- name: read_streams
SELECT (SELECT count(*) FROM partition_owner)::int, (SELECT count(DISTINCT owner) FROM partition_owner)::int,
       (SELECT max(at) FROM sweep_pass), (SELECT extract(epoch FROM clock_timestamp() - max(at))::float8 FROM sweep_pass);

-- name: count_open_runs
-- Of the oldest %(limit)s open runs.
SELECT status::text, count(*)::int
FROM (SELECT status FROM run WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention') ORDER BY run_id LIMIT %(limit)s) AS open
GROUP BY status;

-- name: count_open_tasks
-- By version and position, of the oldest %(limit)s open runs; a version's plan knows the queue. Items of a map stand under it.
SELECT r.version_id, CASE WHEN t.task < 10000 OR t.task >= 200000000 THEN t.task ELSE t.task / 10000 - 1 END, t.status::text, count(*)::int, extract(epoch FROM clock_timestamp() - min(t.changed_at))::float8
FROM (
  SELECT run_id, version_id FROM run WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention') ORDER BY run_id LIMIT %(limit)s) AS r
JOIN task t ON t.run_id = r.run_id
WHERE t.status IN ('queued', 'running')
GROUP BY 1, 2, t.status;

-- name: count_waiting
-- Timers late by more than a second, live sessions, parked dead letters, requests not applied, approvals not decided.
SELECT (SELECT count(*) FROM timer WHERE due_at < clock_timestamp() - interval '1 second')::int,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(due_at)), 0)::float8 FROM timer WHERE due_at < clock_timestamp()),
       (SELECT count(*) FROM worker_session WHERE ended_at IS NULL AND expires_at > clock_timestamp())::int,
       (SELECT count(*) FROM (SELECT FROM dead_letter WHERE namespace = %(namespace)s AND status = 'parked' LIMIT %(limit)s) AS parked)::int,
       (SELECT count(*) FROM (SELECT FROM inbox WHERE applied_at IS NULL LIMIT %(limit)s) AS unapplied)::int,
       (SELECT count(*) FROM (SELECT FROM approval WHERE status = 'waiting' LIMIT %(limit)s) AS waiting)::int;
