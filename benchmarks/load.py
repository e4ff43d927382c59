"""Starts runs as the API does (one transaction: run, first advance, first command), in a process of its own, and waits
for their end.

    python -m benchmarks.load WORKFLOW burst RUNS [--per-transaction 50]    as fast as it can
    python -m benchmarks.load WORKFLOW rate PER_SECOND SECONDS              open loop: a start is due at its time, kept
                                                                            up with or not

Prints one JSON line: {"runs", "seconds", "starting", "left"}; `starting` are the seconds until the last start.
"""

import argparse
import base64
import json
import random
import sys
import time
from typing import Any, Final

import psycopg

from state.pipe import Pipe
from state.plans import Plans
from state.settings import EngineSettings
from state.starts import Start, begin_run, new_run_id
from state.store import Rows, Store

NOTE: Final = "x" * 60
WAIT_SECONDS: Final = 240.0
ASK_SECONDS: Final = 0.05
FEW_RUNS: Final = 100
ASK_SECONDS_OF_FEW: Final = 0.005
"""How long a few runs take is told to within this; of many the question itself would be a load."""
RATE_PER_TRANSACTION: Final = 50


class Load:
    def __init__(self, workflow: str, *, payload_bytes: int = 0, given: dict[str, Any] | None = None) -> None:
        """payload_bytes: of each run's input, besides; text that no compression makes much smaller. given: more of the
        input."""
        settings = EngineSettings()
        self._store = Store(settings)
        self._connection = psycopg.connect(settings.postgres, autocommit=True)
        self._pipe = Pipe(settings.postgres, self._store.statements())
        self._namespace = settings.namespace
        self._plan = Plans().latest_sync(self._connection, settings.namespace, workflow)
        self._payload_bytes, self._given = payload_bytes, given or {}
        self._draw = random.Random(1)
        self._since = new_run_id()

    def start(self, due: list[float]) -> None:
        """Start one run for each instant (seconds since 1970) in one transaction."""
        rows, now = Rows(self._store), time.time_ns() // 1000
        for at in due:
            content = {"due": round(at * 1_000_000), "note": self._note(), **self._given}
            given = json.dumps(content).encode()
            begin_run(rows, Start(self._plan, given, run_id=new_run_id(), source="bench"), self._namespace, now)
        self._pipe.run(rows.calls())

    def _note(self) -> str:
        if not self._payload_bytes:
            return NOTE
        return base64.b64encode(self._draw.randbytes(self._payload_bytes * 3 // 4)).decode()

    def left(self) -> int:
        """Runs of this load that have not ended, and others that were started meanwhile."""
        row = self._connection.execute(
            "SELECT count(*) FROM run "
            "WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', "
            "'needs_attention') AND run_id > %s",
            (self._since,),
        ).fetchone()
        return int(row[0]) if row else 0

    def wait(self, runs: int) -> int:
        """Wait for the end of all runs; how many have not ended after WAIT_SECONDS."""
        end, pause = time.monotonic() + WAIT_SECONDS, ASK_SECONDS_OF_FEW if runs < FEW_RUNS else ASK_SECONDS
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(pause)
        return left

    def burst(self, runs: int, per_transaction: int, open_max: int = 0) -> int:
        """open_max: start no more while so many are under way; 0: all at once."""
        for begun in range(0, runs, per_transaction):
            while open_max and begun % (open_max // 8) < per_transaction and self.left() > open_max:
                time.sleep(ASK_SECONDS)
            self.start([time.time()] * min(per_transaction, runs - begun))
        return runs

    def rate(self, per_second: float, seconds: float) -> int:
        total, begun = round(per_second * seconds), 0
        first = time.time() + 0.2
        while begun < total:
            due = min(total, int((time.time() - first) * per_second) + 1, begun + RATE_PER_TRANSACTION)
            if due <= begun:
                time.sleep(max(0.0, first + begun / per_second - time.time()))
                continue
            self.start([first + i / per_second for i in range(begun, due)])
            begun = due
        return begun


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load")
    parser.add_argument("workflow")
    parser.add_argument("kind", choices=("burst", "rate"))
    parser.add_argument("numbers", type=float, nargs="+", metavar="N")
    parser.add_argument("--per-transaction", type=int, default=50)
    parser.add_argument("--open-max", type=int, default=0, help="burst: no more under way at once")
    parser.add_argument("--payload-bytes", type=int, default=0)
    parser.add_argument("--given", type=json.loads, default={}, help="more of every input, as a JSON object")
    parser.add_argument("--no-wait", action="store_true", help="leave the runs to somebody else")
    parser.add_argument("--on-word", action="store_true", help="say READY, and begin when a line comes in")
    options = parser.parse_args()
    load = Load(options.workflow, payload_bytes=options.payload_bytes, given=options.given)
    if options.on_word:
        print("READY", flush=True)
        sys.stdin.readline()
    started = time.time()
    if options.kind == "burst":
        runs = load.burst(int(options.numbers[0]), options.per_transaction, options.open_max)
    else:
        runs = load.rate(*options.numbers[:2])
    starting = time.time() - started
    left = 0 if options.no_wait else load.wait(runs)
    print(json.dumps({"runs": runs, "seconds": time.time() - started, "starting": starting, "left": left}))


if __name__ == "__main__":
    main()
