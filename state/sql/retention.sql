-- What is old enough to go. Deletes in small transactions: they take locks on rows that nobody works on any more, never on a table.

-- name: begin_slice
-- Whether nobody else is at it. For this transaction: look every row up by its key, whatever the statistics of a table say whose old part
-- has just gone.
SELECT pg_try_advisory_xact_lock(hashtextextended('headrace.sweep.retention', 0)),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);

-- name: purge_runs
-- Removes runs that ended more than $2 seconds ago, with all that hangs on them, of the next $3 runs behind $1; and of those no more than
-- have moved $4 times together, but one at least. Run ids rise with time: what began later than that cannot have ended before.
-- A run stays while a letter of it is parked, or a request to it is not applied: somebody may still make it move. Who asks for that touches
-- the run, since a request that is committed while this looks is not seen otherwise. SKIP LOCKED, and a run that was moved or touched
-- meanwhile is looked at again: so this waits for nobody, and whoever wants one of these runs waits for one such transaction.
-- Trigger keys stay: one trigger identity makes one run for ever. What a look-up by one of them may find missing, the watermark says.
-- Answers how many it removed, and up to which run it has looked; null: there are none behind $1.
WITH page AS MATERIALIZED (
  SELECT run_id FROM run
  WHERE run_id > $1 AND run_id < first_id_of(now() - make_interval(secs => $2))
  ORDER BY run_id LIMIT $3),
due AS MATERIALIZED (
  SELECT r.run_id, r.row_version FROM page JOIN run r ON r.run_id = page.run_id
  WHERE r.finished_at < now() - make_interval(secs => $2) AND r.updated_at < now() - make_interval(secs => $2)
    AND NOT EXISTS (SELECT FROM dead_letter d WHERE d.run_id = r.run_id AND d.status = 'parked')
    AND NOT EXISTS (SELECT FROM inbox i WHERE i.run_id = r.run_id AND i.applied_at IS NULL)
  ORDER BY r.run_id FOR UPDATE OF r SKIP LOCKED),
sized AS MATERIALIZED (
  SELECT run_id, sum(row_version) OVER (ORDER BY run_id) - row_version AS moves_before FROM due),
gone AS MATERIALIZED (
  SELECT run_id FROM sized WHERE moves_before < $4),
labels AS (DELETE FROM run_label USING gone WHERE run_label.run_id = gone.run_id),
tasks AS (DELETE FROM task USING gone WHERE task.run_id = gone.run_id),
attempts AS (DELETE FROM attempt USING gone WHERE attempt.run_id = gone.run_id),
histories AS (DELETE FROM history USING gone WHERE history.run_id = gone.run_id),
approvals AS (DELETE FROM approval USING gone WHERE approval.run_id = gone.run_id RETURNING approval.approval_id),
votes AS (DELETE FROM approval_vote v USING approvals WHERE v.approval_id = approvals.approval_id),
approval_timers AS (DELETE FROM approval_timer m USING approvals WHERE m.approval_id = approvals.approval_id),
approval_histories AS (DELETE FROM approval_history h USING approvals WHERE h.approval_id = approvals.approval_id),
links AS (DELETE FROM approval_link l USING approvals WHERE l.approval_id = approvals.approval_id),
signals AS (DELETE FROM signal USING gone WHERE signal.run_id = gone.run_id),
lines AS (DELETE FROM log_line USING gone WHERE log_line.run_id = gone.run_id),
children AS (DELETE FROM child_run USING gone WHERE child_run.parent_run_id = gone.run_id),
letters AS (DELETE FROM dead_letter USING gone WHERE dead_letter.run_id = gone.run_id),
runs AS (DELETE FROM run USING gone WHERE run.run_id = gone.run_id RETURNING run.run_id),
mark AS (
  INSERT INTO watermark AS w (name, at) SELECT 'retention', now() - make_interval(secs => $2) WHERE EXISTS (SELECT FROM gone)
  ON CONFLICT (name) DO UPDATE SET at = greatest(w.at, excluded.at))
SELECT (SELECT count(*) FROM runs)::int,
       coalesce((SELECT run_id FROM sized WHERE moves_before < $4 AND EXISTS (SELECT FROM sized WHERE moves_before >= $4)
                 ORDER BY run_id DESC LIMIT 1),
                (SELECT run_id FROM page ORDER BY run_id DESC LIMIT 1));

-- name: find_removed_runs
-- Those of the runs $1 that retention has removed. One that is unknown and began later than the last of those was not.
SELECT given.run_id
FROM unnest($1::uuid[]) AS given (run_id)
JOIN watermark w ON w.name = 'retention' AND given.run_id < first_id_of(w.at)
WHERE NOT EXISTS (SELECT FROM run WHERE run.run_id = given.run_id);

-- name: purge_trigger_events
-- $1 seconds, $2 at most. By place in the table, which is the order of time.
DELETE FROM trigger_event
WHERE ctid = ANY(ARRAY(SELECT ctid FROM trigger_event WHERE at < now() - make_interval(secs => $1) LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: purge_answers
DELETE FROM request_key WHERE created_at < now() - interval '7 days';

-- name: purge_sessions
DELETE FROM worker_session s WHERE ended_at < now() - interval '1 day'
  AND NOT EXISTS (SELECT FROM held_task h WHERE h.session_id = s.session_id);

-- name: purge_posted_signals
-- A week after they expired: so long a sender that posts one again gets the same.
DELETE FROM posted_signal WHERE expires_at < now() - interval '7 days';

-- name: purge_inbox
DELETE FROM inbox WHERE applied_at < now() - interval '1 day';
