"""The stream transport: Kafka records reach the agents in batches, under ownership that Postgres grants.

Theory
    A thread owns a confluent-kafka consumer and puts what it reads into an inbox, by topic. On the loop an agent's body
    applies a `Batch` in one Postgres transaction: its effects and the next offset of each partition, if the partition's
    epoch is still the one the batch was fetched under. Kafka stores no offset of ours and decides nothing; it says who
    may try.

    assigned    The group assigns partitions; the thread takes a lease on each (the epoch rises, the next offset comes
                back) and starts reading there. From this moment every batch of an earlier owner is fenced, however late
                it commits. fetched     The thread waits for a first record, then takes all that is already there: no
                latency when idle, large batches when busy. It goes on while a body runs, until the inbox is full; then
                reading pauses, and polling goes on so that the group keeps us. applied     A body that returns is given
                what came meanwhile, at once. A body that raises ends the process: nothing more is begun, and what it
                had not committed is read again by the next owner. rebuilt     The consumer is thrown away and made
                anew, which takes fresh leases, whenever its idea of the log may be wrong: a fatal error, an offset
                outside the log, a topic id that changed, a hole that a body met (`Batch.rebuild`), or a log that grows
                while nothing arrives (the watchdog). This is always safe and costs a moment; what still waits of the
                old leases is fenced.

What the log's identity is for: a topic that was deleted and created again looks healthy to a fetcher, and an old offset
may even lie inside the new log. Only the topic id tells. Until it is noticed (2 s), records of the new log may be
missed or repeated; tokens, state checks and sweeps make both harmless.

Offsets must be contiguous, so no transactional producers and no compaction on the engine's own topics. Not modelled:
order between topics (each has its own batches), and one topic's pause alone (the inbox is full or it is not).

Two hosts run the same bodies: Faust (`faust_host`) and a plain coroutine per topic (`plain_host`).
"""

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as NotYet
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, Final, Literal, Protocol, assert_never

import structlog
from confluent_kafka import KafkaException

from headrace.pace import Pace
from streams.batch import Apply, Batch, Body, Lease
from streams.broker import Broker, Trouble
from streams.inbox import Inbox
from streams.membership import Granted, Membership, Rebuild, Shore, Watchdog

__all__ = ["Batch", "Body", "Host", "Lease", "Transport", "run"]

log = structlog.get_logger(__name__)

PACE_SECONDS: Final = 0.004
"""At most one batch of a topic is begun in this time while batches are large (`headrace.pace`)."""
DRAIN_SECONDS: Final = 5.0
"""How long a stop waits for the batches being applied; longer, and a process manager would lose patience."""
LEAVE_SECONDS: Final = 3.0
"""How long a stop waits for the group to be left; with no broker to tell, the process just goes."""
WATCHDOG_SECONDS: Final = 20.0
"""Default of the setting `headrace.watchdog.seconds`."""
REBUILD_PAUSE_SECONDS: Final = 0.2
REBUILD_PAUSE_MAX_SECONDS: Final = 10.0
"""Rebuilds that follow one another without a single record between them wait twice as long each time, up to this."""


class Host(Protocol):
    """What runs the bodies on the event loop."""

    def tell(self, topic: str) -> None:
        """Hear that something waits for a topic; said once until `apply` was called for it. Returns at once."""

    async def serve(self, apply: Apply) -> None:
        """Call `apply` for each topic told of, until cancelled; raises what a body raised."""


class Transport:
    """One consumer thread for one event loop; create it on that loop, `start` it, `stop` it."""

    def __init__(
        self,
        *,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        lease: Lease,
        tell: Callable[[str], None],
        conf: Mapping[str, Any] | None = None,
        topic_ids: bool = True,
        log_id: str = "-",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the thread has ended; carries the error that ended it."""
        self._topics, self._lease, self._tell = list(topics), lease, tell
        given = dict(conf or {})
        watchdog = Watchdog(float(given.pop("headrace.watchdog.seconds", WATCHDOG_SECONDS)))
        self._conf = consumer_conf(bootstrap, group, given)
        self._halted, self._inbox = threading.Event(), Inbox()
        self._paces = {topic: Pace(PACE_SECONDS) for topic in self._topics}
        self._closing = False
        self._applying = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._shore = Shore(
            lease=self._lease_on_loop,
            hand_over=self._hand_over,
            inbox=self._inbox,
            halted=self._halted,
            broker=Broker(_admin_conf(self._conf), topic_ids, log_id),
            watchdog=watchdog,
            leasing=Trouble("no lease for assigned partitions", "leases granted again"),
            reading=Trouble("cannot read", "reading again"),
        )
        # A daemon, because a broker that never answers must not hold the exit.
        self._thread = threading.Thread(target=self._serve, name="kafka", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Begin no batch more, let those being applied commit, then leave the group. Takes at most 8 seconds."""
        self._closing = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), DRAIN_SECONDS)
        self._halted.set()
        if self._thread.is_alive():
            await asyncio.wait({self.ended}, timeout=LEAVE_SECONDS)

    async def apply(self, topic: str, body: Body) -> None:
        """Run a body on all that waits for a topic; after an error, or on a stop, begin nothing more."""
        pace = self._paces[topic]
        while True:
            # Also where there is nothing to wait for: a body that never waits would have the loop for itself while more
            # comes, and neither another topic nor a sweep would have its turn.
            await asyncio.sleep(max(0.0, pace.left))
            if self._closing or (batch := self._inbox.take(topic)) is None:
                return
            pace.begun(len(batch))
            await self._apply(batch, body)

    async def _apply(self, batch: Batch, body: Body) -> None:
        self._applying += 1
        self._idle.clear()
        try:
            await body(batch)
        except BaseException:
            self._closing = True
            raise
        finally:
            self._applying -= 1
            if not self._applying:
                self._idle.set()

    # -- on the thread

    def _serve(self) -> None:
        failure: BaseException | None = None
        try:
            self._serve_memberships()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._end, failure)

    def _serve_memberships(self) -> None:
        pause = REBUILD_PAUSE_SECONDS
        while not self._halted.is_set():
            membership = Membership(self._conf, self._topics, self._shore)
            try:
                membership.serve()
            except (Rebuild, KafkaException) as why:
                if self._halted.is_set():
                    break
                log.warning("rebuilding the consumer", why=str(why))
            finally:
                membership.close()
            pause = REBUILD_PAUSE_SECONDS if membership.has_read else min(pause * 2, REBUILD_PAUSE_MAX_SECONDS)
            self._halted.wait(pause)

    def _lease_on_loop(self, topic: str, topic_id: str, partitions: list[int]) -> Granted:
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(self._lease, topic, topic_id, partitions), self._loop)
        while True:
            try:
                return future.result(0.1)
            except NotYet:
                if future.done():  # the lease itself ran into a time-out
                    raise
                if self._halted.is_set():
                    future.cancel()
                    raise Rebuild("halted") from None

    def _hand_over(self, batches: list[Batch]) -> None:
        for topic in self._inbox.put(batches):
            self._loop.call_soon_threadsafe(self._tell, topic)

    # -- on the loop

    def _end(self, failure: BaseException | None) -> None:
        if self.ended.done():
            return
        if failure is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(failure)


