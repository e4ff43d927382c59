"""What the console reads beside the other routes: spans, the overview, the engine's parts, the fates of records."""

from uuid import UUID, uuid4

from api.app import create_app
from tests.integration.api.conftest import client

DIAMOND = """
name: diamond
tasks:
  a: { run: x.a }
  b: { run: x.b, needs: a, queue: io }
  c: { needs: a, approval: { title: "Go on?" } }
  d: { needs: [b, c], wait: { for: 1h } }
"""


# == spans =============================================================================================================
async def test_spans_tell_how_each_task_stands_and_what_it_tried(api, engine):
    await api.publish(DIAMOND)
    run_id = await api.start("diamond")
    engine.complete(run_id, "a", b'{"secret": 1}')
    engine.start_body(run_id, "b")
    page = await api.read(f"/runs/{run_id}/spans")
    tasks = {task["name"]: task for task in page["items"]}
    assert (page["total"], page["next"], list(tasks)) == (4, None, ["a", "b", "c", "d"])
    assert {name: (task["kind"], task["status"]) for name, task in tasks.items()} == {
        "a": ("body", "completed"),
        "b": ("body", "running"),
        "c": ("approval", "waiting"),
        "d": ("wait", "pending"),
    }
    assert [span["outcome"] for span in tasks["a"]["spans"]] == ["completed"]
    assert tasks["b"]["spans"] == []
    assert tasks["d"]["needs"] == [1, 2]
    assert tasks["d"]["changed_at"] is None
    assert "secret" not in str(page)


async def test_spans_come_in_pages_without_a_gap(api, engine):
    await api.publish(DIAMOND)
    run_id = await api.start("diamond")
    pages = await api.pages(f"/runs/{run_id}/spans", limit=3)
    assert [[task["index"] for task in page] for page in pages] == [[0, 1, 2], [3]]


async def test_a_task_that_was_tried_often_shows_its_newest_attempts(api, engine):
    await api.publish("name: often\ntasks: { a: { run: x, retry: { attempts: 200, delay: 1s } } }")
    run_id = await api.start("often")
    engine.connection.execute(
        """INSERT INTO attempt (run_id, task, token, attempt, outcome, row_version, worker, ended_at)
           SELECT %s, 0, n, n, 'failed', n, 'w', now() FROM generate_series(1, 150) AS n""",
        (run_id,),
    )
    spans = (await api.read(f"/runs/{run_id}/spans"))["items"][0]["spans"]
    assert [span["token"] for span in spans] == list(range(51, 151))


async def test_spans_tell_of_rounds_deadlines_and_what_was_undone(api, engine):
    await api.publish(
        """
        name: undone
        tasks:
          poll: { run: x, repeat: { until: output == 1, max: 5 }, deadline: 1h }
          pay: { run: x, compensate: y }
          child: { workflow: undone-child, needs: poll }
        """
    )
    run_id = await api.start("undone")
    engine.complete(run_id, "poll", b"0")
    tasks = {task["name"]: task for task in (await api.read(f"/runs/{run_id}/spans"))["items"]}
    assert (tasks["poll"]["kind"], tasks["child"]["kind"]) == ("repeat", "workflow")
    assert (tasks["poll"]["rounds"], [span["round"] for span in tasks["poll"]["spans"]]) == (1, [0])
    assert tasks["poll"]["deadline_at"] is not None
    assert tasks["pay"]["compensation"] is None
    engine.complete(run_id, "pay")
    await api.post(f"/runs/{run_id}/cancel", json={"reason": "no more"})
    engine.apply_requests()
    tasks = {task["name"]: task for task in (await api.read(f"/runs/{run_id}/spans"))["items"]}
    assert (tasks["poll"]["compensation"], tasks["pay"]["compensation"]) == (None, "queued")


