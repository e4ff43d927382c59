"""The thread that owns the consumer of commands and hands whole polls to the event loop.

A command is committed once it was received: Kafka only says "try", and Postgres hands out again what nobody answers or
lists. So librdkafka's own periodic commit is exact enough here, unlike anywhere else in the project.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.attempt import Attempt
from headrace.coordinator import CoordinatorWatch
from headrace.errors import MessageError
from headrace.messages import TRACEPARENT, decode_command
from headrace.pace import Pace
from headrace.worker.broker import Broker, Link, LogIdentity, Rebuild, is_lost, is_missing, is_too_old
from headrace.worker.room import Room
from headrace.worker.stats import Stats

_log = structlog.get_logger("headrace.worker")

POLL_SECONDS: Final = 0.2
PACE_SECONDS: Final = 0.002
"""At most one poll in this time while polls bring much (`headrace.pace`)."""
REBUILD_SECONDS_MAX: Final = 5.0
LEARN_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 30.0
ASK_SECONDS: Final = 2.0
ALL_OF_IT: Final = 2**62
FULL_SECONDS: Final = 0.5
"""How long a full worker just waits for room. Then it pauses its partitions and polls, so that Kafka sees it alive; not
at once, because a pause throws away what librdkafka has already fetched."""


class Intake(threading.Thread):
    """Takes commands while there is room and Kafka keeps up with the answers."""

    def __init__(
        self,
        broker: Broker,
        queues: Sequence[str],
        *,
        loop: asyncio.AbstractEventLoop,
        room: Room,
        take: Callable[[list[Attempt]], object],
        fail: Callable[[BaseException], object],
        is_clogged: Callable[[], bool],
        link: Link,
        stats: Stats,
        on_member: Callable[[str], object] = lambda member: None,
        listening: threading.Event | None = None,
    ) -> None:
        """on_member: hears the id of this consumer in its group, on the event loop.
        listening: set once the worker hears what the engine tells every worker."""
        super().__init__(name="headrace-intake", daemon=True)  # a broker that never answers must not hold the exit
        self._broker = broker
        self._topics = [broker.commands(queue) for queue in queues]
        self._loop, self._space, self._take, self._fail, self._is_clogged = loop, room, take, fail, is_clogged
        self._link, self._stats, self._on_member = link, stats, on_member
        self._halt = threading.Event()
        self._protocol = "consumer"
        self._failures = 0
        """Consumers that failed in a row, without an assignment between them."""
        self._replaced: set[str] = set()
        self._restarted: set[tuple[str, int]] = set()
        self._listening = listening
        self._asked_until: dict[tuple[str, int], int] = {}
        """Where each partition ended when it was assigned: what lies before may have been called off already."""

    def stop(self) -> None:
        """Take nothing more, commit and leave the group; `join` tells when that is done."""
        self._halt.set()
        self._space.wake()

    # -- the thread ----------------------------------------------------------------------------------------------------
    def run(self) -> None:
        identity = LogIdentity(self._broker, self._topics, self._link)
        try:
            while not self._halt.is_set():
                try:
                    self._session(identity)
                except (Rebuild, KafkaException) as e:
                    self._stats.rebuilds += 1
                    self._failures += 1
                    if self._failures == 1:
                        _log.warning("a new consumer of commands is needed", reason=str(e))
                    self._halt.wait(min(POLL_SECONDS * 2**self._failures, REBUILD_SECONDS_MAX))
        except BaseException as e:
            with suppress(RuntimeError):  # the loop is closed: the worker did not wait for us
                self._loop.call_soon_threadsafe(self._fail, e)

    def _session(self, identity: LogIdentity) -> None:
        """One consumer, from its subscription until it is closed. A consumer never crosses a topic id."""
        if not self._broker.topic_ids:
            self._ask_for_topics()
        coordinator = CoordinatorWatch()
        consumer = Consumer(self._settings() | coordinator.settings())
        pace, watchdog = Pace(PACE_SECONDS), Watchdog()
        consumer.subscribe(self._topics, on_assign=partial(self._assigned, identity))
        try:
            while not self._halt.is_set():
                self._check(identity)
                if coordinator.is_lost:
                    raise Rebuild("the coordinator of its group is lost")
                room = self._room()
                if room <= 0 and (room := self._await_room(consumer, identity)) <= 0:
                    continue
                messages = consumer.consume(1, POLL_SECONDS)  # wakes with the first message ...
                if messages and room > 1:
                    pace.wait()
                    messages += consumer.consume(room - 1, 0)  # ... and takes whatever else is here
                if messages:
                    pace.begun(len(messages))
                    watchdog.fed()
                    self._hand_over(messages)
                elif watchdog.is_due:
                    watchdog.look(consumer)
        finally:
            consumer.close()

    def _ask_for_topics(self) -> None:
        """The embedded log makes a topic when somebody asks about it, and never tells a member of one made later."""
        admin = AdminClient(self._broker.client())
        for topic in self._topics:
            with suppress(KafkaException):  # away: the consumer says so
                admin.list_topics(topic, timeout=LEARN_SECONDS)

    def _settings(self) -> dict[str, Any]:
        settings = {
            "group.protocol": self._protocol,
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 500,
            "auto.offset.reset": "earliest",
            "error_cb": self._link.on_error,
            **self._broker.consumer(self._broker.group),
        }
        if self._protocol == "classic":
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        return settings

    def _check(self, identity: LogIdentity) -> None:
        if replaced := identity.changed():
            self._replaced |= replaced
            self._restarted = set()
            raise Rebuild(f"the log behind {', '.join(sorted(replaced))} was replaced")

    def _assigned(self, identity: LogIdentity, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start a replaced log at its beginning, each partition once; otherwise where the group stopped."""
        for partition in partitions:
            key = (partition.topic, partition.partition)
            if partition.topic in self._replaced and key not in self._restarted:
                self._restarted.add(key)
                partition.offset = OFFSET_BEGINNING
        self._failures = 0
        if self._protocol == "consumer":
            self._loop.call_soon_threadsafe(self._on_member, consumer.memberid())
        if partitions:
            identity.learn(LEARN_SECONDS)
            self._note_ends(consumer, partitions)
            consumer.incremental_assign(partitions)

    def _note_ends(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """An order to abort is said once. A command that is older than our listening, or than our having its partition,
        may be of a run that was cancelled since; its body asks first."""
        if self._listening is not None:
            self._listening.wait(LEARN_SECONDS)
        for partition in partitions:
            try:
                end = consumer.get_watermark_offsets(partition, timeout=LEARN_SECONDS)[1]
            except KafkaException:
                end = ALL_OF_IT
            self._asked_until[partition.topic, partition.partition] = end

    # -- room ----------------------------------------------------------------------------------------------------------
    def _room(self) -> int:
        return 0 if self._is_clogged() else self._space.free

    def _await_room(self, consumer: Consumer, identity: LogIdentity) -> int:
        """Wait until half is free, so that batches stay large; the room there is then, 0 when stopping."""
        full_since, paused = time.monotonic(), False
        try:
            while not self._halt.is_set():
                self._space.wait(POLL_SECONDS)
                if (room := self._room()) > 0:
                    return room
                if paused or time.monotonic() - full_since >= FULL_SECONDS:
                    consumer.pause(consumer.assignment())
                    paused = True
                    # A partition assigned this moment is not paused yet, so a message may come in spite of it.
                    if messages := consumer.consume(1, 0):
                        self._hand_over(messages)
                if self._is_clogged():
                    self._halt.wait(POLL_SECONDS)
                self._check(identity)
            return 0
        finally:
            if paused:
                consumer.resume(consumer.assignment())

    # -- messages ------------------------------------------------------------------------------------------------------
    def _hand_over(self, messages: list[Message]) -> None:
        attempts = [attempt for message in messages if (attempt := self._attempt(message)) is not None]
        if attempts:
            self._space.take(len(attempts), sum(attempt.size for attempt in attempts))
            self._link.up()
            self._loop.call_soon_threadsafe(self._take, attempts)

    def _attempt(self, message: Message) -> Attempt | None:
        error = message.error()
        if error is not None:
            self._trouble(message, error)
            return None
        key, value = message.key(), message.value()
        try:
            command = decode_command(value)
            if not isinstance(key, bytes) or not key.isascii():
                raise MessageError("its key is not the id of a run")
        except MessageError as e:
            # The engine will find that nobody holds this task and hand it out again, perhaps to a newer worker.
            self._stats.undecodable += 1
            where = f"{message.topic()}[{message.partition()}]@{message.offset()}"
            _log.warning("a record that is no command was set aside", record=where, reason=str(e)[:500])
            return None
        headers = message.headers()
        attempt = Attempt(key, command, len(value or b""), _traceparent(headers) if headers else None)
        if self._asked_until and self._may_be_called_off(message):
            attempt.asks = True
        return attempt

    def _may_be_called_off(self, message: Message) -> bool:
        place = (message.topic() or "", message.partition() or 0)
        end = self._asked_until.get(place)
        if end is None:
            return False
        if (message.offset() or 0) < end:
            return True
        del self._asked_until[place]
        return False

    def _trouble(self, message: Message, error: KafkaError) -> None:
        if is_too_old(error) and self._protocol == "consumer":
            self._protocol = "classic"
            raise Rebuild("this broker knows only the classic group protocol")
        if is_lost(error):
            raise Rebuild(error.str())
        if is_missing(error):
            self._link.missing(str(message.topic()))
        elif not error.retriable():
            self._link.refused(error.str())


class Watchdog:
    """Notices commands that are there and do not come: a consumer may be a healthy member of its group and fetch no
    more.

    Twice in a row, with nothing received between: then it is thrown away. Asking costs a request per partition, so it
    is done seldom, and only while nothing comes.
    """

    def __init__(self) -> None:
        self._next_at = time.monotonic() + WATCH_SECONDS
        self._missed: dict[tuple[str, int], int] = {}

    def fed(self) -> None:
        self._next_at = time.monotonic() + WATCH_SECONDS
        self._missed.clear()

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._next_at

    def look(self, consumer: Consumer) -> None:
        """Raises Rebuild when what was missing at the last look is missing still."""
        self._next_at = time.monotonic() + WATCH_SECONDS
        try:
            missing = dict(_missing(consumer))
        except KafkaException:
            missing = {}  # away: nothing can be said
        for place, position in missing.items():
            if self._missed.get(place) == position:
                raise Rebuild(f"{place[0]}[{place[1]}] has commands behind {position} that do not come")
        self._missed = missing


def _missing(consumer: Consumer) -> Iterator[tuple[tuple[str, int], int]]:
    """The assigned partitions that go on behind the consumer's position."""
    for place in consumer.position(consumer.assignment()):
        low, high = consumer.get_watermark_offsets(place, timeout=ASK_SECONDS)
        position = place.offset
        if position < 0:  # nothing was read from it yet
            position = max(low, consumer.committed([place], timeout=ASK_SECONDS)[0].offset)
        if high > position:
            yield (place.topic, place.partition), position


def _traceparent(headers: Any) -> str | None:
    for name, value in headers:
        if name == TRACEPARENT and isinstance(value, bytes):
            return value.decode("ascii", "replace")
    return None
