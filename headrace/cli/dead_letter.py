"""`headrace dead-letters`, `replay`, `discard`: what was set aside, to be repaired."""

import json
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.drawing import describe_error
from headrace.cli.run_id import find_run, short
from headrace.cli.terminal import Terminal, ago, table
from headrace.cli.value import read_json

SEARCHED_MAX = 1_000
"""Of the latest ones, when those of one run are asked for."""

Id = Annotated[str, typer.Argument(metavar="ID", help="a dead letter, as `headrace dead-letters` lists it")]


@command(
    "dead-letters",
    panel="Repair",
    epilog="Exit codes: 0 listed (also when there are none), 3 no such dead letter, 5 API away.",
)
def list_dead_letters(
    terminal: Terminal,
    api: Api,
    dead_letter: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="show this one with all its context")
    ] = None,
    status: Annotated[str, typer.Option(help="parked, replayed or discarded")] = "parked",
    kind: Annotated[str | None, typer.Option(help="of this kind only")] = None,
    run: Annotated[str | None, typer.Option(help="of this run only")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 50,
) -> None:
    """List records and failed tasks that were set aside, newest first."""
    if dead_letter:
        document = api.get(f"/dead-letters/{dead_letter}")
        terminal.show(document, lambda: _draw_dead_letter(document))
        return
    run_id = find_run(api, run) if run else None
    answer = api.page("/dead-letters", limit=SEARCHED_MAX if run_id else limit, status=status, kind=kind)
    if run_id:
        of_run = [item for item in answer["items"] if item.get("run_id") == run_id]
        answer = Document(items=of_run[:limit], next=None)
    if not answer["items"]:
        terminal.say("nothing is set aside" if status == "parked" else f"no dead letter is {status}")
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: _draw_dead_letters(answer["items"]))


@command(
    "replay",
    panel="Repair",
    epilog="Exit codes: 0 accepted, 2 bad JSON, 3 no such dead letter, 4 it was closed already, 5 API away.",
)
def replay(
    terminal: Terminal,
    api: Api,
    dead_letter: Id,
    input: Annotated[str | None, typer.Option("--input", "-i", help="a repaired input: JSON, @file, or -")] = None,
) -> None:
    """Try it again, with its old input or a repaired one."""
    body = {"input": read_json(input)} if input is not None else {}
    answer = api.post(f"/dead-letters/{dead_letter}/replay", body)
    terminal.show(answer, lambda: f"{answer['status']}: dead letter {answer['dead_letter_id']}")


@command(
    "discard", panel="Repair", epilog="Exit codes: 0 done, 3 no such dead letter, 4 it was closed already, 5 API away."
)
def discard(
    terminal: Terminal, api: Api, dead_letter: Id, reason: Annotated[str, typer.Option(help="why; kept with it")]
) -> None:
    """Close it without trying again."""
    answer = api.post(f"/dead-letters/{dead_letter}/discard", {"reason": reason})
    terminal.show(answer, lambda: f"discarded: dead letter {dead_letter}")


def _draw_dead_letters(items: list[Document]) -> RenderableType:
    rows = table("id", "kind", "of", "reason", "set aside")
    for item in items:
        rows.add_row(
            str(item["dead_letter_id"]),
            item["kind"],
            _origin(item),
            Text(_why(item)[:200]),
            ago(item.get("created_at")),
        )
    return rows


def _draw_dead_letter(item: Document) -> RenderableType:
    lines = [
        Text(f"{item['kind']}  {item['dead_letter_id']}  {item['status']}  {ago(item.get('created_at'))}", style="bold")
    ]
    lines.append(Text(_origin(item)))
    lines.append(Text(_why(item), style="red"))
    for name in ("key", "value"):
        if item.get(name) is not None:
            lines.append(Text(f"{name}  {item[name]}"))
    if item.get("error"):
        lines.append(Text(json.dumps(item["error"], indent=2, ensure_ascii=False), style="dim"))
    if item["status"] == "parked":
        lines.append(Text(f"try it again: headrace replay {item['dead_letter_id']}", style="yellow"))
    return Group(*lines)


def _origin(item: Document) -> str:
    """A failed task is of a run, a bad record of a topic."""
    if item.get("run_id"):
        return f"{item.get('task') or 'run'} of {item.get('workflow') or 'run'} {short(item['run_id'])}"
    return f"{item.get('topic')} partition {item.get('partition')} offset {item.get('offset')}"


def _why(item: Document) -> str:
    reason, error = str(item.get("reason") or ""), describe_error(item) if isinstance(item.get("error"), dict) else ""
    return f"{reason}: {error}" if reason and error and reason not in error else error or reason
