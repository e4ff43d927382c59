"""Posted signals, and what came of each."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from state.queries.rows import AT_MAX, ID_MAX, PAGE_BYTES, Connection, fetch, fetch_one
from state.sql import load

_SQL = load("posted_signal")


class PostedRow(NamedTuple):
    posted_id: UUID
    name: str
    key: str
    data: str
    """JSON."""
    sender_id: str | None
    actor: str
    sent_at: datetime
    expires_at: datetime
    status: str
    """open, until it has expired; taken, once a task has taken it for itself."""


class OfferRow(NamedTuple):
    """A wait to which it was offered."""

    run_id: UUID
    version_id: int
    task: int
    status: str
    """As that of a signal: sent, taken or refused."""
    row_version: int | None
    settled_at: datetime | None
    reason: str | None


async def get_posted(connection: Connection, namespace: str, posted_id: UUID) -> PostedRow | None:
    return await fetch_one(connection, PostedRow, _SQL.text("get_posted"), namespace=namespace, posted_id=posted_id)


async def list_posted(
    connection: Connection, namespace: str, *, limit: int, before: tuple[datetime, UUID] = (AT_MAX, ID_MAX)
) -> list[PostedRow]:
    """Newest first; fewer when their data is large, but one at least."""
    at, id_ = before
    return await fetch(
        connection, PostedRow, _SQL.text("list_posted"), namespace=namespace, before=at, before_id=id_, limit=limit,
        bytes_max=PAGE_BYTES,
    )  # fmt: skip


async def list_offers(connection: Connection, posted_id: UUID, *, limit: int) -> list[OfferRow]:
    return await fetch(connection, OfferRow, _SQL.text("list_offers"), posted_id=posted_id, limit=limit)
