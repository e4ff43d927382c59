"""Sends the heartbeats of a worker session to `<prefix>.workers`, through a producer of their own.

So they never wait behind answers. One that is older than a lease tells only of the past: Kafka's client drops it, and
nothing piles up while the broker is away.
"""

from contextlib import suppress

from confluent_kafka import KafkaException, Producer

from headrace.messages import Heartbeat, encode
from headrace.worker.broker import Broker, Link


class Heartbeats:
    """Owned by one thread."""

    def __init__(self, broker: Broker, lease_seconds: float, link: Link) -> None:
        self._topic = broker.workers
        self._producer = Producer(
            {
                **broker.producer(),
                "enable.idempotence": False,  # its fatal errors would be worth more trouble than a lost heartbeat
                "max.in.flight": 1,  # in order all the same: the last word of a session must stay the last
                "message.timeout.ms": max(1, round(lease_seconds * 1000)),
                "error_cb": link.on_error,
            }
        )

    def send(self, heartbeat: Heartbeat) -> None:
        """One that cannot be sent is left out: the next tells more."""
        with suppress(BufferError, KafkaException):
            self._producer.produce(self._topic, encode(heartbeat), heartbeat.session.encode())
            self._producer.poll(0)

    def close(self, seconds: float) -> None:
        self._producer.flush(seconds)
