-- The statements of one batch, in the order in which they run. `must` aborts the whole batch when a row is not as it was read.

-- name: fence
-- Moves the offsets of the partitions read. Refuses when this process no longer owns one (epoch), or when it has moved meanwhile.
-- columns: topics text, partitions int, epochs bigint, old bigint, new bigint
WITH moved AS (
  UPDATE partition_owner SET next_offset = given.new
  FROM unnest($1::text[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[]) AS given (topic, partition, epoch, old, new)
  WHERE partition_owner.topic = given.topic AND partition_owner.partition = given.partition
    AND partition_owner.epoch = given.epoch AND coalesce(partition_owner.next_offset, -1) = given.old
  RETURNING 1)
SELECT must(count(*) = cardinality($1::text[]), 'not the owner of a partition, or its offset has moved') FROM moved;

-- name: insert_runs
-- columns: run_ids uuid, namespaces text, version_ids int, statuses text, row_versions int, inputs json, traceparents text, sources text, controls int
INSERT INTO run (run_id, namespace, version_id, status, row_version, input, traceparent, trigger_source, control, finished_at)
SELECT run_id, namespace, version_id, status::run_status, row_version, input, traceparent, source, control,
       CASE WHEN status IN ('completed', 'failed', 'cancelled', 'terminated', 'compensated', 'compensation_failed') THEN now() END
FROM unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::int[], $6::json[], $7::text[], $8::text[], $9::int[])
  AS given (run_id, namespace, version_id, status, row_version, input, traceparent, source, control);

-- name: label_runs
-- Of runs that begin with labels; nothing ever changes them.
-- columns: run_ids uuid, namespaces text, names text, values text
INSERT INTO run_label (run_id, namespace, name, value)
SELECT run_id, namespace, name, value FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS given (run_id, namespace, name, value);

-- name: clear_outputs
-- Of runs that run again: what came out of them before stands with their attempts. Before save_runs, which gives them another status.
-- columns: run_ids uuid
UPDATE run SET output = NULL, output_error = NULL FROM unnest($1::uuid[]) AS given (run_id) WHERE run.run_id = given.run_id;

-- name: move_runs
-- To another version, by an operator's act, and of so many tasks: what the graph has no more may have a row, if it was put back to how all
-- begin. Before save_runs, which guards it.
-- columns: run_ids uuid, version_ids int, counts int
WITH gone AS (
  DELETE FROM task USING unnest($1::uuid[], $3::int[]) AS given (run_id, tasks)
  WHERE task.run_id = given.run_id AND task.task >= given.tasks AND task.task < 10000)
UPDATE run SET version_id = given.version_id FROM unnest($1::uuid[], $2::int[]) AS given (run_id, version_id)
WHERE run.run_id = given.run_id;

-- name: save_runs
-- Guarded by the row_version that was read: a run missing from the count has another writer. A run's own time never runs backwards, whatever
-- was done to the clock meanwhile: it ends no earlier than it was moved last.
-- columns: run_ids uuid, old int, new int, statuses text, controls int
WITH saved AS (
  UPDATE run SET row_version = given.new, status = given.status::run_status, attention = given.status = 'needs_attention',
    control = given.control,
    updated_at = greatest(now(), run.updated_at),
    finished_at = CASE WHEN given.status IN ('completed', 'failed', 'cancelled', 'terminated', 'compensated', 'compensation_failed') THEN greatest(now(), run.updated_at) END
  FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::int[]) AS given (run_id, old, new, status, control)
  WHERE run.run_id = given.run_id AND run.row_version = given.old
  RETURNING 1)
SELECT must(count(*) = cardinality($1::uuid[]), 'a run was changed by another writer') FROM saved;

-- name: save_outputs
-- Of runs that completed in this batch, where their workflow says what comes out of them.
-- columns: run_ids uuid, outputs json, errors json
UPDATE run SET output = given.output, output_error = given.error
FROM unnest($1::uuid[], $2::json[], $3::json[]) AS given (run_id, output, error)
WHERE run.run_id = given.run_id;

