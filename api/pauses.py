"""Pauses of workflows, with all their runs, and of queues."""

from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer, reply
from api.bodies import read
from api.idempotency import perform
from api.identity import actor, check_name
from api.openapi import answers, body
from api.paging import ByName, Limit, PageToken, cut, parse
from api.schemas.pause import Pause, PausePage, QueuePause, QueuePaused, QueuePauses, WorkflowPaused
from api.schemas.wire import ReasonBody
from api.wiring import Wired, Wiring
from state.pauses import (
    PauseRow,
    list_pauses,
    list_queue_pauses,
    pause_queue,
    pause_workflow,
    resume_queue,
    resume_workflow,
)
from state.queries.rows import Connection

router = APIRouter(tags=["pauses"])


@router.post(
    "/workflows/{workflow}/pause",
    status_code=202,
    responses=answers({202: WorkflowPaused}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def pause(workflow: str, request: Request, wired: Wired) -> Response:
    """Pause all runs of a workflow: those that are open are told one by one, those that are started from now on begin
    paused. What was handed out goes on to its end.
    """
    return await _ask("workflow", workflow, request, wired, pause_workflow, WorkflowPaused(workflow, True))


@router.post(
    "/workflows/{workflow}/resume",
    status_code=202,
    responses=answers({202: WorkflowPaused}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def resume(workflow: str, request: Request, wired: Wired) -> Response:
    """End the pause of a workflow. Runs that were paused by themselves stay so."""
    return await _ask("workflow", workflow, request, wired, resume_workflow, WorkflowPaused(workflow, False))


@router.get("/pauses", responses=answers({200: PausePage}))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Paused workflows by name: since when, by whom, why, and how far their runs are."""
    after = "" if page is None else parse(page, ByName).name
    async with wired.database.reading() as connection:
        rows = await list_pauses(connection, wired.namespace, after=after, limit=limit + 1)
    kept, following = cut(rows, limit, lambda row: (row.workflow,))
    return reply(PausePage([_pause(row) for row in kept], following))


@router.post(
    "/queues/{queue}/pause",
    status_code=202,
    responses=answers({202: QueuePaused}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def pause_of_queue(queue: str, request: Request, wired: Wired) -> Response:
    """Keep back what is handed out to a queue. What workers have taken, or what waits in Kafka for them, goes on."""
    return await _ask("queue", queue, request, wired, pause_queue, QueuePaused(queue, True))


@router.post(
    "/queues/{queue}/resume",
    status_code=202,
    responses=answers({202: QueuePaused}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def resume_of_queue(queue: str, request: Request, wired: Wired) -> Response:
    """Let go what was kept back, the oldest first."""
    return await _ask("queue", queue, request, wired, resume_queue, QueuePaused(queue, False))


@router.get("/queues/pauses", responses=answers({200: QueuePauses}))
async def list_of_queues(wired: Wired) -> Response:
    """Paused queues by name: since when, by whom, why, and how many commands are kept back."""
    async with wired.database.reading() as connection:
        rows = await list_queue_pauses(connection)
    return reply(QueuePauses([QueuePause(*row) for row in rows]))


Act = Callable[..., Awaitable[None]]


async def _ask(
    noun: str, name: str, request: Request, wired: Wiring, asked: Act, then: WorkflowPaused | QueuePaused
) -> Response:
    """then: what is answered once it is so."""
    check_name(name, noun)
    given, content = await read(request, ReasonBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await asked(connection, wired.store, name, reason=given.reason, actor=who)
        return answer(then, 202)

    return await perform(wired, request, content, act)


def _pause(row: PauseRow) -> Pause:
    runs = {} if row.runs is None else msgspec.json.decode(row.runs, type=dict[str, int])
    return Pause(row.workflow, row.reason, row.paused_at, row.paused_by, runs)
