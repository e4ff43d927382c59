"""Signals of one run, and what became of each."""

from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

from state.queries.rows import PAGE_BYTES, Connection, fetch, fetch_one
from state.sql import load

_SQL = load("signal")
FIRST: Final = (datetime(1, 1, 1, tzinfo=UTC), UUID(int=0))
"""Before every signal there is."""


class SignalRow(NamedTuple):
    signal_id: UUID
    run_id: UUID
    name: str
    key: str | None
    data: str
    """JSON."""
    sender_id: str | None
    actor: str
    sent_at: datetime
    status: str
    """sent, until its run has taken note of it; then kept, taken or refused."""
    task: int | None
    token: int | None
    row_version: int | None
    """The move of the run by which it was taken."""
    settled_at: datetime | None
    reason: str | None
    """Why it was refused."""


async def list_signals(
    connection: Connection, run_id: UUID, *, limit: int, after: tuple[datetime, UUID] = FIRST
) -> list[SignalRow]:
    """In the order in which they were stored; fewer when their data is large, but one at least."""
    at, id_ = after
    return await fetch(
        connection, SignalRow, _SQL.text("list_signals"), run_id=run_id, after=at, after_id=id_, limit=limit,
        bytes_max=PAGE_BYTES,
    )  # fmt: skip


async def get_signal(connection: Connection, signal_id: UUID) -> SignalRow | None:
    return await fetch_one(connection, SignalRow, _SQL.text("get_signal"), signal_id=signal_id)
