"""Runs that ask for runs: the parent of a run, and its children."""

from fastapi import APIRouter
from starlette.responses import Response

from api.answers import reply
from api.identity import parse_id
from api.openapi import answers
from api.paging import ByHandOut, Limit, PageToken, parse, token
from api.runs import find_run
from api.schemas.relation import ChildRun, ParentRun, RelationPage
from api.wiring import Wired
from headrace.machine import Plan
from state.queries.relation import FIRST, ChildRow, ParentRow, find_parent, list_children

router = APIRouter(tags=["runs"])


@router.get("/runs/{run_id}/relations", responses=answers({200: RelationPage}, 404))
async def list_relations(run_id: str, wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """The task that asked for this run, and the runs that its own tasks have asked for, in the order of the graph; of
    one task the last is that of its latest hand-out."""
    after = FIRST if page is None else parse(page, ByHandOut)
    async with wired.database.reading() as connection:
        run = await find_run(wired, connection, parse_id(run_id, "run"))
        parent = await find_parent(connection, run.run_id)
        rows = await list_children(connection, run.run_id, limit=limit + 1, after=after)
        plans = await wired.load_plans(connection, {run.version_id, *([parent.version_id] if parent else [])})
    children = [_child(plans[run.version_id], row) for row in rows[:limit]]
    last = rows[limit - 1] if len(rows) > limit else None
    above = None if parent is None else _parent(plans[parent.version_id], parent)
    return reply(RelationPage(children, None if last is None else token(last.task, last.token), above))


def _parent(plan: Plan, row: ParentRow) -> ParentRun:
    task = plan.tasks[row.task].name
    return ParentRun(
        str(row.run_id),
        task,
        row.token,
        row.workflow,
        row.version,
        row.status,  # type: ignore[arg-type]  # the enum of the table says the same
        row.is_awaited,
        row.depth,
    )


def _child(plan: Plan, row: ChildRow) -> ChildRun:
    return ChildRun(
        str(row.run_id),
        plan.tasks[row.task].name,
        row.token,
        row.workflow,
        row.version,
        row.status,
        row.is_awaited,
        row.asked_at,
        row.started_at,
        row.ended_at,
        row.cancel_asked_at,
        row.error,
    )