-- name: hand_out_tasks
-- The first hand-out of tasks that had no row, or of a timeline. (A row that a replay took back to PENDING has token 0.) No attempt has begun,
-- so what else the row may say is what it says at first.
-- columns: run_ids uuid, tasks int, tokens int
INSERT INTO task (run_id, task, status, token)
SELECT run_id, task, 'queued', token FROM unnest($1::uuid[], $2::int[], $3::int[]) AS given (run_id, task, token)
ON CONFLICT (run_id, task) DO UPDATE SET status = 'queued', token = excluded.token, error = NULL, vanished = 0, withheld = NULL,
  pool = NULL, changed_at = now()
WHERE task.token < excluded.token;

-- name: complete_tasks
-- The plain end: an open task that has its result. The output stands with the attempt.
-- columns: run_ids uuid, tasks int, attempts int, tokens int
WITH done AS (
  UPDATE task SET status = 'completed', attempt = given.attempt, session_id = NULL, lookups = 0, vanished = 0, due_at = NULL, pool = NULL,
    changed_at = now()
  FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[]) AS given (run_id, task, attempt, token)
  WHERE task.run_id = given.run_id AND task.task = given.task AND task.token = given.token AND task.status IN ('queued', 'running')
  RETURNING 1)
SELECT must(count(*) = cardinality($1::uuid[]), 'a task was changed by another writer') FROM done;

-- name: save_tasks
-- Every other new state of a task. A token never falls.
-- columns: run_ids uuid, tasks int, statuses text, attempts int, tokens int, retries_from int, session_ids uuid, lookups int, vanished int, withheld text, due_at timestamptz, inputs json, outputs json, errors json, items int?, pools text
WITH saved AS (
  INSERT INTO task (run_id, task, status, attempt, token, retries_from, session_id, lookups, vanished, withheld, due_at, input, output, error, items, pool)
  SELECT run_id, task, status::task_status, attempt, token, retries_from, session_id, lookups, vanished, withheld, due_at, input, output, error, items, pool
  FROM unnest($1::uuid[], $2::int[], $3::text[], $4::int[], $5::int[], $6::int[], $7::uuid[], $8::int[], $9::int[], $10::text[],
              $11::timestamptz[], $12::json[], $13::json[], $14::json[], $15::int[], $16::text[])
    AS given (run_id, task, status, attempt, token, retries_from, session_id, lookups, vanished, withheld, due_at, input, output, error, items, pool)
  ON CONFLICT (run_id, task) DO UPDATE SET status = excluded.status, attempt = excluded.attempt, token = excluded.token,
    retries_from = excluded.retries_from, session_id = excluded.session_id, lookups = excluded.lookups, vanished = excluded.vanished,
    withheld = excluded.withheld, due_at = excluded.due_at, input = excluded.input, output = excluded.output, error = excluded.error, items = excluded.items,
    pool = excluded.pool,
    items_begun = CASE WHEN excluded.items = task.items THEN task.items_begun END,
    items_completed = CASE WHEN excluded.items = task.items THEN task.items_completed END,
    items_failed = CASE WHEN excluded.items = task.items THEN task.items_failed END,
    changed_at = now()
  WHERE task.token <= excluded.token
  RETURNING 1)
SELECT must(count(*) = cardinality($1::uuid[]), 'a token would fall') FROM saved;

-- name: count_items
-- How far a map has come: once for each that moved, however many of its items did. After save_tasks, which knows how many items there are.
-- columns: run_ids uuid, tasks int, begun int, completed int, failed int
UPDATE task SET items_begun = given.begun, items_completed = given.completed, items_failed = given.failed
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::int[]) AS given (run_id, task, begun, completed, failed)
WHERE task.run_id = given.run_id AND task.task = given.task;

-- name: count_rounds
-- How many rounds of a repeat have ended. After save_tasks.
-- columns: run_ids uuid, tasks int, rounds int
UPDATE task SET rounds = given.rounds FROM unnest($1::uuid[], $2::int[], $3::int[]) AS given (run_id, task, rounds)
WHERE task.run_id = given.run_id AND task.task = given.task;

-- name: keep_undo
-- What undoes a task as it had completed before a rerun; null: nothing of that is to be undone. After save_tasks.
-- columns: run_ids uuid, tasks int, inputs json
UPDATE task SET undo = given.undo FROM unnest($1::uuid[], $2::int[], $3::json[]) AS given (run_id, task, undo)
WHERE task.run_id = given.run_id AND task.task = given.task;

