"""W9: payloads of 10 KiB and 200 KiB through a 10-step workflow. Every step is given the run's input and gives it on,
so each payload is in a command, in a result and in a row of every step. The text is random: no compression makes much
of it."""

from benchmarks.bench import byte_rows, cpu_rows
from benchmarks.session import STEPS, Session
from benchmarks.table import spread
from benchmarks.workflows import ECHO


def measure(session: Session) -> None:
    sizes, bench = session.sizes, session.bench
    bench.publish(ECHO)
    for payload_bytes, runs in sizes.payloads:
        load = (ECHO["name"], "burst", str(runs), "--payload-bytes", str(payload_bytes), "--per-transaction", "10")
        pgbench = session.calibrate()
        found = [bench.measure(STEPS, *load) for _ in range(sizes.repeat)]
        rows = [
            ("steps/s", spread([one["steps_per_s"] for one in found], 0)),
            ("MiB of payload per s", spread([one["steps_per_s"] * payload_bytes / 2**20 for one in found], 1)),
            *cpu_rows(found),
            *byte_rows(found),
        ]
        name = f"{payload_bytes // 1024} KiB"
        title = f"payloads of {name}, {STEPS} steps, {runs} runs x {sizes.repeat}"
        session.report.add(f"W9 {name}", title, rows, found, pgbench_c8=pgbench, payload_bytes=payload_bytes)
