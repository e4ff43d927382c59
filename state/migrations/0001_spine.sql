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
--   append-only     attempt, history, trigger_event: nothing dies until the retention removes the oldest part, so by default the first 20 % of a
--                   table would stay as a hole before it is used again: 5 %. With the default delay, since nothing waits for it. Rows inserted
--                   need a vacuum only to be frozen, and that is cheapest in few large passes: whenever the table has doubled.
--   short-lived     timer, held_task, outbox: rows live for seconds, so a share of the table says nothing: after so many dead rows, at once.
--   counters        partition_owner, relay_owner, watermark, sweep_pass, engine_counter: few rows, updated for ever. A page with room for many
--                   versions of each is cleaned up by the updates themselves.
-- Statistics are renewed rarely where plans are pinned or go by key: nothing hangs on them.

CREATE TYPE task_status AS ENUM ('pending', 'queued', 'running', 'waiting', 'completed', 'failed', 'skipped', 'cancelled');
CREATE TYPE run_status AS ENUM ('running', 'waiting', 'completed', 'failed', 'cancelled', 'needs_attention', 'pausing', 'paused', 'terminated');

-- Raises when a write did not find what it expected. Statements of one batch travel together and commit at the Sync, so a failed
-- check must abort the transaction by itself. HR001: fenced or overtaken; forget memory, read Postgres, decide again.
CREATE FUNCTION must(ok boolean, why text) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN IF ok IS NOT TRUE THEN RAISE EXCEPTION '%', why USING ERRCODE = 'HR001'; END IF; RETURN ok; END $$;

