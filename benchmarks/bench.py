"""One stack under measurement: puts loads on it, checks that every run ended as it must, and tells what they cost."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

import httpx
import psycopg

from benchmarks.processes import Sampler, log_bytes
from benchmarks.table import spread
from headrace.embedded.kafka import ApacheKafka
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.stack import Stack

ROOT: Final = Path(__file__).parent.parent
SAMPLE_SECONDS: Final = 0.2
MEMORY_SAMPLES: Final = 5
"""Memory is looked at once in so many samples."""
COUNTERS_SECONDS: Final = 2.5
"""The streams processes report their counters every two seconds."""
PUBLISH_SECONDS: Final = 60.0
ASK_SECONDS: Final = 0.05

Measurement = dict[str, Any]
"""What one load cost: numbers, and dictionaries of numbers."""

_STEP_LATENCY: Final = """
SELECT percentile_cont(ARRAY[0.5, 0.9, 0.99, 1]) WITHIN GROUP (ORDER BY ms) FROM (
  SELECT extract(epoch FROM b.started_at - a.finished_at) * 1e3 AS ms
  FROM attempt a JOIN attempt b ON b.run_id = a.run_id AND b.task = a.task + 1
  WHERE a.run_id > %(since)s) x"""
_FIRST_LATENCY: Final = """
SELECT percentile_cont(ARRAY[0.5, 0.9, 0.99, 1]) WITHIN GROUP (ORDER BY ms) FROM (
  SELECT extract(epoch FROM a.started_at) * 1e3 - (r.input ->> 'due')::numeric / 1e3 AS ms
  FROM run r JOIN attempt a ON a.run_id = r.run_id AND a.task = 0 WHERE r.run_id > %(since)s) x"""
_VERIFY: Final = """
SELECT count(*), count(*) FILTER (WHERE status = 'completed'),
  (SELECT count(*) FROM attempt WHERE run_id > %(since)s AND outcome = 'completed')
FROM run WHERE run_id > %(since)s"""
_BATCHES: Final = """
SELECT sample, value FROM engine_counter WHERE metric = 'headrace_batch_records' AND labels = '{}'"""
_SHARES: Final = ("p50", "p90", "p99", "max")


class Bench:
    def __init__(self, stack: Stack, postgres: EmbeddedPostgres, kafka: ApacheKafka, name: str) -> None:
        """name: of its database and of its topics' prefix."""
        self.stack, self.postgres, self.kafka, self.name = stack, postgres, kafka, name
        self.dsn = postgres.dsn_of(name)
        self._connection = psycopg.connect(self.dsn, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def publish(self, *workflows: Mapping[str, Any]) -> None:
        for workflow in workflows:
            answer = httpx.post(
                f"{self.stack.api_url}/workflows", headers=self.stack.headers, json=workflow, timeout=PUBLISH_SECONDS
            )
            answer.raise_for_status()

    # -- one measurement
    def measure(self, steps_per_run: int, *load: str, others: Mapping[str, int] | None = None) -> Measurement:
        """Run a load (the arguments of `benchmarks.load`) to its end; answers rates, CPU by part, bytes, latencies.
        others: more parts, by pid. Raises SystemExit when a run is not as it must be."""
        since, batches = run_id_of_now(), self._batches()
        with self.start_load(*load, "--on-word") as process:
            _read_line(process)
            with self.meter(others) as meter:
                told = _end_of(process, "begin\n")
        self._verify(since, told, steps_per_run)
        steps = told["runs"] * steps_per_run
        return {
            "runs": told["runs"],
            "seconds": told["seconds"],
            "steps_per_s": steps / told["seconds"],
            **meter.costs(steps),
            "records_per_transaction": self._records_per_transaction(batches),
            "first_ms": self._percentiles(_FIRST_LATENCY, since),
            "step_ms": self._percentiles(_STEP_LATENCY, since),
        }

    def load(self, *arguments: str) -> dict[str, Any]:
        """What `benchmarks.load` tells at its end."""
        with self.start_load(*arguments) as process:
            return _end_of(process)

    def start_load(self, *arguments: str) -> "subprocess.Popen[str]":
        """The same, not waited for."""
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load", *arguments],
            env={**os.environ, **self.stack.settings, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def meter(self, others: Mapping[str, int] | None = None) -> "Meter":
        return Meter(self, others)

    def sampler(self, others: Mapping[str, int] | None = None) -> Sampler:
        roots = {**self.stack.pids(), "broker": self.kafka.pid or 0, **(others or {})}
        return Sampler(roots, self.postgres.pid or 0)

    # -- asking
    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql.encode(), values or None).fetchall()

    def execute(self, sql: str, **values: Any) -> int:
        """How many rows it changed."""
        return self._connection.execute(sql.encode(), values or None).rowcount

    def one(self, sql: str, **values: Any) -> Any:
        return next((row[0] for row in self.rows(sql, **values)), None)

    def wait(self, fact: Callable[[], bool], seconds: float, what: str, *, ask_seconds: float = ASK_SECONDS) -> None:
        """Wait for a fact. Raises SystemExit after so long."""
        end = time.monotonic() + seconds
        while not fact():
            if time.monotonic() > end:
                raise SystemExit(f"bench: not within {seconds:g} s: {what}")
            time.sleep(ask_seconds)

    def kafka_bytes(self) -> int:
        return log_bytes(self.kafka.data_dir, f"{self.name}.")

    def _percentiles(self, sql: str, since: UUID) -> dict[str, float]:
        found = self.one(sql, since=since) or []
        return {name: round(float(x), 2) for name, x in zip(_SHARES, found, strict=False) if x is not None}

    def _batches(self) -> tuple[float, float]:
        """Records and transactions of the run agents so far, as of their last report."""
        found = dict(self.rows(_BATCHES))
        return found.get("headrace_batch_records_sum", 0.0), found.get("headrace_batch_records_count", 0.0)

    def _records_per_transaction(self, before: tuple[float, float]) -> float:
        time.sleep(COUNTERS_SECONDS)
        records, transactions = self._batches()
        return (records - before[0]) / max(1.0, transactions - before[1])

    def _verify(self, since: UUID, told: dict[str, Any], steps_per_run: int) -> None:
        runs, completed, attempts = self.rows(_VERIFY, since=since)[0]
        if told["left"] or not (runs == completed == told["runs"] and attempts == runs * steps_per_run):
            raise SystemExit(
                f"bench: wrong result: {told}, runs {runs}, completed {completed}, attempts completed {attempts}"
            )


class Meter:
    """What the processes of a stack use while the block lasts."""

    def __init__(self, bench: Bench, others: Mapping[str, int] | None = None) -> None:
        self._bench = bench
        self.sampler = bench.sampler(others)
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="meter", daemon=True)
        self._wal: Any = None
        self._kafka = 0
        self.wal_bytes = self.kafka_bytes = self.seconds = 0.0
        self._begun = 0.0

    def __enter__(self) -> Self:
        self._bench.execute("CHECKPOINT")
        self._wal = self._bench.one("SELECT pg_current_wal_lsn()::text")
        self._kafka = self._bench.kafka_bytes()
        self.sampler.sample()
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._halt.set()
        self._thread.join()
        self.sampler.sample()
        self.sampler.sample_memory()
        self.seconds = time.monotonic() - self._begun
        since = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %(wal)s::pg_lsn)::float"
        self.wal_bytes = self._bench.one(since, wal=self._wal)
        self.kafka_bytes = self._bench.kafka_bytes() - self._kafka

    def _sample(self) -> None:
        number = 0
        while not self._halt.wait(SAMPLE_SECONDS):
            self.sampler.sample()
            if number % MEMORY_SAMPLES == 0:
                self.sampler.sample_memory()
            number += 1

    def costs(self, steps: int) -> Measurement:
        return {
            "cpu_us_per_step": {part: seconds / steps * 1e6 for part, seconds in self.sampler.used().items()},
            "wal_bytes_per_step": self.wal_bytes / steps,
            "kafka_bytes_per_step": self.kafka_bytes / steps,
            "memory_mib": dict(self.sampler.most_mib),
        }


