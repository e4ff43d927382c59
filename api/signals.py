"""Signals: what is told to runs from outside, and what became of it."""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer, raw, reply
from api.bodies import check_payload, read
from api.errors import faulty
from api.idempotency import perform
from api.identity import actor, parse_id
from api.openapi import answers, body
from api.paging import ByInstant, Limit, PageToken, parse, token
from api.runs import find_run
from api.schemas import Signal, SignalBody, SignalPage
from api.wiring import Wired
from headrace.machine import Plan
from state.queries.rows import Connection
from state.queries.signal import FIRST, SignalRow, list_signals
from state.signals import Message, send_signal

router = APIRouter(tags=["signals"])


@router.post(
    "/runs/{run_id}/signals",
    status_code=201,
    responses=answers({201: Signal, 200: Signal}, 404, 408, 409, 413, 415),
    openapi_extra=body(SignalBody),
)
async def send(run_id: str, request: Request, wired: Wired) -> Response:
    """Tell a run something. It is stored when this is answered: a task that waits for it takes it, now or once it
    begins to wait.

    201 for a new signal, 200 for one that was sent before under its `id`; 409 when the run has ended.
    """
    id_ = parse_id(run_id, "run")
    asked, content = await read(request, SignalBody)
    data = b"null" if isinstance(asked.data, msgspec.UnsetType) else check_payload(asked.data, "data")
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        run = await find_run(wired, connection, id_)
        plan = await wired.plan(connection, run.version_id)
        if asked.name not in plan.listeners:
            raise faulty("name", plan.why_deaf(asked.name))
        message = Message(asked.name, data, asked.key, asked.id)
        row, is_new = await send_signal(connection, wired.store, id_, message, actor=who)
        return answer(_signal(plan, row), 201 if is_new else 200)

    return await perform(wired, request, content, act)


@router.get("/runs/{run_id}/signals", responses=answers({200: SignalPage}, 404))
async def list_of_run(run_id: str, wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """What the run was told, in the order in which it was stored, and what became of each."""
    after = FIRST if page is None else parse(page, ByInstant)
    async with wired.database.reading() as connection:
        run = await find_run(wired, connection, parse_id(run_id, "run"))
        plan = await wired.plan(connection, run.version_id)
        rows = await list_signals(connection, run.run_id, limit=limit, after=after)
        last = (rows[-1].sent_at, rows[-1].signal_id) if rows else after
        more = rows and await list_signals(connection, run.run_id, limit=1, after=last)
    return reply(SignalPage([_signal(plan, row) for row in rows], token(*last) if more else None))


def _signal(plan: Plan, row: SignalRow) -> Signal:
    return Signal(
        str(row.signal_id),
        str(row.run_id),
        row.name,
        row.key,
        raw(row.data),
        row.sender_id,
        row.actor,
        row.sent_at,
        row.status,  # type: ignore[arg-type]  # the constraint of the table says the same
        None if row.task is None else plan.tasks[row.task].name,
        row.token,
        row.row_version,
        row.settled_at,
        row.reason,
    )
