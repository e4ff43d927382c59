"""The ordinary connection of a streams process, beside the pipeline of the hot path: loads, leases, sessions,
triggers."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, LiteralString

import psycopg

from headrace.errors import UnavailableError
from state.pipe import OPTIONS, Overtaken

_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError)
_NOT_AWAY: Final = (psycopg.errors.ProgramLimitExceeded, psycopg.errors.StatementTooComplex)
"""Postgres is there, and will never take this value."""
_STANDBY: Final = psycopg.errors.ReadOnlySqlTransaction
"""A server that was not promoted yet: the connection must go, since it may be another's by the time it is."""


class Database:
    """One connection, made when it is needed and made again after it was lost. Not for two threads at once."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None

    @contextmanager
    def connection(self) -> Generator[psycopg.Connection[Any]]:
        """The connection, in autocommit. Turns a lost one into UnavailableError, and a refused check (HR001) into
        Overtaken."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._dsn, autocommit=True, options=OPTIONS, connect_timeout=5)
            yield self._connection
        except psycopg.Error as e:
            if e.sqlstate == "HR001" or isinstance(e, psycopg.errors.DeadlockDetected):
                raise Overtaken(str(e)) from e
            if isinstance(e, (*_AWAY, _STANDBY)) and not isinstance(e, _NOT_AWAY):
                self.close()
                raise UnavailableError(f"Postgres: {e}".strip()) from e
            raise

    @contextmanager
    def transaction(self) -> Generator[psycopg.Connection[Any]]:
        """The same, with a transaction open."""
        with self.connection() as connection, connection.transaction():
            yield connection

    def fetch(self, sql: LiteralString, parameters: tuple[Any, ...] = ()) -> list[Any]:
        with self.connection() as connection, psycopg.RawCursor(connection) as cursor:
            return cursor.execute(sql, parameters, prepare=True, binary=True).fetchall()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
