-- What bodies log: kept as far as there is room, read by people.

-- name: insert_log_lines
INSERT INTO log_line (run_id, task, token, seq, attempt, at, level, worker, logger, message, fields)
SELECT l.run_id, l.task, l.token, l.seq, l.attempt, to_timestamp(l.at / 1e6), l.level, l.worker, l.logger, l.message, l.fields::json
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::int[], $6::bigint[], $7::smallint[], $8::text[], $9::text[], $10::text[],
            $11::text[])
  WITH ORDINALITY AS l (run_id, task, token, seq, attempt, at, level, worker, logger, message, fields, n)
ORDER BY l.n
ON CONFLICT ON CONSTRAINT log_line_once DO NOTHING;

-- name: trim_log_lines
-- All but the newest $1, the oldest $2 of them at once. By their numbers alone: nothing is counted.
DELETE FROM log_line
WHERE line_id <= (SELECT max(line_id) FROM log_line) - $1::bigint
  AND line_id < (SELECT min(line_id) FROM log_line) + $2::bigint;

-- name: list_log_lines
-- Of one run behind a line, in the order in which they came; of one task, hand-out, level or text where those are given.
SELECT line_id, task, token, attempt, at, level, worker, logger, message, fields::text
FROM log_line
WHERE run_id = %(run_id)s AND line_id > %(after)s
  AND (%(task)s::int IS NULL OR task = %(task)s)
  AND (%(attempt)s::int IS NULL OR attempt = %(attempt)s)
  AND level >= %(level)s
  AND (%(text)s::text IS NULL OR strpos(lower(message || ' ' || coalesce(fields::text, '')), lower(%(text)s)) > 0)
ORDER BY line_id LIMIT %(limit)s;

-- name: read_last_log_lines
-- The same from the end, newest first.
SELECT line_id, task, token, attempt, at, level, worker, logger, message, fields::text
FROM log_line
WHERE run_id = %(run_id)s AND line_id < %(before)s
  AND (%(task)s::int IS NULL OR task = %(task)s)
  AND (%(attempt)s::int IS NULL OR attempt = %(attempt)s)
  AND level >= %(level)s
  AND (%(text)s::text IS NULL OR strpos(lower(message || ' ' || coalesce(fields::text, '')), lower(%(text)s)) > 0)
ORDER BY line_id DESC LIMIT %(limit)s;
