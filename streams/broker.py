"""What the broker says about the logs: their ids, where they begin and end, and whether it answers at all.

Trouble is said once. A broker that is away for an hour makes a line when it goes, a reminder every few minutes, and a
line when it is back; what happens in between only counts.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec, TopicDescription  # type: ignore[attr-defined]  # no __all__ there

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 5.0
"""How long one question to the broker may take; a healthy broker needs milliseconds."""
REMIND_SECONDS: Final = 300.0
"""A trouble that lasts is said again this often, with the number of times it was met meanwhile."""

UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
    }
)
UNKNOWN_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # unannotated
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # unannotated

Place = tuple[str, int]
"""A topic and one of its partitions."""


@dataclass(slots=True)
class Trouble:
    """Something that is wrong for a while; says so when it begins and when it ends. Safe from several threads."""

    begins: str
    ends: str
    since: float | None = None
    """Monotonic seconds; None while all is well."""
    _said_at: float = 0.0
    _unsaid: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def met(self, **fields: Any) -> None:
        """Say it if it is new, or was last said long ago; otherwise count it."""
        now = time.monotonic()
        with self._lock:
            if self.since is None:
                self.since = now
            elif now - self._said_at < REMIND_SECONDS:
                self._unsaid += 1
                return
            unsaid, self._said_at, self._unsaid = self._unsaid, now, 0
        log.warning(self.begins, **fields, **({"times_since": unsaid} if unsaid else {}))

    def over(self, **fields: Any) -> None:
        """Say that it is over, if it was there."""
        with self._lock:
            since, self.since, self._unsaid = self.since, None, 0
        if since is not None:
            log.info(self.ends, seconds=round(time.monotonic() - since, 1), **fields)


class TopicMissingError(Exception):
    """The topic does not exist (yet, or any more)."""


def code_of(error: BaseException | None) -> int | None:
    """The Kafka error code inside an exception of the client, else None."""
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return cause.code() if isinstance(cause, KafkaError) else None


@dataclass(slots=True)
class Answer:
    """Futures of one round of questions; read them when `done`."""

    asked_at: float
    """Monotonic seconds."""
    topics: dict[str, "Future[TopicDescription]"] = field(default_factory=dict)
    offsets: dict[Place, "Future[ListOffsetsResultInfo]"] = field(default_factory=dict)

    def done(self) -> bool:
        return all(future.done() for future in self._futures())

    def errors(self) -> list[BaseException | None]:
        """What each question ended with, None for an answer; only when `done`."""
        return [future.exception() for future in self._futures()]

    def _futures(self) -> "list[Future[Any]]":
        return [*self.topics.values(), *self.offsets.values()]


class Broker:
    """An admin client that remembers what it has complained about. `ids=False`: the broker cannot describe topics."""

    def __init__(self, conf: dict[str, Any], ids: bool, log_id: str) -> None:
        connection: dict[str, Any] = {**conf, "error_cb": self.on_error}
        self._admin = AdminClient(connection)
        self._has_ids, self._log_id = ids, log_id
        self.away = Trouble("Kafka is away", "Kafka is back")
        self._missing: defaultdict[str, Trouble] = defaultdict(lambda: Trouble("topic is missing", "topic is there"))

    def on_error(self, error: KafkaError) -> None:
        """Hear the client's own errors; it keeps trying by itself. One broker of several that is down is not Kafka."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.away.met(error=error.str())

    def hear(self, answer: Answer) -> None:
        """Conclude from a finished round whether Kafka is there.

        Only a result proves it, or the broker's word that a topic is unknown: with no broker, librdkafka concludes
        other errors by itself, such as `_NOENT` for leaders it could not ask for. Nor does a question that was asked
        before the outage began prove anything about its end.
        """
        errors = answer.errors()
        if any(error is None or code_of(error) == KafkaError.UNKNOWN_TOPIC_OR_PART for error in errors):
            if answer.asked_at > (self.away.since or 0.0):
                self.away.over()
        elif silent := [error for error in errors if code_of(error) in UNREACHABLE]:
            self.away.met(error=str(silent[0]))

    def log_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Topic -> the identity of its log, now. Blocks; raises TopicMissingError or KafkaException."""
        if not self._has_ids:
            return dict.fromkeys(topics, self._log_id)
        return {topic: self.read_id(topic, future) for topic, future in self._describe(topics).items()}

    def bounds(self, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
        """Place -> offsets of its oldest record and of its next one. Blocks; raises KafkaException."""
        places = list(places)
        begins, ends = self._offsets(places, EARLIEST), self._offsets(places, LATEST)
        return {place: (_offset(begins[place]), _offset(ends[place])) for place in places}

    def ask(self, topics: Iterable[str], places: Iterable[Place]) -> Answer:
        """Ask for topic ids and the ends of logs without waiting."""
        places = list(places)
        return Answer(
            asked_at=time.monotonic(),
            topics=self._describe(topics) if self._has_ids else {},
            offsets=self._offsets(places, LATEST) if places else {},
        )

    def read_id(self, topic: str, future: "Future[TopicDescription]") -> str:
        """The topic id in an answer; also says when the topic is missing, and when it is there again."""
        try:
            topic_id = str(future.result(ANSWER_SECONDS + 1).topic_id)
        except KafkaException as error:
            if code_of(error) in UNKNOWN_TOPIC:
                self._missing[topic].met(topic=topic)
                raise TopicMissingError(topic) from None
            raise
        self._missing[topic].over(topic=topic)
        return topic_id

    def _describe(self, topics: Iterable[str]) -> dict[str, "Future[TopicDescription]"]:
        return self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=ANSWER_SECONDS)

    def _offsets(self, places: list[Place], which: OffsetSpec) -> dict[Place, "Future[ListOffsetsResultInfo]"]:
        asked = {TopicPartition(*place): which for place in places}
        futures = self._admin.list_offsets(asked, request_timeout=ANSWER_SECONDS)
        return {(of.topic, of.partition): future for of, future in futures.items()}


def _offset(future: "Future[ListOffsetsResultInfo]") -> int:
    offset: int = future.result(ANSWER_SECONDS + 1).offset
    return offset
