"""`python -m benchmarks [--quick] [--repeat N] [--only W1,W2]`: run the benchmarks and print a table for each.

W1  10-step workflow, saturated: runs are started as fast as they can be, and all are waited for
W2  its latency under an open loop of 20 and of 250 runs/s: due -> first step, step -> next step
W3  a map of 1,000 tasks and their join, one run at a time
idle  CPU while nothing runs, in percent of a core

Writes `.scratch/bench/results.json`. The last line sums W1 up: `bench: steps_per_s=… cpu_us_per_step=… pgbench_c8=…
ratio=…`.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.pgbench import single_row_commits
from benchmarks.processes import Sampler, log_bytes, resident_mib
from benchmarks.table import spread, table
from benchmarks.workflows import fan_out, linear
from headrace.embedded.kafka import ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.graph import from_data
from headrace.stack import Stack
from state.workflows import publish

ROOT: Final = Path(__file__).parent.parent
STEPS: Final = 10
WIDTH: Final = 1000
WARM_RUNS: Final = 2_500
"""The broker's JVM compiles its hot paths for its first 20 to 30 s, at half a core."""

NUMBERS: Final = ("records_per_transaction", "wal_bytes_per_step", "kafka_bytes_per_step")
POSTGRES: Final = {"max_wal_size": "8GB", "checkpoint_timeout": "15min"}
KAFKA: Final = {"log.flush.interval.messages": "9223372036854775807"}

_STEP_LATENCY: Final = """
SELECT percentile_cont(ARRAY[0.5, 0.9, 0.99, 1]) WITHIN GROUP (ORDER BY ms) FROM (
  SELECT extract(epoch FROM b.started_at - a.finished_at) * 1e3 AS ms
  FROM run r JOIN attempt a USING (run_id) JOIN attempt b ON b.run_id = a.run_id AND b.task = a.task + 1
  WHERE r.created_at > %s) x"""
_FIRST_LATENCY: Final = """
SELECT percentile_cont(ARRAY[0.5, 0.9, 0.99, 1]) WITHIN GROUP (ORDER BY ms) FROM (
  SELECT extract(epoch FROM a.started_at) * 1e3 - (r.input ->> 'due')::numeric / 1e3 AS ms
  FROM run r JOIN attempt a ON a.run_id = r.run_id AND a.task = 0 WHERE r.created_at > %s) x"""
_VERIFY: Final = """
SELECT count(*), count(*) FILTER (WHERE status = 'completed'), coalesce(sum(row_version), 0),
  (SELECT count(*) FROM run JOIN attempt USING (run_id) WHERE created_at > %(since)s AND outcome = 'completed')
FROM run WHERE created_at > %(since)s"""


