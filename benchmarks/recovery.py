"""`python -m benchmarks.recovery [--repeat N] [--only worker,host,…]`: how long each kind of failure holds work up.

Real Apache Kafka and real Postgres, lease 2 s, the broker's session time-out 2 s with heartbeats every 0.4 s, two
processes each of workers, streams and relays (the relays with their default lease of 5 s), 4 partitions. What is killed
is killed by SIGKILL, at a moment drawn from a seed, once everything before it has settled.

healthy   nothing is killed: no task changes hands
worker    the process in which a long body runs; its parent lives -> the task's next attempt begins
host      that worker with its parent -> the task's next attempt begins
streams   one of two, under load -> every run that was open has had its next step begun, or has ended; every partition
          of the killed process has committed an attempt; and the longest that any step of a run waited, of those that
          were open and those started in the next seconds: from the end of the step before it (from the start of its
          run, from the kill) until it began
relay     the one that publishes, under load -> the first task of a run started after it begins
postgres  the server, under load, started again at once -> from the end of its start to the first committed attempt
kafka     the broker, under load, started again at once on its data -> from its first answer about metadata to the
          first committed attempt
wiped     the broker, with 200 commands that no worker takes, started again on an empty folder, and then the workers ->
          from its first answer to the last of these commands in its log again, and to the end of all runs

Times are seconds. Bodies begin by their worker's clock, commits are known by the database's (the start of the
transaction), kills by this process's: one machine, so all three are the kernel's realtime clock, and a measurement
during which that was set is refused. The load is an open loop over HTTP: a start is due at its time, is repeated under
its key until it is accepted, and does not wait for the one before. What is measured under it begins at the fault and
not at a start, so a start that was late hides nothing.

Every run that was accepted must complete; otherwise the exit code is 1. A goal that is missed is told, and no error.
Writes `.scratch/bench/recovery.json`, and what the processes said to `.scratch/bench/recovery.log`.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TextIO, TypeVar

import httpx
import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition, murmur2
from confluent_kafka.admin import AdminClient

from benchmarks.pgbench import single_row_commits
from benchmarks.table import spread, spreads, table
from benchmarks.workflows import VICTIM, independent, linear
from headrace.embedded.kafka import ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import free_port
from headrace.stack import Stack

ROOT: Final = Path(__file__).parent.parent
SCRATCH: Final = ROOT / ".scratch" / "bench"

LEASE_SECONDS: Final = 2.0
SESSION_SECONDS: Final = 2.0
HEARTBEAT_SECONDS: Final = 0.4
PARTITIONS: Final = 4
RATE: Final = 10.0
"""Runs per second of three steps of 0.1 s each: light, and every partition has some records in every second."""
WARM_SECONDS: Final = 6.0
HEALTHY_SECONDS: Final = 10.0
QUEUED: Final = 200
CALIBRATION_SECONDS: Final = 4
WORKERS: Final = ("worker-1", "worker-2")
PHASE_SECONDS: Final = 1.0
"""A kill comes at any moment of a heartbeat's, a sweep's and a renewal's interval."""
AFTERMATH_SECONDS: Final = 8.0
"""So long after a kill, runs that start are still looked at: two takeovers' worth."""
PATIENCE_SECONDS: Final = 60.0
CLOCK_STEP_SECONDS: Final = 0.05
ASK_SECONDS: Final = 0.02
STEADY_LOOKS: Final = 4
STEADY_SECONDS: Final = 0.15

CHAIN: Final = linear(3, "bench.nap")
SINGLE: Final = independent(1)
COMMANDS: Final = "headrace.commands.default"
EVENTS: Final = "headrace.events"
HEARTBEATS: Final = "headrace.workers"
WORKERS_GROUP: Final = "headrace.workers"

T = TypeVar("T")
Sample = dict[str, float]
"""What one fault showed: a name of GOALS -> seconds."""


