"""`python -m benchmarks.peers [--peers restate,dbos] [--workloads w1,w2] [--rounds 3] [--tiny]`: install what is not
there yet, measure in turns (peer, Headrace, peer, Headrace …), print the tables.

    --set restate.n=1000      an argument of one peer, or of one variant (`absurd:default.n=10`)
    --install                 install, and nothing else
    --report                  print the tables of the last results again

Environments, logs, `results.json` and `RESULTS.md` are under `--home` (`.scratch/peers`). A round begins with a
calibration by pgbench and takes the peers in random order; a measurement waits until the machine is quiet. What cannot
be installed is left out, and the report says why.
"""

import argparse
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.peers.environments import install
from benchmarks.peers.measurement import ROOT, Asked, Measurements, wait_for_quiet
from benchmarks.peers.report import WORKLOADS, report
from benchmarks.peers.settings import ARGUMENTS, DEFAULT, HEADRACE, POSTGRES, SHARED_BUFFERS, TINY, arguments
from benchmarks.pgbench import single_row_commits
from headrace.embedded.binaries import find_binaries
from headrace.embedded.postgres import EmbeddedPostgres

HOME: Final = ROOT / ".scratch" / "peers"
TIMEOUT_SECONDS: Final = 420.0
CALIBRATION_SECONDS: Final = 4


def main() -> None:
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    home: Path = options.home.absolute()
    (home / "logs").mkdir(parents=True, exist_ok=True)
    results = home / "results.json"
    if not options.report:
        missing = install(home, dict.fromkeys(name.split(":")[0] for name in options.peers))
        for peer, why in missing.items():
            print(f"peers: {peer} cannot be installed: {why}", flush=True)
        if options.install:
            sys.exit(bool(missing))
        able = [name for name in options.peers if name.split(":")[0] not in missing]
        records: list[dict[str, Any]] = []
        for record in _measure(options, home, able):
            records.append(record)
            results.write_text(json.dumps({**_machine(), "missing": missing, "records": records}, indent=1))
    text = report(json.loads(results.read_text()))
    (home / "RESULTS.md").write_text(text)
    print(f"\n{text}", end="")


def _measure(options: argparse.Namespace, home: Path, peers: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every record as it comes, of all rounds of all workloads."""
    with EmbeddedPostgres(shared_buffers=SHARED_BUFFERS, settings=POSTGRES) as postgres:
        measurements = Measurements(home, postgres, TIMEOUT_SECONDS)
        for round_, workload in ((r, w) for r in range(1, options.rounds + 1) for w in options.workloads):
            wait_for_quiet(options.max_load, options.max_wait)
            pgbench = single_row_commits(postgres, seconds=1 if options.tiny else CALIBRATION_SECONDS)
            print(f"{workload} round {round_}: pgbench c8 {pgbench:,.0f} commits/s", flush=True)
            able = [name for name in peers if name in ARGUMENTS[workload]]
            for pair, name in enumerate(random.sample(able, len(able))):
                for one in (name, HEADRACE):
                    waited = wait_for_quiet(options.max_load, options.max_wait)
                    asked = Asked(workload, one, arguments(workload, one, _given(options, workload, one)))
                    record = measurements.measure(asked)
                    print(f"  {one}: {record['value'] or _failed(home, record)}", flush=True)
                    yield {
                        **record,
                        "round": round_,
                        "pair": f"{workload}/{round_}/{pair}",
                        "pgbench_c8": pgbench,
                        "waited": waited,
                    }


def _given(options: argparse.Namespace, workload: str, name: str) -> Mapping[str, str]:
    own = (text.rsplit(".", 1)[1] for text in options.set if text.rsplit(".", 1)[0] == name)
    return {**(TINY[workload] if options.tiny else {}), **dict(part.split("=", 1) for part in own)}


def _failed(home: Path, record: Mapping[str, Any]) -> str:
    return f"FAILED ({record['status']}), see {home / 'logs'}"


def _machine() -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "memory_gib": math.ceil(psutil.virtual_memory().total / 2**30),
        "postgres": find_binaries().major,
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=_list, default=DEFAULT)
    parser.add_argument("--workloads", type=_list, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="sizes that only show whether it works")
    parser.add_argument("--set", action="append", default=[], metavar="PEER.KEY=VALUE")
    parser.add_argument("--home", type=Path, default=HOME)
    parser.add_argument("--max-load", type=float, default=0.7, help="load average at which a measurement may begin")
    parser.add_argument("--max-wait", type=float, default=600.0, help="seconds; then it begins all the same")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    known = {name for names in ARGUMENTS.values() for name in names} - {HEADRACE}
    if unknown := {*options.peers} - known:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if unknown := {*options.workloads} - {*WORKLOADS}:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    return options


def _list(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
