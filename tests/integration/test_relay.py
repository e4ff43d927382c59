"""The outbox relay as its own process, on real Postgres and Kafka: nothing is lost, whatever ends or goes away."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from connectors.connection import describe
from connectors.dead_letter import DeadLetters
from connectors.relay import Relay
from connectors.settings import RelaySettings
from state.outbox import OutboxMode, Record, emit, statements

ROOT = Path(__file__).parents[2]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WAIT_SECONDS = 30.0
T = TypeVar("T")


class Delivered(NamedTuple):
    """A record as Kafka has it."""

    topic: str
    partition: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


def until(fact: Callable[[], T], seconds: float = WAIT_SECONDS) -> T:
    """Wait for a fact and return it."""
    give_up_at = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < give_up_at, f"{fact} did not come true in {seconds} s"
        time.sleep(0.05)
    return found


class Log:
    """All that is in the topics of one prefix, read from the beginning without a group."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": prefix,
            "enable.auto.commit": False,
            "log_level": 0,
        }
        self._prefix = prefix

    def read(self) -> list[Delivered]:
        """In order within a partition; empty while Kafka is away."""
        consumer = Consumer(self._settings)
        try:
            topics = self._admin.list_topics(timeout=5).topics
            places = [
                TopicPartition(name, number, 0)
                for name, topic in topics.items()
                if name.startswith(self._prefix)
                for number in topic.partitions
            ]
            ends = {place: consumer.get_watermark_offsets(place, timeout=5)[1] for place in places}
            missing = sum(ends.values())
            consumer.assign([place for place in places if ends[place]])
            found = []
            give_up_at = time.monotonic() + 10
            while len(found) < missing and time.monotonic() < give_up_at:
                found += [m for m in consumer.consume(1, 0.5) + consumer.consume(5000, 0) if m.error() is None]
        except KafkaException:
            return []
        finally:
            consumer.close()
        return [Delivered(m.topic(), m.partition(), m.key(), m.value(), tuple(m.headers() or ())) for m in found]

    def has(self, *values: bytes) -> bool:
        return set(values) <= {record.value for record in self.read()}


class Relays:
    """Relays of one test, on one slot: a process where it is killed or stopped, else a thread, which starts faster."""

    def __init__(self, database: str, bootstrap: str, prefix: str) -> None:
        self.database, self.slot = database, prefix
        self._settings: dict[str, Any] = {
            "postgres": database,
            "kafka": bootstrap,
            "prefix": prefix,
            "slot": prefix,
            "partitions": 4,
            "relay_lease": 2,
            "relay_takeover": 0.5,
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[tuple[Relay, threading.Thread]] = []

    def start(self, **settings: object) -> subprocess.Popen[bytes]:
        changed = {f"HEADRACE_{name.upper()}": str(value) for name, value in (self._settings | settings).items()}
        environment = os.environ | changed | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, "-m", "connectors"], cwd=ROOT, env=environment)
        self._processes.append(process)
        return process

    def start_publishing(self, **settings: object) -> subprocess.Popen[bytes]:
        """Start a process and wait until it reads its slot: what is committed before there is one is not its own."""
        process = self.start(**settings)
        until(lambda: self.slot_reader() is not None)
        return process

    def publish(self, **settings: object) -> None:
        """Publish from a thread, until the test ends."""
        chosen = RelaySettings.model_validate(self._settings | settings)
        relay = Relay(chosen, DeadLetters(self.database).set_aside)
        thread = threading.Thread(target=relay.run)
        self._threads.append((relay, thread))
        thread.start()
        until(lambda: self.slot_reader() is not None)

    def close(self) -> None:
        for relay, _ in self._threads:
            relay.stop()
        for _, thread in self._threads:
            thread.join()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def ask(self, query: str, *parameters: object) -> tuple | None:
        with psycopg.connect(self.database, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters).fetchone()

    def slot_reader(self) -> int | None:
        """The process that streams from the slot (one that still creates it counts as active, but not here)."""
        query = """SELECT active_pid FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid
                   WHERE slot_name = %s AND state = 'streaming'"""
        row = self.ask(query, self.slot)
        return row[0] if row else None

    def owner(self) -> tuple | None:
        return self.ask(
            "SELECT owner, epoch, acked_lsn, gap_at, renewed_at FROM relay_owner WHERE slot = %s", self.slot
        )

    def is_acknowledged(self, lsn: str) -> bool:
        """Whether both the row and the slot have passed a position."""
        query = """SELECT relay.acked_lsn >= %s::pg_lsn AND slot.confirmed_flush_lsn >= %s::pg_lsn
                   FROM relay_owner AS relay JOIN pg_replication_slots AS slot ON slot.slot_name = relay.slot
                   WHERE relay.slot = %s"""
        return self.ask(query, lsn, lsn, self.slot) == (True,)

    def commit(self, records: list[Record], mode: OutboxMode = OutboxMode.MESSAGES) -> str:
        """Leave records in one transaction; the log's position after it."""
        with psycopg.connect(self.database) as connection:
            leave(connection, records, mode)
        row = self.ask("SELECT pg_current_wal_lsn()")
        assert row is not None
        return row[0]


