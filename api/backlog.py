"""How much is under way, and whether more may be started: the API's share in not being buried.

What is accepted is durable and waits in Postgres and Kafka, on disk, so no process grows with it. But a caller who is
told "yes" for hours of work that nobody can do yet is told the wrong thing: past the limit it hears 429 and when to ask
again. Runs that start from records are not refused: their records wait in Kafka.
"""

from typing import Final

from api.errors import Refusal
from api.metrics import Metrics
from headrace.errors import UnavailableError
from state.queries.rows import Connection
from state.running import Running

RETRY_AFTER_SECONDS: Final = 5


class Backlog:
    def __init__(self, limit: int, metrics: Metrics) -> None:
        """limit: 0 for none."""
        self._limit, self._metrics, self._running = limit, metrics, Running(limit)

    async def admit(self, connection: Connection) -> None:
        """Return when one more may be started. Raises Refusal."""
        if not self._limit:
            return
        await self._running.refresh(connection)
        if self._running.count >= self._limit:
            self._metrics.refused.inc()
            raise Refusal(
                429,
                f"{self._limit:,} runs are under way, as many as this engine accepts",
                code=UnavailableError.code,
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self._running.count += 1
