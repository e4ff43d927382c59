"""Runs, their outputs and what moved them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from state.queries.rows import PAGE_BYTES, UNBOUNDED, Connection, fetch, fetch_one
from state.sql import load

_SQL = load("run_queries")
HISTORY_BEGIN: Final = (0, False, -1)
"""Before the `key` of everything that ever moved a run."""
HISTORY_END: Final = (2**31 - 1, True, 2**31 - 1)
"""Behind it."""


class RunRow(NamedTuple):
    run_id: UUID
    version_id: int
    workflow: str
    version: int
    status: str
    input: str
    trigger: str
    row_version: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    namespace: str
    output: str | None
    output_error: str | None
    deadline_at: datetime | None
    priority: int
    paused_tasks: list[int] | None
    """Those that are paused by themselves."""
    labels: dict[str, str] | None
    """By name; None: it has none."""


class CountRow(NamedTuple):
    run_id: UUID
    status: str
    tasks: int


class OutputRow(NamedTuple):
    run_id: UUID
    task: int
    output: str | None
    total: int
    """How many there are in all; more than were answered when PAGE_BYTES cut the list."""


class PositionRow(NamedTuple):
    """How far a run has come."""

    run_id: UUID
    status: str
    row_version: int
    version_id: int
    workflow: str


class HistoryRow(NamedTuple):
    row_version: int
    at: datetime
    kind: str
    task: int | None
    token: int | None
    actor: str | None
    detail: str | None

    @property
    def key(self) -> tuple[int, bool, int]:
        """Where it stands in its run's history."""
        return self.row_version, self.kind.startswith("attempt_"), -1 if self.task is None else self.task


async def get_run(connection: Connection, namespace: str, run_id: UUID) -> RunRow | None:
    return await fetch_one(connection, RunRow, _SQL.text("get_run"), namespace=namespace, run_id=run_id)


async def read_runs(connection: Connection, namespace: str, run_ids: Sequence[UUID]) -> list[RunRow]:
    """Newest first. Fewer than asked for do not mean that they are gone: large inputs cut the list short, but never to
    nothing."""
    return await fetch(
        connection, RunRow, _SQL.text("read_runs"), namespace=namespace, run_ids=list(run_ids), bytes=PAGE_BYTES
    )


async def count_running(connection: Connection, limit: int) -> int:
    """Runs with something to do, over all namespaces; counts no further than `limit`."""
    cursor = await connection.execute(_SQL.text("count_running"), {"limit": limit})
    row = await cursor.fetchone()
    return 0 if row is None else int(row[0])


async def count_tasks(connection: Connection, run_ids: Iterable[UUID]) -> list[CountRow]:
    """Only of tasks that have a row; the others are PENDING."""
    return await fetch(connection, CountRow, _SQL.text("count_tasks"), run_ids=list(run_ids))


async def list_outputs(
    connection: Connection, asked: Iterable[tuple[UUID, int]], *, bounded: bool = False
) -> list[OutputRow]:
    """Outputs of the (run, task) pairs that have completed, in falling order of runs. bounded: at most PAGE_BYTES of
    them.
    """
    pairs = list(asked)
    return await fetch(
        connection,
        OutputRow,
        _SQL.text("list_outputs"),
        run_ids=[run_id for run_id, _ in pairs],
        tasks=[task for _, task in pairs],
        bytes=PAGE_BYTES if bounded else UNBOUNDED,
    )


async def read_position(connection: Connection, namespace: str, run_id: UUID) -> PositionRow | None:
    def position(status: str, row_version: int, version_id: int, workflow: str) -> PositionRow:
        return PositionRow(run_id, status, row_version, version_id, workflow)

    return await fetch_one(connection, position, _SQL.text("read_position"), namespace=namespace, run_id=run_id)


async def list_positions(
    connection: Connection, namespace: str, *, since: UUID, run_ids: Iterable[UUID], limit: int
) -> list[PositionRow]:
    """Of open runs, of those with an id above `since`, and of those named; each part at most `limit`, newest first.
    In no order.
    """
    return await fetch(
        connection,
        PositionRow,
        _SQL.text("list_positions"),
        namespace=namespace,
        since=since,
        run_ids=list(run_ids),
        limit=limit,
    )


async def list_history(
    connection: Connection,
    run_id: UUID,
    *,
    after: tuple[int, bool, int] | None = None,
    is_newest_first: bool = False,
    limit: int,
) -> list[HistoryRow]:
    """Ascending, or the newest first. after: the `key` of the last row seen."""
    row_version, is_attempt, task = after or (HISTORY_END if is_newest_first else HISTORY_BEGIN)
    return await fetch(
        connection,
        HistoryRow,
        _SQL.text("list_history_back" if is_newest_first else "list_history"),
        run_id=run_id,
        row_version=row_version,
        is_attempt=is_attempt,
        task=task,
        limit=limit,
    )


async def list_acts(connection: Connection, run_id: UUID, *, after: int = 0, limit: int) -> list[HistoryRow]:
    """What people and programs did to a run, ascending. after: the row_version of the last one seen."""
    return await fetch(connection, HistoryRow, _SQL.text("list_acts"), run_id=run_id, after=after, limit=limit)


async def list_history_between(connection: Connection, run_id: UUID, *, after: int, upto: int) -> list[HistoryRow]:
    """All rows with after < row_version <= upto, ascending."""
    return await fetch(connection, HistoryRow, _SQL.text("list_history_between"), run_id=run_id, after=after, upto=upto)
