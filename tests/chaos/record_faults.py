"""Faults of records and rows: repeated, reordered, delayed, lost, forged, poisoned; deleted under the engine."""

import contextlib
import json
import signal
import time
from collections.abc import Generator
from typing import Any, ClassVar, Final

import psycopg
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic
from psycopg import sql

from tests.chaos.fault import Fault
from tests.chaos.readers import read_up_to
from tests.chaos.system import LEASE_SECONDS, PARTITIONS, PREFIX, QUEUE

EVENTS: Final = f"{PREFIX}.events"
COMMANDS: Final = f"{PREFIX}.commands.{QUEUE}"
WORKERS: Final = f"{PREFIX}.workers"
CONTROL: Final = f"{PREFIX}.control"
KAFKA_SECONDS: Final = 8.0
WINDOW: Final = 50
"""Records read back from the end of a partition."""


class _Records(Fault):
    """Works on Kafka directly, as a client of its own."""

    uses = frozenset({"kafka"})
    lasts = (0.0, 0.0)
    _admin: AdminClient | None = None

    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.system.kafka.bootstrap, "log_level": 0}

    @property
    def admin(self) -> AdminClient:
        """One for the fault's life: an answer that is on its way dies with its client."""
        if self._admin is None:
            self._admin = AdminClient(self.client())
        return self._admin

    @contextlib.contextmanager
    def producer(self) -> Generator[Producer]:
        producer = Producer({**self.client(), "message.timeout.ms": int(KAFKA_SECONDS * 1000)})
        yield producer
        producer.flush(KAFKA_SECONDS)

    def read(self, topic: str, partition: int, first: int, last: int) -> list[Message]:
        """Records first..last-1 of a partition, those that are there."""
        found: list[Message] = []
        consumer = Consumer({**self.client(), "group.id": f"chaos-{time.time_ns()}", "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(topic, partition, first)])
            end = time.monotonic() + 3
            while time.monotonic() < end and (not found or (found[-1].offset() or 0) < last - 1):
                found += [m for m in consumer.consume(WINDOW, 0.2) if m.error() is None and (m.offset() or 0) < last]
        finally:
            consumer.close()
        return found

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """Where a partition begins and ends; waits a moment for a topic that a sweep is about to make again."""
        consumer = Consumer({**self.client(), "group.id": "chaos-ends"})
        give_up_at = time.monotonic() + KAFKA_SECONDS
        try:
            while True:
                try:
                    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), KAFKA_SECONDS)
                    return low, high
                except KafkaException:
                    if time.monotonic() > give_up_at:
                        raise
                time.sleep(0.2)
        finally:
            consumer.close()

    def window(self, topic: str, count: int = WINDOW) -> list[Message]:
        """The latest records of every partition."""
        found = []
        for partition in range(PARTITIONS):
            low, high = self.ends(topic, partition)
            if high > low:
                found += self.read(topic, partition, max(low, high - count), high)
        return found

    def send_again(self, producer: Producer, message: Message) -> None:
        producer.produce(
            str(message.topic()), key=message.key(), value=message.value(), partition=message.partition() or 0,
            headers=message.headers() or [], on_delivery=self._count,
        )  # fmt: skip
        producer.poll(0)

    def _count(self, error: object, message: Message) -> None:
        self.fired += error is None


class EventsRepeated(_Records):
    kind = "F29 events repeated"
    topic: ClassVar[str] = EVENTS

    def begin(self) -> None:
        """Each 2-5 times, in any order, old ones too."""
        messages = self.window(self.topic) * self.draw.randint(1, 4)
        self.draw.shuffle(messages)
        with self.producer() as producer:
            for message in messages:
                self.send_again(producer, message)


class CommandsRepeated(EventsRepeated):
    kind = "F29 commands repeated"
    topic = COMMANDS


