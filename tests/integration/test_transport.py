"""The stream transport against a real Kafka, in both hosts; an engine's Postgres is played by a ledger in memory."""

import asyncio
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__
from structlog.testing import capture_logs

from streams.broker import Answer
from streams.broker import Broker as KafkaAnswers
from streams.membership import Membership, Rebuild, Watchdog
from streams.transport import Batch, Transport, run

Host = Literal["faust", "plain"]

PARTITIONS = 4
WAIT_SECONDS = 30.0


@pytest.fixture(params=["plain", "faust"])
def host(request: pytest.FixtureRequest) -> Host:
    name: Host = request.param
    return name


@dataclass
class Owner:
    epoch: int = 0
    next_offset: int | None = None
    topic_id: str = ""


@dataclass
class Ledger:
    """Ownership, next offsets and effects; `apply` changes all three or none, as one transaction would."""

    owners: dict[tuple[str, int], Owner] = field(default_factory=dict)
    applied: list[tuple[str, bytes]] = field(default_factory=list)
    """(topic id, value) in the order in which they took effect."""
    fenced: int = 0
    holes: int = 0

    async def lease(self, topic: str, topic_id: str, partitions: list[int]) -> dict[int, tuple[int, int | None]]:
        granted = {}
        for partition in partitions:
            owner = self.owners.setdefault((topic, partition), Owner(topic_id=topic_id))
            if owner.topic_id != topic_id:
                owner.topic_id, owner.next_offset = topic_id, None
            owner.epoch += 1
            granted[partition] = (owner.epoch, owner.next_offset)
        return granted

    async def apply(self, batch: Batch) -> None:
        for partition, records in batch.records.items():
            owner = self.owners[batch.topic, partition]
            if owner.epoch != batch.epochs[partition]:
                self.fenced += 1
                batch.fenced(partition)
                continue
            for record in records:
                offset = record.offset()
                assert offset is not None
                if owner.next_offset is not None and offset < owner.next_offset:
                    continue
                if offset > (owner.next_offset or 0):
                    self.holes += 1
                    batch.rebuild(f"hole: {owner.next_offset} expected, {offset} met")
                    break
                owner.next_offset = offset + 1
                self.applied.append((batch.topic_id, record.value() or b""))

    def values(self) -> Counter[bytes]:
        return Counter(value for _, value in self.applied)


