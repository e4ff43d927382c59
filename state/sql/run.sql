-- Runs: what the run agent and the starts read.

-- name: load_runs
-- $1: run ids. Runs with their tasks that were ever touched, a row for each, or one without a task; the input stands in a run's first row only.
-- The output of a body stands with its attempt. A child comes with the run that waits for it. Items of a map that has completed are left where
-- they are while the run is open: its output says it all. What has ended may be run again, items, too. What a run has to undo is all there, also
-- what has not begun. A run that is missing from the answer is not visible yet, or never was.
SELECT r.run_id, r.version_id, r.row_version, r.attention, r.control, r.namespace,
       CASE WHEN row_number() OVER (PARTITION BY r.run_id) = 1 THEN r.input::text END, r.traceparent, r.deadline_at,
       CASE WHEN r.trigger_source = 'child' THEN (SELECT c.parent_run_id FROM child_run c WHERE c.run_id = r.run_id AND c.is_awaited) END,
       r.paused_tasks,
       t.task, t.status::text, t.attempt, t.token, t.retries_from, t.due_at, t.input::text, coalesce(t.output, a.output)::text, t.error::text,
       t.session_id, t.lookups, t.vanished, t.withheld, t.items, t.pool, t.deadline_at, t.rounds, t.undo::text
FROM run r
LEFT JOIN task t ON t.run_id = r.run_id AND (t.token > 0 OR t.status <> 'pending' OR t.withheld IS NOT NULL OR t.task >= 200000000)
  AND (t.task < 10000 OR t.task >= 200000000 OR r.finished_at IS NOT NULL OR EXISTS (
    SELECT FROM task m WHERE m.run_id = t.run_id AND m.task = t.task / 10000 - 1 AND m.status <> 'completed'))
LEFT JOIN attempt a ON a.run_id = t.run_id AND a.task = t.task AND a.token = t.token AND t.status = 'completed'
WHERE r.run_id = ANY($1::uuid[])
ORDER BY r.run_id;

-- name: load_inbox
-- $1: inbox ids. A row that is missing is not visible yet.
SELECT inbox_id, run_id, kind, body::text, actor, applied_at IS NOT NULL FROM inbox WHERE inbox_id = ANY($1::uuid[]);

-- name: read_removed_until
-- Seconds since 1970: a run that began later than that is still there. 0: none was removed.
SELECT coalesce(max(extract(epoch FROM at)), 0)::float8 FROM watermark WHERE name = 'retention';

-- name: load_unapplied_signals
-- $1: ids of signals. Those that their runs have not taken note of, and what else was sent to the same runs: a wake-up may have been lost, and
-- what a sender sent first comes first.
SELECT s.run_id, s.signal_id, s.name, s.key, s.data::text, s.actor, (extract(epoch FROM s.sent_at) * 1000000)::bigint,
       s.offered_task, coalesce(s.offered_token, 0)
FROM (SELECT DISTINCT run_id FROM signal WHERE signal_id = ANY($1::uuid[])) AS named
JOIN inbox i ON i.run_id = named.run_id AND i.kind = 'signalled' AND i.applied_at IS NULL
JOIN signal s ON s.signal_id = i.inbox_id
ORDER BY s.sent_at, s.signal_id;

-- name: load_kept_signals
-- $1: run ids. What they keep, for a task to take.
SELECT run_id, signal_id, name, key, data::text, actor, (extract(epoch FROM sent_at) * 1000000)::bigint
FROM signal WHERE run_id = ANY($1::uuid[]) AND status = 'kept' ORDER BY sent_at, signal_id;

-- name: insert_inbox
INSERT INTO inbox (inbox_id, run_id, kind, body, actor) VALUES ($1, $2, $3, $4::json, $5);

-- name: insert_inbox_rows
-- $1 inbox ids, $2 run ids, $3 kind, $4 bodies, $5 actor.
INSERT INTO inbox (inbox_id, run_id, kind, body, actor)
SELECT given.inbox_id, given.run_id, $3, given.body::json, $5 FROM unnest($1::uuid[], $2::uuid[], $4::text[]) AS given (inbox_id, run_id, body);

-- name: claim_trigger_keys
-- $1 namespace, $2 keys, $3 run ids, $4 digests of the inputs. Answers the keys that are new; waits for a racing transaction that has one.
INSERT INTO trigger_key (namespace, key, run_id, digest)
SELECT $1, key, run_id, digest FROM unnest($2::text[], $3::uuid[], $4::bytea[]) AS given (key, run_id, digest)
ORDER BY key
ON CONFLICT (namespace, key) DO NOTHING
RETURNING key;

-- name: find_trigger_keys
SELECT key, run_id, digest FROM trigger_key WHERE namespace = $1 AND key = ANY($2::text[]);

-- name: load_versions
SELECT version_id, name, version, definition::text FROM workflow_version WHERE version_id = ANY($1::int[]);

-- name: find_version
-- The version asked for, or the latest.
SELECT v.version_id, v.name, v.version, v.definition::text
FROM workflow w JOIN workflow_version v ON v.namespace = w.namespace AND v.name = w.name AND v.version = coalesce($3, w.latest_version)
WHERE w.namespace = $1 AND w.name = $2;

-- name: read_clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
