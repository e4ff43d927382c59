"""`headrace pause`, `resume`, `terminate`, `rerun`, `skip`: what people do to a run."""

import sys
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import Exit, command
from headrace.cli.run import RUN_HELP
from headrace.cli.run_id import find_run
from headrace.cli.terminal import Terminal, ago, table
from headrace.cli.value import read_json

_Run = Annotated[str, typer.Argument(help=RUN_HELP)]
_RunOr = Annotated[str, typer.Argument(metavar="RUN | workflow NAME | queue NAME", help=RUN_HELP)]
_Name = Annotated[str | None, typer.Argument(metavar="", help="behind `workflow` or `queue`: its name")]
_Task = Annotated[str | None, typer.Option("--task", "-t", help="this task of the run only")]
_Reason = Annotated[str, typer.Option("--reason", help="kept in the history")]


@command(
    "pause",
    panel="Runs",
    epilog="Exit codes: 0 accepted, 3 no such run or workflow, 4 it is paused or has ended already, 5 API away.",
)
def pause_run(
    terminal: Terminal, api: Api, run: _RunOr, name: _Name = None, task: _Task = None, reason: _Reason = ""
) -> None:
    """Pause a run, one --task of it, `workflow NAME` with all its runs, or `queue NAME`: nothing new begins, what runs
    goes on."""
    if run in _SAID:
        _check_alone(task)
        _act_on_many(terminal, api, run, name, "pause", reason)
        return
    _check_alone(name)
    _act(terminal, api, run, "pause", reason, "pauses; what was handed out goes on to its end", task)


@command(
    "resume",
    panel="Runs",
    epilog="Exit codes: 0 accepted, 3 no such run or workflow, 4 it is not paused, 5 API away.",
)
def resume_run(
    terminal: Terminal, api: Api, run: _RunOr, name: _Name = None, task: _Task = None, reason: _Reason = ""
) -> None:
    """Resume a run, one --task of it, `workflow NAME` or `queue NAME` that was paused."""
    if run in _SAID:
        _check_alone(task)
        _act_on_many(terminal, api, run, name, "resume", reason)
        return
    _check_alone(name)
    _act(terminal, api, run, "resume", reason, "goes on", task)


@command("pauses", panel="Runs", epilog="Exit codes: 0 listed (also when there are none), 5 API away.")
def list_pauses(
    terminal: Terminal, api: Api, limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="at most")] = 50
) -> None:
    """List the workflows and queues that are paused: since when, by whom, why, and what is held up."""
    answer = api.page("/pauses", limit=limit)
    answer = {"workflows": answer["items"], "queues": api.get("/queues/pauses")["items"]}
    if not any(answer.values()):
        terminal.say("no workflow and no queue is paused")
    if any(answer.values()) or terminal.is_json:
        terminal.show(answer, lambda: Group(_draw_pauses(answer["workflows"]), _draw_queues(answer["queues"])))


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
    "4 the run has not ended, has moved since it was shown, cannot go on with that version, or nothing of it would run "
    "again, 5 API away.",
)
def rerun_run(
    terminal: Terminal,
    api: Api,
    run: _Run,
    tasks: Annotated[
        list[str] | None, typer.Option("--from", help="this task, or item of a map, and all behind it; repeat it")
    ] = None,
    input: Annotated[str | None, typer.Option("--input", "-i", help="of the one task: JSON, @file or -")] = None,
    version: Annotated[int | None, typer.Option("--version", min=1, help="go on with it; default its own")] = None,
    reason: _Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would run again")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask whether the effects may repeat")] = False,
) -> None:
    """Run again what failed or was cancelled of a run that has ended, or what --from names; the rest is reused."""
    run_id = find_run(api, run)
    body: dict[str, Any] = {"tasks": tasks or [], "reason": reason}
    body |= {"input": read_json(input)} if input is not None else {}
    body |= {"version": version} if version is not None else {}
    shown = api.post(f"/runs/{run_id}/rerun", {**body, "dry_run": True})
    if dry_run:
        terminal.show(shown, lambda: _draw_rerun(shown))
        return
    if shown.get("obstacles"):
        terminal.errors.print(_draw_rerun(shown))
        raise typer.Exit(Exit.CONFLICT)
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
    version, to = shown["version"], shown.get("to_version", shown["version"])
    if shown.get("obstacles"):
        lines = [
            Text(f"  {'the run' if each['task'] is None else 'task ' + each['task']}: {each['why']}")
            for each in shown["obstacles"]
        ]
        return Group(Text(f"{shown['workflow']} cannot go on from v{version} with v{to}:"), *lines)
    rows = table("task", "is", "then", "effect")
    for each in shown["again"]:
        items = f" ({each['items']} items)" if each.get("items") is not None else ""
        rows.add_row(each["task"] + items, each["status"], each["then"], _effect(each))
    reused = ", ".join(shown["reused"]) or "nothing"
    on = f"v{version}" if to == version else f"v{version}, from here on v{to}"
    return Group(Text(f"{shown['workflow']} {on}; reused: {reused}"), rows)


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


def _act(terminal: Terminal, api: Api, run: str, verb: str, reason: str, said: str, task: str | None = None) -> None:
    run_id = find_run(api, run)
    path, what = f"/runs/{run_id}", f"run {run_id}"
    if task is not None:
        path, what = f"/tasks/{run_id}.{task}", f"task {task} of {what}"
    answer = api.post(f"{path}/{verb}", {"reason": reason} if reason else {})
    terminal.show(answer, lambda: f"{what} {said}")


_SAID = {
    "workflow": {"pause": "pauses, with all its runs", "resume": "goes on, with all its runs"},
    "queue": {"pause": "is given nothing new", "resume": "is given what was kept back"},
}


def _act_on_many(terminal: Terminal, api: Api, what: str, name: str | None, verb: str, reason: str) -> None:
    if not name:
        raise typer.BadParameter(f"name the {what}")
    answer = api.post(f"/{what}s/{name}/{verb}", {"reason": reason} if reason else {})
    terminal.show(answer, lambda: f"{what} {name} {_SAID[what][verb]}")


def _check_alone(name: str | None) -> None:
    if name is not None:
        raise typer.BadParameter("name one run, or `workflow` or `queue` and its name")


def _draw_pauses(items: list[Document]) -> RenderableType:
    rows = table("workflow", "since", "by", "why", "open runs")
    for item in items:
        runs = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(item["runs"].items()))
        rows.add_row(item["workflow"], ago(item["paused_at"]), Text(item["paused_by"]), Text(item["reason"]), runs)
    return rows


def _draw_queues(items: list[Document]) -> RenderableType:
    rows = table("queue", "since", "by", "why", "kept back")
    for item in items:
        who = (Text(item["paused_by"]), Text(item["reason"]))
        rows.add_row(item["queue"], ago(item["paused_at"]), *who, f"{item['held']} commands")
    return rows if items else Text("")
