"""`headrace approvals`, `approve`, `reject`, `comment`, `delegate`: decisions that runs wait for."""

import json
import re
from typing import Annotated, Any, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.api import Api, Document
from headrace.cli.command import command, user_name
from headrace.cli.following import TASKS_MAX
from headrace.cli.run_id import find_run, is_run_id, short
from headrace.cli.terminal import Terminal, ago, table
from headrace.cli.value import read_json
from headrace.errors import ConflictError, ForbiddenError, NotFoundError

CODES = (
    "Exit codes: 0 accepted, 1 it is for others, or the form was refused, 2 bad options, 3 no such run, task or "
    "approval, 4 decided already, or several wait, 5 API away."
)

Target = Annotated[
    str, typer.Argument(metavar="RUN", help="a run (its id, its last digits, `last`), or the id of an approval")
]
TaskName = Annotated[str | None, typer.Option("--task", "-t", help="which task, when several wait")]
Comment = Annotated[str | None, typer.Option("--comment", "-c", help="kept with the decision")]
Form = Annotated[
    list[str] | None,
    typer.Option(
        "--form", "-f", metavar="KEY=VALUE", help="what is filled in, one by one; or all of it as JSON, @file"
    ),
]
Role = Annotated[list[str] | None, typer.Option("--role", "-r", help="a role of yours, where one is asked for")]


@command(
    "approvals", panel="Decisions", epilog="Exit codes: 0 listed (also when there are none), 3 no such run, 5 API away."
)
def list_approvals(
    terminal: Terminal,
    api: Api,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="only this one, with its record")] = None,
    task: TaskName = None,
    mine: Annotated[bool, typer.Option("--mine", "-m", help="only those that wait for you")] = False,
    role: Role = None,
    status: Annotated[str, typer.Option(help="waiting, approved, rejected, expired …")] = "waiting",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 50,
) -> None:
    """List the decisions that runs wait for, or show one with all that happened to it."""
    api.act_with(role or ())
    if run is not None:
        approval = api.get(f"/approvals/{find_approval(api, run, task)}")
        terminal.show(approval, lambda: _draw_approval(approval))
        return
    query = {"for": "me"} if mine else {"status": status}
    answer = api.page("/approvals", limit=limit, **query)
    if not answer["items"]:
        nothing = "nothing waits for a decision" + (" of yours" if mine else "")
        terminal.say(nothing if mine or status == "waiting" else f"no approval is {status}")
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: _draw_approvals(answer["items"]))


@command("approve", panel="Decisions", epilog=CODES)
def approve(
    terminal: Terminal,
    api: Api,
    run: Target,
    task: TaskName = None,
    comment: Comment = None,
    form: Form = None,
    role: Role = None,
) -> None:
    """Approve what a run waits for."""
    api.act_with(role or ())
    _decide(terminal, api, "approve", run, task, comment, read_form(form))


@command("reject", panel="Decisions", epilog=CODES)
def reject(
    terminal: Terminal, api: Api, run: Target, task: TaskName = None, comment: Comment = None, role: Role = None
) -> None:
    """Reject what a run waits for."""
    api.act_with(role or ())
    _decide(terminal, api, "reject", run, task, comment, None)


@command("comment", panel="Decisions", epilog=CODES)
def say(
    terminal: Terminal,
    api: Api,
    run: Target,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="what others should know before they decide")],
    task: TaskName = None,
) -> None:
    """Say something about what a run waits for, without deciding."""
    approval = api.post(f"/approvals/{find_approval(api, run, task)}/comments", {"comment": text})
    terminal.show(approval, lambda: f"kept with {approval.get('title') or approval['task']} of {approval['run_id']}")


@command(
    "delegate", panel="Decisions",
    epilog="Exit codes: 0 delegated, 1 it is not yours to give, 2 bad options, 4 it would be over before it begins, "
    "5 API away.",
)  # fmt: skip
def delegate(
    terminal: Terminal,
    api: Api,
    to: Annotated[str, typer.Argument(metavar="TO", help="who decides in your place")],
    until: Annotated[str, typer.Option("--until", help="when that ends, such as 2026-12-24T18:00:00Z")],
    since: Annotated[str | None, typer.Option("--from", help="when it begins; now, when left out")] = None,
    role: Annotated[str | None, typer.Option("--role", "-r", help="not your name, but this role of yours")] = None,
    reason: Annotated[str, typer.Option("--reason", help="kept with it")] = "",
) -> None:
    """Let somebody else decide in your place, for a while."""
    api.act_with((role,) if role else ())
    whose = f"role:{role}" if role else user_name() or "anonymous"
    body = {"from": whose, "to": to, "ends_at": until, "starts_at": since, "reason": reason}
    made = api.post("/delegations", {key: value for key, value in body.items() if value is not None})
    terminal.show(made, lambda: f"{made['to']} decides in place of {made['from']} until {made['ends_at']}")


