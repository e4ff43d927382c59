-- Worker sessions, as people look at them.

-- name: find_live_worker
-- The name of the worker whose session this is, while that is live.
SELECT worker FROM worker_session WHERE session_id = %(session_id)s AND ended_at IS NULL AND expires_at > clock_timestamp();

-- name: find_worker
SELECT session_id, worker, queues, slots, held, draining, library, started_at, renewed_at, expires_at,
       ended_at IS NULL AND expires_at > clock_timestamp()
FROM worker_session WHERE session_id = %(session_id)s;

-- name: list_workers
-- Newest first: those that have not ended, and those that ended within an hour.
SELECT session_id, worker, queues, slots, held, draining, library, started_at, renewed_at, expires_at,
       ended_at IS NULL AND expires_at > clock_timestamp()
FROM worker_session
WHERE (ended_at IS NULL OR ended_at > now() - interval '1 hour') AND (started_at, session_id) < (%(before)s, %(before_id)s)
ORDER BY started_at DESC, session_id DESC LIMIT %(limit)s;
