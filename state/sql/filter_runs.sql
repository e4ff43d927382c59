-- Conditions of filters on runs (r), one a field. What looks into another table is a scalar subquery on purpose: an EXISTS might be turned into a
-- join with all of that table, whatever few runs are looked at.

-- name: is_open
-- Written out, so that the planner can prove that the index run_open has them all.
r.status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention')

-- name: ended_badly
-- The same for run_ended_badly.
r.status IN ('failed', 'cancelled', 'terminated', 'compensated', 'compensation_failed')

-- name: status
r.status = ANY({values}::run_status[])

-- name: is_stuck
-- Nothing will move it without an operator. It stands aside; something was due long ago, and has not moved it; a task is in a queue that no worker
-- serves (the unserved: such tasks as `spot_of` numbers them, compensations below zero); or nothing is there that could move it, or a task that waits.
r.status = 'needs_attention'
OR coalesce((SELECT true FROM timer m WHERE m.run_id = r.run_id AND m.due_at < now() - make_interval(secs => {seconds}) LIMIT 1), false)
OR coalesce((SELECT true FROM inbox i
   WHERE i.run_id = r.run_id AND i.applied_at IS NULL AND i.created_at < now() - make_interval(secs => {seconds}) LIMIT 1), false)
OR coalesce((SELECT true FROM approval a
   WHERE a.run_id = r.run_id AND a.status = 'waiting' AND a.expires_at < now() - make_interval(secs => {seconds}) LIMIT 1), false)
OR coalesce((SELECT true FROM child_run c
   WHERE c.parent_run_id = r.run_id AND c.status = 'asked' AND c.asked_at < now() - make_interval(secs => {seconds}) LIMIT 1), false)
OR coalesce((SELECT true FROM task t
   WHERE t.run_id = r.run_id AND t.changed_at < now() - make_interval(secs => {seconds})
     AND CASE t.status
       WHEN 'queued' THEN spot_of(r.version_id, t.task) * CASE WHEN t.task < 200000000 THEN 1 ELSE -1 END = ANY({unserved}::bigint[])
       WHEN 'waiting' THEN t.items IS NULL AND NOT coalesce(
         (SELECT true FROM approval a WHERE a.run_id = t.run_id AND a.task = t.task AND a.token = t.token LIMIT 1),
         (SELECT true FROM parked_task p WHERE p.run_id = t.run_id AND p.task = t.task LIMIT 1),
         (SELECT true FROM pool_waiter w WHERE w.run_id = t.run_id AND w.task = t.task LIMIT 1),
         (SELECT true FROM signal_wait s WHERE s.run_id = t.run_id AND s.task = t.task LIMIT 1),
         (SELECT true FROM child_run c WHERE c.parent_run_id = t.run_id AND c.task = t.task AND c.token = t.token LIMIT 1),
         (SELECT true FROM timer m WHERE m.run_id = t.run_id AND m.task = t.task AND NOT m.is_deadline LIMIT 1), false)
       ELSE false END
   LIMIT 1), false)
OR (r.updated_at < now() - make_interval(secs => {seconds}) AND NOT coalesce(
  (SELECT true FROM task t
   WHERE t.run_id = r.run_id
     AND (t.status IN ('queued', 'running', 'waiting') OR (t.status = 'pending' AND (t.due_at IS NOT NULL OR t.withheld IS NOT NULL))) LIMIT 1),
  (SELECT true FROM run_permit p WHERE p.run_id = r.run_id AND p.granted_at IS NULL LIMIT 1),
  (SELECT true FROM inbox i WHERE i.run_id = r.run_id AND i.applied_at IS NULL LIMIT 1), false))

-- name: run
r.run_id = ANY({values}::uuid[])

-- name: of_versions
r.version_id = ANY({versions}::int[])

-- name: id_since
-- Ids tell the time; one that a caller chose may be an hour off.
r.run_id >= first_id_of({low}::timestamptz - interval '1 hour')

-- name: since
r.created_at >= {low}::timestamptz

-- name: id_until
r.run_id < first_id_of({high}::timestamptz + interval '1 hour')

-- name: until
r.created_at < {high}::timestamptz

-- name: started
r.created_at >= {low}::timestamptz AND r.created_at < {high}::timestamptz

-- name: ended
r.finished_at >= {low}::timestamptz AND r.finished_at < {high}::timestamptz

-- name: updated
r.updated_at >= {low}::timestamptz AND r.updated_at < {high}::timestamptz