def leave(connection: psycopg.Connection, records: list[Record], mode: OutboxMode = OutboxMode.MESSAGES) -> None:
    cursor = psycopg.RawCursor(connection)
    for statement, parameters in statements(records, mode):
        cursor.execute(statement, parameters)


@pytest.fixture
def relays(database, kafka, topic_prefix) -> Iterator[Relays]:
    relays = Relays(database, kafka.bootstrap, topic_prefix)
    yield relays
    relays.close()


@pytest.fixture
def log(kafka, topic_prefix) -> Log:
    return Log(kafka.bootstrap, topic_prefix)


def event(prefix: str, value: bytes, key: bytes = b"run-1") -> Record:
    return Record(f"{prefix}.events", key, value)


def test_both_modes_publish_the_same_records_byte_for_byte(relays, log, topic_prefix):
    relays.publish()
    records = [
        Record(f"{topic_prefix}.commands.io", b"run-1", b'{"task":1}', 3),
        Record(f"{topic_prefix}.commands.io", b"run-1", b'{"task": 2, "name": "caf\xc3\xa9 \\u0000"}', 3, TRACE),
        Record(f"{topic_prefix}.commands.io", b"run-1", b'{"task":3}', 3),
        Record(f"{topic_prefix}.events", b"run-1", b'{"price":1.50,"a":[],"n":null}'),
        Record(f"{topic_prefix}.events", "r\u00fcn-2".encode(), b'{"kind":"due"}', None, TRACE),
        Record(f"{topic_prefix}.control", b"session", b"{}"),
    ]
    found = []
    for count, mode in enumerate(OutboxMode, start=1):
        relays.commit(records, mode)
        until(lambda count=count: len(log.read()) == count * len(records))
        delivered = log.read()
        places = {(record.topic, record.partition) for record in delivered}
        found.append({place: [r for r in delivered if (r.topic, r.partition) == place] for place in places})
    once, twice = found
    assert twice == {place: records * 2 for place, records in once.items()}
    commands = once[(f"{topic_prefix}.commands.io", 3)]
    assert [json.loads(record.value)["task"] for record in commands] == [1, 2, 3]
    assert [record.headers for record in commands] == [(), (("traceparent", TRACE.encode()),), ()]
    assert relays.ask("SELECT count(*) FROM outbox") == (0,)


def test_new_topics_get_the_partitions_that_were_set(relays, log, topic_prefix, kafka):
    relays.publish()
    names = [f"{topic_prefix}.{name}" for name in ("events", "commands.default", "control")]
    relays.commit([Record(name, b"k", b"1") for name in names])
    until(lambda: len(log.read()) == 3)
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=5).topics
    assert [len(topics[name].partitions) for name in names] == [4, 4, 1]


@pytest.mark.parametrize("mode", OutboxMode)
def test_b96_a_transaction_that_commits_late_is_published_late_and_not_lost(relays, log, topic_prefix, mode):
    relays.publish()
    with psycopg.connect(relays.database) as early:
        leave(early, [event(topic_prefix, b"early")], mode)
        relays.commit([event(topic_prefix, b"late")], mode)
        until(lambda: log.has(b"late"))
    until(lambda: log.has(b"early"))
    assert [record.value for record in log.read()] == [b"late", b"early"]


