"""`headrace signal`, `signals`, `post`: what runs are told from outside."""

from typing import Annotated, Any

import typer
from rich.console import RenderableType

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.run_id import find_run, short
from headrace.cli.terminal import Terminal, ago, table
from headrace.cli.value import read_json

Target = Annotated[str, typer.Argument(metavar="RUN", help="a run: its id, its last digits, `last`")]
CODES = (
    "Exit codes: 0 stored, 2 wrong options or no task waits for that name, 3 no such run, 4 it has ended, 5 API away."
)


@command("signal", panel="Runs", epilog=CODES)
def signal(
    terminal: Terminal,
    api: Api,
    run: Target,
    name: Annotated[str, typer.Argument(metavar="NAME", help="what a task of the run waits for")],
    data: Annotated[str | None, typer.Option("--data", "-d", help="what it says, as JSON, @file or -")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="only for a task that waits for this key")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="your own name for it: sent twice, it is one signal")] = None,
) -> None:
    """Tell a run something: a task that waits for it takes it, now or once it begins to wait."""
    given: dict[str, Any] = {"name": name, "key": key, "id": id_}
    content = {field: value for field, value in given.items() if value is not None}
    answer = api.post(f"/runs/{find_run(api, run)}/signals", {**content, "data": read_json(data)})
    terminal.show(answer, lambda: f"signal {answer['name']} of run {answer['run_id']} is stored")


@command(
    "post", panel="Runs", epilog="Exit codes: 0 stored, 2 wrong options, 4 that id is of another signal, 5 API away."
)
def post(
    terminal: Terminal,
    api: Api,
    name: Annotated[str, typer.Argument(metavar="NAME", help="what tasks wait for")],
    key: Annotated[str, typer.Option("--key", "-k", help="whoever waits for this key may have it")],
    data: Annotated[str | None, typer.Option("--data", "-d", help="what it says, as JSON, @file or -")] = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="your own name for it: posted twice, it is one signal")
    ] = None,
    keep: Annotated[str, typer.Option("--keep", help="how long it waits for somebody, such as 12h")] = "1d",
) -> None:
    """Tell something to whoever waits for its name and key, in any run, now or later."""
    content = {"name": name, "key": key, "keep": keep, "data": read_json(data)}
    answer = api.post("/signals", content if id_ is None else {**content, "id": id_})
    terminal.show(answer, lambda: _told(answer))


def _told(posted: Document) -> str:
    offers = posted.get("offers") or []
    runs = ", ".join(f"{short(offer['run_id'])} {offer['task']}" for offer in offers[:5])
    more = f" and {len(offers) - 5} more" if len(offers) > 5 else ""
    whom = f"offered to {runs}{more}" if offers else "nobody waits for it yet"
    return f"signal {posted['name']} for {posted['key']} is stored: {whom}"


@command("signals", panel="Runs", epilog="Exit codes: 0 listed (also when there are none), 3 no such run, 5 API away.")
def list_signals(
    terminal: Terminal,
    api: Api,
    run: Target,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 50,
) -> None:
    """List what a run was told, and what became of it."""
    run_id = find_run(api, run)
    answer = api.page(f"/runs/{run_id}/signals", limit=limit)
    if not answer["items"]:
        terminal.say(f"run {short(run_id)} was told nothing")
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: _draw(answer["items"]))


def _draw(items: list[Document]) -> RenderableType:
    rows = table("signal", "key", "sent", "by", "became", "task")
    for item in items:
        became = item["status"] + (f": {item['reason']}" if item.get("reason") else "")
        rows.add_row(
            item["name"], item.get("key") or "", ago(item["sent_at"]), item["actor"], became, item.get("task") or ""
        )
    return rows
