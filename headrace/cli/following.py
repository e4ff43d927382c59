"""Watch one run until it ends: redrawn in place at a terminal, a line a change elsewhere."""

import time
from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.drawing import describe_error, describe_labels, describe_task, draw_tasks
from headrace.cli.run_id import short
from headrace.cli.terminal import Terminal, ago, between
from headrace.errors import UnavailableError

QUICK_SECONDS: Final = 0.1
SLOW_SECONDS: Final = 1.0
"""Asking costs the API one row when nothing changed; a run that is quiet is asked about more and more rarely."""
SLOWER: Final = 1.15
TASKS_A_SECOND: Final = 500
"""A graph of thousands of tasks is read in pages and changes all the time; it is then looked at less often."""
ENDED: Final = frozenset({
    "completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed", "needs_attention"
})  # fmt: skip
"""The last one has not ended, but waits for somebody to repair it."""
TASKS_MAX: Final = 2_000


def is_ended(run: Document) -> bool:
    return run["status"] in ENDED


def follow_run(api: Api, run_id: str, terminal: Terminal) -> Document:
    """Show the run until it ended, and return it as it is then. An API that is away for a while is asked again."""
    if terminal.is_live:
        return _follow_live(api, run_id, terminal)
    seen: dict[str, str] = {}
    latest: Document = {}
    for run, tasks in _changes(api, run_id, terminal):
        latest = run
        for task in tasks:
            _say_change(task, seen, terminal)
    return latest


def _follow_live(api: Api, run_id: str, terminal: Terminal) -> Document:
    latest: Document = {}
    with Live(console=terminal.console, refresh_per_second=10, vertical_overflow="crop") as live:
        for run, tasks in _changes(api, run_id, terminal):
            latest = run
            live.update(draw_run(run, tasks, terminal, rows=None if is_ended(run) else terminal.console.height - 3))
    return latest


def _changes(api: Api, run_id: str, terminal: Terminal) -> Iterator[tuple[Document, list[Document]]]:
    """The run and its tasks whenever they changed; the last time when it ended."""
    version, pause, is_away = None, QUICK_SECONDS, False
    while True:
        try:
            run = api.get(f"/runs/{run_id}")
            if run["row_version"] != version:
                tasks = api.page(f"/runs/{run_id}/tasks", limit=TASKS_MAX)["items"]
                yield run, tasks
                version, pause = run["row_version"], max(QUICK_SECONDS, len(tasks) / TASKS_A_SECOND)
            is_away = False
            if is_ended(run):
                return
        except UnavailableError as error:
            if not is_away:
                terminal.errors.print(Text(f"{error.message.splitlines()[0]}; still trying", style="yellow"))
            is_away = True
        time.sleep(pause)
        pause = min(pause * SLOWER, SLOW_SECONDS)


def _say_change(task: Document, seen: dict[str, str], terminal: Terminal) -> None:
    """One line for a task that is in another state than it was; nobody needs to know that one is pending."""
    undone = f", compensation {task['compensation']}" if task.get("compensation") else ""
    now = f"{task['status']} {task['attempt']}{undone}"
    if seen.get(task["name"], "pending 0") == now:
        return
    seen[task["name"]] = now
    error = describe_error(task)
    text = Text.assemble(terminal.sign(task["status"]), f" {task['name']}  {describe_task(task)}")
    terminal.say(text.append(f"  {error}", style="red") if error else text)
    if is_asked(task):
        terminal.say(approval_hint(task))


def draw_run(
    run: Document, tasks: list[Document], terminal: Terminal, *, rows: int | None = None, everything: bool = False
) -> RenderableType:
    """Headline, graph, and what to do next. rows: so many lines of the graph at most, its last ones."""
    lines = draw_tasks(tasks, terminal, everything=everything)
    if rows is not None and len(lines) > rows > 0:
        lines = [Text(f"… {len(lines) - rows + 1} lines above", style="dim"), *lines[-(rows - 1) :]]
    return Group(headline(run, terminal), *facts(run), *lines, *hints(run, tasks))


def headline(run: Document, terminal: Terminal) -> Text:
    """`✓ greet v1  0199…  completed in 2.1 s`"""
    took = between(run["created_at"], run.get("finished_at"))
    status = str(run["status"]).replace("_", " ")
    return Text.assemble(
        terminal.sign(run["status"]),
        (f" {run['workflow']} v{run['version']}", "bold"),
        f"  {run['run_id']}  {status}",
        f" in {took}" if took else "",
    )


def facts(run: Document) -> list[Text]:
    """What was said about the run as a whole, where anything was."""
    said = []
    if run.get("deadline_at"):
        said.append(f"fails unless it has ended by {run['deadline_at']}, {ago(run['deadline_at'])}")
    if run.get("priority"):
        said.append(f"priority {run['priority']:+d} in the queues of pools")
    if run.get("labels"):
        said.append(f"labels {describe_labels(run['labels'])}")
    return [Text(text, style="dim") for text in said]


def hints(run: Document, tasks: list[Document]) -> list[Text]:
    """What a person can do about the state the run is in."""
    asked = [task for task in tasks if is_asked(task)]
    texts = [approval_hint(task) for task in asked[:3]]
    if run["status"] in ("failed", "compensation_failed", "needs_attention"):
        texts.append(f"what to repair: headrace dead-letters --run {short(run['run_id'])}")
    if run["status"] in ("pausing", "paused"):
        texts.append(f"it is paused: headrace explain {short(run['run_id'])}")
    return [Text(text, style="yellow") for text in texts]


def is_asked(task: Document) -> bool:
    """Whether it waits for a decision, and not for the items of a map that was approved."""
    return task["status"] == "waiting" and bool(task.get("approval_id")) and not task.get("items")


def approval_hint(task: Document) -> str:
    return f"{task['name']} waits for a decision: headrace approve {short(task['run_id'])} --task {task['name']}"