@pytest.mark.parametrize("mode", OutboxMode)
def test_b96_what_was_rolled_back_is_never_published(relays, log, topic_prefix, mode):
    relays.publish()

    async def roll_back_one_of_two() -> None:
        async with await psycopg.AsyncConnection.connect(relays.database) as connection:
            await emit(connection, [event(topic_prefix, b"never")], mode)
            await connection.rollback()
            await emit(connection, [event(topic_prefix, b"always")], mode)

    asyncio.run(roll_back_one_of_two())
    until(lambda: log.has(b"always"))
    assert [record.value for record in log.read()] == [b"always"]


def test_only_what_kafka_has_is_acknowledged_and_a_kafka_that_comes_back_gets_the_rest(
    relays, log, topic_prefix, kafka
):
    relays.publish()
    first = relays.commit([event(topic_prefix, b"first")])
    until(lambda: relays.is_acknowledged(first))
    kafka.kill9()
    try:
        second = relays.commit([event(topic_prefix, b"second")])
        renewed_at = relays.owner()[4]
        until(lambda: (relays.owner()[4] - renewed_at).total_seconds() > 2.5)  # it lives, and waits
        assert not relays.is_acknowledged(second)
    finally:
        kafka.start()
    until(lambda: log.has(b"first", b"second"))
    until(lambda: relays.is_acknowledged(second))
    assert [record.value for record in log.read()] == [b"first", b"second"]


def test_a_wiped_kafka_gets_its_topics_again_and_all_that_follows(relays, log, topic_prefix, kafka):
    relays.publish()
    relays.commit([event(topic_prefix, b"before")])
    until(lambda: log.has(b"before"))
    kafka.kill9()
    kafka.wipe()
    kafka.start()
    relays.commit([event(topic_prefix, b"after"), Record(f"{topic_prefix}.commands.io", b"run-1", b"new", 2)])
    until(lambda: log.has(b"after", b"new"))
    assert not log.has(b"before")


def test_a_relay_stopped_while_kafka_is_away_exits_in_order_and_loses_nothing(relays, log, topic_prefix):
    cut_off = relays.start_publishing(kafka="127.0.0.1:1")
    relays.commit([event(topic_prefix, b"kept")])
    cut_off.send_signal(signal.SIGTERM)
    assert cut_off.wait(5) == 0
    relays.start()
    until(lambda: log.has(b"kept"))


def test_killed_relays_lose_nothing_and_keep_order_per_key(relays, log, topic_prefix):
    relay = relays.start_publishing()
    gap_at = relays.owner()[3]
    sent: list[Record] = []
    writer = psycopg.connect(relays.database, autocommit=True)
    for number in range(300):
        records = [event(topic_prefix, b"%d" % (number * 10 + i), b"run-%d" % i) for i in range(10)]
        with writer.transaction():
            leave(writer, records, OutboxMode.TABLE if number % 2 else OutboxMode.MESSAGES)
        sent += records
        if number in (100, 200):
            relay.kill()
            relay.wait()
            relay = relays.start()
    writer.close()
    until(lambda: log.has(*(record.value for record in sent)))
    firsts: dict[bytes, dict[int, None]] = {}
    for record in log.read():
        firsts.setdefault(record.key, {})[int(record.value)] = None
    assert all(list(values) == sorted(values) for values in firsts.values())
    assert relays.owner()[3] == gap_at, "a relay that was killed left no gap"


