-- Worker sessions and what they hold.

-- name: renew_sessions
-- $1 session ids, $2 workers, $3 queues (JSON), $4 slots, $5 held, $6 libraries, $7 seqs, $8 draining, $9 ended, $10 lease seconds.
-- Only forwards (seq), and never again after its end: a session that was given up stays so, and its worker opens another.
INSERT INTO worker_session AS s (session_id, worker, queues, slots, held, library, seq, draining, ended_at, lease, renewed_at, expires_at)
SELECT session_id, worker, ARRAY(SELECT json_array_elements_text(queues)), slots, held, library, seq, draining,
       CASE WHEN ended THEN now() END, make_interval(secs => $10), now(), now() + make_interval(secs => $10)
FROM unnest($1::uuid[], $2::text[], $3::json[], $4::int[], $5::int[], $6::text[], $7::bigint[], $8::boolean[], $9::boolean[])
  AS given (session_id, worker, queues, slots, held, library, seq, draining, ended)
ORDER BY session_id
ON CONFLICT (session_id) DO UPDATE SET worker = excluded.worker, queues = excluded.queues, slots = excluded.slots, held = excluded.held,
  seq = excluded.seq, draining = excluded.draining, ended_at = excluded.ended_at, lease = excluded.lease,
  renewed_at = excluded.renewed_at, expires_at = excluded.expires_at
WHERE s.ended_at IS NULL AND s.seq < excluded.seq
RETURNING session_id;

-- name: drop_held
-- What these sessions no longer list. $1 sessions; $2 runs, $3 tasks, $4 tokens, $5 sessions of what they do list.
DELETE FROM held_task h WHERE h.session_id = ANY($1::uuid[]) AND NOT EXISTS (
  SELECT FROM unnest($2::uuid[], $3::int[], $4::int[], $5::uuid[]) AS listed (run_id, task, token, session_id)
  WHERE listed.run_id = h.run_id AND listed.task = h.task AND listed.token = h.token AND listed.session_id = h.session_id);

-- name: list_held
-- What is listed already is written again only when its body said something new.
INSERT INTO held_task AS h (run_id, task, token, session_id, detail)
SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::uuid[], $5::json[]) AS listed (run_id, task, token, session_id, detail)
ON CONFLICT (run_id, task, token, session_id) DO UPDATE SET detail = excluded.detail
WHERE h.detail::text IS DISTINCT FROM excluded.detail::text;

-- name: raise_watermark
-- A tick was the database's own time when it was said, so one that is ahead of it now is none of ours. A mark that is ahead of it was set
-- before the clock was stepped back, and follows.
INSERT INTO watermark AS w (name, at) VALUES ($1, least(now(), to_timestamp($2::double precision / 1000000)))
ON CONFLICT (name) DO UPDATE SET at = CASE WHEN w.at > now() THEN excluded.at ELSE greatest(w.at, excluded.at) END;
