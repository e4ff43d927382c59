"""How the tasks of a run passed their time: what a drawing of it needs, in one request for thousands of tasks."""

from collections import defaultdict
from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import AwareDatetime
from starlette.responses import Response

from api.answers import reply
from api.identity import parse_id
from api.openapi import answers
from api.paging import ByInt, PageToken, parse, token
from api.runs import find_run
from api.schemas.span import Span, SpanPage, TaskSpans
from api.schemas.task import ItemCounts
from api.wiring import Wired
from headrace.machine import TaskPlan, TaskStatus
from state.queries.console import SpanRow, StandingRow, list_spans, list_standings, read_clock

TASKS_MAX: Final = 2_000
"""On a page; a run of 10,000 tasks takes five."""
COMMIT: Final = timedelta(seconds=2)
"""A change carries the instant at which its transaction began, and can be seen once that has ended."""
Since = Annotated[AwareDatetime | None, Query(description="Only tasks that changed behind this `at`")]

router = APIRouter(tags=["tasks"])


@router.get("/runs/{run_id}/spans", responses=answers({200: SpanPage}, 404))
async def list_spans_of_run(
    run_id: str,
    wired: Wired,
    limit: Annotated[int, Query(ge=1, le=TASKS_MAX, description="Tasks on a page")] = TASKS_MAX,
    page: PageToken = None,
    since: Since = None,
) -> Response:
    """Every task of the graph in its order with its attempts, and no payloads.

    With `since`, the `at` of an earlier answer, only tasks that changed behind it, and some that did not: what a
    follower puts in place of what it has. A change whose transaction took longer than two seconds may be missing there,
    so a follower reads all now and then.
    """
    first = 0 if page is None else parse(page, ByInt).number + 1
    async with wired.database.reading() as connection:
        run = await find_run(wired, connection, parse_id(run_id, "run"))
        plan = await wired.plan(connection, run.version_id)
        at = await read_clock(connection)
        if since is None:
            specs = plan.tasks[first : first + limit]
            rows = await list_standings(connection, run.run_id, first=first, end=first + limit, limit=limit)
            spans = await list_spans(connection, run.run_id, first=first, end=first + limit)
            is_last = first + len(specs) >= len(plan.tasks)
        else:
            begin = since - COMMIT
            rows = await list_standings(
                connection, run.run_id, first=first, end=len(plan.tasks), since=begin, limit=limit
            )
            tasks = [row.task for row in rows]
            specs = tuple(plan.tasks[task] for task in tasks)
            spans = (
                await list_spans(connection, run.run_id, first=tasks[0], end=tasks[-1] + 1, tasks=tasks)
                if tasks
                else []
            )
            is_last = len(rows) < limit
    by_task: dict[int, list[SpanRow]] = defaultdict(list)
    for span in spans:
        by_task[span.task].append(span)
    standing = {row.task: row for row in rows}
    items = [_task(spec, standing.get(spec.index), by_task[spec.index]) for spec in specs]
    more = token(specs[-1].index) if specs and not is_last else None
    return reply(SpanPage(items, more, at, len(plan.tasks)))


def _task(spec: TaskPlan, row: StandingRow | None, spans: list[SpanRow]) -> TaskSpans:
    """row: None while the task was never touched."""
    return TaskSpans(
        name=spec.name,
        index=spec.index,
        kind=_kind(spec),
        status=TaskStatus(row.status) if row else TaskStatus.PENDING,
        attempt=row.attempt if row else 0,
        token=row.token if row else 0,
        needs=list(spec.needs),
        join=str(spec.join),
        due_at=row.due_at if row else None,
        changed_at=row.changed_at if row else None,
        worker=row.worker if row else None,
        items=_items(row) if row else None,
        rounds=row.rounds if row else 0,
        deadline_at=row.deadline_at if row else None,
        compensation=TaskStatus(row.compensation) if row and row.compensation else None,
        spans=[
            Span(s.attempt, s.token, s.outcome, s.worker, s.started_at, s.finished_at, s.ended_at, s.round)
            for s in spans
        ],
    )


def _kind(spec: TaskPlan) -> str:
    if spec.map is not None:
        return "map"
    if spec.repeat is not None:
        return "repeat"
    if spec.signal is not None:
        return "signal"
    if spec.wait is not None:
        return "wait"
    if spec.child is not None:
        return "workflow"
    return "approval" if spec.run is None else "body"


def _items(row: StandingRow) -> ItemCounts | None:
    if row.items is None:
        return None
    return ItemCounts(row.items, row.items_begun or 0, row.items_completed or 0, row.items_failed or 0)
