"""Children: start the runs that tasks of other runs have asked for.

What was asked for is a row of `child_run`, made in the transaction that decided it. Here it becomes a run, or is
refused, in one transaction for many; what the task has to know of that is left in the inbox of its run. How a child
ends is told by the transaction that ends it (`end_children`), and not here.
"""

import asyncio
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import psycopg
import structlog
from uuid_utils.compat import uuid7

from headrace.errors import NotFoundError, PayloadError, UnreadableError
from headrace.input_schema import InputSchema
from headrace.machine import Plan
from headrace.machine.child import refuse_input
from headrace.machine.limit import Line
from headrace.machine.reason import DEPTH_MAX, LIMIT_REACHED, TOO_DEEP
from headrace.messages import Error, Requested, encode
from state.outbox import Record, emit
from state.pauses import find_pauses
from state.permits import Asked as Permitted
from state.permits import asked as asked_of
from state.permits import lock_lines
from state.plans import Plans
from state.queries.rows import Connection
from state.sql import load
from state.starts import Start, admit, begin_run, why_rejected
from state.store import BegunPaused, Rows, Store, execute
from state.workflows import get_input_schema

_log = structlog.get_logger(__name__)
_SQL, _RUN = load("child_run"), load("run")
CHILDREN_MAX: Final = 500
"""Runs that one transaction starts: some milliseconds each, and as long as that a cancel of one of them waits."""
TRY_AGAIN_SECONDS: Final = 5.0
"""After this, one is looked at again that this process cannot start: a newer release has published its workflow."""
_INLINE_BYTES_MAX: Final = 16_384
"""A larger input is checked in a thread, so that the agents beside go on."""


class Asked(NamedTuple):
    """A run that was asked for."""

    parent: UUID
    task: int
    token: int
    run_id: UUID
    namespace: str
    workflow: str
    version: int | None
    input: str
    traceparent: str | None
    is_awaited: bool
    depth: int
    started_by: str | None
    """Who started the parent: they have asked for this run, too, and may not approve in it what they may not there."""


class _Starting(NamedTuple):
    """A run that nothing stands in the way of but the limit of its workflow."""

    asked: Asked
    start: Start
    permit: Permitted | None


