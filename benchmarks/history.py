"""W6: does a database with 1 M finished runs behind it (10 M tasks) slow the engine down? The workload of W1 on two
stacks beside each other, one with a database that holds little, one with the history; in turns, so that a machine that
changes its pace changes both."""

import statistics

from benchmarks.bench import byte_rows, cpu_rows
from benchmarks.saturation import saturate
from benchmarks.session import STEPS, Session
from benchmarks.table import spread


def measure(session: Session) -> None:
    sizes, stacks = session.sizes, {"empty": session.bench, "aged": session.aged}
    pgbench = session.calibrate()
    found = [{name: saturate(bench, sizes.runs) for name, bench in stacks.items()} for _ in range(sizes.repeat)]
    rows = []
    for name in stacks:
        of_one = [turn[name] for turn in found]
        rows += [(f"steps/s, {name}", spread([one["steps_per_s"] for one in of_one], 0))]
        rows += [(f"{what.strip()}, {name}", text) for what, text in [cpu_rows(of_one)[0], *byte_rows(of_one)]]
    ratios = [turn["aged"]["steps_per_s"] / turn["empty"]["steps_per_s"] for turn in found]
    dearer = [_cpu(turn["aged"]) / _cpu(turn["empty"]) for turn in found]
    rows += [("ratio of steps/s, in turns", spread(ratios, 3)), ("ratio of CPU per step", spread(dearer, 3))]
    title = (
        f"{STEPS}-step workflow, saturated, {sizes.runs} runs x {sizes.repeat},"
        f" {sizes.finished} finished runs behind it against none"
    )
    session.report.add(
        "W6", title, rows, found, pgbench_c8=pgbench, finished=sizes.finished, ratio=statistics.median(ratios)
    )


def _cpu(one: dict[str, dict[str, float]]) -> float:
    return sum(one["cpu_us_per_step"].values())