class Bench:
    def __init__(self, stack: Stack, postgres: EmbeddedPostgres, kafka: ApacheKafka, repeat: int) -> None:
        self._stack, self._postgres, self._kafka, self._repeat = stack, postgres, kafka, repeat
        self._connection = psycopg.connect(postgres.dsn, autocommit=True)
        self.results: dict[str, Any] = {}

    def publish(self, *workflows: dict[str, Any]) -> None:
        async def do() -> None:
            async with await psycopg.AsyncConnection.connect(self._postgres.dsn) as connection:
                for data in workflows:
                    workflow = from_data(data)
                    await publish(connection, "default", workflow.name, workflow.canonical().decode())

        asyncio.run(do())

    # -- one measurement
    def measure(self, steps_per_run: int, *load: str) -> dict[str, Any]:
        """Run a load to its end; answers rates, CPU by part, bytes, latencies. Raises when a run is not as it must
        be."""
        self._connection.execute("CHECKPOINT")
        since = self._connection.execute("SELECT clock_timestamp()").fetchone()
        wal = self._one("SELECT pg_current_wal_lsn()")
        segments = log_bytes(self._kafka.data_dir, "headrace")
        batches = self._batches()
        sampler = Sampler(self._stack.pids() | {"broker": self._kafka.pid or 0}, self._postgres.pid or 0)
        sampler.sample()
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load", *load],
            env=self._env(),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        while process.poll() is None:
            sampler.sample()
            time.sleep(0.1)
        sampler.sample()
        told = json.loads(process.stdout.read() if process.stdout else "")
        steps = told["runs"] * steps_per_run
        self._verify(since[0] if since else None, told, steps_per_run)
        cpu = {part: seconds / steps * 1e6 for part, seconds in sampler.used().items()}
        return {
            "runs": told["runs"],
            "seconds": told["seconds"],
            "steps_per_s": steps / told["seconds"],
            "cpu_us_per_step": cpu,
            "records_per_transaction": self._records_per_transaction(batches),
            "wal_bytes_per_step": self._one("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s)::float", wal) / steps,
            "kafka_bytes_per_step": (log_bytes(self._kafka.data_dir, "headrace") - segments) / steps,
            "first_ms": self._percentiles(_FIRST_LATENCY, since),
            "step_ms": self._percentiles(_STEP_LATENCY, since),
        }

    def _batches(self) -> tuple[float, float]:
        """Records and transactions of the run agent so far, as of its last report."""
        rows = self._connection.execute(
            "SELECT sample, value FROM engine_counter WHERE metric = 'headrace_batch_records' AND labels = '{}'"
        ).fetchall()
        found = dict(rows)
        return found.get("headrace_batch_records_sum", 0.0), found.get("headrace_batch_records_count", 0.0)

    def _records_per_transaction(self, before: tuple[float, float]) -> float:
        time.sleep(2.5)  # the counters are reported every two seconds
        records, transactions = self._batches()
        return (records - before[0]) / max(1.0, transactions - before[1])

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self._stack.settings, "PYTHONPATH": str(ROOT)}

    def _one(self, sql: str, *parameters: Any) -> Any:
        row = self._connection.execute(sql.encode(), parameters).fetchone()
        return row[0] if row else None

    def _percentiles(self, sql: str, since: Any) -> list[float]:
        return [round(float(x), 2) for x in self._one(sql, since[0]) or [] if x is not None]

    def _verify(self, since: Any, told: dict[str, Any], steps_per_run: int) -> None:
        row = self._connection.execute(_VERIFY.encode(), {"since": since}).fetchone() or (0, 0, 0, 0)
        runs, completed, events, attempts = row
        if told["left"] or not (runs == completed == told["runs"] and attempts == runs * steps_per_run):
            seen = f"runs {runs}, completed {completed}, attempts {attempts}, events {events}"
            raise SystemExit(f"bench: wrong result: {told}, {seen}")

    # -- the benchmarks
    def warm_up(self) -> None:
        self.measure(STEPS, "burst", "300", "50", f"linear-{STEPS}")
        self.measure(STEPS, "burst", str(WARM_RUNS), "50", f"linear-{STEPS}")

    def w1(self, runs: int) -> list[dict[str, Any]]:
        found = [self.measure(STEPS, "burst", str(runs), "50", f"linear-{STEPS}") for _ in range(self._repeat)]
        self.results["W1"] = found
        title = f"W1  {STEPS}-step workflow, saturated, {runs} runs x {self._repeat}: min / median / max"
        rows = [("steps/s", spread([f["steps_per_s"] for f in found], 0)), *_cpu_rows(found)]
        rows += [(name, spread([f[name] for f in found], 0)) for name in NUMBERS]
        print(table(title, rows), flush=True)
        return found

    def w2(self, rates: Sequence[float], seconds: float) -> None:
        for rate in rates:
            found = [
                self.measure(STEPS, "rate", str(rate), str(seconds), f"linear-{STEPS}") for _ in range(self._repeat)
            ]
            self.results[f"W2 {rate:g} runs/s"] = found
            rows = [
                (f"{what} {name} ms", spread([f[key][i] for f in found], 1))
                for what, key in (("due -> first step", "first_ms"), ("step -> next step", "step_ms"))
                for i, name in enumerate(("p50", "p90", "p99", "max"))
            ]
            load = f"{rate:g} runs/s ({rate * STEPS:g} steps/s)"
            title = f"W2  latency at {load}, open loop, {seconds:g} s x {self._repeat}"
            rows.append(("records per transaction", spread([f["records_per_transaction"] for f in found], 1)))
            print(table(title, rows + _cpu_rows(found)), flush=True)

    def w3(self, runs: int) -> None:
        found = [self.measure(WIDTH + 2, "burst", "1", "1", f"fan-out-{WIDTH}") for _ in range(runs)]
        self.results["W3"] = found
        print(
            table(
                f"W3  map of {WIDTH} and join, {runs} runs one by one",
                [("seconds", spread([f["seconds"] for f in found], 3))],
            )
        )

    def idle(self, seconds: float) -> None:
        sampler = Sampler(self._stack.pids() | {"broker": self._kafka.pid or 0}, self._postgres.pid or 0)
        sampler.sample()
        time.sleep(seconds)
        sampler.sample()
        used = {part: cpu / seconds * 100 for part, cpu in sampler.used().items()}
        self.results["idle_percent"] = used
        ours = sum(cpu for part, cpu in used.items() if part != "broker" and not part.startswith("postgres"))
        rows = [("our processes", f"{ours:.2f}"), *((part, f"{cpu:.2f}") for part, cpu in used.items())]
        print(table(f"idle, percent of a core over {seconds:g} s", rows), flush=True)

    def memory(self) -> None:
        pids = self._stack.pids() | {"broker": self._kafka.pid or 0}
        self.results["memory_mib"] = {name: round(resident_mib(pid)) for name, pid in pids.items()}
        print(
            table("memory, MiB resident", [(name, f"{mib}") for name, mib in self.results["memory_mib"].items()]),
            flush=True,
        )


