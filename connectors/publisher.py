"""Records into Kafka: all of them, in order per key, or with a stated reason why Kafka will never take one.

The producer underneath sends again by itself for as long as it takes. What it cannot know is seen to here: that topics
exist, that they vanished from a Kafka that was wiped, and that the relay may have to stop in the middle. A record that
Kafka refuses for what it is must not stop those behind it: it is returned.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import structlog
from confluent_kafka import KafkaException

from connectors.delivery import Delivery
from connectors.topics import Topics
from state.outbox import Record

SLICE_RECORDS: Final = 20_000
SLICE_BYTES: Final = 32 * 1024 * 1024
"""One slice is held by the producer at a time, as large batches: far above a usual transaction."""
ASK_SECONDS: Final = 0.25
LOOK_SECONDS: Final = 2.0
"""Records that are not taken for this long: is Kafka away, or were its topics wiped?"""
PAUSE_SECONDS: Final = 0.5

_log = structlog.get_logger(__name__)


class Refusal(NamedTuple):
    """A record that Kafka will never take."""

    record: Record
    reason: str


class Interrupted(Exception):
    """The relay was stopped, or is the owner no longer, before everything was delivered: nothing of it counts."""


class Publisher:
    """Delivers records and waits for them. Not thread-safe."""

    def __init__(self, kafka: str, topics: Topics, goes_on: Callable[[], bool], compression: str = "none") -> None:
        """goes_on: asked every quarter of a second while records wait for Kafka; False raises Interrupted."""
        self._kafka, self._topics, self._goes_on, self._compression = kafka, topics, goes_on, compression
        self._is_away = False
        self._delivery = Delivery(kafka, compression)

    def publish(self, records: Sequence[Record]) -> list[Refusal]:
        """Return when each record is in Kafka; those that it refused for ever are in the answer. Raises Interrupted."""
        refusals: list[Refusal] = []
        for part in _slices(records):
            refusals += self._publish_slice(part)
        return refusals

    def close(self) -> None:
        """Let go of what is not delivered."""
        self._delivery.close()

    def _publish_slice(self, records: Sequence[Record]) -> list[Refusal]:
        names = {record.topic for record in records}
        self._ensure(names)
        refusals = []
        if unknown := self._topics.refused.keys() & names:
            refusals = [Refusal(one, self._topics.refused[one.topic]) for one in records if one.topic in unknown]
            records = [one for one in records if one.topic not in unknown]
        self._delivery.begin(records)
        self._wait(names)
        self._say_back()
        if self._delivery.refused:
            refusals += [Refusal(Record(one.topic, one.key, one.value), one.reason) for one in self._delivery.refused]
            self._delivery.refused.clear()
        return refusals

    def _ensure(self, names: set[str]) -> None:
        """See that the topics exist, however long it takes. Raises Interrupted."""
        while True:
            try:
                self._topics.ensure(names)
            except KafkaException as error:
                self._say_away(error.args[0].str())
                self._pause()
            else:
                return

    def _wait(self, names: set[str]) -> None:
        """Until nothing is on its way. Raises Interrupted."""
        looked_at = time.monotonic()
        while not self._delivery.wait(ASK_SECONDS):
            if not self._goes_on():
                self._abandon()
                raise Interrupted
            if (now := time.monotonic()) - looked_at > LOOK_SECONDS:
                looked_at = now
                self._look(names)

    def _look(self, names: set[str]) -> None:
        """Make the topics again that are gone from under the producer, which would wait for them for ever."""
        if self._delivery.trouble is not None:
            self._say_away(self._delivery.trouble)
        try:
            if self._topics.have_vanished(names):
                self._topics.forget()
            self._topics.ensure(names)
        except KafkaException as error:
            self._say_away(self._delivery.trouble or error.args[0].str())

    def _abandon(self) -> None:
        """What was begun is read again by whoever is the owner next; it must not pile up here."""
        self._delivery.close()
        self._delivery = Delivery(self._kafka, self._compression)

    def _pause(self) -> None:
        until = time.monotonic() + PAUSE_SECONDS
        while time.monotonic() < until:
            if not self._goes_on():
                raise Interrupted
            time.sleep(0.05)

    def _say_away(self, reason: str) -> None:
        if not self._is_away:
            _log.warning("kafka does not take records", reason=reason)
        self._is_away = True

    def _say_back(self) -> None:
        if self._is_away:
            _log.info("kafka takes records again")
        self._is_away = False


def _slices(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Cut where a slice would grow beyond its limits; normally one slice, the records themselves."""
    start, size = 0, 0
    for position, record in enumerate(records):
        size += len(record.value)
        if position > start and (size > SLICE_BYTES or position - start >= SLICE_RECORDS):
            yield records[start:position]
            start, size = position, len(record.value)
    if start < len(records):
        yield records[start:] if start else records
