-- Bulk acts: a frozen selection of dead letters or of runs, carried out at a rate.

-- name: insert_bulk
INSERT INTO bulk (bulk_id, namespace, act, filter, reason, rate, selected, created_by)
VALUES (%(bulk_id)s, %(namespace)s, %(act)s, %(filter)s, %(reason)s, %(rate)s, 0, %(actor)s);

-- name: freeze_letters
-- Parked letters, in the order given. One that another open bulk replay has is left to it; waits for a racing one to commit.
WITH frozen AS (
  INSERT INTO bulk_item (bulk_id, position, act, item_id)
  SELECT %(bulk_id)s, given.position, %(act)s, d.dead_letter_id
  FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS given (dead_letter_id, position)
  JOIN dead_letter d ON d.dead_letter_id = given.dead_letter_id AND d.namespace = %(namespace)s AND d.status = 'parked'
  ORDER BY d.dead_letter_id
  ON CONFLICT (act, item_id) WHERE outcome IS NULL DO NOTHING
  RETURNING 1)
SELECT count(*)::int FROM frozen;

-- name: freeze_runs
-- Runs, in the order given. One of which another open bulk asks the same is left to that; waits for a racing one to commit.
WITH frozen AS (
  INSERT INTO bulk_item (bulk_id, position, act, item_id)
  SELECT %(bulk_id)s, given.position, %(act)s, r.run_id
  FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS given (run_id, position)
  JOIN run r ON r.run_id = given.run_id AND r.namespace = %(namespace)s
  ORDER BY r.run_id
  ON CONFLICT (act, item_id) WHERE outcome IS NULL DO NOTHING
  RETURNING 1)
SELECT count(*)::int FROM frozen;

-- name: note_selected
UPDATE bulk SET selected = %(selected)s WHERE bulk_id = %(bulk_id)s;

-- name: read_bulks
-- Newest first; %(bulk_id)s: only that one; %(act)s: only of that act.
SELECT b.bulk_id, b.act, b.filter, b.reason, b.rate, b.selected, b.created_at, b.created_by, b.finished_at, b.stopped_by,
       p.done, p.refused, p.gone, p.stopped, p.left_over
FROM bulk b
CROSS JOIN LATERAL (
  SELECT (count(*) FILTER (WHERE i.outcome = 'done'))::int AS done, (count(*) FILTER (WHERE i.outcome = 'refused'))::int AS refused,
         (count(*) FILTER (WHERE i.outcome = 'gone'))::int AS gone, (count(*) FILTER (WHERE i.outcome = 'stopped'))::int AS stopped,
         (count(*) FILTER (WHERE i.outcome IS NULL))::int AS left_over
  FROM bulk_item i WHERE i.bulk_id = b.bulk_id) p
WHERE b.namespace = %(namespace)s AND (%(bulk_id)s::uuid IS NULL OR b.bulk_id = %(bulk_id)s)
  AND (%(act)s::text IS NULL OR b.act = %(act)s) AND (b.created_at, b.bulk_id) < (%(before)s, %(before_id)s)
ORDER BY b.created_at DESC, b.bulk_id DESC LIMIT %(limit)s;

-- name: list_items
-- In the order of their turns, behind %(after)s; those with the outcome %(outcome)s, where one is given.
SELECT position, item_id, outcome, reason, done_at, later FROM bulk_item_later
WHERE bulk_id = %(bulk_id)s AND position > %(after)s AND (%(outcome)s::text IS NULL OR outcome = %(outcome)s)
ORDER BY position LIMIT %(limit)s;

-- name: count_later
-- What became of those that were done.
SELECT later, count(*)::int FROM bulk_item_later WHERE bulk_id = %(bulk_id)s AND later IS NOT NULL GROUP BY later;

-- name: count_refusals
-- Why items were refused, most first.
SELECT reason, count(*)::int FROM bulk_item WHERE bulk_id = %(bulk_id)s AND outcome = 'refused'
GROUP BY reason ORDER BY count(*) DESC, reason LIMIT %(limit)s;

-- name: lock_bulk
-- Waits for a step under way. A statement of its own: one that waits for a row does not see what was committed to others meanwhile.
SELECT FROM bulk WHERE bulk_id = %(bulk_id)s AND namespace = %(namespace)s FOR UPDATE;