class Goal(NamedTuple):
    seconds: float | None
    """None: told for what it explains."""
    is_median: bool = False
    """Whether the median has to reach it, and not every one."""
    digits: int = 3
    """0: a count, and no time."""


NEXT: Final = "next attempt"
DECIDED: Final = "the loss is decided"
OPEN_RUNS: Final = "the last open run goes on"
MOVED: Final = "its last partition goes on"
WAITED: Final = "longest wait of a step"
FIRST_STEP: Final = "first step of a new run"
PROGRESS: Final = "first progress"
CAUGHT_UP: Final = "all that was started before ends"
AWAY: Final = "(how long it was away)"
REPUBLISHED: Final = "all commands are there again"
COMPLETE: Final = "all runs end"
TAKEOVERS: Final = "takeovers, a count"
READS_HEARTBEATS: Final = "1 when it read the heartbeats"
LATENCY: Final = "due -> first step"

GOALS: Final[dict[str, dict[str, Goal]]] = {
    "healthy": {TAKEOVERS: Goal(0.0, digits=0), LATENCY: Goal(None)},
    "worker": {NEXT: Goal(0.5, is_median=True), DECIDED: Goal(None)},
    "host": {NEXT: Goal(LEASE_SECONDS + 1), DECIDED: Goal(None)},
    "streams": {
        OPEN_RUNS: Goal(SESSION_SECONDS + 2),
        MOVED: Goal(SESSION_SECONDS + 2),
        WAITED: Goal(SESSION_SECONDS + 2),
        TAKEOVERS: Goal(None, digits=0),
        READS_HEARTBEATS: Goal(None, digits=0),
    },
    "relay": {FIRST_STEP: Goal(None)},
    "postgres": {PROGRESS: Goal(5.0), CAUGHT_UP: Goal(None), AWAY: Goal(None)},
    "kafka": {PROGRESS: Goal(5.0), CAUGHT_UP: Goal(None), AWAY: Goal(None)},
    "wiped": {
        REPUBLISHED: Goal(30.0),
        COMPLETE: Goal(30.0),
        AWAY: Goal(None),
        TAKEOVERS: Goal(None, digits=0),
    },
}

_RUNNER: Final = """
SELECT worker FROM task JOIN worker_session USING (session_id) WHERE run_id = %(run)s AND status = 'running'"""
_VICTIM: Final = """
SELECT extract(epoch FROM a.started_at)::float, extract(epoch FROM l.ended_at)::float
FROM attempt a JOIN attempt l ON l.run_id = a.run_id AND l.outcome = 'lost'
WHERE a.run_id = %(run)s AND a.outcome = 'completed' ORDER BY l.ended_at LIMIT 1"""
_TAKEOVERS: Final = "SELECT coalesce(sum(token - 1), 0) FROM task WHERE token > 1"
_LATENCY: Final = """
SELECT extract(epoch FROM a.started_at)::float - (r.input ->> 'due')::float
FROM run r JOIN attempt a ON a.run_id = r.run_id AND a.task = 0 AND a.started_at IS NOT NULL
WHERE r.created_at > to_timestamp(%(since)s)"""
_STARTED_AND_OPEN: Final = """
SELECT count(*) FROM run WHERE created_at <= to_timestamp(%(at)s) AND finished_at IS NULL"""
_OPEN_RUNS: Final = """
SELECT max(extract(epoch FROM coalesce(b.started_at, a.ended_at)))::float
FROM run r
CROSS JOIN LATERAL (
  SELECT * FROM attempt WHERE run_id = r.run_id AND ended_at > to_timestamp(%(at)s) ORDER BY ended_at LIMIT 1) a
LEFT JOIN attempt b ON b.run_id = a.run_id AND b.task = a.task + 1 AND b.outcome = 'completed'
WHERE r.created_at <= to_timestamp(%(at)s)"""
"""The first result of each run that was committed after a moment: when the step behind it began, or the run ended."""
_LONGEST_WAIT: Final = """
SELECT max(extract(epoch FROM a.started_at - greatest(b.finished_at, r.created_at, to_timestamp(%(at)s))))::float
FROM run r
JOIN attempt a ON a.run_id = r.run_id AND a.outcome = 'completed' AND a.started_at > to_timestamp(%(at)s)
LEFT JOIN attempt b ON b.run_id = a.run_id AND b.task = a.task - 1 AND b.outcome = 'completed'
WHERE r.created_at <= to_timestamp(%(until)s)"""
_COMMITS: Final = """
SELECT run_id::text, extract(epoch FROM min(ended_at))::float FROM attempt
WHERE ended_at > to_timestamp(%(at)s) GROUP BY 1"""
_FIRST_STEP: Final = """
SELECT min(extract(epoch FROM a.started_at))::float FROM run r JOIN attempt a ON a.run_id = r.run_id AND a.task = 0
WHERE r.created_at > to_timestamp(%(at)s)"""
_PROGRESS: Final = """
SELECT extract(epoch FROM min(ended_at))::float FROM attempt WHERE ended_at > to_timestamp(%(at)s)"""
_LAST_END: Final = """
SELECT extract(epoch FROM max(finished_at))::float FROM run WHERE created_at <= to_timestamp(%(at)s)"""
_LIVE: Final = "SELECT count(*) FROM worker_session WHERE ended_at IS NULL AND expires_at > clock_timestamp()"
_OWNERS: Final = "SELECT partition, split_part(owner, '/', 2)::int FROM partition_owner WHERE topic = %(topic)s"
_PUBLISHER: Final = """
SELECT split_part(owner, ':', 2)::int FROM relay_owner WHERE renewed_at > clock_timestamp() - interval '2 seconds'"""
_COMPLETED: Final = "SELECT run_id::text FROM run WHERE status = 'completed'"
_STATUSES: Final = "SELECT status::text, count(*) FROM run GROUP BY 1 ORDER BY 1"


