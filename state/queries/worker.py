"""Worker sessions."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from state.queries.rows import AT_MAX, ID_MAX, Connection, fetch, fetch_one
from state.sql import load

_SQL = load("worker_queries")


class WorkerRow(NamedTuple):
    session_id: UUID
    worker: str
    queues: list[str]
    slots: int
    held: int
    draining: bool
    library: str
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime
    live: bool


async def list_workers(
    connection: Connection, *, limit: int, before: tuple[datetime, UUID] = (AT_MAX, ID_MAX)
) -> list[WorkerRow]:
    """Newest first, with those that ended within an hour. before: (started_at, session_id) of the last one seen."""
    return await fetch(
        connection, WorkerRow, _SQL.text("list_workers"), before=before[0], before_id=before[1], limit=limit
    )


async def find_worker(connection: Connection, session_id: UUID) -> WorkerRow | None:
    """A session, also one that has ended."""
    return next(iter(await fetch(connection, WorkerRow, _SQL.text("find_worker"), session_id=session_id)), None)


async def find_live_worker(connection: Connection, session_id: UUID) -> str | None:
    """The name of the worker whose session this is; None when it is not live."""
    return await fetch_one(connection, str, _SQL.text("find_live_worker"), session_id=session_id)