async def has_asked(connection: Connection) -> bool:
    """Whether any run is asked for that has not started."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_SQL.text("has_asked_children"))
        return bool((await cursor.fetchall())[0][0])


class Starter:
    """Starts children; keeps the schemas of their workflows, which never change."""

    def __init__(self, store: Store, plans: Plans) -> None:
        self._store, self._plans = store, plans
        self._schemas: dict[int, InputSchema | None] = {}

    async def start(self, connection: Connection) -> int:
        """Start or refuse what was asked for, in the caller's open transaction; answers how many were looked at. Safe
        to repeat, and for any number of processes at once: what one has, another leaves alone."""
        async with psycopg.AsyncRawCursor(connection) as cursor:
            await cursor.execute(_SQL.text("claim_asked_children"), (TRY_AGAIN_SECONDS, CHILDREN_MAX))
            asked = [Asked(*row) for row in await cursor.fetchall()]
            if not asked:
                return 0
            await cursor.execute(_RUN.text("read_clock"), ())
            at = (await cursor.fetchall())[0][0]
        rows, latest = Rows(self._store), dict[tuple[str, str, int | None], Plan]()
        paused = await find_pauses(connection, {(one.namespace, one.workflow) for one in asked})
        settled: dict[UUID, Error | None] = {}
        starting: list[_Starting] = []
        for one in asked:
            try:
                found = await self._prepare(connection, one, latest)
            except UnreadableError as error:
                _log.warning("a child waits for a newer release", run_id=str(one.run_id), why=error.message)
                continue
            if isinstance(found, Error):
                settled[one.run_id] = found
            else:
                starting.append(found)
        lines = await lock_lines(connection, [one.permit for one in starting if one.permit is not None])
        for ready in starting:
            line = None if ready.permit is None else lines[ready.permit[0]]
            pause = paused.get((ready.asked.namespace, ready.asked.workflow))
            settled[ready.asked.run_id] = self._begin(ready, line, rows, at, pause)
        await self._settle(connection, settled)
        await execute(connection, rows.calls())
        await self._tell(connection, [one for one in asked if one.run_id in settled], settled)
        return len(asked)

    async def _prepare(
        self, connection: Connection, asked: Asked, latest: dict[tuple[str, str, int | None], Plan]
    ) -> "_Starting | Error":
        """What is to start; or why there is nothing. latest: what was found for those before. Raises
        UnreadableError."""
        if asked.depth > DEPTH_MAX:
            return TOO_DEEP
        which = (asked.namespace, asked.workflow, asked.version)
        try:
            plan = latest.get(which) or await self._plans.latest(connection, *which)
        except NotFoundError as error:
            return Error("CHILD_NOT_FOUND", error.message, retryable=False)
        latest[which] = plan
        if (why := await self._check(connection, plan, asked.input.encode())) is not None:
            return why
        parent = str(asked.parent)
        start = Start(
            plan, asked.input.encode(), run_id=str(asked.run_id), traceparent=asked.traceparent, source="child",
            actor=asked.started_by or "",
            detail={"parent": parent, "task": asked.task, "token": asked.token},
            parent=parent.encode() if asked.is_awaited else None,
        )  # fmt: skip
        try:
            return _Starting(asked, start, asked_of(asked.namespace, plan, start.input))
        except PayloadError as error:
            return Error(error.reason, error.message, retryable=False)

    def _begin(
        self, ready: "_Starting", line: Line | None, rows: Rows, at: int, pause: BegunPaused | None
    ) -> Error | None:
        """Add a run to the rows; or why there is none. A limit that rejects, or drops, fails the task: another run is
        no child of it. pause: of its workflow."""
        asked, permit = ready.asked, None
        if ready.permit is not None and line is not None:
            permit, verdict = admit(ready.start, ready.permit, line)
            if permit is None:
                why = why_rejected(asked.workflow, ready.permit[0].key, verdict.holder)
                return Error(LIMIT_REACHED, why, retryable=False)
        try:
            begin_run(rows, ready.start, asked.namespace, at, pause, permit=permit)
        except Exception as bug:  # concerns this child alone: nothing of it is in the rows yet
            _log.exception("a child could not be started", run_id=str(asked.run_id))
            return Error("INTERNAL", f"deciding its first step raised {bug!r}", retryable=False)
        return None

    async def _check(self, connection: Connection, plan: Plan, given: bytes) -> Error | None:
        if plan.version_id not in self._schemas:
            text = await get_input_schema(connection, plan.version_id)
            declared = None if text is None else msgspec.json.decode(text)
            self._schemas[plan.version_id] = None if declared is None else InputSchema(declared)
        schema = self._schemas[plan.version_id]
        if schema is None:
            return None
        data = msgspec.json.decode(given)
        is_small = len(given) <= _INLINE_BYTES_MAX
        faults = schema.check(data) if is_small else await asyncio.to_thread(schema.check, data)
        return refuse_input(plan.name, faults) if faults else None

    async def _settle(self, connection: Connection, settled: dict[UUID, Error | None]) -> None:
        statuses = ["started" if why is None else "refused" for why in settled.values()]
        errors = [None if why is None else encode(why).decode() for why in settled.values()]
        async with psycopg.AsyncRawCursor(connection) as cursor:
            await cursor.execute(_SQL.text("settle_children"), (list(settled), statuses, errors))

    async def _tell(self, connection: Connection, asked: list[Asked], settled: dict[UUID, Error | None]) -> None:
        """Of one that has started only a task wants to know that waits for no more."""
        told = [one for one in asked if settled[one.run_id] is not None or not one.is_awaited]
        if not told:
            return
        ids = [uuid7() for _ in told]
        bodies = [_body(one, settled[one.run_id]) for one in told]
        async with psycopg.AsyncRawCursor(connection) as cursor:
            await cursor.execute(_SQL.text("tell_parents"), (ids, [one.parent for one in told], bodies))
        topic = self._store.settings.events_topic
        records = [
            Record(topic, str(one.parent).encode(), encode(Requested(str(inbox_id))))
            for inbox_id, one in zip(ids, told, strict=True)
        ]
        await emit(connection, records, self._store.mode)


def _body(asked: Asked, why: Error | None) -> str:
    outcome = "started" if why is None else "refused"
    body = {"task": asked.task, "token": asked.token, "child": str(asked.run_id), "outcome": outcome, "error": why}
    return msgspec.json.encode(body).decode()
