"""kill -9 of any one process, and what becomes of Kafka or Postgres, on real ones: nothing is lost, and every run
ends."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from headrace.embedded.kafka import ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.stack import Stack

WORKFLOW: dict[str, Any] = {
    "name": "faults",
    "tasks": {
        "first": {"run": "faults.quick"},
        "left": {"run": "faults.slow", "needs": ["first"], "with": "${{ tasks.first.output }}"},
        "right": {"run": "faults.quick", "needs": ["first"], "with": "${{ tasks.first.output }}"},
        "last": {"run": "faults.quick", "needs": ["left", "right"], "with": "${{ tasks.left.output }}"},
    },
}
RUNS = 40
STEPS = 4
LEASE_SECONDS = 2.0
END_SECONDS = 90.0


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[ApacheKafka]:
    """A broker that these tests may kill and wipe."""
    with ApacheKafka(fetch_jars(), session_timeout_ms=2_000, heartbeat_interval_ms=400) as broker:
        yield broker


@pytest.fixture
def stack(own_kafka: ApacheKafka, database: str, topic_prefix: str, tmp_path: Path) -> Iterator[Stack]:
    with sqlite3.connect(tmp_path / "ledger.db") as ledger:
        ledger.execute("PRAGMA journal_mode = WAL")
        ledger.execute("CREATE TABLE effect (effect_key text, attempt int, token int)")
    with Stack(
        Path(__file__).parent / "faults_app.py",
        kafka=own_kafka.bootstrap,
        postgres=database,
        data=tmp_path / "data",
        workers=2,
        lease_seconds=LEASE_SECONDS,
        prefix=topic_prefix,
        log_level="warning",
        settings={"HEADRACE_SLOT": topic_prefix, "LEDGER": str(tmp_path / "ledger.db"), "HEADRACE_RELAY_LEASE": "2"},
    ) as made:
        assert httpx.post(f"{made.api_url}/workflows", headers=made.headers, json=WORKFLOW).status_code == 201
        made.wait_workers(2)
        yield made


def start(stack: Stack, count: int = RUNS, first: int = 0, **more: Any) -> None:
    """Start runs over HTTP; repeats a start with its key until it is answered, as a client does."""
    with httpx.Client(base_url=stack.api_url, headers=stack.headers, timeout=10) as client:
        for n in range(first, first + count):
            body = {"input": {"n": n, **more}, "key": f"run-{n}"}
            eventually(lambda body=body: _accepted(client, body), "the start is accepted")


def _accepted(client: httpx.Client, body: dict[str, Any]) -> bool:
    try:
        return client.post("/workflows/faults/runs", json=body).status_code in (200, 201)
    except httpx.TransportError:
        return False


def eventually(fact: Callable[[], bool], what: str, seconds: float = END_SECONDS) -> float:
    """Wait for a fact; answers how long it took."""
    started = time.monotonic()
    while not fact():
        assert time.monotonic() - started < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - started


def query(stack: Stack, sql: str) -> list[Any]:
    with psycopg.connect(stack.postgres, autocommit=True, connect_timeout=5) as connection:
        return connection.execute(sql.encode()).fetchall()


def ended(stack: Stack) -> int:
    return int(query(stack, "SELECT count(*) FROM run WHERE status = 'completed'")[0][0])


def check(stack: Stack, tmp_path: Path, runs: int = RUNS) -> None:
    """Every run completed once; every effect happened; history has no gap; attempts are counted without a gap; nothing
    is left open."""
    assert query(stack, "SELECT status::text, count(*) FROM run GROUP BY 1") == [("completed", runs)]
    assert query(stack, "SELECT status::text, count(*) FROM task GROUP BY 1") == [("completed", runs * STEPS)]
    assert query(stack, "SELECT count(*) FROM attempt WHERE outcome = 'completed'") == [(runs * STEPS,)]
    gaps = """SELECT run_id FROM run r WHERE row_version <> (SELECT count(DISTINCT row_version) FROM run_event e WHERE
    e.run_id = r.run_id)
              OR row_version <> (SELECT max(row_version) FROM run_event e WHERE e.run_id = r.run_id)"""
    assert query(stack, gaps) == []
    counted = """SELECT run_id, task FROM attempt GROUP BY 1, 2
                 HAVING count(*) <> max(attempt) OR min(attempt) <> 1 OR count(DISTINCT attempt) <> count(*)"""
    assert query(stack, counted) == []
    assert query(stack, "SELECT count(*) FROM timer") == [(0,)]
    with sqlite3.connect(tmp_path / "ledger.db") as ledger:
        (effects,) = ledger.execute("SELECT count(DISTINCT effect_key) FROM effect").fetchone()
    assert effects == runs * STEPS


@pytest.mark.parametrize("name", ["worker-1", "streams-1", "relay-1", "api"])
def test_kill_9_of_one_process_loses_nothing(stack: Stack, tmp_path: Path, name: str):
    start(stack, RUNS // 2)
    before = stack.pids()[name]
    assert stack.kill9(name) == before
    start(stack, RUNS // 2, RUNS // 2)
    eventually(lambda: ended(stack) == RUNS, f"{RUNS} runs ended after kill -9 of {name}")
    check(stack, tmp_path)
    assert stack.pids()[name] != before


RUNNING_ON_1 = """SELECT run_id, t.task FROM task t JOIN worker_session USING (session_id)
                  WHERE t.status = 'running' AND worker = 'worker-1'"""
"""RUNNING is recorded once a body outlives a moment, so these have seconds to go."""


def test_what_a_lost_host_ran_is_run_again_elsewhere_within_its_lease(stack: Stack, tmp_path: Path):
    start(stack, seconds=4.0)
    eventually(lambda: len(query(stack, RUNNING_ON_1)) > 0, "the worker runs bodies")
    running = query(stack, RUNNING_ON_1)
    stack.kill9("worker-1")
    eventually(lambda: ended(stack) == RUNS, "all runs ended")
    check(stack, tmp_path)
    lost = query(stack, "SELECT run_id, task FROM attempt WHERE outcome = 'lost'")
    assert set(running) <= set(lost)


def test_a_worker_that_dies_is_spoken_for_at_once_by_its_parent(stack: Stack, tmp_path: Path):
    start(stack, seconds=4.0)
    eventually(lambda: len(query(stack, RUNNING_ON_1)) > 0, "the worker runs bodies")
    (parent, running) = stack.pids()["worker-1"], query(stack, RUNNING_ON_1)
    killed = stack.kill9_body("worker-1")
    eventually(
        lambda: any(name == "worker-1" and "reported as lost" in line for name, line in stack.lines),
        "its parent speaks for it",
    )
    eventually(
        lambda: set(running) <= set(query(stack, "SELECT run_id, task FROM attempt WHERE outcome = 'lost'")),
        "every body it ran is handed out again",
    )
    eventually(lambda: ended(stack) == RUNS, "all runs ended")
    check(stack, tmp_path)
    assert stack.pids()["worker-1"] == parent
    assert stack.kill9_body("worker-1") not in (killed, None), "the parent has started another"


def test_kafka_wiped_and_started_empty_finishes_the_runs(stack: Stack, tmp_path: Path, own_kafka: ApacheKafka):
    start(stack)
    eventually(lambda: ended(stack) > 0, "the first run ended")
    own_kafka.kill9()
    own_kafka.wipe()
    own_kafka.start()
    eventually(lambda: ended(stack) == RUNS, "all runs ended after Kafka was wiped")
    check(stack, tmp_path)


def test_starts_are_accepted_while_kafka_is_away(stack: Stack, tmp_path: Path, own_kafka: ApacheKafka):
    start(stack, RUNS // 2)
    own_kafka.kill9()
    try:
        start(stack, RUNS // 2, RUNS // 2)
        health = httpx.get(f"{stack.api_url}/health", headers=stack.headers)
        assert health.status_code == 200
    finally:
        own_kafka.start()
    eventually(lambda: ended(stack) == RUNS, "all runs ended once Kafka was back")
    check(stack, tmp_path)


def test_postgres_killed_is_a_503_and_then_everything_goes_on(stack: Stack, tmp_path: Path, postgres: EmbeddedPostgres):
    start(stack, RUNS // 2)
    postgres.kill9()
    try:
        answer = httpx.post(
            f"{stack.api_url}/workflows/faults/runs", headers=stack.headers, json={"input": {"n": 0}}, timeout=20
        )
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["content-type"] == "application/problem+json"
    finally:
        postgres.start()
    start(stack, RUNS // 2, RUNS // 2)
    eventually(lambda: ended(stack) == RUNS, "all runs ended once Postgres was back")
    check(stack, tmp_path)


def test_every_process_killed_at_once_resumes(stack: Stack, tmp_path: Path):
    start(stack)
    for name in ("worker-1", "worker-2", "streams-1", "relay-1", "api"):
        stack.kill9(name)
    eventually(lambda: ended(stack) == RUNS, "all runs ended")
    check(stack, tmp_path)


CLEANING: dict[str, Any] = {
    "name": "cleaning",
    "tasks": {
        "first": {"run": "faults.quick"},
        "work": {"run": "faults.slow", "needs": ["first"]},
        "behind": {"run": "faults.quick", "needs": ["work"]},
        "tidy": {
            "run": "faults.slow",
            "needs": ["behind"],
            "join": "finally",
            "with": {"n": "${{ input.n }}", "seconds": 1.0},
        },
        "last": {"run": "faults.quick", "needs": ["tidy"], "join": "finally", "with": {"n": "${{ input.n }}"}},
    },
}


def test_a_cancelled_run_cleans_up_though_streams_and_a_worker_are_killed_meanwhile(stack: Stack, tmp_path: Path):
    count = 10
    with httpx.Client(base_url=stack.api_url, headers=stack.headers, timeout=10) as client:
        assert client.post("/workflows", json=CLEANING).status_code == 201
        ids = [
            client.post("/workflows/cleaning/runs", json={"input": {"n": n, "seconds": 3.0}}).json()["run_id"]
            for n in range(count)
        ]
        begun = "SELECT count(*) FROM task WHERE task = 0 AND status = 'completed'"
        eventually(lambda: query(stack, begun) == [(count,)], "the first task of every run has completed")
        for run_id in ids:
            assert client.post(f"/runs/{run_id}/cancel", json={"reason": "enough"}).status_code == 202
    stack.kill9("streams-1")
    eventually(
        lambda: query(stack, "SELECT count(*) > 0 FROM task WHERE task = 3 AND status = 'running'") == [(True,)],
        "a clean-up runs",
    )
    stack.kill9("streams-1")
    stack.kill9("worker-1")
    over = "SELECT count(*) FROM run WHERE status = 'cancelled'"
    eventually(lambda: query(stack, over) == [(count,)], "every run has cleaned up and was cancelled")
    states = "SELECT task, status::text, count(*) FROM task GROUP BY 1, 2 ORDER BY 1"
    assert query(stack, states) == [
        (0, "completed", count), (1, "cancelled", count), (2, "cancelled", count), (3, "completed", count),
        (4, "completed", count),
    ]  # fmt: skip
    assert query(stack, "SELECT count(*) FROM attempt WHERE outcome = 'completed'") == [(3 * count,)]
    with sqlite3.connect(tmp_path / "ledger.db") as ledger:
        (tidied,) = ledger.execute(
            "SELECT count(DISTINCT effect_key) FROM effect WHERE effect_key LIKE '%/tidy'"
        ).fetchone()
    assert tidied == count