async def test_a_follower_of_spans_gets_what_changed(api, engine):
    await api.publish(
        """
        name: followed
        tasks:
          a: { run: x }
          b: { run: x, needs: a }
          many: { run: x, map: "${{ input.items }}" }
          pay: { run: x, compensate: y }
        """
    )
    run_id = await api.start("followed", input={"items": [1, 2]})
    engine.complete(run_id, "a", b"1")
    engine.connection.execute("UPDATE task SET changed_at = changed_at - interval '1 minute'")
    whole = await api.read(f"/runs/{run_id}/spans")
    engine.complete(run_id, "b", b"2")
    news = await api.read(f"/runs/{run_id}/spans", since=whole["at"])
    assert (news["total"], news["next"]) == (4, None)
    assert [(task["name"], task["status"], len(task["spans"])) for task in news["items"]] == [
        ("b", "completed", 1),
        ("many", "waiting", 0),  # its counts change without it
    ]
    assert [task["name"] for task in (await api.read(f"/runs/{run_id}/spans", since=news["at"]))["items"]] == [
        "b",
        "many",
    ], "what changed just before may not have been seen"
    paged = await api.pages(f"/runs/{run_id}/spans", limit=1, since=whole["at"])
    assert [[task["name"] for task in page] for page in paged if page] == [["b"], ["many"]]
    engine.complete(run_id, "pay")
    engine.connection.execute("UPDATE task SET changed_at = changed_at - interval '1 minute'")
    whole = await api.read(f"/runs/{run_id}/spans")
    assert [task["name"] for task in (await api.read(f"/runs/{run_id}/spans", since=whole["at"]))["items"]] == ["many"]
    await api.post(f"/runs/{run_id}/cancel", json={"reason": "no more"})
    engine.apply_requests()
    engine.connection.execute("UPDATE task SET changed_at = changed_at - interval '1 minute' WHERE task < 10000")
    news = await api.read(f"/runs/{run_id}/spans", since=whole["at"])
    assert {task["name"]: task["compensation"] for task in news["items"]}["pay"] == "queued"


async def test_a_follower_of_spans_says_an_instant(api, engine):
    await api.publish(DIAMOND)
    run_id = await api.start("diamond")
    for odd in ("yesterday", "2026-12-01T10:00:00", ""):
        assert (await api.get(f"/runs/{run_id}/spans?since={odd}")).status_code == 422, odd


async def test_what_people_did_is_told_apart_from_what_the_engine_did(api, engine):
    await api.publish(DIAMOND)
    run_id = await api.start("diamond")
    engine.complete(run_id, "a")
    await api.post(f"/runs/{run_id}/pause", json={"reason": "look"})
    engine.apply_requests()
    acts = (await api.read(f"/runs/{run_id}/history", by="people"))["items"]
    assert [(act["kind"], act["actor"]) for act in acts] == [("started", "local"), ("paused", "local")]
    pages = await api.pages(f"/runs/{run_id}/history", by="people", limit=1)
    assert [[act["kind"] for act in page] for page in pages] == [["started"], ["paused"]]


async def test_spans_of_no_run_are_not_found(api):
    assert (await api.get(f"/runs/{uuid4()}/spans")).status_code == 404


# == a worker that is crashed ==========================================================================================
SESSION = "3b241101-e2bb-4255-8caf-4136c566a962"


def put_worker(engine, name):
    engine.connection.execute(
        """INSERT INTO worker_session (session_id, worker, queues, slots, held, seq, lease, renewed_at, expires_at)
           VALUES (%s, %s, '{default}', 8, 0, 1, interval '10 s', now(), now() + interval '10 s')""",
        (SESSION, name),
    )


async def test_nobody_crashes_a_worker_but_where_dev_is(api, engine):
    put_worker(engine, "worker-1")
    assert (await api.post(f"/workers/{SESSION}/crash")).status_code == 409
    assert not (await api.read("/session"))["can_crash"]


async def test_what_dev_is_asked_to_crash_is_a_worker_that_is_live(settings, engine, tmp_path):
    folder = tmp_path / "crash"
    app = create_app(settings.model_copy(update={"api_crash_folder": folder}))
    async with app.router.lifespan_context(app), client(app) as api:
        assert (await api.read("/session"))["can_crash"]
        assert (await api.post(f"/workers/{uuid4()}/crash")).status_code == 409
        put_worker(engine, "../worker-1")
        assert (await api.post(f"/workers/{SESSION}/crash")).status_code == 409
        engine.connection.execute("UPDATE worker_session SET worker = 'worker-1'")
        answer = await api.post(f"/workers/{SESSION}/crash")
        assert (answer.status_code, answer.json()) == (202, {"session_id": SESSION, "worker": "worker-1"})
    assert [file.name for file in folder.iterdir()] == ["worker-1"]


