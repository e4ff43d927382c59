"""What the bodies of one run logged."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from state.queries.rows import Connection, fetch_filtered
from state.sql import load

_SQL = load("log_line")
LAST: Final = 2**63 - 1
"""Behind every line there is."""


class LogLineRow(NamedTuple):
    line_id: int
    """In the order in which lines came to the engine."""
    task: int
    token: int
    attempt: int
    at: datetime
    level: int
    worker: str
    logger: str
    message: str
    fields: str | None
    """JSON object."""


class LogFilter(NamedTuple):
    task: int | None = None
    attempt: int | None = None
    level: int = 0
    """And above."""
    text: str | None = None
    """Somewhere in the message or the fields, whatever its case."""


async def list_log_lines(
    connection: Connection, run_id: UUID, wanted: LogFilter, *, after: int, limit: int
) -> list[LogLineRow]:
    """Behind a line, oldest first."""
    return await fetch_filtered(
        connection, LogLineRow, _SQL.text("list_log_lines"), run_id=run_id, after=after, limit=limit,
        **wanted._asdict(),
    )  # fmt: skip


async def read_last_log_lines(
    connection: Connection, run_id: UUID, wanted: LogFilter, *, before: int, limit: int
) -> list[LogLineRow]:
    """The last ones before a line, oldest first."""
    rows = await fetch_filtered(
        connection, LogLineRow, _SQL.text("read_last_log_lines"), run_id=run_id, before=before, limit=limit,
        **wanted._asdict(),
    )  # fmt: skip
    return rows[::-1]
