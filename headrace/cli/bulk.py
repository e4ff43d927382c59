"""`headrace bulk`: one act on many runs, at a rate."""

import sys
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.filter import FilterText, with_clauses
from headrace.cli.run import StatusFilter
from headrace.cli.terminal import Terminal, ago, table
from headrace.cli.value import read_rate

RATE_DEFAULT: Final = 10.0
SELECTED_MAX: Final = 10_000
"""Items of one bulk."""
_COUNTS: Final = ("done", "refused", "gone", "stopped", "left")


class BulkAct(StrEnum):
    CANCEL = "cancel"
    TERMINATE = "terminate"
    PAUSE = "pause"
    RESUME = "resume"
    RELEASE = "release"
    RERUN = "rerun"
    MIGRATE = "migrate"
    MOVE = "move"


class Filter(NamedTuple):
    """Which runs."""

    text: FilterText = ""
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", help="short for workflow:…")] = None
    status: Annotated[
        list[StatusFilter] | None,
        typer.Option("--status", "-s", help="in this status; repeat it; default: where the act can be done"),
    ] = None


@command(
    "bulk",
    panel="Runs",
    epilog="Exit codes: 0 accepted, listed, or shown with --dry-run, 1 not confirmed, 2 bad filter, 3 no such bulk, "
    "4 no run matches, or the bulk is over, 5 API away.",
)
def bulk(
    terminal: Terminal,
    api: Api,
    which: Filter,
    act: Annotated[BulkAct | None, typer.Argument(help="what is asked of each run; none: list what was asked")] = None,
    reason: Annotated[str, typer.Option("--reason", help="kept in the histories")] = "",
    rate: Annotated[
        str | None, typer.Option(help="how many: 50/s, 600/m or 50; default 10/s, with --rest that of the bulk")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    progress: Annotated[str | None, typer.Option(metavar="BULK", help="how far one has come")] = None,
    items: Annotated[str | None, typer.Option(metavar="BULK", help="what came of each of its runs")] = None,
    stop: Annotated[str | None, typer.Option(metavar="BULK", help="end one: nothing more is asked")] = None,
    rest: Annotated[str | None, typer.Option(metavar="BULK", help="ask it of what had no turn when one ended")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many are listed at most")] = 50,
) -> None:
    """Ask the same of all runs that a filter finds, at a rate; or see how far that is."""
    if items:
        answer = api.page(f"/bulk/{items}/items", limit=limit)
        terminal.show(answer, lambda: _draw_items(answer["items"]))
        return
    if progress or stop:
        path = f"/bulk/{progress or stop}"
        one = api.post(f"{path}/stop") if stop else api.get(path)
        terminal.show(one, lambda: _draw_bulk(one))
        return
    if rest:
        body = _rest_of(api, rest, reason)
    elif act is None:
        answer = api.page("/bulk", limit=limit)
        terminal.show(answer, lambda: _draw_bulks(answer["items"]))
        return
    else:
        body = {"act": act.value, "filter": _filter(which), "reason": reason, "rate": RATE_DEFAULT}
    if rate is not None:
        body["rate"] = read_rate(rate)
    shown = api.post("/bulk", {**body, "dry_run": True})
    if dry_run:
        terminal.show(shown, lambda: _draw_preview(shown))
        return
    if not yes:
        terminal.errors.print(_draw_preview(shown))
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody can be asked: look with --dry-run, then give --yes")
        typer.confirm(f"{body['act']} {shown['count']} runs?", abort=True, err=True)
    chosen = {"run_ids": shown["run_ids"]} if shown["run_ids"] else {}  # what was shown is what is asked
    answer = api.post("/bulk", {**body, "filter": shown["filter"], **chosen})
    terminal.show(answer, lambda: _draw_bulk(answer))


def _rest_of(api: Api, bulk_id: str, reason: str) -> dict[str, Any]:
    """What asks the same of those that were frozen with it and had no turn: another bulk, of exactly these."""
    before = api.get(f"/bulk/{bulk_id}")
    stopped = api.page(f"/bulk/{bulk_id}/items", limit=SELECTED_MAX, outcome="stopped")["items"]
    if before["act"] not in [act.value for act in BulkAct]:
        raise typer.BadParameter("what is left of a replay of dead letters is parked still: headrace replay --filter …")
    if not stopped:
        raise typer.BadParameter("all of that bulk had their turn, or have it yet")
    ids = [item["run_id"] for item in stopped]
    return {"act": before["act"], "run_ids": ids, "reason": reason or before["reason"], "rate": before["rate"]}


def _filter(which: Filter) -> str:
    found = with_clauses(which.text, workflow=which.workflow, status=which.status)
    if not found:
        raise typer.BadParameter("say by a filter which runs")
    return found


def _draw_bulks(items: list[Document]) -> RenderableType:
    rows = table("bulk", "act", "status", "selected", *_COUNTS, "rate", "by", "asked")
    for item in items:
        counts = [str(item[name]) for name in ("selected", *_COUNTS)]
        who = (Text(item["created_by"]), ago(item["created_at"]))
        rows.add_row(item["bulk_id"], item["act"], item["status"], *counts, f"{item['rate']:g}/s", *who)
    return rows


def _draw_bulk(item: Document) -> RenderableType:
    counts = ", ".join(f"{item[name]} {name}" for name in _COUNTS if item[name] or name in ("done", "left"))
    lines = [Text(f"{item['act']}, {item['status']}: {counts} of {item['selected']}")]
    if item.get("later"):
        told = [f"{count} {word.replace('_', ' ')}" for word, count in item["later"].items()]
        lines.append(Text("of those done: " + ", ".join(told)))
    lines += [Text(f"{each['count']} refused: {each['reason']}", style="red") for each in item.get("refusals") or []]
    if item["status"] == "running":
        lines.append(Text(f"how far it is: headrace bulk --progress {item['bulk_id']}", style="yellow"))
    return Group(*lines)


def _draw_preview(shown: Document) -> RenderableType:
    more = ", and older ones beyond" if shown["has_more"] else ""
    lines = [Text(f"{shown['act']} would be asked of {shown['done']} of {shown['count']} runs that match{more}")]
    lines += [Text(f"{each['count']} refused: {each['reason']}", style="red") for each in shown["refused"]]
    if shown["effects"]:
        lines.append(Text(f"of the first {shown['foreseen']} runs, tasks that run again, by their effect:"))
    for each in shown["effects"]:
        protected = f", protected by {each['protected_by'].replace('_', ' ')}" if each["protected_by"] else ""
        lines.append(Text(f"  {each['tasks']} {each['effect'].replace('_', ' ')}{protected}"))
    return Group(*lines)


def _draw_items(items: list[Document]) -> RenderableType:
    rows = table("run", "outcome", "later", "reason")
    for item in items:
        words = [(item[name] or "").replace("_", " ") for name in ("outcome", "later")]
        rows.add_row(item["run_id"] or item["dead_letter_id"], *words, Text(item["reason"] or ""))
    return rows
