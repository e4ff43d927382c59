"""W1: a 10-step workflow, saturated. Runs are started as fast as they can be, and all are waited for.

sustained: the same for a million steps, with a bounded number under way and with all at once, against bursts between.
"""

import statistics
from collections.abc import Mapping

from benchmarks.bench import Bench, Measurement, byte_rows, cpu_rows, memory_text
from benchmarks.session import CHAIN, STEPS, Session
from benchmarks.table import spread


def measure(session: Session) -> None:
    sizes, bench = session.sizes, session.bench
    pgbench = session.calibrate()
    found = [saturate(bench, sizes.runs) for _ in range(sizes.repeat)]
    title = f"{STEPS}-step workflow, saturated, {sizes.runs} runs x {sizes.repeat}: min / median / max"
    rows = [("steps/s", spread([one["steps_per_s"] for one in found], 0)), *cpu_rows(found)]
    batches = ("records per transaction", spread([one["records_per_transaction"] for one in found], 0))
    session.report.add("W1", title, [*rows, batches, *byte_rows(found)], found, pgbench_c8=pgbench)


def saturate(bench: Bench, runs: int, *, open_max: int = 0, others: Mapping[str, int] | None = None) -> Measurement:
    """others: more parts whose CPU is told, by pid."""
    return bench.measure(STEPS, CHAIN["name"], "burst", str(runs), "--open-max", str(open_max), others=others)


def sustain(session: Session) -> None:
    sizes, bench = session.sizes, session.bench
    pgbench = session.calibrate()
    runs, at_once = sizes.sustained_runs, sizes.runs
    found = {
        "burst": [saturate(bench, at_once)],
        f"{runs} runs, {at_once} under way": [saturate(bench, runs, open_max=at_once)],
        "burst again": [saturate(bench, at_once)],
        f"{runs} runs at once": [saturate(bench, runs)],
        "burst, the last": [saturate(bench, at_once)],
    }
    rows = []
    for name, measured in found.items():
        rows.append((f"{name}: steps/s", spread([one["steps_per_s"] for one in measured], 0)))
        rows += [(f"{name}: {label.strip()}", text) for label, text in cpu_rows(measured)[:3]]
    rows.append(("memory MiB, at most", memory_text(found[f"{runs} runs at once"][0]["memory_mib"])))
    title = f"{STEPS}-step workflow, {runs} runs, against bursts of {at_once}"
    session.report.add("sustained", title, rows, [one for of in found.values() for one in of], pgbench_c8=pgbench)


def summary(session: Session) -> str | None:
    """The last line of a command that measured W1."""
    part = session.report.parts.get("W1")
    if part is None:
        return None
    rate = statistics.median(one["steps_per_s"] for one in part["repeats"])
    cpu = statistics.median(sum(one["cpu_us_per_step"].values()) for one in part["repeats"])
    pgbench = part["pgbench_c8"]
    return (
        f"bench: steps_per_s={rate:.0f} cpu_us_per_step={cpu:.1f} pgbench_c8={pgbench:.0f} ratio={rate / pgbench:.2f}"
    )