-- name: insert_history
-- columns: run_ids uuid, row_versions int, kinds text, tasks int?, tokens int?, actors text, details json
INSERT INTO history (run_id, row_version, at, kind, task, token, actor, detail)
SELECT run_id, row_version, now(), kind, task, token, actor, detail
FROM unnest($1::uuid[], $2::int[], $3::text[], $4::int[], $5::int[], $6::text[], $7::json[])
  AS given (run_id, row_version, kind, task, token, actor, detail);

-- name: insert_attempts
-- Who ran an attempt that ended without an answer (lost, cancelled) is known from its start, when that was
-- reported: after insert_history, so also in this batch.
-- columns: run_ids uuid, tasks int, tokens int, attempts int, outcomes text, row_versions int, workers text, started_at timestamptz, finished_at timestamptz, outputs json, errors json
INSERT INTO attempt (run_id, task, token, attempt, outcome, row_version, worker, started_at, finished_at, ended_at, output, error)
SELECT run_id, task, token, attempt, outcome, row_version,
       CASE WHEN worker <> '' THEN worker ELSE coalesce((
         SELECT h.actor FROM history h
         WHERE h.run_id = given.run_id AND h.kind = 'attempt_started' AND h.task = given.task AND h.token = given.token LIMIT 1), '') END,
       started_at, finished_at, now(), output, error
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::text[], $6::int[], $7::text[], $8::timestamptz[], $9::timestamptz[], $10::json[], $11::json[])
  AS given (run_id, task, token, attempt, outcome, row_version, worker, started_at, finished_at, output, error);

-- name: note_rounds
-- Which round of a repeat an attempt was of, right after it was inserted: attempts of other tasks pay nothing for that.
-- columns: run_ids uuid, tasks int, tokens int, rounds int
UPDATE attempt SET round = given.round FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[]) AS given (run_id, task, token, round)
WHERE attempt.run_id = given.run_id AND attempt.task = given.task AND attempt.token = given.token;

-- name: delete_timers
-- columns: run_ids uuid, tasks int
DELETE FROM timer USING unnest($1::uuid[], $2::int[]) AS given (run_id, task)
WHERE timer.run_id = given.run_id AND timer.task = given.task AND NOT timer.is_deadline;

-- name: set_timers
-- columns: run_ids uuid, tasks int, tokens int, kinds text, due_at timestamptz
INSERT INTO timer (run_id, task, token, kind, due_at)
SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::timestamptz[]) AS given (run_id, task, token, kind, due_at)
ON CONFLICT (run_id, task, is_deadline) DO UPDATE SET token = excluded.token, kind = excluded.kind, due_at = excluded.due_at, said_at = NULL;

-- name: save_deadlines
-- When tasks, and runs (task -1), have to have ended; null: not any more. After save_tasks and save_runs.
-- columns: run_ids uuid, tasks int, due_at timestamptz
WITH given AS (
  SELECT * FROM unnest($1::uuid[], $2::int[], $3::timestamptz[]) AS given (run_id, task, due_at)),
of_runs AS (
  UPDATE run SET deadline_at = given.due_at FROM given WHERE given.task = -1 AND run.run_id = given.run_id),
of_tasks AS (
  UPDATE task SET deadline_at = given.due_at FROM given WHERE task.run_id = given.run_id AND task.task = given.task),
over AS (
  DELETE FROM timer USING given
  WHERE given.due_at IS NULL AND timer.run_id = given.run_id AND timer.task = given.task AND timer.is_deadline)
INSERT INTO timer (run_id, task, token, kind, due_at, is_deadline)
SELECT run_id, task, 0, 'deadline', due_at, true FROM given WHERE due_at IS NOT NULL
ON CONFLICT (run_id, task, is_deadline) DO UPDATE SET due_at = excluded.due_at, said_at = NULL;

-- name: stop_listening
-- columns: run_ids uuid, tasks int
DELETE FROM signal_wait USING unnest($1::uuid[], $2::int[]) AS given (run_id, task)
WHERE signal_wait.run_id = given.run_id AND signal_wait.task = given.task;

