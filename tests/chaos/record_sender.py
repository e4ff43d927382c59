"""A system of a user's that knows only a topic: each of its records is a CloudEvent that says a signal.

It reaches Kafka directly, and sends again what was not acknowledged, so a record may come twice, and is one signal.
"""

import asyncio
import contextlib
import json
import time
from typing import Any, Final

from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chaos.client_log import ClientLog
from tests.chaos.system import System

TOPIC: Final = "chaos.news"
SOURCE: Final = "chaos"
SUBSCRIPTION: Final = {
    "name": "news",
    "topic": TOPIC,
    "filter": "input.type == 'news'",
    "signal": {"name": "chaos.news", "key": "${{ string(input.data.n) }}"},
    "input": {"count": "${{ input.data.count }}"},
}
SEND_SECONDS: Final = 4.0
TRIES_MAX: Final = 20
POLL_SECONDS: Final = 0.05


class RecordSender:
    """One producer; `run` must be under way while something is sent."""

    def __init__(self, system: System, log: ClientLog) -> None:
        self._system, self._log = system, log
        self._producer: Producer | None = None

    async def run(self) -> None:
        """Until cancelled: hear what became of records."""
        while True:
            self._client.poll(0)
            await asyncio.sleep(POLL_SECONDS)

    async def send(self, number: int, count: int) -> None:
        """Say a signal for the key of run `number`, until that is acknowledged; every try is an entry of the log."""
        id_ = f"record-{number}-{count}"
        for _ in range(TRIES_MAX):
            entry: dict[str, Any] = {"op": "record", "at": time.time(), "id": id_, "count": count, "number": number}
            place = await self._try(id_, {"n": number, "count": count})
            outcome = "UNKNOWN" if place is None else "OK"
            self._log.add({**entry, "done_at": time.time(), "outcome": outcome, "place": place})
            if place is not None:
                return
            await asyncio.to_thread(self._make_topic)

    async def _try(self, id_: str, data: dict[str, Any]) -> list[int] | None:
        """Where it stands in the log; None when nobody said so."""
        heard: asyncio.Future[list[int] | None] = asyncio.get_running_loop().create_future()

        def on_delivery(error: object, message: Message) -> None:
            if not heard.done():
                heard.set_result(None if error is not None else [message.partition() or 0, message.offset() or 0])

        attributes = {"ce_id": id_, "ce_source": SOURCE, "ce_type": "news", "ce_specversion": "1.0"}
        headers: list[tuple[str, str | bytes | None]] = [(name, text.encode()) for name, text in attributes.items()]
        try:
            self._client.produce(
                TOPIC, json.dumps(data).encode(), id_.encode(), headers=headers, on_delivery=on_delivery
            )
        except (KafkaException, BufferError):
            return None
        return await heard

    def _make_topic(self) -> None:
        """It belongs to the user, so nobody else makes it, also when Kafka has lost everything."""
        admin = AdminClient({"bootstrap.servers": self._system.kafka.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(TOPIC, 2, 1)], request_timeout=SEND_SECONDS).values():
            with contextlib.suppress(KafkaException):  # it is there, or Kafka is not
                made.result(2 * SEND_SECONDS)

    async def begin(self) -> None:
        await asyncio.to_thread(self._make_topic)

    @property
    def _client(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self._system.kafka.bootstrap,
                    "log_level": 0,
                    "acks": "all",
                    "message.timeout.ms": int(SEND_SECONDS * 1000),
                    "topic.metadata.refresh.interval.ms": 1000,
                }
            )
        return self._producer
