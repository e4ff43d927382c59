"""What the bodies of a run logged: by page, and followed live."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import raw, reply
from api.errors import faulty
from api.identity import parse_id
from api.openapi import answers, stream
from api.runs import find_run
from api.schemas.log import LogLine, LogPage
from api.stream import check_room, event_stream, last_event_id, message
from api.wiring import Wired, Wiring
from headrace.errors import UnavailableError
from headrace.machine import Plan, RunStatus
from headrace.machine.status import RUN_TERMINAL
from state.queries.log_line import LAST, LogFilter, LogLineRow, list_log_lines, read_last_log_lines
from state.queries.run import read_position

LIMIT_MAX: Final = 1_000
LOOK_SECONDS: Final = 0.5
STRAGGLERS_LOOKS: Final = 4
"""So many looks go on after a run has ended: a worker sends its last lines a moment after its result."""
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

Level = Literal["debug", "info", "warning", "error"]
OfTask = Annotated[str | None, Query(max_length=200, description="Name of a task, or of an item: `pages.17`")]
OfAttempt = Annotated[int | None, Query(ge=0, le=2**31 - 1)]
FromLevel = Annotated[Level, Query(description="And above")]
Text = Annotated[str | None, Query(max_length=200, description="Somewhere in the message or fields, in any case")]
Behind = Annotated[int, Query(ge=0, le=2**63 - 1, description="Only lines behind this `line_id`")]

router = APIRouter(tags=["logs"])


@router.get("/runs/{run_id}/logs", responses=answers({200: LogPage}, 404))
async def of_run(
    run_id: str,
    wired: Wired,
    task: OfTask = None,
    attempt: OfAttempt = None,
    level: FromLevel = "debug",
    q: Text = None,
    after: Behind = 0,
    tail: bool = False,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 200,
) -> Response:
    """What bodies logged, by `ctx.log` or the standard library's `logging`, in the order in which it came.

    Behind `after`; with `tail`, the last lines. `last` of the answer is the `after` of the next page.
    """
    async with wired.database.reading() as connection:
        run = await find_run(wired, connection, parse_id(run_id, "run"))
        plan = await wired.plan(connection, run.version_id)
        wanted = _wanted(plan, task, attempt, level, q)
        if tail:
            rows = await read_last_log_lines(connection, run.run_id, wanted, before=LAST, limit=limit)
        else:
            rows = await list_log_lines(connection, run.run_id, wanted, after=after, limit=limit)
    return reply(LogPage([_line(plan, row) for row in rows], rows[-1].line_id if rows else after))


@router.get("/runs/{run_id}/logs/events", responses=stream(404, 429))
async def follow(
    run_id: str,
    request: Request,
    wired: Wired,
    task: OfTask = None,
    attempt: OfAttempt = None,
    level: FromLevel = "debug",
    q: Text = None,
    after: Behind = 0,
) -> Response:
    """Follow what bodies log: `line` events from the run's beginning, behind `after`, or behind `Last-Event-ID`.

    Ends a moment after the run has.
    """
    check_room(wired)
    async with wired.database.connection() as connection:
        run = await find_run(wired, connection, parse_id(run_id, "run"))
        plan = await wired.plan(connection, run.version_id)
    wanted = _wanted(plan, task, attempt, level, q)
    return event_stream(wired, request, _follow(wired, run.run_id, plan, wanted, max(after, last_event_id(request))))


async def _follow(wiring: Wiring, run_id: UUID, plan: Plan, wanted: LogFilter, after: int) -> AsyncIterator[bytes]:
    looks_left = STRAGGLERS_LOOKS
    while looks_left:
        rows: list[LogLineRow] = []
        try:
            async with wiring.database.reading() as connection:
                position = await read_position(connection, wiring.namespace, run_id)
                rows = await list_log_lines(connection, run_id, wanted, after=after, limit=LIMIT_MAX)
            if position is None:
                return
            if RunStatus(position.status) in RUN_TERMINAL and not rows:
                looks_left -= 1
        except UnavailableError:
            pass  # said by the database; the next look finds what came meanwhile
        for row in rows:
            after = row.line_id
            yield message("line", _line(plan, row), row.line_id)
        if len(rows) < LIMIT_MAX:
            yield b""
            await asyncio.sleep(LOOK_SECONDS)


def _wanted(plan: Plan, task: str | None, attempt: int | None, level: Level, text: str | None) -> LogFilter:
    place = None if task is None else plan.find(task)
    if task is not None and place is None:
        raise faulty("task", f"the workflow has no task {task!r}")
    if text is not None and "\0" in text:
        raise faulty("q", "no log has a U+0000")
    return LogFilter(place, attempt, LEVELS[level], text or None)


def _line(plan: Plan, row: LogLineRow) -> LogLine:
    return LogLine(
        row.line_id,
        row.at,
        plan.name_of(row.task),
        row.attempt,
        row.token,
        _level(row.level),
        row.worker,
        row.logger,
        row.message,
        None if row.fields is None else raw(row.fields),
    )


def _level(number: int) -> Literal["debug", "info", "warning", "error"]:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