class Rig:
    """The stack under test, and who looks at it."""

    def __init__(self, stack: Stack, postgres: EmbeddedPostgres, kafka: ApacheKafka) -> None:
        self.stack, self.postgres, self.kafka = stack, postgres, kafka
        self.draw = random.Random(1)
        self.client = httpx.Client(base_url=stack.api_url, headers=stack.headers, timeout=10)
        self.accepted: set[str] = set()
        """The runs whose start was answered."""
        self._connection: psycopg.Connection[Any] | None = None

    # -- asking
    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Ask Postgres, once more over a new connection when the last one is gone."""
        try:
            return self._connect().execute(sql.encode(), values).fetchall()
        except psycopg.OperationalError:
            self._connection = None
            return self._connect().execute(sql.encode(), values).fetchall()

    def one(self, sql: str, **values: Any) -> Any:
        return next((row[0] for row in self.rows(sql, **values)), None)

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(self.postgres.dsn, autocommit=True, connect_timeout=5)
        return self._connection

    def start(self, workflow: str, key: str, **given: Any) -> str:
        """Start a run over HTTP, again under its key until the answer is there; its id."""
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = self.client.post(f"/workflows/{workflow}/runs", json={"input": given, "key": key})
                if not answer.is_server_error:
                    self.accepted.add(run_id := str(answer.raise_for_status().json()["run_id"]))
                    return run_id
            time.sleep(0.1)

    # -- before a fault
    def settle(self) -> None:
        """Wait until every process is a member of its group with its share, and nothing is late; then for any moment
        of the intervals that are about to matter."""
        looks = 0
        end = time.monotonic() + PATIENCE_SECONDS
        while looks < STEADY_LOOKS:
            looks = looks + 1 if (problem := self._problem()) is None else 0
            if time.monotonic() > end:
                raise SystemExit(f"recovery: not settled within {PATIENCE_SECONDS:g} s: {problem}")
            time.sleep(STEADY_SECONDS)
        time.sleep(self.draw.uniform(0, PHASE_SECONDS))

    def _problem(self) -> str | None:
        if (live := self.one(_LIVE)) != 2:
            return f"{live} live worker sessions"
        if (shares := self._worker_shares()) != [PARTITIONS / 2] * 2:
            return f"shares of the workers {shares}"
        if len(owners := self.streams_owners()) != 2:
            return f"partitions by streams process {owners}"
        if self.publisher() is None:
            return "no relay publishes"
        if late := self.one(_STARTED_AND_OPEN, at=time.time() - 2.0):
            return f"{late} runs are late"
        return None

    def _worker_shares(self) -> list[int]:
        """Partitions of each member of the workers' group; empty while the broker cannot tell."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})
        try:
            group = admin.describe_consumer_groups([WORKERS_GROUP])[WORKERS_GROUP].result(5)
        except (KafkaException, TimeoutError):
            return []
        return [len(member.assignment.topic_partitions) for member in group.members]

    def streams_owners(self, topic: str = EVENTS) -> dict[str, list[int]]:
        """Streams process -> its partitions of a topic; empty while one belongs to a process that is gone."""
        names = {pid: name for name, pid in self.stack.pids().items()}
        owners: dict[str, list[int]] = {}
        for partition, pid in self.rows(_OWNERS, topic=topic):
            owners.setdefault(names.get(pid, "gone"), []).append(partition)
        return owners if "gone" not in owners else {}

    def publisher(self) -> str | None:
        """The relay that owns the slot."""
        pid = self.one(_PUBLISHER)
        return next((name for name, known in self.stack.pids().items() if known == pid), None)

    # -- after it
    def ends(self, at: float) -> float:
        """Wait until every run that was started by then has ended; when the last one did."""
        eventually(lambda: not self.one(_STARTED_AND_OPEN, at=at), "every run ends")
        return float(self.one(_LAST_END, at=at))

    def takeovers(self) -> float:
        """Hand-outs beyond the first of a task so far: no body here fails, so each was taken for lost."""
        return float(self.one(_TAKEOVERS))

    def answers_metadata(self) -> float:
        """Wait until the broker answers about its topics; when it did."""
        admin = AdminClient(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,
            }
        )

        def answers() -> bool:
            try:
                return bool(admin.list_topics(timeout=0.5).brokers)
            except KafkaException:
                return False

        eventually(answers, "Kafka answers")
        return time.time()


