"""Sends a worker's answers to `<prefix>.events`.

The answers of one turn of the event loop leave together. Nothing that was answered is lost while the process lives:
what Kafka does not take now is sent until it does, and what it refuses for ever becomes a failure that says so.
"""

from collections.abc import Callable
from typing import Final

import structlog

from headrace.batch_producer import BatchProducer, Refused
from headrace.messages import TRACEPARENT, Error, Failed, Succeeded, decode_event, encode
from headrace.worker.broker import Broker

_log = structlog.get_logger("headrace.worker")

UNSENT_MAX: Final = 10_000
"""More answers than this waiting for Kafka, and the worker takes no more commands."""
SMALL_BYTES: Final = 4_096
"""Of an answer that cannot be told in fewer."""


class Reports:
    """Owned by the event loop."""

    def __init__(self, broker: Broker) -> None:
        """Raises ConfigurationError for a way to reach Kafka that is not known here."""
        self._topic = broker.events
        self._producer = BatchProducer(broker.batch_producer(), self._on_refused)

    def start(self, on_broken: Callable[[BaseException], object]) -> None:
        """Call it on the event loop, before the first `flush`. on_broken: hears of a bug that ends the sending."""
        self._producer.start(on_broken)

    def add(self, key: bytes, value: bytes, traceparent: str | None) -> None:
        """Sent with the next `flush`."""
        if traceparent is None:
            self._producer.add(self._topic, key, value)
        else:
            self._producer.add(self._topic, key, value, headers=[(TRACEPARENT, traceparent.encode())])

    @property
    def unsent(self) -> int:
        return len(self._producer)

    @property
    def is_clogged(self) -> bool:
        return self.unsent > UNSENT_MAX

    def flush(self) -> None:
        self._producer.flush()

    async def empty(self, seconds: float) -> int:
        """Wait so long for Kafka to have everything; the number of records it does not have."""
        self._producer.flush()
        await self._producer.empty(seconds)
        return self.unsent

    async def close(self, seconds: float) -> int:
        """The same, and let go of those."""
        unsent = await self.empty(seconds)
        await self._producer.close()
        return unsent

    # -- inside --------------------------------------------------------------------------------------------------------
    def _on_refused(self, record: Refused) -> None:
        """Kafka will never take this answer: the attempt failed for that, and must say so instead of vanishing."""
        event = decode_event(record.value)
        if len(record.value) <= SMALL_BYTES or not isinstance(event, Succeeded | Failed):
            _log.error("kafka refuses an answer; its task is handed out again", reason=record.reason)
            return
        code = "RESULT_TOO_LARGE" if record.is_too_large else "RESULT_REFUSED"
        reason = f"Kafka refused the answer of {len(record.value)} bytes: {record.reason}"
        error = Error(code, reason, retryable=False)
        failed = Failed(
            event.task, event.token, event.nonce, error, event.session, event.worker, event.started, event.finished
        )
        self._producer.add(self._topic, record.key, encode(failed), headers=record.headers)
        self._producer.flush()
