"""Runs, and what they consist of, found by a filter; how many there are, of which kinds, and when they were started.

A filter that no index answers is asked of the newest so many rows. Whatever is answered then says how far it looked.
"""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from headrace.filter import Filter
from state.filter_sql import CANDIDATES, LOOKS_CHEAP, PATIENCE, STUCK_SECONDS, Conditions, conditions_of
from state.queries.rows import ID_MAX, Connection, fetch_filtered

FACET_VALUES_MAX: Final = 20
"""Values of one facet, those with the most runs."""
FACET_ERRORS_MAX: Final = 5_000
"""Failed runs whose errors a facet reads."""
LAST: Final = 2**31 - 1
"""Behind all tasks of a run, and behind all that moved it."""

_Row = TypeVar("_Row")


class Bound(NamedTuple):
    """How far a search came that had to end somewhere."""

    run_id: UUID
    at: datetime
    """When that run was started."""


class FoundRuns(NamedTuple):
    ids: list[UUID]
    """Newest first."""
    bound: Bound | None
    """None: as many as were asked for were found, or all there are."""


class Counted(NamedTuple):
    runs: int
    has_more: bool
    """There may be more: older ones were not looked at."""
    since: datetime | None
    """When the oldest run that was looked at was started; None: none was."""


class FacetRow(NamedTuple):
    field: str
    value: str
    runs: int


class Facets(NamedTuple):
    runs: int
    has_more: bool
    rows: list[FacetRow]
    """By field, and within it those with the most runs first."""


class BucketRow(NamedTuple):
    at: datetime
    """Its beginning."""
    status: str
    runs: int


class Histogram(NamedTuple):
    counted: Counted
    step_seconds: int
    rows: list[BucketRow]


class TaskFound(NamedTuple):
    run_id: UUID
    version_id: int
    run_status: str
    task: int
    status: str
    attempt: int
    token: int
    due_at: datetime | None
    changed_at: datetime
    pool: str | None
    error: str | None


class AttemptFound(NamedTuple):
    run_id: UUID
    version_id: int
    run_status: str
    task: int
    token: int
    attempt: int
    outcome: str
    worker: str
    started_at: datetime | None
    finished_at: datetime | None
    ended_at: datetime
    error: str | None


class EventFound(NamedTuple):
    run_id: UUID
    version_id: int
    run_status: str
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


# == runs ==============================================================================================================
async def find_runs(
    connection: Connection,
    namespace: str,
    filter: Filter,
    *,
    before: UUID = ID_MAX,
    limit: int,
    among: Collection[UUID] | None = None,
    not_in_bulk_of: str | None = None,
    stuck_seconds: float = STUCK_SECONDS,
) -> FoundRuns:
    """The newest that match. among: of these only. not_in_bulk_of: for an act on many: only runs of which no open bulk
    asks it, and searched for with PATIENCE. stuck_seconds: here and below as in `conditions_of`."""
    made = await conditions_of(connection, namespace, filter, stuck_seconds=stuck_seconds)
    if among is not None:
        made.only(among)
    if not_in_bulk_of is not None:
        made.looks *= PATIENCE
        made.look.append(made.add(CANDIDATES.text("is_in_no_bulk"), act=not_in_bulk_of))
    if made.is_nothing:
        return FoundRuns([], None)
    scanned = max(limit, made.looks) if made.has_looks else limit
    given = made.given(namespace=namespace, before=before, scanned=scanned, limit=limit)
    found = await fetch_filtered(connection, _only, made.statement("find_runs"), **given)
    return FoundRuns(found, await _bound(connection, made, given) if len(found) < limit and made.has_looks else None)


async def _bound(connection: Connection, made: Conditions, given: dict[str, Any]) -> Bound | None:
    """The last run that was looked at, when there may be more behind it."""
    found = await fetch_filtered(connection, Bound, made.statement("find_last_candidate"), **given)
    return found[0] if found else None


async def count_runs(
    connection: Connection, namespace: str, filter: Filter, *, stuck_seconds: float = STUCK_SECONDS
) -> Counted:
    made = await conditions_of(connection, namespace, filter, stuck_seconds=stuck_seconds)
    if made.is_nothing:
        return Counted(0, False, None)
    scanned = _scanned(made)
    given = made.given(namespace=namespace, before=ID_MAX, scanned=scanned)
    ((looked_at, runs, since),) = await fetch_filtered(connection, _row, made.statement("count_runs"), **given)
    return Counted(runs, looked_at >= scanned, since)