# == overview ==========================================================================================================
async def test_the_overview_tells_queues_apart_from_those_who_serve_them(api, engine):
    await api.publish(DIAMOND)
    run_id = await api.start("diamond")
    engine.complete(run_id, "a")
    engine.connection.execute(
        """INSERT INTO worker_session (session_id, worker, queues, slots, held, seq, lease, renewed_at, expires_at)
           SELECT gen_random_uuid(), worker, queues::text[], 4, held, 1, '10 s', now() - ago, now() - ago + '10 s'
           FROM (VALUES ('w1', '{default,other}', 6, interval '0'), ('lost', '{io}', 1, interval '1 min'))
             AS given (worker, queues, held, ago)"""
    )
    overview = await api.read("/overview")
    queues = {queue["queue"]: queue for queue in overview["queues"]}
    assert (queues["io"]["queued"], queues["io"]["workers"]) == (1, 0)
    assert queues["io"]["oldest_seconds"] > 0
    assert (queues["other"]["queued"], queues["other"]["workers"]) == (0, 1)
    assert (queues["default"]["held"], queues["default"]["slots"]) == (4, 4)
    assert (overview["workers_live"], overview["workers_lost"], overview["approvals_waiting"]) == (1, 1, 1)
    assert overview["runs"] == {"running": 1}
    assert [sum(minute["counts"].values()) for minute in overview["recent"]] == [1]


async def test_the_overview_counts_only_its_own_namespace_by_minute(api, engine):
    await api.publish(DIAMOND)
    await api.start("diamond")
    engine.connection.execute("UPDATE run SET namespace = 'other'")
    assert (await api.read("/overview"))["recent"] == []


# == system ============================================================================================================
async def test_the_system_names_owners_sweeps_and_slots(api, engine):
    engine.connection.execute(
        """INSERT INTO partition_owner VALUES ('headrace.events', 1, 7, 42, 'log-1', 'host/1', now());
           INSERT INTO sweep_pass VALUES ('timers', now() - interval '5 s', 3);
           INSERT INTO relay_owner (slot, owner, epoch, renewed_at, acked_lsn)
             VALUES ('none such', 'me', 2, now(), pg_current_wal_lsn())"""
    )
    system = await api.read("/system")
    (partition,) = system["partitions"]
    assert (partition["owner"], partition["epoch"], partition["next_offset"]) == ("host/1", 7, 42)
    (sweep,) = system["sweeps"]
    assert (sweep["name"], sweep["found"]) == ("timers", 3)
    assert 4 < sweep["age_seconds"] < 60
    (slot,) = system["slots"]
    assert (slot["slot"], slot["active"], slot["retained_bytes"]) == ("none such", None, None)
    assert slot["lag_bytes"] >= 0
    sizes = engine.connection.execute(
        "SELECT pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' "
        "AND relnamespace = 'public'::regnamespace ORDER BY 1 DESC"
    ).fetchall()
    told = [table["bytes"] for table in system["tables"]]
    assert len(told) >= 10
    assert told == [size for (size,) in sizes[: len(told)]], "the largest, largest first"


# == records ===========================================================================================================
async def _subscribe(api, engine):
    await api.publish(DIAMOND)
    answer = await api.post("/subscriptions", json={"name": "shop", "topic": "shop.orders", "workflow": "diamond"})
    assert answer.status_code == 201, answer.text
    (subscription_id,) = engine.connection.execute("SELECT subscription_id FROM subscription").fetchone()
    for partition in (0, 1):
        engine.connection.execute(
            "INSERT INTO partition_owner VALUES ('shop.orders', %s, 1, 9, 'log', 'me', now())", (partition,)
        )
    engine.connection.execute(
        """INSERT INTO trigger_event (subscription_id, topic, partition, "offset", fate, run_id, reason, at)
           SELECT %(id)s, 'shop.orders', n %% 2, n / 2, CASE WHEN n = 3 THEN 'failed' ELSE 'started' END,
                  CASE WHEN n = 3 THEN NULL ELSE gen_random_uuid() END, CASE WHEN n = 3 THEN 'not JSON' END,
                  now() - make_interval(secs => 100 - n)
           FROM generate_series(0, 9) AS n""",
        {"id": subscription_id},
    )


