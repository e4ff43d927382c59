"""`python -m benchmarks.handover [--long SECONDS] [--short N]`: what waits behind a busy worker while another is idle.

Two workers with two slots each, four partitions, the embedded broker, a lease of 2 s. Two long bodies take the slots of
the worker that owns one partition; then short runs are started on that same partition, while the other worker idles.
Told is how long they took from their start to their end, by the database's clock, with hand-over
(`HEADRACE_HAND_OVER_SECONDS=1`) and without (`0`). Without it each of them waits for a long body to end.

Writes `.scratch/bench/handover.json`. Exit code 1 when a run did not complete.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from confluent_kafka import murmur2
from uuid_utils import uuid7

from headrace.client import Client
from headrace.stack import Stack
from headrace.views import Run

SCRATCH: Final = Path(__file__).parent.parent / ".scratch" / "bench"
APP: Final = Path(__file__).parent / "app.py"
PARTITIONS: Final = 4
LEASE_SECONDS: Final = 2.0
WAIT_SECONDS: Final = 120.0
WORKFLOW: Final = """
name: nap
tasks:
  nap: { run: bench.nap_for }
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handover")
    parser.add_argument("--long", type=float, default=15.0, help="seconds of the bodies that keep one worker busy")
    parser.add_argument("--short", type=int, default=8, help="runs that wait behind them")
    options = parser.parse_args()
    found = {name: measure(seconds, options.long, options.short) for name, seconds in (("without", 0.0), ("with", 1.0))}
    SCRATCH.mkdir(parents=True, exist_ok=True)
    (SCRATCH / "handover.json").write_text(json.dumps(found, indent=2))
    print(
        f"{'hand-over':<10} {'median s':>9} {'max s':>7}   of {options.short} runs behind bodies of {options.long:g} s"
    )
    for name, seconds in found.items():
        print(f"{name:<10} {statistics.median(seconds):>9.2f} {max(seconds):>7.2f}")
    return 0 if all(len(seconds) == options.short for seconds in found.values()) else 1


def measure(hand_over: float, long: float, short: int) -> list[float]:
    """Seconds of each short run that completed."""
    settings = {"HEADRACE_HAND_OVER_SECONDS": str(hand_over)}
    with (
        Stack(APP, workers=2, slots=2, lease_seconds=LEASE_SECONDS, partitions=PARTITIONS, settings=settings) as stack,
        Client(stack.api_url, stack.token) as client,
    ):
        stack.wait_workers(2)
        client.publish(WORKFLOW)
        for _ in range(2):
            client.start("nap", long, run_id=run_id_on(0))
        wait_for_running(client, 2)
        runs = [client.start("nap", 0.05, run_id=run_id_on(0)) for _ in range(short)]
        ended = [client.wait(run.run_id, WAIT_SECONDS) for run in runs]
    return [seconds_of(run) for run in ended if run.status == "completed"]


def run_id_on(partition: int) -> str:
    """A run id whose commands begin on that partition."""
    while True:
        run_id = str(uuid7())
        if murmur2(run_id.encode(), PARTITIONS) == partition:
            return run_id


def wait_for_running(client: Client, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        tasks = [task for run in client.runs(limit=10).items for task in client.tasks(run.run_id)]
        if sum(task.status == "running" for task in tasks) == count:
            return
        if time.monotonic() > deadline:
            raise TimeoutError("the long bodies did not begin")
        time.sleep(0.1)


def seconds_of(run: Run) -> float:
    assert run.created_at is not None
    assert run.finished_at is not None
    return (run.finished_at - run.created_at).total_seconds()


if __name__ == "__main__":
    sys.exit(main())
