-- Bulk replays: a frozen selection of dead letters, carried out at a rate.

-- name: insert_bulk_replay
INSERT INTO bulk_replay (replay_id, namespace, filter, rate, selected, created_by)
VALUES (%(replay_id)s, %(namespace)s, %(filter)s::json, %(rate)s, 0, %(actor)s);

-- name: freeze_selection
-- Parked letters, in the order given. One that another open bulk replay has is left to it; waits for a racing one to commit.
WITH frozen AS (
  INSERT INTO bulk_replay_letter (replay_id, position, dead_letter_id)
  SELECT %(replay_id)s, given.position, d.dead_letter_id
  FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS given (dead_letter_id, position)
  JOIN dead_letter d ON d.dead_letter_id = given.dead_letter_id AND d.namespace = %(namespace)s AND d.status = 'parked'
  ORDER BY d.dead_letter_id
  ON CONFLICT (dead_letter_id) WHERE outcome IS NULL DO NOTHING
  RETURNING 1)
SELECT count(*)::int FROM frozen;

-- name: note_selected
UPDATE bulk_replay SET selected = %(selected)s WHERE replay_id = %(replay_id)s;

-- name: read_bulk_replays
-- Newest first; %(replay_id)s: only that one.
SELECT b.replay_id, b.filter::text, b.rate, b.selected, b.created_at, b.created_by, b.finished_at, b.stopped_by,
       p.replayed, p.refused, p.stopped, p.left_over
FROM bulk_replay b
CROSS JOIN LATERAL (
  SELECT (count(*) FILTER (WHERE l.outcome = 'replayed'))::int AS replayed, (count(*) FILTER (WHERE l.outcome = 'refused'))::int AS refused,
         (count(*) FILTER (WHERE l.outcome = 'stopped'))::int AS stopped, (count(*) FILTER (WHERE l.outcome IS NULL))::int AS left_over
  FROM bulk_replay_letter l WHERE l.replay_id = b.replay_id) p
WHERE b.namespace = %(namespace)s AND (%(replay_id)s::uuid IS NULL OR b.replay_id = %(replay_id)s)
  AND (b.created_at, b.replay_id) < (%(before)s, %(before_id)s)
ORDER BY b.created_at DESC, b.replay_id DESC LIMIT %(limit)s;

-- name: count_outcomes
-- What became of those it has replayed.
SELECT o.outcome, count(*)::int FROM bulk_replay_letter l JOIN replay_outcome o ON o.dead_letter_id = l.dead_letter_id
WHERE l.replay_id = %(replay_id)s AND l.outcome = 'replayed' GROUP BY o.outcome;

-- name: list_refusals
-- Letters that could not be replayed, with the reason, the first %(limit)s.
SELECT dead_letter_id, reason FROM bulk_replay_letter
WHERE replay_id = %(replay_id)s AND outcome = 'refused' ORDER BY position LIMIT %(limit)s;

-- name: stop_bulk_replay
-- What has not gone out yet stays parked. Waits for a step under way.
UPDATE bulk_replay SET finished_at = now(), stopped_by = %(actor)s
WHERE replay_id = %(replay_id)s AND namespace = %(namespace)s AND finished_at IS NULL
RETURNING replay_id;

-- name: release_selection
UPDATE bulk_replay_letter SET outcome = 'stopped', done_at = now() WHERE replay_id = %(replay_id)s AND outcome IS NULL;

-- name: claim_bulk_replay
-- The open one that has waited longest, and how many of its letters the rate allows now: the one that is due, and those that would have
-- gone since; after a pause of the engine at most one second's worth. Held until the step commits; another process takes another one.
SELECT replay_id, created_by, rate,
       least(%(step_max)s, 1 + floor(rate * least(1.0, extract(epoch FROM clock_timestamp() - next_at)::double precision)))::int
FROM bulk_replay
WHERE namespace = %(namespace)s AND finished_at IS NULL AND next_at <= clock_timestamp()
ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: list_letters_left
SELECT position, dead_letter_id FROM bulk_replay_letter
WHERE replay_id = %(replay_id)s AND outcome IS NULL ORDER BY position LIMIT %(limit)s;

-- name: note_outcomes
UPDATE bulk_replay_letter l SET outcome = given.outcome, reason = given.reason, done_at = now()
FROM unnest(%(positions)s::int[], %(outcomes)s::text[], %(reasons)s::text[]) AS given (position, outcome, reason)
WHERE l.replay_id = %(replay_id)s AND l.position = given.position AND l.outcome IS NULL;

-- name: note_step
-- When the next one may go out, or that none is left.
UPDATE bulk_replay b SET
  next_at = greatest(b.next_at, clock_timestamp() - make_interval(secs => 1.0)) + make_interval(secs => %(done)s / b.rate),
  finished_at = CASE WHEN NOT EXISTS (SELECT FROM bulk_replay_letter l WHERE l.replay_id = b.replay_id AND l.outcome IS NULL) THEN now() END
WHERE b.replay_id = %(replay_id)s
RETURNING b.finished_at IS NOT NULL;

-- name: next_step
-- Seconds until a bulk replay may go on; null when none is open.
SELECT extract(epoch FROM min(next_at) - clock_timestamp())::double precision FROM bulk_replay
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
