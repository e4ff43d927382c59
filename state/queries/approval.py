"""Approvals."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

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
) -> list[ApprovalRow]:
    """Newest first. status: None for all. before: (asked_at, approval_id) of the last one seen."""
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


async def find_approval_of_task(connection: Connection, namespace: str, run_id: UUID, task: int) -> UUID | None:
    """The approval that the task's latest hand-out asked for."""

    def approval_id(value: UUID) -> UUID:
        return value

    return await fetch_one(
        connection, approval_id, _SQL.text("find_approval_of_task"), namespace=namespace, run_id=run_id, task=task
    )