def _read_line(process: "subprocess.Popen[str]") -> str:
    return process.stdout.readline() if process.stdout else ""


def _end_of(process: "subprocess.Popen[str]", word: str | None = None) -> dict[str, Any]:
    """What a load tells at its end. Raises SystemExit when it failed."""
    told = process.communicate(word)[0]
    if process.returncode:
        raise SystemExit(f"bench: a load failed: {process.args!r}")
    found: dict[str, Any] = json.loads(told)
    return found


def run_id_of_now() -> UUID:
    """Below the id of every run that starts from now on, and above those before: ids are UUIDv7."""
    time.sleep(0.002)
    return UUID(int=time.time_ns() // 1_000_000 << 80)


def cpu_rows(found: Sequence[Measurement]) -> list[tuple[str, str]]:
    """Rows of a table: CPU per step in all, and by part."""
    cpu = [one["cpu_us_per_step"] for one in found]
    parts = sorted({part for one in cpu for part in one}, key=lambda part: -cpu[0].get(part, 0.0))
    rows = [(f"  {part}", spread([one.get(part, 0.0) for one in cpu], 1)) for part in parts]
    return [("CPU us per step", spread([sum(one.values()) for one in cpu], 1)), *rows]


def byte_rows(found: Sequence[Measurement]) -> list[tuple[str, str]]:
    """Rows of a table: bytes per step, and the most memory that each part had."""
    most: dict[str, float] = {}
    for one in found:
        for part, mib in one["memory_mib"].items():
            most[part] = max(most.get(part, 0.0), mib)
    return [
        ("WAL bytes per step", spread([one["wal_bytes_per_step"] for one in found], 0)),
        ("Kafka bytes per step", spread([one["kafka_bytes_per_step"] for one in found], 0)),
        ("memory MiB, at most", memory_text(most)),
    ]


def memory_text(mib: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {amount:.0f}" for part, amount in sorted(mib.items(), key=lambda item: -item[1]))
