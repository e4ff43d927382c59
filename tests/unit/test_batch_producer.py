"""What becomes of records while Kafka takes some, refuses some, and is away: through a client that does as told."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import TopicPartition
from confluent_kafka import murmur2

import headrace.batch_producer
from headrace.batch_producer import BatchProducer, Refused

WAIT_SECONDS: Final = 10.0
PARTITIONS: Final = 4
TOO_LARGE, NOT_LEADER, UNKNOWN = 10, 6, -1
FULL: Final = 5
"""Records in the largest batch here."""


class Builder:
    """Stands for aiokafka's builder of batches: the values themselves are the batch."""

    def __init__(self, *_: Any) -> None:
        self._values: list[bytes] = []

    def append(self, offset: int, timestamp: Any, key: bytes, value: bytes, headers: Any) -> object:
        if len(self._values) == FULL:
            return None
        self._values.append(value)
        return object()

    def build(self) -> bytes:
        return b" ".join(self._values)


class Client:
    """Stands for aiokafka's client of one broker: every request waits for the next `answer`."""

    def __init__(self) -> None:
        self.topics = {"t": PARTITIONS}
        self.sent: list[dict[int, list[bytes]]] = []
        """What each request held, by partition."""
        self.taken: dict[int, list[bytes]] = {}
        self.waiting: list[tuple[ProduceRequest, asyncio.Future[Any]]] = []
        self.cluster = self
        self.has_leaders = True

    def make(self, **_: Any) -> "Client":
        return self

    async def bootstrap(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.topics[topic])) if topic in self.topics else None

    def leader_for_partition(self, place: TopicPartition) -> int | None:
        return 1 if self.has_leaders and place.partition < self.topics.get(place.topic, 0) else None

    async def add_topic(self, topic: str) -> None:
        return None

    def force_metadata_update(self) -> "asyncio.Future[bool]":
        done = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done

    async def send(self, node: int, request: ProduceRequest) -> Any:
        (batches,) = (dict(partitions) for _, partitions in request._topics)
        self.sent.append({partition: batch.split() for partition, batch in batches.items()})
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        return await future

    async def answer(self, judge: Callable[[list[bytes]], int] = lambda values: 0) -> None:
        """Answer what is on its way, once there is something: each batch with a code, 0 takes it."""
        await until(lambda: self.waiting)
        waiting, self.waiting = self.waiting, []
        for request, future in waiting:
            topics = []
            for topic, partitions in request._topics:
                codes = [(partition, judge(batch.split()), -1) for partition, batch in partitions]
                topics.append((topic, codes))
                for (partition, batch), (_, code, _) in zip(partitions, codes, strict=True):
                    if code == 0:
                        self.taken.setdefault(partition, []).extend(batch.split())
            future.set_result(SimpleNamespace(topics=topics))
        await asyncio.sleep(0)

    async def fail(self, error: KafkaError) -> None:
        await until(lambda: self.waiting)
        waiting, self.waiting = self.waiting, []
        for _, future in waiting:
            future.set_exception(error)
        await asyncio.sleep(0)


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(headrace.batch_producer, "AIOKafkaClient", client.make)
    monkeypatch.setattr(headrace.batch_producer, "DefaultRecordBatchBuilder", Builder)
    monkeypatch.setattr(headrace.batch_producer, "PAUSE_SECONDS", 0.002)
    return client


@pytest.fixture
def refused() -> list[Refused]:
    return []


@pytest.fixture
async def producer(client: Client, refused: list[Refused]) -> AsyncIterator[BatchProducer]:
    producer = BatchProducer({}, refused.append)
    producer.start()
    yield producer
    await producer.close()


async def test_all_partitions_leave_in_one_request_each_as_one_batch(producer: BatchProducer, client: Client):
    for number in range(8):
        producer.add("t", b"k", b"%d" % number, number % PARTITIONS)
    producer.flush()
    await until(lambda: client.sent)
    assert client.sent == [{p: [b"%d" % p, b"%d" % (p + PARTITIONS)] for p in range(PARTITIONS)}]
    assert len(producer) == 8
    await client.answer()
    assert await producer.empty(WAIT_SECONDS)


async def test_what_is_added_meanwhile_leaves_as_one_request_behind_it(producer: BatchProducer, client: Client):
    for value in (b"a", b"b", b"c"):
        producer.add("t", b"k", value, 0)
        producer.flush()
        await until(lambda: client.sent)
    await client.answer()
    await client.answer()
    assert client.sent == [{0: [b"a"]}, {0: [b"b", b"c"]}]


async def test_more_than_a_batch_holds_leaves_in_order(producer: BatchProducer, client: Client):
    values = [b"%d" % number for number in range(2 * FULL + 1)]
    for value in values:
        producer.add("t", b"k", value, 0)
    producer.flush()
    for _ in range(3):
        await client.answer()
    assert client.taken == {0: values}


async def test_a_record_without_a_partition_or_with_one_too_many_is_placed_by_its_key(
    producer: BatchProducer, client: Client
):
    producer.add("t", b"some key", b"a")
    producer.add("t", b"some key", b"b", PARTITIONS)
    producer.flush()
    await client.answer()
    assert client.taken == {murmur2(b"some key", PARTITIONS): [b"a", b"b"]}


