"""A membership: one consumer, from joining the group to leaving it.

It lives on the transport's thread, and everything here but `rebuild` and `fenced` is called there. It leases what the
group assigns, reads, and hands over what it read. When its idea of the log turns out to be wrong it raises `Rebuild`,
and the transport makes a new one.

Why a membership never crosses a topic id: librdkafka keeps the leader epochs of the old log. When those are higher than
the new log's (the broker was restarted), it ignores the new log's metadata for ever: assigned, fetching nothing, no
error (librdkafka #4898).
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.coordinator import CoordinatorWatch
from streams.batch import Batch
from streams.broker import Answer, Broker, Place, TopicMissingError, Trouble
from streams.inbox import Inbox

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 0.2
"""How long a poll waits for its first record, so how soon a halt is seen. It adds no latency to a record."""
PAUSE_AFTER_SECONDS: Final = 0.2
"""How long to wait for room before reading is paused; a pause costs a fetch, because it empties the local queue."""
CHECK_SECONDS: Final = 2.0
"""How often the broker is asked for topic ids and ends of logs: the longest that a re-created topic goes unnoticed."""
LEASE_SECONDS_MAX: Final = 30.0
"""How long to insist on leases for one assignment before leaving the group, so that another member may try."""
PATIENCE_GROWTH: Final = 2
PATIENCE_MAX: Final = 600.0

LOST: Final = frozenset({KafkaError._FATAL, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
"""Errors after which this consumer cannot go on. The code is asked, because one with code _FATAL is not `.fatal()`."""
NO_LOG: Final = "no log"
"""An id that no log has: leasing under it makes the lease forget its next offset."""

Granted = dict[int, tuple[int, int | None]]


class Rebuild(Exception):
    """This membership's idea of the log is wrong: leave the group, start over."""


class Held(NamedTuple):
    """Ownership of a topic's partitions as the lease granted it; replaced whole, never changed: batches keep it."""

    topic_id: str
    epochs: dict[int, int]


@dataclass(slots=True)
class Watchdog:
    """Notices a partition whose log grows while nothing of it arrives.

    Stalled means: a record was there `seconds` ago, the local queue has been found empty since, and still it has not
    come. (A record may wait that long behind others in the local queue; then the queue is not empty, and nothing is
    wrong.) A rebuild that did not help is repeated after twice the time: a log that ends in a transaction marker looks
    stalled for good.
    """

    seconds: float
    _behind: dict[Place, tuple[int, float]] = field(default_factory=dict)
    _patience: dict[Place, tuple[int, float]] = field(default_factory=dict)

    def is_stalled(self, place: Place, next_offset: int, end: int, now: float, emptied_at: float) -> bool:
        """Judge what the broker says of one log; monotonic seconds."""
        if end <= next_offset:
            self._behind.pop(place, None)
            return False
        seen_offset, since = self._behind.setdefault(place, (next_offset, now))
        if seen_offset != next_offset:
            self._behind[place] = (next_offset, now)
            return False
        futile_offset, patience = self._patience.get(place, (-1, self.seconds))
        if futile_offset != next_offset:
            patience = self.seconds
        if emptied_at - since < patience:
            return False
        self._patience[place] = (next_offset, min(patience * PATIENCE_GROWTH, PATIENCE_MAX))
        return True

    def forget(self) -> None:
        """Begin counting anew, because reading was paused or a new membership began."""
        self._behind.clear()


@dataclass(slots=True, frozen=True)
class Shore:
    """What a membership needs of the transport behind it."""

    lease: Callable[[str, str, list[int]], Granted]
    """Run the engine's lease on the event loop and wait; raises what it raises, or `Rebuild` on a halt."""
    hand_over: Callable[[list[Batch]], None]
    inbox: Inbox
    """Where that goes; full: nothing is read."""
    halted: threading.Event
    broker: Broker
    watchdog: Watchdog
    leasing: Trouble
    reading: Trouble


