"""F22: Postgres fails over to its standby, under real processes and a real Kafka.

To a synchronous one nothing is lost. To one that lags, what it had not received is: that is said, nothing of it is
taken for what is, and no token of it is given again.
"""

import sqlite3
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from confluent_kafka import Message, Producer

from headrace.embedded.kafka import ApacheKafka
from headrace.messages import Error, Event, Failed, Succeeded, encode, make_nonce
from headrace.stack import Stack
from state.timeline import TOKENS_OF_AN_EPOCH
from tests.faults.failover_app import TABLES
from tests.faults.standby import Pair
from tests.faults.starts import Starts, eventually, faults_found, query, says_come_again, wait_until_healthy

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "name": "quick",
    "tasks": {
        "first": {"run": "failover.quick", "with": "${{ input }}"},
        "left": {"run": "failover.quick", "needs": ["first"], "with": "${{ input }}"},
        "right": {"run": "failover.quick", "needs": ["first"], "with": "${{ input }}"},
        "last": {"run": "failover.quick", "needs": ["left", "right"], "with": "${{ input }}"},
    },
}
HELD: dict[str, Any] = {
    "name": "held",
    "tasks": {
        "wait": {"run": "failover.held", "with": "${{ input }}"},
        "after": {"run": "failover.quick", "needs": ["wait"], "with": "${{ input }}"},
    },
}
STEPS = 4
RUNS = 20
HELD_RUNS = 3
LEASE_SECONDS = 2.0
LONG_LEASE_SECONDS = 12.0
"""More than the failover takes, so that no worker fences itself: then it has to be told."""
END_SECONDS = 60.0
UNPROMOTED_SECONDS = 1.0
"""Clients meet the standby before it takes writes."""
BACK_IN_TIME = frozenset({"timeline"})


class Site(NamedTuple):
    pair: Pair
    stack: Stack
    folder: Path

    def query(self, sql: str, *parameters: Any) -> list[Any]:
        return query(self.pair.dsn, sql, *parameters)

    def ledger(self, sql: str, *parameters: Any) -> list[Any]:
        with sqlite3.connect(self.folder / "ledger.db", timeout=30) as ledger:
            return ledger.execute(sql, parameters).fetchall()

    def permit(self, name: str) -> str:
        return str(self.folder / name)

    def fail_over(self) -> None:
        self.pair.kill_primary()
        time.sleep(UNPROMOTED_SECONDS)
        self.pair.promote()


@contextmanager
def site_on(
    pair: Pair, kafka: ApacheKafka, prefix: str, folder: Path, lease_seconds: float = LEASE_SECONDS
) -> Generator[Site]:
    with sqlite3.connect(folder / "ledger.db") as ledger:
        ledger.execute("PRAGMA journal_mode = WAL")
        ledger.executescript(TABLES)
    with Stack(
        Path(__file__).with_name("failover_app.py"),
        kafka=kafka.bootstrap,
        postgres=pair.dsn,
        data=folder / "data",
        workers=2,
        slots=8,
        lease_seconds=lease_seconds,
        prefix=prefix,
        log_level="warning",
        settings={"LEDGER": str(folder / "ledger.db"), "HEADRACE_SLOT": prefix, "HEADRACE_RELAY_LEASE": "2"},
    ) as stack:
        for workflow in (QUICK, HELD):
            httpx.post(f"{stack.api_url}/workflows", headers=stack.headers, json=workflow).raise_for_status()
        stack.wait_workers(2)
        yield Site(pair, stack, folder)


@pytest.fixture
def synchronous(kafka: ApacheKafka, topic_prefix: str, tmp_path: Path) -> Iterator[Site]:
    with Pair(is_synchronous=True) as pair, site_on(pair, kafka, topic_prefix, tmp_path) as site:
        yield site


@pytest.fixture
def lagging(kafka: ApacheKafka, topic_prefix: str, tmp_path: Path) -> Iterator[Site]:
    with (
        Pair(is_synchronous=False) as pair,
        site_on(pair, kafka, topic_prefix, tmp_path, LONG_LEASE_SECONDS) as site,
    ):
        yield site


