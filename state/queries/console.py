"""What only people look at: spans of a run, the engine's parts, the fates of records."""

from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

from state.queries.rows import Connection, fetch, fetch_one
from state.sql import load

_SQL = load("console_queries")
SPANS_PER_TASK: Final = 100
"""Of a task with more attempts the newest are shown; the others are a click away."""
RECENT_RUNS: Final = 10_000
"""Newest runs that the counts by minute look at."""
COUNT_MAX: Final = 10_000
TABLES_SHOWN: Final = 12
OFFSET_MAX: Final = 2**63 - 1


class SpanRow(NamedTuple):
    """An attempt that ended. started_at and finished_at are by the worker's clock."""

    task: int
    token: int
    attempt: int
    outcome: str
    worker: str
    started_at: datetime | None
    finished_at: datetime | None
    ended_at: datetime
    round: int | None
    """Of a repeat, from 0."""


class StandingRow(NamedTuple):
    task: int
    status: str
    attempt: int
    token: int
    due_at: datetime | None
    changed_at: datetime
    session_id: UUID | None
    worker: str | None
    items: int | None
    """Of a map whose list is known."""
    items_begun: int | None
    items_completed: int | None
    items_failed: int | None
    rounds: int
    """Of a repeat: those that have ended."""
    deadline_at: datetime | None
    """When it has to have ended, while it is open."""
    compensation: str | None
    """How far it is undone; None while its run does not undo it."""


class QueueRow(NamedTuple):
    queue: str
    workers: int
    slots: int
    held: int


class RecentRow(NamedTuple):
    at: datetime
    status: str
    runs: int


class PartitionRow(NamedTuple):
    topic: str
    partition: int
    owner: str
    epoch: int
    next_offset: int | None
    topic_id: str
    taken_at: datetime


class SweepRow(NamedTuple):
    name: str
    at: datetime
    age_seconds: float
    found: int


class SlotRow(NamedTuple):
    slot: str
    owner: str
    epoch: int
    renewed_at: datetime
    age_seconds: float
    lag_bytes: int | None
    retained_bytes: int | None
    active: bool | None
    wal_status: str | None


class TableRow(NamedTuple):
    name: str
    rows: int
    bytes: int


class FateRow(NamedTuple):
    topic: str
    partition: int
    offset: int
    fate: str
    run_id: UUID | None
    reason: str | None
    at: datetime
    signal_id: UUID | None


async def read_clock(connection: Connection) -> datetime:
    """The database's, in UTC."""
    return datetime.fromtimestamp(await fetch_one(connection, float, _SQL.text("read_clock")) or 0.0, UTC)


async def list_spans(
    connection: Connection, run_id: UUID, *, first: int, end: int, tasks: list[int] | None = None
) -> list[SpanRow]:
    """By task and token, of the tasks from `first` up to, without, `end`; of these only, where `tasks` are given."""
    given = {"run_id": run_id, "first": first, "end": end, "tasks": tasks, "limit": SPANS_PER_TASK}
    return await fetch(connection, SpanRow, _SQL.text("list_spans"), **given)


async def list_standings(
    connection: Connection, run_id: UUID, *, first: int, end: int, since: datetime | None = None, limit: int
) -> list[StandingRow]:
    """By task; those never touched are missing. since: what changed from then on, and the maps and repeats."""
    given = {"run_id": run_id, "first": first, "end": end, "since": since, "limit": limit}
    return await fetch(connection, StandingRow, _SQL.text("list_standings"), **given)


async def count_workers_of_queues(connection: Connection) -> list[QueueRow]:
    return await fetch(connection, QueueRow, _SQL.text("count_workers_of_queues"))


async def count_lost_workers(connection: Connection) -> int:
    return await fetch_one(connection, int, _SQL.text("count_lost_workers")) or 0


async def count_parked_tasks(connection: Connection, namespace: str) -> int:
    """Up to COUNT_MAX."""
    statement = _SQL.text("count_parked_tasks")
    return await fetch_one(connection, int, statement, namespace=namespace, limit=COUNT_MAX) or 0


async def count_recent_runs(connection: Connection, namespace: str, *, since: UUID) -> list[RecentRow]:
    """By minute and status, of the newest RECENT_RUNS."""
    statement = _SQL.text("count_recent_runs")
    return await fetch(connection, RecentRow, statement, namespace=namespace, since=since, limit=RECENT_RUNS)


async def list_partitions(connection: Connection) -> list[PartitionRow]:
    return await fetch(connection, PartitionRow, _SQL.text("list_partitions"))


async def list_sweeps(connection: Connection) -> list[SweepRow]:
    return await fetch(connection, SweepRow, _SQL.text("list_sweeps"))


async def list_slots(connection: Connection) -> list[SlotRow]:
    return await fetch(connection, SlotRow, _SQL.text("list_slots"))


async def list_table_sizes(connection: Connection) -> list[TableRow]:
    """The largest, largest first."""
    return await fetch(connection, TableRow, _SQL.text("list_table_sizes"), limit=TABLES_SHOWN)


async def find_subscription(connection: Connection, namespace: str, name: str) -> tuple[UUID, str] | None:
    """Its id and its topic."""

    def pair(subscription_id: UUID, topic: str) -> tuple[UUID, str]:
        return subscription_id, topic

    return await fetch_one(connection, pair, _SQL.text("find_subscription_id"), namespace=namespace, name=name)


async def list_fate_partitions(connection: Connection, topic: str) -> list[int]:
    return await fetch(connection, int, _SQL.text("list_fate_partitions"), topic=topic)


async def list_fates(
    connection: Connection, subscription_id: UUID, topic: str, partition: int, *, before: int = OFFSET_MAX, limit: int
) -> list[FateRow]:
    """Of one partition, newest first. before: the offset of the last one seen."""
    return await fetch(
        connection,
        FateRow,
        _SQL.text("list_fates"),
        subscription_id=subscription_id,
        topic=topic,
        partition=partition,
        before=before,
        limit=limit,
    )
