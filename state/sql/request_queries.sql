-- Idempotency keys of the API.

-- name: claim_request_key
-- Status 0 until its answer is known, in the same transaction. Waits for a racing transaction that has the key; no row: it was used.
INSERT INTO request_key (namespace, route, key, digest, status, body)
VALUES (%(namespace)s, %(route)s, %(key)s, %(digest)s, 0, 'null')
ON CONFLICT (namespace, route, key) DO NOTHING
RETURNING key;

-- name: find_request_key
SELECT digest, status, body::text FROM request_key WHERE namespace = %(namespace)s AND route = %(route)s AND key = %(key)s;

-- name: save_answer
UPDATE request_key SET status = %(status)s, body = %(body)s::json
WHERE namespace = %(namespace)s AND route = %(route)s AND key = %(key)s;