# == a synchronous standby =============================================================================================
def test_f22_nothing_is_lost_when_a_synchronous_standby_takes_over(synchronous: Site):
    stack, permit = synchronous.stack, synchronous.permit("go")
    with Starts(stack, "quick") as quick, Starts(stack, "held") as held:
        held.start_all(HELD_RUNS, permit=permit)
        eventually(lambda: running(synchronous) == HELD_RUNS, "bodies are under way")
        with being_started(quick):
            eventually(lambda: len(quick.accepted) >= RUNS, "runs are being started")
            synchronous.pair.kill_primary()
            refused = httpx.post(
                f"{stack.api_url}/workflows/quick/runs", headers=stack.headers, json={"input": {}}, timeout=10
            )
            assert says_come_again(refused), "it is a standby still"
            time.sleep(UNPROMOTED_SECONDS)
            synchronous.pair.promote()
            accepted = len(quick.accepted)
            eventually(lambda: len(quick.accepted) >= accepted + RUNS, "runs are started again")

        Path(permit).touch()
        for starts in (quick, held):
            starts.insist()
            eventually(starts.have_completed, "every run that was accepted has completed", END_SECONDS)
        assert (quick.unclean, held.unclean, quick.refused) == ([], [], {})
        check_effects(synchronous, quick, held)
        assert synchronous.query("SELECT max(token) > %s FROM task", TOKENS_OF_AN_EPOCH) == [(True,)]
        wait_until_healthy(stack)


@contextmanager
def being_started(starts: Starts) -> Generator[None]:
    """Runs are started as fast as it goes, by a client that repeats nothing yet."""
    enough = threading.Event()

    def start() -> None:
        while not enough.is_set():
            starts.start()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def running(site: Site) -> int:
    return int(site.query("SELECT count(*) FROM task WHERE status = 'running'")[0][0])


def check_effects(site: Site, quick: Starts, held: Starts) -> None:
    """Every effect of every run has happened, and under its key once."""
    expected = {f"{run}/{task}" for run in quick.accepted.values() for task in QUICK["tasks"]}
    expected |= {f"{run}/{task}" for run in held.accepted.values() for task in HELD["tasks"]}
    assert {key for (key,) in site.ledger("SELECT effect_key FROM effect")} >= expected


# == one that lags =====================================================================================================
def test_f22_what_a_lagging_standby_never_received_is_reported_refused_and_never_mistaken_for_what_is(lagging: Site):
    stack = lagging.stack
    with Starts(stack, "held") as held, Starts(stack, "quick") as kept, Starts(stack, "quick") as lost:
        held.start(permit=lagging.permit("retried"))
        held.start(permit=lagging.permit("moved"))
        retried, moved = held.accepted.values()
        kept.start_all(RUNS)
        eventually(kept.have_completed, "runs have completed")
        eventually(lambda: running(lagging) == 2, "two bodies wait")
        lagging.pair.wait_until_replayed()

        # The lost future: starts are accepted and end, one task gets its next token, another run its next task.
        lagging.pair.cut_link()
        lost.start_all(RUNS)
        eventually(lost.have_completed, "what will be lost has completed")
        Path(lagging.permit("moved")).touch()
        eventually(lambda: status(lagging, moved) == "completed", "a run has moved on")
        stack.kill9_body(holder(lagging, retried))
        eventually(lambda: hand_outs(lagging, retried) == [("wait", "running", 2)], "its task was handed out again")
        orphan = start_held(stack, lagging.permit("orphan"))
        eventually(lambda: running(lagging) == 2, "a body of a run that will be lost waits")
        effects_before = lagging.ledger("SELECT count(*) FROM effect")

        lagging.fail_over()

        # What Kafka still has of hand-outs that are known counts; what it has of others does not.
        eventually(
            lambda: status(lagging, moved) == "completed", "the result that was known to come is taken", END_SECONDS
        )
        eventually(
            lambda: hand_outs(lagging, retried)[0][1:] == ("running", TOKENS_OF_AN_EPOCH + 1),
            "a new token",
            END_SECONDS,
        )
        assert hand_outs(lagging, moved)[1] == ("after", "completed", TOKENS_OF_AN_EPOCH + 1)
        assert lagging.ledger("SELECT count(*) FROM effect") == effects_before

        say_as_a_lost_attempt(lagging, retried)
        assert hand_outs(lagging, retried) == [("wait", "running", TOKENS_OF_AN_EPOCH + 1)]
        assert lagging.query("SELECT count(*) FROM attempt WHERE token = 2") == [(0,)]

        # Attempts of the lost future still run somewhere, with leases that are renewed.
        strays = "SELECT count(*) FROM held_task WHERE (run_id = %s AND token = 2) OR run_id = %s"
        eventually(lambda: lagging.query(strays, retried, orphan) == [(0,)], "their workers let go of them", 10)
        for name in ("retried", "orphan"):
            Path(lagging.permit(name)).touch()
        eventually(held.have_completed, "every run that is known has completed", END_SECONDS)
        eventually(lambda: len(calls(lagging, retried) + calls(lagging, orphan)) == 3, "all bodies came to act", 10)
        assert calls(lagging, retried) == [(2, 1), (TOKENS_OF_AN_EPOCH + 1, 0)]
        assert calls(lagging, orphan) == [(1, 1)]

        check_report(lagging)
        check_that_starts_come_again(lagging, lost)


