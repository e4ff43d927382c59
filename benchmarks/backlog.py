"""`python -m benchmarks.backlog [--commands 200000] [--slots 64]`: a backlog is not taken for a loss.

Real Apache Kafka and real Postgres, lease 2 s, two streams processes, 16 partitions, no worker. Runs of ten independent
tasks each are started until so many commands wait in Kafka. They wait for 15 s, seven leases, while the sweeps look for
commands that were lost. Then one worker takes 0.2 s for each for 10 s, and works off the rest as fast as it can.

Published again is a command beyond the first of its task: a task, or an attempt, whose token is above one; and a record
of the command topic beyond the number of commands, by the ends of its partitions. The count is the larger of the two,
taken at the end. The time of waiting runs from the last command in Kafka to the worker's start, by the monotonic clock;
the rate is of attempts that began after the slow part, by the database's clock at their commit.

Exit code 1 when a command was published again, when a run did not complete, or when the sweep hardly ran.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.app import SLOW_SECONDS
from benchmarks.load import Load
from benchmarks.table import table
from benchmarks.workflows import independent
from headrace.embedded.kafka import ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.stack import Stack

ROOT: Final = Path(__file__).parent.parent
COMMANDS_DEFAULT: Final = 200_000
SLOTS_DEFAULT: Final = 64
LEASE_SECONDS: Final = 2.0
PARTITIONS: Final = 16
TASKS: Final = 10
RUNS_PER_TRANSACTION: Final = 50
WAIT_SECONDS: Final = 15.0
PATIENCE_SECONDS: Final = 120.0
COMMANDS_PER_SECOND_MIN: Final = 100.0
"""Below it the benchmark gives up: far slower than any machine that it is meant for."""
ASK_SECONDS: Final = 0.2
PASSES_MIN: Final = 3
"""Looks of the sweep for lost commands during the wait; with fewer, no re-publication proves nothing."""

WORKFLOW: Final = independent(TASKS, "bench.slow_at_first")
COMMANDS: Final = "headrace.commands.default"

_AGAIN: Final = "SELECT (SELECT count(*) FROM task WHERE token > 1), (SELECT count(*) FROM attempt WHERE token > 1)"
_OPEN: Final = "SELECT count(*) FROM run WHERE finished_at IS NULL"
_COMPLETED: Final = "SELECT count(*) FROM run WHERE status = 'completed'"
_LAST_LOOK: Final = "SELECT at FROM sweep_pass WHERE name = 'lost'"
_RATE: Final = """
SELECT count(*) / nullif(extract(epoch FROM max(ended_at) - min(ended_at)), 0)::float
FROM attempt WHERE started_at > (SELECT min(started_at) FROM attempt) + make_interval(secs => %(slow)s)"""


class Backlog:
    def __init__(self, stack: Stack, postgres: EmbeddedPostgres, kafka: ApacheKafka, commands: int) -> None:
        self._stack, self._commands = stack, commands
        self._connection = psycopg.connect(postgres.dsn, autocommit=True)
        reader = {"bootstrap.servers": kafka.bootstrap, "group.id": "backlog", "log_level": 0}
        self._reader = Consumer(reader)  # never subscribes

    def pile_up(self) -> float:
        """Start the runs, and wait until all commands are in Kafka; seconds."""
        began = time.monotonic()
        httpx.post(f"{self._stack.api_url}/workflows", headers=self._stack.headers, json=WORKFLOW).raise_for_status()
        Load(WORKFLOW["name"]).burst(self._commands // TASKS, RUNS_PER_TRANSACTION)
        until(lambda: self._in_kafka() >= self._commands, PATIENCE_SECONDS, "all commands are in Kafka")
        return time.monotonic() - began

    def wait(self) -> tuple[float, int]:
        """Let the sweeps look at what nobody takes; seconds, and how often they looked."""
        began, passes = time.monotonic(), set[Any]()
        while time.monotonic() < began + WAIT_SECONDS:
            passes.add(self._one(_LAST_LOOK))
            time.sleep(ASK_SECONDS)
        return time.monotonic() - began, len(passes) - 1

    def work_off(self, slots: int) -> float:
        """Start the worker, and wait for the last run; steps per second once it was no longer slow."""
        self._stack.add_worker(slots=slots)
        patience = PATIENCE_SECONDS + self._commands / COMMANDS_PER_SECOND_MIN
        until(lambda: not self._one(_OPEN), patience, "all runs have ended")
        return float(self._one(_RATE, slow=SLOW_SECONDS) or 0.0)

    def published_again(self) -> int:
        row = self._connection.execute(_AGAIN.encode()).fetchone() or (0, 0)
        return max(int(row[0]), int(row[1]), self._in_kafka() - self._commands)

    def incomplete(self) -> int:
        return self._commands // TASKS - int(self._one(_COMPLETED))

    def _one(self, sql: str, **values: Any) -> Any:
        row = self._connection.execute(sql.encode(), values or None).fetchone()
        return row[0] if row else None

    def _in_kafka(self) -> int:
        """Records of the command topic so far; 0 while Kafka does not tell."""
        try:
            places = [TopicPartition(COMMANDS, number) for number in range(PARTITIONS)]
            return sum(self._reader.get_watermark_offsets(place, timeout=5.0)[1] for place in places)
        except KafkaException:
            return 0

    def close(self) -> None:
        self._reader.close()
        self._connection.close()


def until(fact: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a fact. Raises SystemExit after so long."""
    end = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > end:
            raise SystemExit(f"backlog: not within {seconds:g} s: {what}")
        time.sleep(ASK_SECONDS)


