-- Which history of itself the database is on. Postgres numbers them: a promoted standby and a restore begin another.

-- name: read_timeline
-- The last one noted (nulls: none), and whether the server is still on it. Fails with 55000 on a standby that was not promoted.
SELECT last.epoch, last.token_floor, extract(epoch FROM last.noted_at)::float8,
       coalesce(last.system_identifier = here.system_identifier AND last.number = here.number, false)
FROM (SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int AS number FROM pg_control_system()) AS here
LEFT JOIN LATERAL (SELECT * FROM timeline ORDER BY epoch DESC LIMIT 1) AS last ON true;

-- name: note_timeline
-- $1: tokens of one epoch. Of several that note it at once, one does. An epoch rises with the number, so that two standbys of which each
-- became another successor have different ones, where Postgres could tell them apart.
INSERT INTO timeline (epoch, system_identifier, number, token_floor, taken_over_until)
SELECT next.epoch, here.system_identifier, here.number, next.epoch * $1, pg_last_xact_replay_timestamp()
FROM (SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int AS number FROM pg_control_system()) AS here
LEFT JOIN LATERAL (SELECT * FROM timeline ORDER BY epoch DESC LIMIT 1) AS last ON true
CROSS JOIN LATERAL (
  SELECT CASE WHEN last.epoch IS NULL THEN 0
              WHEN last.system_identifier = here.system_identifier THEN last.epoch + greatest(here.number - last.number, 1)
              ELSE last.epoch + 1 END AS epoch) AS next
WHERE (last.system_identifier, last.number) IS DISTINCT FROM (here.system_identifier, here.number)
ON CONFLICT (epoch) DO NOTHING
RETURNING epoch, system_identifier, number, taken_over_until;
