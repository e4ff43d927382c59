"""Clients of the modelled Kafka with the interface of confluent-kafka, as far as the product uses it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition, murmur2

from headrace.errors import UnavailableError
from streams.broker import LATEST
from tests.simulation.kafka import SESSION_SECONDS, Kafka, Place, Stored
from tests.simulation.primitives import Future, Waiters
from tests.simulation.scheduler import sim

COMMIT_SECONDS: Final = 0.5
_INVALID: Final = -1001


class Cluster:
    """Where clients find the broker: there is one in a simulation."""

    kafka: Kafka


class FakeMessage:
    __slots__ = ("_error", "_offset", "_partition", "_stored", "_topic")

    def __init__(self, topic: str, partition: int, offset: int, stored: Stored, error: KafkaError | None = None):
        self._topic, self._partition, self._offset, self._stored, self._error = topic, partition, offset, stored, error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._stored.key

    def value(self) -> bytes | None:
        return self._stored.value

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._stored.headers

    def error(self) -> KafkaError | None:
        return self._error


_NOTHING: Final = Stored(None, None, None)


def _away() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "the simulated broker is away"))


class _Metadata:
    def __init__(self, topics: dict[str, "_TopicMetadata"]) -> None:
        self.topics = topics


class _TopicMetadata:
    def __init__(self, partitions: int) -> None:
        self.partitions = {p: None for p in range(partitions)}
        self.error: KafkaError | None = None


def _list_topics(timeout: float | None) -> _Metadata:
    kafka = Cluster.kafka
    _ask(timeout)
    return _Metadata({name: _TopicMetadata(len(topic.logs)) for name, topic in kafka.topics.items()})


def _ask(timeout: float | None) -> None:
    """One request that blocks; raises when there is no answer in time."""
    world, kafka = sim(), Cluster.kafka
    world.sleep(world.latency(0.0005, 0.004))
    deadline = world.now + (timeout if timeout is not None and timeout > 0 else 5.0)
    while not kafka.is_up:
        if world.now >= deadline:
            raise _away()
        world.sleep(min(0.1, max(deadline - world.now, 0.001)))


class FakeConsumer:
    """One member of a group, or a reader that assigns itself."""

    def __init__(self, settings: dict[str, Any]) -> None:
        world = sim()
        self._kafka, self._process = Cluster.kafka, world.current.process
        self.group_id: str = settings["group.id"]
        self._commits = bool(settings.get("enable.auto.commit", True))
        self._reset: str = settings.get("auto.offset.reset", "latest")
        self._on_error: Callable[[KafkaError], None] = settings.get("error_cb", lambda error: None)
        self._member = f"{self._process.name}-{world.random.getrandbits(32):08x}"
        self.topics: list[str] = []
        self.positions: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._on_assign: Any = None
        self._on_revoke: Any = None
        self._on_lost: Any = None
        self._errors: deque[FakeMessage] = deque()
        self._waiters = Waiters()
        self._committed_at = world.now
        self.is_out, self._is_closed, self._said_down, self._is_subscribed = False, False, False, False
        self._kafka.consumers.append(self)
        self._process.on_death.append(self._vanish)
        self._process.on_pause.append(self._fall_silent)

    # -- life
    def subscribe(
        self, topics: Iterable[str], on_assign: Any = None, on_revoke: Any = None, on_lost: Any = None
    ) -> None:
        self.topics, self._is_subscribed = list(topics), True
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost or on_revoke
        self.is_out = True  # until the first poll joins

    def close(self) -> None:
        sim().check()
        if self._is_closed:
            return
        if self._is_subscribed:
            self._commit()
            held = list(self._held())
            if held and self._on_revoke is not None:
                self._on_revoke(self, [TopicPartition(*place) for place in held])
            self._kafka.leave(self.group_id, self)
        self._gone()

    def _gone(self) -> None:
        self._is_closed = True
        self.positions.clear()
        if self in self._kafka.consumers:
            self._kafka.consumers.remove(self)

    def _vanish(self) -> None:
        """The process died: the group notices after its session time-out."""
        if not self._is_closed:
            self._gone()
            self._process.sim.at(SESSION_SECONDS, lambda: self._kafka.leave(self.group_id, self))

    def _fall_silent(self) -> None:
        def expire() -> None:
            if self._process.is_paused and self._is_subscribed and not self._is_closed:
                self._kafka.leave(self.group_id, self)
                self.is_out = True

        self._process.sim.at(SESSION_SECONDS, expire)

    def poke(self) -> None:
        """Something may be there for it."""
        self._waiters.wake()

    def memberid(self) -> str:
        return self._member

    # -- assignment
    def assign(self, partitions: list[TopicPartition]) -> None:
        sim().check()
        self.positions.clear()
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        for asked in partitions:
            place = (asked.topic, asked.partition)
            self._paused.discard(place)
            self.positions[place] = self._start(place, asked.offset)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for asked in partitions:
            self.positions.pop((asked.topic, asked.partition), None)

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(*place) for place in self.positions]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        held = self.positions
        return [TopicPartition(p.topic, p.partition, held.get((p.topic, p.partition), _INVALID)) for p in partitions]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused.update((one.topic, one.partition) for one in partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused.difference_update((one.topic, one.partition) for one in partitions)

    def _start(self, place: Place, offset: int) -> int:
        if offset == OFFSET_BEGINNING:
            return 0
        if offset >= 0:
            return offset
        group = self._kafka.groups.get(self.group_id)
        if group is not None and place in group.committed:
            return group.committed[place]
        return 0 if self._reset == "earliest" else self._end(place)

    def _end(self, place: Place) -> int:
        return self._kafka.ends(place[0]).get(place[1], 0)

    def _held(self) -> list[Place]:
        group = self._kafka.groups.get(self.group_id)
        return [] if group is None else [place for place, owner in group.owners.items() if owner is self]

    # -- reading
    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[FakeMessage]:
        world = sim()
        world.pause()
        deadline = world.now + max(timeout, 0.0)
        while True:
            self._serve()
            found = self._take(num_messages)
            if found or world.now >= deadline:
                return found
            self._waiters.wait(_once(), deadline - world.now)

    def _serve(self) -> None:
        """What the client does inside a poll: errors, commits, the group."""
        kafka, world = self._kafka, sim()
        if not kafka.is_up:
            if not self._said_down:
                self._said_down = True
                self._on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all brokers are down"))
            return
        self._said_down = False
        if not self._is_subscribed:
            return
        if self.is_out:
            lost = list(self.positions)
            if lost:
                world.note(self._process.name, f"out of group {self.group_id}")
                if self._on_lost is not None:
                    self._on_lost(self, [TopicPartition(*place) for place in lost])
                self.positions.clear()
            self.is_out = False
            kafka.join(self.group_id, self)
        if self._commits and world.now - self._committed_at >= COMMIT_SECONDS:
            self._commit()
        self._reconcile()

    def _reconcile(self) -> None:
        group = self._kafka.groups.get(self.group_id)
        if group is None or self not in group.members:
            return
        gone = [place for place, owner in group.owners.items() if owner is self and group.target.get(place) is not self]
        if gone:
            self._commit()
            if self._on_revoke is not None:
                self._on_revoke(self, [TopicPartition(*place) for place in gone])
            for place in gone:
                self.positions.pop(place, None)
            self._kafka.release(self.group_id, self, gone)
        new = [place for place, to in group.target.items() if to is self and place not in group.owners]
        if not new:
            return
        for place in new:
            group.owners[place] = self
        sim().note(self._process.name, f"assigned {len(new)} of {sorted({name for name, _ in new})}")
        asked = [TopicPartition(*place) for place in new]
        if self._on_assign is not None:
            self._on_assign(self, asked)
        else:
            self.incremental_assign(asked)

    def _commit(self) -> None:
        if not (self._commits and self._is_subscribed and self._kafka.is_up):
            return
        self._committed_at = sim().now
        group = self._kafka.groups.get(self.group_id)
        if group is None or self not in group.members:
            return
        for place, position in self.positions.items():
            if group.owners.get(place) is self:
                group.committed[place] = position

    def _take(self, most: int) -> list[FakeMessage]:
        found: list[FakeMessage] = []
        if not self._kafka.is_up:
            return found
        places = [place for place in self.positions if place not in self._paused]
        sim().random.shuffle(places)
        for place in places:
            topic = self._kafka.topics.get(place[0])
            if topic is None or place[1] >= len(topic.logs):
                continue
            log, position = topic.logs[place[1]], self.positions[place]
            if position > len(log):
                if self._reset == "error":
                    del self.positions[place]
                    error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "offset outside the log")
                    return [FakeMessage(*place, position, _NOTHING, error)]
                position = 0 if self._reset == "earliest" else len(log)
            count = min(most - len(found), len(log) - position)
            found += [FakeMessage(*place, position + i, log[position + i]) for i in range(count)]
            self.positions[place] = position + count
            if len(found) >= most:
                break
        return found

    # -- asking
    def list_topics(self, topic: str | None = None, timeout: float = -1) -> _Metadata:
        return _list_topics(timeout)

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = -1) -> tuple[int, int]:
        _ask(timeout)
        if partition.topic not in self._kafka.topics:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, "no such partition"))
        return 0, self._end((partition.topic, partition.partition))

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        _ask(timeout)
        group = self._kafka.groups.get(self.group_id)
        known = {} if group is None else group.committed
        return [TopicPartition(p.topic, p.partition, known.get((p.topic, p.partition), _INVALID)) for p in partitions]


def _once() -> Callable[[], bool]:
    """False, then true: wait for one wake-up, whatever it is."""
    asked = 0

    def is_second() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    return is_second


class _Outgoing:
    __slots__ = ("born", "headers", "is_taken", "key", "on_delivery", "partition", "topic", "value")

    def __init__(self, topic: str, value: bytes | None, key: Any, partition: int, on_delivery: Any) -> None:
        self.topic, self.value, self.partition = topic, value, partition
        self.key = key.encode() if isinstance(key, str) else key
        self.headers: list[tuple[str, bytes]] | None = None
        self.on_delivery, self.born, self.is_taken = on_delivery, sim().now, False


class FakeProducer:
    """Keeps order, and what it was given until Kafka has it. A process that dies loses what had not left."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._kafka, self._process = Cluster.kafka, sim().current.process
        self._on_delivery = settings.get("on_delivery")
        timeout = settings.get("message.timeout.ms", 0)
        self._timeout = timeout / 1000 if timeout else None
        self._queue: deque[_Outgoing] = deque()
        self._unacknowledged = 0
        self._failed: deque[tuple[_Outgoing, KafkaError]] = deque()
        self._is_pumping = False
        self._waiters = Waiters()
        self._process.on_death.append(self._vanish)

    def __len__(self) -> int:
        return len(self._queue) + self._unacknowledged

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: Any = None,
        headers: Any = None,
    ) -> None:
        sim().check()
        message = _Outgoing(topic, value, key, partition, on_delivery or self._on_delivery)
        message.headers = headers
        self._queue.append(message)
        self._pump_soon()

    def produce_batch(
        self, topic: str, batch: list[dict[str, Any]], partition: int = -1, on_delivery: Any = None
    ) -> int:
        for one in batch:
            self.produce(topic, one.get("value"), one.get("key"), partition, on_delivery)
        return len(batch)

    def poll(self, timeout: float = 0) -> int:
        world = sim()
        world.check()
        if timeout and not self._failed and len(self):
            self._waiters.wait(_once(), timeout)
        return self._report()

    def flush(self, timeout: float = -1) -> int:
        self._waiters.wait(lambda: not len(self), None if timeout < 0 else timeout)
        self._report()
        return len(self)

    def purge(self) -> None:
        sim().check()
        error = KafkaError(KafkaError._PURGE_QUEUE, "purged")
        self._failed.extend((message, error) for message in self._queue)
        self._queue.clear()
        self._unacknowledged = 0

    # -- on its way
    def _report(self) -> int:
        count = 0
        while self._failed:
            message, error = self._failed.popleft()
            if message.on_delivery is not None:
                stored = Stored(message.key, message.value, message.headers)
                message.on_delivery(error, FakeMessage(message.topic, message.partition, -1, stored, error))
            count += 1
        return count

    def _pump_soon(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            self._kafka.sim.at(self._kafka.sim.latency(), self._pump)

    def _pump(self) -> None:
        """Send what is here, in order; wait where Kafka does not take it."""
        self._is_pumping = False
        if not self._process.is_alive:
            return
        if self._process.is_paused:
            self._process.on_resume.append(self._pump_soon)
            return
        while self._queue:
            message = self._queue[0]
            if self._timeout is not None and self._kafka.sim.now - message.born > self._timeout:
                self._queue.popleft()
                self._failed.append((message, KafkaError(KafkaError._MSG_TIMED_OUT, "timed out")))
                continue
            if not self._kafka.is_up or not self._send(message):
                self._is_pumping = True
                self._kafka.wait(self._pump)
                return
            self._queue.popleft()
            self._unacknowledged += 1
            self._kafka.sim.at(self._kafka.sim.latency(), self._acknowledge)

    def _send(self, message: _Outgoing) -> bool:
        topic = self._kafka.topics.get(message.topic)
        if topic is None:
            return False
        partition = message.partition
        if partition < 0:
            partition = murmur2(message.key or b"", len(topic.logs))
        return self._kafka.append(message.topic, partition, Stored(message.key, message.value, message.headers))

    def _acknowledge(self) -> None:
        self._unacknowledged = max(0, self._unacknowledged - 1)
        if not len(self):
            self._waiters.wake()

    def _vanish(self) -> None:
        """What had left by the moment of death arrives; the rest never existed."""
        random = self._kafka.sim.random
        left = random.randrange(len(self._queue) + 1) if self._kafka.is_up and self._queue else 0
        for message in list(self._queue)[:left]:
            if not self._send(message):
                break
        self._queue.clear()


def leave(servers: str, group: str, member: str) -> None:
    """`headrace.leave.leave`: a member that is dead leaves its group now, and not at its session time-out."""
    try:
        _ask(2.0)
    except KafkaException as error:
        raise UnavailableError("Kafka is away") from error
    kafka = Cluster.kafka
    for one in kafka.groups[group].members if group in kafka.groups else []:
        if one.memberid() == member:
            kafka.leave(group, one)
            return


class FakeAdminClient:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._kafka = Cluster.kafka

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> _Metadata:
        return _list_topics(timeout)

    def describe_topics(self, topics: Any, request_timeout: float = 5.0) -> dict[str, Future]:
        return {name: self._answer(partial(self._describe, name), request_timeout) for name in topics.topic_names}

    def create_topics(self, new_topics: Iterable[Any], **options: Any) -> dict[str, Future]:
        timeout = options.get("request_timeout", 5.0)
        return {new.topic: self._answer(partial(self._create, new), timeout) for new in new_topics}

    def list_offsets(
        self, asked: dict[TopicPartition, Any], request_timeout: float = 5.0
    ) -> dict[TopicPartition, Future]:
        return {of: self._answer(partial(self._offset, of, which), request_timeout) for of, which in asked.items()}

    def _answer(self, work: Callable[[], Any], timeout: float) -> Future:
        future, world = Future(), self._kafka.sim

        def answer() -> None:
            if future.done():
                return
            if not self._kafka.is_up:
                self._kafka.wait(answer)
                return
            try:
                future.set_result(work())
            except KafkaException as error:
                future.set_exception(error)

        def give_up() -> None:
            if not future.done():
                future.set_exception(_away())

        world.at(world.latency(0.0005, 0.004), answer)
        world.at(timeout, give_up)
        return future

    def _describe(self, name: str) -> Any:
        if name not in self._kafka.topics:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))
        return _Description(self._kafka.topics[name].topic_id)

    def _create(self, new: Any) -> None:
        if not self._kafka.create(new.topic, new.num_partitions):
            raise KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, "it exists"))

    def _offset(self, of: TopicPartition, which: Any) -> Any:
        ends = self._kafka.ends(of.topic)
        if of.partition not in ends:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such partition"))
        return _Offset(ends[of.partition] if which is LATEST else 0)