-- name: took
(extract(epoch FROM coalesce(r.finished_at, now()) - r.created_at) * 1000000)::bigint >= {low}::bigint
AND (extract(epoch FROM coalesce(r.finished_at, now()) - r.created_at) * 1000000)::bigint < {high}::bigint

-- name: failed
(SELECT true FROM task t WHERE t.run_id = r.run_id AND t.status = 'failed' AND spot_of(r.version_id, t.task) = ANY({spots}::bigint[]) LIMIT 1)

-- name: failed_any
(SELECT true FROM task t WHERE t.run_id = r.run_id AND t.status = 'failed' LIMIT 1)

-- name: code
-- Of a task, or of an attempt behind which another followed.
coalesce(
  (SELECT true FROM task t WHERE t.run_id = r.run_id AND t.error IS NOT NULL AND text_at(t.error, 'code') LIKE ANY({patterns}::text[]) LIMIT 1),
  (SELECT true FROM attempt a WHERE a.run_id = r.run_id AND a.error IS NOT NULL AND text_at(a.error, 'code') LIKE ANY({patterns}::text[]) LIMIT 1))

-- name: error
coalesce(
  (SELECT true FROM task t
   WHERE t.run_id = r.run_id AND t.error IS NOT NULL AND lower(text_at(t.error, 'message')) LIKE ANY({patterns}::text[]) LIMIT 1),
  (SELECT true FROM attempt a
   WHERE a.run_id = r.run_id AND a.error IS NOT NULL AND lower(text_at(a.error, 'message')) LIKE ANY({patterns}::text[]) LIMIT 1))

-- name: waits
-- Each by the row that whoever waits has.
('person' = ANY({values}::text[]) AND coalesce(
  (SELECT true FROM approval a WHERE a.run_id = r.run_id AND a.status = 'waiting' LIMIT 1),
  (SELECT true FROM parked_task p WHERE p.run_id = r.run_id AND p.resolved_at IS NULL LIMIT 1), false))
OR ('slot' = ANY({values}::text[]) AND coalesce(
  (SELECT true FROM pool_waiter w WHERE w.run_id = r.run_id AND w.granted_at IS NULL LIMIT 1), false))
OR ('signal' = ANY({values}::text[]) AND coalesce((SELECT true FROM signal_wait s WHERE s.run_id = r.run_id LIMIT 1), false))
OR ('child' = ANY({values}::text[]) AND coalesce(
  (SELECT true FROM child_run c WHERE c.parent_run_id = r.run_id AND c.is_awaited AND c.status IN ('asked', 'started') LIMIT 1), false))
OR ('retry' = ANY({values}::text[]) AND coalesce(
  (SELECT true FROM timer m WHERE m.run_id = r.run_id AND m.kind = 'backoff' LIMIT 1), false))
OR ('time' = ANY({values}::text[]) AND coalesce(
  (SELECT true FROM timer m
   WHERE m.run_id = r.run_id AND m.kind = 'wait'
     AND NOT coalesce((SELECT true FROM signal_wait s WHERE s.run_id = m.run_id AND s.task = m.task), false)
     AND NOT coalesce((SELECT true FROM child_run c WHERE c.parent_run_id = m.run_id AND c.task = m.task AND c.token = m.token), false)
   LIMIT 1), false))

-- name: pool
(SELECT true FROM task t WHERE t.run_id = r.run_id AND t.pool LIKE ANY({patterns}::text[]) LIMIT 1)

-- name: trigger
r.trigger_source LIKE ANY({patterns}::text[])

-- name: by
(SELECT h.actor FROM history h WHERE h.run_id = r.run_id AND h.row_version = 1) LIKE ANY({patterns}::text[])

-- name: label
(SELECT l.value FROM run_label l WHERE l.run_id = r.run_id AND l.name = {name}) LIKE ANY({patterns}::text[])

-- name: priority
r.priority >= {low}::bigint AND r.priority < {high}::bigint

-- name: input
text_at(r.input, VARIADIC {path}::text[]) LIKE ANY({patterns}::text[])

-- name: input_number
number_at(r.input, VARIADIC {path}::text[]) <@ {range}::numrange

-- name: output
text_at(r.output, VARIADIC {path}::text[]) LIKE ANY({patterns}::text[])

-- name: output_number
number_at(r.output, VARIADIC {path}::text[]) <@ {range}::numrange
