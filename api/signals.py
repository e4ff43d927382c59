"""Signals: what is told to runs from outside, and what became of it."""

from datetime import timedelta
from typing import Final

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
from api.schemas.signal import Offer, PostBody, PostedSignal, PostedSignalPage, Signal, SignalBody, SignalPage
from api.wiring import Wired, Wiring
from headrace.duration import parse_duration
from headrace.errors import NotFoundError
from headrace.machine import Plan
from state.posted_signals import post_signal
from state.queries.posted_signal import PostedRow, get_posted, list_offers, list_posted
from state.queries.rows import AT_MAX, ID_MAX, Connection
from state.queries.signal import FIRST, SignalRow, list_signals
from state.signals import Message, send_signal

KEEP_MAX: Final = timedelta(days=30)
OFFERS_MAX: Final = 100

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
    data = _data(asked)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        run = await find_run(wired, connection, id_)
        plan = await wired.plan(connection, run.version_id)
        if asked.name not in plan.listeners:
            raise faulty("name", plan.why_deaf(asked.name))
        message = Message(asked.name, data, asked.key, asked.id)
        row, is_new = await send_signal(connection, wired.store, id_, message, actor=who)
        return answer(_signal(plan, row), 201 if is_new else 200)

    return await perform(wired, request, content, act, audited=False)


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


# == for whoever waits =================================================================================================
@router.post(
    "/signals",
    status_code=201,
    responses=answers({201: PostedSignal, 200: PostedSignal}, 408, 409, 413, 415),
    openapi_extra=body(PostBody),
)
async def post(request: Request, wired: Wired) -> Response:
    """Tell something to whoever waits for its name and key: tasks that wait now, and tasks that begin to wait before it
    expires.

    Of tasks with `delivery: first` one takes it, the one that has waited longest; all with `delivery: all` hear it.
    201 for a new signal, 200 for one that was posted before under its `id`.
    """
    asked, content = await read(request, PostBody)
    data, who, keep = _data(asked), actor(request), keep_seconds(asked.keep)

    async def act(connection: Connection) -> Answer:
        message = Message(asked.name, data, asked.key, asked.id)
        row, is_new = await post_signal(connection, wired.store, message, keep_seconds=keep, actor=who)
        return answer(await _with_offers(wired, connection, row), 201 if is_new else 200)

    return await perform(wired, request, content, act, audited=False)


@router.get("/signals", responses=answers({200: PostedSignalPage}))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """What was posted for whoever waits, newest first."""
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    async with wired.database.reading() as connection:
        rows = await list_posted(connection, wired.namespace, limit=limit, before=before)
        last = (rows[-1].sent_at, rows[-1].posted_id) if rows else before
        more = rows and await list_posted(connection, wired.namespace, limit=1, before=last)
    return reply(PostedSignalPage([_posted(row) for row in rows], token(*last) if more else None))


@router.get("/signals/{signal_id}", responses=answers({200: PostedSignal}, 404))
async def get(signal_id: str, wired: Wired) -> Response:
    """One posted signal, and what came of it."""
    id_ = parse_id(signal_id, "signal")
    async with wired.database.reading() as connection:
        row = await get_posted(connection, wired.namespace, id_)
        if row is None:
            raise NotFoundError(f"there is no posted signal {id_}", signal_id=str(id_))
        return reply(await _with_offers(wired, connection, row))


def _data(asked: SignalBody | PostBody) -> bytes:
    return b"null" if isinstance(asked.data, msgspec.UnsetType) else check_payload(asked.data, "data")


def keep_seconds(given: str | float, field: str = "keep") -> float:
    """How long a posted signal waits for somebody. Raises RefusedError that names the field."""
    try:
        keep = parse_duration(given)
    except ValueError as error:
        raise faulty(field, str(error)) from None
    if keep > KEEP_MAX:
        raise faulty(field, f"at most {KEEP_MAX.days} days")
    return keep.total_seconds()


async def _with_offers(wiring: Wiring, connection: Connection, row: PostedRow) -> PostedSignal:
    offers = await list_offers(connection, row.posted_id, limit=OFFERS_MAX)
    plans = await wiring.load_plans(connection, {offer.version_id for offer in offers})
    made = _posted(row)
    made.offers = [
        Offer(
            str(offer.run_id),
            plans[offer.version_id].tasks[offer.task].name,
            offer.status,  # type: ignore[arg-type]  # the constraint of the table says the same
            offer.row_version,
            offer.settled_at,
            offer.reason,
        )
        for offer in offers
    ]
    return made


def _posted(row: PostedRow) -> PostedSignal:
    return PostedSignal(
        str(row.posted_id),
        row.name,
        row.key,
        raw(row.data),
        row.sender_id,
        row.actor,
        row.sent_at,
        row.expires_at,
        row.status,  # type: ignore[arg-type]  # as the statement makes it
    )


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
