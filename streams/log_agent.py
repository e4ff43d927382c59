"""The log agent: what bodies log, into Postgres, and no more of it than fits.

At least once into Kafka, once into the table: a line is told by its hand-out and its number there. Who cannot name the
nonce of a hand-out cannot write into its log. Nothing of it decides anything.
"""

from typing import Any, Final
from uuid import UUID

import psycopg
from confluent_kafka import Message

from headrace.errors import MessageError
from headrace.messages import Logged, decode_logged, make_nonce
from state.sql import load
from state.store import Rows, Store, execute_sync
from streams.batch import Batch
from streams.database import Database
from streams.metrics import Metrics
from streams.ownership import Ownership
from streams.side_agent import apply, set_aside

_SQL = load("log_line")
TRIM_LINES: Final = 10_000
"""Removed at once, after that many came."""
CHARS_MAX: Final = 10_000
_INT: Final = 2**31
_INSTANT_MAX: Final = 2**53


class LogAgent:
    """The body of the logs topic."""

    def __init__(
        self, store: Store, ownership: Ownership, database: Database, metrics: Metrics, lines_max: int
    ) -> None:
        """lines_max: kept of all runs together."""
        self._store, self._ownership, self._database, self._metrics = store, ownership, database, metrics
        self._lines_max = lines_max
        self._since_trim = TRIM_LINES

    async def __call__(self, batch: Batch) -> None:
        """Apply a batch, however often it takes. Returns when it is committed or no longer ours."""
        await apply(batch, self._ownership, self._apply, "log lines")

    def _apply(self, batch: Batch) -> None:
        records, moves = self._ownership.take(batch)
        if not moves:
            return
        rows = Rows(self._store)
        self._ownership.fence(rows, moves)
        lines = [line for record in records for line in self._read(record, rows)]
        with self._database.transaction() as connection:
            if lines:
                columns = tuple(list(column) for column in zip(*lines, strict=True))
                self._run(connection, "insert_log_lines", columns)
                self._since_trim += len(lines)
            if self._since_trim >= TRIM_LINES:
                self._run(connection, "trim_log_lines", (self._lines_max, 2 * TRIM_LINES))
            execute_sync(connection, rows.calls())
        if self._since_trim >= TRIM_LINES:
            self._since_trim = 0
        self._ownership.moved(moves)

    def _run(self, connection: psycopg.Connection[Any], name: str, parameters: tuple[Any, ...]) -> None:
        psycopg.RawCursor(connection).execute(_SQL.text(name), parameters)

    def _read(self, record: Message, rows: Rows) -> list[tuple[Any, ...]]:
        """Its lines as rows; none of one that is forged, and one that cannot be read is set aside."""
        key = record.key() or b""
        try:
            said = decode_logged(record.value())
            run_id = UUID(key.decode())
            if said.nonce != make_nonce(self._store.secret, key, said.task, said.token):
                self._metrics.forged.inc()
                return []
            return [_row(run_id, said, index) for index in range(len(said.lines))]
        except (MessageError, ValueError) as e:
            set_aside(rows, record, self._store.settings.namespace, str(e))
            self._metrics.set_aside.inc()
            return []


def _row(run_id: UUID, said: Logged, index: int) -> tuple[Any, ...]:
    """Raises ValueError for what no row can hold."""
    line = said.lines[index]
    numbers = (said.task, said.token, line.seq, said.attempt)
    if not all(0 <= number < _INT for number in numbers) or not 0 <= line.at < _INSTANT_MAX:
        raise ValueError(f"a log line with numbers that no row can hold: {numbers}, {line.at}")
    texts = [said.worker, line.logger, line.message, bytes(line.fields).decode()]
    if any("\0" in text or len(text) > CHARS_MAX for text in texts) or "\\u0000" in texts[3]:
        raise ValueError("a log line with U+0000, or one that is too long")
    level = min(max(line.level, 0), 1_000)
    return (run_id, *numbers, line.at, level, *texts[:3], None if texts[3] == "null" else texts[3])
