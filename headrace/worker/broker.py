"""How a worker's Kafka clients are set up, and what tells them that the log behind a topic was replaced."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from headrace.connection_options import connection_options

_log = structlog.get_logger("headrace.worker")

IDENTITY_SECONDS: Final = 2.0
"""How often the topic ids are read: the time for which a replaced log may go unnoticed."""
REFUSALS_MAX: Final = 100
_QUIET: Final = {"log_level": 0, "logger": logging.getLogger("headrace.librdkafka")}
"""librdkafka prints to stderr by itself; what matters reaches us as errors and is logged once."""
_PRODUCER: Final[Mapping[str, Any]] = {
    "partitioner": "murmur2_random",  # every producer of the project places a key alike
    "enable.idempotence": True,
    "acks": "all",
    "message.timeout.ms": 0,  # never give up: a broker that is away comes back
    "linger.ms": 0,
    "queue.buffering.max.messages": 200_000,
    "delivery.report.only.error": True,
}
_LOST: Final = frozenset(
    {KafkaError._FATAL, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._MAX_POLL_EXCEEDED}
)
_MISSING: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError._NOENT}
)
_TOO_OLD: Final = tuple(
    KafkaError(code).str() for code in (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE)
)


@dataclass(frozen=True)
class Broker:
    """Where Kafka is and which clients to make for it."""

    servers: str
    prefix: str = "headrace"
    topic_ids: bool = True
    """False for the embedded broker: it cannot describe topics, nor wake a fetch that waits."""
    options: Mapping[str, str] = field(default_factory=dict)

    def commands(self, queue: str) -> str:
        return f"{self.prefix}.commands.{queue}"

    @property
    def group(self) -> str:
        """Of all workers; each subscribes to the commands of its own queues."""
        return f"{self.prefix}.workers"

    @property
    def is_plain(self) -> bool:
        """Whether Kafka is reached without TLS and without a login."""
        return not any(name.startswith(("security.", "sasl.", "ssl.")) for name in self.options)

    @property
    def events(self) -> str:
        return f"{self.prefix}.events"

    @property
    def workers(self) -> str:
        return f"{self.prefix}.workers"

    @property
    def logs(self) -> str:
        return f"{self.prefix}.logs"

    @property
    def control(self) -> str:
        return f"{self.prefix}.control"

    def client(self) -> dict[str, Any]:
        return {**self._plain_client(), **_QUIET, **self.options}

    def _plain_client(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "reconnect.backoff.max.ms": 1_000,  # not the 10 s of the default: work goes on soon after Kafka is back
        }

    def plain_producer(self) -> dict[str, Any]:
        """One that another process can make from text, to say little and once."""
        return {
            **self._plain_client(),
            "log_level": 0,
            **_PRODUCER,
            "delivery.report.only.error": False,
            # An idempotent one first waits half a second for its id; what is said twice here is stale the second time.
            "enable.idempotence": False,
            **self.options,
        }

    def consumer(self, group: str) -> dict[str, Any]:
        return {
            **self.client(),
            "group.id": group,
            "fetch.wait.max.ms": 500 if self.topic_ids else 10,
            "fetch.queue.backoff.ms": 20,  # a full local queue stops fetching for a whole second otherwise
            "queued.max.messages.kbytes": 16_384,
            "queued.min.messages": 2_000,
            "topic.metadata.refresh.interval.ms": 10_000,
            **self.options,
        }

    def producer(self) -> dict[str, Any]:
        return {**self.client(), **_PRODUCER, **self.options}

    def batch_producer(self) -> dict[str, Any]:
        """For `BatchProducer`. Raises ConfigurationError."""
        return connection_options(self.servers, self.options)


class Rebuild(Exception):
    """This client's idea of the log is wrong: throw it away and build a new one."""


