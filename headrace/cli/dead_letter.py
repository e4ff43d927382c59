"""`headrace dead-letters`, `replay`, `discard`: what was set aside, to be repaired."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.drawing import describe_error
from headrace.cli.filter import FilterText, with_clauses
from headrace.cli.run_id import find_run, short
from headrace.cli.terminal import Terminal, ago, table
from headrace.cli.value import read_json, reason

Id = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="a dead letter, as `headrace dead-letters` lists it; or a filter")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only say which ones")]


class Filter(NamedTuple):
    """Which dead letters: what each of the three commands takes."""

    text: FilterText = ""
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", help="short for workflow:…")] = None
    run: Annotated[str | None, typer.Option(help="of this run; its last digits will do")] = None


@command(
    "dead-letters",
    panel="Repair",
    epilog="Exit codes: 0 listed (also when there are none), 2 bad filter, 3 no such dead letter, 5 API away.",
)
def list_dead_letters(
    terminal: Terminal,
    api: Api,
    which: Filter,
    dead_letter: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="show this one with all its context")
    ] = None,
    status: Annotated[str | None, typer.Option(help="parked, replayed or discarded; default parked")] = None,
    group: Annotated[bool, typer.Option("--group", "-g", help="count them by cause")] = False,
    replays: Annotated[bool, typer.Option("--replays", help="list the replays of many instead")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 50,
) -> None:
    """List records and failed tasks that were set aside, newest first."""
    if dead_letter:
        document = api.get(f"/dead-letters/{dead_letter}")
        terminal.show(document, lambda: _draw_dead_letter(document))
        return
    if replays:
        _list(terminal, api.page("/dead-letters/replays", limit=limit), _draw_replays, "nothing was replayed by filter")
        return
    wanted = _ask(api, which)
    none = "nothing is set aside" if status in (None, "parked") else f"no dead letter is {status}"
    path = "/dead-letters/groups" if group else "/dead-letters"
    answer = api.page(path, limit=limit, status=status, filter=wanted or None)
    _list(terminal, answer, _draw_groups if group else _draw_dead_letters, none)


@command(
    "replay",
    panel="Repair",
    epilog="Exit codes: 0 accepted, 2 bad JSON or filter, 3 no such dead letter, 4 it was closed already, or none is "
    "left to be replayed, 5 API away.",
)
def replay(
    terminal: Terminal,
    api: Api,
    which: Filter,
    dead_letter: Id = None,
    input: Annotated[str | None, typer.Option("--input", "-i", help="a repaired input: JSON, @file, or -")] = None,
    content: Annotated[Path | None, typer.Option("--bytes", help="a file, in place of a record's bytes")] = None,
    rate: Annotated[float, typer.Option(help="of many: how many a second")] = 10.0,
    dry_run: DryRun = False,
    progress: Annotated[str | None, typer.Option(metavar="REPLAY", help="how far a replay of many has come")] = None,
    stop: Annotated[str | None, typer.Option(metavar="REPLAY", help="end a replay of many")] = None,
) -> None:
    """Try one again, with its old input or a repaired one; or all that match a filter, at a rate."""
    if progress or stop:
        path = f"/dead-letters/replays/{progress or stop}"
        bulk = api.post(f"{path}/stop") if stop else api.get(path)
        terminal.show(bulk, lambda: _draw_replay(bulk))
        return
    wanted = _ask(api, which)
    _check_target(dead_letter, wanted)
    if dead_letter:
        answer = api.post(f"/dead-letters/{dead_letter}/replay", _repaired(input, content))
        terminal.show(answer, lambda: f"{answer['status']}: dead letter {answer['dead_letter_id']}")
        return
    if input is not None or content is not None:
        raise typer.BadParameter("many cannot be given one input; name one dead letter")
    answer = api.post("/dead-letters/replay", {"filter": wanted, "rate": rate, "dry_run": dry_run})
    terminal.show(answer, lambda: _draw_selection(answer, "replayed") if dry_run else _draw_replay(answer))


@command(
    "discard",
    panel="Repair",
    epilog="Exit codes: 0 done, 2 bad filter, 3 no such dead letter, 4 it was closed already, 5 API away.",
)
def discard(
    terminal: Terminal,
    api: Api,
    which: Filter,
    reason: Annotated[str, typer.Option(help="why; kept with it")],
    dead_letter: Id = None,
    dry_run: DryRun = False,
) -> None:
    """Close one, or all that match a filter, without trying again."""
    wanted = _ask(api, which)
    _check_target(dead_letter, wanted)
    if dead_letter:
        answer = api.post(f"/dead-letters/{dead_letter}/discard", {"reason": reason})
        terminal.show(answer, lambda: f"discarded: dead letter {dead_letter}")
        return
    answer = api.post("/dead-letters/discard", {"filter": wanted, "reason": reason, "dry_run": dry_run})
    terminal.show(answer, lambda: _draw_selection(answer, "discarded") if dry_run else _draw_discarded(answer))


# == what was asked ====================================================================================================
def _ask(api: Api, which: Filter) -> str:
    """The filter as the API takes it."""
    return with_clauses(which.text, workflow=which.workflow, run=find_run(api, which.run) if which.run else None)


def _check_target(dead_letter: str | None, wanted: str) -> None:
    if bool(dead_letter) == bool(wanted):
        raise typer.BadParameter("name one dead letter, or say by a filter which ones")


def _repaired(input: str | None, content: Path | None) -> Document:
    if input is not None and content is not None:
        raise typer.BadParameter("give either --input or --bytes")
    if content is not None:
        try:
            return {"value_base64": b64encode(content.read_bytes()).decode()}
        except OSError as error:
            raise typer.BadParameter(f"cannot read {content}: {reason(error)}") from None
    return {"input": read_json(input)} if input is not None else {}


# == what is shown =====================================================================================================
def _list(terminal: Terminal, answer: Document, draw: Any, none: str) -> None:
    if not answer["items"]:
        terminal.say(none)
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: draw(answer["items"]))


def _draw_groups(items: list[Document]) -> RenderableType:
    rows = table("group", "count", "of", "code", "message", "last", "first")
    for item in items:
        of = item.get("topic") or f"{item.get('task')} of {item.get('workflow')} version {item.get('version')}"
        message = Text(str(item["message"])[:200])
        ages = (ago(item["last_at"]), ago(item["first_at"]))
        rows.add_row(item["fingerprint"], str(item["count"]), of, item["code"], message, *ages)
    return rows


def _draw_replays(items: list[Document]) -> RenderableType:
    rows = table("replay", "status", "selected", "replayed", "refused", "left", "rate", "by", "asked")
    for item in items:
        counts = [str(item[name]) for name in ("selected", "replayed", "refused", "left")]
        who = (Text(item["created_by"]), ago(item["created_at"]))
        rows.add_row(item["replay_id"], item["status"], *counts, f"{item['rate']:g}/s", *who)
    return rows


def _draw_replay(item: Document) -> RenderableType:
    counts = ", ".join(f"{item[name]} {name}" for name in ("replayed", "refused", "left"))
    lines = [Text(f"{item['status']}: {counts} of {item['selected']}")]
    if any((item.get("outcomes") or {}).values()):
        told = [f"{count} {word.replace('_', ' ')}" for word, count in item["outcomes"].items() if count]
        lines.append(Text("of those replayed: " + ", ".join(told)))
    lines += [Text(f"{each['dead_letter_id']}  {each['reason']}", style="red") for each in item.get("refusals") or []]
    if item["status"] == "running":
        lines.append(Text(f"how far it is: headrace replay --progress {item['replay_id']}", style="yellow"))
    return Group(*lines)


def _draw_selection(answer: Document, done: str) -> RenderableType:
    more = ", and older ones beyond" if answer["has_more"] else ""
    return Group(Text(f"{answer['count']} would be {done}{more}"), _draw_dead_letters(answer["sample"]))


def _draw_discarded(answer: Document) -> RenderableType:
    more = "; older ones match as well: say it again" if answer["has_more"] else ""
    return Text(f"discarded: {answer['discarded']} dead letters{more}")


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
    for name in ("key", "value", "fingerprint", "traceparent", "input_missing"):
        if item.get(name):
            lines.append(Text(f"{name.replace('_', ' ')}  {item[name]}"))
    for name in ("run_input", "input"):
        if item.get(name) is not None:
            lines.append(Text(f"{name.replace('_', ' ')}  {json.dumps(item[name], ensure_ascii=False)}"))
    lines += [Text(f"header  {each['name']}: {each['value']}") for each in item.get("headers") or []]
    for each in item.get("attempts") or []:
        line = f"attempt {each['attempt']}  {each['outcome']}  {ago(each.get('ended_at'))}  {each.get('worker') or ''}"
        lines.append(Text(f"{line}  {describe_error(each) if each.get('error') else ''}".rstrip(), style="dim"))
    if item.get("error"):
        lines.append(Text(json.dumps(item["error"], indent=2, ensure_ascii=False), style="dim"))
    lines += [Text(line, style="yellow") for line in _next(item)]
    return Group(*lines)


def _next(item: Document) -> list[str]:
    """What became of it, or what can be done."""
    if item["status"] == "parked":
        lines = [f"try it again: headrace replay {item['dead_letter_id']}"]
    else:
        why = f": {item['close_reason']}" if item.get("close_reason") else ""
        outcome = f", {item['replay_outcome'].replace('_', ' ')}" if item.get("replay_outcome") else ""
        lines = [f"{item['status']} by {item.get('closed_by')} {ago(item.get('closed_at'))}{outcome}{why}"]
    if item.get("replay_of"):
        lines.append(f"after a replay of {item['replay_of']}")
    if item.get("replayed_as"):
        lines.append(f"its replay ended in {item['replayed_as']}")
    return lines


def _origin(item: Document) -> str:
    """A failed task is of a run, a bad record of a topic."""
    if item.get("run_id"):
        return f"{item.get('task') or 'run'} of {item.get('workflow') or 'run'} {short(item['run_id'])}"
    return f"{item.get('topic')} partition {item.get('partition')} offset {item.get('offset')}"


def _why(item: Document) -> str:
    reason, error = str(item.get("reason") or ""), describe_error(item) if isinstance(item.get("error"), dict) else ""
    return f"{reason}: {error}" if reason and error and reason not in error else error or reason