class CommandLog:
    """The command topic, as long as it is the same log: a client may not cross a wipe."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self._reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "recovery", "log_level": 0})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def length(self) -> int:
        """Records in it; 0 while the broker cannot tell."""
        try:
            places = [TopicPartition(COMMANDS, number) for number in range(PARTITIONS)]
            return sum(self._reader.get_watermark_offsets(place, timeout=2.0)[1] for place in places)
        except KafkaException:
            return 0


def eventually(fact: Callable[[], T | None], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """Ask until the answer is neither empty nor None, and give it. Raises SystemExit after so long."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            if found := fact():
                return found
        if time.monotonic() > end:
            raise SystemExit(f"recovery: not within {seconds:g} s: {what}")
        time.sleep(ASK_SECONDS)


class Arrivals:
    """An open loop of starts, in threads of its own, while the block lasts; leaving it waits for all answers."""

    def __init__(self, rig: Rig, workflow: str, label: str) -> None:
        self._rig, self._workflow, self._label = rig, workflow, label
        self._halt = threading.Event()
        self._pool = ThreadPoolExecutor(32)
        self._starts: list[Future[str]] = []
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._halt.set()
        self._thread.join()
        if error is None:
            for start in self._starts:
                start.result(PATIENCE_SECONDS)
        self._pool.shutdown(wait=error is None, cancel_futures=True)

    def _run(self) -> None:
        first = time.time()
        number = 0
        while not self._halt.wait(max(0.0, first + number / RATE - time.time())):
            due, key = first + number / RATE, f"{self._label}-{first:.3f}-{number}"
            self._starts.append(self._pool.submit(self._rig.start, self._workflow, key, due=due))
            number += 1


