"""`headrace tokens`: who may call the API."""

from typing import Annotated

import typer
from rich.console import RenderableType

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.terminal import Terminal, ago, table
from headrace.errors import ConfigurationError, NotFoundError

TOKENS_MAX = 1_000
CODES = (
    "Exit codes: 0 done, 1 refused, 2 wrong options, 3 no such token, 4 the name is taken, 5 API away, 6 needs admin."
)


@command("tokens", panel="Access", epilog=CODES)
def tokens(
    terminal: Terminal,
    api: Api,
    act: Annotated[str, typer.Argument(metavar="[ACT]", help="list, create or revoke")] = "list",
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="whom the token is for")] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="read, operate, approve, admin; repeat it; default read and operate")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help="a role of its holder, for approvals; repeat it")] = None,
    expires: Annotated[str, typer.Option(help="how long it is good")] = "90d",
    reason: Annotated[str, typer.Option(help="kept with a revocation")] = "",
) -> None:
    """List API tokens, create one (its secret is shown once), or revoke one by its name."""
    if act == "list":
        answer = api.page("/tokens", limit=TOKENS_MAX)
        return terminal.show(answer, lambda: _draw(answer["items"]))
    if act not in ("create", "revoke") or not name:
        raise ConfigurationError("headrace tokens list | create NAME | revoke NAME")
    if act == "create":
        asked = {"name": name, "scopes": scope or ["read", "operate"], "roles": role or [], "expires": expires}
        made = api.post("/tokens", asked)
        terminal.say(f"shown once, good until {made['token']['expires_at']}:")
        return terminal.show(made, lambda: made["secret"])
    revoked = api.post(f"/tokens/{_find(api, name)}/revoke", {"reason": reason})
    terminal.show(revoked, lambda: f"revoked: {revoked['name']}; refused everywhere within ten seconds")
    return None


def _find(api: Api, name: str) -> str:
    """The id of the token that has this name now, or of the one with this id."""
    for item in api.page("/tokens", limit=TOKENS_MAX)["items"]:
        if item["token_id"] == name or (item["name"] == name and not item["revoked_at"]):
            return str(item["token_id"])
    raise NotFoundError(f"there is no token {name}; see `headrace tokens list`")


def _draw(items: list[Document]) -> RenderableType:
    rows = table("name", "may", "roles", "expires", "last used", "created", "revoked")
    for item in items:
        rows.add_row(
            item["name"],
            " ".join(item["scopes"]),
            " ".join(item["roles"]),
            ago(item["expires_at"]),
            ago(item["last_used_at"]) or "never",
            f"{ago(item['created_at'])} by {item['created_by']}",
            f"{ago(item['revoked_at'])} by {item['revoked_by']}" if item["revoked_at"] else "",
        )
    return rows
