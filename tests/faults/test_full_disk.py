"""F23, F24: the disk of Postgres, and of Kafka, is full for a while. What was accepted ends, and nobody repairs
anything: somebody makes room, and starts a server that gave up."""

import contextlib
import sqlite3
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg
import pytest

from headrace.embedded.kafka import ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.stack import Stack
from tests.faults.small_disk import CannotMount, SmallDisk
from tests.faults.starts import Starts, eventually, query, says_come_again, wait_until_healthy

pytestmark = pytest.mark.slow

WORKFLOW: dict[str, Any] = {
    "name": "disks",
    "tasks": {
        "first": {"run": "faults.quick", "with": "${{ input }}"},
        "left": {"run": "faults.quick", "needs": ["first"], "with": "${{ tasks.first.output }}"},
        "right": {"run": "faults.quick", "needs": ["first"], "with": "${{ input }}"},
        "last": {"run": "faults.quick", "needs": ["left", "right"], "with": "${{ tasks.left.output }}"},
    },
}
STEPS = 4
RUNS = 20
REFUSED = 10
REFUSED_WHILE_AWAY = 3
"""Each takes as long as the API waits for a connection."""
LEASE_SECONDS = 2.0
END_SECONDS = 30.0
DATA_MIB, WAL_MIB, KAFKA_MIB = 256, 192, 64
"""A new cluster has 40 MiB of data, and two segments of 16 MiB of log; Kafka has little more than it was sent."""
PADDING = "".join(f"{number * 2_654_435_761 % 2**32:08x}" for number in range(1_000))
"""8 kB that compress badly, so that every run needs blocks of its own."""


class ServerWithLogElsewhere(EmbeddedPostgres):
    """One that can still say what happens when its own disk is full."""

    log_file: Path

    @property
    def log(self) -> Path:
        return self.log_file


class Site(NamedTuple):
    """A stack whose Postgres has its data and its write-ahead log on two small disks."""

    server: EmbeddedPostgres
    data: SmallDisk
    wal: SmallDisk
    stack: Stack
    starts: Starts
    ledger: Path

    def end_well(self) -> None:
        """Room has been made. Everything goes on from here with no repair: what was accepted ends, within a bound."""
        self.starts.insist()
        eventually(self.starts.have_completed, "every run that was accepted has completed", END_SECONDS)
        self.starts.check()
        check_effects(self.ledger, len(self.starts.accepted))
        wait_until_healthy(self.stack)


@contextmanager
def small_disk(mib: int) -> Generator[SmallDisk]:
    try:
        disk = SmallDisk(mib)
    except CannotMount as error:
        pytest.skip(f"no small file system can be mounted here: {error}")
    with disk:
        yield disk


@contextmanager
def server_on(data: SmallDisk, wal: SmallDisk, log: Path) -> Generator[EmbeddedPostgres]:
    server = ServerWithLogElsewhere(data.path / "postgres", settings={"min_wal_size": "32MB", "max_wal_size": "64MB"})
    server.log_file = log
    with server:
        assert server.data_dir.is_relative_to(data.path), "its account cannot reach the small disk"
        server.stop()
        subprocess.run(["mv", server.data_dir / "pg_wal", wal.path], check=True)  # with its owner, which is not us
        (server.data_dir / "pg_wal").symlink_to(wal.path / "pg_wal")
        yield server.start()


@contextmanager
def stack_on(folder: Path, *, slot: str = "headrace", **servers: Any) -> Generator[Stack]:
    with sqlite3.connect(folder / "ledger.db") as ledger:
        ledger.execute("CREATE TABLE effect (effect_key text, attempt int, token int)")
    with Stack(
        Path(__file__).with_name("faults_app.py"),
        data=folder / "data",
        lease_seconds=LEASE_SECONDS,
        log_level="warning",
        settings={"LEDGER": str(folder / "ledger.db"), "HEADRACE_SLOT": slot, "HEADRACE_RELAY_LEASE": "2"},
        **servers,
    ) as made:
        httpx.post(f"{made.api_url}/workflows", headers=made.headers, json=WORKFLOW).raise_for_status()
        made.wait_workers(1)
        yield made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with (
        small_disk(DATA_MIB) as data,
        small_disk(WAL_MIB) as wal,
        server_on(data, wal, folder / "server.log") as server,
        stack_on(folder, postgres=server.url) as stack,
        Starts(stack, "disks") as starts,
    ):
        yield Site(server, data, wal, stack, starts, folder / "ledger.db")


