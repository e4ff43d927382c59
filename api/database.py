"""Connections to Postgres, and what it means when they fail.

Driver errors become `UnavailableError` here and nowhere else. That Postgres is away is logged once, that it is back
once more.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
import structlog
from psycopg import IsolationLevel
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from api.settings import ApiSettings
from headrace.errors import UnavailableError
from state.queries.rows import Connection

WAIT_SECONDS: Final = 1.5
"""For a connection: with the rest of a request it stays within the two seconds after which a caller should hear 503."""
RECONNECT_SECONDS: Final = 4.0
"""The pool doubles its pause between attempts and gives up after this; the next request makes it begin anew. So
Postgres is found again within a few seconds of its return, however long it was away.
"""
WAITING_MAX: Final = 500
"""Requests that may wait for a connection of one kind; more are refused at once."""
_SESSION: Final = """
    SELECT set_config('application_name', 'headrace-api', false), set_config('timezone', 'UTC', false),
           set_config('statement_timeout', '5s', false), set_config('lock_timeout', '2s', false),
           set_config('idle_in_transaction_session_timeout', '10s', false)
"""
_AWAY: Final = ("08", "57P", "53300")
"""SQLSTATEs of a server that cannot be reached, is stopping or starting, or has no connection left."""
_FULL: Final = "53100"
"""Of a server that has no room on its disk: reading goes on, and writing will once somebody makes room."""
_STANDBY: Final = "25006"
"""Of a server that follows another one, and takes writes once it is promoted."""
_BUSY: Final = ("40", "53", "55P03", "57014", "25P03", "HR001")
"""Of a transaction that another try may get through: conflicts, limits and time-outs, a lost compare-and-set."""

_log = structlog.get_logger("api.database")


class Database:
    """Two pools of connections: a write waits for other writes and never for reads, however slow and many those are.
    `open` does not wait for Postgres: a process that starts without it answers 503 until it is there.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self.is_away = False
        self._errors = 0
        self._reads = _pool("reads", settings.postgres, settings.api_pool_size)
        self._writes = _pool("writes", settings.postgres, settings.api_write_pool_size)

    async def open(self) -> None:
        for pool in (self._reads, self._writes):
            await pool.open(wait=False)

    async def close(self) -> None:
        await asyncio.gather(self._reads.close(timeout=2), self._writes.close(timeout=2))

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[Connection]:
        """One snapshot: all statements inside see the same instant."""
        async with self.connection() as connection:
            await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
            await connection.set_read_only(True)
            async with connection.transaction():
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[Connection]:
        """One transaction, committed when the block ends. A statement that waited for another transaction sees what
        that one did.
        """
        async with self._borrow(self._writes) as connection:
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
            await connection.set_read_only(None)  # asking for what is the default would be refused by a standby
            async with connection.transaction():
                yield connection

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """A connection in autocommit that only reads, for one statement, or for a function that opens its own
        transaction.

        Raises UnavailableError for what another try may get through, also when it is the block that raised.
        """
        async with self._borrow(self._reads) as connection:
            yield connection

    @asynccontextmanager
    async def _borrow(self, pool: AsyncConnectionPool[Connection]) -> AsyncGenerator[Connection]:
        try:
            async with pool.connection() as connection:
                self._note_back()
                yield connection
        except psycopg.Error as error:
            unavailable = self._translate(error)
            if unavailable is None:
                raise
            raise unavailable from error

    def _translate(self, error: psycopg.Error) -> UnavailableError | None:
        state = error.sqlstate
        if isinstance(error, PoolTimeout):
            if self._cannot_connect():
                return self._note_away(error)
            return UnavailableError("all connections to the database for this are busy")
        if state is None:
            lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            return self._note_away(error) if lost else None
        if state.startswith(_AWAY):
            return self._note_away(error)
        if state == _FULL:
            return UnavailableError("the disk of the database is full")
        if state == _STANDBY:
            return UnavailableError("the database is a standby that takes no writes yet")
        if state.startswith(_BUSY):
            return UnavailableError("the database is busy with conflicting work")
        if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
            return UnavailableError("the database lacks this version's schema; run `python -m state.migrate`")
        return None

    def _cannot_connect(self) -> bool:
        """Whether a pool failed to connect since this was asked last; otherwise its connections are merely all in
        use.
        """
        errors = self._count_errors()
        has_failed, self._errors = errors > self._errors, errors
        return has_failed or self.is_away

    def _count_errors(self) -> int:
        return sum(pool.get_stats().get("connections_errors", 0) for pool in (self._reads, self._writes))

    def _note_away(self, error: psycopg.Error) -> UnavailableError:
        if not self.is_away:
            self.is_away = True
            _log.warning("postgres is away", error=str(error).strip())
        return UnavailableError("the database cannot be reached")

    def _note_back(self) -> None:
        if self.is_away:
            self.is_away = False
            self._errors = self._count_errors()
            _log.warning("postgres is back")


def _pool(name: str, dsn: str, size: int) -> AsyncConnectionPool[Connection]:
    return AsyncConnectionPool(
        dsn,
        name=name,
        min_size=1,
        max_size=size,
        timeout=WAIT_SECONDS,
        max_waiting=WAITING_MAX,
        reconnect_timeout=RECONNECT_SECONDS,
        kwargs={"autocommit": True, "connect_timeout": 2},
        configure=_configure,
        check=AsyncConnectionPool.check_connection,
        open=False,
    )


async def _configure(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(_SESSION)
