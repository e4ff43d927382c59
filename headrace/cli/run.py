"""`headrace run`, `runs`, `show`, `cancel`: start runs and see what became of them."""

import json
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import Exit, command
from headrace.cli.drawing import count_of, describe_error, describe_items, describe_labels
from headrace.cli.filter import FilterText, with_clauses
from headrace.cli.following import TASKS_MAX, draw_run, follow_run, headline, hints
from headrace.cli.run_id import find_run, short
from headrace.cli.terminal import Terminal, ago, between, table
from headrace.cli.value import read_json, read_labels
from headrace.cli.view import find_view

ITEMS_SHOWN: Final = 50
CHILDREN_SHOWN: Final = 50
RUN_HELP = "its id, the last digits of a recent one, or `last`"


class StatusFilter(StrEnum):
    """Statuses of runs, as the command line spells them."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NEEDS_ATTENTION = "needs_attention"
    PAUSING = "pausing"
    PAUSED = "paused"
    TERMINATED = "terminated"
    CANCELLING = "cancelling"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"


class ItemStatus(StrEnum):
    """Statuses of items of a map that have begun."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@command(
    "run",
    panel="Runs",
    epilog="Exit codes: 0 completed (or started, with --detach), 1 failed, cancelled, or the input was refused, "
    "2 bad JSON or label, 3 no such workflow, 4 the key was used with another input or other labels, 5 API away, "
    "130 Ctrl-C (the run goes on).",
)
def run_workflow(
    terminal: Terminal,
    api: Api,
    workflow: Annotated[str, typer.Argument(help="name of a published workflow")],
    input: Annotated[str | None, typer.Option("--input", "-i", help="JSON, @file, or - for standard input")] = None,
    key: Annotated[str | None, typer.Option(help="the run's identity: the same key again gives the same run")] = None,
    version: Annotated[int | None, typer.Option(min=1, help="of the workflow; default the latest")] = None,
    priority: Annotated[int, typer.Option("--priority", min=-100, max=100, help="in the queues of pools")] = 0,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", "-l", metavar="NAME=VALUE", help="what it is found by again; may be given several times"
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="start it and return at once")] = False,
) -> None:
    """Start a run and follow it to its end."""
    body: dict[str, Any] = {"input": read_json(input)} if input is not None else {}
    body |= {"key": key} if key else {}
    body |= {"version": version} if version else {}
    body |= {"priority": priority} if priority else {}
    body |= {"labels": read_labels(label)} if label else {}
    run = api.post(f"/workflows/{workflow}/runs", body)
    if detach:
        terminal.show(run, lambda: f"run {run['run_id']}\nfollow it: headrace show {short(run['run_id'])}")
        return
    if not terminal.is_json:
        terminal.say(Text.assemble("run ", (run["run_id"], "bold")))
    try:
        ended = follow_run(api, run["run_id"], terminal)
    except KeyboardInterrupt:
        terminal.say(f"the run goes on; look at it: headrace show {short(run['run_id'])}")
        raise
    _report(ended, terminal)


def _report(run: Document, terminal: Terminal) -> None:
    if terminal.is_json:
        terminal.print_json(run)
    else:
        if not terminal.is_live:  # the live display ends with both
            terminal.say(headline(run, terminal))
            for hint in hints(run, []):
                terminal.say(hint)
        shown = run["output"] if run.get("output") is not None else run.get("outputs")
        if shown:
            terminal.say(Text(json.dumps(shown, indent=2, ensure_ascii=False)))
    if run["status"] != StatusFilter.COMPLETED:
        raise typer.Exit(Exit.FAILED)


