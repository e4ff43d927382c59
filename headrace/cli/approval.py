"""`headrace approvals`, `approve`, `reject`: decisions that runs wait for."""

from typing import Annotated, Literal

import typer
from rich.console import RenderableType

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.following import TASKS_MAX
from headrace.cli.run_id import find_run, is_run_id, short
from headrace.cli.terminal import Terminal, ago, table
from headrace.errors import ConflictError, NotFoundError

CODES = "Exit codes: 0 decided, 3 no such run, task or approval, 4 decided already, or several wait, 5 API away."

Target = Annotated[
    str, typer.Argument(metavar="RUN", help="a run (its id, its last digits, `last`), or the id of an approval")
]
TaskName = Annotated[str | None, typer.Option("--task", "-t", help="which task, when several wait")]
Comment = Annotated[str | None, typer.Option("--comment", "-c", help="kept with the decision")]


@command("approvals", panel="Decisions", epilog="Exit codes: 0 listed (also when there are none), 5 API away.")
def list_approvals(
    terminal: Terminal,
    api: Api,
    status: Annotated[str, typer.Option(help="waiting, approved, rejected, expired …")] = "waiting",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 50,
) -> None:
    """List the decisions that runs wait for."""
    answer = api.page("/approvals", limit=limit, status=status)
    if not answer["items"]:
        terminal.say("nothing waits for a decision" if status == "waiting" else f"no approval is {status}")
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: _draw_approvals(answer["items"]))


@command("approve", panel="Decisions", epilog=CODES)
def approve(terminal: Terminal, api: Api, run: Target, task: TaskName = None, comment: Comment = None) -> None:
    """Approve what a run waits for."""
    _decide(terminal, api, "approve", run, task, comment)


@command("reject", panel="Decisions", epilog=CODES)
def reject(terminal: Terminal, api: Api, run: Target, task: TaskName = None, comment: Comment = None) -> None:
    """Reject what a run waits for."""
    _decide(terminal, api, "reject", run, task, comment)


def _decide(
    terminal: Terminal,
    api: Api,
    decision: Literal["approve", "reject"],
    target: str,
    task: str | None,
    comment: str | None,
) -> None:
    approval_id = find_approval(api, target, task)
    approval = api.post(f"/approvals/{approval_id}/{decision}", {"comment": comment} if comment else {})
    terminal.show(
        approval, lambda: f"{approval['status']}: {approval.get('title') or approval['task']} of {approval['run_id']}"
    )


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
    rows = table("run", "workflow", "task", "title", "asked", "expires", "approvers")
    for item in items:
        rows.add_row(
            short(item["run_id"]),
            item["workflow"],
            item["task"],
            item.get("title") or "",
            ago(item.get("asked_at")),
            ago(item.get("expires_at")),
            ", ".join(item.get("approvers") or ()),
        )
    return rows