class Broker:
    """What a test asks of Kafka."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 0, "log_level": 0}
        )
        self._sent = 0

    def close(self) -> None:
        self._producer.close()

    def create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)

    async def recreate(self, topic: str) -> None:
        await asyncio.to_thread(self.admin.delete_topics([topic])[topic].result, 20)
        await self.create_when_possible(topic)

    async def create_when_possible(self, topic: str) -> None:
        """Create a topic; its deletion, or the start of the broker, may not be complete yet."""
        for _ in range(100):
            try:
                return await asyncio.to_thread(self.create, topic)
            except KafkaException:
                await asyncio.sleep(0.1)
        pytest.fail(f"{topic} cannot be created")

    async def send(self, topic: str, count: int) -> Counter[bytes]:
        """Send records over all partitions; returns their values once all are acknowledged."""
        values = [str(self._sent + i).encode() for i in range(count)]
        self._sent += count
        for i, value in enumerate(values):
            self._producer.produce(topic, value, partition=i % PARTITIONS)
        assert await asyncio.to_thread(self._producer.flush, WAIT_SECONDS) == 0
        return Counter(values)


@pytest.fixture
def broker(kafka: Any) -> Generator[Broker]:
    broker = Broker(kafka.bootstrap)
    yield broker
    broker.close()


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"transport-{uuid.uuid4().hex[:12]}"
    broker.create(name)
    return name


async def eventually(is_so: Callable[[], object], fact: str, *running: "asyncio.Task[None]") -> None:
    """Wait until something holds; a run that ends meanwhile fails the test with its own error."""
    for _ in range(int(WAIT_SECONDS / 0.02)):
        if is_so():
            return
        for task in running:
            if task.done():
                task.result()
        await asyncio.sleep(0.02)
    pytest.fail(f"still not so after {WAIT_SECONDS:.0f} s: {fact}")


Body = Callable[[Batch], Awaitable[None]]


@asynccontextmanager
async def member(
    host: Host, broker: Broker, topic: str, ledger: Ledger, body: Body | None = None, **options: Any
) -> AsyncGenerator["asyncio.Task[None]", None]:
    """A running transport; leaving the block stops it and checks that it ended well."""
    stop = asyncio.Event()
    options.setdefault("lease", ledger.lease)
    bodies = {topic: body or ledger.apply}
    task = asyncio.create_task(run(host, bootstrap=broker.bootstrap, group=topic, bodies=bodies, stop=stop, **options))
    try:
        yield task
    finally:
        stop.set()
        await task


# -- exactly once


async def test_each_record_is_applied_once_while_members_join_and_leave(host: Host, broker: Broker, topic: str) -> None:
    ledger, second_ledger = Ledger(), Ledger()
    second_ledger.owners, second_ledger.applied = ledger.owners, ledger.applied
    sent = await broker.send(topic, 100)
    async with member(host, broker, topic, ledger) as first:
        await eventually(lambda: len(ledger.applied) == 100, "the first member applied all", first)
        async with member(host, broker, topic, second_ledger) as second:
            epochs = {place: owner.epoch for place, owner in ledger.owners.items()}
            await eventually(
                lambda: sum(owner.epoch > epochs[place] for place, owner in ledger.owners.items()) >= PARTITIONS // 2,
                "half of the partitions moved",
                first,
                second,
            )
            sent += await broker.send(topic, 100)
            await eventually(lambda: len(ledger.applied) == 200, "both applied what came", first, second)
        sent += await broker.send(topic, 100)
        await eventually(lambda: len(ledger.applied) == 300, "the first goes on alone", first)
    assert ledger.values() == sent
    assert ledger.holes == second_ledger.holes == 0


async def test_a_lease_that_came_late_is_taken_back_by_the_member_that_has_the_partition(
    host: Host, broker: Broker, topic: str
) -> None:
    """The process behind it was not given the partition and will not read it."""
    ledger = Ledger()
    sent = await broker.send(topic, 40)
    async with member(host, broker, topic, ledger) as only:
        await eventually(lambda: len(ledger.applied) == 40, "all are applied", only)
        ledger.owners[topic, 0].epoch += 1
        sent += await broker.send(topic, 40)
        await eventually(lambda: len(ledger.applied) == 80, "also those of the partition that was taken", only)
    assert ledger.values() == sent
    assert ledger.fenced >= 1


async def test_a_rebuild_in_the_middle_of_a_poll_gives_its_place_back(
    host: Host, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, broken = Membership._read, list[int]()

    def break_once(membership: Membership, records_max: int, seconds: float) -> None:
        if records_max > 1 and not broken:
            broken.append(records_max)
            raise Rebuild("an assignment in the middle of a poll")
        read(membership, records_max, seconds)

    monkeypatch.setattr(Membership, "_read", break_once)
    ledger = Ledger()
    sent = await broker.send(topic, 40)
    async with member(host, broker, topic, ledger) as only:
        await eventually(lambda: len(ledger.applied) == 40, "all are applied after the rebuild", only)
    assert (ledger.values(), len(broken)) == (sent, 1)


async def test_a_batch_of_a_former_owner_is_fenced(host: Host, broker: Broker, topic: str) -> None:
    ledger, gate, is_held = Ledger(), asyncio.Event(), asyncio.Event()

    async def apply_late(batch: Batch) -> None:
        is_held.set()
        await gate.wait()
        await ledger.apply(batch)

    sent = await broker.send(topic, 40)
    async with member(host, broker, topic, ledger, apply_late) as slow:
        await asyncio.wait_for(is_held.wait(), WAIT_SECONDS)
        async with member(host, broker, topic, ledger) as second:
            await eventually(lambda: len(ledger.applied) >= 20, "the second took over half", slow, second)
            gate.set()
            await eventually(lambda: len(ledger.applied) == 40, "the first applied the rest", slow, second)
            await eventually(lambda: ledger.fenced >= 1, "the moved half was fenced", slow, second)
    assert ledger.values() == sent


async def test_b92_a_body_that_raises_ends_the_run_and_a_restart_loses_nothing(
    host: Host, broker: Broker, topic: str
) -> None:
    ledger = Ledger()
    sent = await broker.send(topic, 20)

    async def apply_until_it_breaks(batch: Batch) -> None:
        if len(ledger.applied) >= 20:
            raise ZeroDivisionError("a bug")
        await ledger.apply(batch)

    async def run_until_it_breaks() -> None:
        nonlocal sent
        async with member(host, broker, topic, ledger, apply_until_it_breaks) as task:
            await eventually(lambda: len(ledger.applied) == 20, "the first records are applied", task)
            sent += await broker.send(topic, 20)
            await eventually(task.done, "the run ended", task)

    with pytest.raises(ZeroDivisionError, match="a bug"):
        await run_until_it_breaks()
    assert len(ledger.applied) == 20
    async with member(host, broker, topic, ledger) as task:
        await eventually(lambda: len(ledger.applied) >= 40, "the rest is applied", task)
    assert ledger.values() == sent


async def test_a_background_coroutine_that_raises_ends_the_run(host: Host, broker: Broker, topic: str) -> None:
    async def break_down() -> None:
        raise LookupError("a sweep's bug")

    with pytest.raises(LookupError, match="a sweep's bug"):
        async with member(host, broker, topic, Ledger(), background=[break_down]) as task:
            await eventually(task.done, "the run ended", task)


# -- logs that are not what they were


async def test_b95_all_records_of_a_recreated_topic_are_handled(host: Host, broker: Broker, topic: str) -> None:
    ledger = Ledger()
    await broker.send(topic, 200)
    async with member(host, broker, topic, ledger) as task:
        await eventually(lambda: len(ledger.applied) == 200, "the old log is applied", task)
        await broker.recreate(topic)
        sent = await broker.send(topic, 50)
        await eventually(lambda: sent <= ledger.values(), "all records of the new log are handled", task)
    assert len({topic_id for topic_id, _ in ledger.applied}) == 2
    assert all(ledger.values()[value] == 1 for value in sent)


async def test_an_offset_beyond_the_end_starts_the_partition_over(host: Host, broker: Broker, topic: str) -> None:
    ledger = Ledger()
    sent = await broker.send(topic, 40)
    async with member(host, broker, topic, ledger) as task:
        await eventually(lambda: len(ledger.applied) == 40, "the log is applied", task)
    for owner in ledger.owners.values():
        assert owner.next_offset == 10
    ledger.owners[topic, 0].next_offset = 2_000_000
    with capture_logs() as lines:
        async with member(host, broker, topic, ledger) as task:
            await eventually(lambda: len(ledger.applied) == 50, "partition 0 is applied again", task)
            sent += await broker.send(topic, 20)
            await eventually(lambda: len(ledger.applied) == 70, "and what comes after", task)
    assert [line["offsets"] for line in lines if line["event"].startswith("next offset outside")] == [{0: 2_000_000}]
    assert ledger.values() > sent


async def test_a_hole_makes_the_transport_lease_again(host: Host, broker: Broker, topic: str) -> None:
    ledger = Ledger()
    sent = await broker.send(topic, 40)
    with capture_logs() as lines:
        async with member(host, broker, topic, ledger) as task:
            await eventually(lambda: len(ledger.applied) == 40, "the log is applied", task)
            ledger.owners[topic, 2].next_offset = 5  # as after a commit that Postgres lost
            sent += await broker.send(topic, 40)
            await eventually(lambda: len(ledger.applied) == 85, "partition 2 is read again from its hole", task)
    assert ledger.values() > sent
    assert ledger.holes >= 1
    rebuilt = [line["why"] for line in lines if line["event"] == "rebuilding the consumer"]
    assert rebuilt == ["hole: 5 expected, 10 met"]


async def test_a_topic_that_is_missing_at_the_start_is_waited_for(host: Host, broker: Broker) -> None:
    topic, ledger = f"transport-{uuid.uuid4().hex[:12]}", Ledger()
    with capture_logs() as lines:
        async with member(host, broker, topic, ledger) as task:
            await eventually(lambda: any(line["event"] == "topic is missing" for line in lines), "it is said", task)
            broker.create(topic)
            sent = await broker.send(topic, 20)
            await eventually(lambda: len(ledger.applied) == 20, "the records are applied", task)
    assert ledger.values() == sent
    assert [line["event"] for line in lines].count("topic is missing") == 1


# -- outages


async def test_a_broker_that_is_killed_and_comes_back_or_comes_back_empty_loses_nothing(
    kafka: Any, broker: Broker
) -> None:
    """Both hosts at once, because a start of the broker takes seconds."""
    hosts: tuple[Host, ...] = ("plain", "faust")
    topics: dict[Host, str] = {host: f"transport-{host}-{uuid.uuid4().hex[:12]}" for host in hosts}
    ledgers: dict[Host, Ledger] = {host: Ledger() for host in hosts}
    sent: dict[Host, Counter[bytes]] = {host: Counter() for host in hosts}

    async def send_to_both(broker: Broker, count: int) -> None:
        for host in hosts:
            sent[host] += await broker.send(topics[host], count)

    async def applied_by_both(count: int, fact: str) -> None:
        await eventually(lambda: all(len(ledger.applied) == count for ledger in ledgers.values()), fact, *tasks)

    for name in topics.values():
        broker.create(name)
    await send_to_both(broker, 40)
    with capture_logs() as lines:
        async with (
            member("plain", broker, topics["plain"], ledgers["plain"]) as plain,
            member("faust", broker, topics["faust"], ledgers["faust"]) as faust,
        ):
            tasks = (plain, faust)
            await applied_by_both(40, "all is applied")
            kafka.kill9()
            await eventually(lambda: events(lines).count("Kafka is away") == 2, "the outage is said by both", *tasks)
            await asyncio.to_thread(kafka.start)
            await send_to_both(broker, 40)
            await applied_by_both(80, "reading goes on")
            await eventually(lambda: events(lines).count("Kafka is back") == 2, "its end is said by both", *tasks)

            kafka.kill9()
            kafka.wipe()
            await asyncio.to_thread(kafka.start)
            fresh = Broker(kafka.bootstrap)
            for name in topics.values():
                await fresh.create_when_possible(name)
            await send_to_both(fresh, 50)
            await applied_by_both(130, "the new log is read from its beginning")
            fresh.close()
    assert {host: ledger.values() for host, ledger in ledgers.items()} == sent
    assert events(lines).count("Kafka is away") <= 4


def events(lines: list[Any]) -> list[str]:
    return [line["event"] for line in lines]


async def test_a_lease_that_fails_is_asked_for_again_and_the_trouble_is_said_once(
    host: Host, broker: Broker, topic: str
) -> None:
    ledger, asked = Ledger(), 0

    async def lease(topic: str, topic_id: str, partitions: list[int]) -> dict[int, tuple[int, int | None]]:
        nonlocal asked
        asked += 1
        if asked <= 3:
            raise ConnectionError("the database is away")
        return await ledger.lease(topic, topic_id, partitions)

    sent = await broker.send(topic, 20)
    with capture_logs() as lines:
        async with member(host, broker, topic, ledger, lease=lease) as task:
            await eventually(lambda: len(ledger.applied) == 20, "the records are applied", task)
    assert ledger.values() == sent
    assert events(lines).count("no lease for assigned partitions") == 1
    assert events(lines).count("leases granted again") == 1


# -- the process

PROCESS = """
import asyncio, sys
from streams.transport import run

