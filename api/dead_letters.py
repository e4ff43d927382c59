"""Dead letters: failed tasks and records that could not be read, to be repaired and replayed."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import NULL, Answer, answer, raw, reply
from api.bodies import check_payload, read
from api.errors import faulty
from api.filters import FilterText, OnlyKnown, page_key, page_token, read_selection
from api.idempotency import perform
from api.identity import actor, parse_id
from api.openapi import answers, body
from api.paging import ByInstant, Limit, PageToken, cut, parse
from api.schemas.dead_letter import (
    BulkDiscardBody,
    BulkReplay,
    BulkReplayBody,
    BulkReplayPage,
    BulkReplayProgress,
    DeadLetter,
    DeadLetterClosed,
    DeadLetterContext,
    DeadLetterGroup,
    DeadLetterGroupPage,
    DeadLetterPage,
    DeadLettersDiscarded,
    DeadLetterSelection,
    DiscardBody,
    RecordHeader,
    ReplayBody,
    ReplayRefusal,
)
from api.schemas.task import Attempt
from api.wiring import Wired, Wiring
from headrace.errors import NotFoundError
from headrace.filter import Filter
from headrace.filter import parse as parse_filter
from state.bulk import BulkRow, Selection, get_bulk, list_bulks, list_items, start_bulk, stop_bulk
from state.bulk_replays import count_outcomes, select_letters
from state.decisions import discard_dead_letter, replay_dead_letter
from state.filter_sql import freeze
from state.letter_context import LetterContext, read_context
from state.queries.dead_letter import (
    DeadLetterRow,
    GroupRow,
    discard_dead_letters,
    find_dead_letters,
    get_dead_letter,
    group_dead_letters,
    read_dead_letters,
)
from state.queries.rows import AT_MAX, ID_MAX, Connection
from state.queries.task import AttemptRow

SAMPLE: Final = 10
REFUSALS: Final = 20

router = APIRouter(tags=["dead letters"])


class ByGroup(NamedTuple):
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    fingerprint: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9a-f]*$")]


class DeadLetterStatus(StrEnum):
    PARKED = "parked"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


StatusFilter = Annotated[DeadLetterStatus | None, Query(description="Short for `status:` in the filter")]


# == read ==============================================================================================================
@router.get("/dead-letters", responses=answers({200: DeadLetterPage}), dependencies=[OnlyKnown])
async def list_all(
    wired: Wired, filter: FilterText = "", status: StatusFilter = None, limit: Limit = 50, page: PageToken = None
) -> Response:
    """Dead letters, newest first; those that are parked, unless the filter says another status."""
    wanted = _wanted(filter, status)
    before = (AT_MAX, ID_MAX) if page is None else page_key(page, wanted, ByInstant)
    async with wired.database.reading() as connection:
        found = await find_dead_letters(connection, wired.namespace, wanted, limit=limit + 1, before=before)
        rows = await read_dead_letters(connection, wired.namespace, found.ids[:limit], is_bounded=True)
        letters = await _dead_letters(wired, connection, rows)
    if len(rows) < len(found.ids):  # as many as fit on a page, or as large values left room for
        return reply(DeadLetterPage(letters, page_token(wanted, rows[-1].created_at, rows[-1].dead_letter_id), None))
    if found.bound is not None:
        return reply(DeadLetterPage(letters, page_token(wanted, *found.bound), found.bound.at))
    return reply(DeadLetterPage(letters, None, None))


@router.get("/dead-letters/groups", responses=answers({200: DeadLetterGroupPage}), dependencies=[OnlyKnown])
async def list_groups(
    wired: Wired, filter: FilterText = "", status: StatusFilter = None, limit: Limit = 50, page: PageToken = None
) -> Response:
    """Dead letters by cause, the group with the newest first; of the newest 100,000."""
    wanted = _wanted(filter, status)
    after = (AT_MAX, "") if page is None else page_key(page, wanted, ByGroup)
    async with wired.database.reading() as connection:
        rows = await group_dead_letters(connection, wired.namespace, wanted, limit=limit + 1, after=after)
    kept = rows[:limit]
    following = page_token(wanted, kept[-1].last_at, kept[-1].fingerprint) if len(rows) > limit else None
    return reply(DeadLetterGroupPage([_group(row) for row in kept], following))


def _wanted(filter: str, status: DeadLetterStatus | None) -> Filter:
    wanted = parse_filter("dead_letters", filter)
    return wanted if status is None else wanted.and_("status", status)


@router.get("/dead-letters/replays", responses=answers({200: BulkReplayPage}))
async def list_replays(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Bulk replays, newest first."""
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    async with wired.database.reading() as connection:
        rows = await list_bulks(connection, wired.namespace, limit=limit + 1, before=before, act="replay")
    kept, after = cut(rows, limit, lambda row: (row.created_at, row.bulk_id))
    return reply(BulkReplayPage([BulkReplay(**_bulk_replay(row)) for row in kept], after))


