"""A batch producer for a thread without an event loop of its own: the loop runs while the thread waits."""

import asyncio
from collections.abc import Iterable

import uvloop

from headrace.batch_producer import BatchProducer, Refused
from headrace.messages import TRACEPARENT
from state.outbox import Record


class Delivery:
    """Everything that was begun, until it is in Kafka or refused. Not thread-safe."""

    def __init__(self, kafka: str, compression: str = "none") -> None:
        self._loop = uvloop.new_event_loop()
        self.refused: list[Refused] = []
        """What Kafka will never take; to be read and cleared by the caller."""
        self._producer = BatchProducer({"bootstrap_servers": kafka}, self.refused.append, compression)
        self._loop.call_soon(self._producer.start)

    @property
    def trouble(self) -> str | None:
        """Why Kafka does not take records; None while it does."""
        return self._producer.trouble

    def begin(self, records: Iterable[Record]) -> None:
        """Order holds per topic and key."""
        add = self._producer.add
        for topic, key, value, partition, traceparent, headers in records:
            if traceparent is None and not headers:
                add(topic, key, value, partition)
            else:
                trace = [] if traceparent is None else [(TRACEPARENT, traceparent.encode())]
                add(topic, key, value, partition, [*headers, *trace])
        self._producer.flush()

    def wait(self, seconds: float) -> bool:
        """Wait so long for all of it; whether that is done."""
        return self._loop.run_until_complete(self._producer.empty(seconds))

    def close(self) -> None:
        """Let go of what is not in Kafka."""
        self._loop.run_until_complete(self._producer.close())
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        self._loop.close()
