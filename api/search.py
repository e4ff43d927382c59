"""What a filter finds beyond the list of runs: how many there are, of which kinds, since when; and tasks, attempts and
history over all runs."""

from collections import defaultdict
from datetime import datetime
from typing import Annotated, TypedDict

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from api.answers import raw, reply
from api.filters import FilterText, OnlyKnown, page_key, page_token
from api.openapi import answers
from api.paging import ByAttempt, ByEvent, ByRunTask, Limit, PageToken
from api.schemas.search import (
    AttemptItem,
    AttemptItemPage,
    EventItem,
    EventItemPage,
    Facet,
    FacetValue,
    RunBucket,
    RunCount,
    RunFacets,
    RunHistogram,
    TaskItem,
    TaskItemPage,
)
from api.wiring import Wired
from headrace.filter import Clause, Filter, escape, parse
from headrace.machine import Plan, RunStatus, TaskStatus
from state.queries.search import (
    LAST,
    AttemptFound,
    Bound,
    EventFound,
    TaskFound,
    count_by_time,
    count_facets,
    count_runs,
    find_attempts,
    find_events,
    find_tasks,
)

router = APIRouter(tags=["search"])

LabelName = Annotated[
    str, Query(pattern=r"^([a-z][a-z0-9_.-]{0,62})?$", description="Count the values of this label as well")
]
Buckets = Annotated[int, Query(ge=2, le=200, description="At most so many")]


# == runs ==============================================================================================================
@router.get("/runs/count", responses=answers({200: RunCount}), dependencies=[OnlyKnown])
async def count(wired: Wired, filter: FilterText = "") -> Response:
    """How many runs match: exact up to a bound, then `has_more`."""
    wanted = parse("runs", filter)
    async with wired.database.reading() as connection:
        found = await count_runs(connection, wired.namespace, wanted, stuck_seconds=wired.settings.api_stuck_seconds)
    return reply(RunCount(str(wanted), found.runs, found.has_more, found.since))


@router.get("/runs/facets", responses=answers({200: RunFacets}), dependencies=[OnlyKnown])
async def facets(wired: Wired, filter: FilterText = "", label: LabelName = "") -> Response:
    """How many of the runs that match have each status, workflow, version, trigger, queue, error code and label; and
    each value of the label that is named.
    """
    wanted = parse("runs", filter)
    async with wired.database.reading() as connection:
        found = await count_facets(
            connection, wired.namespace, wanted, label=label, stuck_seconds=wired.settings.api_stuck_seconds
        )
    by_field: dict[str, list[FacetValue]] = defaultdict(list)
    for row in found.rows:
        if row.field == "label":  # its name, and any value
            clause = Clause(f"label.{row.value}", ("*",))
        else:
            clause = Clause(row.field, (escape(row.value),))
        by_field[row.field].append(FacetValue(row.value, row.runs, str(clause)))
    shown = [Facet(field, values) for field, values in by_field.items()]
    return reply(RunFacets(str(wanted), found.runs, found.has_more, shown))


@router.get("/runs/histogram", responses=answers({200: RunHistogram}), dependencies=[OnlyKnown])
async def histogram(wired: Wired, filter: FilterText = "", buckets: Buckets = 60) -> Response:
    """When the runs that match were started, and how they stand now."""
    wanted = parse("runs", filter)
    async with wired.database.reading() as connection:
        found = await count_by_time(
            connection, wired.namespace, wanted, buckets=buckets, stuck_seconds=wired.settings.api_stuck_seconds
        )
    by_time: dict[datetime, dict[str, int]] = defaultdict(dict)
    for row in found.rows:
        by_time[row.at][row.status] = row.runs
    counted = found.counted
    shown = [RunBucket(at, counts) for at, counts in by_time.items()]
    return reply(RunHistogram(str(wanted), counted.runs, counted.has_more, counted.since, found.step_seconds, shown))


# == what they consist of ==============================================================================================
@router.get("/tasks", responses=answers({200: TaskItemPage}), dependencies=[OnlyKnown])
async def list_tasks(wired: Wired, filter: FilterText = "", limit: Limit = 50, page: PageToken = None) -> Response:
    """Tasks of all runs that were ever handed out, those of the newest run first."""
    wanted = parse("tasks", filter)
    after = ByRunTask() if page is None else page_key(page, wanted, ByRunTask)
    async with wired.database.reading() as connection:
        rows, bound = await find_tasks(connection, wired.namespace, wanted, after=after, limit=limit + 1)
        plans = await wired.load_plans(connection, {row.version_id for row in rows})
    kept = rows[:limit]
    items = [_task(row, plans[row.version_id]) for row in kept]
    more = len(rows) > limit and (kept[-1].run_id, kept[-1].task)
    return reply(TaskItemPage(items, *_next(wanted, more, bound, LAST)))


