-- Subscriptions: which records start which workflow, or say which signal.

-- name: insert_subscription
-- No row: the name is taken.
INSERT INTO subscription (subscription_id, namespace, name, topic, workflow, filter, input, signal, labels)
VALUES (%(subscription_id)s, %(namespace)s, %(name)s, %(topic)s, %(workflow)s, %(filter)s, %(input)s::json, %(signal)s::json, %(labels)s::json)
ON CONFLICT (namespace, name) DO NOTHING
RETURNING name, topic, workflow, filter, input::text, enabled, created_at, waits_since, signal::text, labels::text;

-- name: get_subscription
SELECT name, topic, workflow, filter, input::text, enabled, created_at, waits_since, signal::text, labels::text
FROM subscription WHERE namespace = %(namespace)s AND name = %(name)s;

-- name: list_subscriptions
-- By name.
SELECT name, topic, workflow, filter, input::text, enabled, created_at, waits_since, signal::text, labels::text
FROM subscription WHERE namespace = %(namespace)s AND name > %(after)s ORDER BY name LIMIT %(limit)s;

-- name: delete_subscription
DELETE FROM subscription WHERE namespace = %(namespace)s AND name = %(name)s RETURNING name;
