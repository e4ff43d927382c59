"""Runs that ask for runs: what stands above one, and below."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from state.queries.rows import Connection, fetch, fetch_one
from state.sql import load

_SQL = load("child_run")
FIRST: Final = (-1, 0)
"""Before all children of a run: where the list begins."""


class ParentRow(NamedTuple):
    run_id: UUID
    version_id: int
    task: int
    token: int
    workflow: str
    version: int
    status: str
    is_awaited: bool
    depth: int


class ChildRow(NamedTuple):
    task: int
    token: int
    run_id: UUID
    workflow: str
    version: int | None
    status: str
    is_awaited: bool
    asked_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    cancel_asked_at: datetime | None
    error: str | None


async def find_parent(connection: Connection, run_id: UUID) -> ParentRow | None:
    """None for a run that no task has asked for, or whose parent was removed."""
    return await fetch_one(connection, ParentRow, _SQL.text("find_parent"), run_id=run_id)


async def list_children(
    connection: Connection, run_id: UUID, *, limit: int, after: tuple[int, int] = FIRST
) -> list[ChildRow]:
    """In the order of the graph, those of one task in that of its hand-outs. after: the task and token seen last."""
    task, token = after
    return await fetch(
        connection, ChildRow, _SQL.text("list_children"), run_id=run_id, after_task=task, after_token=token, limit=limit
    )
