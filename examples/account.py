"""What happened in a set of runs, read from the API: attempts, retries, takeovers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from headrace.client import Client
from headrace.views import Attempt, Run, Task


@dataclass
class Takeover:
    """A hand-out that one worker lost and another one carried on."""

    workflow: str
    run_id: str
    task: str
    lost_by: str | None
    """None: its body had not begun, as far as anybody knows."""
    carried_on_by: str
    tokens: tuple[int, int]
    """Of the hand-out that was lost, and of the last one."""


@dataclass
class WorkflowAccount:
    workflow: str
    runs: int = 0
    runs_completed: int = 0
    tasks: int = 0
    tasks_completed: int = 0
    attempts: int = 0
    """Bodies that began."""
    failures: int = 0
    """Of those, the ones that failed; all but the last were tried again."""
    takeovers: list[Takeover] = field(default_factory=list)


def take_account(client: Client, runs: Sequence[Run]) -> list[WorkflowAccount]:
    """By workflow, in the order of the names."""
    accounts: dict[str, WorkflowAccount] = {}
    for run in runs:
        account = accounts.setdefault(run.workflow, WorkflowAccount(run.workflow))
        account.runs += 1
        account.runs_completed += run.status == "completed"
        for task in client.tasks(run.run_id):
            account.tasks += 1
            account.tasks_completed += task.status == "completed"
            account.attempts += task.attempt
            if task.run is not None and task.token > 1:  # otherwise its first hand-out was its last
                attempts = client.attempts(task.task_id)
                account.failures += sum(attempt.outcome == "failed" for attempt in attempts)
                account.takeovers += _takeovers(client, run.workflow, task, attempts)
    return [accounts[name] for name in sorted(accounts)]


def _takeovers(client: Client, workflow: str, task: Task, attempts: Sequence[Attempt]) -> list[Takeover]:
    """Hand-outs whose worker died: after the body began (`lost`), or before (no attempt, and the token rose)."""
    by_token = {attempt.token: attempt for attempt in attempts}
    ended = {token: attempt.outcome for token, attempt in by_token.items()}
    vanished = [token for token in range(1, task.token) if ended.get(token, "lost") in ("lost", "returned")]
    if not vanished:
        return []
    history = client.history(task.run_id)
    begun = {item.token: item.actor for item in history if item.kind == "attempt_started" and item.task == task.name}
    carried_on_by = by_token[task.token].worker if task.token in by_token else "nobody"
    return [
        Takeover(workflow, task.run_id, task.name, begun.get(token), carried_on_by, (token, task.token))
        for token in vanished
    ]


def draw(accounts: Sequence[WorkflowAccount]) -> Table:
    table = Table(title="What ran", title_justify="left", title_style="bold", show_footer=len(accounts) > 1)
    rows = [_row(account) for account in accounts]
    totals = [sum(column) for column in zip(*rows, strict=True)]
    table.add_column("workflow", footer="in all")
    for name, total in zip(
        ("runs", "completed", "tasks", "attempts", "attempts that failed", "takeovers"), totals, strict=True
    ):
        table.add_column(name, str(total), justify="right")
    for account, row in zip(accounts, rows, strict=True):
        table.add_row(account.workflow, *map(str, row))
    return table


def _row(account: WorkflowAccount) -> list[int]:
    return [
        account.runs,
        account.runs_completed,
        account.tasks,
        account.attempts,
        account.failures,
        len(account.takeovers),
    ]


def order_ids(runs: Sequence[Run]) -> list[Any]:
    """Of the runs of `orders`."""
    return sorted(run.input["order_id"] for run in runs if run.workflow == "orders")