def test_a_relay_restarted_in_order_repeats_nothing(relays, log, topic_prefix):
    for number in range(3):
        relay = relays.start_publishing()
        relays.commit([event(topic_prefix, b"%d" % number)])
        until(lambda number=number: log.has(b"%d" % number))
        relay.terminate()
        assert relay.wait(5) == 0
    assert [record.value for record in log.read()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("is_created_again", [False, True])
def test_b97_a_lost_slot_is_noticed_so_that_open_work_is_published_again(relays, log, topic_prefix, is_created_again):
    relay = relays.start_publishing()
    relays.commit([event(topic_prefix, b"before")])
    until(lambda: log.has(b"before"))
    relay.terminate()
    assert relay.wait(5) == 0
    gap_at = relays.owner()[3]
    relays.ask("SELECT pg_drop_replication_slot(%s)", relays.slot)
    relays.commit([event(topic_prefix, b"missed")])
    if is_created_again:
        relays.ask("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", relays.slot)
    relays.start_publishing()
    assert relays.owner()[3] > gap_at
    relays.commit([event(topic_prefix, b"after")])
    until(lambda: log.has(b"after"))
    assert not log.has(b"missed")


def test_b31_terminated_connections_are_made_again(relays, log, topic_prefix):
    relays.publish()
    query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE %s"
    assert relays.ask(query, "headrace-relay%")[0] >= 2
    relays.commit([event(topic_prefix, b"after")])
    until(lambda: log.has(b"after"))


def test_a_postgres_that_restarts_is_not_held_up_and_found_again(relays, log, topic_prefix, postgres):
    relays.publish()
    began = time.monotonic()
    postgres.stop()
    assert time.monotonic() - began < 10, "a server waits for readers of its log, which have to leave"
    postgres.start()
    relays.commit([event(topic_prefix, b"after")])
    until(lambda: log.has(b"after"))
    postgres.kill9()
    postgres.start()
    relays.commit([event(topic_prefix, b"after the crash")])
    until(lambda: log.has(b"after the crash"))


def test_b85_what_kafka_refuses_for_ever_is_set_aside_and_holds_up_nothing(relays, log, topic_prefix, kafka):
    small = f"{topic_prefix}.small"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(small, 1, 1, config={"max.message.bytes": "20000"})])[small].result()
    relays.publish()
    relays.commit(
        [
            event(topic_prefix, b"before"),
            Record(small, b"k", b"s" * 100),
            Record(small, b"k", b"m" * 50_000),
            Record(small, b"k", b"t" * 100),
            event(topic_prefix, b"x" * 2_000_000),
            Record(f"{topic_prefix} no topic", b"k", b"nowhere"),
            Record(f"{topic_prefix}.events", b"run-1", b"y" * 2_000_000, None, TRACE),
            event(topic_prefix, b"behind"),
        ]
    )
    until(lambda: log.has(b"before", b"behind", b"s" * 100, b"t" * 100))
    relays.commit([event(topic_prefix, b"next")])
    until(lambda: log.has(b"next"))
    with psycopg.connect(relays.database) as connection:
        rows = connection.execute(
            "SELECT topic, left(convert_from(value, 'UTF8'), 1), length(value), reason FROM dead_letter"
        ).fetchall()
    aside = {(topic, letter, length) for topic, letter, length, _ in rows}
    assert aside == {
        (small, "m", 50_000),
        (f"{topic_prefix}.events", "x", 2_000_000),
        (f"{topic_prefix}.events", "y", 2_000_000),
        (f"{topic_prefix} no topic", "n", 7),
    }
    assert all(reason for *_, reason in rows)


def test_headers_of_a_record_arrive_as_they_were(relays, log, topic_prefix):
    headers = (("ce_id", b"1"), ("ce_id", b"\xff"), ("none", None))
    relays.publish()
    relays.commit(
        [
            event(topic_prefix, b"before"),
            Record(f"{topic_prefix}.events", b"run-1", b"with", None, TRACE, headers),
            Record(f"{topic_prefix}.events", b"run-1", b"without a trace", None, None, headers),
            event(topic_prefix, b"behind"),
        ]
    )
    until(lambda: log.has(b"behind"))
    found = {record.value: record.headers for record in log.read()}
    assert found[b"with"] == (*headers, ("traceparent", TRACE.encode()))
    assert found[b"without a trace"] == headers
    assert found[b"before"] == found[b"behind"] == ()


