"""Large results leave the object store some time after their runs have left the database.

What is removed is decided by the database alone: objects of a run that retention has removed. A run that is unknown and
younger than the last removed one is left alone, whatever that means, so a database that is empty, or the wrong one,
removes nothing.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import psycopg

from headrace.object_store import ObjectStore
from state.sql import load

_SQL = load("retention")
PASS_SECONDS: Final = 3600.0
PAGE_PAUSE_SECONDS: Final = 0.1

Connection = psycopg.AsyncConnection[Any]
Page = dict[str, list[str]]
"""Run id -> paths of its objects."""


class Objects:
    """A pass over all objects, a page at a time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pages: Iterator[Page] | None = None

    async def purge(self, connection: Connection) -> int:
        """One page; answers how many objects it removed. Raises UnavailableError."""
        pages = self._pages = self._pages or self._store.pages()
        try:
            page = await asyncio.to_thread(next, pages, None)
        except BaseException:
            self._pages = None
            raise
        if page is None:
            self._pages = None
            return 0
        runs = [UUID(run_id) for run_id in page if _is_uuid(run_id)]
        cursor = psycopg.AsyncRawCursor(connection)
        await cursor.execute(_SQL.text("find_removed_runs"), (runs,))
        paths = [path for (run_id,) in await cursor.fetchall() for path in page[str(run_id)]]
        if paths:
            await asyncio.to_thread(self._store.remove, paths)
        return len(paths)

    async def until_due(self) -> None:
        await asyncio.sleep(PASS_SECONDS if self._pages is None else PAGE_PAUSE_SECONDS)


def _is_uuid(text: str) -> bool:
    """Whether it is a run id in its one spelling; a bucket may hold anything."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
