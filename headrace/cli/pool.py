"""`headrace pools`, `set-pool`, `remove-pool`, `prioritise`: who holds the slots of pools, how many there are, who is
next."""

from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.run import RUN_HELP
from headrace.cli.run_id import find_run, short
from headrace.cli.terminal import Terminal, ago, table
from headrace.errors import ConfigurationError

_Name = Annotated[str, typer.Argument(metavar="POOL", help="as tasks name it by `pool:`")]


@command("pools", panel="Pools", epilog="Exit codes: 0 listed (also when there are none), 3 no such pool, 5 API away.")
def list_pools(
    terminal: Terminal,
    api: Api,
    name: Annotated[str | None, typer.Argument(metavar="[POOL]", help="show one: its holders and its queue")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 50,
) -> None:
    """List pools, or show who holds the slots of one and who is next."""
    if name is not None:
        pool = api.get(f"/pools/{name}")
        terminal.show(pool, lambda: _draw_pool(pool))
        return
    answer = api.page("/pools", limit=limit)
    if not answer["items"]:
        terminal.say("there are no pools; make one: headrace set-pool POOL --limit N")
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: _draw(answer["items"]))


@command("set-pool", panel="Pools", epilog="Exit codes: 0 set, 1 the rate was refused, 2 no limit given, 5 API away.")
def set_pool(
    terminal: Terminal,
    api: Api,
    name: _Name,
    limit: Annotated[int | None, typer.Option("--limit", "-l", min=0, help="tasks that hold a slot at once")] = None,
    rate: Annotated[str | None, typer.Option("--rate", "-r", help="hand-outs in some time, such as 10/s")] = None,
) -> None:
    """Make a pool, or give it other limits. With fewer slots nothing is stopped."""
    if limit is None and rate is None:
        raise ConfigurationError("give --limit, --rate, or both")
    given: dict[str, Any] = {"limit": limit, "rate": rate}
    pool = api.put(f"/pools/{name}", {key: value for key, value in given.items() if value is not None})
    terminal.show(pool, lambda: _draw([pool]))


@command("remove-pool", panel="Pools", epilog="Exit codes: 0 removed, 3 no such pool, 4 it is in use, 5 API away.")
def remove_pool(terminal: Terminal, api: Api, name: _Name) -> None:
    """Remove a pool of which no task holds a slot or waits for one."""
    api.delete(f"/pools/{name}")
    terminal.show({"name": name, "removed": True}, lambda: f"pool {name} is removed")


@command(
    "prioritise",
    panel="Pools",
    epilog="Exit codes: 0 accepted, 2 no such priority, 3 no such run, 4 the run has ended already, 5 API away.",
)
def prioritise(
    terminal: Terminal,
    api: Api,
    run: Annotated[str, typer.Argument(help=RUN_HELP)],
    priority: Annotated[int, typer.Argument(min=-100, max=100, help="each point is worth a minute of waiting")],
    reason: Annotated[str, typer.Option("--reason", help="kept in the history")] = "",
) -> None:
    """Change the place of a run's tasks in the queues of pools."""
    run_id = find_run(api, run)
    answer = api.post(f"/runs/{run_id}/priority", {"priority": priority, "reason": reason})
    terminal.show(answer, lambda: f"run {run_id} has priority {priority}")


def _draw(items: list[Document]) -> RenderableType:
    rows = table("pool", "limit", "rate", "held", "waiting")
    for item in items:
        limit = "none" if item["limit"] is None else str(item["limit"])
        rows.add_row(
            item["name"], limit if item["is_set"] else "not set", item["rate"] or "", str(item["held"]),
            str(item["waiting"]),
        )  # fmt: skip
    return rows


def _draw_pool(pool: Document) -> RenderableType:
    rows = table("", "run", "task", "workflow", "key", "priority", "since")
    for place, item in enumerate(pool["holders"]):
        rows.add_row("" if place else "holds", *_task(item))
    for place, item in enumerate(pool["waiters"], 1):
        rows.add_row(str(place), *_task(item))
    return Group(_draw([pool]), Text(), rows)


def _task(item: Document) -> tuple[str, ...]:
    return (
        short(item["run_id"]),
        item["task"],
        item["workflow"],
        item["fairness_key"] or "",
        str(item["priority"]),
        ago(item["since"]),
    )
