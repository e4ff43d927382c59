-- The state store. Postgres decides: every promise of Headrace is a row here, or a transaction over rows here.
--
-- Hot rows (run, task) keep room on their page and no index on a column that changes with every step, so that every update is HOT.
-- What must be found by state lives in small tables of insert and delete (timer, held_task), in a partial index that a run enters
-- once and leaves once (run_open), or behind a run that is open. Attempts and history are append-only.
-- The machine's invariants stand again as constraints, so that a wrong writer fails loudly.
--
-- Autovacuum, by kind of table; what says nothing keeps the server's defaults, being small, or written once and read by key.
--   hot rows        run, task: fillfactor 60 leaves room for the next versions of the rows on a page, which the next update of the page cleans
--                   up without any vacuum. So a vacuum is needed for what the retention removed, and for pages that are not looked at again: at
--                   5 % of the table. No cost delay: a vacuum that falls behind costs every step, and it reads only what has changed.
--   append-only     attempt, history, run_label, trigger_event: nothing dies until the retention removes the oldest part, so by default the first 20 % of a
--                   table would stay as a hole before it is used again: 5 %. With the default delay, since nothing waits for it. Rows inserted
--                   need a vacuum only to be frozen, and that is cheapest in few large passes: whenever the table has doubled.
--   short-lived     timer, held_task, pool_waiter, pool_slot, pool_turn, run_permit, outbox: rows live for seconds, so a share of the table says nothing: after so many dead rows, at once.
--   counters        partition_owner, relay_owner, watermark, sweep_pass, engine_counter: few rows, updated for ever. A page with room for many
--                   versions of each is cleaned up by the updates themselves.
-- Statistics are renewed rarely where plans are pinned or go by key: nothing hangs on them.

CREATE TYPE task_status AS ENUM ('pending', 'queued', 'running', 'waiting', 'completed', 'failed', 'skipped', 'cancelled');
CREATE TYPE run_status AS ENUM ('running', 'waiting', 'completed', 'failed', 'cancelled', 'needs_attention', 'pausing', 'paused', 'terminated',
                               'compensating', 'compensated', 'compensation_failed', 'cancelling');

-- Raises when a write did not find what it expected. Statements of one batch travel together and commit at the Sync, so a failed
-- check must abort the transaction by itself. HR001: fenced or overtaken; forget memory, read Postgres, decide again.
CREATE FUNCTION must(ok boolean, why text) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN IF ok IS NOT TRUE THEN RAISE EXCEPTION '%', why USING ERRCODE = 'HR001'; END IF; RETURN ok; END $$;

