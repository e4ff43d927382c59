-- Who may call the API, and what was done through it.

-- name: insert_token
-- No row: a token that is not revoked has this name.
INSERT INTO api_token (namespace, name, secret_hash, scopes, roles, created_by, expires_at)
VALUES (%(namespace)s, %(name)s, %(secret_hash)s, %(scopes)s, %(roles)s, %(created_by)s, now() + %(lifetime)s)
ON CONFLICT (namespace, name) WHERE revoked_at IS NULL DO NOTHING
RETURNING token_id, name, scopes, roles, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at;

-- name: find_token
SELECT token_id, name, scopes, roles, last_used_at IS NULL OR last_used_at < now() - interval '1 minute'
FROM api_token
WHERE secret_hash = %(secret_hash)s AND namespace = %(namespace)s AND revoked_at IS NULL AND expires_at > now();

-- name: find_session
-- Nulls for the token: it is the session of the local token. A session ends with the token behind it.
SELECT t.token_id, t.name, t.scopes, t.roles, t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute'
FROM api_session s LEFT JOIN api_token t USING (token_id)
WHERE s.session_hash = %(session_hash)s AND s.namespace = %(namespace)s AND s.expires_at > now()
  AND (s.token_id IS NULL OR (t.revoked_at IS NULL AND t.expires_at > now()));

-- name: touch_token
UPDATE api_token SET last_used_at = now()
WHERE token_id = %(token_id)s AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute');

-- name: list_tokens
SELECT token_id, name, scopes, roles, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at
FROM api_token
WHERE namespace = %(namespace)s AND (created_at, token_id) < (%(before_at)s, %(before_id)s)
ORDER BY created_at DESC, token_id DESC LIMIT %(limit)s;

-- name: revoke_token
UPDATE api_token SET revoked_at = now(), revoked_by = %(revoked_by)s
WHERE namespace = %(namespace)s AND token_id = %(token_id)s AND revoked_at IS NULL
RETURNING token_id, name, scopes, roles, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at;

-- name: find_token_by_id
SELECT token_id, name, scopes, roles, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at
FROM api_token WHERE namespace = %(namespace)s AND token_id = %(token_id)s;

-- name: has_token
SELECT EXISTS (SELECT FROM api_token WHERE namespace = %(namespace)s AND revoked_at IS NULL AND expires_at > now());

-- name: insert_login_code
INSERT INTO login_code (code_hash, namespace, token_id, expires_at)
VALUES (%(code_hash)s, %(namespace)s, %(token_id)s, now() + %(lifetime)s)
RETURNING expires_at;

-- name: redeem_login_code
-- Whoever deletes the row has used the code: nobody else can.
DELETE FROM login_code WHERE code_hash = %(code_hash)s AND namespace = %(namespace)s AND expires_at > now()
RETURNING token_id;

-- name: insert_session
INSERT INTO api_session (session_hash, namespace, token_id, expires_at)
VALUES (%(session_hash)s, %(namespace)s, %(token_id)s, now() + %(lifetime)s);

-- name: delete_session
DELETE FROM api_session WHERE session_hash = %(session_hash)s;

-- name: delete_expired
WITH codes AS (DELETE FROM login_code WHERE expires_at < now())
DELETE FROM api_session WHERE expires_at < now();

-- name: insert_audit
INSERT INTO audit (audit_id, namespace, actor, token_id, act, target, reason, address, request_id)
VALUES (%(audit_id)s, %(namespace)s, %(actor)s, %(token_id)s, %(act)s, %(target)s, %(reason)s, %(address)s, %(request_id)s);

-- name: list_audit
-- Newest first, along audit_newest; a filter looks at the newest %(looked_at)s rows behind where the page begins.
SELECT audit_id, at, actor, token_id, act, target, reason, address, request_id
FROM (
  SELECT * FROM audit
  WHERE namespace = %(namespace)s AND (at, audit_id) < (%(before_at)s, %(before_id)s)
  ORDER BY at DESC, audit_id DESC LIMIT %(looked_at)s) AS looked_at
WHERE (%(actor)s::text IS NULL OR actor = %(actor)s) AND (%(act)s::text IS NULL OR act = %(act)s)
  AND (%(target)s::text IS NULL OR strpos(target, %(target)s) > 0)
ORDER BY at DESC, audit_id DESC LIMIT %(limit)s;
