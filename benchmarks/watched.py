"""W1-console: does a browser that looks on slow the engine down? The workload of W1 without the console, with it open
on the page of a busy run, and with a second window on the list of runs as well, both live; in turns, so that a machine
that changes its pace changes all.

The busy run goes on in every turn. The CPU of the browser is no cost of the engine, and stands on a row of its own: an
operator looks on from another machine. Here it shares the cores, at the lowest priority, and still makes what runs
beside it dearer. How often it asked the API is told, so that it can be seen that it went on.
"""

import contextlib
import statistics
import time
from collections.abc import Generator
from typing import Any, Final

import httpx
from playwright.sync_api import Browser

from api.feed import LINGER_SECONDS
from benchmarks.bench import Bench, Measurement
from benchmarks.browser import Fact, Window, driver_pid, logged_in, new_window, open_browser, stand_back
from benchmarks.saturation import saturate
from benchmarks.session import STEPS, Session
from benchmarks.table import spread
from benchmarks.workflows import linear

BROWSER: Final = "browser"
BEGUN_SECONDS: Final = 30.0
_BEGUN: Final = "SELECT count(*) FROM task WHERE run_id = %(run)s::uuid"
_IS_OPEN: Final = "SELECT finished_at IS NULL FROM run WHERE run_id = %(run)s::uuid"


TURNS: Final = {"alone": 0, "a run": 1, "a run and the list": 2}
"""Windows that are open in each."""


def measure(session: Session) -> None:
    sizes, bench = session.sizes, session.bench
    busy = linear(sizes.busy_steps, "bench.nap", "busy")
    bench.publish(busy)
    pgbench = session.calibrate()
    with open_browser() as browser:
        found = []
        for _ in range(sizes.repeat):
            if found:
                time.sleep(LINGER_SECONDS)  # the API goes on looking when nobody listens any more
            found.append({name: _turn(bench, sizes.runs, busy["name"], browser, n) for name, n in TURNS.items()})
    rows = [row for name in TURNS for row in _rows(name, [one[name] for one in found])]
    ratios: dict[str, list[float]] = {}
    for name in list(TURNS)[1:]:
        ratios[f"steps/s, {name}"] = [one[name]["steps_per_s"] / one["alone"]["steps_per_s"] for one in found]
        ratios[f"CPU per step, {name}"] = [cpu_of_ours(one[name]) / cpu_of_ours(one["alone"]) for one in found]
    rows += [(f"ratio to alone in turns of {name}", spread(of_one, 3)) for name, of_one in ratios.items()]
    title = f"{STEPS}-step workflow, saturated, {sizes.runs} runs x {sizes.repeat}, the console open on this or not"
    medians = {name: statistics.median(of_one) for name, of_one in ratios.items()}
    session.report.add("W1-console", title, rows, found, pgbench_c8=pgbench, ratio=medians)


def _turn(bench: Bench, runs: int, busy: str, browser: Browser, count: int) -> Measurement:
    with _busy_run(bench, busy) as run, contextlib.ExitStack() as watching:
        windows = list[Window]()
        if count:
            context = watching.enter_context(logged_in(browser, bench))
            pages = ((f"/runs/{run}", Fact(".timeline-row")), ("/runs", Fact(".table-row")))
            for path, fact in pages[:count]:
                windows.append(new_window(context, bench))
                windows[-1].open(path, fact)
            stand_back()
        asked = sum(window.asked() for window in windows)
        found = saturate(bench, runs, others={BROWSER: driver_pid()} if windows else {})
        found["asked"] = sum(window.asked() for window in windows) - asked
        if not bench.one(_IS_OPEN, run=run):
            raise SystemExit("bench: the busy run has ended before W1 had; give it more steps")
        return found


@contextlib.contextmanager
def _busy_run(bench: Bench, workflow: str) -> Generator[str]:
    """A run of many short tasks, one after the other, while the block lasts."""
    url, headers = bench.stack.api_url, bench.stack.headers
    answer = httpx.post(f"{url}/workflows/{workflow}/runs", headers=headers, json={"input": {}}).raise_for_status()
    run = str(answer.json()["run_id"])
    bench.wait(lambda: int(bench.one(_BEGUN, run=run)) > 1, BEGUN_SECONDS, "the busy run has begun")
    yield run
    httpx.post(f"{url}/runs/{run}/cancel", headers=headers, json={"reason": "benchmark"}).raise_for_status()
    bench.wait(lambda: not bench.one(_IS_OPEN, run=run), BEGUN_SECONDS, "the busy run ends")


def cpu_of_ours(found: Measurement) -> float:
    """Without the browser's."""
    return sum(cost for part, cost in found["cpu_us_per_step"].items() if part != BROWSER)


def _rows(name: str, found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    api = [sum(us for part, us in one["cpu_us_per_step"].items() if part.startswith("api")) for one in found]
    rows = [
        (f"steps/s, {name}", spread([one["steps_per_s"] for one in found], 0)),
        (f"CPU us per step, {name}", spread([cpu_of_ours(one) for one in found], 1)),
        (f"  of it API, {name}", spread(api, 1)),
    ]
    if TURNS[name]:
        browser = [one["cpu_us_per_step"][BROWSER] for one in found]
        rows.append((f"  beside it the browser, {name}", spread(browser, 1)))
        rows.append((f"  requests of it, {name}", spread([one["asked"] for one in found], 0)))
    return rows