def check_effects(ledger: Path, runs: int) -> None:
    """Every task of every run has had its effect."""
    with sqlite3.connect(ledger) as connection:
        assert connection.execute("SELECT count(DISTINCT effect_key) FROM effect").fetchone() == (runs * STEPS,)


def test_f23_a_full_data_disk_refuses_starts_cleanly_and_loses_none(site: Site):
    site.starts.start_all(RUNS, padding=PADDING)
    while len(site.starts.refused) < REFUSED:
        site.data.fill()
        site.starts.start(padding=PADDING)
    assert "No space left on device" in site.server.log.read_text()
    assert httpx.get(f"{site.stack.api_url}/runs", headers=site.stack.headers).status_code == httpx.codes.OK, (
        "reading needs no room"
    )

    with contextlib.suppress(psycopg.OperationalError):
        query(site.stack.postgres, "CHECKPOINT")  # it needs room of its own: the server goes down and recovers
    site.data.fill()
    for _ in range(REFUSED_WHILE_AWAY):
        site.starts.start(padding=PADDING)

    site.data.free()
    site.end_well()


def test_f23_a_full_disk_of_the_write_ahead_log_stops_postgres_and_loses_nothing(site: Site):
    site.starts.start_all(RUNS, padding=PADDING)
    said_before = site.server.log.stat().st_size
    while site.server.is_running:
        site.wal.fill()
        site.starts.start(padding=PADDING)
        with contextlib.suppress(psycopg.OperationalError):
            query(site.stack.postgres, "SELECT pg_switch_wal()")
    said = site.server.log.read_bytes()[said_before:].decode()
    assert 'PANIC:  could not write to file "pg_wal/' in said
    refused = httpx.post(
        f"{site.stack.api_url}/workflows/disks/runs", headers=site.stack.headers, json={"input": {"n": 0}}
    )
    assert says_come_again(refused)

    site.wal.free()
    site.server.kill9()  # it is gone; this lets go of what we held of it
    site.server.start()
    site.end_well()


@pytest.fixture
def kafka_on_small_disk(tmp_path: Path) -> Iterator[tuple[ApacheKafka, SmallDisk]]:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with small_disk(KAFKA_MIB) as disk:
        (folder / "log").symlink_to(disk.path)  # its configuration and what it says stay outside
        with ApacheKafka(fetch_jars(), folder, session_timeout_ms=2_000, heartbeat_interval_ms=400) as kafka:
            yield kafka, disk


def test_f24_a_full_disk_of_kafka_makes_the_outbox_grow_and_loses_nothing(
    kafka_on_small_disk: tuple[ApacheKafka, SmallDisk], database: str, tmp_path: Path
):
    kafka, disk = kafka_on_small_disk
    with (
        stack_on(tmp_path, slot="full_disk", kafka=kafka.bootstrap, postgres=database) as stack,
        Starts(stack, "disks") as starts,
    ):
        starts.start_all(RUNS, padding=PADDING)
        while kafka.is_running:
            disk.fill()
            starts.start_all(1, padding=PADDING)
        assert "No space left on device" in kafka.log.read_text()
        starts.start_all(RUNS, padding=PADDING)
        eventually(
            lambda: outbox_lag_bytes(stack) > RUNS * len(PADDING), "what operations.md says to watch tells of it"
        )
        assert len(starts.accepted) > len(completed(stack)), "nothing ends without Kafka"

        disk.free()
        kafka.kill9()  # as above
        kafka.start()
        eventually(starts.have_completed, "every run that was accepted has completed", END_SECONDS)
        eventually(lambda: outbox_lag_bytes(stack) < len(PADDING), "the outbox has drained", END_SECONDS)
        starts.check()
        check_effects(tmp_path / "ledger.db", len(starts.accepted))
        wait_until_healthy(stack)


def outbox_lag_bytes(stack: Stack) -> float:
    """`headrace_outbox_lag_bytes`, as an operator's alert sees it."""
    lines = httpx.get(f"{stack.api_url}/metrics", headers=stack.headers).text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith("headrace_outbox_lag_bytes ")]
    return float(value)


def completed(stack: Stack) -> list[Any]:
    return query(stack.postgres, "SELECT run_id FROM run WHERE status = 'completed'")
