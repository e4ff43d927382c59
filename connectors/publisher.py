"""Records into Kafka: all of them, in order per key, or with a stated reason why Kafka will never take one.

An idempotent producer keeps order within a partition and retries by itself for ever. What it cannot get over (a wiped
log, a fatal error) ends in a new producer and the same records once more, all of them from the first, so that order per
key holds and the price is duplicates. A record that Kafka refuses for what it is must not stop those behind it: it is
returned.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectors.topics import Topics
from headrace.messages import TRACEPARENT
from state.outbox import Record

SLICE_RECORDS: Final = 20_000
SLICE_BYTES: Final = 32 * 1024 * 1024
"""One slice is in librdkafka's queue at a time: far below its limit of 1 GiB, far above a usual transaction."""
LOOK_SECONDS: Final = 2.0
"""Records that are not taken for this long: is Kafka away, or were its topics wiped?"""
EAGER_SECONDS: Final = 0.02
"""A broker at hand answers in one or two milliseconds; what takes longer is waited for at ease."""

_REFUSED_FOR_EVER: Final = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.TOPIC_EXCEPTION,
)

_BY_KEY: Final = -1

_log = structlog.get_logger(__name__)


class Refusal(NamedTuple):
    """A record that Kafka will never take."""

    record: Record
    reason: str


class Interrupted(Exception):
    """The relay was stopped, or is the owner no longer, before everything was delivered: nothing of it counts."""


class _Failure(NamedTuple):
    record: Record
    error: KafkaError
    is_local: bool
    """Refused on the spot, for itself; otherwise its batch was refused, perhaps for another's sake."""

    @property
    def is_for_ever(self) -> bool:
        return self.error.code() in _REFUSED_FOR_EVER