async def lease(topic, topic_id, partitions):
    return {p: (1, None) for p in partitions}

async def body(batch):
    print("begun", flush=True)
    if sys.argv[4] == "raise":
        raise RuntimeError("a bug")
    await asyncio.sleep(0.5)
    print("committed", flush=True)

host, bootstrap, topic = sys.argv[1:4]
asyncio.run(run(host, bootstrap=bootstrap, group=topic, lease=lease, bodies={topic: body}))
print("left", flush=True)
"""


async def start_process(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROCESS, *arguments),
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def read_to_the_end(process: asyncio.subprocess.Process) -> tuple[str, str]:
    out, err = await asyncio.wait_for(process.communicate(), WAIT_SECONDS)
    return out.decode(), err.decode()


async def test_sigterm_lets_the_batch_commit_and_exits_0(host: Host, broker: Broker, topic: str) -> None:
    await broker.send(topic, 1)
    process = await start_process(host, broker.bootstrap, topic, "")
    assert process.stdout is not None
    while await process.stdout.readline() != b"begun\n":
        assert process.returncode is None
    process.send_signal(signal.SIGTERM)
    out, err = await read_to_the_end(process)
    assert [line for line in out.splitlines() if line in ("committed", "left")] == ["committed", "left"], err
    assert process.returncode == 0


async def test_a_body_that_raises_ends_the_process_with_1(host: Host, broker: Broker, topic: str) -> None:
    await broker.send(topic, 1)
    process = await start_process(host, broker.bootstrap, topic, "raise")
    out, err = await read_to_the_end(process)
    assert process.returncode == 1
    assert "RuntimeError: a bug" in err
    assert err.count("Traceback") == 1
    assert "left" not in out


# -- what is said of an outage


def answered(asked_at: float, *errors: Exception | None) -> Answer:
    answer = Answer(asked_at)
    for partition, error in enumerate(errors):
        future: Future[Any] = Future()
        future.set_exception(error) if error else future.set_result(None)
        answer.offsets["headrace.events", partition] = future
    return answer


TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))
NO_LEADERS_FOUND = KafkaException(KafkaError(KafkaError._NOENT))


@pytest.fixture
def nowhere() -> KafkaAnswers:
    return KafkaAnswers({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, ids=True, log_id="-")


def test_an_answer_asked_for_before_the_outage_does_not_end_it(nowhere: KafkaAnswers) -> None:
    nowhere.away.met(error="1/1 brokers are down")
    since = nowhere.away.since
    assert since is not None
    nowhere.hear(answered(since - 0.1, None))
    assert nowhere.away.since == since
    nowhere.hear(answered(since + 0.1, None))
    assert nowhere.away.since is None


def test_what_the_client_concludes_by_itself_does_not_end_an_outage(nowhere: KafkaAnswers) -> None:
    nowhere.away.met(error="1/1 brokers are down")
    since = nowhere.away.since
    assert since is not None
    nowhere.hear(answered(since + 0.1, TIMED_OUT, NO_LEADERS_FOUND))
    assert nowhere.away.since == since


def test_kafka_is_away_only_when_nothing_answers(nowhere: KafkaAnswers) -> None:
    nowhere.hear(answered(1.0, TIMED_OUT, None))
    assert nowhere.away.since is None
    nowhere.on_error(KafkaError(KafkaError._TRANSPORT))
    assert nowhere.away.since is None
    nowhere.hear(answered(1.0, TIMED_OUT, TIMED_OUT))
    assert nowhere.away.since is not None


# -- the watchdog

PLACE = ("headrace.events", 3)


def test_a_partition_is_stalled_when_its_log_grew_and_nothing_came_for_the_time() -> None:
    watchdog = Watchdog(seconds=20)
    assert not watchdog.is_stalled(PLACE, next_offset=7, end=9, now=100, emptied_at=100)
    assert not watchdog.is_stalled(PLACE, next_offset=7, end=9, now=119, emptied_at=119)
    assert watchdog.is_stalled(PLACE, next_offset=7, end=9, now=121, emptied_at=121)


def test_a_partition_that_moves_or_is_read_to_its_end_is_not_stalled() -> None:
    watchdog = Watchdog(seconds=20)
    for second in range(0, 200, 2):
        assert not watchdog.is_stalled(PLACE, next_offset=second, end=1_000, now=second, emptied_at=second)
        assert not watchdog.is_stalled(("headrace.events", 4), next_offset=5, end=5, now=second, emptied_at=second)


def test_records_that_wait_in_a_full_local_queue_are_not_a_stall() -> None:
    watchdog = Watchdog(seconds=20)
    for second in range(0, 200, 2):
        assert not watchdog.is_stalled(PLACE, next_offset=7, end=9, now=second, emptied_at=0)


def test_a_rebuild_that_did_not_help_is_repeated_after_twice_the_time() -> None:
    watchdog = Watchdog(seconds=20)
    rebuilt_at = []
    for second in range(0, 200, 2):
        if watchdog.is_stalled(PLACE, next_offset=7, end=8, now=second, emptied_at=second):
            rebuilt_at.append(second)
            watchdog.forget()
    assert rebuilt_at == [20, 62, 144]


async def test_a_body_that_never_waits_leaves_others_their_turn_while_records_come() -> None:
    async def lease(topic: str, topic_id: str, partitions: list[int]) -> dict[int, tuple[int, int | None]]:
        return {}

    transport = Transport(bootstrap="127.0.0.1:1", group="g", topics=["t"], lease=lease, tell=lambda topic: None)
    turns, applied = 0, 0

    async def body(batch: Batch) -> None:
        nonlocal applied
        applied += 1
        if applied < 100:
            transport._inbox.put([Batch("t", "id", {0: []}, {0: 1})])

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(other())
    transport._inbox.put([Batch("t", "id", {0: []}, {0: 1})])
    await transport.apply("t", body)
    beside.cancel()
    assert applied == 100
    assert turns >= applied - 1