-- The lowest UUIDv7 of an instant: run ids rise with time.
CREATE FUNCTION first_id_of(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS
$$ SELECT (lpad(to_hex(greatest(0, extract(epoch FROM at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid $$;

-- == definitions ===========================================================================================================
CREATE TABLE workflow (
  namespace text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  latest_version int NOT NULL,
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
  -- What people said about it as a whole: 1 it is paused, 2 its workflow is, 4 it was terminated.
  control int NOT NULL DEFAULT 0,
  -- Counts the events applied; every one has its row in history or attempt. Guards every write of the run (compare and set).
  row_version int NOT NULL CONSTRAINT run_version_counts CHECK (row_version > 0),
  input json NOT NULL,
  traceparent text,
  trigger_source text NOT NULL DEFAULT 'api',
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  -- What came out of it, or why nothing did; null for a workflow that does not say what should.
  output json,
  output_error json,
  CONSTRAINT run_output_only_if_completed CHECK (status = 'completed' OR (output IS NULL AND output_error IS NULL)),
  CONSTRAINT run_finished_exactly_when_terminal CHECK ((finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled', 'terminated'))),
  CONSTRAINT run_attention_is_its_status CHECK (attention = (status = 'needs_attention')),
  CONSTRAINT run_paused_is_its_status CHECK ((control & 3 > 0) = (status IN ('pausing', 'paused')) OR status = 'needs_attention'),
  CONSTRAINT run_terminated_is_its_status CHECK ((control & 4 > 0) = (status = 'terminated'))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
-- Open runs: what the sweeps walk. A run enters at its start and leaves at its end.
CREATE INDEX run_open ON run (run_id) WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'needs_attention');
-- What went wrong lately, which is rare among millions.
CREATE INDEX run_ended_badly ON run (run_id) WHERE status IN ('failed', 'cancelled', 'terminated');
-- Lists, newest first: run ids are UUIDv7 and rise with time.
CREATE INDEX run_of_a_version ON run (version_id, run_id DESC);

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
-- and wherever a task is named; an item of a map is a task with the number (task + 1) * 10000 + item, so the graph's own are below 10000.
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
  -- From where it goes on when the pause of its run ends; null: nothing is withheld.
  withheld text CONSTRAINT task_withheld_known CHECK (withheld IN ('turn', 'again', 'body')),
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
  CONSTRAINT task_key PRIMARY KEY (run_id, task),
  CONSTRAINT task_items_add_up CHECK (items_begun <= items AND items_completed + items_failed <= items_begun),
  -- An attempt is a hand-out whose body began.
  CONSTRAINT task_attempts_within_tokens CHECK (attempt <= token),
  CONSTRAINT task_open_has_a_token CHECK (status NOT IN ('queued', 'running', 'waiting') OR token > 0),
  CONSTRAINT task_holder_only_while_running CHECK (session_id IS NULL OR status = 'running'),
  CONSTRAINT task_looked_up_only_while_open CHECK (lookups = 0 OR status IN ('pending', 'queued', 'running')),
  CONSTRAINT task_withheld_only_while_pending CHECK (withheld IS NULL OR (status = 'pending' AND due_at IS NULL)),
  CONSTRAINT task_timer_only_while_it_counts CHECK (due_at IS NULL OR status IN ('pending', 'running', 'waiting'))
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
CREATE TABLE timer (
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  kind text NOT NULL,
  due_at timestamptz NOT NULL,
  -- When a sweep said so last; said again after a while, until the run agent has taken the row away.
  said_at timestamptz,
  CONSTRAINT timer_key PRIMARY KEY (run_id, task)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX timer_due ON timer (due_at);

-- Requests from outside, stored with the answer they were given, before the run agent applies them. `Requested` names a row.
CREATE TABLE inbox (
  inbox_id uuid CONSTRAINT inbox_key PRIMARY KEY,
  run_id uuid NOT NULL,
  kind text NOT NULL CONSTRAINT inbox_kind_known CHECK (kind IN ('cancelled', 'decided', 'replayed', 'resolved', 'released', 'signalled',
                                                             'terminated', 'paused', 'resumed', 'supplied', 'reran')),
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

CREATE TABLE approval (
  approval_id uuid CONSTRAINT approval_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  run_id uuid NOT NULL,
  task int NOT NULL,
  token int NOT NULL,
  title text NOT NULL,
  approvers json NOT NULL,
  on_expiry text NOT NULL,
  status text NOT NULL DEFAULT 'waiting'
    CONSTRAINT approval_status_known CHECK (status IN ('waiting', 'approved', 'rejected', 'expired', 'cancelled')),
  asked_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz,
  decided_at timestamptz,
  decided_by text,
  comment text,
  CONSTRAINT approval_of_one_hand_out UNIQUE (run_id, task, token),
  CONSTRAINT approval_decided_exactly_once CHECK ((decided_at IS NULL) = (status = 'waiting'))
);
CREATE INDEX approval_waiting ON approval (namespace, asked_at) WHERE status = 'waiting';
CREATE INDEX approval_expiring ON approval (expires_at) WHERE status = 'waiting' AND expires_at IS NOT NULL;

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

-- Many letters replayed at a rate. What it will replay is frozen when it is asked for; a sweep carries it out.
CREATE TABLE bulk_replay (
  replay_id uuid CONSTRAINT bulk_replay_key PRIMARY KEY,
  namespace text NOT NULL DEFAULT 'default',
  filter json NOT NULL,
  rate double precision NOT NULL CONSTRAINT bulk_replay_rate_is_positive CHECK (rate > 0),
  selected int NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  created_by text NOT NULL,
  -- When the rate allows the next one.
  next_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  stopped_by text,
  CONSTRAINT bulk_replay_stopped_is_finished CHECK (stopped_by IS NULL OR finished_at IS NOT NULL)
);
CREATE INDEX bulk_replay_open ON bulk_replay (next_at) WHERE finished_at IS NULL;
CREATE INDEX bulk_replay_newest ON bulk_replay (namespace, created_at DESC, replay_id DESC);

CREATE TABLE bulk_replay_letter (
  replay_id uuid NOT NULL,
  position int NOT NULL,
  dead_letter_id uuid NOT NULL,
  outcome text CONSTRAINT bulk_replay_letter_outcome_known CHECK (outcome IN ('replayed', 'refused', 'stopped')),
  reason text,
  done_at timestamptz,
  CONSTRAINT bulk_replay_letter_key PRIMARY KEY (replay_id, position),
  CONSTRAINT bulk_replay_letter_done_exactly_once CHECK ((done_at IS NULL) = (outcome IS NULL))
);
CREATE INDEX bulk_replay_letter_left ON bulk_replay_letter (replay_id, position) WHERE outcome IS NULL;
-- Of two operators who ask at once, one gets the letter.
CREATE UNIQUE INDEX bulk_replay_letter_waits_in_one ON bulk_replay_letter (dead_letter_id) WHERE outcome IS NULL;

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
  -- A cancel that reached the run before the replay did: the task stays as it is, failed.
  LEFT JOIN LATERAL (
    SELECT true AS overtook FROM task x
    WHERE x.run_id = d.run_id AND x.status = 'cancelled' AND x.task < 10000 AND t.token = d.token LIMIT 1) c ON true
  WHERE d.status = 'replayed';

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
  workflow text NOT NULL,
  filter text,
  input json,
  enabled boolean NOT NULL DEFAULT true,
  created_at timestamptz NOT NULL DEFAULT now(),
  -- Since when its records are not read because too many runs are under way.
  waits_since timestamptz,
  CONSTRAINT subscription_name_is_unique UNIQUE (namespace, name)
);

-- One row per record that a subscription looked at and did not start a run from, or could not: its fate, for people.
CREATE TABLE trigger_event (
  subscription_id uuid NOT NULL,
  topic text NOT NULL,
  partition int NOT NULL,
  "offset" bigint NOT NULL,
  fate text NOT NULL CONSTRAINT trigger_event_fate_known CHECK (fate IN ('started', 'duplicate', 'filtered', 'failed')),
  run_id uuid,
  reason text,
  at timestamptz NOT NULL DEFAULT now(),
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
