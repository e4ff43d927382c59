"""The session agent: heartbeats in, leases out.

One message per worker and interval says all that worker holds. A batch renews its sessions in one statement, replaces
what they list, and answers each on the control topic: "renewed until" counts, for the worker, from when it *sent* the
heartbeat. A session that a sweep gave up is not renewed again: its worker hears no answer, fences itself, and opens
another session.

A tick shows how far this agent has come: every heartbeat published before it was read. So a session is judged by what
was in the log, never by this agent's own delay.
"""

from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg
from confluent_kafka import Message

from headrace import payload
from headrace.errors import MessageError, PayloadError
from headrace.messages import Heartbeat, Renewed, Tick, decode_worker_message
from state.sql import load
from state.store import Rows, Store, execute_sync
from streams.batch import Batch
from streams.database import Database
from streams.metrics import Metrics
from streams.ownership import Ownership
from streams.side_agent import apply, set_aside

_SQL = load("session")
SESSIONS: Final = "sessions"
"""The watermark of this agent."""
INSTANT_MAX: Final = 2**53
"""Microseconds since 1970: some year in the third millennium."""


class SessionAgent:
    """The body of the workers topic."""

    def __init__(self, store: Store, ownership: Ownership, database: Database, metrics: Metrics) -> None:
        self._store, self._ownership, self._database, self._metrics = store, ownership, database, metrics

    async def __call__(self, batch: Batch) -> None:
        """Apply a batch, however often it takes. Returns when it is committed or no longer ours."""
        await apply(batch, self._ownership, self._apply, "heartbeats")

    def _apply(self, batch: Batch) -> None:
        records, moves = self._ownership.take(batch)
        if not moves:
            return
        rows = Rows(self._store)
        self._ownership.fence(rows, moves)
        beats, tick = self._read(records, rows)
        with self._database.transaction() as connection:
            renewed = self._renew(connection, list(beats.values())) if beats else set[UUID]()
            for beat in beats.values():
                if UUID(beat.session) in renewed:
                    answer = Renewed(beat.session, beat.seq, self._store.settings.lease_seconds)
                    rows.control(beat.session.encode(), answer)
            if tick:
                _run(connection, "raise_watermark", (SESSIONS, tick))
            execute_sync(connection, rows.calls())
        self._ownership.moved(moves)

    def _read(self, records: list[Message], rows: Rows) -> tuple[dict[str, Heartbeat], int]:
        """The newest heartbeat of each session, and the newest tick (0: none)."""
        beats: dict[str, Heartbeat] = {}
        tick = 0
        for record in records:
            try:
                message = decode_worker_message(record.value())
                if isinstance(message, Tick):
                    if not 0 <= message.at < INSTANT_MAX:
                        raise ValueError("a tick outside of all calendars")
                    tick = max(tick, message.at)
                elif (known := beats.get(str(UUID(message.session)))) is None or known.seq < message.seq:
                    beats[str(UUID(message.session))] = _checked(message)
            except (MessageError, PayloadError, ValueError) as e:
                set_aside(rows, record, self._store.settings.namespace, str(e))
                self._metrics.set_aside.inc()
        return beats, tick

    def _renew(self, connection: psycopg.Connection[Any], beats: list[Heartbeat]) -> set[UUID]:
        """Renew the sessions that may be, with what they list; answers which those are."""
        rows = _run(
            connection,
            "renew_sessions",
            (
                [UUID(b.session) for b in beats],
                [b.worker for b in beats],
                [msgspec.json.encode(b.queues).decode() for b in beats],
                [b.slots for b in beats],
                [0 if b.ended else len(b.held) for b in beats],
                [b.library for b in beats],
                [b.seq for b in beats],
                [b.draining for b in beats],
                [b.ended for b in beats],
                self._store.settings.lease_seconds,
            ),
        ).fetchall()
        renewed: set[UUID] = {session for (session,) in rows}  # not text: a UUID has several spellings
        listed = [
            (UUID(run), task, token, UUID(b.session))
            for b in beats
            if UUID(b.session) in renewed
            for run, task, token in b.held
        ]
        columns = [list(column) for column in zip(*listed, strict=True)] or [[], [], [], []]
        _run(connection, "drop_held", (list(renewed), *columns))
        if listed:
            said = {(run, task, token): bytes(raw).decode() for b in beats for run, task, token, raw in b.details}
            details = [said.get((str(run), task, token)) for run, task, token, _ in listed]
            _run(connection, "list_held", (*columns, details))
        return renewed


def _run(connection: psycopg.Connection[Any], name: str, parameters: tuple[Any, ...]) -> "psycopg.RawCursor[Any]":
    return psycopg.RawCursor(connection).execute(_SQL.text(name), parameters)


def _checked(beat: Heartbeat) -> Heartbeat:
    """Refuse what Postgres would: one bad heartbeat must not stop the others. Raises ValueError."""
    if not (0 <= beat.slots < 2**31 and 0 <= beat.seq < 2**63):
        raise ValueError(f"numbers that no row can hold: {beat.slots} slots, heartbeat {beat.seq}")
    held: dict[tuple[str, int, int], None] = {}
    for run, task, token in beat.held:
        if not (0 <= task < 2**31 and 0 <= token < 2**31):
            raise ValueError(f"holds task {task} under token {token} of {run}")
        held[str(UUID(run)), task, token] = None
    for _, _, _, detail in beat.details:
        payload.check(bytes(detail))
    if "\0" in beat.worker + beat.library + "".join(beat.queues):
        raise ValueError("a name in the heartbeat holds U+0000")
    beat.held = list(held)
    return beat
