"""Server-sent events: how one run, or all of them, move.

Postgres is polled: a NOTIFY in the hot transactions would make their commits wait for each other. A message says what
changed; payloads are read by the ordinary routes.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import groupby
from typing import Final
from uuid import UUID

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from api.answers import encode
from api.errors import RETRY_AFTER_SECONDS, Refusal
from api.feed import Gap, Here, summary
from api.identity import parse_id
from api.openapi import stream
from api.pinned import full_counts
from api.runs import find_run, history_item
from api.wiring import Wired, Wiring
from headrace.errors import UnavailableError
from headrace.machine import RunStatus
from headrace.machine.status import RUN_TERMINAL
from state.queries.rows import Connection
from state.queries.run import PositionRow, count_tasks, list_history_between, read_position

LOOK_SECONDS: Final = 0.25
HEARTBEAT_SECONDS: Final = 15.0
"""Proxies close what is silent for a minute."""
ID_MAX: Final = 2**63 - 1
KNOWN_SECONDS: Final = 5.0
"""A stream outlives the token that opened it by this much, beside what the gate remembers."""
VERSIONS_MAX: Final = 200
"""Steps of history read at once."""
_HEARTBEAT: Final = b": alive\n\n"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

router = APIRouter(tags=["events"])


@router.get("/runs/{run_id}/events", responses=stream(404, 429))
async def of_run(run_id: str, request: Request, wired: Wired) -> Response:
    """Follow one run: `history` events from its beginning or behind `Last-Event-ID`, each batch followed by a `run`
    event.

    Ends behind the `run` event of a terminal status.
    """
    check_room(wired)
    async with wired.database.connection() as connection:
        id_ = (await find_run(wired, connection, parse_id(run_id, "run"))).run_id
    return event_stream(wired, request, _follow(wired, id_, last_event_id(request)))


@router.get("/events", responses=stream(429))
async def of_all(request: Request, wired: Wired) -> Response:
    """Follow all runs: a `run` event for each change from now on, or behind `Last-Event-ID`. `gap`: changes were
    dropped, or what came behind that id is not known any more; read again.
    """
    check_room(wired)
    return event_stream(wired, request, _follow_all(wired, request.headers.get("last-event-id", "")))


def check_room(wiring: Wiring) -> None:
    if wiring.streams_open >= wiring.settings.api_streams_max:
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        raise Refusal(
            429, "as many streams are open as this process allows", code=UnavailableError.code, headers=headers
        )


def last_event_id(request: Request) -> int:
    text = request.headers.get("last-event-id", "")
    return min(int(text), ID_MAX) if text.isascii() and text.isdigit() and len(text) <= 19 else 0


def event_stream(wiring: Wiring, request: Request, events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(_counted(wiring, request, events), media_type="text/event-stream", headers=_HEADERS)


async def _counted(wiring: Wiring, request: Request, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass events on while the process is not about to stop and its caller is known; a heartbeat when there was none
    for a while.
    """
    wiring.streams_open += 1
    wiring.metrics.streams.inc()
    said_at = known_at = time.monotonic()
    try:
        yield b"retry: 1000\n\n"
        async with aclosing(events) as source:  # type: ignore[type-var]  # they are generators
            async for event in source:
                if wiring.is_draining:
                    return
                if time.monotonic() - known_at >= KNOWN_SECONDS:
                    if not await wiring.gate.is_still_known(request):
                        return
                    known_at = time.monotonic()
                if not event and time.monotonic() - said_at < HEARTBEAT_SECONDS:
                    continue
                said_at = time.monotonic()
                yield event or _HEARTBEAT
    finally:
        wiring.streams_open -= 1
        wiring.metrics.streams.dec()


def message(event: str, content: msgspec.Struct, id_: int | str | None = None) -> bytes:
    """One event. Line breaks in user data stand between JSON's tokens, where a blank says the same."""
    data = encode(content).replace(b"\r", b" ").replace(b"\n", b" ")
    identity = b"" if id_ is None else f"id: {id_}\n".encode()
    return b"event: %b\n%bdata: %b\n\n" % (event.encode(), identity, data)


async def _follow(wiring: Wiring, run_id: UUID, after: int) -> AsyncIterator[bytes]:
    """Events of one run; empty bytes where there is nothing to say."""
    is_first = True
    while True:
        try:
            async with wiring.database.connection() as connection:
                position = await read_position(connection, wiring.namespace, run_id)
            if position is None:
                return
            if is_first or position.row_version > after:
                async with wiring.database.reading() as connection:
                    position, messages = await _news(wiring, connection, position, after)
                for content in messages:
                    yield content
                is_first, after = False, max(after, min(position.row_version, after + VERSIONS_MAX))
                if position.row_version > after:
                    continue
        except UnavailableError:
            position = None  # said by the database; the next look finds what happened meanwhile
        if position is not None and RunStatus(position.status) in RUN_TERMINAL:
            return
        yield b""
        await asyncio.sleep(LOOK_SECONDS)


async def _news(
    wiring: Wiring, connection: Connection, seen: PositionRow, after: int
) -> tuple[PositionRow, list[bytes]]:
    """What happened behind a row_version, in part when it is much, and the position that belongs to it."""
    position = await read_position(connection, wiring.namespace, seen.run_id) or seen
    upto = min(position.row_version, after + VERSIONS_MAX)
    return position, await _messages(wiring, connection, position, after, upto)


async def _messages(
    wiring: Wiring, connection: Connection, position: PositionRow, after: int, upto: int
) -> list[bytes]:
    """History up to a row_version, and the run as it is when that is all there is. An id stands on the last of its
    row_version.
    """
    plan = await wiring.plan(connection, position.version_id)
    rows = await list_history_between(connection, position.run_id, after=after, upto=upto)
    messages = []
    for row_version, group in groupby(rows, key=lambda row: row.row_version):
        *others, last = group
        messages += [message("history", history_item(plan, row)) for row in others]
        messages.append(message("history", history_item(plan, last), row_version))
    if upto >= position.row_version or after >= position.row_version:
        counted = {row.status: row.tasks for row in await count_tasks(connection, [position.run_id])}
        messages.append(message("run", summary(position, full_counts(plan, counted)), position.row_version))
    return messages


async def _follow_all(wiring: Wiring, after: str) -> AsyncIterator[bytes]:
    async with aclosing(wiring.feed.listen(after)) as looks:
        async for heard in looks:
            match heard:
                case None:
                    yield b""
                case Here(id=id_):  # no event: only where a reader that is cut off before the first one goes on
                    yield f"id: {id_}\n\n".encode()
                case Gap(id=id_):
                    yield f"event: gap\nid: {id_}\ndata: {{}}\n\n".encode()
                case changes:  # in one piece: a write for each would cost more than finding them
                    yield b"".join(message("run", change.run, change.id) for change in changes)