class Publisher:
    """Delivers records and waits for them. Not thread-safe."""

    def __init__(self, kafka: str, topics: Topics, goes_on: Callable[[], bool], compression: str = "none") -> None:
        """goes_on: asked every quarter of a second while records wait for Kafka; False raises Interrupted."""
        self._topics, self._goes_on = topics, goes_on
        self._settings: dict[str, Any] = {
            "bootstrap.servers": kafka,
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": 0,  # never give up: giving up loses a record, and with it the order
            "linger.ms": 0,
            "batch.num.messages": 10_000,
            "compression.type": compression,
            "partitioner": "murmur2_random",  # as Java and Faust do; librdkafka's default places most keys elsewhere
            "queue.buffering.max.messages": 2 * SLICE_RECORDS,
            "delivery.report.only.error": True,
            "reconnect.backoff.max.ms": 1000,
            "retry.backoff.max.ms": 500,
            "socket.keepalive.enable": True,
            "log_level": 0,  # errors arrive through error_cb, and are said once
        }
        self._failures: list[_Failure] = []
        self._fatal: KafkaError | None = None
        self._last_error = ""
        self._is_away = False
        self._producer = self._make_producer()

    def publish(self, records: Sequence[Record]) -> list[Refusal]:
        """Return when each record is in Kafka; those that it refused for ever are in the answer. Raises Interrupted."""
        refusals: list[Refusal] = []
        for part in _slices(records):
            refusals += self._publish_slice(part)
        return refusals

    def close(self) -> None:
        """Let go of what is not delivered."""
        self._producer.purge()
        with suppress(KafkaException):  # a fatal error, once more
            self._producer.poll(0)

    def _publish_slice(self, records: Sequence[Record]) -> list[Refusal]:
        """Send until all are taken or refused.

        After anything but a refusal: a new producer, and the whole slice again.
        """
        tries = 0
        while True:
            try:
                failures = self._send(records)
                curable = [failure for failure in failures if not failure.is_for_ever]
                if not curable:
                    self._say_back()
                    return [refusal for failure in failures if (refusal := self._settle(failure)) is not None]
                reason = curable[0].error.str()
                if tries:
                    records = _place_by_key(records, curable)
            except KafkaException as error:  # the topics could not be looked at, or the producer is beyond repair
                reason = error.args[0].str()
            self._say_away(reason)
            _log.debug("sending again through a new producer", records=len(records), tries=tries, reason=reason)
            self._rebuild(tries)
            tries += 1

    def _settle(self, failure: _Failure) -> Refusal | None:
        """A record whose batch was refused may go through alone: late, but a bad record must not take others along."""
        if not failure.is_local:
            again = self._send([failure.record])
            if not again:
                return None
            failure = again[0]
            if not failure.is_for_ever:
                raise KafkaException(failure.error)
        return Refusal(failure.record, failure.error.str())

    def _send(self, records: Sequence[Record]) -> list[_Failure]:
        """Enqueue and wait; what failed, in no order.

        Raises KafkaException when Kafka or the producer needs another start.
        """
        self._failures.clear()
        names = {record.topic for record in records}
        self._topics.ensure(names)
        if self._topics.refused:
            records = self._without_refused_topics(records)
        self._enqueue(records)
        self._wait(names)
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        return list(self._failures)

    def _without_refused_topics(self, records: Sequence[Record]) -> list[Record]:
        error = KafkaError(KafkaError.TOPIC_EXCEPTION)
        taken = []
        for record in records:
            if record.topic in self._topics.refused:
                self._failures.append(_Failure(record, error, is_local=True))
            else:
                taken.append(record)
        return taken

    def _enqueue(self, records: Sequence[Record]) -> None:
        """One call per place, since calls cost. Order holds per topic and key: before a record that cannot share a call
        with those before it (it has a header, or is placed by key where they were not) all of its topic are handed
        over.
        """
        batches: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for record in records:
            topic, key, value, partition, traceparent, headers = record
            places = batches.setdefault(topic, {})
            if traceparent is not None or headers:
                self._produce_batches(topic, places)
                self._produce(record)
                continue
            where = _BY_KEY if partition is None else partition
            batch = places.get(where)
            if batch is None:
                if _BY_KEY in places or where == _BY_KEY:
                    self._produce_batches(topic, places)
                batch = places[where] = []
            batch.append({"key": key, "value": value})
        for topic, places in batches.items():
            self._produce_batches(topic, places)

    def _produce_batches(self, topic: str, places: dict[int, list[dict[str, Any]]]) -> None:
        """Hand over and forget.

        The partition is an argument: the one in a message's dict is documented, but not heeded.
        """
        for where, batch in places.items():
            if self._producer.produce_batch(topic, batch, partition=where, on_delivery=self._on_failure) < len(batch):
                for message in batch:
                    if (error := message.get("_error")) is not None:
                        record = Record(topic, message["key"], message["value"], None if where == _BY_KEY else where)
                        self._failures.append(_Failure(record, error, is_local=True))
        places.clear()

    def _produce(self, record: Record) -> None:

        def on_failure(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._failures.append(_Failure(record, error, is_local=False))

        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                _BY_KEY if record.partition is None else record.partition,
                headers=_headers(record),
                on_delivery=on_failure,
            )
        except KafkaException as error:
            self._failures.append(_Failure(record, error.args[0], is_local=True))

    def _wait(self, names: set[str]) -> None:
        """Until nothing is on its way. Not `flush`: with reports of failures only it wakes every ten milliseconds."""
        producer = self._producer
        began = asked_at = looked_at = time.monotonic()
        while len(producer) and self._fatal is None:
            now = time.monotonic()
            if now - began < EAGER_SECONDS:
                time.sleep(0.0002)
                producer.poll(0)
                continue
            producer.poll(0.005)
            if now - asked_at > 0.25:
                asked_at = now
                if not self._goes_on():
                    raise Interrupted
            if now - looked_at > LOOK_SECONDS:
                self._look(names)
                looked_at = time.monotonic()

    def _look(self, names: set[str]) -> None:
        """Raises KafkaException when topics are gone from under the producer, which would wait for them for ever."""
        try:
            have_vanished = self._topics.have_vanished(names)
        except KafkaException as error:
            self._say_away(self._last_error or error.args[0].str())
            return
        if have_vanished:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "topics have vanished from Kafka"))

    def _rebuild(self, tries: int) -> None:
        """Begin with a new producer and no knowledge of topics, after a pause. Raises Interrupted."""
        self.close()
        pause_until = time.monotonic() + min(0.05 * 2**tries, 2.0)
        while time.monotonic() < pause_until:
            if not self._goes_on():
                self._producer = self._make_producer()
                raise Interrupted
            time.sleep(0.05)
        self._topics.forget()
        self._producer = self._make_producer()

    def _make_producer(self) -> Producer:
        """Each producer reports into a list of its own: a purged one still speaks, but not about its successor."""
        self._fatal = None
        failures: list[_Failure] = []
        self._failures = failures

        def on_error(error: KafkaError) -> None:
            self._last_error = error.str()
            if (error.fatal() or error.code() == KafkaError._FATAL) and failures is self._failures:
                self._fatal = error

        def on_failure(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                record = Record(
                    message.topic() or "", message.key() or b"", message.value() or b"", message.partition()
                )
                failures.append(_Failure(record, error, is_local=False))

        self._on_failure = on_failure
        return Producer(self._settings | {"error_cb": on_error})

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


def _place_by_key(records: Sequence[Record], failures: Sequence[_Failure]) -> Sequence[Record]:
    """A partition that fresh metadata lacks too: the topic has fewer than were set.

    Nothing relies on where a command lies.
    """
    codes = (KafkaError._UNKNOWN_PARTITION,)
    topics = {failure.record.topic for failure in failures if failure.error.code() in codes}
    if topics:
        _log.warning("partitions are missing, records are placed by key", topics=sorted(topics))
    return [record._replace(partition=None) if record.topic in topics else record for record in records]


def _headers(record: Record) -> list[tuple[str, str | bytes | None]]:
    trace = [] if record.traceparent is None else [(TRACEPARENT, record.traceparent.encode())]
    return [*record.headers, *trace]
