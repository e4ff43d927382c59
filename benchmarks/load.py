"""Starts runs as the API does (one transaction: run, first advance, first command), in a process of its own, and waits
for their end.

python -m benchmarks.load burst RUNS PER_TRANSACTION WORKFLOW      as fast as it can
python -m benchmarks.load rate PER_SECOND SECONDS WORKFLOW         open loop: a start is due at its time, kept up with
or not

Prints one JSON line: {"runs", "seconds", "left"}.
"""

import json
import sys
import time

import psycopg

from state.pipe import Pipe
from state.plans import Plans
from state.settings import EngineSettings
from state.starts import Start, begin_run, new_run_id
from state.store import Rows, Store

NOTE = "x" * 60
WAIT_SECONDS = 240.0


class Load:
    def __init__(self, workflow: str) -> None:
        settings = EngineSettings()
        self._store = Store(settings)
        self._connection = psycopg.connect(settings.postgres, autocommit=True)
        self._pipe = Pipe(settings.postgres, self._store.statements())
        self._namespace = settings.namespace
        self._plan = Plans().latest_sync(self._connection, settings.namespace, workflow)

    def start(self, due: list[float]) -> None:
        """Start one run for each instant (seconds since 1970) in one transaction."""
        rows, now = Rows(self._store), time.time_ns() // 1000
        for at in due:
            given = json.dumps({"due": round(at * 1_000_000), "note": NOTE}).encode()
            begin_run(rows, Start(self._plan, given, run_id=new_run_id(), source="bench"), self._namespace, now)
        self._pipe.run(rows.calls())

    def left(self) -> int:
        row = self._connection.execute(
            "SELECT count(*) FROM run WHERE status IN ('running', 'waiting', 'needs_attention')"
        ).fetchone()
        return int(row[0]) if row else 0

    def wait(self) -> int:
        end = time.monotonic() + WAIT_SECONDS
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def burst(self, runs: int, per_transaction: int) -> None:
        for begun in range(0, runs, per_transaction):
            self.start([time.time()] * min(per_transaction, runs - begun))

    def rate(self, per_second: float, seconds: float) -> int:
        total, begun = round(per_second * seconds), 0
        first = time.time() + 0.2
        while begun < total:
            due = min(total, int((time.time() - first) * per_second) + 1, begun + 50)
            if due <= begun:
                time.sleep(max(0.0, first + begun / per_second - time.time()))
                continue
            self.start([first + i / per_second for i in range(begun, due)])
            begun = due
        return total


def main() -> None:
    kind, first, second, workflow = sys.argv[1:5]
    load = Load(workflow)
    started = time.time()
    if kind == "burst":
        runs = int(first)
        load.burst(runs, int(second))
    else:
        runs = load.rate(float(first), float(second))
    left = load.wait()
    print(json.dumps({"runs": runs, "seconds": time.time() - started, "left": left}))


if __name__ == "__main__":
    main()
