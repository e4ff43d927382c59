"""How the engine is, as far as Postgres knows."""

from datetime import datetime
from typing import Final, NamedTuple

from state.queries.rows import Connection, fetch, fetch_one
from state.sql import load

_SQL = load("health_queries")
OPEN_RUNS_MAX: Final = 10_000
"""Open runs that a count looks at, oldest first: a backlog of a million must not make the scrape slow."""


class RelayRow(NamedTuple):
    owner: str
    renewed_at: datetime
    age_seconds: float
    lag_bytes: int | None
    gap_at: datetime | None
    wal_status: str | None


class StreamsRow(NamedTuple):
    partitions: int
    owners: int
    swept_at: datetime | None
    age_seconds: float | None


class OpenRunsRow(NamedTuple):
    status: str
    runs: int


class OpenTasksRow(NamedTuple):
    version_id: int
    task: int
    status: str
    tasks: int
    oldest_seconds: float


class WaitingRow(NamedTuple):
    timers_late: int
    timer_lateness_seconds: float
    sessions: int
    dead_letters: int
    requests: int
    approvals: int


async def read_relay(connection: Connection) -> RelayRow | None:
    """None when no relay has ever worked here."""
    return await fetch_one(connection, RelayRow, _SQL.text("read_relay"))


async def read_streams(connection: Connection) -> StreamsRow:
    return (await fetch(connection, StreamsRow, _SQL.text("read_streams")))[0]


async def count_open_runs(connection: Connection) -> list[OpenRunsRow]:
    return await fetch(connection, OpenRunsRow, _SQL.text("count_open_runs"), limit=OPEN_RUNS_MAX)


async def count_open_tasks(connection: Connection) -> list[OpenTasksRow]:
    return await fetch(connection, OpenTasksRow, _SQL.text("count_open_tasks"), limit=OPEN_RUNS_MAX)


async def count_waiting(connection: Connection, namespace: str) -> WaitingRow:
    rows = await fetch(connection, WaitingRow, _SQL.text("count_waiting"), namespace=namespace, limit=OPEN_RUNS_MAX)
    return rows[0]
