"""Dead letters."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from state.queries.rows import AT_MAX, ID_MAX, PAGE_BYTES, Connection, fetch, fetch_one
from state.sql import load

_SQL = load("dead_letter_queries")


class DeadLetterRow(NamedTuple):
    dead_letter_id: UUID
    kind: str
    status: str
    run_id: UUID | None
    version_id: int | None
    """None for a record that belongs to no run we have."""
    workflow: str | None
    task: int | None
    token: int | None
    topic: str | None
    partition: int | None
    offset: int | None
    key: bytes | None
    value: bytes | None
    reason: str
    error: str | None
    created_at: datetime
    closed_at: datetime | None
    closed_by: str | None
    close_reason: str | None


async def get_dead_letter(connection: Connection, namespace: str, dead_letter_id: UUID) -> DeadLetterRow | None:
    return await fetch_one(
        connection, DeadLetterRow, _SQL.text("get_dead_letter"), namespace=namespace, dead_letter_id=dead_letter_id
    )


async def list_dead_letters(
    connection: Connection,
    namespace: str,
    *,
    limit: int,
    before: tuple[datetime, UUID] = (AT_MAX, ID_MAX),
    status: str = "parked",
    kind: str | None = None,
) -> list[DeadLetterRow]:
    """Newest first. before: (created_at, dead_letter_id) of the last one seen. Large values cut a page short, but
    never to nothing.
    """
    return await fetch(
        connection,
        DeadLetterRow,
        _SQL.text("list_dead_letters"),
        namespace=namespace,
        status=status,
        kind=kind,
        before=before[0],
        before_id=before[1],
        limit=limit,
        bytes=PAGE_BYTES,
    )
