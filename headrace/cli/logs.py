"""`headrace logs`: what the bodies of a run logged."""

import json
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.run_id import find_run, short
from headrace.cli.terminal import Terminal

PAGE_LINES = 1_000
STYLES = {"debug": "dim", "info": "", "warning": "yellow", "error": "bold red"}

Target = Annotated[str, typer.Argument(metavar="RUN", help="a run: its id, its last digits, `last`")]


@command("logs", panel="Runs", epilog="Exit codes: 0 shown (also when there are none), 3 no such run, 5 API away.")
def logs(
    terminal: Terminal,
    api: Api,
    run: Target,
    task: Annotated[str | None, typer.Option("--task", "-t", help="only of this task, or item: pages.17")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=0, help="only of this attempt")] = None,
    level: Annotated[str, typer.Option("--level", "-l", help="debug, info, warning or error, and above")] = "debug",
    grep: Annotated[str | None, typer.Option("--grep", "-g", help="only lines with this text, in any case")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="only so many of the last lines")] = 1_000,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the run has ended")] = False,
) -> None:
    """Show what the bodies of a run logged, by `ctx.log` or Python's logging; with --json a line of JSON for each."""
    run_id = find_run(api, run)
    given: dict[str, Any] = {"task": task, "attempt": attempt, "level": level, "q": grep}
    asked = {name: value for name, value in given.items() if value is not None}
    page = api.get(f"/runs/{run_id}/logs", **asked, tail="true", limit=min(limit, PAGE_LINES))
    for line in page["items"]:
        _show(terminal, line)
    if follow:
        for event, line in api.stream(f"/runs/{run_id}/logs/events?{urlencode({**asked, 'after': page['last']})}"):
            if event == "line":
                _show(terminal, line)
    elif not page["items"]:
        terminal.say(f"the bodies of run {short(run_id)} have logged nothing")


def _show(terminal: Terminal, line: Document) -> None:
    if terminal.is_json:
        print(json.dumps(line, ensure_ascii=False), flush=True)
        return
    fields = "".join(
        f" {name}={_brief(value)}" for name, value in (line["fields"] or {}).items() if name != "exception"
    )
    where = f"{line['task']}#{line['attempt']}"
    text = Text.assemble(
        (line["at"][11:23], "dim"), " ", (f"{line['level']:7}", STYLES.get(line["level"], "")), " ", (where, "cyan"),
        " ", line["message"], (fields, "dim"),
    )  # fmt: skip
    if (trace := (line["fields"] or {}).get("exception")) is not None:
        text.append(f"\n{trace}", "dim")
    terminal.console.print(text, soft_wrap=True)


def _brief(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)
