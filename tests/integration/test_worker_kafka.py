"""The worker against a real Kafka; the engine is played by the test, which sends commands and reads what comes back."""

import asyncio
import socket
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from headrace.context import Context
from headrace.embedded.broker import EmbeddedBroker
from headrace.embedded.kafka import ApacheKafka, fetch_jars
from headrace.errors import FencedError, NonRetryable, RetryAfter
from headrace.messages import (
    TRACEPARENT,
    Abort,
    Command,
    ControlMessage,
    Event,
    Failed,
    Granted,
    Heartbeat,
    Renewed,
    Returned,
    Started,
    Succeeded,
    decode_event,
    decode_worker_message,
    encode,
)
from headrace.registry import Registry
from headrace.worker import Worker

WAIT_SECONDS = 30.0
PARTITIONS = {"commands.default": 4, "events": 4, "workers": 1, "control": 1}


class TextFails(Exception):
    def __init__(self, one: int, two: int, three: int) -> None:
        super().__init__(one, two, three)

    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class Gate:
    """Where bodies of a test wait, and what they left behind."""

    open: threading.Event = field(default_factory=threading.Event)
    begun: list[tuple[str, int]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    async def passed(self) -> None:
        while not self.open.is_set():  # noqa: ASYNC110  # opened by another thread
            await asyncio.sleep(0.01)


def bodies(gate: Gate) -> Registry:
    registry = Registry()

    @registry.task("echo")
    async def echo(input: Any) -> Any:
        return input

    @registry.task("echo_sync")
    def echo_sync(ctx: Context, order: str, total: int = 7) -> dict[str, Any]:
        return {"order": order, "total": total, "attempt": ctx.attempt, "effect": ctx.effect_key}

    @registry.task("wait")
    async def wait(ctx: Context) -> str:
        gate.begun.append((ctx.run_id, ctx.token))
        try:
            await gate.passed()
        except asyncio.CancelledError:
            gate.seen.append("cancelled")
            raise
        return "done"

    @registry.task("wait_sync")
    def wait_sync(ctx: Context) -> str:
        gate.begun.append((ctx.run_id, ctx.token))
        while not gate.open.wait(0.01):
            try:
                ctx.heartbeat()
            except (FencedError, asyncio.CancelledError) as e:
                gate.seen.append(type(e).__name__)
                raise
        return "done"

    @registry.task("deaf")
    def deaf() -> str:
        gate.open.wait(WAIT_SECONDS)
        return "too late"

    @registry.task("odd")
    def odd(kind: str) -> Any:
        return odd_result(kind)

    return registry


def odd_result(kind: str) -> Any:
    match kind:
        case "nan":
            return {"a": [1.0, float("nan")]}
        case "nul":
            return "a\0b"
        case "nul key":
            return {"a\0": 1}
        case "surrogate":
            return "\ud800"
        case "bytes":
            return b"raw"
        case "set":
            return {"a": {1, 2}}
        case "socket":
            with socket.socket() as s:
                return s
        case "generator":
            return (i for i in range(3))
        case "cycle":
            cycle: list[Any] = []
            cycle.append(cycle)
            return cycle
        case "5 MiB":
            return "x" * (5 << 20)
        case "text fails":
            raise TextFails(1, 2, 3)
        case "odd text":
            raise ValueError("bad \0 and \ud800 text")
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "never":
            raise NonRetryable("no use")
        case "later":
            raise RetryAfter(2.5)
        case _:
            raise AssertionError(kind)


class Engine:
    """The other side of the wire."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.prefix = bootstrap, prefix
        self.producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 0})
        self.events: list[tuple[str, Event]] = []
        self.traces: list[str | None] = []
        self.heartbeats: list[Heartbeat] = []
        self.claims: list[tuple[str, Started]] = []
        self.grants = True
        """Whether a claim is answered: a worker makes one for every command that is older than itself."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{prefix}.test",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        self.attach()

    def attach(self) -> None:
        topics = [("events", PARTITIONS["events"]), ("workers", 1)]
        self._consumer.assign(
            [TopicPartition(f"{self.prefix}.{t}", n, OFFSET_BEGINNING) for t, count in topics for n in range(count)]
        )

    def close(self) -> None:
        self._consumer.close()

    def command(
        self,
        body: str,
        input: object = None,
        *,
        run: str | None = None,
        token: int = 1,
        headers: Any = None,
        **fields: Any,
    ) -> str:
        run = run or str(uuid.uuid4())
        value = msgspec.Raw(msgspec.json.encode({} if input is None else input))
        command = Command(0, "t", body, 1, token, "n" * 24, value, **fields)
        self.producer.produce(f"{self.prefix}.commands.default", encode(command), run, headers=headers)
        self.producer.flush(WAIT_SECONDS)
        return run

    def say(self, message: ControlMessage) -> None:
        self.producer.produce(f"{self.prefix}.control", encode(message))
        self.producer.flush(WAIT_SECONDS)

    def renew(self, lease: float) -> None:
        """Answer the newest heartbeat, as the session agent does."""
        newest = self.heartbeats[-1]
        self.say(Renewed(newest.session, newest.seq, lease))

    def read(self) -> None:
        for message in self._consumer.consume(500, 0):
            if message.error() is not None:
                continue
            if message.topic() == f"{self.prefix}.events":
                run, event = (message.key() or b"").decode(), decode_event(message.value())
                if isinstance(event, Started) and event.claim:
                    self._hear(run, event)
                    continue
                self.events.append((run, event))
                headers = dict(message.headers() or [])
                trace = headers.get(TRACEPARENT)
                self.traces.append(trace.decode() if isinstance(trace, bytes) else None)
            else:
                heartbeat = decode_worker_message(message.value())
                assert isinstance(heartbeat, Heartbeat)
                self.heartbeats.append(heartbeat)

    def _hear(self, run: str, claim: Started) -> None:
        self.claims.append((run, claim))
        if self.grants:
            self.say(Granted(run, claim.task, claim.token, claim.session))

    async def until(self, fact: Callable[[], object], what: str = "") -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            self.read()
            if fact():
                return
            assert time.monotonic() < deadline, f"waited in vain: {what}; events {self.events[-5:]}"
            await asyncio.sleep(0.01)

    def of(self, run: str) -> list[Event]:
        return [event for key, event in self.events if key == run]

    async def answer(self, run: str) -> Event:
        """The first event of this run that is not `Started`."""
        await self.until(lambda: self._answers(run), f"an answer of {run}")
        return self._answers(run)[0]

    def _answers(self, run: str) -> list[Event]:
        return [event for event in self.of(run) if not isinstance(event, Started)]


def create_topics(bootstrap: str, prefix: str) -> None:
    topics = [NewTopic(f"{prefix}.{name}", count, 1) for name, count in PARTITIONS.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its futures fail once nobody holds it
    for created in admin.create_topics(topics).values():
        created.result(WAIT_SECONDS)


@contextmanager
def engine_on(bootstrap: str, prefix: str) -> Generator[Engine]:
    engine = Engine(bootstrap, prefix)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture
def engine(kafka: ApacheKafka, topic_prefix: str) -> Generator[Engine]:
    create_topics(kafka.bootstrap, topic_prefix)
    with engine_on(kafka.bootstrap, topic_prefix) as engine:
        yield engine


@pytest.fixture
def gate() -> Generator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@asynccontextmanager
async def working(engine: Engine, gate: Gate, **options: Any) -> AsyncGenerator[Worker]:
    """A worker that runs beside the test and is stopped without waiting for its bodies."""
    options = {"drain_seconds": 5.0, **options}
    worker = Worker(bodies(gate), kafka=engine.bootstrap, prefix=engine.prefix, **options)
    running = asyncio.ensure_future(worker.run())
    try:
        while not worker.session_id and not running.done():  # noqa: ASYNC110  # it opens with its first step
            await asyncio.sleep(0)
        yield worker
    finally:
        worker.stop(now=True)
        await running


async def test_results_carry_token_nonce_and_session(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate) as worker:
        echoed = await engine.answer(engine.command("echo", {"a": [1, "é", None]}, token=5))
        assert isinstance(echoed, Succeeded)
        assert (echoed.token, echoed.nonce, echoed.session) == (5, "n" * 24, worker.session_id)
        assert msgspec.json.decode(echoed.output) == {"a": [1, "é", None]}
        assert 0 < echoed.started <= echoed.finished

        run = engine.command("echo_sync", {"order": "o-1", "unknown": True})
        sync = await engine.answer(run)
        assert isinstance(sync, Succeeded)
        assert msgspec.json.decode(sync.output) == {"order": "o-1", "total": 7, "attempt": 1, "effect": f"{run}/t"}


async def test_a_trace_context_travels_from_the_command_to_its_answer(engine: Engine, gate: Gate) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with working(engine, gate):
        await engine.answer(engine.command("echo", headers={TRACEPARENT: trace}))
        assert engine.traces == [trace]


ODD = [
    ("nan", "BAD_RESULT", False, "nan"),
    ("nul", "BAD_RESULT", False, "U+0000"),
    ("nul key", "BAD_RESULT", False, "U+0000"),
    ("surrogate", "BAD_RESULT", False, "surrogate"),
    ("bytes", "BAD_RESULT", False, "bytes"),
    ("set", "BAD_RESULT", False, "set"),
    ("socket", "BAD_RESULT", False, "socket"),
    ("generator", "BAD_RESULT", False, "generator"),
    ("cycle", "BAD_RESULT", False, "64"),
    ("5 MiB", "RESULT_TOO_LARGE", False, "900000"),
    ("text fails", "ERROR", True, "cannot be read"),
    ("odd text", "ERROR", True, "bad \\u0000 and \\ud800 text"),
    ("exit", "ERROR", True, "3"),
    ("interrupt", "ERROR", True, ""),
    ("never", "ERROR", False, "no use"),
    ("later", "ERROR", True, "2.5"),
]


async def test_b87_odd_results_end_as_failed_with_their_reason(engine: Engine, gate: Gate) -> None:
    """B83, B85, B87: one worker meets them all and goes on."""
    async with working(engine, gate) as worker:
        runs = {kind: engine.command("odd", {"kind": kind}) for kind, *_ in ODD}
        for kind, code, retryable, text in ODD:
            event = await engine.answer(runs[kind])
            assert isinstance(event, Failed), kind
            assert (event.error.code, event.error.retryable) == (code, retryable), kind
            assert text in event.error.message, kind
            assert event.error.retry_after == (2.5 if kind == "later" else None)
        missing = await engine.answer(engine.command("echo_sync", {}))
        assert isinstance(missing, Failed)
        assert (missing.error.code, missing.error.retryable) == ("BAD_INPUT", False)
        assert "order" in missing.error.message
        unknown = await engine.answer(engine.command("nobody.knows"))
        assert isinstance(unknown, Failed)
        assert (unknown.error.code, unknown.error.retryable) == ("UNKNOWN_TASK", True)
        assert "echo" in unknown.error.message
        assert isinstance(await engine.answer(engine.command("echo")), Succeeded)
        assert worker.stats.failed == len(ODD) + 2


async def test_undecodable_records_are_set_aside_and_the_partition_goes_on(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate) as worker:
        for key, value in [(b"k", b"{"), (None, b"{}"), (b"k", None), (b"\xff", b'{"v":1}')]:
            engine.producer.produce(f"{engine.prefix}.commands.default", value, key, partition=0)
        newer = encode(Command(0, "t", "echo", 1, 1, "n", v=2))
        engine.producer.produce(f"{engine.prefix}.commands.default", newer, b"k", partition=0)
        good = encode(Command(0, "t", "echo", 1, 1, "n"))
        engine.producer.produce(f"{engine.prefix}.commands.default", good, b"run", partition=0)
        engine.producer.flush(WAIT_SECONDS)
        assert isinstance(await engine.answer("run"), Succeeded)
        assert worker.stats.undecodable == 5


async def test_duplicates_and_older_tokens_are_refused(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate) as worker:
        run = engine.command("echo", token=3)
        await engine.answer(run)
        engine.command("echo", run=run, token=3)
        engine.command("echo", run=run, token=2)
        engine.command("echo", run=run, token=4)
        await engine.until(lambda: len(engine.of(run)) == 2)
        assert [event.token for event in engine.of(run) if isinstance(event, Succeeded)] == [3, 4]
        assert worker.stats.refused == 2


async def test_a_newer_token_stops_the_body_of_the_older(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate) as worker:
        run = engine.command("wait", token=1)
        await engine.until(lambda: gate.begun == [(run, 1)])
        engine.command("echo", run=run, token=2)
        event = await engine.answer(run)
        assert isinstance(event, Succeeded)
        assert event.token == 2
        await engine.until(lambda: gate.seen == ["cancelled"])
        assert worker.stats.dropped == 1


async def test_only_a_body_that_outlives_a_moment_is_announced(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate):
        await engine.answer(engine.command("echo"))  # what comes from here on is newer than the worker
        short, long = engine.command("echo"), engine.command("wait")
        await engine.until(lambda: any(isinstance(e, Started) for e in engine.of(long)))
        gate.open.set()
        assert isinstance(await engine.answer(long), Succeeded)
        assert [type(event) for event in engine.of(long)] == [Started, Succeeded]
        assert [type(event) for event in engine.of(short)] == [Succeeded]


async def test_the_first_heartbeat_comes_at_once_and_later_ones_list_all_that_is_held(
    engine: Engine, gate: Gate
) -> None:
    async with working(engine, gate, lease=1.5, slots=1) as worker:
        await engine.until(lambda: engine.heartbeats)
        assert (engine.heartbeats[0].session, engine.heartbeats[0].held) == (worker.session_id, [])
        assert engine.heartbeats[0].queues == ["default"]
        runs = [engine.command("wait", token=9) for _ in range(2)]
        await engine.until(lambda: len(engine.heartbeats[-1].held) == 2)  # one runs, one waits for the slot
        assert sorted(engine.heartbeats[-1].held) == sorted((run, 0, 9) for run in runs)
        gate.open.set()
        await engine.until(lambda: not engine.heartbeats[-1].held)
    await engine.until(lambda: engine.heartbeats[-1].ended)
    assert len({heartbeat.session for heartbeat in engine.heartbeats}) == 1


async def test_b42_a_lost_lease_fences_the_worker_which_reports_nothing_and_goes_on(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate, lease=1.0) as worker:
        await engine.until(lambda: engine.heartbeats)
        first = worker.session_id
        runs = [engine.command("wait"), engine.command("wait_sync")]
        await engine.until(lambda: len(gate.begun) == 2)
        engine.renew(1.0)
        await engine.until(lambda: worker.session_id != first)
        await engine.until(lambda: sorted(gate.seen) == ["FencedError", "cancelled"])
        await engine.until(lambda: [h for h in engine.heartbeats if h.session == first and h.ended])
        (last,) = [h for h in engine.heartbeats if h.session == first and h.ended]
        assert sorted(last.held) == sorted((run, 0, 1) for run in runs), "nobody would know what it let go of"
        assert isinstance(await engine.answer(engine.command("echo")), Succeeded)
        assert all(isinstance(event, Started) for run in runs for event in engine.of(run))
        assert (worker.stats.fences, worker.stats.dropped) == (1, 2)


async def test_renewals_keep_the_session_and_its_bodies(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate, lease=1.0) as worker:
        run = engine.command("wait")
        session, answered = worker.session_id, 0
        started = time.monotonic()
        while time.monotonic() < started + 2.5:
            await engine.until(lambda: len(engine.heartbeats) > answered)  # noqa: B023  # used before the loop goes on
            answered = len(engine.heartbeats)
            engine.renew(1.0)
        gate.open.set()
        assert isinstance(await engine.answer(run), Succeeded)
        assert (worker.session_id, worker.stats.fences) == (session, 0)


async def test_a_worker_that_holds_nothing_waits_for_an_engine_that_never_answers(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate, lease=0.3) as worker:
        session = worker.session_id
        await engine.until(lambda: len(engine.heartbeats) >= 9)
        assert worker.session_id == session
        assert worker.stats.fences == 0


@pytest.mark.parametrize("body", ["wait", "wait_sync"])
async def test_abort_stops_the_body_and_reports_nothing(engine: Engine, gate: Gate, body: str) -> None:
    async with working(engine, gate) as worker:
        run = engine.command(body, token=2)
        await engine.until(lambda: gate.begun)
        engine.say(Abort(run, 0, 1))  # of an older hand-out: not ours
        engine.say(Abort(run, 0, 2))
        await engine.until(lambda: gate.seen)
        assert gate.seen == (["cancelled"] if body == "wait" else ["FencedError"])
        await engine.until(lambda: worker.stats.dropped == 1)
        assert isinstance(await engine.answer(engine.command("echo")), Succeeded)
        assert all(isinstance(event, Started) for event in engine.of(run))


@pytest.mark.parametrize("body", ["wait", "wait_sync", "deaf"])
async def test_a_body_out_of_time_fails_with_timeout(engine: Engine, gate: Gate, body: str) -> None:
    async with working(engine, gate) as worker:
        event = await engine.answer(run := engine.command(body, timeout=0.3))
        assert isinstance(event, Failed)
        assert (event.error.code, event.error.retryable) == ("TIMEOUT", True)
        assert worker.stats.timed_out == 1
        if body == "deaf":
            assert worker.stats.overdue == 1
        gate.open.set()
        await engine.until(lambda: worker.stats.overdue == 0)
        assert len([e for e in engine.of(run) if not isinstance(e, Started)]) == 1


async def test_drain_hands_back_what_waits_and_lets_bodies_finish(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate, slots=2) as worker:
        runs = [engine.command("wait"), engine.command("wait_sync")]
        await engine.until(lambda: len(gate.begun) == 2)
        waiting = engine.command("echo")
        await engine.until(lambda: worker.stats.received == 3)
        worker.stop()
        handed_back = await engine.answer(waiting)
        assert isinstance(handed_back, Returned)
        assert not handed_back.begun
        gate.open.set()
        for run in runs:
            assert isinstance(await engine.answer(run), Succeeded)
        await engine.until(lambda: engine.heartbeats[-1].ended)
        assert engine.heartbeats[-1].held == []


async def test_drain_that_takes_too_long_returns_begun_bodies(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate, drain_seconds=0.2) as worker:
        runs = [engine.command("wait"), engine.command("wait_sync"), engine.command("deaf")]
        await engine.until(lambda: len(gate.begun) == 2 and worker.stats.received == 3)
        worker.stop()
        for run in runs:
            event = await engine.answer(run)
            assert isinstance(event, Returned)
            assert event.begun
        await engine.until(lambda: engine.heartbeats[-1].ended)
        assert sorted(gate.seen) == ["CancelledError", "cancelled"]


async def test_a_command_that_is_older_than_the_worker_asks_first(engine: Engine, gate: Gate) -> None:
    """Its run may have been cancelled before this worker was there to hear of it."""
    engine.grants = False
    called_off, wanted = engine.command("wait"), engine.command("echo")
    async with working(engine, gate) as worker:
        await engine.until(lambda: {run for run, _ in engine.claims} == {called_off, wanted})
        engine.say(Abort(called_off, 0, 1, "stale"))
        engine.say(Granted(wanted, 0, 1, worker.session_id))
        assert isinstance(await engine.answer(wanted), Succeeded)
        await engine.until(lambda: worker.stats.dropped == 1)
        assert isinstance(await engine.answer(engine.command("echo")), Succeeded), "a new one need not ask"
    assert (gate.begun, engine.of(called_off)) == ([], [])
    assert len({run for run, _ in engine.claims}) == 2


async def test_a_full_worker_takes_no_more_and_goes_on_when_there_is_room(engine: Engine, gate: Gate) -> None:
    async with working(engine, gate, slots=1, prefetch=4) as worker:
        runs = [engine.command("wait") for _ in range(12)]
        await engine.until(lambda: worker.stats.received >= 2)
        for _ in range(100):  # paused and polled meanwhile
            await asyncio.sleep(0.01)
        assert worker.stats.received <= 5
        gate.open.set()
        for run in runs:
            assert isinstance(await engine.answer(run), Succeeded)


async def test_topics_that_are_missing_at_start_are_waited_for(
    kafka: ApacheKafka, topic_prefix: str, gate: Gate
) -> None:
    with engine_on(kafka.bootstrap, topic_prefix) as engine:
        async with working(engine, gate, lease=1.5):
            await asyncio.sleep(0.5)
            create_topics(kafka.bootstrap, topic_prefix)
            engine.attach()
            assert isinstance(await engine.answer(engine.command("echo")), Succeeded)
            await engine.until(lambda: engine.heartbeats)


async def test_b95_a_recreated_topic_is_read_from_its_beginning(engine: Engine, gate: Gate) -> None:
    """B95, for a worker: the new log has grown past the old position before anybody looks."""
    async with working(engine, gate) as worker:
        for run in [engine.command("echo") for _ in range(20)]:
            await engine.answer(run)
        admin = AdminClient({"bootstrap.servers": engine.bootstrap})
        topic = f"{engine.prefix}.commands.default"
        admin.delete_topics([topic])[topic].result(WAIT_SECONDS)
        await asyncio.to_thread(recreate, admin, topic)
        runs = [engine.command("echo") for _ in range(50)]
        for run in runs:
            assert isinstance(await engine.answer(run), Succeeded)
        assert worker.stats.rebuilds >= 1


def recreate(admin: AdminClient, topic: str) -> None:
    """A deleted topic's name is free a moment later."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            admin.create_topics([NewTopic(topic, PARTITIONS["commands.default"], 1)])[topic].result(WAIT_SECONDS)
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


@pytest.mark.slow
async def test_a_wiped_broker_loses_no_answer_and_new_commands_are_run(topic_prefix: str, gate: Gate) -> None:
    with ApacheKafka(fetch_jars(), heap="256m") as broker:
        create_topics(broker.bootstrap, topic_prefix)
        with engine_on(broker.bootstrap, topic_prefix) as engine:
            async with working(engine, gate, lease=3.0) as worker:
                for _ in range(5):
                    await engine.answer(engine.command("echo"))
                running = engine.command("wait_sync")
                await engine.until(lambda: gate.begun)
                await asyncio.to_thread(broker.kill9)
                await asyncio.to_thread(broker.wipe)
                gate.open.set()
                await engine.until(lambda: worker.stats.succeeded + worker.stats.dropped == 6)
                await asyncio.to_thread(broker.start)
                await asyncio.to_thread(create_topics, broker.bootstrap, topic_prefix)
                with engine_on(broker.bootstrap, topic_prefix) as after:
                    assert isinstance(await after.answer(running), Succeeded)
                    assert isinstance(await after.answer(after.command("echo")), Succeeded)
                    await after.until(lambda: after.heartbeats)


async def test_the_embedded_broker_serves_a_worker(
    embedded_broker: EmbeddedBroker, topic_prefix: str, gate: Gate
) -> None:
    embedded_broker.create_topics({f"{topic_prefix}.{name}": count for name, count in PARTITIONS.items()})
    with engine_on(embedded_broker.bootstrap, topic_prefix) as engine:
        async with working(engine, gate, lease=1.5, topic_ids=False) as worker:
            await engine.until(lambda: engine.heartbeats)
            assert isinstance(await engine.answer(engine.command("echo")), Succeeded)
            assert isinstance(await engine.answer(engine.command("echo_sync", {"order": "o"})), Succeeded)
            run = engine.command("wait")
            await engine.until(lambda: gate.begun)
            engine.say(Abort(run, 0, 1))
            await engine.until(lambda: worker.stats.dropped == 1)
