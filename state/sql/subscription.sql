-- Which topics start runs, and the fates of their records.

-- name: list_enabled
SELECT subscription_id, namespace, name, topic, workflow, filter, input::text FROM subscription WHERE enabled ORDER BY topic, name;

-- name: insert_fates
INSERT INTO trigger_event (subscription_id, topic, partition, "offset", fate, run_id, reason)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[], $4::bigint[], $5::text[], $6::uuid[], $7::text[])
  AS given (subscription_id, topic, partition, "offset", fate, run_id, reason);