def run(backlog: Backlog, commands: int, slots: int) -> None:
    """All of it. Raises SystemExit when the result is not as it must be."""
    piled = backlog.pile_up()
    waited, passes = backlog.wait()
    early = backlog.published_again()
    rate = backlog.work_off(slots)
    again, incomplete = backlog.published_again(), backlog.incomplete()
    rows = [
        ("seconds until all commands were in Kafka", f"{piled:.1f}"),
        ("seconds of waiting", f"{waited:.1f}"),
        ("looks of the sweep for lost commands meanwhile", f"{passes}"),
        ("published again by then", f"{early}"),
        ("published again at the end", f"{again}"),
        (f"steps/s when worked off by {slots} slots", f"{rate:,.0f}"),
    ]
    print(table(f"backlog of {commands} commands, load average {os.getloadavg()[0]:.1f}", rows))
    told = f"{again} re-published, {waited:.1f} seconds waiting, {rate:.0f} steps/s when worked off"
    print(f"backlog: {commands} commands, {told}", flush=True)
    if again or incomplete:
        raise SystemExit(f"backlog: {again} commands were published again, {incomplete} runs did not complete")
    if passes < PASSES_MIN:
        raise SystemExit(f"backlog: the sweep looked {passes} times only, so nothing is shown")


def measure(commands: int = COMMANDS_DEFAULT, slots: int = SLOTS_DEFAULT) -> None:
    """All of it, on a stack of its own. Raises SystemExit when the result is not as it must be."""
    with (
        EmbeddedPostgres(shared_buffers="512MB") as postgres,
        ApacheKafka(fetch_jars(), session_timeout_ms=2_000, heartbeat_interval_ms=400) as kafka,
        Stack(
            ROOT / "benchmarks" / "app.py",
            kafka=kafka.bootstrap,
            postgres=postgres.url,
            workers=0,
            streams=2,
            lease_seconds=LEASE_SECONDS,
            partitions=PARTITIONS,
            log_level="warning",
            log=lambda name, line: print(f"{name}: {line}", file=sys.stderr),
        ) as stack,
    ):
        os.environ.update(stack.settings)  # `Load` is an engine process's start path, and is set up like one
        with contextlib.closing(Backlog(stack, postgres, kafka, commands)) as backlog:
            run(backlog, commands, slots)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backlog")
    parser.add_argument("--commands", type=int, default=COMMANDS_DEFAULT, help=f"a multiple of {TASKS}")
    parser.add_argument("--slots", type=int, default=SLOTS_DEFAULT, help="of the worker that works it off")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    measure(max(1, options.commands // TASKS) * TASKS, options.slots)


if __name__ == "__main__":
    main()