@router.get("/attempts", responses=answers({200: AttemptItemPage}), dependencies=[OnlyKnown])
async def list_attempts(wired: Wired, filter: FilterText = "", limit: Limit = 50, page: PageToken = None) -> Response:
    """Attempts of all runs that have ended, those of the newest run first."""
    wanted = parse("attempts", filter)
    after = ByAttempt() if page is None else page_key(page, wanted, ByAttempt)
    async with wired.database.reading() as connection:
        rows, bound = await find_attempts(connection, wired.namespace, wanted, after=after, limit=limit + 1)
        plans = await wired.load_plans(connection, {row.version_id for row in rows})
    kept = rows[:limit]
    items = [_attempt(row, plans[row.version_id]) for row in kept]
    more = len(rows) > limit and (kept[-1].run_id, kept[-1].task, kept[-1].token)
    return reply(AttemptItemPage(items, *_next(wanted, more, bound, LAST, LAST)))


@router.get("/history", responses=answers({200: EventItemPage}), dependencies=[OnlyKnown])
async def list_events(wired: Wired, filter: FilterText = "", limit: Limit = 50, page: PageToken = None) -> Response:
    """What moved runs, those of the newest run first, and of each run in order."""
    wanted = parse("history", filter)
    after = ByEvent() if page is None else page_key(page, wanted, ByEvent)
    async with wired.database.reading() as connection:
        rows, bound = await find_events(connection, wired.namespace, wanted, after=after, limit=limit + 1)
        plans = await wired.load_plans(connection, {row.version_id for row in rows})
    kept = rows[:limit]
    items = [_event(row, plans[row.version_id]) for row in kept]
    more = len(rows) > limit and (kept[-1].run_id, *kept[-1].key)
    return reply(EventItemPage(items, *_next(wanted, more, bound, LAST, True, LAST)))


def _next(
    wanted: Filter, more: tuple[object, ...] | bool, bound: Bound | None, *behind: object
) -> tuple[str | None, datetime | None]:
    """The token of the next page, and where the search ended. more: the key of the last item, when others follow it.
    behind: what stands behind all of a run."""
    if more:
        assert isinstance(more, tuple)
        return page_token(wanted, *more), None
    return (None, None) if bound is None else (page_token(wanted, bound.run_id, *behind), bound.at)


# == as they are shown =================================================================================================
class _OfRun(TypedDict):
    run_id: str
    workflow: str
    version: int
    run_status: RunStatus


class _OfTask(_OfRun):
    task_id: str
    queue: str
    attempt: int
    token: int
    error: msgspec.Raw


def _of_run(row: TaskFound | AttemptFound | EventFound, plan: Plan) -> _OfRun:
    return {
        "run_id": str(row.run_id),
        "workflow": plan.name,
        "version": plan.version,
        "run_status": RunStatus(row.run_status),
    }


def _of_task(row: TaskFound | AttemptFound, plan: Plan) -> _OfTask:
    return {
        **_of_run(row, plan),
        "task_id": f"{row.run_id}.{plan.name_of(row.task)}",
        "queue": plan.at(row.task).queue,
        "attempt": row.attempt,
        "token": row.token,
        "error": raw(row.error),
    }


def _task(row: TaskFound, plan: Plan) -> TaskItem:
    return TaskItem(
        **_of_task(row, plan),
        name=plan.name_of(row.task),
        status=TaskStatus(row.status),
        due_at=row.due_at,
        changed_at=row.changed_at,
        pool=row.pool,
    )


def _attempt(row: AttemptFound, plan: Plan) -> AttemptItem:
    return AttemptItem(
        **_of_task(row, plan),
        task=plan.name_of(row.task),
        outcome=row.outcome,
        worker=row.worker,
        started_at=row.started_at,
        finished_at=row.finished_at,
        ended_at=row.ended_at,
    )


def _event(row: EventFound, plan: Plan) -> EventItem:
    return EventItem(
        **_of_run(row, plan),
        row_version=row.row_version,
        at=row.at,
        kind=row.kind,
        task=None if row.task is None else plan.name_of(row.task),
        token=row.token,
        actor=row.actor,
        detail=raw(row.detail),
    )
