"""`headrace parked`, `resolve`: tasks whose effect may have happened, and what a person knows about it."""

from typing import Annotated, Any

import typer
from rich.console import RenderableType

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.run_id import find_run, short
from headrace.cli.terminal import Terminal, ago, table
from headrace.cli.value import read_json
from headrace.errors import ConfigurationError

CODES = "Exit codes: 0 resolved, 2 wrong options, 3 no such run or task, 4 it is not parked, 5 API away."


@command("parked", panel="Decisions", epilog="Exit codes: 0 listed (also when there are none), 5 API away.")
def list_parked(
    terminal: Terminal,
    api: Api,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 50,
) -> None:
    """List the tasks that wait for a person to say whether their effect happened."""
    answer = api.page("/parked-tasks", limit=limit)
    if not answer["items"]:
        terminal.say("no task is parked")
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: _draw(answer["items"]))


@command("resolve", panel="Decisions", epilog=CODES)
def resolve(
    terminal: Terminal,
    api: Api,
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run: its id, its last digits, `last`")],
    task: Annotated[str, typer.Argument(metavar="TASK", help="the parked task")],
    happened: Annotated[bool, typer.Option("--happened", help="the effect happened: the task is done")] = False,
    did_not: Annotated[bool, typer.Option("--did-not", help="it did not: the task is tried again")] = False,
    fail: Annotated[bool, typer.Option("--fail", help="give the task up: it becomes a dead letter")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="with --happened: the task's output, as JSON, @file or -")
    ] = None,
    comment: Annotated[str | None, typer.Option("--comment", "-c", help="kept with the decision")] = None,
) -> None:
    """Say what became of a parked task's effect."""
    chosen = [name for name, is_chosen in _choices(happened, did_not, fail) if is_chosen]
    if len(chosen) != 1:
        raise ConfigurationError("choose one of --happened, --did-not and --fail")
    body: dict[str, Any] = {"outcome": chosen[0], "comment": comment or ""}
    if output is not None:
        if not happened:
            raise ConfigurationError("--output goes with --happened")
        body["output"] = read_json(output)
    answer = api.post(f"/tasks/{find_run(api, run)}.{task}/resolve", body)
    terminal.show(answer, lambda: f"{answer['task_id']}: {answer['outcome'].replace('_', ' ')}")


def _choices(happened: bool, did_not: bool, fail: bool) -> tuple[tuple[str, bool], ...]:
    return ("happened", happened), ("did_not_happen", did_not), ("fail", fail)


def _draw(items: list[Document]) -> RenderableType:
    rows = table("run", "workflow", "task", "parked", "what is not known")
    for item in items:
        error = item.get("error") or {}
        rows.add_row(
            short(item["run_id"]), item["workflow"], item["task"], ago(item["parked_at"]), error.get("message", "")
        )
    return rows
