"""The sweep that starts children: at once when a run of this process has asked for one, and soon for what was asked for
elsewhere, or by a process that is gone."""

import asyncio
from contextlib import suppress
from typing import Any, Final

import psycopg

from state.children import CHILDREN_MAX, Starter, has_asked
from state.plans import Plans
from state.store import Store

LOOK_SECONDS: Final = 0.25
"""As for timers. What a start over HTTP asks for waits so long at most, as does what another process was to start."""
Connection = psycopg.AsyncConnection[Any]


class Children:
    def __init__(self, store: Store, plans: Plans) -> None:
        self._starter = Starter(store, plans)
        self._asked = asyncio.Event()

    def expect(self) -> None:
        """A run was asked for, and that is committed: look before the next pass."""
        self._asked.set()

    async def start(self, connection: Connection) -> int:
        if not await has_asked(connection):
            return 0
        async with connection.transaction():
            found = await self._starter.start(connection)
        if found == CHILDREN_MAX:
            self._asked.set()
        return found

    async def until_asked(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._asked.wait(), LOOK_SECONDS)
        self._asked.clear()