@router.get("/dead-letters/replays/{replay_id}", responses=answers({200: BulkReplayProgress}, 404))
async def get_replay(replay_id: str, wired: Wired) -> Response:
    """How far a bulk replay has come, and what became of what it replayed."""
    id_ = parse_id(replay_id, "bulk replay")
    async with wired.database.reading() as connection:
        return reply(await _progress(wired, connection, id_))


@router.get("/dead-letters/{dead_letter_id}", responses=answers({200: DeadLetterContext}, 404))
async def get(dead_letter_id: str, wired: Wired) -> Response:
    """One dead letter with its context: every attempt, the input, the record's bytes, the run it belongs to."""
    id_ = parse_id(dead_letter_id, "dead letter")
    async with wired.database.reading() as connection:
        row = await get_dead_letter(connection, wired.namespace, id_)
        if row is None:
            raise NotFoundError(f"there is no dead letter {id_}", dead_letter_id=str(id_))
        plan = None if row.version_id is None else await wired.plan(connection, row.version_id)
        context = await read_context(connection, plan, row)
        (shown,) = await _dead_letters(wired, connection, [row])
    return reply(_with_context(shown, row, context))


# == close one =========================================================================================================
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
    given = None if isinstance(asked.input, msgspec.UnsetType) else check_payload(asked.input, "input", may_refer=True)
    value = _decode_value(asked.value_base64)
    if given is not None and value is not None:
        raise faulty("value_base64", "give either this or `input`")
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await replay_dead_letter(connection, wired.store, id_, input=given, value=value, actor=who)
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


def _decode_value(text: str | None) -> bytes | None:
    try:
        return None if text is None else b64decode(text, validate=True)
    except binascii.Error:
        raise faulty("value_base64", "not base64") from None


# == close many ========================================================================================================
@router.post(
    "/dead-letters/replay",
    status_code=202,
    responses=answers({202: BulkReplay, 200: DeadLetterSelection}, 408, 409, 413, 415),
    openapi_extra=body(BulkReplayBody),
)
async def replay_many(request: Request, wired: Wired) -> Response:
    """Replay all parked dead letters that match, at a rate.

    What matches now is frozen, goes out in the background, and survives any crash; ask `/dead-letters/replays/{id}`
    how far it has come. With `dry_run` nothing is replayed: the answer is what would be.
    """
    asked, content = await read(request, BulkReplayBody)
    ids, who = asked.dead_letter_ids, actor(request)
    wanted = read_selection("dead_letters", asked.filter, ids, "dead_letter_ids")

    async def act(connection: Connection) -> Answer:
        dated = await freeze(connection, wanted)
        selection = await select_letters(connection, wired.namespace, dated, among=ids)
        if asked.dry_run:
            return answer(await _selection(wired, connection, selection))
        replay_id = await start_bulk(
            connection, wired.store, "replay", selection.ids, filter=str(dated), rate=asked.rate, actor=who
        )
        row = await get_bulk(connection, wired.namespace, replay_id)
        return answer(BulkReplay(**_bulk_replay(row)), 202)

    return await perform(wired, request, content, act)


@router.post(
    "/dead-letters/discard",
    responses=answers({200: DeadLettersDiscarded}, 408, 409, 413, 415),
    openapi_extra=body(BulkDiscardBody),
)
async def discard_many(request: Request, wired: Wired) -> Response:
    """Close all parked dead letters that match. With `dry_run` nothing is closed: the answer is a selection, as that
    of a replay.
    """
    asked, content = await read(request, BulkDiscardBody)
    ids, who = asked.dead_letter_ids, actor(request)
    wanted = read_selection("dead_letters", asked.filter, ids, "dead_letter_ids")

    async def act(connection: Connection) -> Answer:
        selection = await select_letters(connection, wired.namespace, wanted, among=ids, is_free=False)
        if asked.dry_run:
            return answer(await _selection(wired, connection, selection))
        count = await discard_dead_letters(connection, wired.namespace, selection.ids, actor=who, reason=asked.reason)
        return answer(DeadLettersDiscarded(count, selection.has_more))

    return await perform(wired, request, content, act)


@router.post("/dead-letters/replays/{replay_id}/stop", responses=answers({200: BulkReplayProgress}, 404, 408, 409, 413))
async def stop_replay(replay_id: str, request: Request, wired: Wired) -> Response:
    """End a bulk replay: what has not gone out yet stays parked."""
    id_, who = parse_id(replay_id, "bulk replay"), actor(request)

    async def act(connection: Connection) -> Answer:
        await get_bulk(connection, wired.namespace, id_, act="replay")
        await stop_bulk(connection, wired.namespace, id_, actor=who)
        return answer(await _progress(wired, connection, id_))

    return await perform(wired, request, b"", act)