async def count_facets(
    connection: Connection,
    namespace: str,
    filter: Filter,
    *,
    label: str = "",
    stuck_seconds: float = STUCK_SECONDS,
) -> Facets:
    """label: the name of one whose values are counted as well."""
    made = await conditions_of(connection, namespace, filter, stuck_seconds=stuck_seconds)
    if made.is_nothing:
        return Facets(0, False, [])
    scanned = _scanned(made)
    given = made.given(
        namespace=namespace, before=ID_MAX, scanned=scanned, values_max=FACET_VALUES_MAX, errors=FACET_ERRORS_MAX,
        label_counted=label,
    )  # fmt: skip
    rows = await fetch_filtered(connection, FacetRow, made.statement("count_facets"), **given)
    (total,) = (row for row in rows if not row.field)
    return Facets(total.runs, int(total.value) >= scanned, [row for row in rows if row.field])


async def count_by_time(
    connection: Connection, namespace: str, filter: Filter, *, buckets: int, stuck_seconds: float = STUCK_SECONDS
) -> Histogram:
    """buckets: how many at most."""
    made = await conditions_of(connection, namespace, filter, stuck_seconds=stuck_seconds)
    if made.is_nothing:
        return Histogram(Counted(0, False, None), 1, [])
    scanned = _scanned(made)
    given = made.given(namespace=namespace, before=ID_MAX, scanned=scanned, buckets=buckets)
    found = await fetch_filtered(connection, _row, made.statement("count_by_time"), **given)
    ((since, _, step, looked_at, runs),) = (row for row in found if not row[1])
    rows = [BucketRow(at, status, count) for at, status, _, _, count in found if status]
    return Histogram(Counted(runs, looked_at >= scanned, since), int(step), rows)


def _scanned(made: Conditions) -> int:
    return made.looks if made.has_looks else LOOKS_CHEAP


# == what they consist of ==============================================================================================
async def find_tasks(
    connection: Connection, namespace: str, filter: Filter, *, after: tuple[UUID, int] = (ID_MAX, LAST), limit: int
) -> tuple[list[TaskFound], Bound | None]:
    """Tasks that were handed out, those of the newest run first. after: run and task of the last one seen."""
    return await _within(connection, namespace, filter, "find_tasks", TaskFound, after[0], limit, at_task=after[1])


async def find_attempts(
    connection: Connection,
    namespace: str,
    filter: Filter,
    *,
    after: tuple[UUID, int, int] = (ID_MAX, LAST, LAST),
    limit: int,
) -> tuple[list[AttemptFound], Bound | None]:
    """Attempts that ended, those of the newest run first. after: run, task and token of the last one seen."""
    given = {"at_task": after[1], "at_token": after[2]}
    return await _within(connection, namespace, filter, "find_attempts", AttemptFound, after[0], limit, **given)


async def find_events(
    connection: Connection,
    namespace: str,
    filter: Filter,
    *,
    after: tuple[UUID, int, bool, int] = (ID_MAX, LAST, True, LAST),
    limit: int,
) -> tuple[list[EventFound], Bound | None]:
    """What moved runs, of the newest run first, and of each in order. after: the run, and the `key`, of the last one
    seen."""
    given = {"at_row_version": after[1], "at_attempt": after[2], "at_task": after[3]}
    return await _within(connection, namespace, filter, "find_events", EventFound, after[0], limit, **given)


async def _within(
    connection: Connection,
    namespace: str,
    filter: Filter,
    statement: str,
    row: Callable[..., _Row],
    at_run: UUID,
    limit: int,
    **after: object,
) -> tuple[list[_Row], Bound | None]:
    made = await conditions_of(connection, namespace, filter)
    if made.is_nothing:
        return [], None
    before = at_run if at_run == ID_MAX else UUID(int=at_run.int + 1)  # the run of the last one seen may have more
    given = made.given(namespace=namespace, before=before, scanned=made.looks, limit=limit, at_run=at_run, **after)
    found = await fetch_filtered(connection, row, made.statement(statement), **given)
    return found, await _bound(connection, made, given) if len(found) < limit else None


def _only(run_id: UUID) -> UUID:
    return run_id


def _row(*columns: Any) -> tuple[Any, ...]:
    return columns