async def test_what_failed_for_a_passing_reason_goes_before_what_came_later(producer: BatchProducer, client: Client):
    producer.add("t", b"k", b"a", 0)
    producer.flush()
    await client.fail(KafkaConnectionError("away"))
    assert producer.trouble is not None
    assert "away" in producer.trouble
    producer.add("t", b"k", b"b", 0)
    producer.flush()
    await client.answer()
    assert await producer.empty(WAIT_SECONDS)
    assert (client.taken, producer.trouble) == ({0: [b"a", b"b"]}, None)


async def test_one_bad_record_takes_no_other_along(producer: BatchProducer, client: Client, refused: list[Refused]):
    def judge(values: list[bytes]) -> int:
        return TOO_LARGE if b"bad" in values else 0

    for value in (b"a", b"bad", b"b"):
        producer.add("t", b"k", value, 0, [("h", b"1")])
    producer.flush()
    while len(producer):
        await client.answer(judge)
    assert client.taken == {0: [b"a", b"b"]}
    (one,) = refused
    assert (one.topic, one.key, one.value, one.headers, one.is_too_large) == ("t", b"k", b"bad", [("h", b"1")], True)
    producer.add("t", b"k", b"c", 0)
    producer.add("t", b"k", b"d", 0)
    producer.flush()
    await client.answer()
    assert client.sent[-1] == {0: [b"c", b"d"]}


@pytest.mark.parametrize("code", [NOT_LEADER, UNKNOWN])
async def test_a_code_that_may_pass_is_no_refusal(
    producer: BatchProducer, client: Client, refused: list[Refused], code: int
):
    for value in (b"a", b"b"):
        producer.add("t", b"k", value, 0)
    producer.add("t", b"k", b"c", 1)
    producer.flush()
    await client.answer(lambda values: code if b"a" in values else 0)
    await client.answer()
    assert await producer.empty(WAIT_SECONDS)
    assert (client.taken, refused) == ({0: [b"a", b"b"], 1: [b"c"]}, [])


async def test_a_partition_that_the_broker_left_out_of_its_answer_is_sent_again(
    producer: BatchProducer, client: Client
):
    producer.add("t", b"k", b"a", 0)
    producer.flush()
    await until(lambda: client.waiting)
    ((_, future),) = client.waiting
    client.waiting.clear()
    future.set_result(SimpleNamespace(topics=[]))
    await client.answer()
    assert await producer.empty(WAIT_SECONDS)
    assert client.taken == {0: [b"a"]}


async def test_records_wait_for_their_topic_and_hold_nobody_up(producer: BatchProducer, client: Client):
    producer.add("later", b"k", b"a", 0)
    producer.add("t", b"k", b"b", 0)
    producer.flush()
    await client.answer()
    assert not await producer.empty(0.01)
    producer.add("later", b"k", b"c", 0)
    producer.flush()
    client.topics["later"] = 1
    await client.answer()
    assert await producer.empty(WAIT_SECONDS)
    assert client.taken == {0: [b"b", b"a", b"c"]}


async def test_a_topic_made_anew_with_fewer_partitions_gets_its_records_by_key(producer: BatchProducer, client: Client):
    producer.add("t", b"k", b"a", 3)
    producer.flush()
    await client.fail(KafkaConnectionError("away"))
    client.topics["t"] = 1
    producer.add("t", b"k", b"b", 0)
    producer.flush()
    while len(producer):
        await client.answer()
    assert sorted(client.taken[0]) == [b"a", b"b"]


async def test_a_partition_that_vanished_while_it_had_no_leader_sends_its_records_once(
    producer: BatchProducer, client: Client
):
    client.has_leaders = False
    for value in (b"a", b"b", b"c"):  # each is tried at once, and once more later
        producer.add("t", b"k", value, 3)
        producer.flush()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    client.topics["t"], client.has_leaders = 1, True
    while len(producer) > 0:
        await client.answer()
    await asyncio.sleep(0.02)  # longer than whatever was still to be tried
    assert (client.taken, len(producer), client.waiting) == ({0: [b"a", b"b", b"c"]}, 0, [])


@pytest.mark.parametrize("place", ["partitions_for_topic", "send"])
async def test_a_bug_is_told_and_nobody_waits_for_ever(client: Client, monkeypatch: pytest.MonkeyPatch, place: str):
    broken: list[BaseException] = []
    producer = BatchProducer({}, lambda record: None)
    producer.start(broken.append)
    monkeypatch.setattr(client, place, None)
    producer.add("t", b"k", b"a", 0)
    producer.flush()
    await until(lambda: broken)
    with pytest.raises(TypeError):
        await producer.empty(0.01)
    await producer.close()


async def test_a_client_that_fails_again_and_again_logs_nothing_but_those_of_others_do(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    log = logging.getLogger("aiokafka.producer.sender")

    async def bootstrap() -> None:
        log.warning("ours")

    monkeypatch.setattr(client, "bootstrap", bootstrap)
    producer = BatchProducer({}, lambda record: None)
    producer.start()
    producer.add("t", b"k", b"a", 0)
    producer.flush()
    await client.answer()
    log.warning("another's")
    await producer.close()
    assert [record.message for record in caplog.records] == ["another's"]