-- name: stop_bulk
-- Of one that is locked. What has not had its turn yet stays as it is. One that has paused runs to move them is over once it has let them go.
UPDATE bulk SET stopped_by = %(actor)s, next_at = now(),
  finished_at = CASE WHEN NOT EXISTS (SELECT FROM bulk_item i WHERE i.bulk_id = bulk.bulk_id AND i.outcome IS NULL AND i.asked_at IS NOT NULL) THEN now() END
WHERE bulk_id = %(bulk_id)s AND namespace = %(namespace)s AND finished_at IS NULL AND stopped_by IS NULL
RETURNING bulk_id;

-- name: release_selection
UPDATE bulk_item SET outcome = 'stopped', done_at = now() WHERE bulk_id = %(bulk_id)s AND outcome IS NULL AND asked_at IS NULL;

-- name: claim_bulk
-- The open one that has waited longest, and how many of its items the rate allows now: the one that is due, and those that would have
-- gone since; after a pause of the engine at most one second's worth. Held until the step commits; another process takes another one.
SELECT bulk_id, act, created_by, reason, rate, stopped_by IS NOT NULL,
       least(%(step_max)s, 1 + floor(rate * least(1.0, extract(epoch FROM clock_timestamp() - next_at)::double precision)))::int
FROM bulk
WHERE namespace = %(namespace)s AND finished_at IS NULL AND next_at <= clock_timestamp()
ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: list_items_left
-- With how many seconds ago they were asked to pause, if they were; those are left alone for a moment after each look.
SELECT position, item_id, extract(epoch FROM clock_timestamp() - asked_at)::double precision FROM bulk_item
WHERE bulk_id = %(bulk_id)s AND outcome IS NULL AND (looked_at IS NULL OR looked_at < clock_timestamp() - make_interval(secs => %(look)s))
ORDER BY looked_at NULLS LAST, position LIMIT %(limit)s;

-- name: note_looks
-- Items that are to be looked at again.
UPDATE bulk_item i SET asked_at = coalesce(i.asked_at, clock_timestamp()), looked_at = clock_timestamp()
WHERE i.bulk_id = %(bulk_id)s AND i.position = ANY(%(positions)s::int[]) AND i.outcome IS NULL;


-- name: note_outcomes
UPDATE bulk_item i SET outcome = given.outcome, reason = given.reason, inbox_id = given.inbox_id, row_version = given.row_version, done_at = now()
FROM unnest(%(positions)s::int[], %(outcomes)s::text[], %(reasons)s::text[], %(inbox_ids)s::uuid[], %(row_versions)s::int[])
  AS given (position, outcome, reason, inbox_id, row_version)
WHERE i.bulk_id = %(bulk_id)s AND i.position = given.position AND i.outcome IS NULL;

-- name: note_step
-- When the next one may go out, or that none is left. Where nothing could be done, all that is left waits for something.
UPDATE bulk b SET
  next_at = CASE WHEN %(done)s = 0 THEN clock_timestamp() + make_interval(secs => %(look)s)
                 ELSE greatest(b.next_at, clock_timestamp() - make_interval(secs => 1.0)) + make_interval(secs => %(done)s / b.rate) END,
  finished_at = CASE WHEN NOT EXISTS (SELECT FROM bulk_item i WHERE i.bulk_id = b.bulk_id AND i.outcome IS NULL) THEN now() END
WHERE b.bulk_id = %(bulk_id)s
RETURNING b.finished_at IS NOT NULL;

-- name: next_step
-- Seconds until a bulk may go on; null when none is open.
SELECT extract(epoch FROM min(next_at) - clock_timestamp())::double precision FROM bulk
WHERE namespace = %(namespace)s AND finished_at IS NULL;

-- name: list_unread_records
-- Replayed records that must be in Kafka by now: the tick that travelled behind them has come back. A transaction of ours takes less than
-- %(settle)s seconds.
SELECT d.dead_letter_id, d.topic, d.partition FROM dead_letter d
WHERE d.replay_digest IS NOT NULL AND d.replay_end IS NULL
  AND d.closed_at < (SELECT at FROM watermark WHERE name = 'sessions') - make_interval(secs => %(settle)s)
ORDER BY d.closed_at LIMIT %(limit)s;

-- name: note_ends
UPDATE dead_letter d SET replay_end = given.replay_end
FROM unnest(%(ids)s::uuid[], %(ends)s::bigint[]) AS given (dead_letter_id, replay_end)
WHERE d.dead_letter_id = given.dead_letter_id AND d.replay_end IS NULL;
