"""Records into Kafka, at least once and in order per partition, with as many partitions to a request as have something.

    add -> a lane per partition -> flush: each lane with nothing on its way hands over all it holds, as one batch; the
    batches for one broker leave in one request -> answered: the broker gets what came meanwhile

A broker's price is per request, and librdkafka sends one request per partition: with 16 partitions that price was most
of a step's CPU at half load (docs/decisions/0009-batch-producer.md). Connections, metadata, the encoding of batches and
requests are aiokafka's, one level below its producer.

Nothing is given up. What fails for a passing reason waits and is sent again, before what was added after it. A batch
that Kafka refuses for what is in it is sent record by record, and only a record refused alone is handed back. An answer
that was lost leads to a repetition: the readers of these topics tell duplicates by their tokens, so nothing is paid for
an idempotent producer, whose state is the one thing here that could break.

Owned by one event loop.
"""

import asyncio
import contextvars
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, cast

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.structs import TopicPartition
from confluent_kafka import murmur2

BATCH_BYTES: Final = 900_000
"""Of one batch, below the least limit that brokers usually have; a single record may be larger."""
REQUEST_BYTES: Final = 32 * 1024 * 1024
"""Of one request, which holds batches of many partitions: a broker closes a connection over one of 100 MiB."""
ANSWER_SECONDS: Final = 10.0
"""How long a broker may take; then the batch is sent again."""
PAUSE_SECONDS: Final = 0.1
CONNECT_SECONDS_MAX: Final = 1.0
METADATA_SECONDS: Final = 10.0

Headers = list[tuple[str, bytes | None]]
_NO_HEADERS: Final[Headers] = []
_COMPRESSION: Final = {"none": 0, "lz4": DefaultRecordBatch.CODEC_LZ4}
_ALL_REPLICAS: Final = -1
_TOO_LARGE: Final = (10, 18)
_REFUSALS: Final = frozenset({*_TOO_LARGE, 2, 17, 87})
"""MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE; CORRUPT_MESSAGE, INVALID_TOPIC_EXCEPTION, INVALID_RECORD: for what is sent,
and for ever."""


