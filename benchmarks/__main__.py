"""`python -m benchmarks [--only W1,W2] [--repeat N] [--quick | --tiny]`: run benchmarks, and print a table for each.

W1        10-step workflow, saturated: runs are started as fast as they can be, and all are waited for
W2        its latency under an open loop of 20 and of 250 runs/s: due -> first step, step -> next step
W3        a map of 1,000 tasks and their join, one run at a time
W4        10,000 durable timers due at once: how late their tasks begin again
W5        kill -9 of workers, streams processes, the relay, Postgres and Kafka (`python -m benchmarks.recovery`)
W6        W1 with 1 M finished runs behind it, against an empty database
W7        reads of the API with that many runs, and of a run with 10,000 tasks
W8        W1 with 1, 2, 4 streams processes, and with 1, 2, 4, 8 workers
W9        payloads of 10 KiB and 200 KiB
idle      CPU while nothing runs, in percent of a core
sustained W1 for a million steps, with 4,000 runs under way and with all at once. Only when named
console   its pages in a browser, with that many runs, a run of 10,000 tasks, a map of 10,000 items. Only when named
W1-console  W1 with a browser that looks on, against W1 without. Only when named
overload  ten times the saturated arrival for 60 s: memory, answers, time back to normal. Only when named
backlog   a backlog is not taken for a loss (`python -m benchmarks.backlog`). Only when named

Writes `.scratch/bench/results.json`: every repetition of each, [min, median, max] over them, and a calibration by
pgbench taken right before. When W1 was measured the last line sums it up: `bench: steps_per_s=… cpu_us_per_step=…
pgbench_c8=… ratio=…`.
"""

import argparse
import dataclasses
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Final

from benchmarks import (
    backlog,
    console,
    growth,
    history,
    idle,
    latency,
    overload,
    payloads,
    reads,
    recovery,
    saturation,
    timers,
    watched,
    wide,
)
from benchmarks.report import Report
from benchmarks.rig import PARTITIONS, ROOT, Rig
from benchmarks.session import Session
from benchmarks.sizes import FULL, QUICK, TINY, Sizes

RESULTS: Final = ROOT / ".scratch" / "bench" / "results.json"
WORKLOADS: Final[Mapping[str, Callable[[Session], None]]] = {
    "W1": saturation.measure,
    "W2": latency.measure,
    "W3": wide.measure,
    "W4": timers.measure,
    "W9": payloads.measure,
    "W1-console": watched.measure,
    "idle": idle.measure,
    "W6": history.measure,
    "W7": reads.measure,
    "console": console.measure,
    "W8": growth.measure,
    "sustained": saturation.sustain,
    "overload": overload.measure,
}
"""In the order in which they run: what shares a stack stands together."""
ALONE: Final = ("W5", "backlog")
"""With servers of their own, after the others."""
DEFAULT: Final = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9", "idle")


def main() -> None:
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes = _sizes(options)
    if shared := [name for name in WORKLOADS if name in options.only]:
        with Rig(host=options.host, partitions=options.partitions) as rig:
            facts = {**rig.facts(), "sizes": dataclasses.asdict(sizes)}
            print(f"bench: {_one_line(facts)}\n", flush=True)
            report = Report(RESULTS, facts)
            with Session(rig, report, sizes) as session:
                for name in shared:
                    WORKLOADS[name](session)
                summary = saturation.summary(session)
    else:
        report, summary = Report(RESULTS, {"sizes": dataclasses.asdict(sizes)}), None
    if "W5" in options.only:
        report.parts["W5"] = recovery.measure_all(tuple(recovery.GOALS), sizes.faults)
        report.save()
    if "backlog" in options.only:
        backlog.measure()
    if summary:
        print(summary)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="W1 only, once, within 50 s")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show whether it works")
    parser.add_argument("--only", default="", help=f"of {', '.join([*WORKLOADS, *ALONE])}; default {','.join(DEFAULT)}")
    parser.add_argument("--host", default="faust", choices=("faust", "plain"))
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--rates", help="runs per second of W2, separated by commas")
    parser.add_argument("--runs", type=int, help="of W1, and of W6 in each turn")
    parser.add_argument("--timers", type=int, help="of W4")
    parser.add_argument("--finished", type=int, help="runs behind W6, W7 and console")
    parser.add_argument("--wide", type=int, help="tasks of the widest run of W7 and console, items of its map")
    parser.add_argument("--seconds", type=float, help="of the overload")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else ["W1"] if options.quick else DEFAULT
    if unknown := set(names) - {*WORKLOADS, *ALONE}:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    options.only = names
    return options


def _sizes(options: argparse.Namespace) -> Sizes:
    given = {
        "repeat": options.repeat,
        "rates": tuple(map(float, options.rates.split(","))) if options.rates else None,
        "runs": options.runs,
        "timers": options.timers,
        "finished": options.finished,
        "wide_tasks": options.wide,
        "items": options.wide,
        "overload_seconds": options.seconds,
    }
    sizes = TINY if options.tiny else QUICK if options.quick else FULL
    return dataclasses.replace(sizes, **{name: value for name, value in given.items() if value is not None})


def _one_line(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if name != "sizes")


if __name__ == "__main__":
    main()
