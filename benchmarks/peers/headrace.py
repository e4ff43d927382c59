"""The workloads on Headrace, as a script like those of the peers: `python -m benchmarks.peers.headrace w1 n=4000
warm=30`. The last line is its result: a JSON object with the same keys.

One process of each kind; two workers for W5. `warm`: seconds of the same work before what counts.
"""

import json
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

import httpx

from benchmarks import timers
from benchmarks.bench import Bench
from benchmarks.peers.settings import POSTGRES, SHARED_BUFFERS
from benchmarks.recovery import NEXT, PHASE_SECONDS, kill_holder
from benchmarks.rig import Rig
from benchmarks.table import percentile
from benchmarks.workflows import LATER, VICTIM, fan_out, linear

STEPS: Final = 10
CHAIN: Final = linear(STEPS)
WARM_RUNS: Final = 500
WARM_TIMERS: Final = 200
PAUSE_SECONDS: Final = 0.01
"""Between two runs of W2, as the peers' scripts do it."""
RUN_SECONDS: Final = 60.0
WORKERS_OF_W5: Final = 2

_HAS_ENDED: Final = "SELECT finished_at IS NOT NULL FROM run WHERE run_id = %(run)s"
_STEPS: Final = """
SELECT extract(epoch FROM started_at)::float, extract(epoch FROM finished_at)::float
FROM attempt WHERE run_id = %(run)s ORDER BY task"""

Result = dict[str, float]


def saturate(bench: Bench, n: int, warm: float) -> Result:
    _warm(warm, lambda: bench.load(CHAIN["name"], "burst", str(WARM_RUNS)))
    told = bench.measure(STEPS, CHAIN["name"], "burst", str(n))
    return {"steps_per_s": told["steps_per_s"], "runs_per_s": n / told["seconds"], "runs": n, "wall_s": told["seconds"]}


def wait_lightly(bench: Bench, n: int, warm: float) -> Result:
    """One run at a time: from the trigger to the first step's begin, from a step's end to the next one's begin."""
    with httpx.Client(base_url=bench.stack.api_url, headers=bench.stack.headers) as client:
        _warm(warm, lambda: _run(bench, client, CHAIN["name"]))
        first, gaps = list[float](), list[float]()
        for _ in range(n):
            begun, run, _ = _run(bench, client, CHAIN["name"])
            steps = bench.rows(_STEPS, run=run)
            first.append((steps[0][0] - begun) * 1000)
            gaps += [(after[0] - before[1]) * 1000 for before, after in pairwise(steps)]
            time.sleep(PAUSE_SECONDS)
    return {
        "p50_ms": percentile(first, 0.5),
        "p99_ms": percentile(first, 0.99),
        "gap_p50_ms": percentile(gaps, 0.5),
        "gap_p99_ms": percentile(gaps, 0.99),
        "n": n,
    }


def fan(bench: Bench, n: int, warm: float) -> Result:
    workflow = fan_out(n)
    bench.publish(workflow)
    with httpx.Client(base_url=bench.stack.api_url, headers=bench.stack.headers) as client:
        _warm(warm, lambda: _run(bench, client, workflow["name"]))
        return {"wall_s": _run(bench, client, workflow["name"])[2]}


def wake(bench: Bench, n: int, warm: float) -> Result:
    bench.publish(LATER)
    _warm(warm, lambda: bench.load(CHAIN["name"], "burst", str(WARM_RUNS)))
    timers.wake(bench, WARM_TIMERS)
    found = timers.wake(bench, n)
    late = found["late_s"]
    return {"n": n, "late_p50_s": late["p50"], "late_p99_s": late["p99"], "wakeups_per_s": found["wakeups_per_s"]}


def survive(bench: Bench, n: int, warm: float) -> Result:
    """The process that runs a long body is killed; time until the task's next attempt begins."""
    bench.publish(VICTIM)
    _warm(warm, lambda: bench.load(CHAIN["name"], "burst", str(WARM_RUNS)))
    resumed = [_survive(bench) for _ in range(n)]
    return {"n": n, "resume_p50_s": percentile(resumed, 0.5), "resume_max_s": max(resumed)}


def _survive(bench: Bench) -> float:
    """Seconds from a kill until the next attempt begins, once the killed process is back and works."""
    bench.stack.wait_workers(WORKERS_OF_W5)
    bench.load(CHAIN["name"], "burst", str(WARM_RUNS // 10))
    answer = httpx.post(
        f"{bench.stack.api_url}/workflows/{VICTIM['name']}/runs", headers=bench.stack.headers, json={"input": {}}
    )
    run = str(answer.raise_for_status().json()["run_id"])
    return kill_holder(bench.rows, run, bench.stack.kill9_body, random.uniform(0, PHASE_SECONDS))[NEXT]


WORKLOADS: Final[Mapping[str, Callable[[Bench, int, float], Result]]] = {
    "w1": saturate,
    "w2": wait_lightly,
    "w3": fan,
    "w4": wake,
    "w5": survive,
}


def _warm(seconds: float, work: Callable[[], Any]) -> None:
    """At least once."""
    end = time.monotonic() + seconds
    work()
    while time.monotonic() < end:
        work()


def _run(bench: Bench, client: httpx.Client, workflow: str) -> tuple[float, str, float]:
    """Start a run by the API and wait for its end: when it was asked for, its id, seconds until the end was seen."""
    asked, begun = time.time(), time.monotonic()
    answer = client.post(f"/workflows/{workflow}/runs", json={"input": {}})
    run = str(answer.raise_for_status().json()["run_id"])
    bench.wait(lambda: bool(bench.one(_HAS_ENDED, run=run)), RUN_SECONDS, "the run ends", ask_seconds=0.005)
    return asked, run, time.monotonic() - begun


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    workload, *given = sys.argv[1:]
    arguments = dict(part.split("=", 1) for part in given)
    workers = WORKERS_OF_W5 if workload == "w5" else 1
    with (
        Rig(shared_buffers=SHARED_BUFFERS, postgres=POSTGRES) as rig,
        rig.bench("headrace", workers=workers, workflows=[CHAIN]) as bench,
    ):
        result = WORKLOADS[workload](bench, int(arguments["n"]), float(arguments["warm"]))
    print(json.dumps({key: round(value, 4) for key, value in result.items()}))


if __name__ == "__main__":
    main()
