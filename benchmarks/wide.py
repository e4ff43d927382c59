"""W3: a map of 1,000 tasks and their join, one run at a time."""

from benchmarks.bench import byte_rows, cpu_rows
from benchmarks.session import Session
from benchmarks.table import spread
from benchmarks.workflows import fan_out


def measure(session: Session) -> None:
    sizes, bench, workflow = session.sizes, session.bench, fan_out(session.sizes.width)
    bench.publish(workflow)
    pgbench = session.calibrate()
    bench.measure(sizes.width + 2, workflow["name"], "burst", "1")
    found = [bench.measure(sizes.width + 2, workflow["name"], "burst", "1") for _ in range(sizes.repeat)]
    title = f"map of {sizes.width} and join, {sizes.repeat} runs one by one"
    rows = [("seconds", spread([one["seconds"] for one in found], 3)), *cpu_rows(found), *byte_rows(found)]
    session.report.add("W3", title, rows, found, pgbench_c8=pgbench)
