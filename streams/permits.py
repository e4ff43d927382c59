"""The sweep that gives permits to runs that wait under the limit of their workflow: at once when a run of this process
has given one back, and soon for what ended elsewhere, or in a process that is gone."""

import asyncio
from contextlib import suppress
from typing import Any, Final

import psycopg

from state.permits import grant_permits, next_keys
from state.store import Key, Store

LOOK_SECONDS: Final = 0.5
"""How soon a limit that was raised, or a run that was resumed, is noticed. One look at an empty index each."""
KEYS_MAX: Final = 500
"""Keys that one pass looks at besides those it is told of."""
_NO_KEY: Final = Key("", "", "")
Connection = psycopg.AsyncConnection[Any]


class Permits:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._freed: set[Key] = set()
        self._last = _NO_KEY
        self._told = asyncio.Event()

    def expect(self, keys: set[Key]) -> None:
        """Permits of these were given back, or are waited for, and that is committed: look before the next pass."""
        self._freed |= keys
        self._told.set()

    async def grant(self, connection: Connection) -> int:
        """Those it is told of, and, some at each pass, all others that are waited for."""
        freed, self._freed = self._freed, set()
        found = await next_keys(connection, self._last, KEYS_MAX)
        self._last = found[-1] if len(found) == KEYS_MAX else _NO_KEY
        if not found:  # nobody waits, whatever was given back
            return 0
        async with connection.transaction():
            return await grant_permits(connection, self._store, freed.union(found))

    async def until_due(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._told.wait(), LOOK_SECONDS)
        self._told.clear()