class _Intercepted(_Records):
    """The readers of a topic stand still while what they have not read is taken out of the log; it comes back shuffled,
    or late, or never.
    """

    uses = frozenset({"kafka", "streams", "worker"})
    topic: ClassVar[str] = EVENTS
    readers: ClassVar[str] = "streams"

    def begin(self) -> None:
        names = [name for name in self.system.supervisor.names() if name.startswith(self.readers)]
        starts = {p: self.ends(self.topic, p)[1] for p in range(PARTITIONS)}
        self.caught: list[Message] = []
        try:
            for name in names:
                self.system.signal(name, signal.SIGSTOP)
            self._wait_for_some(starts)
            self.facts["read"] = read_up_to(self.system, self.topic)
            for partition, first in starts.items():
                last = self.ends(self.topic, partition)[1]
                if last > first:
                    self.caught += self.read(self.topic, partition, first, last)
                    # What its reader has not read before that is gone as well, where it lags.
                    gone = {TopicPartition(self.topic, partition, last): None}
                    for done in self.admin.delete_records(list(gone)).values():
                        done.result(KAFKA_SECONDS)
            self.deal()
        finally:
            for name in names:
                self.system.signal(name, signal.SIGCONT)

    def _wait_for_some(self, starts: dict[int, int]) -> None:
        """Until a few records stand behind where we began, for a moment at most."""
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            if sum(self.ends(self.topic, partition)[1] - first for partition, first in starts.items()) >= 5:
                return
            time.sleep(0.1)

    def deal(self) -> None:
        """What becomes of `caught`."""
        raise NotImplementedError


class EventsReordered(_Intercepted):
    kind = "F30 events reordered"

    def deal(self) -> None:
        self.draw.shuffle(self.caught)
        with self.producer() as producer:
            for message in self.caught:
                self.send_again(producer, message)


class EventsLost(_Intercepted):
    kind = "F31 events lost"

    def deal(self) -> None:
        """Results, wake-ups, timers, decisions, cancels: whatever stood there."""
        self.fired += len(self.caught)


class CommandsLost(EventsLost):
    kind = "F31 commands lost"
    topic, readers = COMMANDS, "worker"


class EventsDelayed(_Intercepted):
    kind = "F32 events delayed 10 leases"
    lasts = (10 * LEASE_SECONDS, 10 * LEASE_SECONDS)
    share = 0.3
    uses = frozenset({"kafka"})

    def deal(self) -> None:
        """They come at the heal."""

    def heal(self) -> None:
        with self.producer() as producer:
            for message in getattr(self, "caught", []):
                self.send_again(producer, message)


class TopicRecreated(_Records):
    kind = "F19 topic created anew, old offsets kept"

    def begin(self) -> None:
        topic = self.draw.choice((EVENTS, COMMANDS, WORKERS, CONTROL))
        self.facts |= {"topic": topic, "loses_records": True, "read": read_up_to(self.system, topic)}
        for done in self.admin.delete_topics([topic]).values():
            done.result(KAFKA_SECONDS)
        partitions = PARTITIONS if topic in (EVENTS, COMMANDS) else 1
        end = time.monotonic() + KAFKA_SECONDS
        while time.monotonic() < end:  # the sweep may be quicker than we are
            with contextlib.suppress(KafkaException):
                for done in self.admin.create_topics([NewTopic(topic, partitions, 1)]).values():
                    done.result(KAFKA_SECONDS)
                break
            if topic in self.admin.list_topics(timeout=KAFKA_SECONDS).topics:
                break
        self.fired += 1


class _Refused(_Records):
    """Kafka takes no record of a topic for a while: every one is too large."""

    topic: ClassVar[str] = ""
    lasts = (1.5 * LEASE_SECONDS, 3 * LEASE_SECONDS)
    uses = frozenset({"kafka", "worker"})

    def begin(self) -> None:
        self._set("1")
        self.facts["loses_records"] = True
        self.fired += 1

    def heal(self) -> None:
        self._set("1048588")

    def _set(self, size: str) -> None:
        change = ConfigEntry("max.message.bytes", size, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic, incremental_configs=[change])
        for done in self.admin.incremental_alter_configs([resource]).values():
            done.result(KAFKA_SECONDS)


class HeartbeatsBlocked(_Refused):
    kind = "F05 heartbeats blocked, work goes on"
    topic = WORKERS


class ControlBlocked(_Refused):
    kind = "F05 answers to heartbeats blocked"
    topic = CONTROL