@command(
    "runs",
    panel="Runs",
    epilog="Exit codes: 0 listed (also when there are none), 2 bad filter, 3 no such view, 5 API away.",
)
def list_runs(
    terminal: Terminal,
    api: Api,
    text: FilterText = "",
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", help="short for workflow:…")] = None,
    status: Annotated[StatusFilter | None, typer.Option("--status", "-s", help="short for status:…")] = None,
    view: Annotated[str | None, typer.Option(help="the filter that is kept under this name")] = None,
    count: Annotated[bool, typer.Option("--count", help="only say how many there are, and of which kinds")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 20,
) -> None:
    """List runs, newest first."""
    kept = find_view(api, "runs", view)["filter"] if view else ""
    wanted = with_clauses(f"{kept} {text}", workflow=workflow, status=status) if kept or text else ""
    given = {"filter": wanted} if wanted else {"workflow": workflow, "status": status.value if status else None}
    if count:
        wanted = wanted or with_clauses("", workflow=workflow, status=status)
        facets = api.get("/runs/facets", filter=wanted or None)
        terminal.show(facets, lambda: _draw_facets(facets))
        return
    answer = api.page("/runs", limit=limit, **given)
    if terminal.is_json:
        terminal.print_json(answer)
        return
    if answer["items"]:
        terminal.console.print(_draw_runs(answer["items"], terminal))
    if answer["next"]:
        terminal.say(Text(f"… more: headrace runs --limit {2 * limit}", style="dim"))
    elif not answer["items"]:
        terminal.say("no such runs" if any(given.values()) else "no runs yet; start one: headrace run WORKFLOW")


@command(
    "show",
    panel="Runs",
    epilog="Exit codes: 0 shown, 3 no such run or task, 4 the digits name several runs, 5 API away.",
)
def show_run(
    terminal: Terminal,
    api: Api,
    run: Annotated[str, typer.Argument(help=RUN_HELP)] = "last",
    task: Annotated[
        str | None, typer.Option("--task", "-t", help="one task with its attempts, input and output; or `pages.17`")
    ] = None,
    status: Annotated[
        ItemStatus | None, typer.Option("--status", "-s", help="with --task, of a map: only its items in this status")
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="what happened to it, in order")] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="draw every branch of a wide fan")] = False,
) -> None:
    """Show a run: its graph with states, attempts and errors."""
    run_id = find_run(api, run)
    if task:
        _show_task(terminal, api, run_id, task, status)
        return
    document = api.get(f"/runs/{run_id}")
    if history:
        answer = api.page(f"/runs/{run_id}/history", limit=TASKS_MAX)
        terminal.show(answer, lambda: Group(headline(document, terminal), _draw_history(answer["items"])))
        return
    tasks = api.page(f"/runs/{run_id}/tasks", limit=TASKS_MAX)["items"]
    relations: Document = {"parent": None, "items": []}
    if document.get("trigger") == "child" or any(task.get("workflow") for task in tasks):
        relations = api.get(f"/runs/{run_id}/relations", limit=CHILDREN_SHOWN)
    terminal.show(
        {**document, "tasks": tasks, "parent": relations["parent"], "children": relations["items"]},
        lambda: Group(
            draw_run(document, tasks, terminal, everything=everything),
            *_draw_relations(relations, terminal),
            *_draw_output(document),
        ),
    )


@command(
    "cancel", panel="Runs", epilog="Exit codes: 0 accepted, 3 no such run, 4 the run has ended already, 5 API away."
)
def cancel_run(
    terminal: Terminal,
    api: Api,
    run: Annotated[str, typer.Argument(help=RUN_HELP)],
    reason: Annotated[str | None, typer.Option(help="kept in the history")] = None,
) -> None:
    """Cancel a run: nothing new starts, and running bodies are told to stop."""
    run_id = find_run(api, run)
    answer = api.post(f"/runs/{run_id}/cancel", {"reason": reason} if reason else {})
    terminal.show(answer, lambda: f"run {run_id} is being cancelled")


@command(
    "release",
    panel="Runs",
    epilog="Exit codes: 0 accepted, 3 no such run, 4 it does not stand aside, 5 API away.",
)
def release_run(terminal: Terminal, api: Api, run: Annotated[str, typer.Argument(help=RUN_HELP)]) -> None:
    """Let a run go on that stands aside because one of its events could not be decided."""
    run_id = find_run(api, run)
    answer = api.post(f"/runs/{run_id}/release", {})
    terminal.show(answer, lambda: f"run {run_id} goes on")


# == drawing ===========================================================================================================
def _draw_runs(runs: list[Document], terminal: Terminal) -> RenderableType:
    has_labels = any(run.get("labels") for run in runs)
    rows = table("run", "workflow", "status", "tasks", "started", "took", *(["labels"] if has_labels else []))
    for run in runs:
        counts = run.get("counts") or {}
        done = sum(counts.get(status, 0) for status in ("completed", "skipped"))
        rows.add_row(
            run["run_id"],
            f"{run['workflow']} v{run['version']}",
            terminal.status(run["status"]),
            f"{done}/{sum(counts.values())}",
            ago(run["created_at"]),
            between(run["created_at"], run.get("finished_at")),
            *([Text(describe_labels(run.get("labels") or {}))] if has_labels else []),
        )
    return rows


def _draw_facets(facets: Document) -> RenderableType:
    more = "more than " if facets["has_more"] else ""
    rows = table("", "", f"{more}{facets['count']} runs")
    for facet in facets["facets"]:
        for place, each in enumerate(facet["values"]):
            rows.add_row("" if place else facet["field"], Text(each["value"]), str(each["count"]))
    return rows


