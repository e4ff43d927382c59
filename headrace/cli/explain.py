"""`headrace explain`: why does this run or task not move?"""

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.run import RUN_HELP
from headrace.cli.run_id import find_run, short
from headrace.cli.terminal import Terminal, ago


@command(
    "explain",
    panel="Runs",
    epilog="Exit codes: 0 explained, also a run that moves or has ended, 3 no such run or task, "
    "4 the digits name several runs, 5 API away.",
)
def explain(
    terminal: Terminal,
    api: Api,
    run: Annotated[str, typer.Argument(help=RUN_HELP)] = "last",
    task: Annotated[str | None, typer.Argument(help="one of its tasks; the run as a whole when left out")] = None,
) -> None:
    """Say why a run or a task does not move: the nearest cause first, what would move it, what you can do."""
    run_id = find_run(api, run)
    path = f"/tasks/{run_id}.{task}/explain" if task else f"/runs/{run_id}/explain"
    document = api.get(path)
    terminal.show(document, lambda: _draw(document, terminal))


def _draw(document: Document, terminal: Terminal) -> RenderableType:
    what = f"task {document['task']} of run" if document.get("task") else "run"
    head = Text.assemble(f"{what} {short(document['run_id'])}  ", terminal.status(document["status"]))
    causes = [_draw_cause(number, cause) for number, cause in enumerate(document["causes"], 1)]
    left = document["open_tasks"] - document["looked_at"]
    rest = [Text(f"… {left} more open tasks were not looked at", style="dim")] if left > 0 else []
    return Group(head, *causes, *rest)


def _draw_cause(number: int, cause: Document) -> RenderableType:
    since = f"  {ago(cause['since'])}" if cause.get("since") else ""
    lines = [Text.assemble(f"{number}. ", (cause["code"], "bold"), (since, "dim")), Text(f"   {cause['text']}")]
    until = f", {ago(cause['until'])}" if cause.get("until") else ""
    lines.append(Text(f"   moves: {cause['moves']}{until}", style="dim"))
    points_to = cause["points_to"]
    if points_to.get("id"):
        lines.append(Text(f"   see: {points_to['kind'].replace('_', ' ')} {points_to['id']}", style="dim"))
    if cause["tasks_total"] > 1:
        more = ", …" if cause["tasks_total"] > len(cause["tasks"]) else ""
        lines.append(Text(f"   {cause['tasks_total']} tasks: {', '.join(cause['tasks'])}{more}", style="dim"))
    lines += [Text(f"   try: {act['cli']}", style="yellow") for act in cause["acts"]]
    return Padding(Group(*lines), (1, 0, 0, 0))
