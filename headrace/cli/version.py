"""`headrace publish --check`, `drain` and `migrate`: what a new version meets, and what still holds to older ones."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import Exit, command
from headrace.cli.run_id import find_run, short
from headrace.cli.terminal import Terminal, ago, table

_VERDICTS = {
    "first": "would be published as its first version",
    "new": "would be published",
    "latest": "is published already and is the latest version: nothing would change",
    "older": "is the content of an older version; a publish would not make it the latest again",
}


def draw_check(file: Path, check: Document, *, each_run: bool = False) -> RenderableType:
    """What `POST /workflows/check` answered, for people. each_run: with the verdict of each that was looked at."""
    lines: list[RenderableType] = [Text(f"{check['name']} v{check['version']} ({file}) {_VERDICTS[check['verdict']]}")]
    if check["verdict"] in ("new", "older"):
        lines.append(Text(f"  against v{check['latest_version']}: {_difference(check['difference'])}"))
    if check["runs"]:
        lines += [Text("  runs in flight:"), _draw_runs(check["runs"]), *_tell_moves(check["moves"])]
        if each_run:
            lines.append(_draw_verdicts(check["moves"]["runs"]))
    elif check["verdict"] != "first":
        lines.append(Text("  no run is in flight"))
    return Group(*lines)


def _tell_moves(moves: Document) -> list[Text]:
    """Which of them could be moved."""
    told = [Text(f"  {moves['movable']} of the oldest {moves['looked_at']} could be moved to it, once paused")]
    for each in moves["obstacles"]:
        told.append(Text(f"    not {each['runs']}: task {each['task']}: {each['why']}"))
    return told


def _draw_verdicts(runs: list[Document]) -> RenderableType:
    rows = table("  run", "version", "status", "would")
    for each in runs:
        would = "move" if each["why_not"] is None else f"stay: {each['why_not']}"
        rows.add_row(f"  {short(each['run_id'])}", f"v{each['version']}", each["status"].replace("_", " "), Text(would))
    return rows


def _difference(difference: Document) -> str:
    """In one line: tasks first, since they are what runs."""
    changes = [f"{change['task']} ({', '.join(change['fields'])})" for change in difference["changed"]]
    said = {
        "added": difference["added"],
        "removed": difference["removed"],
        "renamed": [f"{rename['was']} to {rename['task']}" for rename in difference["renamed"]],
        "changed": changes,
        "moved": difference["moved"],
        "of the workflow": difference["fields"],
    }
    return "; ".join(f"{what} {', '.join(names)}" for what, names in said.items() if names) or "nothing"


def _draw_runs(runs: list[Document]) -> RenderableType:
    rows = table("  version", "status", "runs", "oldest", "began", "then")
    for each in runs:
        stays = f"stays on v{each['version']} to its end"
        then = stays if each["then"] == "stays" else "moves, where nothing stands in the way"
        rows.add_row(
            f"  v{each['version']}", each["status"], str(each["runs"]), short(each["oldest_run_id"]),
            ago(each["oldest_at"]), then,
        )  # fmt: skip
    return rows


@command(
    "drain",
    panel="Workflows",
    epilog="Exit codes: 0 no run is in flight on an older version, 1 some are, 3 no such workflow, 5 API away.",
)
def drain(
    terminal: Terminal,
    api: Api,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="its name")],
) -> None:
    """Show which older versions of a workflow still have runs, and which bodies workers must keep for them."""
    answer = api.get(f"/workflows/{workflow}/versions")
    terminal.show(answer, lambda: _draw_versions(answer))
    if any(version["in_flight"] for version in answer["items"] if not version["is_latest"]):
        raise typer.Exit(Exit.FAILED)


@command(
    "migrate",
    panel="Runs",
    epilog="Exit codes: 0 accepted, or nothing stands in the way, 1 something does (--dry-run), 3 no such run or "
    "version, 4 something does, or it has ended, or is on that version, 5 API away.",
)
def migrate(
    terminal: Terminal,
    api: Api,
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run: its id, its last digits, `last`")],
    to: Annotated[int | None, typer.Option("--to", help="which version; the latest, when left out")] = None,
    reason: Annotated[str, typer.Option("--reason", help="kept in the history")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what stands in the way")] = False,
) -> None:
    """Move a paused run to another version of its workflow."""
    body = {"reason": reason, "dry_run": dry_run, **({} if to is None else {"version": to})}
    answer = api.post(f"/runs/{find_run(api, run)}/migrate", body)
    terminal.show(answer, lambda: _draw_migration(answer))
    if answer["obstacles"]:
        raise typer.Exit(Exit.FAILED)


def _draw_migration(answer: Document) -> RenderableType:
    versions = f"from v{answer['from_version']} to v{answer['to_version']}"
    what = f"run {short(answer['run_id'])} of {answer['workflow']} {versions}"
    if not answer["dry_run"]:
        return Text(f"moves {what}; what may begin by that does so when it is resumed")
    if not answer["obstacles"]:
        return Text(f"nothing stands in the way of moving {what}")
    rows = table("task", "stands in the way")
    for each in answer["obstacles"]:
        rows.add_row(each["task"] or "(the run)", each["why"])
    return Group(Text(f"cannot move {what}:"), rows)


def _draw_versions(answer: Document) -> RenderableType:
    rows = table("version", "published", "in flight", "oldest", "began", "bodies to keep")
    for version in answer["items"]:
        oldest: dict[str, Any] = min(version["runs"], key=lambda each: each["oldest_run_id"], default={})
        counts = ", ".join(f"{each['runs']} {each['status'].replace('_', ' ')}" for each in version["runs"])
        rows.add_row(
            f"v{version['version']}" + (" (latest)" if version["is_latest"] else ""),
            ago(version["published_at"]),
            counts or "none",
            short(oldest["oldest_run_id"]) if oldest else "",
            ago(oldest.get("oldest_at")),
            ", ".join(version["bodies"]),
        )
    older = [version for version in answer["items"] if not version["is_latest"]]
    runs = sum(version["in_flight"] for version in older)
    end = f"{runs} runs are in flight on older versions" if older else "no run is in flight on an older version"
    return Group(rows, Text(end.replace("1 runs are", "1 run is") if runs == 1 else end))
