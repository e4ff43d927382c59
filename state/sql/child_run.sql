-- Children: runs that tasks of other runs ask for.

-- name: has_asked_children
SELECT EXISTS (SELECT FROM child_run WHERE status = 'asked');

-- name: claim_asked_children
-- Those that are to start, for this transaction alone, with who started their parents. $1: seconds after which one is looked at again that could not be started, or refused; $2 at
-- most. Several processes share the work.
WITH asked AS MATERIALIZED (
  SELECT run_id FROM child_run
  WHERE status = 'asked' AND (tried_at IS NULL OR tried_at < now() - make_interval(secs => $1) OR tried_at > now() + interval '10 s')
  ORDER BY asked_at LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE child_run c SET tried_at = now() FROM asked
WHERE c.run_id = asked.run_id
RETURNING c.parent_run_id, c.task, c.token, c.run_id, c.namespace, c.workflow, c.version, c.input::text, c.traceparent, c.is_awaited, c.depth,
          (SELECT h.actor FROM history h WHERE h.run_id = c.parent_run_id AND h.row_version = 1);

-- name: settle_children
-- They have started, or were refused. $1 run ids, $2 statuses, $3 errors.
UPDATE child_run c SET status = given.status, started_at = CASE given.status WHEN 'started' THEN now() END,
  ended_at = CASE given.status WHEN 'refused' THEN now() END, input = NULL, error = given.error
FROM unnest($1::uuid[], $2::text[], $3::json[]) AS given (run_id, status, error)
WHERE c.run_id = given.run_id AND c.status = 'asked';

-- name: tell_parents
-- $1 inbox ids, $2 run ids of the parents, $3 bodies.
INSERT INTO inbox (inbox_id, run_id, kind, body, actor)
SELECT inbox_id, run_id, 'child_told', body, '' FROM unnest($1::uuid[], $2::uuid[], $3::json[]) AS given (inbox_id, run_id, body);

-- name: find_parent
-- The run and the task that asked for a run; none for one that nobody's task did, or whose parent has been removed.
SELECT c.parent_run_id, p.version_id, c.task, c.token, v.name, v.version, p.status::text, c.is_awaited, c.depth
FROM child_run c JOIN run p ON p.run_id = c.parent_run_id JOIN workflow_version v ON v.version_id = p.version_id
WHERE c.run_id = %(run_id)s;

-- name: list_children
-- What tasks of a run have asked for, in the order of the graph, the last of a task last; %(limit)s behind %(after_task)s, %(after_token)s. The
-- status is that of the run, once there is one.
SELECT c.task, c.token, c.run_id, c.workflow, coalesce(v.version, c.version), coalesce(r.status::text, c.status), c.is_awaited, c.asked_at, c.started_at,
       coalesce(r.finished_at, c.ended_at), c.cancel_asked_at, c.error ->> 'message'
FROM child_run c LEFT JOIN run r ON r.run_id = c.run_id LEFT JOIN workflow_version v ON v.version_id = r.version_id
WHERE c.parent_run_id = %(run_id)s AND (c.task, c.token) > (%(after_task)s, %(after_token)s)
ORDER BY c.task, c.token LIMIT %(limit)s;
