"""Retention: what ended long ago leaves, a slice at a time.

A slice is one short transaction that deletes by key, so nobody waits for a table, and an open run is never touched
(decision 0010). A pass walks from the oldest run to those that are too young, slice by slice, with pauses between them;
whoever dies in the middle has removed whole runs only, and the next pass begins at the oldest again.
"""

import asyncio
import time
from typing import Any, Final
from uuid import UUID

import psycopg

from state.sql import load

_SQL = load("retention")

PASS_SECONDS: Final = 300.0
SLICE_RUNS: Final = 500
"""Looked at in one slice: also those that stay cost a look."""
SLICE_MOVES: Final = 2_000
"""Events of the runs in one slice, each with about two rows: some 20 ms. A run with more of them goes alone."""
PAUSE_SHARE: Final = 4.0
"""Pauses are so many times as long as the slice before: a fifth of one connection's time. In that it removes 14,000 to
22,000 steps a second when nothing else runs (decision 0010), and fewer, by itself, when the machine is busy."""
EVENTS_MAX: Final = 5_000
"""Fates of records in one slice."""
_BEGINNING: Final = UUID(int=0)

Connection = psycopg.AsyncConnection[Any]


class Retention:
    def __init__(self, days: float) -> None:
        """days: how long a run is kept after its end; 0: for ever. Answers, sessions and requests have times of their
        own."""
        self._seconds = days * 86_400.0
        self._after = _BEGINNING
        self._has_more = False
        self._took = 0.0

    async def purge(self, connection: Connection) -> int:
        """One slice; answers how many runs it removed."""
        began = time.monotonic()
        if not self._has_more:
            await self._purge_requests(connection)
        removed = 0
        if self._seconds:
            events = await _run(connection, "purge_trigger_events", self._seconds, EVENTS_MAX)
            removed = await self._purge_runs(connection)
            self._has_more = self._after != _BEGINNING or events.rowcount == EVENTS_MAX
        self._took = time.monotonic() - began
        return removed

    async def until_due(self) -> None:
        """Wait until the next slice, or, behind the last one, the next pass."""
        await asyncio.sleep(self._took * PAUSE_SHARE if self._has_more else PASS_SECONDS)

    async def _purge_requests(self, connection: Connection) -> None:
        for statement in ("purge_answers", "purge_sessions", "purge_posted_signals", "purge_inbox"):
            await _run(connection, statement)

    async def _purge_runs(self, connection: Connection) -> int:
        async with connection.transaction():
            is_first, *_ = (await (await _run(connection, "begin_slice")).fetchall())[0]
            if not is_first:
                self._after = _BEGINNING
                return 0
            slice_of = (self._after, self._seconds, SLICE_RUNS, SLICE_MOVES)
            removed, upto = (await (await _run(connection, "purge_runs", *slice_of)).fetchall())[0]
        self._after = upto or _BEGINNING
        return int(removed)


async def _run(connection: Connection, name: str, *parameters: Any) -> "psycopg.AsyncRawCursor[Any]":
    return await psycopg.AsyncRawCursor(connection).execute(_SQL.text(name), parameters)