# == the faults ======================================================================================================
def healthy(rig: Rig) -> list[Sample]:
    """Nothing happens, and nothing is taken over."""
    rig.settle()
    since, before = time.time(), rig.takeovers()
    time.sleep(HEALTHY_SECONDS)
    samples: list[Sample] = [{LATENCY: row[0]} for row in rig.rows(_LATENCY, since=since)]
    return [{TAKEOVERS: rig.takeovers() - before}, *samples]


def lose_body(rig: Rig) -> Sample:
    return _lose_holder(rig, rig.stack.kill9_body)


def lose_host(rig: Rig) -> Sample:
    return _lose_holder(rig, rig.stack.kill9)


def _lose_holder(rig: Rig, kill: Callable[[str], object]) -> Sample:
    """Kill whoever runs a body that would last for a minute."""
    rig.settle()
    run = rig.start(VICTIM["name"], f"victim-{time.time()}")
    return kill_holder(rig.rows, run, kill, rig.draw.uniform(0, PHASE_SECONDS))


def kill_holder(
    rows: Callable[..., list[tuple[Any, ...]]], run: str, kill: Callable[[str], object], phase: float
) -> Sample:
    """Kill the worker that runs the only task of a run of VICTIM, `phase` seconds after it is known to.

    rows: asks Postgres. kill: ends a worker by its name.
    """
    ((name,),) = eventually(lambda: rows(_RUNNER, run=run), "the body is known to run")
    time.sleep(phase)
    at = time.time()
    kill(name)
    ((began, decided),) = eventually(lambda: rows(_VICTIM, run=run), "the task is tried again")
    return {NEXT: began - at, DECIDED: decided - at}


def lose_streams(rig: Rig) -> Sample:
    rig.settle()
    reads_heartbeats = rig.draw.random() < 0.5
    name, partitions = next(
        (name, partitions)
        for name, partitions in rig.streams_owners().items()
        if (name in rig.streams_owners(HEARTBEATS)) == reads_heartbeats
    )
    before, at = rig.takeovers(), time.time()
    rig.stack.kill9(name)
    moved = eventually(lambda: _all_commit(rig, partitions, at), "its partitions go on")
    time.sleep(max(0.0, at + AFTERMATH_SECONDS - time.time()))
    rig.ends(at + AFTERMATH_SECONDS)
    return {
        OPEN_RUNS: float(rig.one(_OPEN_RUNS, at=at) or at) - at,
        MOVED: moved - at,
        WAITED: float(rig.one(_LONGEST_WAIT, at=at, until=at + AFTERMATH_SECONDS)),
        TAKEOVERS: rig.takeovers() - before,
        READS_HEARTBEATS: float(reads_heartbeats),
    }


def _all_commit(rig: Rig, partitions: list[int], at: float) -> float | None:
    """When the last of the partitions had an attempt committed after a moment; None while one has not."""
    first: dict[int, float] = {}
    for run_id, committed in rig.rows(_COMMITS, at=at):
        partition = murmur2(run_id.encode(), PARTITIONS)
        first[partition] = min(first.get(partition, committed), committed)
    return max(first[p] for p in partitions) if first.keys() >= set(partitions) else None


def lose_relay(rig: Rig) -> Sample:
    rig.settle()
    name = eventually(rig.publisher, "a relay publishes")
    at = time.time()
    rig.stack.kill9(name)
    return {FIRST_STEP: eventually(lambda: rig.one(_FIRST_STEP, at=at), "a run begins") - at}


def lose_postgres(rig: Rig) -> Sample:
    rig.settle()
    at = time.time()
    rig.postgres.kill9()
    rig.postgres.start()
    back = time.time()
    progress = eventually(lambda: rig.one(_PROGRESS, at=at), "an attempt is committed")
    return {PROGRESS: max(0.0, progress - back), CAUGHT_UP: rig.ends(back) - back, AWAY: back - at}


