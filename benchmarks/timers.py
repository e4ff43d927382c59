"""W4: 10,000 durable timers due at once.

Each run has one task. Its first attempt asks to be tried again much later (`RetryAfter`), which leaves a row in
`timer`. The delay counts from the transaction that decided it, so the rows are due within seconds of each other; once
all are there, all are set to the last one's instant. Late is the time from that instant until the second attempt's body
begins; wake-ups per second are all of them by the lateness of the last.
"""

import json
import time
from typing import Final

from benchmarks.bench import Bench, Measurement, byte_rows, cpu_rows, run_id_of_now
from benchmarks.session import Session
from benchmarks.table import percentiles, spread
from benchmarks.workflows import LATER

DELAY_SECONDS: Final = 6.0
TIMERS_PER_SECOND_MIN: Final = 400
"""So slowly they may be set: the delay is long enough for that, and a benchmark that is slower stops."""
LEAD_SECONDS: Final = 1.0
"""Between the last look at what is set and the instant: the meter starts in it."""
END_SECONDS: Final = 240.0

_SET: Final = "SELECT count(*) FROM timer WHERE run_id > %(since)s"
_FIRST: Final = "SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float FROM timer WHERE run_id > %(since)s"
_ALIGN: Final = """
UPDATE timer SET due_at = (SELECT max(due_at) FROM timer) WHERE run_id > %(since)s"""
_DUE: Final = "SELECT extract(epoch FROM max(due_at))::float FROM timer WHERE run_id > %(since)s"
_ENDED: Final = "SELECT count(*) FROM run WHERE run_id > %(since)s AND status = 'completed'"
_LATE: Final = """
SELECT extract(epoch FROM started_at)::float - %(due)s FROM attempt
WHERE run_id > %(since)s AND attempt = 2 AND outcome = 'completed'"""


def measure(session: Session) -> None:
    sizes, bench = session.sizes, session.bench
    bench.publish(LATER)
    pgbench = session.calibrate()
    found = [wake(bench, sizes.timers) for _ in range(sizes.repeat)]
    rows = [
        ("wake-ups/s", spread([one["wakeups_per_s"] for one in found], 0)),
        *((f"late {share} s", spread([one["late_s"][share] for one in found], 3)) for share in ("p50", "p99", "max")),
    ]
    title = f"{sizes.timers} timers due at once, x {sizes.repeat}; costs per wake-up"
    session.report.add("W4", title, [*rows, *cpu_rows(found), *byte_rows(found)], found, pgbench_c8=pgbench)


def wake(bench: Bench, timers: int) -> Measurement:
    """Set the timers, and wait until every task has been tried again. Raises SystemExit when one was not."""
    since, delay = run_id_of_now(), DELAY_SECONDS + timers / TIMERS_PER_SECOND_MIN
    bench.load(LATER["name"], "burst", str(timers), "--given", json.dumps({"delay": delay}), "--no-wait")
    bench.wait(lambda: bench.one(_SET, since=since) == timers, delay, "all timers are set")
    if float(bench.one(_FIRST, since=since)) < LEAD_SECONDS:
        raise SystemExit("bench: the first timer was nearly due when the last was set: this machine is too slow")
    bench.execute(_ALIGN, since=since)
    due = float(bench.one(_DUE, since=since))
    time.sleep(max(0.0, due - LEAD_SECONDS - time.time()))
    with bench.meter() as meter:
        bench.wait(lambda: bench.one(_ENDED, since=since) == timers, END_SECONDS, "all runs end")
    late = [row[0] for row in bench.rows(_LATE, since=since, due=due)]
    if len(late) != timers or min(late) < 0:
        raise SystemExit(f"bench: {len(late)} second attempts of {timers}, the first {min(late)} s after it was due")
    return {"wakeups_per_s": timers / max(late), "late_s": percentiles(late, 4), **meter.costs(timers)}