def _cpu_rows(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    parts = sorted(
        {part for f in found for part in f["cpu_us_per_step"]}, key=lambda p: -found[0]["cpu_us_per_step"].get(p, 0)
    )
    rows = [(f"  {part}", spread([f["cpu_us_per_step"].get(part, 0.0) for f in found], 1)) for part in parts]
    return [("CPU us per step", spread([sum(f["cpu_us_per_step"].values()) for f in found], 1)), *rows]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="W1 only, once, within 50 s")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="W1,W2,W3,idle")
    parser.add_argument("--rates", default="20,250", help="runs per second of W2")
    parser.add_argument("--host", default="faust", choices=("faust", "plain"))
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--runs", type=int, default=4000)
    options = parser.parse_args()
    only = {"W1"} if options.quick else set(options.only.split(","))
    scratch = ROOT / ".scratch" / "bench"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        EmbeddedPostgres(shared_buffers="512MB", settings=POSTGRES) as postgres,
        ApacheKafka(fetch_jars(), settings=KAFKA) as kafka,
        Stack(
            ROOT / "benchmarks" / "app.py",
            kafka=kafka.bootstrap,
            postgres=postgres.url,
            lease_seconds=30,
            partitions=options.partitions,
            log_level="warning",
            settings={"HEADRACE_HOST": options.host},
        ) as stack,
    ):
        server = postgres_version(postgres.dsn)
        machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {server}, Apache Kafka"
        print(f"bench: {machine}, host {options.host}", flush=True)
        bench = Bench(stack, postgres, kafka, 1 if options.quick else options.repeat)
        bench.publish(linear(STEPS), fan_out(WIDTH))
        bench.warm_up()
        baseline = single_row_commits(postgres, seconds=4 if options.quick else 8)
        found = bench.w1(1500 if options.quick else options.runs) if "W1" in only else []
        if "W2" in only:
            bench.w2([float(rate) for rate in options.rates.split(",")], 8.0)
        if "W3" in only:
            bench.w3(5)
        if "idle" in only:
            bench.idle(15.0)
        bench.memory()
        bench.results["pgbench_c8"] = baseline
        (scratch / "results.json").write_text(json.dumps(bench.results, indent=1))
        if found:
            rate = statistics.median(f["steps_per_s"] for f in found)
            cpu = statistics.median(sum(f["cpu_us_per_step"].values()) for f in found)
            told = f"steps_per_s={rate:.0f} cpu_us_per_step={cpu:.1f} pgbench_c8={baseline:.0f}"
            print(f"bench: {told} ratio={rate / baseline:.2f}")


def postgres_version(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        return f"PostgreSQL {connection.info.server_version // 10000}"


if __name__ == "__main__":
    main()