async def run(
    host: Literal["faust", "plain"],
    *,
    bootstrap: str,
    group: str,
    lease: Lease,
    bodies: dict[str, Body],
    conf: dict[str, Any] | None = None,
    topic_ids: bool = True,
    log_id: str = "-",
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    stop: asyncio.Event | None = None,
    handle_signals: bool = True,
) -> None:
    """Read the topics of `bodies` as a member of `group`, and apply what comes, until told to stop.

    Returns after SIGTERM, SIGINT or `stop`: the batches being applied have committed and the group has been left.
    Raises what a body or a background coroutine raised; the caller lets it end the process.

    conf: settings of librdkafka, and `headrace.watchdog.seconds` (20). Classic groups: `group.protocol=classic`.
    topic_ids: False for a broker that cannot describe topics; `log_id` then names the log.
    handle_signals: False for a second transport in a process; then only `stop` stops it.
    background: coroutines that run beside the bodies, under the same supervision. One that returns is simply done.
    """
    stop = stop or asyncio.Event()
    serving = _host(host, group, bodies)
    transport = Transport(
        bootstrap=bootstrap,
        group=group,
        topics=bodies,
        lease=lease,
        tell=serving.tell,
        conf=conf,
        topic_ids=topic_ids,
        log_id=log_id,
    )
    with _stop_on_signals(stop) if handle_signals else nullcontext():
        async with _tasks(serving.serve(transport.apply), *(start() for start in background)) as tasks:
            transport.start()
            try:
                await _until_stopped(stop, {transport.ended, *tasks})
            finally:
                await transport.stop()


def _host(host: Literal["faust", "plain"], group: str, bodies: Mapping[str, Body]) -> Host:
    match host:
        case "faust":
            from streams.faust_host import FaustHost  # only here, so that the plain host needs no Faust

            return FaustHost(group, bodies)
        case "plain":
            from streams.plain_host import PlainHost

            return PlainHost(bodies)
        case _:
            assert_never(host)


def consumer_conf(bootstrap: str, group: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the consumer; `given` wins. Each default that differs from librdkafka's has its reason."""
    conf = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": "consumer",  # KIP-848: only the partitions that move are stopped
        "enable.auto.commit": False,  # offsets live in Postgres
        "auto.offset.reset": "error",  # a lost offset is an event, not a default
        "topic.metadata.refresh.interval.ms": 10_000,  # how soon new partitions are seen
        "queued.min.messages": 20_000,  # ten polls ahead; the default of 100,000 only costs memory
        "fetch.queue.backoff.ms": 20,  # else a full local queue stops fetching for a second
        "log_level": 2,  # what matters arrives as an error, and is said once
        **given,
    }
    if conf["group.protocol"] == "classic":
        conf.setdefault("partition.assignment.strategy", "cooperative-sticky")  # eager ones stop everything
    return conf


_ADMIN_PREFIXES: Final = (
    *("bootstrap.", "broker.", "client.", "log_level", "reconnect.", "sasl.", "security.", "socket.", "ssl."),
)


def _admin_conf(conf: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that say how to connect; the rest concerns consumers only."""
    return {name: value for name, value in conf.items() if name.startswith(_ADMIN_PREFIXES)}


async def _as_coroutine(lease: Lease, topic: str, topic_id: str, partitions: list[int]) -> Granted:
    return await lease(topic, topic_id, partitions)


@contextmanager
def _stop_on_signals(stop: asyncio.Event) -> Generator[None, None, None]:
    """Set `stop` on SIGTERM and SIGINT. Outside the main thread signals cannot be had; then only `stop` stops."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _tasks(*coroutines: Coroutine[Any, Any, None]) -> AsyncGenerator[set[asyncio.Task[None]], None]:
    """Run coroutines as tasks inside the block; leaving it cancels them and waits for their end."""
    tasks = {asyncio.create_task(coroutine) for coroutine in coroutines}
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_stopped(stop: asyncio.Event, others: set[asyncio.Future[None]]) -> None:
    """Wait for `stop`; raises at once what one of the others raises."""
    async with _tasks(_wait(stop)) as stopping:
        pending: set[asyncio.Future[None]] = {*stopping, *others}
        while not stop.is_set():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