def read_form(given: list[str] | None) -> Any:
    """What `--form` says, each value as JSON where it is some, and as text otherwise. Raises typer.BadParameter."""
    if not given:
        return None
    if len(given) == 1 and given[0].lstrip()[:1] in ("{", "@", "-"):
        return read_json(given[0])
    form: dict[str, Any] = {}
    for pair in given:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{pair!r} is no KEY=VALUE")
        if key in form:
            raise typer.BadParameter(f"{key} is given twice")
        try:
            form[key] = json.loads(text)
        except json.JSONDecodeError:
            form[key] = text
    return form


def _decide(
    terminal: Terminal,
    api: Api,
    decision: Literal["approve", "reject"],
    target: str,
    task: str | None,
    comment: str | None,
    form: Any,
) -> None:
    approval_id = find_approval(api, target, task)
    given = {"comment": comment or None, "form": form}
    body = {key: value for key, value in given.items() if value is not None}
    try:
        approval = api.post(f"/approvals/{approval_id}/{decision}", body)
    except ForbiddenError as e:
        if role := re.search(r"\brole:([^\s,]+)", e.message):
            raise ForbiddenError(f"{e.message}\nif it is a role of yours, say so: --role {role[1]}") from None
        raise
    terminal.show(approval, lambda: _outcome(approval))


def _outcome(approval: Document) -> str:
    what = f"{approval.get('title') or approval['task']} of {approval['run_id']}"
    if approval["status"] != "waiting":
        return f"{approval['status']}: {what}"
    return f"your vote is kept: {len(approval['votes'])} of {approval['needed']} have approved {what}"


def find_approval(api: Api, target: str, task: str | None) -> str:
    """The id of the one approval that is meant. Raises NotFoundError, or ConflictError when several wait."""
    if is_run_id(target) and not task:
        try:
            return str(api.get(f"/approvals/{target}")["approval_id"])
        except NotFoundError:
            pass  # then it is a run
    run_id = find_run(api, target)
    tasks = api.page(f"/runs/{run_id}/tasks", limit=TASKS_MAX)["items"]
    asked = [each for each in tasks if each.get("approval_id") and task in (None, each["name"])]
    waiting = [each for each in asked if each["status"] == "waiting"] or asked
    if not waiting:
        raise NotFoundError(f"run {run_id} waits for no decision{f' at {task}' if task else ''}")
    if len(waiting) > 1:
        names = ", ".join(each["name"] for each in waiting)
        raise ConflictError(f"several tasks wait for a decision: {names}\nname one with --task")
    return str(waiting[0]["approval_id"])


def _draw_approvals(items: list[Document]) -> RenderableType:
    rows = table("run", "workflow", "task", "title", "asked", "expires", "approvers", "votes")
    for item in items:
        rows.add_row(
            short(item["run_id"]),
            item["workflow"],
            item["task"],
            item.get("title") or "",
            ago(item.get("asked_at")),
            ago(item.get("expires_at")),
            ", ".join(item.get("approvers") or ()),
            f"{len(item.get('votes') or ())} of {item.get('needed') or 1}",
        )
    return rows


def _draw_approval(approval: Document) -> RenderableType:
    lines = [
        f"{approval['status']}: {approval.get('title') or approval['task']}",
        f"asked of {', '.join(approval.get('approvers') or ()) or 'anybody'} {ago(approval.get('asked_at'))}, "
        f"{approval['needed']} needed",
    ]
    if approval.get("expires_at"):
        lines.append(f"expires {approval['expires_at']}, then: {approval['on_expiry']}")
    for name in ("context", "form", "answer"):
        if approval.get(name) is not None:
            lines.append(f"{name}: {json.dumps(approval[name], ensure_ascii=False)}")
    lines.append(f"digest of what is shown: {approval['digest']}")
    rows = table("at", "what", "who", "")
    for at, what, who, more in sorted(_happened(approval), key=lambda row: row[0]):
        rows.add_row(at, what, who, Text(more))
    return Group(*(Text(line) for line in lines), rows)


def _happened(approval: Document) -> list[tuple[str, str, str, str]]:
    """All that happened to it, in no order yet."""
    votes = [
        (
            vote["at"],
            vote["decision"],
            vote["by"] + (f" in place of {vote['in_place_of']}" if vote["in_place_of"] else ""),
            f"{vote['comment'] or ''} (by {vote['source']} from {vote['address']})".strip(),
        )
        for vote in approval["record"]
    ]
    others = [
        (entry["at"], entry["kind"], entry["actor"], json.dumps(entry["detail"], ensure_ascii=False))
        for entry in approval["history"]
    ]
    return [*votes, *others]
