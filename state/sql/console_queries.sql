-- What only people look at: how a run passed its time, what the engine's parts last said, what became of records.

-- name: list_spans
-- Attempts of one run that ended, of the tasks from %(first)s up to, without, %(end)s, of these only where %(tasks)s names some, by task and
-- token; no payloads. At most %(limit)s, the newest of each task.
SELECT task, token, attempt, outcome, worker, started_at, finished_at, ended_at, round
FROM (
  SELECT *, row_number() OVER (PARTITION BY task ORDER BY token DESC) AS place
  FROM attempt
  WHERE run_id = %(run_id)s AND task >= %(first)s AND task < %(end)s AND (%(tasks)s::int[] IS NULL OR task = ANY (%(tasks)s))) AS numbered
WHERE place <= %(limit)s
ORDER BY task, token;

-- name: list_standings
-- How the tasks of one run stand, without payloads; those never touched have no row. A RUNNING one began when its hand-out was claimed.
-- With %(since)s only those that changed from then on, at most %(limit)s; and always the maps and repeats, whose counts change without them.
SELECT t.task, t.status::text, t.attempt, t.token, t.due_at, t.changed_at, t.session_id, s.worker,
       t.items, t.items_begun, t.items_completed, t.items_failed, t.rounds, t.deadline_at, u.status::text AS compensation
FROM task t
LEFT JOIN task u ON u.run_id = t.run_id AND u.task = 200000000 + t.task
LEFT JOIN worker_session s ON s.session_id = t.session_id
WHERE t.run_id = %(run_id)s AND t.task >= %(first)s AND t.task < %(end)s
  AND (%(since)s::timestamptz IS NULL OR t.changed_at >= %(since)s OR u.changed_at >= %(since)s OR t.items IS NOT NULL OR t.rounds > 0)
ORDER BY t.task LIMIT %(limit)s;

-- name: read_clock
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: list_partitions
SELECT topic, partition, owner, epoch, next_offset, topic_id, taken_at FROM partition_owner ORDER BY topic, partition;

-- name: list_sweeps
SELECT name, at, extract(epoch FROM clock_timestamp() - at)::float8, found FROM sweep_pass ORDER BY name;

-- name: list_slots
-- Replication slots of the relays, and the WAL that is kept for them.
SELECT o.slot, o.owner, o.epoch, o.renewed_at, extract(epoch FROM clock_timestamp() - o.renewed_at)::float8,
       pg_wal_lsn_diff(pg_current_wal_lsn(), coalesce(s.confirmed_flush_lsn, o.acked_lsn))::bigint,
       pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint, s.active, s.wal_status
FROM relay_owner o LEFT JOIN pg_replication_slots s ON s.slot_name = o.slot
ORDER BY o.renewed_at DESC;

-- name: list_table_sizes
-- The largest tables, with their indexes; rows as Postgres last estimated them.
SELECT c.relname, greatest(c.reltuples, 0)::bigint, pg_total_relation_size(c.oid)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = 'public'
ORDER BY 3 DESC LIMIT %(limit)s;

-- name: find_subscription_id
SELECT subscription_id, topic FROM subscription WHERE namespace = %(namespace)s AND name = %(name)s;

-- name: list_fates
-- The newest records of one partition that a subscription looked at, along trigger_event_key.
SELECT topic, partition, "offset", fate, run_id, reason, at, signal_id
FROM trigger_event
WHERE subscription_id = %(subscription_id)s AND topic = %(topic)s AND partition = %(partition)s AND "offset" < %(before)s
ORDER BY "offset" DESC, at DESC LIMIT %(limit)s;

-- name: list_fate_partitions
-- Partitions of a topic that anything was read from.
SELECT partition FROM partition_owner WHERE topic = %(topic)s ORDER BY partition;

-- name: count_workers_of_queues
-- Live sessions that take new work, by the queues they serve.
SELECT queue, count(*)::int, sum(slots)::int, sum(least(held, slots))::int
FROM worker_session s CROSS JOIN LATERAL unnest(s.queues) AS queue
WHERE s.ended_at IS NULL AND s.expires_at > clock_timestamp() AND NOT s.draining
GROUP BY queue ORDER BY queue;

-- name: count_lost_workers
-- Sessions whose lease ran out within the last hour, and that never said that they stop.
SELECT count(*)::int FROM worker_session
WHERE ended_at IS NULL AND expires_at <= clock_timestamp() AND expires_at > clock_timestamp() - interval '1 hour';

-- name: count_parked_tasks
SELECT count(*)::int FROM (
  SELECT FROM parked_task WHERE namespace = %(namespace)s AND resolved_at IS NULL LIMIT %(limit)s) AS parked;

-- name: count_recent_runs
-- The newest %(limit)s runs that began since %(since)s, which is the lowest id of an instant, by minute and by how they stand now.
SELECT date_trunc('minute', created_at), status::text, count(*)::int
FROM (
  SELECT created_at, status FROM run
  WHERE run_id > %(since)s AND namespace = %(namespace)s ORDER BY run_id DESC LIMIT %(limit)s) AS recent
GROUP BY 1, 2 ORDER BY 1, 2;
