"""console: what its pages take in a real browser, with 1 M finished runs behind it, some that are stuck, one run of as
many tasks as a graph may have, and one with a map of as many items as a map may have.

Each is looked at several times, every time in a browser that has never been here: so what comes first is a load without
any cache, and all else has the bundle. A time goes from the navigation, or from the press, until the page is usable
(`browser`). The budgets: a list of runs takes less than 300 ms, of the API's time; a run is usable within a second.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Browser, Locator

from benchmarks.bench import ROOT, Bench
from benchmarks.browser import Fact, Seen, Window, logged_in, new_window, open_browser
from benchmarks.reads import run_wide
from benchmarks.session import CHAIN, Session
from benchmarks.table import spread
from benchmarks.workflows import MAP, NAP, fan_out

BUNDLE: Final = ROOT / "api" / "dashboard" / "dist"
PAGE: Final = 100
"""Runs on a page of the list."""
MAP_SECONDS: Final = 240.0
START_SECONDS: Final = 30.0
NAP_SECONDS: Final = 4.0
"""Long enough for a page to show that a run is under way."""
FILTERS: Final = {
    "failed": "status:failed",
    "stuck": "is:stuck",
    "an error": 'error:"always fails"',
    "an error that nothing has": 'error:"nobody says this"',
    "a text of inputs": "input.note:x*",
    "a text that no input has": "input.customer:nobody",
    "a workflow": f"workflow:{CHAIN['name']}",
}
_ENDED_AT: Final = "SELECT extract(epoch FROM finished_at)::float * 1000 FROM run WHERE run_id = %(run)s::uuid"

ROW: Final = Fact(".table-row")
LISTED: Final = Fact(".faceted .table-row, .faceted .empty")
"""A list of runs, also when none matches."""


def measure(session: Session) -> None:
    sizes, bench = session.sizes, session.stranded
    wide = Wide(bench, sizes.wide_tasks)
    bench.publish(MAP, NAP)
    mapped = run_map(bench, sizes.items)
    pgbench = session.calibrate()
    with open_browser() as browser:
        found = [dict(_look(browser, bench, wide, mapped, sizes.items)) for _ in range(sizes.repeat)]
    bundle = bundle_kib()
    rows = [("", "ms; of it the slowest answer of the API; heap MiB; requests")]
    rows += [(name, _text([one[name] for one in found])) for name in found[0]]
    rows += [
        (f"bundle, {name}, KiB: raw, gzip", f"{raw:,.0f}, {packed:,.0f}") for name, (raw, packed) in bundle.items()
    ]
    title = (
        f"pages of the console, {sizes.finished} finished runs behind, {sizes.stranded_runs} stuck, a run of "
        f"{sizes.wide_tasks} tasks, a map of {sizes.items} items, x {sizes.repeat}: min / median / max"
    )
    session.report.add("console", title, rows, found, pgbench_c8=pgbench, finished=sizes.finished, bundle_kib=bundle)


class Wide:
    """The run of many tasks."""

    def __init__(self, bench: Bench, tasks: int) -> None:
        self.tasks, self.workflow = tasks, fan_out(tasks - 2)["name"]
        self.id = run_wide(bench, tasks)
        self.events = int(bench.one("SELECT row_version FROM run WHERE run_id = %(run)s::uuid", run=self.id))


def _look(browser: Browser, bench: Bench, wide: Wide, mapped: str, items: int) -> Iterator[tuple[str, Seen]]:
    """Pages by name, in the order in which they were looked at."""
    with logged_in(browser, bench) as context:
        window = new_window(context, bench)
        yield "overview, without a cache", window.open("/", Fact(".list-row"))
        yield "overview", window.open("/", Fact(".list-row"))
        yield from _look_at_lists(window)
        yield from _look_at_wide_run(window, wide)
        yield from _look_at_map(window, mapped, items)
        yield from _look_at_changes(window, bench)


def _look_at_lists(window: Window) -> Iterator[tuple[str, Seen]]:
    page = window.page
    yield "runs", window.open("/runs", LISTED)
    table = page.get_by_role("group", name="Runs, newest first")
    yield "runs, next page", window.scroll(table, PAGE, Fact(f".table-row[data-index='{PAGE}']"))
    for name, filter in FILTERS.items():
        yield f"runs with {name}", window.open(f"/runs?{urlencode({'filter': filter})}", LISTED)
    yield "runs, a view pressed", window.press(page.get_by_role("button", name="Stuck", exact=True), LISTED)


def _look_at_wide_run(window: Window, wide: Wide) -> Iterator[tuple[str, Seen]]:
    page, timeline = window.page, Fact(".timeline-row")
    window.open(f"/runs?{urlencode({'filter': f'workflow:{wide.workflow}'})}", ROW)
    yield f"a run of {wide.tasks} tasks, pressed", window.press(page.locator(f"[data-row='{wide.id}']"), timeline)
    last = Fact(".timeline-row[data-task='join']")
    yield "its timeline, to the end", window.scroll(page.locator(".timeline-scroll"), wide.tasks, last)
    yield "its last task", window.press(page.locator(last.selector), Fact(".task-panel h2", "join"))
    page.get_by_role("button", name="Close the task").click()
    yield "its tasks", window.press(_tab(window, "Tasks"), Fact(".filters", f"{wide.tasks} of {wide.tasks}"))
    by_time = page.get_by_role("button", name="In bodies")
    yield "its tasks, by time in bodies", window.press(by_time, Fact("[role=columnheader][aria-sort]", "In bodies"))
    yield "its history", window.press(_tab(window, "History"), ROW)
    kinds, whole = page.get_by_role("combobox", name="Event"), Fact(".filters", f"{wide.events} events")
    yield "its history, searched to the end", window.choose(kinds, "started", whole)
    yield "its graph", window.press(_tab(window, "Graph"), Fact(".graph-node"))
    yield "its timeline again", window.press(_tab(window, "Timeline"), timeline)
    yield f"a run of {wide.tasks} tasks, by its address", window.open(f"/runs/{wide.id}", timeline)


def _tab(window: Window, name: str) -> Locator:
    return window.page.get_by_role("tab", name=name)


def _look_at_map(window: Window, run: str, items: int) -> Iterator[tuple[str, Seen]]:
    item = "[aria-label='Items of rows'] .table-row"
    yield f"a map of {items} items", window.open(f"/runs/{run}?task=rows", Fact(item))
    table = window.page.get_by_role("group", name="Items of rows")
    yield "its items, to the middle", window.scroll(table, items // 2, Fact(f"{item}[data-index='{items // 2}']"))


def _look_at_changes(window: Window, bench: Bench) -> Iterator[tuple[str, Seen]]:
    """From the instant at which the database says that a run ended until the page does."""
    for name, path, selector in (
        ("a run has ended, on the list", "/runs", "[data-row='{run}']"),
        ("a run has ended, on its page", "/runs/{run}", ".run-title"),
    ):
        run = start(bench, NAP["name"], NAP_SECONDS)
        opened = window.open(path.format(run=run), Fact(selector.format(run=run), "running"))
        seen_at = window.when(Fact(selector.format(run=run), "completed"))
        ended_at = float(bench.one(_ENDED_AT, run=run))
        yield name, {"ms": seen_at - ended_at, "requests": 0, "api_ms": 0, "heap_mib": opened["heap_mib"]}


def start(bench: Bench, workflow: str, given: Any) -> str:
    answer = httpx.post(
        f"{bench.stack.api_url}/workflows/{workflow}/runs",
        headers=bench.stack.headers,
        json={"input": given},
        timeout=START_SECONDS,
    )
    return str(answer.raise_for_status().json()["run_id"])


def run_map(bench: Bench, items: int) -> str:
    """Run one map of so many items to its end; the id of its run."""
    run = start(bench, MAP["name"], {"items": list(range(items))})
    is_over = "SELECT status = 'completed' FROM run WHERE run_id = %(run)s::uuid"
    bench.wait(lambda: bool(bench.one(is_over, run=run)), MAP_SECONDS, f"a map of {items} items ends")
    return run


def bundle_kib() -> dict[str, tuple[float, float]]:
    """KiB of the bundle as it is and packed by gzip: all of it, and what a page loads before it draws."""
    index = (BUNDLE / "index.html").read_text()
    files = [file for file in sorted(BUNDLE.rglob("*")) if file.is_file()]
    first = [file for file in files if file.name == "index.html" or file.name in index]
    return {"all": _kib(files), "of the first page": _kib(first)}


def _kib(files: list[Path]) -> tuple[float, float]:
    raw = [file.read_bytes() for file in files]
    return sum(map(len, raw)) / 1024, sum(len(gzip.compress(one)) for one in raw) / 1024


def _text(seen: list[Seen]) -> str:
    """A row of the table, over the repetitions."""
    ms, api = (spread([one[name] for one in seen], 0) for name in ("ms", "api_ms"))
    heap = max(one["heap_mib"] for one in seen)
    return f"{ms};  {api};  {heap:.0f};  {max(one['requests'] for one in seen):.0f}"
