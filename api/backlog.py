"""How much is under way, and whether more may be started: the API's share in not being buried.

What is accepted is durable and waits in Postgres and Kafka, on disk, so no process grows with it. But a caller who is
told "yes" for hours of work that nobody can do yet is told the wrong thing: past the limit it hears 429 and when to ask
again. Runs that start from records are not refused: their records wait in Kafka.
"""

import time
from typing import Final

from api.errors import Refusal
from api.metrics import Metrics
from headrace.errors import UnavailableError
from state.queries.rows import Connection
from state.queries.run import count_running

READ_SECONDS: Final = 1.0
"""A count is as old as this at most, or as twenty times what it took; this process adds what it starts meanwhile."""
RETRY_AFTER_SECONDS: Final = 5
_SHARE: Final = 20


class Backlog:
    """The runs that are running, over all namespaces; those that wait for people do not count."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        """limit: 0 for none."""
        self._limit, self._metrics = limit, metrics
        self._running = 0
        self._read_next = 0.0

    async def admit(self, connection: Connection) -> None:
        """Return when one more may be started. Raises Refusal."""
        if not self._limit:
            return
        if time.monotonic() >= self._read_next:
            await self._read(connection)
        if self._running >= self._limit:
            self._metrics.refused.inc()
            raise Refusal(
                429,
                f"{self._limit:,} runs are under way, as many as this engine accepts",
                code=UnavailableError.code,
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self._running += 1

    async def _read(self, connection: Connection) -> None:
        began = time.monotonic()
        self._read_next = began + READ_SECONDS  # one reader is enough
        self._running = await count_running(connection, self._limit)
        self._read_next = max(self._read_next, time.monotonic() + _SHARE * (time.monotonic() - began))