def lose_kafka(rig: Rig) -> Sample:
    rig.settle()
    at = time.time()
    rig.kafka.kill9()
    rig.kafka.start()
    back = rig.answers_metadata()
    progress = eventually(lambda: rig.one(_PROGRESS, at=back), "an attempt is committed")
    return {PROGRESS: progress - back, CAUGHT_UP: rig.ends(back) - back, AWAY: back - at}


def wipe_kafka(rig: Rig) -> Sample:
    rig.settle()
    for name in WORKERS:
        rig.stack.supervisor.end(name)
    _queue_commands(rig)
    before, at = rig.takeovers(), time.time()
    rig.kafka.kill9()
    rig.kafka.wipe()
    rig.kafka.start()
    back = rig.answers_metadata()
    rig.stack.supervisor.restart(*WORKERS)
    eventually(lambda: rig.takeovers() >= before + QUEUED, "all are handed out again")
    with CommandLog(rig.kafka) as log:
        eventually(lambda: log.length() >= QUEUED, "all are published again")
    republished = time.time()
    return {
        REPUBLISHED: republished - back,
        COMPLETE: rig.ends(back) - back,
        AWAY: back - at,
        TAKEOVERS: rig.takeovers() - before,
    }


def _queue_commands(rig: Rig) -> None:
    """Start runs that nobody works on, and wait until their commands are in Kafka."""
    with CommandLog(rig.kafka) as log:
        length = log.length()
        for number in range(QUEUED):
            rig.start(SINGLE["name"], f"queued-{time.time()}-{number}")
        eventually(lambda: log.length() >= length + QUEUED, "the commands wait in Kafka")


class Kind(NamedTuple):
    measure: Callable[[Rig], Sample]
    is_loaded: bool
    repeat_max: int


FAULTS: Final[dict[str, Kind]] = {
    "worker": Kind(lose_body, False, 1000),
    "host": Kind(lose_host, False, 1000),
    "streams": Kind(lose_streams, True, 1000),
    "relay": Kind(lose_relay, True, 1000),
    "postgres": Kind(lose_postgres, True, 3),
    "kafka": Kind(lose_kafka, True, 3),
    "wiped": Kind(wipe_kafka, False, 3),
}


def measure(rig: Rig, name: str, repeat: int) -> list[Sample]:
    """All repetitions of one fault, one after the other."""
    load = (
        Arrivals(rig, CHAIN["name"], name) if name == "healthy" or FAULTS[name].is_loaded else contextlib.nullcontext()
    )
    with load:
        if name == "healthy":
            time.sleep(WARM_SECONDS)
            return healthy(rig)
        fault = FAULTS[name]
        samples: list[Sample] = []
        for _ in range(min(repeat, fault.repeat_max)):
            with one_clock():
                samples.append(fault.measure(rig))
            print(f"  {name}: " + ", ".join(f"{what} {value:.3f}" for what, value in samples[-1].items()), flush=True)
        return samples


@contextlib.contextmanager
def one_clock() -> Generator[None]:
    """Refuse a measurement during which the realtime clock was set."""
    before = time.time() - time.monotonic()
    yield
    if abs(time.time() - time.monotonic() - before) > CLOCK_STEP_SECONDS:
        raise SystemExit("recovery: the machine's clock was set during a measurement")


# == the end =========================================================================================================
def count_lost(rig: Rig) -> None:
    """Wait for what is open. Raises SystemExit unless every run that was accepted has completed."""
    with contextlib.suppress(SystemExit):
        rig.ends(time.time())
    lost = rig.accepted - {str(row[0]) for row in rig.rows(_COMPLETED)}
    if lost:
        raise SystemExit(
            f"recovery: {len(lost)} of {len(rig.accepted)} runs are lost: {rig.rows(_STATUSES)}, {min(lost)} …"
        )


