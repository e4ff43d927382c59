"""The connection of the hot path: a batch of prepared statements as one write and one implicit transaction.

libpq's pipeline mode sends everything up to a Sync at once; Postgres runs it as one transaction that commits at the
Sync, and a failing statement undoes all of it. So a batch costs one round trip, and what it expects is checked inside
SQL (`must`).
"""

import select
from collections.abc import Iterable, Sequence
from typing import Final

import psycopg
from psycopg import pq

from headrace.errors import UnavailableError
from state.binary import TYPES
from state.sql import Statement
from state.timeline import Timeline, read_timeline

Call = tuple[str, Sequence[bytes]]
"""(statement, its parameters in binary)"""

OPTIONS: Final = (
    # Plans are pinned: a few hundred rows from unnest, looked up by primary key, whatever the statistics say today.
    # Without this a
    # statement once went from 18 to 96 µs per step when its plan flipped.
    "-c plan_cache_mode=force_generic_plan -c jit=off "
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off "
    # A frozen process must not hold the ownership rows and block its successor.
    "-c lock_timeout=3s -c idle_in_transaction_session_timeout=5s -c statement_timeout=10s"
)
_TIMEOUT: Final = 15.0
"""Seconds without a byte from Postgres before the connection counts as gone; above statement_timeout."""


class Overtaken(Exception):
    """The batch met a row that is not as it was read: another owner, or another writer. Forget memory, read, decide
    again."""


class Refused(Exception):
    """Postgres refused a statement for a reason that a repetition will meet again: a constraint, a value, a bug of
    ours."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Pipe:
    def __init__(self, dsn: str, statements: Iterable[Statement]) -> None:
        """Connect and prepare. Raises UnavailableError when Postgres is away, is a standby, or takes a statement not:
        whatever its reason is, it says nothing of the records that are to be applied."""
        try:
            self._connection = psycopg.connect(dsn, autocommit=True, options=OPTIONS, connect_timeout=5)
            self.timeline: Timeline = read_timeline(self._connection)
            """What this connection writes to, for as long as it lasts."""
            self._pg = self._connection.pgconn
            for statement in statements:
                self._prepare(statement)
        except psycopg.OperationalError as e:
            raise UnavailableError(f"Postgres: {e}".strip()) from e
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()

    def _prepare(self, statement: Statement) -> None:
        oids = [TYPES[kind][0] for _, kind in statement.columns]
        result = self._pg.prepare(statement.name.encode(), statement.sql.encode(), oids)
        if result.status != pq.ExecStatus.COMMAND_OK:
            self._connection.close()
            raise UnavailableError(f"Postgres: {statement.name}: {result.get_error_message()}".strip())

    def run(self, calls: Sequence[Call]) -> None:
        """Run a batch in one transaction and wait for its commit.

        Raises Overtaken or Refused (nothing was written), UnavailableError (unknown whether it was: read before
        deciding again).
        """
        try:
            for name, parameters in calls:
                self._pg.send_query_prepared(name.encode(), parameters, [1] * len(parameters), 1)
            self._pg.pipeline_sync()
            while self._pg.flush():
                self._wait(writing=True)
            self._collect()
        except psycopg.OperationalError as e:
            raise UnavailableError(f"Postgres: {e}".strip()) from e

    def _collect(self) -> None:
        error: pq.abc.PGresult | None = None
        while True:
            while self._pg.is_busy():
                self._wait(writing=False)
            result = self._pg.get_result()
            if result is None:
                if self._pg.status != pq.ConnStatus.OK:
                    raise UnavailableError("Postgres closed the connection")
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                break
            if result.status == pq.ExecStatus.FATAL_ERROR:
                error = error or result
        if error is not None:
            self._raise(error)

    def _raise(self, error: "pq.abc.PGresult") -> None:
        state = (error.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        message = error.get_error_message()
        if state == "HR001" or state[:2] == "40":  # ours; deadlock, serialization
            raise Overtaken(message)
        if state[:2] in {"08", "53", "55", "57", "58", ""}:  # connection, resources, lock timeout, shutdown, system
            raise UnavailableError(message)
        raise Refused(message, state)

    def _wait(self, *, writing: bool) -> None:
        fd = [self._pg.socket]
        readable, writable, _ = select.select(fd, fd if writing else [], [], _TIMEOUT)
        if not readable and not writable:
            raise UnavailableError(f"no answer from Postgres within {_TIMEOUT} s")
        if readable:
            self._pg.consume_input()

    def close(self) -> None:
        self._connection.close()
