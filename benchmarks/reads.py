"""W7: what the API's reads take with 1 M finished runs behind, and some that are stuck: lists, their filters, deep
pages, and one run with as many tasks as a graph may have. One request at a time, over one connection, in random
order."""

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from api.filters import page_token
from api.paging import token
from benchmarks.bench import Bench, run_id_of_now
from benchmarks.session import CHAIN, Session
from benchmarks.table import percentiles, spread
from benchmarks.workflows import FAILING, fan_out
from headrace.filter import parse
from headrace.machine import RunStatus

LIMIT_MAX: Final = 200
DEPTHS: Final = (0.5, 0.9)
"""Share of the runs that a deep page has above it."""
TIMEOUT_SECONDS: Final = 30.0
WARM_REQUESTS: Final = 3
DOCTOR_REQUESTS: Final = 3

_AT_DEPTH: Final = "SELECT run_id::text FROM run ORDER BY run_id DESC OFFSET %(offset)s LIMIT 1"
_RUNS: Final = "SELECT count(*) FROM run"
_WIDE: Final = "SELECT run_id::text FROM run WHERE run_id > %(since)s"

Asked = Mapping[str, tuple[str, Mapping[str, Any]]]
"""What a request is called -> its path and query."""


def measure(session: Session) -> None:
    sizes, bench = session.sizes, session.stranded
    wide = run_wide(bench, sizes.wide_tasks)
    asked = {**_of_lists(bench), **_of_a_run(wide, sizes.wide_tasks)}
    pgbench = session.calibrate()
    found = _ask(bench, asked, sizes.requests)
    rows = [(name, f"{one['p50']:.1f} / {one['p99']:.1f} / {one['max']:.1f}") for name, one in found.items()]
    doctor = _doctor(bench)
    rows.append(("doctor, seconds: min / median / max", spread(doctor, 1)))
    runs = bench.one(_RUNS)
    title = f"reads of the API with {runs} runs, ms: p50 / p99 / max of {sizes.requests} requests each"
    session.report.add(
        "W7",
        title,
        rows,
        [{"ms": found, "doctor_seconds": doctor}],
        pgbench_c8=pgbench,
        runs=runs,
        tasks=sizes.wide_tasks,
    )


def run_wide(bench: Bench, tasks: int) -> str:
    """Run one run of so many tasks to its end; its id."""
    workflow, since = fan_out(tasks - 2), run_id_of_now()
    bench.publish(workflow)
    bench.load(workflow["name"], "burst", "1")
    return str(bench.one(_WIDE, since=since))


def _of_lists(bench: Bench) -> Asked:
    runs = int(bench.one(_RUNS))
    chain = f"/workflows/{CHAIN['name']}/runs"
    deep = {
        f"runs, a page {share:.0%} down": (
            "/runs",
            {"page": page_token(parse("runs", ""), bench.one(_AT_DEPTH, offset=int(runs * share)))},
        )
        for share in DEPTHS
    }
    of_chain = parse("runs", "").and_("workflow", CHAIN["name"])
    page = page_token(of_chain, bench.one(_AT_DEPTH, offset=int(runs * DEPTHS[-1])))
    return {
        "runs, first page": ("/runs", {}),
        f"runs, first page of {LIMIT_MAX}": ("/runs", {"limit": LIMIT_MAX}),
        **deep,
        **{f"runs, {status.value}": ("/runs", {"status": status.value}) for status in RunStatus},
        "runs of a workflow": ("/runs", {"workflow": CHAIN["name"]}),
        "runs of a workflow with few": ("/runs", {"workflow": FAILING["name"]}),
        "runs of a workflow, failed": ("/runs", {"workflow": CHAIN["name"], "status": "failed"}),
        f"runs of a workflow, a page {DEPTHS[-1]:.0%} down": ("/runs", {"workflow": CHAIN["name"], "page": page}),
        **{
            f"runs, filter {filter}": ("/runs", {"filter": filter})
            for filter in (
                "is:open -workflow:none",
                "is:stuck",
                "-is:stuck is:open",
                "started:>-1h status:completed",
                "failed:* code:ERROR",
                "input.customer:nobody",
                "waits:person",
                "took:>1h",
                "by:nobody",
            )
        },
        **{
            f"{what}{' of ' + filter if filter else ''}": (f"/runs/{path}", {"filter": filter})
            for path, what in (("count", "count"), ("facets", "facets"), ("histogram", "histogram"))
            for filter in ("", "status:failed", f"workflow:{CHAIN['name']}", "input.customer:nobody", "is:stuck")
        },
        "tasks, failed": ("/tasks", {"filter": "status:failed"}),
        "attempts, lost": ("/attempts", {"filter": "outcome:lost"}),
        "history, of nobody": ("/history", {"filter": "by:nobody"}),
        "a workflow's runs": (chain, {}),
        "a workflow's runs, running": (chain, {"status": "running"}),
    }


def _of_a_run(run: str, tasks: int) -> Asked:
    middle = tasks // 2
    return {
        f"a run of {tasks} tasks": (f"/runs/{run}", {}),
        "its tasks, first page": (f"/runs/{run}/tasks", {}),
        f"its tasks, a page of {LIMIT_MAX} in the middle": (
            f"/runs/{run}/tasks",
            {"limit": LIMIT_MAX, "page": token(middle)},
        ),
        "its history, first page": (f"/runs/{run}/history", {}),
        f"its history, a page of {LIMIT_MAX} in the middle": (
            f"/runs/{run}/history",
            {"limit": LIMIT_MAX, "page": token(middle, False, -1)},
        ),
        "one of its tasks": (f"/tasks/{run}.join", {}),
        "that task's attempts": (f"/tasks/{run}.join/attempts", {}),
    }


def _ask(bench: Bench, asked: Asked, requests: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each; raises httpx's error for an answer that is none."""
    times: dict[str, list[float]] = {name: [] for name in asked}
    with httpx.Client(base_url=bench.stack.api_url, headers=bench.stack.headers, timeout=TIMEOUT_SECONDS) as client:
        for name in asked:
            for _ in range(WARM_REQUESTS):
                _time(client, asked[name])
        for name in _shuffled([*asked] * requests):
            times[name].append(_time(client, asked[name]))
    return {name: percentiles(of_one) for name, of_one in times.items()}


def _doctor(bench: Bench) -> list[float]:
    """Seconds of each examination, of as much as it looks at when nobody asks for more."""
    with httpx.Client(base_url=bench.stack.api_url, headers=bench.stack.headers, timeout=TIMEOUT_SECONDS) as client:
        return [_time(client, ("/doctor", {})) / 1000 for _ in range(DOCTOR_REQUESTS)]


def _shuffled(names: Sequence[str]) -> list[str]:
    return random.Random(1).sample(names, len(names))


def _time(client: httpx.Client, asked: tuple[str, Mapping[str, Any]]) -> float:
    path, query = asked
    began = time.perf_counter()
    client.get(path, params=query).raise_for_status()
    return (time.perf_counter() - began) * 1000