-- name: listen
-- columns: run_ids uuid, tasks int, tokens int, namespaces text, names text, keys text, deliveries text
INSERT INTO signal_wait (run_id, task, token, namespace, name, key, delivery)
SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[])
  AS given (run_id, task, token, namespace, name, key, delivery);

-- name: hold_commands
-- Commands to queues that are paused, kept back instead of being published. The last one of a task counts.
-- columns: run_ids uuid, tasks int, tokens int, queues text, partitions int, contents json, traceparents text
INSERT INTO held_command (run_id, task, token, queue, partition, value, traceparent)
SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::int[], $6::json[], $7::text[])
  AS given (run_id, task, token, queue, partition, value, traceparent)
ON CONFLICT (run_id, task) DO UPDATE SET token = excluded.token, queue = excluded.queue, partition = excluded.partition, value = excluded.value,
  traceparent = excluded.traceparent, held_at = now(), released_at = NULL;

-- name: settle_signals
-- What became of signals: kept by their runs, taken by a task, or refused. One that was taken or refused stays so.
-- columns: signal_ids uuid, statuses text, tasks int?, tokens int?, row_versions int?, reasons text
WITH settled AS (
  UPDATE signal SET status = given.status, task = given.task, token = given.token, row_version = given.row_version, reason = given.reason,
    settled_at = CASE WHEN given.status <> 'kept' THEN now() END
  FROM unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::int[], $6::text[])
    AS given (signal_id, status, task, token, row_version, reason)
  WHERE signal.signal_id = given.signal_id AND signal.status IN ('sent', 'kept')
  RETURNING signal.signal_id, signal.posted_id, signal.is_exclusive, signal.status),
posted AS (
  UPDATE posted_signal SET taken_as = settled.signal_id
  FROM settled WHERE posted_signal.posted_id = settled.posted_id AND settled.is_exclusive AND settled.status = 'taken')
SELECT must(count(*) = cardinality($1::uuid[]), 'a signal was taken already') FROM settled;

-- name: leave_queues
-- Tasks that wait for no slot any more. Before free_slots: where one is being granted this waits for that to be committed, and the next statement
-- sees it.
-- columns: run_ids uuid, tasks int
DELETE FROM pool_waiter USING unnest($1::uuid[], $2::int[]) AS given (run_id, task)
WHERE pool_waiter.run_id = given.run_id AND pool_waiter.task = given.task;

-- name: free_slots
-- columns: run_ids uuid, tasks int
DELETE FROM pool_slot USING unnest($1::uuid[], $2::int[]) AS given (run_id, task)
WHERE pool_slot.run_id = given.run_id AND pool_slot.task = given.task;

-- name: hold_tasks
-- Of runs, the tasks that are paused by themselves.
-- columns: run_ids uuid, tasks text
UPDATE run SET paused_tasks = given.tasks::int[] FROM unnest($1::uuid[], $2::text[]) AS given (run_id, tasks) WHERE run.run_id = given.run_id;

-- name: set_priorities
-- Of runs, and the places of those of their tasks that wait for slots, and theirs, when they wait for a permit.
-- columns: run_ids uuid, priorities int
WITH prioritised AS (
  UPDATE run SET priority = given.priority FROM unnest($1::uuid[], $2::int[]) AS given (run_id, priority) WHERE run.run_id = given.run_id),
permits AS (
  UPDATE run_permit SET ranked_at = asked_at - make_interval(mins => given.priority)
  FROM unnest($1::uuid[], $2::int[]) AS given (run_id, priority) WHERE run_permit.run_id = given.run_id AND run_permit.granted_at IS NULL)
UPDATE pool_waiter SET ranked_at = began_at - make_interval(mins => given.priority)
FROM unnest($1::uuid[], $2::int[]) AS given (run_id, priority) WHERE pool_waiter.run_id = given.run_id;

-- name: await_slots
-- Behind leave_queues, so also a task that waits again, and behind set_priorities.
-- columns: run_ids uuid, tasks int, tokens int, namespaces text, pools text, keys text
INSERT INTO pool_waiter (run_id, task, token, namespace, pool, fairness_key, ranked_at)
SELECT given.run_id, given.task, given.token, given.namespace, given.pool, given.key, now() - make_interval(mins => run.priority)
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::text[], $6::text[]) AS given (run_id, task, token, namespace, pool, key)
JOIN run ON run.run_id = given.run_id;

