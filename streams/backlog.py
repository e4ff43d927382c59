"""How much is under way, and whether records may start more: the trigger agent's share in not burying the engine.

A start over HTTP is refused past a limit (`api/backlog.py`). A record is not: it waits in Kafka, where it is safe,
until less than nine tenths of the limit are under way, so that reading does not stop and go with every run that ends.
"""

import asyncio
from typing import Any, Final

import psycopg
import structlog

from headrace.errors import UnavailableError
from state.running import Running
from state.sql import load
from streams.lane import OPTIONS
from streams.metrics import Metrics
from streams.sweeps import AWAY

log = structlog.get_logger(__name__)
_SQL = load("subscription")

GO_ON_SHARE: Final = 0.9


class Backlog:
    def __init__(self, dsn: str, limit: int, metrics: Metrics) -> None:
        """limit: 0 for none."""
        self._dsn, self._limit, self._metrics = dsn, limit, metrics
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._counting = asyncio.Lock()
        self._running = Running(limit)
        self._is_full = False
        self._waiting: dict[str, bool] = {}
        """By topic, as its subscriptions say in Postgres; of others it is not known what an earlier process left."""

    async def has_room(self, topic: str) -> bool:
        """Whether records of a topic may be applied; what they start may pass the limit by one batch. Raises
        UnavailableError."""
        if not self._limit:
            return True
        async with self._counting:
            try:
                connection = await self._connect()
                await self._running.refresh(connection)
                self._judge()
                if self._waiting.get(topic) is not self._is_full:
                    await psycopg.AsyncRawCursor(connection).execute(_SQL.text("note_wait"), (topic, self._is_full))
                    self._waiting[topic] = self._is_full
            except AWAY as e:
                await self.close()
                raise UnavailableError(f"Postgres: {e}".strip()) from e
            return not self._is_full

    def add(self, runs: int) -> None:
        """This process started so many since the last count."""
        self._running.count += runs

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        """Of its own, so that the loop goes on while Postgres counts."""
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(
                self._dsn, autocommit=True, options=OPTIONS, connect_timeout=5
            )
        return self._connection

    def _judge(self) -> None:
        was_full, limit = self._is_full, self._limit
        self._is_full = self._running.count >= (limit * GO_ON_SHARE if was_full else limit)
        if self._is_full and not was_full:
            log.warning("records wait in Kafka: too many runs are under way", limit=limit)
            self._metrics.trigger_waits.inc()
        elif was_full and not self._is_full:
            log.info("records start runs again", running=self._running.count)
