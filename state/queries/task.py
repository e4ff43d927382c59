"""Tasks and their attempts."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from headrace.machine.place import place_of
from state.queries.rows import PAGE_BYTES, Connection, fetch
from state.sql import load

_SQL = load("task_queries")


class TaskRow(NamedTuple):
    """A task that was handed out or has ended."""

    task: int
    status: str
    attempt: int
    token: int
    retries_from: int
    session_id: UUID | None
    due_at: datetime | None
    changed_at: datetime
    input: str | None
    """What an operator gave it at a replay."""
    output: str | None
    error: str | None
    approval_id: UUID | None
    progress: str | None
    """What its body said by its last heartbeat, while it is open."""
    total: int
    """How many there are in the range asked for; more than were answered when PAGE_BYTES cut the list."""
    items: int | None = None
    """Of a map whose list is known: how many items there are, have begun, completed and failed."""
    items_begun: int | None = None
    items_completed: int | None = None
    items_failed: int | None = None
    deadline_at: datetime | None = None
    """When it has to have ended, while it is open."""
    rounds: int = 0
    """Of a repeat: those that have ended."""
    compensation: str | None = None
    """How far it is undone; None while its run does not undo it."""


class AttemptRow(NamedTuple):
    attempt: int
    token: int
    outcome: str
    worker: str
    started_at: datetime | None
    finished_at: datetime | None
    ended_at: datetime
    output: str | None
    error: str | None
    round: int | None = None
    """Of a repeat, from 0."""


async def list_tasks(connection: Connection, run_id: UUID, *, first: int, end: int) -> list[TaskRow]:
    """By position, from `first` up to, without, `end`; those never touched are missing. The first is never cut off."""
    return await fetch(
        connection, TaskRow, _SQL.text("list_tasks"), run_id=run_id, first=first, end=end, bytes=PAGE_BYTES
    )


async def list_items(
    connection: Connection, run_id: UUID, task: int, *, after: int = -1, status: str | None = None, limit: int
) -> list[TaskRow]:
    """Items of a map that have begun, in order. after: the last item seen. Large outputs cut a page short, but never
    to nothing.
    """
    return await fetch(
        connection,
        TaskRow,
        _SQL.text("list_items"),
        run_id=run_id,
        first=place_of(task, after + 1),
        end=place_of(task + 1, 0),
        status=status,
        limit=limit,
        bytes=PAGE_BYTES,
    )


async def list_attempts(
    connection: Connection, run_id: UUID, task: int, *, after: int = 0, limit: int
) -> list[AttemptRow]:
    """Those that ended, by token. after: the token of the last one seen. Large outputs cut a page short, but never to
    nothing.
    """
    return await fetch(
        connection,
        AttemptRow,
        _SQL.text("list_attempts"),
        run_id=run_id,
        task=task,
        after=after,
        limit=limit,
        bytes=PAGE_BYTES,
    )
