"""The command line: `headrace`.

Every command takes `--json` and ends with a documented exit code (`command`). Those that ask the engine something use
the HTTP API; `dev` starts the engine's processes as children. Nothing here imports the engine.
"""

import importlib
import sys
from collections.abc import Mapping
from typing import Annotated, Final

import typer

import headrace
from headrace.cli.command import Exit, app

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "project": ("new",),
    "dev": ("dev",),
    "worker": ("worker",),
    "record": ("send",),
    "subscription": ("subscribe", "subscriptions", "unsubscribe"),
    "workflow": ("publish", "workflows"),
    "version": ("drain", "migrate"),
    "schema": ("schema",),
    "run": ("run", "runs", "show", "cancel", "release"),
    "control": ("pause", "resume", "pauses", "terminate", "rerun", "skip"),
    "view": ("views",),
    "bulk": ("bulk",),
    "explain": ("explain",),
    "logs": ("logs",),
    "signal": ("signal", "signals", "post"),
    "pool": ("pools", "set-pool", "remove-pool", "prioritise"),
    "approval": ("approvals", "approve", "reject", "comment", "delegate"),
    "parked": ("parked", "resolve"),
    "dead_letter": ("dead-letters", "replay", "discard"),
    "doctor": ("doctor", "workers"),
    "login": ("login",),
    "tokens": ("tokens",),
    "audit": ("audit",),
}
"""Which module has which commands, in the order of `headrace --help`."""


def load_commands(name: str | None = None) -> None:
    """Register the command of that name, or all of them: a quick command need not wait for what `dev` imports."""
    wanted = [module for module, names in MODULES.items() if name in names]
    for module in wanted or MODULES:
        importlib.import_module(f"headrace.cli.{module}")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and leave")
    ] = False,
) -> None:
    """Durable workflows: Kafka wakes workers, Postgres decides."""


def main() -> None:
    """The `headrace` command."""
    try:
        load_commands(sys.argv[1] if len(sys.argv) > 1 else None)
        app()
    except KeyboardInterrupt:  # before a command was there to take it
        sys.exit(Exit.INTERRUPTED)