-- The lowest UUIDv7 of an instant: run ids rise with time.
CREATE FUNCTION first_id_of(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS
$$ SELECT (lpad(to_hex(greatest(0, extract(epoch FROM at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid $$;

-- What stands at a path of a user's document, as text; null where nothing does. A document that holds an escaped U+0000 is not looked into: Postgres
-- has no text for that, so one such row would make every query over it fail.
CREATE FUNCTION text_at(document json, VARIADIC path text[]) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN strpos(document::text, '\u0000') = 0 THEN document #>> path END $$;

-- The same as a number; null for what is none that anybody would compare.
CREATE FUNCTION number_at(document json, VARIADIC path text[]) RETURNS numeric LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN found ~ '^-?[0-9]{1,100}([.][0-9]{1,100})?$' THEN found::numeric END FROM text_at(document, VARIADIC path) AS found $$;

-- Where a task stands: its version and its position there as one number, for an item that of its map, for what undoes a task that of the task.
CREATE FUNCTION spot_of(version_id int, task int) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT version_id * 10000::bigint + CASE WHEN task < 10000 THEN task WHEN task >= 200000000 THEN task - 200000000 ELSE task / 10000 - 1 END $$;

-- == definitions ===========================================================================================================
CREATE TABLE workflow (
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  latest_version int NOT NULL,
  -- How many runs of one key go at once, as the latest version says; null: as many as are started.
  runs_max int CONSTRAINT workflow_runs_count CHECK (runs_max > 0),
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT workflow_key PRIMARY KEY (namespace, name)
);

-- A workflow frozen at publish. Never updated: the same content is the same version, other content is the next.
CREATE TABLE workflow_version (
  version_id int GENERATED ALWAYS AS IDENTITY CONSTRAINT workflow_version_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  version int NOT NULL,
  digest text NOT NULL,
  definition json NOT NULL,
  published_at timestamptz NOT NULL DEFAULT now(),
  published_by text NOT NULL DEFAULT '',
  CONSTRAINT workflow_version_is_counted UNIQUE (namespace, name, version),
  CONSTRAINT workflow_version_is_its_content UNIQUE (namespace, name, digest),
  CONSTRAINT workflow_version_of_a_workflow FOREIGN KEY (namespace, name) REFERENCES workflow DEFERRABLE INITIALLY DEFERRED
);

-- == runs ==================================================================================================================
CREATE TABLE run (
  run_id uuid CONSTRAINT run_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  version_id int NOT NULL,
  status run_status NOT NULL,
  attention boolean NOT NULL DEFAULT false,
  -- What people said about it as a whole: 1 it is paused, 2 its workflow is, 4 it was terminated, 16 some of its tasks are paused, 32 it is being
  -- moved to another version; its deadline did: 8; or the limit of its workflow: 128 it waits for its permit.
  -- 64: a cancel or its deadline has ended all of it but its clean-ups.
  control int NOT NULL DEFAULT 0,
  -- Counts the events applied; every one has its row in history or attempt. Guards every write of the run (compare and set).
  row_version int NOT NULL CONSTRAINT run_version_counts CHECK (row_version > 0),
  -- In the queues of pools: a point is worth a minute of waiting.
  priority int NOT NULL DEFAULT 0 CONSTRAINT run_priority_in_range CHECK (priority BETWEEN -100 AND 100),
  input json NOT NULL,
  traceparent text,
  trigger_source text NOT NULL DEFAULT 'api',
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  -- What came out of it, or why nothing did; null for a workflow that does not say what should.
  output json,
  output_error json,
  -- Of an open run whose workflow has a deadline: when that is over.
  deadline_at timestamptz,
  -- Tasks that are paused by themselves; null for none. Exactly when `control` says so, which is written beside it.
  paused_tasks int[] CONSTRAINT run_paused_tasks_are_some CHECK (cardinality(paused_tasks) > 0),
  CONSTRAINT run_output_only_if_completed CHECK (status = 'completed' OR (output IS NULL AND output_error IS NULL)),
  CONSTRAINT run_finished_exactly_when_terminal CHECK ((finished_at IS NOT NULL) = (status IN (
    'completed', 'failed', 'cancelled', 'terminated', 'compensated', 'compensation_failed'))),
  CONSTRAINT run_attention_is_its_status CHECK (attention = (status = 'needs_attention')),
  CONSTRAINT run_paused_is_its_status CHECK ((control & 35 /* PAUSES */ > 0) = (status IN ('pausing', 'paused')) OR status = 'needs_attention'),
  CONSTRAINT run_terminated_is_its_status CHECK ((control & 4 /* TERMINATED */ > 0) = (status = 'terminated')),
  CONSTRAINT run_overdue_has_failed CHECK (control & 8 /* OVERDUE */ = 0 OR control & 128 /* AWAITS_PERMIT */ > 0 OR status NOT IN ('running', 'waiting', 'completed', 'cancelled')),
  CONSTRAINT run_that_waits_for_its_permit_has_not_ended CHECK (control & 128 /* AWAITS_PERMIT */ = 0 OR finished_at IS NULL),
  CONSTRAINT run_cancelling_is_its_status CHECK (CASE WHEN control & 64 /* CANCELLING */ > 0 THEN status NOT IN ('running', 'waiting', 'completed', 'terminated')
    ELSE status <> 'cancelling' END)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
-- Open runs: what the sweeps walk. A run enters at its start and leaves at its end.
CREATE INDEX run_open ON run (run_id) WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention');
-- Runs that are paused with their workflow: whoever is left so when nobody pauses that any more is found here.
CREATE INDEX run_paused_with_workflow ON run (run_id) WHERE control & 2 /* WORKFLOW_PAUSED */ > 0;
-- What went wrong lately, which is rare among millions.
CREATE INDEX run_ended_badly ON run (run_id) WHERE status IN ('failed', 'cancelled', 'terminated', 'compensated', 'compensation_failed');
-- Lists, newest first: run ids are UUIDv7 and rise with time.
CREATE INDEX run_of_a_version ON run (version_id, run_id DESC);

-- What whoever started a run calls it. A row a label and not a document of the run, so that the newest runs of one value are found in their order,
-- however many there are; a run without labels has no row.
CREATE TABLE run_label (
  run_id uuid NOT NULL,
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  value text NOT NULL,
  CONSTRAINT run_label_key PRIMARY KEY (run_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 1.0, autovacuum_analyze_scale_factor = 0.5);
CREATE INDEX run_label_of_a_value ON run_label (namespace, name, value, run_id DESC);

-- Exactly one run for one trigger identity, for ever: a start, a record, a tick that comes twice gets the same run, also when the retention
-- has removed that since.
CREATE TABLE trigger_key (
  namespace text NOT NULL,
  key text NOT NULL,
  run_id uuid NOT NULL,
  digest bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT trigger_key_key PRIMARY KEY (namespace, key)
);

-- A task from its first hand-out on; before that it is PENDING, follows from the graph and has no row. `task` is its position in the graph, here
-- and wherever a task is named; an item of a map is a task with the number (task + 1) * 10000 + item, so the graph's own are below 10000;
-- what undoes a task has the number 200000000 + task, and a row from when its run begins to undo what it did.
CREATE TABLE task (
  run_id uuid NOT NULL,
  task int NOT NULL,
  status task_status NOT NULL,
  attempt int NOT NULL DEFAULT 0 CONSTRAINT task_attempt_counts CHECK (attempt >= 0),
  token int NOT NULL DEFAULT 0 CONSTRAINT task_token_counts CHECK (token >= 0),
  retries_from int NOT NULL DEFAULT 0,
  session_id uuid,
  -- Which lookup this is since an ambiguous end; 0 when none is under way.
  lookups int NOT NULL DEFAULT 0 CONSTRAINT task_lookups_count CHECK (lookups >= 0),
  -- Hand-outs in a row of which nothing was heard.
  vanished int NOT NULL DEFAULT 0 CONSTRAINT task_vanished_counts CHECK (vanished >= 0),
  -- From where it goes on when the pause of its run ends, or, an item, when its map has room; null: nothing is withheld.
  withheld text CONSTRAINT task_withheld_known CHECK (withheld IN ('turn', 'again', 'body', 'room')),
  due_at timestamptz,
  changed_at timestamptz NOT NULL DEFAULT now(),
  input json,
  output json,
  error json,
  -- Of a map whose list is known (that is its input): how many items there are, have begun, completed and failed. For people and for the doctor;
  -- whoever decides counts the items' own states.
  items int,
  items_begun int,
  items_completed int,
  items_failed int,
  -- Whose slot it waits for, while waiting, or holds.
  pool text,
  -- Of an open task that has a deadline: when that is over, whatever is under way then.
  deadline_at timestamptz,
  -- Of a repeat: rounds that have ended. While it goes on, `output` is what came out of the last one, where its input reads that.
  rounds int NOT NULL DEFAULT 0 CONSTRAINT task_rounds_count CHECK (rounds >= 0),
  -- Of a task that had completed and was rerun: what its compensation is given, as the task stood then. It counts unless it completes again.
  undo json,
  CONSTRAINT task_key PRIMARY KEY (run_id, task),
  CONSTRAINT task_items_add_up CHECK (items_begun <= items AND items_completed + items_failed <= items_begun),
  -- An attempt is a hand-out whose body began.
  CONSTRAINT task_attempts_within_tokens CHECK (attempt <= token),
  CONSTRAINT task_open_has_a_token CHECK (status NOT IN ('queued', 'running', 'waiting') OR token > 0),
  CONSTRAINT task_holder_only_while_running CHECK (session_id IS NULL OR status = 'running'),
  CONSTRAINT task_looked_up_only_while_open CHECK (lookups = 0 OR status IN ('pending', 'queued', 'running')),
  CONSTRAINT task_withheld_only_while_pending CHECK (withheld IS NULL OR (status = 'pending' AND due_at IS NULL)),
  CONSTRAINT task_pool_only_while_open CHECK (pool IS NULL OR status IN ('waiting', 'queued', 'running')),
  CONSTRAINT task_timer_only_while_it_counts CHECK (due_at IS NULL OR status IN ('pending', 'queued', 'running', 'waiting'))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);

-- One row per attempt that ended. Append-only.
CREATE TABLE attempt (
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  attempt int NOT NULL CONSTRAINT attempt_counts CHECK (attempt > 0 AND attempt <= token),
  outcome text NOT NULL CONSTRAINT attempt_outcome_known CHECK (outcome IN ('completed', 'failed', 'lost', 'cancelled', 'returned')),
  row_version int NOT NULL,
  worker text NOT NULL,
  started_at timestamptz,
  finished_at timestamptz,
  ended_at timestamptz NOT NULL,
  output json,
  error json,
  -- Of a repeat, from 0.
  round int,
  CONSTRAINT attempt_key PRIMARY KEY (run_id, task, token),
  CONSTRAINT attempt_output_only_if_completed CHECK (output IS NULL OR outcome = 'completed')
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 1.0, autovacuum_analyze_scale_factor = 0.5);

-- What moved a run without ending an attempt: start, hand-out again, timer, decision, cancel, replay. Append-only.
CREATE TABLE history (
  run_id uuid NOT NULL,
  row_version int NOT NULL,
  at timestamptz NOT NULL,
  kind text NOT NULL,
  task int,
  token int,
  actor text,
  detail json,
  CONSTRAINT history_key PRIMARY KEY (run_id, row_version)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 1.0, autovacuum_analyze_scale_factor = 0.5);

CREATE VIEW attempt_event AS
  SELECT run_id, row_version, ended_at AS at, 'attempt_' || outcome AS kind, task, token, worker AS actor,
         json_build_object('attempt', attempt, 'started_at', started_at, 'finished_at', finished_at, 'error', error) AS detail
  FROM attempt;

-- The gap-free list of all that ever moved a run: 1..row_version.
-- A cancel ends several attempts under one row_version, which its own history row stands for.
CREATE VIEW run_event AS
  SELECT run_id, row_version, at, kind, task, token, actor, detail FROM history
  UNION ALL
  SELECT run_id, row_version, at, kind, task, token, actor, detail FROM attempt_event;

-- == what waits ============================================================================================================
-- A task has one timer at a time, of its present hand-out, and beside it a deadline over all its hand-outs, under token 0. Task -1 is the run.
CREATE TABLE timer (
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  kind text NOT NULL,
  due_at timestamptz NOT NULL,
  -- When a sweep said so last; said again after a while, until the run agent has taken the row away.
  said_at timestamptz,
  is_deadline boolean NOT NULL DEFAULT false,
  CONSTRAINT timer_key PRIMARY KEY (run_id, task, is_deadline),
  CONSTRAINT timer_deadline_of_no_hand_out CHECK (is_deadline = (token = 0) AND is_deadline = (kind = 'deadline'))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX timer_due ON timer (due_at);

-- Requests from outside, stored with the answer they were given, before the run agent applies them. `Requested` names a row.
CREATE TABLE inbox (
  inbox_id uuid CONSTRAINT inbox_key PRIMARY KEY,
  run_id uuid NOT NULL,
  kind text NOT NULL CONSTRAINT inbox_kind_known CHECK (kind IN ('cancelled', 'decided', 'replayed', 'resolved', 'released', 'signalled',
                                                             'terminated', 'paused', 'resumed', 'supplied', 'reran',
                                                             'migrated', 'prioritised', 'child_told', 'permitted')),
  body json NOT NULL,
  actor text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  said_at timestamptz NOT NULL DEFAULT now(),
  applied_at timestamptz
);
CREATE INDEX inbox_unapplied ON inbox (created_at) WHERE applied_at IS NULL;
CREATE INDEX inbox_of_a_run ON inbox (run_id) WHERE applied_at IS NULL;

-- What was told to whoever waits for a name and a key: kept until it expires. It is offered to waits as rows of `signal`.
CREATE TABLE posted_signal (
  posted_id uuid CONSTRAINT posted_signal_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  key text NOT NULL,
  data json NOT NULL,
  -- The sender's own name for it: posted twice, it is one signal, for as long as it is remembered.
  sender_id text,
  actor text NOT NULL DEFAULT '',
  sent_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  -- The row of `signal` as which a task with `delivery: first` took it; it stays when that leaves with its run.
  taken_as uuid,
  CONSTRAINT posted_signal_of_its_sender UNIQUE (namespace, sender_id)
);
CREATE INDEX posted_signal_of_a_key ON posted_signal (namespace, name, key, sent_at, posted_id);
CREATE INDEX posted_signal_newest ON posted_signal (namespace, sent_at DESC, posted_id DESC);
CREATE INDEX posted_signal_age ON posted_signal (expires_at);

-- What was told to a run from outside: stored before it is matched, under the id of its row in `inbox`. It leaves 'sent' when its run takes
-- note of it: a task takes it, or the run keeps it until one does. Refused: the run had ended when it came.
CREATE TABLE signal (
  signal_id uuid CONSTRAINT signal_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  run_id uuid NOT NULL,
  name text NOT NULL,
  -- Only for a task that waits for this key; null: for any that waits for the name.
  key text,
  data json NOT NULL,
  -- The sender's own name for it: sent twice, it is one signal.
  sender_id text,
  actor text NOT NULL DEFAULT '',
  sent_at timestamptz NOT NULL DEFAULT now(),
  status text NOT NULL DEFAULT 'sent' CONSTRAINT signal_status_known CHECK (status IN ('sent', 'kept', 'taken', 'refused')),
  -- Who took it, and by which move of the run.
  task int,
  token int,
  row_version int,
  settled_at timestamptz,
  reason text,
  -- Of one that was posted: which, whether it is for nobody else meanwhile, and the wait that it is offered to.
  posted_id uuid,
  is_exclusive boolean NOT NULL DEFAULT false,
  offered_task int,
  offered_token int,
  CONSTRAINT signal_posted_is_offered CHECK ((posted_id IS NULL) = (offered_task IS NULL OR offered_token IS NULL)),
  CONSTRAINT signal_offered_is_not_kept CHECK (posted_id IS NULL OR status <> 'kept'),
  CONSTRAINT signal_taken_by_a_task CHECK ((status = 'taken') = (task IS NOT NULL AND token IS NOT NULL AND row_version IS NOT NULL)),
  CONSTRAINT signal_refused_for_a_reason CHECK ((status = 'refused') = (reason IS NOT NULL)),
  CONSTRAINT signal_settled_once CHECK ((settled_at IS NOT NULL) = (status IN ('taken', 'refused')))
);
CREATE INDEX signal_of_a_run ON signal (run_id, sent_at, signal_id);
CREATE UNIQUE INDEX signal_of_its_sender ON signal (run_id, sender_id) WHERE sender_id IS NOT NULL;
CREATE UNIQUE INDEX signal_completes_one_task ON signal (run_id, task, token) WHERE status = 'taken';

-- A posted signal is with one wait at a time where it is for one only, and comes to each other one once.
CREATE UNIQUE INDEX signal_is_for_the_first ON signal (posted_id) WHERE is_exclusive AND status IN ('sent', 'taken');
CREATE UNIQUE INDEX signal_comes_once ON signal (posted_id, run_id, offered_task, offered_token) WHERE posted_id IS NOT NULL;

-- A task that waits for a signal. The task is WAITING, and its input is the key.
CREATE TABLE signal_wait (
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  key text,
  -- first: it takes a posted signal, and nobody else of `first` gets that; all: it hears it, as all others of `all` do.
  delivery text NOT NULL DEFAULT 'first' CONSTRAINT signal_wait_delivery_known CHECK (delivery IN ('first', 'all')),
  began_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT signal_wait_key PRIMARY KEY (run_id, task)
);
CREATE INDEX signal_wait_of_a_key ON signal_wait (namespace, name, key, began_at) WHERE key IS NOT NULL;

-- == pools ==========================================================================================================
-- A named limit on how many tasks run at once, and on how many begin in some time.
CREATE TABLE pool (
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  -- Slots; null: as many as are asked for.
  slots_max int CONSTRAINT pool_slots_count CHECK (slots_max >= 0),
  -- So many hand-outs in so many seconds; null: it makes no difference how many.
  rate_count int,
  rate_seconds double precision,
  -- Hand-outs that the rate allowed at that instant, `rate_count` at most: more of them come as time passes.
  allowance double precision NOT NULL DEFAULT 0,
  allowed_at timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  updated_by text NOT NULL DEFAULT '',
  CONSTRAINT pool_key PRIMARY KEY (namespace, name),
  CONSTRAINT pool_limits_something CHECK (slots_max IS NOT NULL OR rate_count IS NOT NULL),
  CONSTRAINT pool_rate_is_whole CHECK ((rate_count IS NULL) = (rate_seconds IS NULL) AND rate_count > 0 AND rate_seconds > 0)
) WITH (fillfactor = 50);

-- A task that waits for a slot, until the run agent has taken note that it has one. The task is WAITING under this token.
CREATE TABLE pool_waiter (
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  namespace text NOT NULL DEFAULT 'default',
  pool text NOT NULL,
  -- Between whom the slots go in turns; empty: with all others that have none.
  fairness_key text COLLATE "C" NOT NULL DEFAULT '',
  began_at timestamptz NOT NULL DEFAULT now(),
  -- Its place in the queue of its key: when it began, and a minute earlier for each point of its run's priority. So it does not change as time passes,
  -- and whoever waits long enough is next.
  ranked_at timestamptz NOT NULL,
  -- It has its slot since then; said, and said again until this row is gone.
  granted_at timestamptz,
  said_at timestamptz,
  CONSTRAINT pool_waiter_key PRIMARY KEY (run_id, task),
  CONSTRAINT pool_waiter_told_once_granted CHECK ((granted_at IS NULL) = (said_at IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX pool_waiter_next ON pool_waiter (namespace, pool, fairness_key, ranked_at, run_id, task) WHERE granted_at IS NULL;
CREATE INDEX pool_waiter_told ON pool_waiter (said_at) WHERE granted_at IS NOT NULL;

-- A slot with its holder: this hand-out of this task, from when it is granted until it ends. Only whoever has locked the pool adds one.
CREATE TABLE pool_slot (
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  namespace text NOT NULL DEFAULT 'default',
  pool text NOT NULL,
  fairness_key text COLLATE "C" NOT NULL DEFAULT '',
  granted_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT pool_slot_key PRIMARY KEY (run_id, task)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX pool_slot_of_a_pool ON pool_slot (namespace, pool, granted_at);

-- Since when a fairness key that is waited for has had no turn: since it was granted a slot, or was first seen waiting. Only whoever has locked the
-- pool writes here. Never of a pool where nobody has a key.
CREATE TABLE pool_turn (
  namespace text NOT NULL,
  pool text NOT NULL,
  fairness_key text COLLATE "C" NOT NULL,
  turned_at timestamptz NOT NULL,
  CONSTRAINT pool_turn_key PRIMARY KEY (namespace, pool, fairness_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Hand-outs that the rate of a pool allows now; null: it has none. By the database's clock.
CREATE FUNCTION allowance_of(p pool) RETURNS double precision LANGUAGE sql STABLE AS $$
  SELECT least(p.rate_count, p.allowance + p.rate_count / p.rate_seconds * greatest(0, extract(epoch FROM now() - p.allowed_at)::float8))
$$;

-- The keys that somebody waits for in a pool, in the order of their turns: who holds fewest slots is next, then whose turn was longest ago. One probe of
-- an index for each key, however many wait for it. Where only one waits its slots are not counted. `is_known`: its turn stands in `pool_turn`; one that
-- a clock which was stepped back has put ahead is forgotten.
CREATE FUNCTION pool_keys(of_namespace text, of_pool text)
RETURNS TABLE (fairness_key text, place bigint, held bigint, turned_at timestamptz, is_known boolean, is_shared boolean) LANGUAGE sql STABLE AS $$
  WITH RECURSIVE waiting AS (
    (SELECT w.fairness_key, w.ranked_at, w.began_at FROM pool_waiter w
     WHERE w.namespace = of_namespace AND w.pool = of_pool AND w.granted_at IS NULL
     ORDER BY w.fairness_key, w.ranked_at, w.run_id, w.task LIMIT 1)
    UNION ALL
    SELECT next.* FROM waiting k CROSS JOIN LATERAL (
      SELECT w.fairness_key, w.ranked_at, w.began_at FROM pool_waiter w
      WHERE w.namespace = of_namespace AND w.pool = of_pool AND w.granted_at IS NULL AND w.fairness_key > k.fairness_key
      ORDER BY w.fairness_key, w.ranked_at, w.run_id, w.task LIMIT 1) next),
  held AS (
    SELECT s.fairness_key, count(*) AS slots FROM pool_slot s
    WHERE s.namespace = of_namespace AND s.pool = of_pool AND (SELECT count(*) > 1 FROM waiting) GROUP BY s.fairness_key),
  known AS (
    SELECT t.fairness_key, t.turned_at FROM pool_turn t
    WHERE t.namespace = of_namespace AND t.pool = of_pool AND t.turned_at <= now() + interval '10 s'),
  keys AS (
    SELECT k.fairness_key, k.ranked_at, coalesce(h.slots, 0) AS held, coalesce(t.turned_at, least(k.began_at, now())) AS turned_at,
           t.turned_at IS NOT NULL AS is_known, k.fairness_key <> '' OR count(*) OVER () > 1 AS is_shared
    FROM waiting k LEFT JOIN held h ON h.fairness_key = k.fairness_key LEFT JOIN known t ON t.fairness_key = k.fairness_key)
  SELECT k.fairness_key, row_number() OVER (ORDER BY k.held, k.turned_at, k.ranked_at, k.fairness_key), k.held, k.turned_at, k.is_known, k.is_shared
  FROM keys k
$$;

-- == limits ==========================================================================================================
-- What a run of a workflow with a limit needs to begin: it waits for it, or has it, and the row leaves with its end. Only whoever has locked the key
-- (`lock_permits`) grants one.
CREATE TABLE run_permit (
  run_id uuid CONSTRAINT run_permit_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  workflow text NOT NULL,
  -- Which runs count together; empty: all of the workflow.
  key text NOT NULL,
  asked_at timestamptz NOT NULL,
  -- Its place in the queue, as in those of pools.
  ranked_at timestamptz NOT NULL,
  granted_at timestamptz,
  -- The run for which this one was asked to end.
  replaced_by uuid
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX run_permit_next ON run_permit (namespace, workflow, key, ranked_at, run_id) WHERE granted_at IS NULL;
CREATE INDEX run_permit_held ON run_permit (namespace, workflow, key, granted_at) WHERE granted_at IS NOT NULL;

-- == children ==========================================================================================================
-- A run that a task of another run asks for: its child. The row is all that the two know of each other, and neither writes to the other: the parent
-- asks and cancels here, in its own transaction; a sweep starts the run or refuses to; and the transaction that ends the child says so here, and in
-- the inbox of the parent. The run's id is given with the request, so that however often its start is tried, it is one run.
CREATE TABLE child_run (
  parent_run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  run_id uuid NOT NULL,
  namespace text NOT NULL DEFAULT 'default',
  workflow text NOT NULL,
  -- Null: the latest when it starts.
  version int,
  -- Until it has started; then it is the run's.
  input json,
  traceparent text,
  -- Whether the task ends with it. The end of one that nobody waits for is not noted here: it stays 'started'.
  is_awaited boolean NOT NULL,
  -- How many runs stand above it, each started by the one before.
  depth int NOT NULL CONSTRAINT child_run_depth_counts CHECK (depth > 0),
  status text NOT NULL DEFAULT 'asked'
    CONSTRAINT child_run_status_known CHECK (status IN (
      'asked', 'started', 'refused', 'completed', 'failed', 'cancelled', 'terminated', 'compensated', 'compensation_failed')),
  asked_at timestamptz NOT NULL DEFAULT now(),
  tried_at timestamptz,
  started_at timestamptz,
  -- When its parent stopped waiting for it, and asked it to end.
  cancel_asked_at timestamptz,
  ended_at timestamptz,
  -- Why it was refused.
  error json,
  CONSTRAINT child_run_key PRIMARY KEY (parent_run_id, task, token),
  CONSTRAINT child_run_of_one_request UNIQUE (run_id),
  CONSTRAINT child_run_is_another CHECK (run_id <> parent_run_id),
  CONSTRAINT child_run_input_until_it_starts CHECK (status <> 'asked' OR input IS NOT NULL),
  CONSTRAINT child_run_ended_exactly_when_over CHECK ((ended_at IS NULL) = (status IN ('asked', 'started'))),
  CONSTRAINT child_run_refused_for_a_reason CHECK ((error IS NOT NULL) = (status = 'refused'))
);
CREATE INDEX child_run_asked ON child_run (asked_at) WHERE status = 'asked';

CREATE TABLE approval (
  approval_id uuid CONSTRAINT approval_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  title text NOT NULL,
  -- Names, and roles as `role:finance`; an escalation adds to them. None: whoever may approve at all.
  approvers json NOT NULL,
  on_expiry text NOT NULL,
  status text NOT NULL DEFAULT 'waiting'
    CONSTRAINT approval_status_known CHECK (status IN ('waiting', 'approved', 'rejected', 'expired', 'cancelled')),
  asked_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz,
  decided_at timestamptz,
  decided_by text,
  comment text,
  -- What people are shown besides the title, as it was rendered, and the JSON Schema of the answer. `digest`: sha256 of the three, in hex.
  context json,
  form json,
  digest text NOT NULL DEFAULT '',
  needed int NOT NULL DEFAULT 1 CONSTRAINT approval_needed_positive CHECK (needed > 0),
  no_self_approval boolean NOT NULL DEFAULT false,
  expires_seconds int,
  -- What the last vote filled in.
  answer json,
  CONSTRAINT approval_of_one_hand_out UNIQUE (run_id, task, token),
  CONSTRAINT approval_decided_exactly_once CHECK ((decided_at IS NULL) = (status = 'waiting'))
);
CREATE INDEX approval_waiting ON approval (namespace, asked_at) WHERE status = 'waiting';
CREATE INDEX approval_expiring ON approval (expires_at) WHERE status = 'waiting' AND expires_at IS NOT NULL;

-- Who said what. Written under the lock of the question, which is decided by the vote that completes it. A person has one vote, and so
-- has everybody who is stood in for.
CREATE TABLE approval_vote (
  approval_id uuid NOT NULL,
  actor text NOT NULL,
  -- Whose vote it is: the actor's own, or that of the person in whose place it was given.
  voter text NOT NULL,
  role text,
  in_place_of text,
  decision text NOT NULL CONSTRAINT approval_vote_decision_known CHECK (decision IN ('approve', 'reject')),
  comment text,
  form json,
  -- Of what was shown.
  digest text NOT NULL,
  source text NOT NULL CONSTRAINT approval_vote_source_known CHECK (source IN ('api', 'cli', 'console', 'link')),
  address text NOT NULL DEFAULT '',
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT approval_vote_key PRIMARY KEY (approval_id, actor),
  CONSTRAINT approval_vote_counts_once UNIQUE (approval_id, voter)
);

-- The votes of a question as they travel with its outcome: a list in their order.
CREATE FUNCTION votes_of(question uuid) RETURNS json LANGUAGE sql STABLE AS $$
  SELECT coalesce(json_agg(json_build_object('by', actor, 'role', role, 'in_place_of', in_place_of, 'decision', decision, 'comment', comment,
                                             'at', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) ORDER BY at, actor), '[]')
  FROM approval_vote WHERE approval_id = question
$$;

-- When to remind, and whom to ask besides, of a question that is open. Each fires once; a step of the chain without `due_at` when the
-- question expires.
CREATE TABLE approval_timer (
  approval_id uuid NOT NULL,
  kind text NOT NULL CONSTRAINT approval_timer_kind_known CHECK (kind IN ('remind', 'escalate')),
  position int NOT NULL,
  targets json,
  due_at timestamptz,
  fired_at timestamptz,
  CONSTRAINT approval_timer_key PRIMARY KEY (approval_id, kind, position),
  CONSTRAINT approval_timer_asks_somebody CHECK ((kind = 'escalate') = (targets IS NOT NULL)),
  CONSTRAINT approval_timer_reminds_on_time CHECK (kind = 'escalate' OR due_at IS NOT NULL)
);
CREATE INDEX approval_timer_due ON approval_timer (due_at) WHERE fired_at IS NULL AND due_at IS NOT NULL;

-- What else happened to a question. Nothing is ever changed here.
CREATE TABLE approval_history (
  approval_id uuid NOT NULL,
  entry bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT approval_history_key PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  kind text NOT NULL CONSTRAINT approval_history_kind_known CHECK (kind IN ('commented', 'reminded', 'escalated', 'linked')),
  actor text NOT NULL DEFAULT '',
  detail json
);
CREATE INDEX approval_history_of_one ON approval_history (approval_id, entry);

-- Somebody may decide in place of an approver, for a while.
CREATE TABLE delegation (
  delegation_id uuid CONSTRAINT delegation_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  from_name text NOT NULL,
  to_name text NOT NULL,
  starts_at timestamptz NOT NULL,
  ends_at timestamptz NOT NULL,
  reason text NOT NULL DEFAULT '',
  made_by text NOT NULL DEFAULT '',
  made_at timestamptz NOT NULL DEFAULT now(),
  ended_by text,
  CONSTRAINT delegation_of_some_length CHECK (ends_at > starts_at OR ended_by IS NOT NULL),
  CONSTRAINT delegation_to_another CHECK (from_name <> to_name)
);
CREATE INDEX delegation_to ON delegation (namespace, to_name, ends_at);

-- A signed address at which one person decides one question, once.
CREATE TABLE approval_link (
  link_id uuid CONSTRAINT approval_link_key PRIMARY KEY,
  approval_id uuid NOT NULL,
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  role text,
  made_by text NOT NULL DEFAULT '',
  made_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  used_at timestamptz
);
CREATE INDEX approval_link_of_one ON approval_link (approval_id);

-- Keys that the engine makes for itself, once.
CREATE TABLE engine_key (
  name text CONSTRAINT engine_key_key PRIMARY KEY,
  key bytea NOT NULL
);

-- A task whose attempt may have had its effect, and that waits for a person to say so. The task is WAITING, and its error says why.
CREATE TABLE parked_task (
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  namespace text NOT NULL DEFAULT 'default',
  parked_at timestamptz NOT NULL DEFAULT now(),
  error json NOT NULL,
  -- The first answer is the one that counts; applied by the run agent, which takes the row away.
  resolved_at timestamptz,
  resolved_by text,
  CONSTRAINT parked_task_key PRIMARY KEY (run_id, task)
);
CREATE INDEX parked_task_newest ON parked_task (namespace, parked_at DESC);

-- A failed task or an undecodable record, set aside with its reason and context. It leaves 'parked' once.
CREATE TABLE dead_letter (
  dead_letter_id uuid CONSTRAINT dead_letter_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  kind text NOT NULL CONSTRAINT dead_letter_kind_known CHECK (kind IN ('task', 'record')),
  status text NOT NULL DEFAULT 'parked' CONSTRAINT dead_letter_status_known CHECK (status IN ('parked', 'replayed', 'discarded')),
  run_id uuid,
  task int,
  token int,
  topic text,
  partition int,
  "offset" bigint,
  key bytea,
  value bytea,
  headers json,
  reason text NOT NULL,
  error json,
  created_at timestamptz NOT NULL DEFAULT now(),
  closed_at timestamptz,
  closed_by text,
  close_reason text,
  -- Beside `error`, so that no filter has to look into JSON of a user: a U+0000 in it would make every such query fail.
  code text NOT NULL DEFAULT '',
  message text NOT NULL DEFAULT '',
  workflow text,
  version int,
  task_name text,
  -- The same for letters of one cause; '' when nobody computed it.
  fingerprint text NOT NULL DEFAULT '',
  -- The letter whose replay ended here.
  replay_of uuid,
  -- Of a replayed task: the first hand-out of its replay.
  replay_token int,
  -- Of a replayed record: SHA-256 of what was published, and where its log ended once it surely was in it.
  replay_digest bytea,
  replay_end bigint,
  CONSTRAINT dead_letter_closed_exactly_once CHECK ((closed_at IS NULL) = (status = 'parked')),
  CONSTRAINT dead_letter_task_names_one CHECK (kind <> 'task' OR (run_id IS NOT NULL AND task IS NOT NULL AND token IS NOT NULL)),
  CONSTRAINT dead_letter_record_names_one CHECK (kind <> 'record' OR (topic IS NOT NULL AND partition IS NOT NULL AND "offset" IS NOT NULL)),
  CONSTRAINT dead_letter_replay_token_rises CHECK (replay_token IS NULL OR (status = 'replayed' AND replay_token > token)),
  CONSTRAINT dead_letter_of_one_hand_out UNIQUE (run_id, task, token)
);
CREATE INDEX dead_letter_newest ON dead_letter (namespace, status, created_at DESC, dead_letter_id DESC);
CREATE INDEX dead_letter_of_a_group ON dead_letter (namespace, fingerprint, status, created_at DESC);
CREATE INDEX dead_letter_after_a_replay ON dead_letter (replay_of) WHERE replay_of IS NOT NULL;
CREATE INDEX dead_letter_replayed_record ON dead_letter (topic, replay_digest) WHERE replay_digest IS NOT NULL;
CREATE INDEX dead_letter_replay_unread ON dead_letter (closed_at) WHERE replay_digest IS NOT NULL AND replay_end IS NULL;

-- One act on many: on dead letters (replay) or on runs (all others), at a rate. What it acts on is frozen when it is asked for; a sweep carries
-- it out.
CREATE TABLE bulk (
  bulk_id uuid CONSTRAINT bulk_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  act text NOT NULL CONSTRAINT bulk_act_known
    CHECK (act IN ('replay', 'cancel', 'terminate', 'pause', 'resume', 'release', 'rerun', 'migrate', 'move')),
  -- Its text; empty: its items were named one by one.
  filter text NOT NULL,
  reason text NOT NULL DEFAULT '',
  rate double precision NOT NULL CONSTRAINT bulk_rate_is_positive CHECK (rate > 0),
  selected int NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  created_by text NOT NULL,
  -- When the rate allows the next one.
  next_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  stopped_by text,
  -- Of a move, runs that it has paused are let go first.
  CONSTRAINT bulk_stopped_is_finished CHECK (stopped_by IS NULL OR finished_at IS NOT NULL OR act = 'move')
);
CREATE INDEX bulk_open ON bulk (next_at) WHERE finished_at IS NULL;
CREATE INDEX bulk_newest ON bulk (namespace, created_at DESC, bulk_id DESC);

CREATE TABLE bulk_item (
  bulk_id uuid NOT NULL,
  position int NOT NULL,
  act text NOT NULL,
  -- A dead letter or a run.
  item_id uuid NOT NULL,
  -- done: it was asked for; refused: it could not be, as it stood at its turn; gone: it was not there any more; stopped: before its turn.
  outcome text CONSTRAINT bulk_item_outcome_known CHECK (outcome IN ('done', 'refused', 'gone', 'stopped')),
  reason text,
  -- What was asked of a run, and of which row_version: what became of it later is told from there.
  inbox_id uuid,
  row_version int,
  done_at timestamptz,
  -- Of a run that is moved: when it was asked to pause for that, and when somebody looked last whether it has.
  asked_at timestamptz,
  looked_at timestamptz,
  CONSTRAINT bulk_item_key PRIMARY KEY (bulk_id, position),
  CONSTRAINT bulk_item_done_exactly_once CHECK ((done_at IS NULL) = (outcome IS NULL)),
  CONSTRAINT bulk_item_asked_only_if_done CHECK (inbox_id IS NULL OR outcome = 'done')
);
CREATE INDEX bulk_item_left ON bulk_item (bulk_id, position) WHERE outcome IS NULL;
-- Of two operators who ask the same of one at once, one gets it.
CREATE UNIQUE INDEX bulk_item_waits_in_one ON bulk_item (act, item_id) WHERE outcome IS NULL;

-- Workflows that people have paused, with all runs of them, those of the future, too. A sweep brings each run into line. The row stays for a while
-- after the resume: a run that was started meanwhile may only then be seen.
CREATE TABLE workflow_pause (
  namespace text NOT NULL DEFAULT 'default',
  workflow text NOT NULL,
  reason text NOT NULL DEFAULT '',
  paused_at timestamptz NOT NULL DEFAULT now(),
  paused_by text NOT NULL,
  resumed_at timestamptz,
  resumed_by text,
  resume_reason text NOT NULL DEFAULT '',
  CONSTRAINT workflow_pause_key PRIMARY KEY (namespace, workflow),
  CONSTRAINT workflow_pause_resumed_by_somebody CHECK ((resumed_at IS NULL) = (resumed_by IS NULL))
);

-- Queues that people have paused: hand-outs to them are decided as ever, and their commands are kept back here.
CREATE TABLE queue_pause (
  queue text CONSTRAINT queue_pause_key PRIMARY KEY,
  reason text NOT NULL DEFAULT '',
  paused_at timestamptz NOT NULL DEFAULT now(),
  paused_by text NOT NULL
);

-- Commands that were kept back, the last one of each task. What is released stays until its task has moved on: nobody calls it lost before.
CREATE TABLE held_command (
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  queue text NOT NULL,
  partition int NOT NULL,
  value json NOT NULL,
  traceparent text,
  held_at timestamptz NOT NULL DEFAULT now(),
  released_at timestamptz,
  CONSTRAINT held_command_key PRIMARY KEY (run_id, task)
);
CREATE INDEX held_command_of_a_queue ON held_command (queue, held_at) WHERE released_at IS NULL;
CREATE INDEX held_command_released ON held_command (released_at) WHERE released_at IS NOT NULL;

-- == who works =============================================================================================================
CREATE TABLE worker_session (
  session_id uuid CONSTRAINT worker_session_key PRIMARY KEY,
  worker text NOT NULL,
  queues text[] NOT NULL,
  slots int NOT NULL,
  held int NOT NULL DEFAULT 0,
  library text NOT NULL DEFAULT '',
  seq bigint NOT NULL,
  lease interval NOT NULL,
  draining boolean NOT NULL DEFAULT false,
  started_at timestamptz NOT NULL DEFAULT now(),
  -- When the last heartbeat was *appended* to the log, and when the session's lease runs out by it.
  renewed_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  ended_at timestamptz
);
CREATE INDEX worker_session_live ON worker_session (expires_at) WHERE ended_at IS NULL;

-- What live sessions listed in their last heartbeat.
CREATE TABLE held_task (
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  session_id uuid NOT NULL,
  -- What the body last said about its progress.
  detail json,
  CONSTRAINT held_task_key PRIMARY KEY (run_id, task, token, session_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX held_task_of_a_session ON held_task (session_id);

-- == what bodies log ======================================================================================================
-- The newest HEADRACE_LOG_LINES_MAX lines of all runs; a line that comes twice is told by its number within its hand-out.
CREATE TABLE log_line (
  line_id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT log_line_key PRIMARY KEY,
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  seq int NOT NULL,
  attempt int NOT NULL,
  -- By the clock of its worker.
  at timestamptz NOT NULL,
  level smallint NOT NULL,
  worker text NOT NULL,
  logger text NOT NULL,
  message text NOT NULL,
  fields json,
  CONSTRAINT log_line_once UNIQUE (run_id, task, token, seq)
);
CREATE INDEX log_line_of_a_run ON log_line (run_id, line_id);

-- == the streams ===========================================================================================================
-- Who may write for a partition (epoch), what has been applied (next_offset), and in which log (topic_id).
CREATE TABLE partition_owner (
  topic text NOT NULL,
  partition int NOT NULL,
  epoch bigint NOT NULL,
  next_offset bigint,
  topic_id text NOT NULL,
  owner text NOT NULL,
  taken_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT partition_owner_key PRIMARY KEY (topic, partition)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- What became of a replay follows from what is known now: another letter of it, the task that it moved, or how far the partition of its
-- record has been read.
CREATE VIEW replay_outcome AS
  SELECT d.dead_letter_id, n.dead_letter_id AS replayed_as,
         CASE WHEN n.dead_letter_id IS NOT NULL THEN 'failed_again'
              WHEN d.kind = 'record' AND d.replay_end IS NULL THEN 'pending'
              WHEN d.kind = 'record' THEN CASE WHEN coalesce(o.next_offset, d.replay_end) >= d.replay_end THEN 'completed' ELSE 'pending' END
              WHEN t.token > d.token AND t.status = 'completed' THEN 'completed'
              WHEN t.token > d.token AND t.status = 'failed' THEN 'failed_again'
              WHEN t.status = 'cancelled' OR r.status = 'cancelled' OR c.overtook THEN 'cancelled'
              ELSE 'pending' END AS outcome
  FROM dead_letter d
  LEFT JOIN run r ON d.kind = 'task' AND r.run_id = d.run_id
  LEFT JOIN task t ON t.run_id = d.run_id AND t.task = d.task
  LEFT JOIN partition_owner o ON o.topic = d.topic AND o.partition = d.partition
  LEFT JOIN LATERAL (
    SELECT s.dead_letter_id FROM dead_letter s WHERE s.replay_of = d.dead_letter_id ORDER BY s.created_at LIMIT 1) n ON true
  -- A cancel that reached the run before the replay did, or the end of it, behind which it is undone: the task stays as it is, failed.
  LEFT JOIN LATERAL (
    SELECT true AS overtook FROM task x
    WHERE x.run_id = d.run_id AND (x.status = 'cancelled' AND x.task < 10000 AND x.error ->> 'code' IS DISTINCT FROM 'CHILD_CANCELLED'
                                 OR x.task >= 200000000)
      AND t.token = d.token AND d.task < 200000000 LIMIT 1) c ON true
  WHERE d.status = 'replayed';

-- What became of what a bulk asked for: 'pending' until that is applied; then how the run stands, or 'overtaken' when it had moved on before it
-- came, so that it changed nothing; 'stayed' when something stood in the way of a move, which the run's history names;
-- 'gone' when the retention has removed it since. Of a letter, what became of its replay.
CREATE VIEW bulk_item_later AS
  SELECT i.bulk_id, i.position, i.act, i.item_id, i.outcome, i.reason, i.done_at,
         CASE WHEN i.outcome IS DISTINCT FROM 'done' THEN NULL
              WHEN i.act = 'replay' THEN coalesce(o.outcome, 'gone')
              WHEN r.run_id IS NULL THEN 'gone'
              WHEN EXISTS (SELECT FROM inbox q WHERE q.inbox_id = i.inbox_id AND q.applied_at IS NULL) THEN 'pending'
              WHEN NOT EXISTS (
                SELECT FROM history h WHERE h.run_id = i.item_id AND h.row_version > i.row_version AND h.kind = k.kind)
              THEN CASE WHEN i.act IN ('migrate', 'move') AND EXISTS (
                     SELECT FROM history h WHERE h.run_id = i.item_id AND h.row_version > i.row_version AND h.kind = 'migration_refused')
                   THEN 'stayed' ELSE 'overtaken' END
              WHEN i.act = 'rerun' AND r.status = 'failed' THEN 'failed_again'
              ELSE r.status::text END AS later
  FROM bulk_item i
  LEFT JOIN (VALUES ('cancel', 'cancelled'), ('terminate', 'terminated'), ('pause', 'paused'), ('resume', 'resumed'), ('release', 'released'),
                    ('rerun', 'reran'), ('migrate', 'migrated'), ('move', 'migrated')) AS k (act, kind) ON k.act = i.act
  LEFT JOIN run r ON i.act <> 'replay' AND r.run_id = i.item_id
  LEFT JOIN replay_outcome o ON i.act = 'replay' AND o.dead_letter_id = i.item_id;

-- The histories that this database has gone through, the last one at the end: a promoted standby begins another, as does a restore. What the
-- one before had committed last may be missing here, so no token that it may have given is given again.
CREATE TABLE timeline (
  epoch int CONSTRAINT timeline_key PRIMARY KEY,
  -- Postgres' names for it.
  system_identifier bigint NOT NULL,
  number int NOT NULL,
  -- Tokens of hand-outs in it are higher than this.
  token_floor int NOT NULL,
  noted_at timestamptz NOT NULL DEFAULT now(),
  -- When the last transaction was committed that it took over from the one before; null when the server does not know.
  taken_over_until timestamptz,
  -- Records in Kafka that tell of what the one before had decided and this one does not have.
  lost_records int NOT NULL DEFAULT 0,
  CONSTRAINT timeline_floor_rises_with_its_epoch CHECK ((token_floor > 0) = (epoch > 0))
);

-- How far the relay and the session agent have come, by the ticks that travelled through both; and, as 'retention', before when runs must
-- have begun that may have been removed.
CREATE TABLE watermark (
  name text CONSTRAINT watermark_key PRIMARY KEY,
  at timestamptz NOT NULL
) WITH (fillfactor = 10);

-- The identity of each command topic's log, and since when: another id means that what was in it is gone.
CREATE TABLE topic_log (
  topic text CONSTRAINT topic_log_key PRIMARY KEY,
  topic_id text NOT NULL,
  since timestamptz NOT NULL DEFAULT now()
);

-- Every sweep's last pass, for people.
CREATE TABLE sweep_pass (
  name text CONSTRAINT sweep_pass_key PRIMARY KEY,
  at timestamptz NOT NULL,
  found int NOT NULL
) WITH (fillfactor = 50);

-- What all streams processes together have counted, for one page of metrics; each adds what is new every few seconds.
CREATE TABLE engine_counter (
  sample text NOT NULL,
  labels text NOT NULL,
  metric text NOT NULL,
  kind text NOT NULL CONSTRAINT engine_counter_kind_known CHECK (kind IN ('counter', 'histogram')),
  what text NOT NULL,
  value double precision NOT NULL,
  CONSTRAINT engine_counter_key PRIMARY KEY (sample, labels)
) WITH (fillfactor = 50);

CREATE TABLE subscription (
  subscription_id uuid CONSTRAINT subscription_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  topic text NOT NULL,
  -- What its records start; null: they say a signal, {name, key, run, keep}.
  workflow text,
  signal json,
  filter text,
  -- Template of the run's input, or of the signal's data.
  input json,
  -- Templates of the labels of its runs, by name; null for none.
  labels json,
  enabled boolean NOT NULL DEFAULT true,
  created_at timestamptz NOT NULL DEFAULT now(),
  -- Since when its records are not read because too many runs are under way.
  waits_since timestamptz,
  CONSTRAINT subscription_starts_or_signals CHECK ((workflow IS NULL) <> (signal IS NULL)),
  CONSTRAINT subscription_name_is_unique UNIQUE (namespace, name)
);

-- One row per record that a subscription looked at: its fate, for people.
CREATE TABLE trigger_event (
  subscription_id uuid NOT NULL,
  topic text NOT NULL,
  partition int NOT NULL,
  "offset" bigint NOT NULL,
  fate text NOT NULL CONSTRAINT trigger_event_fate_known CHECK (fate IN (
    'started', 'signalled', 'duplicate', 'filtered', 'failed', 'rejected', 'dropped')),
  -- The run that it started, to which it said a signal, or that goes in its place: rejected, dropped.
  run_id uuid,
  reason text,
  at timestamptz NOT NULL DEFAULT now(),
  -- The signal that it said; with run_id one of `signal`, otherwise one that was posted.
  signal_id uuid,
  CONSTRAINT trigger_event_key PRIMARY KEY (subscription_id, topic, partition, "offset", at)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 1.0);
-- For the retention: rows lie in the order of time, so a few bytes for each hundred pages find the old ones.
CREATE INDEX trigger_event_age ON trigger_event USING brin (at) WITH (autosummarize = on);

-- == the outbox ============================================================================================================
-- In the shape that Debezium's EventRouter expects, so that it can take the relay's place. Used when HEADRACE_OUTBOX=table.
CREATE TABLE outbox (
  id uuid CONSTRAINT outbox_key PRIMARY KEY,
  aggregatetype text NOT NULL,
  aggregateid text NOT NULL,
  type text NOT NULL,
  payload text NOT NULL,
  partition int,
  traceparent text,
  created_at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE PUBLICATION headrace_outbox FOR TABLE outbox WITH (publish = 'insert');

CREATE TABLE relay_owner (
  slot text CONSTRAINT relay_owner_key PRIMARY KEY,
  owner text NOT NULL,
  epoch bigint NOT NULL,
  renewed_at timestamptz NOT NULL,
  acked_lsn pg_lsn,
  -- When the slot was last found lost: what was committed before may never have been published.
  gap_at timestamptz,
  -- The number of the timeline that acked_lsn is a position in.
  timeline int NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

-- == the API ===============================================================================================================
-- The answer to a request with an idempotency key, given again to its repetition.
CREATE TABLE request_key (
  namespace text NOT NULL,
  route text NOT NULL,
  key text NOT NULL,
  digest bytea NOT NULL,
  status int NOT NULL,
  body json NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT request_key_key PRIMARY KEY (namespace, route, key)
);
CREATE INDEX request_key_age ON request_key (created_at);

-- Who may call the API. Of a secret only its hash is here: it has 256 random bits, so no slow hash is needed.
CREATE TABLE api_token (
  token_id uuid CONSTRAINT api_token_key PRIMARY KEY DEFAULT gen_random_uuid(),
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  secret_hash bytea NOT NULL CONSTRAINT api_token_secret_is_unique UNIQUE
    CONSTRAINT api_token_secret_is_hashed CHECK (octet_length(secret_hash) = 32),
  scopes text[] NOT NULL CONSTRAINT api_token_scopes_known
    CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'operate', 'approve', 'admin']),
  roles text[] NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(),
  created_by text NOT NULL,
  expires_at timestamptz NOT NULL CONSTRAINT api_token_expires CHECK (expires_at > created_at),
  revoked_at timestamptz,
  revoked_by text,
  -- Written at most once a minute.
  last_used_at timestamptz,
  CONSTRAINT api_token_revoked_by_somebody CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
CREATE UNIQUE INDEX api_token_name_is_taken ON api_token (namespace, name) WHERE revoked_at IS NULL;

-- Makes one browser session, once.
CREATE TABLE login_code (
  code_hash bytea CONSTRAINT login_code_key PRIMARY KEY CONSTRAINT login_code_is_hashed CHECK (octet_length(code_hash) = 32),
  namespace text NOT NULL DEFAULT 'default',
  -- Whose session it makes; null: that of the local token of `headrace dev`.
  token_id uuid REFERENCES api_token ON DELETE CASCADE,
  expires_at timestamptz NOT NULL
);

-- A browser that is logged in, for as long as the token behind it is good.
CREATE TABLE api_session (
  session_hash bytea CONSTRAINT api_session_key PRIMARY KEY CONSTRAINT api_session_is_hashed CHECK (octet_length(session_hash) = 32),
  namespace text NOT NULL DEFAULT 'default',
  token_id uuid REFERENCES api_token ON DELETE CASCADE,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL
);
CREATE INDEX api_session_age ON api_session (expires_at);

-- A filter that somebody has kept under a name; for all who read, or for whoever kept it.
CREATE TABLE saved_view (
  view_id uuid CONSTRAINT saved_view_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  of text NOT NULL CONSTRAINT saved_view_of_known CHECK (of IN ('runs', 'tasks', 'attempts', 'history', 'dead_letters')),
  name text NOT NULL,
  owner text NOT NULL,
  is_shared boolean NOT NULL DEFAULT false,
  -- Text of a filter.
  filter text NOT NULL,
  -- What the page that shows it wants to know: columns, their order, how dense.
  layout json NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);
-- One name means one thing to everybody who sees it.
CREATE UNIQUE INDEX saved_view_of_an_owner ON saved_view (namespace, of, owner, name) WHERE NOT is_shared;
CREATE UNIQUE INDEX saved_view_shared ON saved_view (namespace, of, name) WHERE is_shared;

-- What people and programs did through the API, written in the transaction of the act; rows are only ever added. Starts and signals are not here:
-- their own rows say who, when and from where.
CREATE TABLE audit (
  audit_id uuid CONSTRAINT audit_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  at timestamptz NOT NULL DEFAULT now(),
  actor text NOT NULL,
  -- Null: the local token of `headrace dev`, or somebody at the database.
  token_id uuid,
  act text NOT NULL,
  target text NOT NULL,
  reason text NOT NULL DEFAULT '',
  address text NOT NULL DEFAULT '',
  request_id text NOT NULL DEFAULT ''
);
CREATE INDEX audit_newest ON audit (namespace, at DESC, audit_id DESC);