class _Description:
    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id


class _Offset:
    def __init__(self, offset: int) -> None:
        self.offset = offset


class FakeBatchProducer(FakeProducer):
    """With the interface of `headrace.batch_producer`, for a process with an event loop."""

    trouble = None

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__({})
        self._added: list[tuple[str, bytes, bytes, int, Any]] = []

    def __len__(self) -> int:
        return super().__len__() + len(self._added)

    def start(self, on_broken: Any = None) -> None:
        return None

    def add(self, topic: str, key: bytes, value: bytes, partition: int | None = None, headers: Any = None) -> None:
        self._added.append((topic, value, key, -1 if partition is None else partition, headers))

    def flush(self, timeout: float = -1) -> int:
        added, self._added = self._added, []
        for topic, value, key, partition, headers in added:
            self.produce(topic, value, key, partition, headers=headers)
        return len(self)

    async def empty(self, seconds: float) -> bool:
        give_up_at = sim().now + seconds
        while len(self) and sim().now < give_up_at:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return not len(self)

    async def close(self) -> None:
        self._added.clear()
        self.purge()


class FakeDelivery:
    """With the interface of `connectors.delivery`."""

    trouble = None

    def __init__(self, *_: Any) -> None:
        self.refused: list[Any] = []
        self._producer = FakeProducer({})

    def begin(self, records: Iterable[Any]) -> None:
        for topic, key, value, partition, traceparent, headers in records:
            trace = [] if traceparent is None else [("traceparent", traceparent.encode())]
            place = -1 if partition is None else partition
            self._producer.produce(topic, value, key, place, headers=[*headers, *trace] or None)

    def wait(self, seconds: float) -> bool:
        return not self._producer.flush(seconds)

    def close(self) -> None:
        self._producer.purge()