def test_a_replay_that_kafka_refuses_again_is_another_dead_letter(relays, log, topic_prefix):
    refused = Record(f"{topic_prefix} no topic", b"k", b"nowhere", None, None, (("a", b"1"),))
    relays.publish()
    relays.commit([refused, event(topic_prefix, b"first")])
    until(lambda: log.has(b"first"))
    close = "UPDATE dead_letter SET status = 'replayed', closed_at = now(), replay_digest = sha256(value) RETURNING 1"
    assert relays.ask(close) == (1,)
    relays.commit([refused, event(topic_prefix, b"second")])
    until(lambda: log.has(b"second"))
    linked = "SELECT count(*), count(DISTINCT fingerprint), count(replay_of), min(headers::text) FROM dead_letter"
    until(lambda: relays.ask(linked) == (2, 1, 1, '[{"name":"a","value":"1","encoding":"text"}]'))


def test_a_partition_that_does_not_exist_is_replaced_by_the_keys_own(relays, log, topic_prefix):
    relays.publish()
    relays.commit([Record(f"{topic_prefix}.commands.io", b"run-1", b"lost", 99), event(topic_prefix, b"other")])
    until(lambda: log.has(b"lost", b"other"))


def test_a_bundle_that_cannot_be_read_holds_up_nothing(relays, log, topic_prefix):
    relays.publish()
    relays.ask("SELECT pg_logical_emit_message(true, 'headrace', 'garbage'::bytea)")
    relays.commit([event(topic_prefix, b"behind")])
    until(lambda: log.has(b"behind"))
    assert relays.ask("SELECT value FROM dead_letter") == (b"garbage",)


def test_a_second_relay_stands_by_and_takes_over_from_a_killed_one(relays, log, topic_prefix):
    owner = relays.start_publishing()
    standby = relays.start()
    name, epoch, *_ = relays.owner()
    relays.commit([event(topic_prefix, b"one")])
    until(lambda: log.has(b"one"))
    assert f":{owner.pid}:" in name
    owner.kill()
    relays.commit([event(topic_prefix, b"two")])
    until(lambda: log.has(b"two"))
    name, new_epoch, *_ = relays.owner()
    assert f":{standby.pid}:" in name
    assert new_epoch == epoch + 1


def test_b12_a_frozen_relay_is_replaced_and_stands_by_when_it_wakes(relays, log, topic_prefix):
    frozen = relays.start_publishing()
    standby = relays.start()
    frozen.send_signal(signal.SIGSTOP)
    relays.commit([event(topic_prefix, b"one")])
    until(lambda: log.has(b"one"))
    frozen.send_signal(signal.SIGCONT)
    relays.commit([event(topic_prefix, b"two")])
    until(lambda: log.has(b"two"))
    assert f":{standby.pid}:" in relays.owner()[0]
    standby.terminate()
    assert standby.wait(5) == 0
    relays.commit([event(topic_prefix, b"three")])
    until(lambda: log.has(b"three"))
    assert f":{frozen.pid}:" in relays.owner()[0]


def test_a_standby_leaves_the_owner_alone(relays, log, topic_prefix):
    relays.start_publishing()
    reader, (name, epoch, *_) = relays.slot_reader(), relays.owner()
    standby = relays.start()
    renewed_at = relays.owner()[4]
    until(lambda: (relays.owner()[4] - renewed_at).total_seconds() > 3)  # longer than the lease
    assert standby.poll() is None
    assert (relays.slot_reader(), relays.owner()[:2]) == (reader, (name, epoch))


def test_the_embedded_log_takes_the_same_records(database, embedded_broker, topic_prefix):
    relays, log = (
        Relays(database, embedded_broker.bootstrap, topic_prefix),
        Log(embedded_broker.bootstrap, topic_prefix),
    )
    try:
        relays.publish(topic_ids=False)
        relays.commit([event(topic_prefix, b"one"), Record(f"{topic_prefix}.commands.io", b"run-1", b"two", 1, TRACE)])
        until(lambda: log.has(b"one", b"two"))
    finally:
        relays.close()


def test_a_connection_string_and_a_url_both_tell_how_a_dead_peer_is_found():
    for postgres in ("host=127.0.0.1 dbname=headrace", "postgresql://127.0.0.1/headrace"):
        assert "keepalives_idle=5" in describe(postgres, "headrace-relay")