def rows_of(results: dict[str, list[Sample]]) -> Iterator[tuple[str, str]]:
    for name, samples in results.items():
        for what, goal in GOALS[name].items():
            values = [sample[what] for sample in samples if what in sample]
            if not values:
                continue
            text = f"{spread(values, goal.digits)}  n = {len(values)}"
            if goal.seconds is not None:
                judged = statistics.median(values) if goal.is_median else max(values)
                which = "p50" if goal.is_median else "max"
                text += f"  goal {which} <= {goal.seconds:g}{'' if judged <= goal.seconds else '  MISSED'}"
            yield f"{name}: {what}", text


def summary(results: dict[str, list[Sample]]) -> str:
    def median_ms(name: str, what: str) -> str:
        values = [sample[what] for sample in results.get(name, [])]
        return f"{statistics.median(values) * 1000:.0f}" if values else "-"

    medians = {"worker": NEXT, "host": NEXT, "streams": OPEN_RUNS, "postgres": PROGRESS, "kafka": PROGRESS}
    told = " ".join(f"{name}_p50_ms={median_ms(name, what)}" for name, what in medians.items())
    wiped = [sample[COMPLETE] for sample in results.get("wiped", [])]
    return (
        f"recovery: {told} wiped_max_s={max(wiped):.1f} lost=0" if wiped else f"recovery: {told} wiped_max_s=- lost=0"
    )


@contextlib.contextmanager
def whole_rig(log: TextIO) -> Generator[Rig]:
    """Everything started, every workflow published. log: gets every line of every process with its time."""
    session, heartbeat = round(SESSION_SECONDS * 1000), round(HEARTBEAT_SECONDS * 1000)
    with (
        EmbeddedPostgres(port=free_port()) as postgres,  # a port that stays over restarts
        ApacheKafka(fetch_jars(), session_timeout_ms=session, heartbeat_interval_ms=heartbeat) as kafka,
        Stack(
            ROOT / "benchmarks" / "app.py",
            kafka=kafka.bootstrap,
            postgres=postgres.url,
            workers=2,
            streams=2,
            relays=2,
            lease_seconds=LEASE_SECONDS,
            partitions=PARTITIONS,
            log=lambda name, line: print(f"{time.time():.3f} {name:<9} {line}", file=log, flush=True),
        ) as stack,
    ):
        rig = Rig(stack, postgres, kafka)
        for workflow in (CHAIN, VICTIM, SINGLE):
            rig.client.post("/workflows", json=workflow).raise_for_status()
        stack.wait_workers(2)
        yield rig


def measure_all(names: Sequence[str], repeat: int) -> dict[str, Any]:
    """Measure these faults on a stack of their own, print the table, write the files; what is in the file.

    Raises SystemExit when a run that was accepted did not complete.
    """
    SCRATCH.mkdir(parents=True, exist_ok=True)
    load_average, results = [os.getloadavg()], dict[str, list[Sample]]()
    with (SCRATCH / "recovery.log").open("w") as log, whole_rig(log) as rig:
        pgbench = single_row_commits(rig.postgres, seconds=CALIBRATION_SECONDS)
        for name in names:
            results[name] = measure(rig, name, repeat)
        count_lost(rig)
        runs = len(rig.accepted)
    load_average.append(os.getloadavg())
    told = {
        "load_average": load_average,
        "pgbench_c8": pgbench,
        "runs": runs,
        "min_median_max": {name: spreads(samples) for name, samples in results.items()},
        "seconds": results,
    }
    (SCRATCH / "recovery.json").write_text(json.dumps(told, indent=1))
    loads = " … ".join(f"{average[0]:.1f}" for average in load_average)
    print(table(f"recovery, seconds: min / p50 / max; {runs} runs, load average {loads}", list(rows_of(results))))
    print(summary(results), flush=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery")
    parser.add_argument("--repeat", type=int, default=10, help="faults of each kind; of the slow kinds at most 3")
    parser.add_argument("--only", default=",".join(GOALS), help="kinds, in the order in which they are to run")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - GOALS.keys():
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    measure_all(names, options.repeat)


if __name__ == "__main__":
    main()
