"""Control of a run: pause, resume, terminate."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer
from api.bodies import read
from api.idempotency import perform
from api.identity import actor, parse_id
from api.openapi import answers, body
from api.schemas import Accepted, ReasonBody
from api.wiring import Wired, Wiring
from state.control import pause_run, resume_run, terminate_run
from state.queries.rows import Connection

router = APIRouter(tags=["runs"])


@router.post(
    "/runs/{run_id}/pause",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def pause(run_id: str, request: Request, wired: Wired) -> Response:
    """Let nothing new of a run begin. What was handed out goes on to its end, timers and signals are kept: the run is
    `pausing` for as long as something of it runs, then `paused`.
    """
    return await _ask(run_id, request, wired, pause_run)


@router.post(
    "/runs/{run_id}/resume",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def resume(run_id: str, request: Request, wired: Wired) -> Response:
    """End a pause: what it withheld begins."""
    return await _ask(run_id, request, wired, resume_run)


@router.post(
    "/runs/{run_id}/terminate",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def terminate(run_id: str, request: Request, wired: Wired) -> Response:
    """End a run by force, without any clean-up. It is `terminated`, and no answer of what still runs counts."""
    return await _ask(run_id, request, wired, terminate_run)


async def _ask(run_id: str, request: Request, wired: Wiring, act_on: Callable[..., Awaitable[None]]) -> Response:
    id_ = parse_id(run_id, "run")
    asked, content = await read(request, ReasonBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await act_on(connection, wired.store, id_, reason=asked.reason, actor=who)
        return answer(Accepted(str(id_), accepted=True), 202)

    return await perform(wired, request, content, act)