def _draw_output(run: Document) -> list[Text]:
    """What came out of the run, where its workflow says what should."""
    if error := run.get("output_error"):
        return [Text(f"its output cannot be evaluated: {describe_error({'error': error})}", style="red")]
    if run.get("output") is None:
        return []
    return [Text(f"output  {json.dumps(run['output'], ensure_ascii=False)}")]


def _draw_relations(relations: Document, terminal: Terminal) -> list[RenderableType]:
    """The run that asked for this one, and those that its tasks have asked for."""
    drawn: list[RenderableType] = []
    if (parent := relations["parent"]) is not None:
        waits = "which waits for it" if parent["waits"] else "which does not wait for it"
        told = f"  started by task {parent['task']} of run {parent['run_id']} ({parent['workflow']}), {waits}"
        drawn.append(Text.assemble("parent  ", terminal.status(parent["status"]), told))
    if children := relations["items"]:
        rows = table("task", "child", "workflow", "status", "started", "took")
        for child in children:
            version = "" if child["version"] is None else f" v{child['version']}"
            began = ago(child["started_at"]) if child["started_at"] else child["reason"] or ""
            took = between(child["started_at"], child["ended_at"])
            rows.add_row(
                child["task"], child["run_id"], child["workflow"] + version, terminal.status(child["status"]),
                Text(began), took,
            )  # fmt: skip
        drawn.append(rows)
    return drawn


def _draw_history(items: list[Document]) -> RenderableType:
    rows = table("at", "what", "task", "by", "detail")
    for item in items:
        detail = item.get("detail")
        shown = json.dumps(detail, ensure_ascii=False) if isinstance(detail, dict | list) and detail else detail or ""
        rows.add_row(item["at"], item["kind"], item.get("task") or "", item.get("actor") or "", Text(str(shown)[:300]))
    return rows


def _show_task(terminal: Terminal, api: Api, run_id: str, name: str, status: ItemStatus | None) -> None:
    task = api.get(f"/tasks/{run_id}.{name}")
    if task.get("items"):
        answer = api.page(f"/runs/{run_id}/tasks/{name}/items", limit=ITEMS_SHOWN, status=status and status.value)
        terminal.show({**task, "item_page": answer["items"]}, lambda: _draw_map(task, answer, terminal))
        return
    attempts = api.page(f"/tasks/{run_id}.{name}/attempts", limit=TASKS_MAX)["items"]
    terminal.show({**task, "attempts": attempts}, lambda: _draw_task(task, attempts, terminal))


def _draw_map(task: Document, answer: Document, terminal: Terminal) -> RenderableType:
    """A map, and some of its items."""
    head = Text.assemble(terminal.status(task["status"]), (f"  {task['name']}", "bold"), f"  {task['run']}")
    counts = Text(f"{describe_items(task['items'])}, {task['items']['begun']} have begun, queue {task['queue']}", "dim")
    rows = table("item", "status", "attempt", "error")
    for item in answer["items"]:
        attempt = f"{item['attempt']} of {item['attempts_max']}"
        rows.add_row(item["name"], terminal.status(item["status"]), attempt, Text(describe_error(item)))
    more = [Text("… more: headrace show --status STATUS, or the API", style="dim")] if answer["next"] else []
    return Group(head, counts, rows, *more)


def _what_it_does(task: Document) -> str:
    if task.get("workflow"):
        return f"workflow {task['workflow']}"
    return task.get("run") or ("wait" if task.get("due_at") else "no body")


def _draw_task(task: Document, attempts: list[Document], terminal: Terminal) -> RenderableType:
    facts = [
        Text.assemble(
            terminal.status(task["status"]),
            (f"  {task['name']}", "bold"),
            f"  {_what_it_does(task)}",
        ),
        Text(f"attempt {task['attempt']} of {task['attempts_max']}, queue {task['queue']}", style="dim"),
    ]
    if task.get("deadline_at"):
        facts.append(Text(f"fails unless it has ended by {task['deadline_at']}, {ago(task['deadline_at'])}"))
    if task.get("rounds"):
        facts.append(Text(f"{count_of(task['rounds'], 'round')} of its repeat ended"))
    for name in ("input", "output"):
        if task.get(name) is not None:
            facts.append(Text(f"{name}  {json.dumps(task[name], ensure_ascii=False)}"))
    rows = table("attempt", "outcome", "worker", "took", "error")
    for each in attempts:
        took = between(each.get("started_at"), each.get("finished_at"))
        rows.add_row(str(each["attempt"]), each["outcome"], each.get("worker") or "", took, Text(describe_error(each)))
    return Group(*facts, *([rows] if attempts else [Text("no attempt has ended yet", style="dim")]))
