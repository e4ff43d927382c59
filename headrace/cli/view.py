"""`headrace views`: filters that are kept under a name."""

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.filter import FilterText
from headrace.cli.terminal import Terminal, table
from headrace.errors import NotFoundError


class ViewOf(StrEnum):
    """The lists that take a filter."""

    RUNS = "runs"
    TASKS = "tasks"
    ATTEMPTS = "attempts"
    HISTORY = "history"
    DEAD_LETTERS = "dead_letters"


@command(
    "views",
    panel="Runs",
    epilog="Exit codes: 0 done, 2 bad filter, 3 no such view, 4 the name is taken, 5 API away, "
    "6 it is somebody else's.",
)
def views(
    terminal: Terminal,
    api: Api,
    text: FilterText = "",
    of: Annotated[ViewOf, typer.Option(help="of which list")] = ViewOf.RUNS,
    save: Annotated[str | None, typer.Option(metavar="NAME", help="keep the filter under this name")] = None,
    shared: Annotated[bool, typer.Option("--shared", help="with --save: for all who read")] = False,
    remove: Annotated[str | None, typer.Option(metavar="NAME", help="keep it no more")] = None,
) -> None:
    """List filters that are kept under a name; keep one, or remove one."""
    if save:
        body = {"name": save, "of": of.value, "filter": text, "is_shared": shared}
        made = api.post("/views", body)
        terminal.show(made, lambda: f"kept as {made['name']}: {made['filter']}")
        return
    if remove:
        found = find_view(api, of.value, remove)
        if found["view_id"] is None:
            raise typer.BadParameter(f"{remove} is always there")
        api.delete(f"/views/{found['view_id']}")
        terminal.show(found, lambda: f"{found['name']} is kept no more")
        return
    answer = api.get("/views", of=of.value)
    terminal.show(answer, lambda: _draw(answer["items"]))


def find_view(api: Api, of: str, name: str) -> Document:
    """The view of this name, in small or capital letters; one's own before one that all see. Raises NotFoundError."""
    found = [view for view in api.get("/views", of=of)["items"] if view["name"].casefold() == name.casefold()]
    if not found:
        raise NotFoundError(f"there is no view {name!r} of {of.replace('_', ' ')}; headrace views lists them")
    return min(found, key=lambda view: (view["is_shared"], view["view_id"] is None))


def _draw(views: list[Document]) -> RenderableType:
    rows = table("view", "filter", "of")
    for view in views:
        owner = "" if view["view_id"] is None else f"{view['owner']}, for all" if view["is_shared"] else view["owner"]
        rows.add_row(Text(view["name"]), Text(view["filter"]), Text(owner))
    return rows
