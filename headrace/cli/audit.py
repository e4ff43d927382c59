"""`headrace audit`: what was done through the API."""

from typing import Annotated

import typer
from rich.console import RenderableType

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.terminal import Terminal, ago, table


@command("audit", panel="Access", epilog="Exit codes: 0 listed, 5 API away, 6 needs admin.")
def audit(
    terminal: Terminal,
    api: Api,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 50,
) -> None:
    """List what was done through the API, newest first: who, when, why, from where."""
    answer = api.page("/audit", limit=limit)
    terminal.show(answer, lambda: _draw(answer["items"]))


def _draw(items: list[Document]) -> RenderableType:
    rows = table("when", "who", "act", "on", "why", "from")
    for item in items:
        rows.add_row(ago(item["at"]), item["actor"], item["act"], item["target"], item["reason"], item["address"])
    return rows
