"""Run one named statement and give its rows a type."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, LiteralString, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import args_row
from psycopg.sql import Composed

Connection = psycopg.AsyncConnection[Any]
"""Any asynchronous connection; a statement that only reads needs no transaction of the caller's."""

ID_MAX: Final = UUID(int=2**128 - 1)
"""Above every id there is: where a list in falling order begins."""
AT_MAX: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""After every instant there is."""
PAGE_BYTES: Final = 8 * 1024 * 1024
"""Stored bytes of user data on one page, some compressed: a page of 200 large payloads would fill the memory of both
ends.
"""
UNBOUNDED: Final = 2**62
"""For a statement that can be cut by bytes, when it must not be."""

_Row = TypeVar("_Row")


async def fetch(
    connection: Connection, row: Callable[..., _Row], statement: LiteralString, **parameters: Any
) -> list[_Row]:
    """All rows, each made by calling `row` with its columns."""
    async with connection.cursor(row_factory=args_row(row)) as cursor:
        await cursor.execute(statement, parameters)
        return await cursor.fetchall()


async def fetch_filtered(
    connection: Connection, row: Callable[..., _Row], statement: LiteralString | Composed, **parameters: Any
) -> list[_Row]:
    """The same, for a statement whose best plan depends on which filters are given. It is planned each time: as a
    prepared one it would get, from its eleventh execution on, one plan for all, which walks what an index skips."""
    async with connection.cursor(row_factory=args_row(row)) as cursor:
        await cursor.execute(statement, parameters, prepare=False)
        return await cursor.fetchall()


async def fetch_one(
    connection: Connection, row: Callable[..., _Row], statement: LiteralString, **parameters: Any
) -> _Row | None:
    """The only row, or None."""
    async with connection.cursor(row_factory=args_row(row)) as cursor:
        await cursor.execute(statement, parameters)
        return await cursor.fetchone()