class Poison(_Records):
    kind = "F33 poison records"

    def begin(self) -> None:
        """Bytes nobody can read, among good ones; each must be set aside with its place."""
        run = self.draw.choice(_known_runs(self))
        values = [
            (run, b"\xff\xfe not json"),
            (run, b'{"kind":"succeeded"}'),
            (run, b'{"kind":"nonsense","task":0,"token":1,"nonce":"x"}'),
            (run, None),
            (b"not-a-run-id", b'{"kind":"requested","inbox":"x"}'),
            (run, b'{"kind":"succeeded","task":0,"token":1,"nonce":"x","v":99}'),
            (None, b"[" * 10_000),
        ]
        places: list[tuple[int, int]] = []

        def note(error: object, message: Message) -> None:
            if error is None:
                self.fired += 1
                places.append((message.partition() or 0, message.offset() or 0))

        with self.producer() as producer:
            for key, value in self.draw.sample(values, 4):
                producer.produce(
                    EVENTS, key=key, value=value, partition=self.draw.randrange(PARTITIONS), on_delivery=note
                )
            for topic in (WORKERS, CONTROL, COMMANDS):  # nobody keeps these; they must only not stop anybody
                producer.produce(topic, key=run, value=b"\x00 poison")
        self.facts |= {"topic": EVENTS, "places": places, "sent_at": time.time()}


class Forged(_Records):
    kind = "F33 forged results"

    def begin(self) -> None:
        """Results with a wrong nonce for tasks that are open now: none may count."""
        rows = self.system.query("SELECT run_id, task, token FROM task WHERE status IN ('queued', 'running') LIMIT 20")
        self.facts["aimed_at"] = len(rows)
        with self.producer() as producer:
            for run_id, task, token in rows or [(self.draw.choice(_known_runs(self)).decode(), 0, 1)]:
                event = {
                    "kind": "succeeded",
                    "task": task,
                    "token": token,
                    "nonce": "0" * 24,
                    "output": {"forged": True},
                }
                value = json.dumps(event).encode()
                for partition in range(PARTITIONS):
                    producer.produce(
                        EVENTS, key=str(run_id).encode(), value=value, partition=partition, on_delivery=self._count
                    )


def _known_runs(fault: Fault) -> list[bytes]:
    rows = fault.system.query("SELECT run_id FROM run ORDER BY run_id DESC LIMIT 20")
    return [str(run_id).encode() for (run_id,) in rows] or [b"01890000-0000-7000-8000-000000000000"]


class _Rows(Fault):
    """Rows changed under the engine, by SQL."""

    uses = frozenset({"postgres"})
    lasts = (0.0, 0.0)
    statement: ClassVar[str] = ""

    def begin(self) -> None:
        """Looks for a moment in which there is such a row."""
        end = time.monotonic() + 3
        while not self.fired and time.monotonic() < end:
            self.fired += len(self.system.query(self.statement))
            time.sleep(0.05)


class TimersDeleted(_Rows):
    kind = "F42 timer rows deleted"
    statement = "DELETE FROM timer RETURNING 1"


class HeldTasksDeleted(_Rows):
    kind = "F42 held_task rows deleted"
    statement = "DELETE FROM held_task RETURNING 1"


class SessionsDeleted(_Rows):
    kind = "F42 worker_session rows deleted"
    statement = "DELETE FROM worker_session WHERE ended_at IS NULL RETURNING 1"


class RowsLocked(Fault):
    kind = "F25 tables locked"
    uses = frozenset({"postgres"})
    lasts = (1.0, 5.0)
    _TABLES: ClassVar = (
        "run",
        "task",
        "timer",
        "partition_owner",
        "worker_session",
        "held_task",
        "relay_owner",
        "inbox",
    )

    def begin(self) -> None:
        """Some statements wait until their lock time-out, as behind a frozen writer."""
        table = self.facts["table"] = self.draw.choice(self._TABLES)
        self._connection = psycopg.connect(self.system.postgres.dsn, connect_timeout=3)
        self._connection.execute("SET lock_timeout = '3s'")
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            self._connection.execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(sql.Identifier(table)))
            self.fired += 1

    def heal(self) -> None:
        self._connection.close()


class SlotDropped(Fault):
    kind = "F41 replication slot dropped"
    uses = frozenset({"postgres", "relay"})
    lasts = (0.0, 0.0)

    def begin(self) -> None:
        end = time.monotonic() + 5
        while not self.fired and time.monotonic() < end:
            with contextlib.suppress(psycopg.Error):
                self.system.query(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
                )
                self.fired += len(
                    self.system.query("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
                )
        self.facts["loses_records"] = True
