"""Dead letters: failed tasks and records that could not be read, to be repaired and replayed."""

from base64 import b64encode
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import Answer, answer, raw, reply
from api.bodies import check_payload, read
from api.idempotency import perform
from api.identity import actor, parse_id
from api.openapi import answers, body
from api.paging import ByInstant, Limit, PageToken, parse, token
from api.schemas import DeadLetter, DeadLetterClosed, DeadLetterPage, DiscardBody, ReplayBody
from api.wiring import Wired
from headrace.errors import NotFoundError
from headrace.machine import Plan
from state.decisions import discard_dead_letter, replay_dead_letter
from state.queries.dead_letter import DeadLetterRow, get_dead_letter, list_dead_letters
from state.queries.rows import AT_MAX, ID_MAX, Connection

router = APIRouter(tags=["dead letters"])


class DeadLetterStatus(StrEnum):
    PARKED = "parked"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


class DeadLetterKind(StrEnum):
    TASK = "task"
    RECORD = "record"


@router.get("/dead-letters", responses=answers({200: DeadLetterPage}))
async def list_all(
    wired: Wired,
    status: Annotated[DeadLetterStatus, Query()] = DeadLetterStatus.PARKED,
    kind: Annotated[DeadLetterKind | None, Query()] = None,
    limit: Limit = 50,
    page: PageToken = None,
) -> Response:
    """Dead letters, newest first; those that are parked, unless `status` says otherwise."""
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    async with wired.database.reading() as connection:
        rows = await list_dead_letters(
            connection, wired.namespace, limit=limit, before=before, status=status, kind=kind
        )
        last = (rows[-1].created_at, rows[-1].dead_letter_id) if rows else before
        more = rows and await list_dead_letters(  # large values may have cut the page
            connection, wired.namespace, limit=1, before=last, status=status, kind=kind
        )
        plans = await wired.load_plans(connection, {row.version_id for row in rows if row.version_id is not None})
    return reply(DeadLetterPage([_dead_letter(row, plans) for row in rows], token(*last) if more else None))


@router.get("/dead-letters/{dead_letter_id}", responses=answers({200: DeadLetter}, 404))
async def get(dead_letter_id: str, wired: Wired) -> Response:
    """One dead letter."""
    id_ = parse_id(dead_letter_id, "dead letter")
    async with wired.database.reading() as connection:
        row = await get_dead_letter(connection, wired.namespace, id_)
        if row is None:
            raise NotFoundError(f"there is no dead letter {id_}", dead_letter_id=str(id_))
        plans = await wired.load_plans(connection, {row.version_id} - {None})  # type: ignore[arg-type]  # None is taken out
    return reply(_dead_letter(row, plans))


@router.post(
    "/dead-letters/{dead_letter_id}/replay",
    status_code=202,
    responses=answers({202: DeadLetterClosed}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReplayBody, required=False),
)
async def replay(dead_letter_id: str, request: Request, wired: Wired) -> Response:
    """Send it out again, once: a task under a new token, a record to its topic; `input` takes the place of what
    failed.
    """
    id_ = parse_id(dead_letter_id, "dead letter")
    asked, content = await read(request, ReplayBody)
    given = None if isinstance(asked.input, msgspec.UnsetType) else check_payload(asked.input, "input")
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await replay_dead_letter(connection, wired.store, id_, input=given, actor=who)
        return answer(DeadLetterClosed(str(id_), "replayed"), 202)

    return await perform(wired, request, content, act)


@router.post(
    "/dead-letters/{dead_letter_id}/discard",
    responses=answers({200: DeadLetterClosed}, 404, 408, 409, 413, 415),
    openapi_extra=body(DiscardBody),
)
async def discard(dead_letter_id: str, request: Request, wired: Wired) -> Response:
    """Close it without repairing it."""
    id_ = parse_id(dead_letter_id, "dead letter")
    asked, content = await read(request, DiscardBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await discard_dead_letter(connection, wired.store, id_, reason=asked.reason, actor=who)
        return answer(DeadLetterClosed(str(id_), "discarded"))

    return await perform(wired, request, content, act)


def _dead_letter(row: DeadLetterRow, plans: Mapping[int, Plan]) -> DeadLetter:
    plan = None if row.version_id is None else plans[row.version_id]
    name = None if plan is None or row.task is None else plan.tasks[row.task].name
    key, key_encoding = _printable(row.key)
    value, value_encoding = _printable(row.value)
    return DeadLetter(
        dead_letter_id=str(row.dead_letter_id),
        kind=row.kind,
        status=row.status,
        run_id=None if row.run_id is None else str(row.run_id),
        workflow=row.workflow,
        task=name,
        task_id=None if name is None else f"{row.run_id}.{name}",
        token=row.token,
        topic=row.topic,
        partition=row.partition,
        offset=row.offset,
        key=key,
        key_encoding=key_encoding,
        value=value,
        value_encoding=value_encoding,
        reason=row.reason,
        error=raw(row.error),
        created_at=row.created_at,
        closed_at=row.closed_at,
        closed_by=row.closed_by,
        close_reason=row.close_reason,
    )


def _printable(content: bytes | None) -> tuple[str | None, str | None]:
    """Bytes as text where they are text, otherwise as base64; and which of the two."""
    if content is None:
        return None, None
    try:
        return bytes(content).decode(), "text"
    except UnicodeDecodeError:
        return b64encode(content).decode(), "base64"
