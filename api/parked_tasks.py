"""Parked tasks: an attempt may have had its effect, and a person says whether it did."""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer, raw, reply
from api.bodies import check_payload, read
from api.errors import faulty
from api.idempotency import perform
from api.identity import actor
from api.openapi import answers, body
from api.paging import ByTask, Limit, PageToken, cut, parse
from api.schemas.parked_task import ParkedTask, ParkedTaskPage, ResolveBody, TaskResolved
from api.tasks import find_task
from api.wiring import Wired
from state.decisions import resolve_task
from state.queries.parked_task import TASK_MAX, list_parked_tasks
from state.queries.rows import AT_MAX, ID_MAX, Connection

router = APIRouter(tags=["parked tasks"])


@router.get("/parked-tasks", responses=answers({200: ParkedTaskPage}))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Tasks that wait for a person after an ambiguous end, newest first."""
    before = (AT_MAX, ID_MAX, TASK_MAX) if page is None else parse(page, ByTask)
    async with wired.database.reading() as connection:
        rows = await list_parked_tasks(connection, wired.namespace, limit=limit + 1, before=before)
        kept, after = cut(rows, limit, lambda row: (row.parked_at, row.run_id, row.task))
        plans = await wired.load_plans(connection, {row.version_id for row in kept})
    items = []
    for row in kept:
        name = plans[row.version_id].name_of(row.task)
        items.append(
            ParkedTask(
                f"{row.run_id}.{name}", str(row.run_id), row.workflow, name, row.token, row.parked_at, raw(row.error)
            )
        )
    return reply(ParkedTaskPage(items, after))


@router.post(
    "/tasks/{task_id}/resolve",
    responses=answers({200: TaskResolved}, 404, 408, 409, 413, 415),
    openapi_extra=body(ResolveBody),
)
async def resolve(task_id: str, request: Request, wired: Wired) -> Response:
    """Say what became of a parked task's effect: it happened (with the output), it did not, or give the task up."""
    asked, content = await read(request, ResolveBody)
    who = actor(request)
    output = None
    if asked.output is not msgspec.UNSET:
        if asked.outcome != "happened":
            raise faulty("output", "only an effect that happened has one")
        output = check_payload(asked.output, "output")

    async def act(connection: Connection) -> Answer:
        run, plan, place = await find_task(wired, connection, task_id)
        await resolve_task(
            connection,
            wired.store,
            run.run_id,
            place,
            asked.outcome,
            output=output,
            comment=asked.comment,
            actor=who,
        )
        return answer(TaskResolved(f"{run.run_id}.{plan.name_of(place)}", asked.outcome, who))

    return await perform(wired, request, content, act)