class Membership:
    """Reads the topics for one group until the transport halts or `Rebuild` is raised; then `close` it."""

    def __init__(self, conf: dict[str, Any], topics: Iterable[str], shore: Shore) -> None:
        self._topics, self._shore = sorted(topics), shore
        self._leases: dict[str, Held] = {}
        self._log_ids: dict[str, str] = {}
        self._next: dict[Place, int] = {}
        self._fetched: list[tuple[dict[str, Held], list[Message]]] = []
        self._answer: Answer | None = None
        self._asked_at = self._emptied_at = time.monotonic()
        self._wrong: str | None = None
        self.has_read = False
        shore.watchdog.forget()
        self._coordinator = CoordinatorWatch()
        self._consumer = Consumer({**conf, **self._coordinator.settings(), "error_cb": shore.broker.on_error})

    def serve(self) -> None:
        """Read and hand over until the transport halts; raises `Rebuild`."""
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        while not self._shore.halted.is_set():
            self._check()
            if self._shore.inbox.room <= 0:
                self._wait_for_room()
                continue
            if not self._fetched:
                self._read(1, POLL_SECONDS)  # wakes with the first record ...
            if self._fetched:
                self._read(self._shore.inbox.room, 0)  # ... and takes whatever else is already here
                self._hand_over()

    def close(self) -> None:
        """Leave the group. Batches that are still out keep the epochs they came with."""
        self._leases = {}
        self._consumer.close()

    def rebuild(self, why: str) -> None:
        """Ask for a rebuild; from any thread. The first reason stands."""
        self._wrong = self._wrong or why

    def fenced(self, topic: str, epoch: int, partition: int) -> None:
        """Hear that a batch of this epoch may not be applied; from any thread.

        If the partition is still ours by the group, a lease that came late has taken it: its process was not given the
        partition and will not read it, so somebody has to lease it again.
        """
        held = self._leases.get(topic)
        if held is not None and held.epochs.get(partition) == epoch:
            self.rebuild(f"{topic}/{partition} was taken by a process that the group does not give it to")

    # -- assignment: these are called inside consume() and close(), on this thread

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        if not assigned:
            return
        starts = self._insist_on_leases(_by_topic(assigned))
        for place in assigned:
            start = starts[place.topic, place.partition]
            place.offset = OFFSET_BEGINNING if start is None else start
        consumer.incremental_assign(assigned)
        log.info("partitions assigned", **_by_topic(assigned))

    def _on_revoke(self, consumer: Consumer, revoked: list[TopicPartition]) -> None:
        gone = {(place.topic, place.partition) for place in revoked}
        for place in gone:
            self._next.pop(place, None)
        self._leases = {
            topic: Held(held.topic_id, {p: epoch for p, epoch in held.epochs.items() if (topic, p) not in gone})
            for topic, held in self._leases.items()
        }
        if revoked:
            consumer.incremental_unassign(revoked)
            log.info("partitions revoked", **_by_topic(revoked))

    def _insist_on_leases(self, wanted: dict[str, list[int]]) -> dict[Place, int | None]:
        """Lease until it works: an assignment without a lease is of no use."""
        give_up_at, pause = time.monotonic() + LEASE_SECONDS_MAX, 0.1
        while True:
            try:
                starts = self._lease(wanted)
            except TopicMissingError as missing:
                raise Rebuild(f"topic {missing} went while it was assigned") from None
            except Rebuild:
                raise
            except Exception as error:  # whatever the lease may raise: the database is away, Kafka is away
                self._shore.leasing.met(error=repr(error), exc_info=error)
            else:
                self._shore.leasing.over()
                return starts
            if time.monotonic() > give_up_at:
                raise Rebuild("no lease")
            if self._shore.halted.wait(pause):
                raise Rebuild("halted")
            pause = min(pause * 2, 2.0)

    def _lease(self, wanted: dict[str, list[int]]) -> dict[Place, int | None]:
        leases, starts = dict(self._leases), dict[Place, int | None]()
        log_ids = self._shore.broker.log_ids(wanted)
        for topic, partitions in wanted.items():
            self._stay_with(topic, log_ids[topic])
            granted = self._lease_inside_log(topic, log_ids[topic], sorted(partitions))
            held = leases.get(topic, Held(log_ids[topic], {}))
            leases[topic] = Held(held.topic_id, held.epochs | {p: epoch for p, (epoch, _) in granted.items()})
            starts.update({(topic, p): start for p, (_, start) in granted.items()})
        self._leases = leases
        return starts

    def _lease_inside_log(self, topic: str, topic_id: str, partitions: list[int]) -> Granted:
        """Lease; where the next offset lies outside the log, start that partition over.

        The log was cut at its end (data lost) or at its beginning (retention). The offset would be an error at best,
        and at worst, once the log had grown past it, a silent skip. Leasing under an id that no log has makes the lease
        forget the offset.
        """
        granted = self._shore.lease(topic, topic_id, partitions)
        bounds = self._shore.broker.bounds((topic, p) for p in partitions)
        lost = {p: start for p, (_, start) in granted.items() if _is_outside(start, bounds[topic, p])}
        if lost:
            logs = {p: bounds[topic, p] for p in lost}
            log.warning("next offset outside the log, starting over", topic=topic, offsets=lost, logs=logs)
            self._shore.lease(topic, NO_LOG, sorted(lost))
            granted |= self._shore.lease(topic, topic_id, sorted(lost))
        for p, (_, start) in granted.items():
            self._next[topic, p] = bounds[topic, p][0] if start is None else start
        return granted

    def _stay_with(self, topic: str, log_id: str) -> None:
        known = self._log_ids.setdefault(topic, log_id)
        if known != log_id:
            raise Rebuild(f"topic {topic} was re-created: its id {known} became {log_id}")

    # -- reading

    def _read(self, records_max: int, seconds: float) -> None:
        messages = self._consumer.consume(records_max, seconds)
        if len(messages) < records_max:
            self._emptied_at = time.monotonic()
        if not messages:
            return
        if self._fetched and self._fetched[-1][0] is self._leases:
            self._fetched[-1][1].extend(messages)
        else:  # records stay with the leases they were fetched under
            self._fetched.append((self._leases, messages))

    def _wait_for_room(self) -> None:
        """Wait until records may be handed over; meanwhile poll paused, so that a slow body costs no membership."""
        is_paused = False
        while not self._shore.halted.is_set() and not self._shore.inbox.wait(PAUSE_AFTER_SECONDS):
            self._consumer.pause(self._consumer.assignment())
            is_paused = True
            self._read(1, 0)  # serves the group; a partition assigned just now is not paused yet and may give a record
            self._check(is_paused=True)
        if is_paused:
            self._consumer.resume(self._consumer.assignment())
            self._shore.watchdog.forget()

    def _hand_over(self) -> None:
        """Give what was fetched to the event loop, a batch for each topic and leases."""
        fetched, self._fetched = self._fetched, []
        batches: list[Batch] = []
        for leases, messages in fetched:
            for topic, records in self._sort(messages).items():
                held = leases.get(topic)
                owned = {p: of for p, of in records.items() if p in held.epochs} if held else {}
                if held and owned:
                    batch = Batch(topic, held.topic_id, owned, held.epochs, on_rebuild=self.rebuild)
                    batch.on_fenced = self.fenced
                    batches.append(batch)
        if batches:
            self._shore.reading.over()
            self.has_read = True
            self._shore.hand_over(batches)

    def _sort(self, messages: list[Message]) -> dict[str, dict[int, list[Message]]]:
        sorted_: dict[str, dict[int, list[Message]]] = {}
        last: Any = None
        records: list[Message] = []
        for message in messages:
            if (error := message.error()) is not None:
                self._judge(error)
                continue
            place: Any = (message.topic(), message.partition())  # typed as optional; None only with an error
            if place != last:  # records of one partition come in a row
                last = place
                records = sorted_.setdefault(place[0], {}).setdefault(place[1], [])
            records.append(message)
        self._note_progress(sorted_)
        return sorted_

    def _note_progress(self, read: dict[str, dict[int, list[Message]]]) -> None:
        for topic, partitions in read.items():
            for partition, records in partitions.items():
                if (topic, partition) in self._next:
                    self._next[topic, partition] = (records[-1].offset() or 0) + 1

    def _judge(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in LOST:
            self.rebuild(error.str())
        else:  # the broker or a topic is away: librdkafka keeps trying
            self._shore.reading.met(error=error.str())

    # -- asking whether all is well

    def _check(self, is_paused: bool = False) -> None:
        """Look at the broker's last answer, or ask again when it is time; raises `Rebuild` for whatever is wrong."""
        now = time.monotonic()
        if self._answer is None:
            if now - self._asked_at >= CHECK_SECONDS:
                self._asked_at, self._answer = now, self._shore.broker.ask(self._topics, self._next)
        elif self._answer.done():
            answer, self._answer = self._answer, None
            self._shore.broker.hear(answer)
            self._compare_ids(answer)
            if not is_paused:
                self._compare_ends(answer, now)
        if self._coordinator.is_lost:
            raise Rebuild("the coordinator of the group is lost")
        if self._wrong is not None:
            raise Rebuild(self._wrong)

    def _compare_ids(self, answer: Answer) -> None:
        for topic, future in answer.topics.items():
            try:
                topic_id = self._shore.broker.read_id(topic, future)
            except (KafkaException, TopicMissingError):
                continue  # said by the broker
            if topic in self._log_ids:
                self._stay_with(topic, topic_id)

    def _compare_ends(self, answer: Answer, now: float) -> None:
        for place, future in answer.offsets.items():
            next_offset = self._next.get(place)
            if next_offset is None or future.exception() is not None:
                continue
            end = future.result().offset
            if self._shore.watchdog.is_stalled(place, next_offset, end, now, self._emptied_at):
                raise Rebuild(f"stalled: {place[0]}/{place[1]} ends at {end}, and {next_offset} does not come")


def _is_outside(offset: int | None, bounds: tuple[int, int]) -> bool:
    return offset is not None and not bounds[0] <= offset <= bounds[1]


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    partitions: dict[str, list[int]] = {}
    for place in places:
        partitions.setdefault(place.topic, []).append(place.partition)
    return partitions
