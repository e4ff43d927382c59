"""Health, metrics, the doctor, and what every answer carries."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import httpx
import jsonschema
import pytest
from structlog.testing import capture_logs

from api.__main__ import main
from api.app import create_app
from headrace.errors import ConfigurationError
from tests.caller import HEADERS


# == health and metrics ================================================================================================
async def test_health_is_degraded_until_relay_and_sweeps_are_heard_of(api, engine):
    health = await api.read("/health")
    assert (health["status"], health["postgres"], health["relay"]) == ("degraded", "ok", None)
    engine.connection.execute(
        "INSERT INTO relay_owner (slot, owner, epoch, renewed_at, acked_lsn) "
        "VALUES ('s', 'me', 1, now(), pg_current_wal_lsn())"
    )
    engine.connection.execute("INSERT INTO sweep_pass VALUES ('timers', now(), 0)")
    health = await api.read("/health")
    assert (health["status"], health["relay"]["owner"]) == ("ok", "me")
    assert health["relay"]["lag_bytes"] >= 0
    engine.connection.execute("UPDATE relay_owner SET renewed_at = now() - interval '1 minute'")
    assert (await api.read("/health"))["status"] == "degraded"


async def test_metrics_tell_depth_age_and_what_waits(api, definitions, engine):
    await api.publish(definitions["orders"])
    await api.publish("name: io\ntasks: { a: { run: x, queue: io } }")
    for _ in range(3):
        await api.start("orders")
    run_id = await api.start("io")
    engine.start_body(run_id, "a")
    failed = await api.start("io")
    engine.fail(failed, "a")
    engine.connection.execute("INSERT INTO timer VALUES (%s, 0, 1, 'timeout', now() - interval '9 s')", (run_id,))
    text = (await api.get("/metrics")).text
    lines = set(text.splitlines())
    assert 'headrace_runs_open{status="running"} 4.0' in lines
    assert 'headrace_queue_tasks{queue="default",status="queued"} 3.0' in lines
    assert 'headrace_queue_tasks{queue="io",status="running"} 1.0' in lines
    assert "headrace_timers_late 1.0" in lines
    assert "headrace_dead_letters_parked 1.0" in lines
    assert "headrace_postgres_up 1.0" in lines
    assert 'headrace_runs_started_total{workflow="io"} 2.0' in lines
    assert 'route="/workflows/{workflow}/runs",status="201"' in text
    assert 'headrace_queue_oldest_seconds{queue="default"}' in text


async def test_scrapes_share_one_look_at_the_database(api, app):
    await asyncio.gather(*(api.get("/metrics") for _ in range(20)))
    before = app.state.wiring.metrics.snapshot
    await api.get("/metrics")
    assert app.state.wiring.metrics.snapshot is before


INSERT_SESSION = (
    "INSERT INTO worker_session "
    "(session_id, worker, queues, slots, seq, lease, renewed_at, expires_at, ended_at, started_at) "
    "VALUES (gen_random_uuid(), %s, '{default}', 4, 1, '30 s', now(), "
    "now() + %s::interval, now() + %s::interval, now() + %s::interval)"
)


async def test_a_worker_session_is_live_until_its_lease_ends(api, engine):
    for row in (("live", "30 s", None, "0 s"), ("lost", "-1 s", None, "-1 s"), ("old", "-3 h", "-2 h", "-4 h")):
        engine.connection.execute(INSERT_SESSION, row)
    pages = await api.pages("/workers", limit=1)
    assert [(worker["worker"], worker["live"]) for page in pages for worker in page] == [
        ("live", True),
        ("lost", False),
    ]
    for worker in (pages[0][0], pages[1][0]):
        assert (await api.get(f"/workers/{worker['session_id']}")).json() == worker
    assert (await api.get(f"/workers/{uuid4()}")).status_code == 404


# == the doctor ========================================================================================================
async def test_the_doctor_finds_nothing_in_a_database_of_ours(api, definitions, engine):
    await api.publish(definitions["orders"])
    await api.publish(definitions["release"])
    for workflow, task in (("orders", "validate"), ("release", "build"), ("orders", None)):
        run_id = await api.start(workflow)
        if task:
            engine.start_body(run_id, task)
            engine.fail(run_id, task, retryable=True)
    waiting = await api.start("release")
    engine.complete(waiting, "build")
    diagnosis = await api.read("/doctor")
    wrong = {check["name"]: check for check in diagnosis["checks"] if not check["ok"]}
    assert wrong.keys() <= {"relay", "server"}  # no relay here; the test server may lack wal_level=logical
    assert "4 runs" in next(check["detail"] for check in diagnosis["checks"] if check["name"] == "statuses")


@pytest.mark.parametrize(
    ("harm", "check"),
    [
        ("UPDATE run SET status = 'waiting'", "statuses"),
        ("UPDATE task SET attempt = 1, token = 2", "attempts"),
        ("DELETE FROM history WHERE row_version = 1", "history"),
        ("UPDATE run SET row_version = row_version + 1", "history"),
        (
            "INSERT INTO timer SELECT run_id, task, token + 1, 'backoff', now() + interval '1 h' FROM task",
            "orphan_timers",
        ),
        ("UPDATE task SET status = 'running', due_at = now()", "orphan_timers"),
        ("INSERT INTO timer SELECT run_id, task, token, 'backoff', now() - interval '1 h' FROM task", "timers"),
        (
            "INSERT INTO inbox (inbox_id, run_id, kind, body, created_at) "
            "SELECT gen_random_uuid(), run_id, 'cancelled', '{}', now() - interval '1 h' FROM run",
            "requests",
        ),
        (
            "INSERT INTO approval (approval_id, run_id, task, token, title, approvers, on_expiry) "
            "SELECT gen_random_uuid(), run_id, 0, 1, '', '[]', 'fail' FROM run",
            "orphan_approvals",
        ),
        ("DELETE FROM schema_migration", "schema"),
    ],
)
async def test_the_doctor_names_what_is_wrong(api, definitions, engine, harm, check):
    await api.publish(definitions["orders"])
    await api.start("orders")
    applied = engine.connection.execute("SELECT name, applied_at FROM schema_migration").fetchall()
    try:
        engine.connection.execute(harm)
        diagnosis = await api.read("/doctor")
    finally:
        for row in applied:
            engine.connection.execute("INSERT INTO schema_migration VALUES (%s, %s) ON CONFLICT DO NOTHING", row)
    found = {item["name"]: item for item in diagnosis["checks"]}
    assert not diagnosis["ok"]
    assert not found[check]["ok"], found
    assert found[check]["count"] >= 1


def test_the_doctor_runs_as_a_program(database, settings):
    environment = os.environ | {"HEADRACE_POSTGRES": database}
    done = subprocess.run(
        [sys.executable, "-m", "state.doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        cwd=Path(create_app.__code__.co_filename).parents[1],
        check=False,
    )
    assert {check["name"] for check in json.loads(done.stdout)["checks"]} >= {
        "connection",
        "clock",
        "statuses",
        "history",
    }
    assert done.returncode == 1


# == Postgres away =====================================================================================================
async def test_without_postgres_answers_are_503_and_it_recovers_by_itself(wire, database, settings, definitions):
    app = create_app(settings.model_copy(update={"postgres": await wire.open(database)}))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=HEADERS, timeout=20
        ) as api:
            yaml = {"content-type": "application/yaml"}
            assert (await api.post("/workflows", content=definitions["orders"], headers=yaml)).status_code == 201
            wire.cut()
            with capture_logs() as logs:
                for _ in range(2):
                    at = time.monotonic()
                    refused = await asyncio.gather(
                        api.post("/workflows/orders/runs", json={}), api.get("/runs"), api.get("/doctor")
                    )
                    assert time.monotonic() - at < 4  # about two seconds, on a machine that is busy with other tests
                    for response in refused:
                        assert (response.status_code, response.json()["code"]) == (503, "HR-1007")
                        assert int(response.headers["Retry-After"]) > 0
                health = await api.get("/health")
                assert (health.status_code, health.json()["postgres"]) == (503, "away")
                assert "headrace_postgres_up 0.0" in (await api.get("/metrics")).text
                wire.is_cut = False
                deadline = time.monotonic() + 20
                while (await api.post("/workflows/orders/runs", json={})).status_code != 201:
                    assert time.monotonic() < deadline
            assert [entry["event"] for entry in logs] == ["postgres is away", "postgres is back"]


async def test_a_process_that_starts_without_postgres_says_so_and_waits(settings):
    app = create_app(settings.model_copy(update={"postgres": "postgresql://127.0.0.1:1/nothing"}))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers=HEADERS) as api,
    ):
        assert (await api.get("/health")).status_code == 503


async def test_a_database_without_the_schema_is_unavailable(empty_database, settings):
    app = create_app(settings.model_copy(update={"postgres": empty_database}))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers=HEADERS) as api,
    ):
        response = await api.get("/runs")
        assert response.status_code == 503
        assert "state.migrate" in response.json()["detail"]


# == what every answer carries =========================================================================================
async def test_every_answer_has_a_request_id_and_safe_headers(api):
    for path in ("/health", "/nope", "/runs/x", "/openapi.json"):
        response = await api.get(path, headers={"X-Request-ID": "abc-1"})
        assert response.headers["X-Request-ID"] == "abc-1"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "server" not in response.headers
        if response.status_code >= 400:
            assert response.json()["request_id"] == "abc-1"
    odd = await api.get("/nope", headers={"X-Request-ID": "a b\t<script>"})
    assert odd.headers["X-Request-ID"] != "a b\t<script>"


async def test_a_wrong_method_says_which_are_right(api):
    response = await api.put("/runs")
    assert (response.status_code, response.headers["content-type"]) == (405, "application/problem+json")
    assert response.headers["allow"] == "GET"


async def test_a_fault_of_ours_shows_no_trace(api, app, monkeypatch):
    async def broken(*_, **__):
        raise RuntimeError("secret detail")

    monkeypatch.setattr("api.runs.find_runs", broken)
    with capture_logs() as logs:
        response = await api.get("/runs")
    assert (response.status_code, response.json()["code"]) == (500, "HR-1008")
    assert "secret" not in response.text
    assert logs[0]["request_id"] == response.json()["request_id"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1"}, 404),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost:8400"}, 404),
        ({"Host": "[::1]:8400"}, 404),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 404),
    ],
)
async def test_pages_of_other_origins_change_nothing(api, headers, status):
    response = await api.post("/workflows/nope/runs", content=b"{}", headers=headers)
    assert response.status_code == status, response.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org", "::ffff:10.0.0.1", ""])  # noqa: S104  # to be refused
async def test_an_address_that_others_can_reach_is_refused_while_there_is_no_token(settings, host):
    app = create_app(settings.model_copy(update={"api_host": host, "api_local_token": None}))
    with pytest.raises(ConfigurationError, match="HEADRACE_API_HOST"):
        async with app.router.lifespan_context(app):
            pass


def test_a_missing_secret_is_named(settings):
    from pydantic import SecretStr

    with pytest.raises(ConfigurationError, match="HEADRACE_SECRET"):
        create_app(settings.model_copy(update={"secret": SecretStr("")}))


# == OpenAPI ===========================================================================================================
async def test_answers_match_the_schemas_they_are_documented_with(api, definitions, engine):
    document = await api.read("/openapi.json")
    await api.publish(definitions["release"])
    run_id = await api.start("release", {"a": 1})
    failed = await api.start("release")
    engine.complete(run_id, "build", b"[1]")
    engine.fail(failed, "build")
    approval_id = (await api.read("/approvals"))["items"][0]["approval_id"]
    dead_letter_id = (await api.read("/dead-letters"))["items"][0]["dead_letter_id"]
    replay_id = (await api.post("/dead-letters/replay", json={"filter": "kind:task"})).json()["replay_id"]
    await api.post("/subscriptions", json={"name": "shop", "topic": "shop.orders", "workflow": "release"})
    signal_id = (await api.post("/signals", json={"name": "paid", "key": "a"})).json()["signal_id"]
    await api.publish("name: m\ntasks: { pages: { run: t.x, map: '${{ input }}' } }")
    of_a_map = {"run_id": await api.start("m", [1]), "task": "pages"}
    await api.put("/pools/shop", json={"limit": 1})
    bulk = await api.post("/bulk", json={"act": "cancel", "filter": "workflow:release", "reason": "a look"})
    view = await api.post("/views", json={"name": "mine", "filter": "status:failed"})
    engine.connection.execute(INSERT_SESSION, ("live", "30 s", None, "0 s"))
    ids = {
        "session_id": (await api.read("/workers"))["items"][0]["session_id"],
        "bulk_id": bulk.json()["bulk_id"],
        "workflow": "release",
        "version": "1",
        "run_id": run_id,
        "task_id": f"{run_id}.build",
        "approval_id": approval_id,
        "dead_letter_id": dead_letter_id,
        "replay_id": replay_id,
        "signal_id": signal_id,
        "name": "shop",
        "of": "runs",
        "view_id": view.json()["view_id"],
    }
    checked = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert {"403", "422", "500", "503"} <= operation["responses"].keys() or path == "/metrics"
            if method != "get" or path.endswith("events") or path == "/metrics" or "{sha256}" in path:
                continue
            response = await api.get(path.format(**(ids | of_a_map if "{task}" in path else ids)))
            documented = operation["responses"][str(response.status_code)]["content"]
            schema = documented[response.headers["content-type"]]["schema"] | {"components": document["components"]}
            jsonschema.Draft202012Validator(schema).validate(response.json())
            assert response.status_code == 200
            checked += 1
    assert checked >= 32  # every one that reads, and more come


# == the process =======================================================================================================
def test_the_process_serves_and_drains_on_sigterm(database, tmp_path):
    environment = os.environ | {
        "HEADRACE_POSTGRES": database,
        "HEADRACE_SECRET": "a secret of sixteen characters",
        "HEADRACE_API_PORT": "0",
    }
    root = Path(create_app.__code__.co_filename).parents[1]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "api"], stderr=stderr, env=environment, cwd=root)
    try:
        deadline = time.monotonic() + 60
        while "serving" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        address = json.loads(log.read_text().splitlines()[0])["address"]
        with httpx.stream("GET", f"{address}/events", headers=HEADERS, timeout=20) as stream:
            assert stream.status_code == 200
            process.send_signal(signal.SIGTERM)
            list(stream.iter_raw())
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("elsewhere", "said"),
    [(None, "HR-1001 HEADRACE_API_HOST"), ("postgresql://127.0.0.1:1/nothing", "HR-1007")],
    ids=["no token", "no database"],
)
def test_the_process_listens_beyond_the_loopback_only_with_a_token(database, monkeypatch, elsewhere, said):
    monkeypatch.setenv("HEADRACE_SECRET", "a secret of sixteen characters")
    monkeypatch.setenv("HEADRACE_API_HOST", "0.0.0.0")  # noqa: S104  # to be refused
    monkeypatch.setenv("HEADRACE_POSTGRES", elsewhere or database)
    monkeypatch.delenv("HEADRACE_API_LOCAL_TOKEN")
    with pytest.raises(SystemExit, match=said):
        main()