def status(site: Site, run_id: str) -> str:
    return str(site.query("SELECT status::text FROM run WHERE run_id = %s", run_id)[0][0])


def hand_outs(site: Site, run_id: str) -> list[tuple[str, str, int]]:
    names = list(HELD["tasks"])
    rows = site.query("SELECT task, status::text, token FROM task WHERE run_id = %s ORDER BY task", run_id)
    return [(names[task], status, token) for task, status, token in rows]


def start_held(stack: Stack, permit: str) -> str:
    answer = httpx.post(
        f"{stack.api_url}/workflows/held/runs", headers=stack.headers, json={"input": {"permit": permit}}
    )
    return str(answer.raise_for_status().json()["run_id"])


def calls(site: Site, run_id: str) -> list[tuple[int, int]]:
    """(token, whether the effect was refused) of every call of the body that waits."""
    sql = "SELECT token, was_refused FROM call WHERE effect_key = ? ORDER BY token"
    return site.ledger(sql, f"{run_id}/wait")


def holder(site: Site, run_id: str) -> str:
    sql = "SELECT worker FROM task JOIN worker_session USING (session_id) WHERE run_id = %s AND task.status = 'running'"
    return str(site.query(sql, run_id)[0][0])


def say_as_a_lost_attempt(site: Site, run_id: str) -> None:
    """All that an attempt under token 2 may say, with the nonce it was given; returns once the engine has read it."""
    secret = site.stack.settings["HEADRACE_SECRET"].encode()[:64]
    nonce = make_nonce(secret, run_id.encode(), 0, 2)
    said: list[Event] = [
        Succeeded(0, 2, nonce, output=msgspec.Raw(b'{"by":2}')),
        Failed(0, 2, nonce, Error("ERROR", "it failed in another future")),
    ]
    topic = f"{site.stack.settings['HEADRACE_PREFIX']}.events"
    delivered: list[Message] = []
    producer = Producer({"bootstrap.servers": site.stack.kafka, "partitioner": "murmur2_random"})
    for event in said:
        producer.produce(topic, encode(event), run_id, on_delivery=lambda _, message: delivered.append(message))
    producer.flush(10)
    partition, offset = delivered[-1].partition(), delivered[-1].offset()
    applied = "SELECT next_offset > %s FROM partition_owner WHERE topic = %s AND partition = %s"
    eventually(lambda: site.query(applied, offset, topic, partition) == [(True,)], "the engine has read it", 20)


def check_report(site: Site) -> None:
    """The log, the metrics and the doctor say what happened; nothing else is wrong."""
    wait_until_healthy(site.stack, END_SECONDS, BACK_IN_TIME)
    found = faults_found(site.stack)["timeline"]
    assert found.startswith("the database went back in time: ")
    assert "timeline 2 since" in found
    said = [line for name, line in site.stack.lines if name.startswith("streams")]
    assert any("it failed over, or was restored" in line for line in said)
    assert any("the database went back in time" in line for line in said)
    page = httpx.get(f"{site.stack.api_url}/metrics", headers=site.stack.headers).text
    (count,) = [
        float(line.split()[1]) for line in page.splitlines() if line.startswith("headrace_lost_future_records_total")
    ]
    assert count >= RUNS * STEPS


def check_that_starts_come_again(site: Site, lost: Starts) -> None:
    """A run that was lost is unknown, and its caller can start it anew under the same key."""
    runs = dict(lost.accepted)
    answers = {
        httpx.get(f"{site.stack.api_url}/runs/{run_id}", headers=site.stack.headers).status_code
        for run_id in runs.values()
    }
    assert answers == {httpx.codes.NOT_FOUND}
    lost.repeat()
    assert not set(lost.accepted.values()) & set(runs.values())
    eventually(lost.have_completed, "what was lost and started again has completed", END_SECONDS)
    wait_until_healthy(site.stack, END_SECONDS, BACK_IN_TIME)
