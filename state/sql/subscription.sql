-- Which topics start runs, and the fates of their records.

-- name: list_enabled
SELECT subscription_id, namespace, name, topic, workflow, filter, input::text, signal::text, labels::text FROM subscription WHERE enabled ORDER BY topic, name;

-- name: note_wait
-- $1 topic; $2 whether its records wait because too many runs are under way. Another process may have said so already.
UPDATE subscription SET waits_since = CASE WHEN $2 THEN now() END WHERE topic = $1 AND (waits_since IS NULL) = $2;

-- name: insert_fates
INSERT INTO trigger_event (subscription_id, topic, partition, "offset", fate, run_id, reason, signal_id)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[], $4::bigint[], $5::text[], $6::uuid[], $7::text[], $8::uuid[])
  AS given (subscription_id, topic, partition, "offset", fate, run_id, reason, signal_id);
