-- Counters of the streams processes, summed up over all of them and over restarts.

-- name: add_counters
-- $1 samples, $2 labels (JSON), $3 metrics, $4 kinds, $5 what they count, $6 how much came since the last time.
INSERT INTO engine_counter AS c (sample, labels, metric, kind, what, value)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::float8[]) AS given (sample, labels, metric, kind, what, value)
ORDER BY sample, labels
ON CONFLICT (sample, labels) DO UPDATE SET value = c.value + excluded.value, what = excluded.what;

-- name: read_counters
SELECT metric, kind, what, sample, labels, value FROM engine_counter ORDER BY metric, sample, labels;
