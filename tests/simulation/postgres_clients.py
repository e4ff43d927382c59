"""Clients of the modelled Postgres with the interfaces of psycopg and `state.pipe`, as far as the product uses them.

Every statement is a request that travels, takes effect whole, and is answered; a process can die, a connection can be
cut, the server can go down between any two of these. So "done, and nobody heard" happens to each of them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import psycopg

from connectors.decoding import Message as LogicalMessage
from connectors.decoding import Transaction as LogicalTransaction
from headrace.errors import UnavailableError
from state.outbox import MESSAGE_PREFIX
from state.pipe import Overtaken, Refused
from tests.simulation import statements
from tests.simulation.postgres import LOCK_SECONDS, Locked, Must, Postgres, Transaction
from tests.simulation.primitives import Waiters
from tests.simulation.scheduler import Process, sim
from tests.simulation.statements.registry import MODELS

IDLE_SECONDS: Final = 5.0
"""idle_in_transaction_session_timeout: a frozen process does not hold its rows longer."""
Work = Callable[[Transaction], Any]
_PREFIX: Final = MESSAGE_PREFIX.encode()


class Server:
    """Where clients find it: there is one in a simulation."""

    postgres: Postgres


class Session:
    """One connection. Its steps are generators of pauses, so that lanes and coroutines can both take them."""

    def __init__(self) -> None:
        self.server = Server.postgres
        self.process: Process = sim().current.process
        self.generation = self.server.generation
        self.transaction: Transaction | None = None
        self.is_broken = False
        self.process.on_death.append(lambda: sim().at(0.01, self.end))
        self.process.on_pause.append(self._fall_silent)

    def end(self) -> None:
        self.is_broken = True
        if self.transaction is not None:
            self.transaction.roll_back()
            self.transaction = None

    def _fall_silent(self) -> None:
        def expire() -> None:
            if self.process.is_paused and self.transaction is not None:
                self.end()

        sim().at(IDLE_SECONDS, expire)

    def check(self) -> None:
        sim().check()
        if self.is_broken or not self.server.is_up or self.generation != self.server.generation:
            self.end()
            raise psycopg.OperationalError("the connection to the simulated server is lost")

    # -- steps
    def request(self, name: str, work: Work, *, commits: bool) -> Generator[float, None, Any]:
        """One round trip: `work` in the open transaction, or in one of its own when it commits."""
        world = sim()
        cut = world.random.random() if self.server.cut_chance else 1.0
        yield world.latency()
        self.check()
        if cut < self.server.cut_chance / 2:
            self._cut(name, "before it was heard")
        transaction = self.transaction if self.transaction is not None else Transaction(self.server, self.process.name)
        result = yield from self._execute(transaction, work)
        if commits:
            transaction.commit()
            while not transaction.is_visible:
                yield 0.001
            if self.transaction is transaction:
                self.transaction = None
        if cut < self.server.cut_chance:
            self._cut(name, "after it was done")
        yield world.latency()
        self.check()
        world.note(self.process.name, name)
        return result

    def _execute(self, transaction: Transaction, work: Work) -> Generator[float, None, Any]:
        world = sim()
        give_up_at = world.now + LOCK_SECONDS
        while True:
            try:
                return transaction.run(work)
            except Locked:
                if world.now > give_up_at:
                    transaction.roll_back()
                    raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout") from None
            except BaseException:
                if transaction is not self.transaction:
                    transaction.roll_back()
                raise
            yield 0.002 + world.random.random() * 0.003
            if transaction.is_over:
                self.end()
            self.check()

    def _cut(self, name: str, when: str) -> None:
        self.server.cuts += 1
        sim().note(self.process.name, f"{name}: connection cut {when}")
        self.end()
        raise psycopg.OperationalError(f"the simulated connection was cut {when}")

    # -- taking them
    def now(self, steps: Generator[float, None, Any]) -> Any:
        """In a lane."""
        try:
            pause = next(steps)
            while True:
                sim().sleep(pause)
                pause = steps.send(None)
        except StopIteration as done:
            return done.value

    async def later(self, steps: Generator[float, None, Any]) -> Any:
        """In a coroutine."""
        try:
            pause = next(steps)
            while True:
                await asyncio.sleep(pause)
                pause = steps.send(None)
        except StopIteration as done:
            return done.value

    def connecting(self) -> Generator[float, None, None]:
        yield sim().latency(0.001, 0.01)
        self.check()

    def begin(self) -> None:
        if self.transaction is None:
            self.transaction = Transaction(self.server, self.process.name)

    def committing(self) -> Generator[float, None, None]:
        transaction = self.transaction
        if transaction is None:
            self.check()
            return
        yield from self.request("commit", lambda _: None, commits=True)

    def abandon(self) -> None:
        if self.transaction is not None:
            self.transaction.roll_back()
            self.transaction = None


def _statement(sql: Any, parameters: Any) -> tuple[str, Work]:
    name, model = statements.find(sql)
    if isinstance(parameters, dict):
        return name, lambda transaction: model(transaction, **parameters)
    values = [getattr(value, "raw", value) for value in parameters or ()]
    return name, lambda transaction: model(transaction, *values)


class Connection:
    """`psycopg.Connection` in autocommit."""

    def __init__(self) -> None:
        self.session = Session()
        self.closed = False

    def execute(self, sql: Any, parameters: Any = None) -> "Cursor":
        return Cursor(self).execute(sql, parameters)

    @contextmanager
    def transaction(self) -> Generator[None]:
        self.session.check()
        self.session.begin()
        try:
            yield
        except BaseException:
            self.session.abandon()
            raise
        self.session.now(self.session.committing())

    def close(self) -> None:
        self.closed = True
        self.session.end()

    def fileno(self) -> int:
        return -1

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Cursor:
    """`psycopg.RawCursor`."""

    def __init__(self, connection: Connection) -> None:
        self._session, self._rows = connection.session, list[Any]()

    def execute(self, sql: Any, parameters: Any = None, **_: Any) -> "Cursor":
        name, work = _statement(sql, parameters)
        session = self._session
        self._rows = session.now(session.request(name, work, commits=session.transaction is None))
        return self

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    def __enter__(self) -> "Cursor":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class AsyncConnection:
    """`psycopg.AsyncConnection` in autocommit."""

    def __init__(self) -> None:
        self.session = Session()

    @classmethod
    async def connect(cls, *_: Any, **__: Any) -> "AsyncConnection":
        connection = cls()
        await connection.session.later(connection.session.connecting())
        return connection

    async def execute(self, sql: Any, parameters: Any = None) -> "AsyncCursor":
        return await AsyncCursor(self).execute(sql, parameters)

    def cursor(self, *, row_factory: Any = None) -> "AsyncCursor":
        return AsyncCursor(self, row_factory)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        self.session.check()
        self.session.begin()
        try:
            yield
        except BaseException:
            self.session.abandon()
            raise
        await self.session.later(self.session.committing())

    @asynccontextmanager
    async def pipeline(self) -> AsyncGenerator[None]:
        """One round trip for several statements; here each may still meet its own fault."""
        yield

    async def __aenter__(self) -> "AsyncConnection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.session.end()


class AsyncCursor:
    """`psycopg.AsyncRawCursor`, and the one that `state.queries` uses."""

    def __init__(self, connection: AsyncConnection, row_factory: Any = None) -> None:
        self._session, self._rows, self._make = connection.session, list[Any](), _maker(row_factory)

    async def execute(self, sql: Any, parameters: Any = None, **_: Any) -> "AsyncCursor":
        name, work = _statement(sql, parameters)
        session = self._session
        self._rows = await session.later(session.request(name, work, commits=session.transaction is None))
        return self

    async def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return [self._make(row) for row in rows]

    async def fetchone(self) -> Any:
        return self._make(self._rows.pop(0)) if self._rows else None

    async def __aenter__(self) -> "AsyncCursor":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def _maker(row_factory: Any) -> Callable[[Any], Any]:
    """`args_row(make)`, asked for what it makes."""
    if row_factory is None:
        return lambda row: row
    made: Callable[[Any], Any] = row_factory(None)  # `args_row` does not ask its cursor
    return made


_Connection = Connection
"""By another name, because the class below has one of this name."""


class Psycopg:
    """In place of module `psycopg`."""

    AsyncConnection, AsyncRawCursor, RawCursor = AsyncConnection, AsyncCursor, Cursor
    Connection = Connection

    @staticmethod
    def connect(*_: Any, **__: Any) -> "_Connection":
        connection = Connection()
        connection.session.now(connection.session.connecting())
        return connection

    def __getattr__(self, name: str) -> Any:
        return getattr(psycopg, name)


class FakePipe:
    """`state.pipe.Pipe`: all calls of a batch are one implicit transaction. Parameters come unencoded."""

    def __init__(self, dsn: str, statements_: Iterable[Any]) -> None:
        try:
            self._connection = Psycopg.connect()
        except psycopg.OperationalError as error:
            raise UnavailableError(f"Postgres: {error}") from error
        self.before: Callable[[Transaction], None] = lambda transaction: None
        """A probe: looks at what the transaction finds."""

    def run(self, calls: Sequence[tuple[str, Any]]) -> None:
        session = self._connection.session

        def work(transaction: Transaction) -> None:
            self.before(transaction)
            for name, parameters in calls:
                MODELS[name](transaction, *parameters)

        try:
            session.now(session.request("batch " + " ".join(name for name, _ in calls), work, commits=True))
        except Must as error:
            raise Overtaken(str(error)) from error
        except psycopg.errors.LockNotAvailable as error:
            raise UnavailableError(str(error)) from error
        except psycopg.OperationalError as error:
            raise UnavailableError(f"Postgres: {error}") from error
        except psycopg.IntegrityError as error:
            raise Refused(str(error), error.sqlstate or "23000") from error

    def close(self) -> None:
        self._connection.close()


class FakeReplicationStream:
    """`connectors.replication.ReplicationStream`: what the slot has not been told of, in commit order."""

    def __init__(self, postgres: str, slot: str, publication: str, start_lsn: int, application_name: str) -> None:
        world, self._server = sim(), Server.postgres
        world.sleep(world.latency(0.001, 0.01))
        self._process, self._generation = world.current.process, self._server.generation
        found = self._server.slots.get(slot)
        if not self._server.is_up or found is None:
            raise psycopg.OperationalError("no such slot on the simulated server")
        if found.reader is not None:
            raise psycopg.errors.ObjectInUse("the slot is read by another connection")
        self._slot = found
        found.reader = self
        self._at = max(start_lsn, found.confirmed)
        self._next = next(
            (i for i, entry in enumerate(self._server.log) if entry.lsn > self._at), len(self._server.log)
        )
        self._waiters = Waiters()
        self._server.on_log.append(self._arrived)
        self._process.on_death.append(lambda: world.at(0.02, self._let_go))

    def _arrived(self, entry: Any) -> None:
        if self._slot.reader is self:
            sim().at(sim().latency(), self._waiters.wake)

    def _let_go(self) -> None:
        if self._slot.reader is self:
            self._slot.reader = None
        if self._arrived in self._server.on_log:
            self._server.on_log.remove(self._arrived)

    def _check(self) -> None:
        sim().check()
        alive = self._server.is_up and self._generation == self._server.generation
        if not alive or self._slot.reader is not self or self._slot not in self._server.slots.values():
            self._let_go()
            raise psycopg.OperationalError("the simulated replication stream ended")

    def transactions(self, wait_seconds: float) -> Iterator[LogicalTransaction]:
        sim().pause()
        self._check()
        log = self._server.log
        if self._next >= len(log):
            self._waiters.wait(lambda: self._next < len(log) or self._slot.reader is not self, wait_seconds)
            self._check()
        while self._next < len(log):
            entry = log[self._next]
            self._next += 1
            yield LogicalTransaction(entry.lsn, [LogicalMessage(_PREFIX, content) for content in entry.contents])

    def acknowledge(self, lsn: int) -> None:
        self._check()
        self._slot.confirmed = max(self._slot.confirmed, lsn)

    def close(self) -> None:
        self._let_go()
