"""Approvals."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from headrace.approval import ROLE
from headrace.standing import Person
from state.queries.rows import AT_MAX, ID_MAX, Connection, fetch, fetch_one
from state.sql import load

_SQL = load("approval_queries")


class ApprovalRow(NamedTuple):
    approval_id: UUID
    run_id: UUID
    version_id: int
    workflow: str
    task: int
    token: int
    title: str
    approvers: str
    """JSON list of roles and names."""
    status: str
    asked_at: datetime
    expires_at: datetime | None
    decided_at: datetime | None
    decided_by: str | None
    comment: str | None
    context: str | None
    """JSON that people are shown."""
    form: str | None
    """JSON Schema of the answer."""
    digest: str
    """SHA-256 of title, context and form."""
    needed: int
    no_self_approval: bool
    on_expiry: str
    answer: str | None
    """JSON that the last vote filled in."""
    votes: str
    """JSON list."""


class VoteRow(NamedTuple):
    actor: str
    voter: str
    role: str | None
    in_place_of: str | None
    decision: str
    comment: str | None
    form: str | None
    digest: str
    source: str
    address: str
    at: datetime


class ApprovalTimerRow(NamedTuple):
    kind: str
    """remind or escalate"""
    position: int
    targets: str | None
    """JSON list of who is asked besides."""
    due_at: datetime | None
    """None: when the question expires."""
    fired_at: datetime | None


class ApprovalHistoryRow(NamedTuple):
    at: datetime
    kind: str
    """commented, reminded, escalated or linked"""
    actor: str
    detail: str | None


HISTORY_MAX: Final = 500
"""Comments and the like that one answer shows."""


async def get_approval(connection: Connection, namespace: str, approval_id: UUID) -> ApprovalRow | None:
    return await fetch_one(
        connection, ApprovalRow, _SQL.text("get_approval"), namespace=namespace, approval_id=approval_id
    )


async def list_approvals(
    connection: Connection,
    namespace: str,
    *,
    limit: int,
    before: tuple[datetime, UUID] = (AT_MAX, ID_MAX),
    status: str | None = "waiting",
    person: Person | None = None,
) -> list[ApprovalRow]:
    """Newest first. status: None for all. before: (asked_at, approval_id) of the last one seen. person: only those that
    wait for them.
    """
    if person is not None:
        return await fetch(
            connection,
            ApprovalRow,
            _SQL.text("list_approvals_for"),
            namespace=namespace,
            actor=person.name,
            names=[person.name, *(ROLE + role for role in sorted(person.roles))],
            before=before[0],
            before_id=before[1],
            limit=limit,
        )
    name = "list_waiting_approvals" if status == "waiting" else "list_approvals"
    return await fetch(
        connection,
        ApprovalRow,
        _SQL.text(name),
        namespace=namespace,
        status=status,
        before=before[0],
        before_id=before[1],
        limit=limit,
    )


async def list_votes(connection: Connection, approval_id: UUID) -> list[VoteRow]:
    """In their order."""
    return await fetch(connection, VoteRow, _SQL.text("list_votes"), approval_id=approval_id)


async def list_approval_timers(connection: Connection, approval_id: UUID) -> list[ApprovalTimerRow]:
    """Reminders first, each kind in its order."""
    return await fetch(connection, ApprovalTimerRow, _SQL.text("list_approval_timers"), approval_id=approval_id)


async def list_approval_history(connection: Connection, approval_id: UUID) -> list[ApprovalHistoryRow]:
    """The newest of it, in its order."""
    return await fetch(
        connection, ApprovalHistoryRow, _SQL.text("list_approval_history"), approval_id=approval_id, limit=HISTORY_MAX
    )


async def find_approval_of_task(connection: Connection, namespace: str, run_id: UUID, task: int) -> UUID | None:
    """The approval that the task's latest hand-out asked for."""

    def approval_id(value: UUID) -> UUID:
        return value

    return await fetch_one(
        connection, approval_id, _SQL.text("find_approval_of_task"), namespace=namespace, run_id=run_id, task=task
    )