-- name: return_permits
-- Of runs that have ended, or came out of their limit. Before await_permits, so also one that runs again. Where one is being granted this waits
-- for that to be committed.
-- columns: run_ids uuid
DELETE FROM run_permit USING unnest($1::uuid[]) AS given (run_id) WHERE run_permit.run_id = given.run_id;

-- name: await_permits
-- Runs that need a permit, or are given it at once by who has locked the key. Behind set_priorities.
-- columns: run_ids uuid, namespaces text, workflows text, keys text, granted boolean
INSERT INTO run_permit (run_id, namespace, workflow, key, asked_at, ranked_at, granted_at)
SELECT given.run_id, given.namespace, given.workflow, given.key, clock_timestamp(), clock_timestamp() - make_interval(mins => run.priority),
       CASE WHEN given.granted THEN clock_timestamp() END
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::boolean[]) AS given (run_id, namespace, workflow, key, granted)
JOIN run ON run.run_id = given.run_id
ON CONFLICT (run_id) DO UPDATE SET workflow = excluded.workflow, key = excluded.key, asked_at = excluded.asked_at, ranked_at = excluded.ranked_at,
  granted_at = excluded.granted_at, replaced_by = NULL;

-- name: replace_runs
-- Runs that have to end for others: a request in the inbox of each. After await_permits, so also one started in this batch. One that somebody has
-- locked is about to end, or is marked by its end: it is asked all the same.
-- columns: run_ids uuid, inbox_ids uuid, by_runs uuid
WITH free AS MATERIALIZED (
  SELECT p.run_id, given.by_run FROM unnest($1::uuid[], $3::uuid[]) AS given (run_id, by_run) JOIN run_permit p ON p.run_id = given.run_id
  FOR UPDATE OF p SKIP LOCKED),
marked AS (
  UPDATE run_permit p SET replaced_by = free.by_run FROM free WHERE p.run_id = free.run_id)
INSERT INTO inbox (inbox_id, run_id, kind, body, actor)
SELECT inbox_id, run_id, 'cancelled', json_build_object('reason', 'run ' || by_run || ' takes its place'), 'limit'
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS given (run_id, inbox_id, by_run);

-- name: start_children
-- Asks for runs; a sweep starts them. Unique by who asks, so that one hand-out has one child.
-- columns: parent_run_ids uuid, tasks int, tokens int, run_ids uuid, namespaces text, workflows text, versions int?, inputs json, traceparents text, are_awaited boolean
INSERT INTO child_run (parent_run_id, task, token, run_id, namespace, workflow, version, input, traceparent, is_awaited, depth)
SELECT parent_run_id, task, token, run_id, namespace, workflow, version, input, traceparent, is_awaited,
       1 + coalesce((SELECT c.depth FROM child_run c WHERE c.run_id = given.parent_run_id), 0)
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::uuid[], $5::text[], $6::text[], $7::int[], $8::json[], $9::text[], $10::boolean[])
  AS given (parent_run_id, task, token, run_id, namespace, workflow, version, input, traceparent, is_awaited);

-- name: cancel_children
-- Tasks that do not need their children any more. After start_children, so also one asked for in this batch. One that has not started never does;
-- one that has gets a request like a person's, which the sweep of requests says at its next pass.
-- columns: parent_run_ids uuid, tasks int, tokens int, inbox_ids uuid
WITH asked AS (
  UPDATE child_run c SET cancel_asked_at = now(), status = CASE c.status WHEN 'asked' THEN 'cancelled' ELSE c.status END,
    ended_at = CASE c.status WHEN 'asked' THEN now() END
  FROM unnest($1::uuid[], $2::int[], $3::int[], $4::uuid[]) AS given (parent_run_id, task, token, inbox_id)
  WHERE c.parent_run_id = given.parent_run_id AND c.task = given.task AND c.token = given.token AND c.status IN ('asked', 'started')
  RETURNING c.run_id, c.parent_run_id, c.status, given.inbox_id)
INSERT INTO inbox (inbox_id, run_id, kind, body, actor, said_at)
SELECT inbox_id, run_id, 'cancelled', json_build_object('reason', 'run ' || parent_run_id || ' does not wait for it any more'), '', to_timestamp(0)
FROM asked WHERE status = 'started';