class Link:
    """Whether Kafka answers, said once when that changes. Any thread may report; the last word wins."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._lock = threading.Lock()
        self._trouble: str | None = None
        self._waits_for: set[str] = set()
        self._refusals: set[str] = set()

    def down(self, reason: str) -> None:
        with self._lock:
            first, self._trouble = self._trouble is None, reason
        if first:
            _log.warning("kafka is away; going on when it answers", kafka=self._servers, reason=reason)

    def up(self) -> None:
        if self._trouble is None:
            return
        with self._lock:
            again, self._trouble = self._trouble is not None, None
        if again:
            _log.info("kafka answers again", kafka=self._servers)

    def missing(self, topic: str) -> None:
        with self._lock:
            first = topic not in self._waits_for
            self._waits_for.add(topic)
        if first:
            _log.warning("waiting for a topic; the engine creates it", topic=topic)

    def found(self, topic: str) -> None:
        if topic in self._waits_for:
            with self._lock:
                self._waits_for.discard(topic)
            _log.info("the topic is there now", topic=topic)

    def refused(self, reason: str) -> None:
        """Kafka answers, but not with what was asked for: no authorization, say. Each reason is told once."""
        with self._lock:
            first = reason not in self._refusals and len(self._refusals) < REFUSALS_MAX
            self._refusals.add(reason)
        if first:
            _log.warning("kafka refuses; trying on", kafka=self._servers, reason=reason)

    def on_error(self, error: KafkaError) -> None:
        """For `error_cb`: librdkafka tells every lost connection; only all brokers lost is news."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.down(error.str())


def is_lost(error: KafkaError) -> bool:
    """The consumer cannot go on. A message with code `_FATAL` says so although its `fatal()` is false."""
    return error.fatal() or error.code() in _LOST


def is_missing(error: KafkaError) -> bool:
    return error.code() in _MISSING


def is_too_old(error: KafkaError) -> bool:
    """The broker does not know the new consumer protocol (KIP-848); the fatal error has only the words of it."""
    return error.code() == KafkaError._FATAL and any(words in error.str() for words in _TOO_OLD)


class LogIdentity:
    """Watches the ids of topics; owned by one thread.

    A topic that was deleted and created again, or a wiped broker, looks healthy to a fetcher that holds an old
    position: once the new log has grown past it, reading goes on there and skips the beginning without an error. Only
    the topic id tells.
    """

    def __init__(self, broker: Broker, topics: Sequence[str], link: Link) -> None:
        self._topics = list(topics)
        self._link = link
        self._admin = AdminClient(broker.client()) if broker.topic_ids else None
        self._asked: dict[str, Future[Any]] = {}
        self._asked_at = float("-inf")
        self._ids: dict[str, str] = {}

    def learn(self, seconds: float) -> None:
        """Wait so long for the ids of topics that are not known yet. Call it before reading them: an id that is learned
        later cannot tell whether it was another one before."""
        unknown = [topic for topic in self._topics if topic not in self._ids]
        if self._admin is None or not unknown:
            return
        for topic, answer in self._admin.describe_topics(TopicCollection(unknown), request_timeout=seconds).items():
            with suppress(KafkaException):
                self._ids[topic] = str(answer.result(seconds + 1.0).topic_id)

    def changed(self) -> set[str]:
        """The topics whose id became another one since the last call; never waits."""
        if self._admin is None:
            return set()
        if not self._asked:
            now = time.monotonic()
            if now - self._asked_at >= IDENTITY_SECONDS:
                self._asked_at = now
                self._asked = self._admin.describe_topics(TopicCollection(self._topics), request_timeout=5)
            return set()
        if not all(answer.done() for answer in self._asked.values()):
            return set()
        answers, self._asked = self._asked, {}
        return {topic for topic, answer in answers.items() if self._is_new(topic, answer)}

    def _is_new(self, topic: str, answer: "Future[Any]") -> bool:
        if answer.exception() is not None:
            return False  # away or missing: the consumer says so by itself
        self._link.up()
        self._link.found(topic)
        found = str(answer.result().topic_id)
        known = self._ids.get(topic)
        self._ids[topic] = found
        return known is not None and known != found