async def _selection(wiring: Wiring, connection: Connection, selection: Selection) -> DeadLetterSelection:
    rows = await read_dead_letters(connection, wiring.namespace, selection.ids[:SAMPLE], is_bounded=True)
    return DeadLetterSelection(
        dry_run=True,
        count=len(selection.ids),
        has_more=selection.has_more,
        sample=await _dead_letters(wiring, connection, rows[::-1]),
        dead_letter_ids=[str(id_) for id_ in selection.ids],
    )


async def _progress(wiring: Wiring, connection: Connection, replay_id: UUID) -> BulkReplayProgress:
    row = await get_bulk(connection, wiring.namespace, replay_id, act="replay")
    outcomes = await count_outcomes(connection, replay_id)
    refusals = await list_items(connection, replay_id, outcome="refused", limit=REFUSALS)
    return BulkReplayProgress(
        **_bulk_replay(row),
        outcomes=outcomes,
        refusals=[ReplayRefusal(str(each.item_id), each.reason or "") for each in refusals],
    )


# == as they are shown =================================================================================================
def _bulk_replay(row: BulkRow) -> dict[str, Any]:
    running = "completed" if row.stopped_by is None else "stopped"
    return {
        "replay_id": str(row.bulk_id),
        "status": "running" if row.finished_at is None else running,
        "filter": row.filter,
        "rate": row.rate,
        "selected": row.selected,
        "left": row.left,
        "replayed": row.done,
        "refused": row.refused,
        "stopped": row.stopped,
        "created_at": row.created_at,
        "created_by": row.created_by,
        "finished_at": row.finished_at,
        "stopped_by": row.stopped_by,
    }


def _group(row: GroupRow) -> DeadLetterGroup:
    return DeadLetterGroup(
        fingerprint=row.fingerprint,
        count=row.letters,
        first_at=row.first_at,
        last_at=row.last_at,
        kind=row.kind,
        workflow=row.workflow,
        version=row.version,
        task=row.task_name,
        topic=row.topic,
        code=row.code,
        message=row.message,
        sample=str(row.sample_id),
    )


async def _dead_letters(wiring: Wiring, connection: Connection, rows: Sequence[DeadLetterRow]) -> list[DeadLetter]:
    plans = await wiring.load_plans(connection, {row.version_id for row in rows if row.version_id is not None})
    letters = []
    for row in rows:
        plan = None if row.version_id is None else plans[row.version_id]
        name = row.task_name
        if plan is not None and row.task is not None:
            name = plan.name_of(row.task)
        letters.append(_dead_letter(row, name))
    return letters


def _dead_letter(row: DeadLetterRow, task: str | None) -> DeadLetter:
    key, key_encoding = _printable(row.key)
    value, value_encoding = _printable(row.value)
    return DeadLetter(
        dead_letter_id=str(row.dead_letter_id),
        kind=row.kind,
        status=row.status,
        run_id=_text(row.run_id),
        workflow=row.workflow,
        version=row.version,
        task=task,
        task_id=None if task is None else f"{row.run_id}.{task}",
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
        code=row.code,
        fingerprint=row.fingerprint,
        created_at=row.created_at,
        closed_at=row.closed_at,
        closed_by=row.closed_by,
        close_reason=row.close_reason,
        replay_of=_text(row.replay_of),
        replay_token=row.replay_token,
        replayed_as=_text(row.replayed_as),
        replay_outcome=row.replay_outcome,
    )


def _with_context(shown: DeadLetter, row: DeadLetterRow, context: LetterContext) -> DeadLetterContext:
    return DeadLetterContext(
        **{name: getattr(shown, name) for name in shown.__struct_fields__},
        attempts=[_attempt(attempt) for attempt in context.attempts],
        input=msgspec.UNSET if context.input is None else msgspec.Raw(context.input),
        input_missing=context.input_missing,
        run_input=NULL if context.run_input is None else raw(context.run_input),
        headers=[RecordHeader(header.name, header.value, header.encoding) for header in context.headers],
        key_base64=_base64(row.key),
        value_base64=_base64(row.value),
        traceparent=context.traceparent,
        history=None if row.run_id is None else f"/runs/{row.run_id}/history",
    )


def _attempt(row: AttemptRow) -> Attempt:
    return Attempt(
        row.attempt,
        row.token,
        row.outcome,
        row.worker,
        row.started_at,
        row.finished_at,
        row.ended_at,
        raw(row.output),
        raw(row.error),
        row.round,
    )


def _printable(content: bytes | None) -> tuple[str | None, str | None]:
    """Bytes as text where they are text, otherwise as base64; and which of the two."""
    if content is None:
        return None, None
    try:
        return bytes(content).decode(), "text"
    except UnicodeDecodeError:
        return b64encode(content).decode(), "base64"


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _text(id_: UUID | None) -> str | None:
    return None if id_ is None else str(id_)