-- name: end_children
-- Runs that ended, and for which a task of another run waits: a request in that run's inbox. A parent that was removed is told nothing.
-- columns: run_ids uuid, inbox_ids uuid, statuses text, outputs json, errors json
WITH ended AS (
  UPDATE child_run c SET status = given.status, ended_at = now()
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::json[], $5::json[]) AS given (run_id, inbox_id, status, output, error)
  WHERE c.run_id = given.run_id AND c.is_awaited
  RETURNING c.parent_run_id, c.task, c.token, c.run_id, given.inbox_id, given.status, given.output, given.error)
INSERT INTO inbox (inbox_id, run_id, kind, body, actor)
SELECT inbox_id, parent_run_id, 'child_told',
       json_build_object('task', task, 'token', token, 'child', run_id, 'outcome', status, 'output', output, 'error', error), ''
FROM ended;

-- name: ask_approvals
-- columns: approval_ids uuid, namespaces text, run_ids uuid, tasks int, tokens int, titles text, approvers json, on_expiry text, expires_seconds int?, contexts json, forms json, needed int, no_self_approvals boolean, digests text
INSERT INTO approval (approval_id, namespace, run_id, task, token, title, approvers, on_expiry, expires_seconds, expires_at, context, form,
  needed, no_self_approval, digest)
SELECT approval_id, namespace, run_id, task, token, title, approvers, on_expiry, expires_seconds, now() + make_interval(secs => expires_seconds),
       context, form, needed, no_self_approval, digest
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::int[], $5::int[], $6::text[], $7::json[], $8::text[], $9::int[], $10::json[], $11::json[],
            $12::int[], $13::boolean[], $14::text[])
  AS given (approval_id, namespace, run_id, task, token, title, approvers, on_expiry, expires_seconds, context, form, needed, no_self_approval,
            digest);

-- name: set_approval_timers
-- Reminders and steps of escalation, of questions asked in this batch.
-- columns: approval_ids uuid, kinds text, positions int, after_seconds int?, targets json
INSERT INTO approval_timer (approval_id, kind, position, targets, due_at)
SELECT approval_id, kind, position, targets, now() + make_interval(secs => after_seconds)
FROM unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::json[]) AS given (approval_id, kind, position, after_seconds, targets);

-- name: close_approvals
-- Questions that nobody needs to answer any more; after ask_approvals, so also one asked in this batch.
-- columns: run_ids uuid, tasks int, tokens int
UPDATE approval SET status = 'cancelled', decided_at = now()
FROM unnest($1::uuid[], $2::int[], $3::int[]) AS given (run_id, task, token)
WHERE approval.run_id = given.run_id AND approval.task = given.task AND approval.token = given.token AND approval.status = 'waiting';

-- name: park_tasks
-- columns: run_ids uuid, tasks int, tokens int, namespaces text, errors json
INSERT INTO parked_task (run_id, task, token, namespace, error)
SELECT run_id, task, token, namespace, error
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::json[]) AS given (run_id, task, token, namespace, error);

-- name: unpark_tasks
-- After park_tasks, so also one parked in this batch.
-- columns: run_ids uuid, tasks int
DELETE FROM parked_task USING unnest($1::uuid[], $2::int[]) AS given (run_id, task)
WHERE parked_task.run_id = given.run_id AND parked_task.task = given.task;

-- name: bury_tasks
-- A task whose replay failed names the letter that was replayed: of a task's letters before this one, the last.
-- columns: dead_letter_ids uuid, namespaces text, run_ids uuid, tasks int, tokens int, reasons text, errors json, messages text, task_names text, workflows text, versions int, fingerprints text
INSERT INTO dead_letter (dead_letter_id, namespace, kind, run_id, task, token, reason, code, error, message, task_name, workflow, version,
                         fingerprint, replay_of)
SELECT dead_letter_id, namespace, 'task', run_id, task, token, reason, reason, error, message, task_name, workflow, version, fingerprint,
       (SELECT d.dead_letter_id FROM dead_letter d
        WHERE d.run_id = given.run_id AND d.task = given.task AND d.token < given.token AND d.status = 'replayed'
        ORDER BY d.token DESC LIMIT 1)
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::int[], $5::int[], $6::text[], $7::json[], $8::text[], $9::text[], $10::text[], $11::int[],
            $12::text[])
  AS given (dead_letter_id, namespace, run_id, task, token, reason, error, message, task_name, workflow, version, fingerprint);

