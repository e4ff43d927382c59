"""`headrace pause`, `resume`, `terminate`, `rerun`, `skip`: what people do to a run."""

import sys
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.run import RUN_HELP
from headrace.cli.run_id import find_run
from headrace.cli.terminal import Terminal, table
from headrace.cli.value import read_json

_Run = Annotated[str, typer.Argument(help=RUN_HELP)]
_Reason = Annotated[str, typer.Option("--reason", help="kept in the history")]


@command(
    "pause",
    panel="Runs",
    epilog="Exit codes: 0 accepted, 3 no such run, 4 it is paused or has ended already, 5 API away.",
)
def pause_run(terminal: Terminal, api: Api, run: _Run, reason: _Reason = "") -> None:
    """Pause a run: nothing new begins; what runs goes on to its end, and timers are kept."""
    _act(terminal, api, run, "pause", reason, "pauses; what was handed out goes on to its end")


@command("resume", panel="Runs", epilog="Exit codes: 0 accepted, 3 no such run, 4 it is not paused, 5 API away.")
def resume_run(terminal: Terminal, api: Api, run: _Run, reason: _Reason = "") -> None:
    """Resume a run that was paused."""
    _act(terminal, api, run, "resume", reason, "goes on")


@command(
    "terminate", panel="Runs", epilog="Exit codes: 0 accepted, 3 no such run, 4 the run has ended already, 5 API away."
)
def terminate_run(terminal: Terminal, api: Api, run: _Run, reason: _Reason = "") -> None:
    """End a run by force, without any clean-up; no answer of what still runs counts."""
    _act(terminal, api, run, "terminate", reason, "is being terminated")


@command(
    "rerun",
    panel="Runs",
    epilog="Exit codes: 0 accepted (or shown, with --dry-run), 1 not confirmed, 2 bad JSON, 3 no such run or task, "
    "4 the run has not ended, has moved since it was shown, or nothing of it would run again, 5 API away.",
)
def rerun_run(
    terminal: Terminal,
    api: Api,
    run: _Run,
    tasks: Annotated[list[str] | None, typer.Option("--from", help="this task and all behind it; repeat it")] = None,
    input: Annotated[str | None, typer.Option("--input", "-i", help="of the one task: JSON, @file or -")] = None,
    reason: _Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would run again")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask whether the effects may repeat")] = False,
) -> None:
    """Run again what failed or was cancelled of a run that has ended, or what --from names; the rest is reused."""
    run_id = find_run(api, run)
    body: dict[str, Any] = {"tasks": tasks or [], "reason": reason}
    body |= {"input": read_json(input)} if input is not None else {}
    shown = api.post(f"/runs/{run_id}/rerun", {**body, "dry_run": True})
    if dry_run:
        terminal.show(shown, lambda: _draw_rerun(shown))
        return
    if not yes:
        terminal.errors.print(_draw_rerun(shown))
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody can be asked: look with --dry-run, then give --yes")
        typer.confirm("run it again?", abort=True, err=True)
    answer = api.post(f"/runs/{run_id}/rerun", {**body, "row_version": shown["row_version"]})
    terminal.show(answer, lambda: f"run {run_id} runs again: {len(answer['again'])} tasks")


@command(
    "skip",
    panel="Runs",
    epilog="Exit codes: 0 accepted, 2 bad JSON, 3 no such run or task, 4 the task has ended, or is to be approved, "
    "5 API away.",
)
def skip_task(
    terminal: Terminal,
    api: Api,
    run: _Run,
    task: Annotated[str, typer.Argument(help="of the run: one that is open or has failed")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="JSON, @file or -; default null")] = None,
    reason: _Reason = "",
) -> None:
    """Skip a task: give it its output, so that it is done without its body."""
    run_id = find_run(api, run)
    body: dict[str, Any] = {"reason": reason}
    body |= {"output": read_json(output)} if output is not None else {}
    answer = api.post(f"/tasks/{run_id}.{task}/skip", body)
    terminal.show(answer, lambda: f"task {task} is given its output; the run goes on")


def _draw_rerun(shown: Document) -> RenderableType:
    rows = table("task", "is", "then", "effect")
    for each in shown["again"]:
        rows.add_row(each["task"], each["status"], each["then"], _effect(each))
    reused = ", ".join(shown["reused"]) or "nothing"
    return Group(Text(f"{shown['workflow']} v{shown['version']}; reused: {reused}"), rows)


def _effect(each: Document) -> str:
    if each["effect"] == "repeats":
        return f"repeats, {_PROTECTIONS[each['protected_by']]}"
    return _EFFECTS[each["effect"]]


_PROTECTIONS = {
    "effect_key": "under the same effect key",
    "lookup": "unless its lookup says that it happened",
    "person": "if a person says so",
}
_EFFECTS = {"none": "", "first": "for the first time", "did_not_happen": "it did not happen before"}


def _act(terminal: Terminal, api: Api, run: str, verb: str, reason: str, said: str) -> None:
    run_id = find_run(api, run)
    answer = api.post(f"/runs/{run_id}/{verb}", {"reason": reason} if reason else {})
    terminal.show(answer, lambda: f"run {run_id} {said}")
