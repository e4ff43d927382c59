"""A model of Postgres: rows in dicts, row locks, READ COMMITTED, one write-ahead log, commits seen late.

Modelled: a transaction's writes are its own until it commits; a row it wrote is locked until they can be seen; a
statement that meets such a row waits and is evaluated again. At its commit a transaction stands in the log at once,
where the relay reads it; other sessions see its rows a moment later, and only then the client hears of it. A server
that goes down takes all sessions with it: what stood in the log is there again afterwards, the rest never was.
Constraints that tests have to meet raise as they would. Not modelled: isolation above READ COMMITTED, plans, disks.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import psycopg

from tests.simulation.scheduler import EPOCH, Sim

Row = dict[str, Any]
Key = tuple[Any, ...]
LOCK_SECONDS: Final = 3.0
_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)

TABLES: Final = (
    "workflow_version", "run", "trigger_key", "task", "attempt", "history", "timer", "inbox", "approval", "dead_letter",
    "worker_session", "held_task", "partition_owner", "watermark", "topic_log", "relay_owner", "parked_task",
    "signal", "signal_wait", "posted_signal", "pool", "pool_waiter", "pool_slot", "pool_turn", "approval_vote",
    "approval_timer", "child_run", "run_permit", "workflow_pause", "queue_pause", "held_command", "bulk", "bulk_item",
    "delegation", "run_label",
)  # fmt: skip


class Must(psycopg.Error):
    """What `must()` raises."""

    sqlstate = "HR001"


class Locked(Exception):
    """The statement has to wait for another transaction's row."""


class LogEntry(NamedTuple):
    lsn: int
    contents: list[bytes]


class Transaction:
    def __init__(self, database: "Postgres", who: str) -> None:
        self.database, self.who = database, who
        self.now = database.clock()
        self.writes: dict[tuple[str, Key], Row | None] = {}
        self.contents: list[bytes] = []
        self.advisory: list[str] = []
        self._undo: list[tuple[tuple[str, Key], bool, Row | None]] = []
        self.is_over = False
        self.is_visible = False

    # -- statements
    def run(self, statement: Callable[..., Any], *parameters: Any) -> Any:
        """Evaluate one statement whole, or leave no trace of it."""
        self._undo, sent = [], len(self.contents)
        try:
            return statement(self, *parameters)
        except BaseException:
            for place, was_there, row in reversed(self._undo):
                if was_there:
                    self.writes[place] = row
                else:
                    del self.writes[place]
                    self.database.locks.pop(place, None)
            del self.contents[sent:]
            raise

    def get(self, table: str, *key: Any) -> Row | None:
        place = (table, key)
        if place in self.writes:
            return self.writes[place]
        return self.database.tables[table].get(key)

    def rows(self, table: str) -> Iterator[tuple[Key, Row]]:
        """A snapshot of what this transaction sees, in a stable order."""
        mine = {key: row for (of, key), row in self.writes.items() if of == table}
        seen = [(key, mine.pop(key) if key in mine else row) for key, row in self.database.tables[table].items()]
        for key, row in [*seen, *mine.items()]:
            if row is not None:
                yield key, row

    def put(self, table: str, key: Key, row: Row | None) -> None:
        self.lock(table, key)
        place = (table, key)
        self._undo.append((place, place in self.writes, self.writes.get(place)))
        self.writes[place] = row

    def lock(self, table: str, key: Key) -> None:
        holder = self.database.locks.setdefault((table, key), self)
        if holder is not self:
            raise Locked

    def is_free(self, table: str, key: Key) -> bool:
        """Whether SKIP LOCKED would not skip it."""
        return self.database.locks.get((table, key), self) is self

    def emit(self, content: bytes) -> None:
        self.contents.append(content)

    # -- the end
    def commit(self) -> None:
        """Into the log now; to be seen by others a moment later (`is_visible`)."""
        if self.is_over:
            return
        self.is_over = True
        self.database.log_commit(self)

    def roll_back(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.database.release(self)


class Slot:
    def __init__(self, lsn: int) -> None:
        self.confirmed = lsn
        self.reader: Any = None
        self.lost = False


class Postgres:
    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.tables: dict[str, dict[Key, Row]] = {table: {} for table in TABLES}
        self.locks: dict[tuple[str, Key], Transaction] = {}
        self.advisory: dict[str, Transaction] = {}
        self.log: list[LogEntry] = []
        self.lsn = 1_000
        self.slots: dict[str, Slot] = {}
        self.is_up = True
        self.generation = 0
        """Counts the server's lives: a session of an earlier one is broken."""
        self.visibility_lag = 0.0
        self.cut_chance = 0.0
        """Chance that a connection is cut around a statement, half of them after it took effect."""
        self.cuts = 0
        self.in_doubt: list[Transaction] = []
        self.on_commit: list[Callable[[Transaction], None]] = []
        self.on_log: list[Callable[[LogEntry], None]] = []
        self.sessions: list[Any] = []

    def clock(self) -> int:
        """Microseconds since 1970."""
        return round((EPOCH + self.sim.now) * 1_000_000)

    # -- commits
    def log_commit(self, transaction: Transaction) -> None:
        if not transaction.writes and not transaction.contents:
            self._show(transaction)
            return
        self.lsn += 100
        entry = LogEntry(self.lsn, transaction.contents)
        self.log.append(entry)
        for told in self.on_log:
            told(entry)
        self.in_doubt.append(transaction)
        lag = self.sim.random.random() ** 3 * self.visibility_lag
        if lag > 0:
            self.sim.at(lag, lambda: self._show(transaction))
        else:
            self._show(transaction)

    def _show(self, transaction: Transaction) -> None:
        if transaction.is_visible:
            return
        transaction.is_visible = True
        if transaction in self.in_doubt:
            self.in_doubt.remove(transaction)
        for told in self.on_commit:
            told(transaction)
        for (table, key), row in transaction.writes.items():
            if row is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = row
        self.release(transaction)

    def release(self, transaction: Transaction) -> None:
        self.locks = {place: holder for place, holder in self.locks.items() if holder is not transaction}
        self.advisory = {name: holder for name, holder in self.advisory.items() if holder is not transaction}

    # -- up and down
    def go_down(self) -> None:
        """Every session ends where it is. Whether a commit in flight happened is the log's word."""
        self.sim.note("postgres", "down")
        self.is_up = False
        self.generation += 1
        for transaction in list(self.in_doubt):
            self._show(transaction)
        for holder in {id(one): one for one in self.locks.values()}.values():
            holder.roll_back()
        for slot in self.slots.values():
            slot.reader = None

    def come_up(self) -> None:
        self.sim.note("postgres", "up")
        self.is_up = True

    def lose_slots(self) -> None:
        self.sim.note("postgres", "replication slot lost")
        for slot in self.slots.values():
            slot.reader = None
        self.slots.clear()


def instant(microseconds: int | None) -> datetime | None:
    """As psycopg gives a timestamptz."""
    return None if microseconds is None else _ZERO + timedelta(microseconds=microseconds)


def microseconds(at: datetime) -> int:
    return (at - _ZERO) // timedelta(microseconds=1)