-- name: close_letters
-- Letters of tasks that a rerun sends out again, or that were given their output; one that somebody else has closed stays as it is.
-- columns: run_ids uuid, tasks int, tokens int, statuses text, actors text, reasons text
UPDATE dead_letter d SET status = given.status, closed_at = now(), closed_by = given.actor, close_reason = given.reason,
  replay_token = CASE WHEN given.status = 'replayed' THEN greatest(given.token, (SELECT max(token_floor) FROM timeline)) + 1 END
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::text[], $6::text[]) AS given (run_id, task, token, status, actor, reason)
WHERE d.run_id = given.run_id AND d.task = given.task AND d.token = given.token AND d.kind = 'task' AND d.status = 'parked';

-- name: bury_records
-- A record with the content of one that was replayed to this partition, and not set aside again since, is that one.
-- columns: dead_letter_ids uuid, namespaces text, run_ids uuid, topics text, partitions int, offsets bigint, keys bytea, values bytea, headers json, reasons text, errors json, codes text, messages text, fingerprints text
INSERT INTO dead_letter (dead_letter_id, namespace, kind, run_id, topic, partition, "offset", key, value, headers, reason, error, code,
                         message, workflow, version, fingerprint, replay_of)
SELECT given.dead_letter_id, given.namespace, 'record', given.run_id, given.topic, given.partition, given."offset", given.key, given.value,
       given.headers, given.reason, given.error, given.code, given.message, v.name, v.version, given.fingerprint,
       (SELECT d.dead_letter_id FROM dead_letter d
        WHERE d.topic = given.topic AND d.replay_digest = sha256(coalesce(given.value, '')) AND d.partition IN (given.partition, -1)
          AND coalesce(d.key, '') = coalesce(given.key, '') AND d."offset" < given."offset"
          AND NOT EXISTS (SELECT FROM dead_letter n WHERE n.replay_of = d.dead_letter_id)
        ORDER BY d.closed_at, d.dead_letter_id OFFSET given.nth - 1 LIMIT 1)
FROM (
  SELECT *, row_number() OVER (PARTITION BY topic, partition, key, value ORDER BY "offset") AS nth
  FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::int[], $6::bigint[], $7::bytea[], $8::bytea[], $9::json[], $10::text[],
              $11::json[], $12::text[], $13::text[], $14::text[])
    AS buried (dead_letter_id, namespace, run_id, topic, partition, "offset", key, value, headers, reason, error, code, message, fingerprint)
) AS given
LEFT JOIN run r ON r.run_id = given.run_id
LEFT JOIN workflow_version v ON v.version_id = r.version_id;

-- name: apply_inbox
-- columns: inbox_ids uuid
UPDATE inbox SET applied_at = now() FROM unnest($1::uuid[]) AS given (inbox_id)
WHERE inbox.inbox_id = given.inbox_id AND inbox.applied_at IS NULL;

-- name: count_lost_records
-- Records that tell of a future this database does not have, with the timeline on which that was noticed.
-- columns: epochs int, counts int
UPDATE timeline SET lost_records = lost_records + given.count
FROM unnest($1::int[], $2::int[]) AS given (epoch, count) WHERE timeline.epoch = given.epoch;

-- name: publish_messages
-- The outbox as logical messages: one bundle per transaction.
-- columns: contents bytea
SELECT pg_logical_emit_message(true, 'headrace', content) FROM unnest($1::bytea[]) AS given (content);

-- name: publish_rows
-- The outbox as a table in the shape of Debezium's EventRouter.
-- columns: ids uuid, aggregatetypes text, aggregateids text, types text, payloads text, partitions int?, traceparents text
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, partition, traceparent)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::text[])
  AS given (id, aggregatetype, aggregateid, type, payload, partition, traceparent);

-- name: delete_rows
-- Right behind publish_rows, in the same transaction: the log keeps what the table need not.
-- columns: ids uuid
DELETE FROM outbox USING unnest($1::uuid[]) AS given (id) WHERE outbox.id = given.id;
