"""Tasks that wait for a person to say what became of their effect."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from state.queries.rows import AT_MAX, ID_MAX, Connection, fetch
from state.sql import load

_SQL = load("parked_task_queries")
TASK_MAX: Final = 2**31 - 1
"""After every task there is."""


class ParkedTaskRow(NamedTuple):
    run_id: UUID
    version_id: int
    workflow: str
    task: int
    token: int
    parked_at: datetime
    error: str
    """JSON of a `messages.Error`: what is not known, and what ended the attempt."""


async def list_parked_tasks(
    connection: Connection,
    namespace: str,
    *,
    limit: int,
    before: tuple[datetime, UUID, int] = (AT_MAX, ID_MAX, TASK_MAX),
) -> list[ParkedTaskRow]:
    """Newest first. before: (parked_at, run_id, task) of the last one seen."""
    at, run_id, task = before
    return await fetch(
        connection,
        ParkedTaskRow,
        _SQL.text("list_parked_tasks"),
        namespace=namespace,
        before=at,
        before_id=run_id,
        before_task=task,
        limit=limit,
    )
