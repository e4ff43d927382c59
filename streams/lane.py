"""A connection to Postgres that several sweeps share: each waits until the one before it is through."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg

Connection = psycopg.AsyncConnection[Any]

OPTIONS: Final = "-c statement_timeout=30s -c lock_timeout=3s -c idle_in_transaction_session_timeout=10s -c jit=off"


class Lane:
    def __init__(self, postgres: str) -> None:
        """postgres: a connection string."""
        self._postgres, self._lock = postgres, asyncio.Lock()
        self._connection: Connection | None = None

    @asynccontextmanager
    async def enter(self) -> AsyncGenerator[Connection, None]:
        """The connection, made when it is first needed. Whatever is raised in here costs it, and the next one to enter
        has a new one. Raises what psycopg does when there is none to be had."""
        async with self._lock:
            if self._connection is None:
                self._connection = await psycopg.AsyncConnection.connect(
                    self._postgres, autocommit=True, options=OPTIONS, connect_timeout=5
                )
            try:
                yield self._connection
            except BaseException:
                await self._drop()
                raise

    async def close(self) -> None:
        """Unless somebody is in it, who goes on."""
        if not self._lock.locked():
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