async def test_every_record_has_its_fate_newest_first_over_partitions(api, engine):
    await _subscribe(api, engine)
    page = await api.read("/subscriptions/shop/records")
    assert [(row["partition"], row["offset"]) for row in page["items"]] == [(n % 2, n // 2) for n in range(9, -1, -1)]
    failed = page["items"][6]
    assert (failed["fate"], failed["run_id"], failed["reason"]) == ("failed", None, "not JSON")
    assert all(UUID(row["run_id"]) for row in page["items"] if row["fate"] == "started")
    only = await api.read("/subscriptions/shop/records", partition=1)
    assert [row["offset"] for row in only["items"]] == [4, 3, 2, 1, 0]


async def test_pages_of_records_lose_and_repeat_none(api, engine):
    await _subscribe(api, engine)
    pages = await api.pages("/subscriptions/shop/records", limit=3)
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    places = [(row["partition"], row["offset"]) for page in pages for row in page]
    assert places == [(n % 2, n // 2) for n in range(9, -1, -1)]


async def test_records_of_no_subscription_and_of_a_foreign_token_are_refused(api, engine):
    assert (await api.get("/subscriptions/none/records")).status_code == 404
    await _subscribe(api, engine)
    token = "WyJhIl0"  # a page token of a list by name
    assert (await api.get("/subscriptions/shop/records", params={"page": token})).status_code == 422


# == the console itself ================================================================================================
async def test_the_console_is_served_under_the_envelope_of_every_answer(api):
    page = await api.get("/console/runs")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-cache"
    assert {"x-request-id", "x-frame-options", "x-content-type-options", "content-security-policy"} <= set(page.headers)
    scripts = [part.split('"')[0] for part in page.text.split('src="')[1:]]
    assert scripts
    for script in scripts:
        assert (await api.get(script)).headers["cache-control"] == "public, max-age=31536000, immutable"
    assert "<script>" not in page.text


async def test_the_console_is_no_part_of_the_document(api):
    assert not [path for path in (await api.read("/openapi.json"))["paths"] if path.startswith("/console")]


# == plans =============================================================================================================
def test_what_the_console_reads_walks_an_index(engine):
    import psycopg

    from state.sql import load

    connection, statements = engine.connection, load("console_queries")
    connection.execute(
        """
        INSERT INTO trigger_event (subscription_id, topic, partition, "offset", fate)
          SELECT '3b241101-e2bb-4255-8caf-4136c566a962', 't', n % 4, n, 'filtered' FROM generate_series(1, 20000) AS n;
        INSERT INTO workflow (namespace, name, latest_version) VALUES ('default', 'w', 1);
        INSERT INTO workflow_version (namespace, name, version, digest, definition)
          VALUES ('default', 'w', 1, 'a', '{"tasks": {"a": {}}}');
        INSERT INTO run (run_id, version_id, status, row_version, input, finished_at)
          SELECT (lpad(to_hex(n), 8, '0') || '-0000-7000-8000-000000000000')::uuid,
                 (SELECT max(version_id) FROM workflow_version), 'completed', 1, '{}', now()
          FROM generate_series(1, 20000) AS n;
        INSERT INTO attempt (run_id, task, token, attempt, outcome, row_version, worker, ended_at)
          SELECT run_id, 0, 1, 1, 'completed', 1, 'w', now() FROM run;
        INSERT INTO task (run_id, task, status, attempt, token) SELECT run_id, 0, 'completed', 1, 1 FROM run;
        ANALYZE trigger_event; ANALYZE run; ANALYZE attempt; ANALYZE task;
        """
    )
    run = {"run_id": "00000fff-0000-7000-8000-000000000000", "first": 0, "end": 2000, "tasks": None, "limit": 100}
    fates = {
        "subscription_id": "3b241101-e2bb-4255-8caf-4136c566a962",
        "topic": "t",
        "partition": 1,
        "before": 9000,
        "limit": 50,
    }
    recent = {"since": "00004e00-0000-7000-8000-000000000000", "namespace": "default", "limit": 10_000}
    for name, index, given in (
        ("list_spans", "attempt_key", run),
        ("list_standings", "task_key", {**run, "since": None}),
        ("list_spans", "attempt_key", {**run, "tasks": [0, 1]}),
        ("list_standings", "task_key", {**run, "since": "2026-12-01T10:00:00Z"}),
        ("list_fates", "trigger_event_key", fates),
        ("count_recent_runs", "run_key", recent),
    ):
        rows = (
            psycopg.ClientCursor(connection).execute("EXPLAIN (COSTS OFF) " + statements.text(name), given).fetchall()
        )
        plan = "\n".join(line for (line,) in rows)
        assert index in plan, plan
        assert "Seq Scan on trigger_event" not in plan, plan
        assert "Seq Scan on attempt" not in plan, plan
        assert "Seq Scan on run" not in plan, plan