class Refused(NamedTuple):
    """A record that Kafka will never take."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers
    reason: str
    is_too_large: bool


class _Record(NamedTuple):
    key: bytes
    value: bytes
    headers: Headers


class _Lane:
    """What waits for one partition, in order, and what of it is on its way."""

    __slots__ = ("is_single", "out", "place", "waiting")

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.waiting: deque[_Record] = deque()
        self.out: list[_Record] = []
        self.is_single = 0
        """How many of the next records travel alone."""

    @property
    def topic(self) -> str:
        topic: str = self.place.topic
        return topic


class BatchProducer:
    """Call `start` on a running event loop; `add` and `flush` at any time, before that too."""

    def __init__(
        self, options: Mapping[str, Any], on_refused: Callable[[Refused], object], compression: str = "none"
    ) -> None:
        """options: what aiokafka's clients take to connect, `bootstrap_servers` and security."""
        self._options, self._on_refused, self._compression = options, on_refused, _COMPRESSION[compression]
        self._new: list[tuple[str, int | None, _Record]] = []
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._ready: dict[_Lane, None] = {}
        """Lanes that have something waiting and nothing on its way, in the order in which they became so."""
        self._unsent = 0
        self._wake, self._empty = asyncio.Event(), asyncio.Event()
        self._client: AIOKafkaClient | None = None
        self._running: asyncio.Task[None] | None = None
        self._requests: dict[int, asyncio.Task[None]] = {}
        """By broker: one is on its way to each at a time."""
        self._bug: Exception | None = None
        self.trouble: str | None = None
        """Why Kafka did not take the last that was sent; None when it did."""

    def __len__(self) -> int:
        """Records that Kafka has not taken and not refused."""
        return self._unsent

    def start(self, on_broken: Callable[[BaseException], object] | None = None) -> None:
        """on_broken: hears of a bug, after which nothing is sent any more; `empty` raises it too."""
        with _quiet():
            self._running = asyncio.get_running_loop().create_task(self._run())
        if on_broken is not None:
            self._running.add_done_callback(lambda run: run.cancelled() or on_broken(_error_of(run)))

    def add(
        self, topic: str, key: bytes, value: bytes, partition: int | None = None, headers: Headers = _NO_HEADERS
    ) -> None:
        """partition: None places by murmur2 of the key, as Java does; so does a partition that the topic lacks."""
        self._new.append((topic, partition, _Record(key, value, headers)))
        self._unsent += 1

    def flush(self) -> None:
        """Send what was added, soon."""
        if self._unsent:
            self._empty.clear()
            self._wake.set()

    async def empty(self, seconds: float) -> bool:
        """Wait so long for Kafka to have everything that was flushed; whether it has."""
        if not self._unsent:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        if self._running is not None and self._running.done():
            self._running.result()
        return not self._unsent

    async def close(self) -> None:
        """Let go of what Kafka does not have."""
        tasks = {*self._requests.values(), *([] if self._running is None else [self._running])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._client is not None:
            await self._client.close()

    # -- inside --------------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        client = self._client = await self._connect()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._bug is not None:
                raise self._bug
            if self._new:
                await self._place(client)
            if self._ready:
                self._hand_over(client)

    async def _connect(self) -> AIOKafkaClient:
        options: dict[str, Any] = {"client_id": "headrace", **self._options}
        pause = PAUSE_SECONDS
        while True:
            client = AIOKafkaClient(
                **options,
                request_timeout_ms=round(ANSWER_SECONDS * 1000),
                retry_backoff_ms=round(PAUSE_SECONDS * 1000),
                metadata_max_age_ms=round(METADATA_SECONDS * 1000),
            )
            try:
                await client.bootstrap()
            except (KafkaError, OSError) as error:
                self.trouble = _reason(error)
                await client.close()
                await asyncio.sleep(pause)
                pause = min(2 * pause, CONNECT_SECONDS_MAX)
            except BaseException:
                await client.close()
                raise
            else:
                return client

    async def _place(self, client: AIOKafkaClient) -> None:
        """Into lanes, except what is for a topic that Kafka does not tell of; later records of that topic wait too."""
        new, self._new = self._new, []
        counts = {topic: await self._partitions(client, topic) for topic in {topic for topic, _, _ in new}}
        kept = []
        for one in new:
            topic, partition, record = one
            count = counts[topic]
            if not count:
                kept.append(one)
                continue
            if partition is None or partition >= count:
                partition = murmur2(record.key, count)
            lane = self._lanes.get((topic, partition))
            if lane is None:
                lane = self._lanes[topic, partition] = _Lane(TopicPartition(topic, partition))
            lane.waiting.append(record)
            if not lane.out:
                self._ready[lane] = None
        if kept:
            self._new = kept + self._new
            self._again_soon()

    async def _partitions(self, client: AIOKafkaClient, topic: str) -> int:
        """0 for a topic that Kafka does not tell of; asks it to."""
        partitions = client.cluster.partitions_for_topic(topic)
        if partitions is None:
            await client.add_topic(topic)
            await client.force_metadata_update()
            partitions = client.cluster.partitions_for_topic(topic)
        if partitions is None:
            self.trouble = f"there is no topic {topic}"
        return len(partitions or ())

    def _hand_over(self, client: AIOKafkaClient) -> None:
        requests: dict[int, dict[_Lane, bytes]] = defaultdict(dict)
        sizes: dict[int, int] = defaultdict(int)
        for lane in list(self._ready):
            leader = client.cluster.leader_for_partition(lane.place)
            if leader is None or leader < 0:
                self._await_leader(client, lane)
            elif leader not in self._requests and sizes[leader] < REQUEST_BYTES:
                del self._ready[lane]
                batch = requests[leader][lane] = self._pack(lane)
                sizes[leader] += len(batch)
        for leader, batches in requests.items():
            self._requests[leader] = asyncio.get_running_loop().create_task(self._request(client, leader, batches))

    def _pack(self, lane: _Lane) -> bytes:
        """The next records of a lane, as many as a batch holds: they are on their way from here on."""
        builder = DefaultRecordBatchBuilder(2, self._compression, 0, -1, -1, 0, BATCH_BYTES)
        waiting, out = lane.waiting, lane.out
        most = 1 if lane.is_single else len(waiting)
        while len(out) < most:
            key, value, headers = waiting[0]
            if builder.append(len(out), None, key, value, headers) is None:
                break
            out.append(waiting.popleft())
        return cast(bytes, builder.build())

    async def _request(self, client: AIOKafkaClient, leader: int, batches: dict[_Lane, bytes]) -> None:
        topics: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for lane, batch in batches.items():
            topics[lane.topic].append((lane.place.partition, batch))
        timeout = round(ANSWER_SECONDS * 1000)
        unanswered = {lane.place: lane for lane in batches}
        try:
            response = await client.send(leader, ProduceRequest(None, _ALL_REPLICAS, timeout, list(topics.items())))
            for topic, partitions in response.topics:
                for partition, code, *_ in partitions:
                    self._answered(client, unanswered.pop(TopicPartition(topic, partition)), code)
            if unanswered:
                raise KafkaError("the broker left partitions out of its answer")
        except KafkaError as error:
            self._fail_all(client, list(unanswered.values()), error)
        except Exception as bug:
            self._bug = bug
        finally:
            del self._requests[leader]
            self._wake.set()

    def _answered(self, client: AIOKafkaClient, lane: _Lane, code: int) -> None:
        if code == 0:
            self.trouble = None
            self._settled(lane)
        elif code not in _REFUSALS:
            self._fail_all(client, [lane], for_code(code)())
        elif len(lane.out) > 1:
            lane.is_single = len(lane.out)
            self._take_back(lane)
            self._make_ready(lane)
        else:
            reason = _reason(for_code(code)())
            self._on_refused(Refused(lane.topic, *lane.out[0], reason, code in _TOO_LARGE))
            self._settled(lane)

    def _settled(self, lane: _Lane) -> None:
        """The records on their way have arrived, or were refused for ever."""
        count = len(lane.out)
        lane.out.clear()
        lane.is_single = max(0, lane.is_single - count)
        self._unsent -= count
        if not self._unsent:
            self._empty.set()
        self._make_ready(lane)

    def _fail_all(self, client: AIOKafkaClient, lanes: list[_Lane], error: KafkaError) -> None:
        """Whatever went wrong, the records keep their place."""
        self.trouble = _reason(error)
        if error.invalid_metadata:
            client.force_metadata_update()
        for lane in lanes:
            self._take_back(lane)
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._make_ready, lane)

    def _await_leader(self, client: AIOKafkaClient, lane: _Lane) -> None:
        """Look again soon; a partition that is gone, with a topic made anew with fewer, gives its records back."""
        self.trouble = f"no leader for {lane.topic}/{lane.place.partition}"
        del self._ready[lane]
        partitions = client.cluster.partitions_for_topic(lane.topic)
        if partitions is not None and lane.place.partition not in partitions:
            del self._lanes[lane.topic, lane.place.partition]
            self._new = [(lane.topic, None, record) for record in lane.waiting] + self._new
            lane.waiting.clear()  # a look at it that is still due must find nothing
            self._again_soon()
        else:
            client.force_metadata_update()
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._make_ready, lane)

    def _take_back(self, lane: _Lane) -> None:
        lane.waiting.extendleft(reversed(lane.out))
        lane.out.clear()

    def _make_ready(self, lane: _Lane) -> None:
        if lane.waiting and not lane.out:
            self._ready[lane] = None
            self._wake.set()

    def _again_soon(self) -> None:
        asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._wake.set)


def _error_of(run: "asyncio.Task[None]") -> BaseException:
    return run.exception() or AssertionError("the producer ended by itself")


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


# -- aiokafka says each failed try of its own; what matters is said by those who own a producer ------------------------
_is_ours: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("headrace_batch_producer", default=False)
_LOGGERS: Final = ("client", "cluster", "conn", "producer.message_accumulator", "producer.producer", "producer.sender")


def _is_of_others(_: logging.LogRecord) -> bool:
    return not _is_ours.get()


for _name in _LOGGERS:
    logging.getLogger(f"aiokafka.{_name}").addFilter(_is_of_others)


@contextmanager
def _quiet() -> Generator[None]:
    """Tasks begun inside, and all that they begin, log nothing of aiokafka's; a user's own clients still do."""
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)
