"""W2: the latency of a 10-step workflow below saturation. The loop is open: a start is due at its time, kept up with or
not, and its latency counts from there."""

from typing import Final

from benchmarks.bench import Bench, Measurement, byte_rows, cpu_rows
from benchmarks.session import CHAIN, STEPS, Session
from benchmarks.table import spread

GAPS: Final = (("due -> first step", "first_ms"), ("step -> next step", "step_ms"))
SHARES: Final = ("p50", "p90", "p99", "max")


def measure(session: Session) -> None:
    for rate in session.sizes.rates:
        _measure_at(session, rate)


def _measure_at(session: Session, rate: float) -> None:
    sizes, bench = session.sizes, session.bench
    for _ in range(sizes.rate_warm_times):
        arrive(bench, rate, sizes.rate_warm_seconds)
    pgbench = session.calibrate()
    found = [arrive(bench, rate, sizes.rate_seconds) for _ in range(sizes.repeat)]
    rows = [
        (f"{what} {share} ms", spread([one[key][share] for one in found], 1)) for what, key in GAPS for share in SHARES
    ]
    rows.append(("records per transaction", spread([one["records_per_transaction"] for one in found], 1)))
    title = (
        f"latency at {rate:g} runs/s ({rate * STEPS:g} steps/s), open loop, {sizes.rate_seconds:g} s x {sizes.repeat}"
    )
    rows += [*cpu_rows(found), *byte_rows(found)]
    session.report.add(f"W2 {rate:g} runs/s", title, rows, found, pgbench_c8=pgbench, rate=rate)


def arrive(bench: Bench, rate: float, seconds: float) -> Measurement:
    return bench.measure(STEPS, CHAIN["name"], "rate", str(rate), str(seconds))
