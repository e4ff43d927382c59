"""Brings the runs of workflows that people pause or resume into line, and lets commands of queues go that are paused no
more: sweeps, as the others."""

import asyncio
import time
from datetime import datetime
from typing import Any, Final

import psycopg

from state.pauses import align_runs, has_held, last_change, read_paused_queues, release_commands
from state.store import Store

LOOK_SECONDS: Final = 0.5
"""How soon a pause begins to be told."""
AGAIN_SECONDS: Final = 5.0
"""How often runs are looked for that came to be out of line without anybody's pause: one that is run again, one that a
racing transaction had started. It costs a walk over the open runs, and only while a workflow is paused."""

Connection = psycopg.AsyncConnection[Any]


class Pauses:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: datetime | None = None
        self._looked, self._is_busy = float("-inf"), False

    async def align(self, connection: Connection) -> int:
        """One pass, in a transaction of its own; one process makes it at a time."""
        self._is_busy = False
        changed = await last_change(connection)
        is_due = time.monotonic() - self._looked > AGAIN_SECONDS
        if changed is None or (changed == self._known and not is_due):
            return 0
        async with connection.transaction():
            cursor = await connection.execute(
                "SELECT pg_try_advisory_xact_lock(hashtextextended('headrace.sweep.pauses', 0))"
            )
            if (await cursor.fetchone() or (False,))[0] is not True:
                return 0
            told = await align_runs(connection, self._store)
        self._is_busy = told > 0
        if not told:
            self._known, self._looked = changed, time.monotonic()
        return told

    async def until_due(self) -> None:
        await asyncio.sleep(LOOK_SECONDS / 5 if self._is_busy else LOOK_SECONDS)


class QueuePauses:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def release(self, connection: Connection) -> int:
        """Learn which queues are paused, for all that this process hands out; let go what need not be kept back."""
        self._store.paused_queues = await read_paused_queues(connection)
        if not await has_held(connection):
            return 0
        async with connection.transaction():
            return await release_commands(connection, self._store)
