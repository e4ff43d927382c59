"""`headrace pause`, `resume`, `terminate`: hold a run, let it go on, end it by force."""

from typing import Annotated

import typer

from headrace.cli.api import Api
from headrace.cli.command import command
from headrace.cli.run import RUN_HELP
from headrace.cli.run_id import find_run
from headrace.cli.terminal import Terminal

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


def _act(terminal: Terminal, api: Api, run: str, verb: str, reason: str, said: str) -> None:
    run_id = find_run(api, run)
    answer = api.post(f"/runs/{run_id}/{verb}", {"reason": reason} if reason else {})
    terminal.show(answer, lambda: f"run {run_id} {said}")
