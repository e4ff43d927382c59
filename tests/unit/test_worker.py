"""The parts of a worker that need no Kafka: what it holds, its lease, its room, and what it says of a failed body."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr

from headrace import failure
from headrace.attempt import Attempt
from headrace.context import Context, current
from headrace.errors import ConfigurationError, NonRetryable, RetryAfter
from headrace.messages import Abort, Command, Event, Failed, Returned, Succeeded, decode_event
from headrace.registry import Registry
from headrace.settings import WorkerSettings
from headrace.worker import Worker
from headrace.worker.execution import Execution
from headrace.worker.hold import Hold
from headrace.worker.reports import Reports
from headrace.worker.room import Room
from headrace.worker.seen import NAMES_MAX, Seen
from headrace.worker.session import Session
from headrace.worker.stats import Stats

WAIT_SECONDS = 10.0


class Outbox:
    """Stands for `Reports`: keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, Event, str | None]]] = []
        self._open: list[tuple[str, Event, str | None]] = []
        self.unsent = 0

    def add(self, key: bytes, value: bytes, traceparent: str | None) -> None:
        self._open.append((key.decode(), decode_event(value), traceparent))

    def flush(self) -> None:
        if self._open:
            self.batches.append(self._open)
            self._open = []

    @property
    def sent(self) -> list[Event]:
        return [event for batch in self.batches for _, event, _ in batch]


class Bench:
    """A hold with bodies to try it on."""

    def __init__(self, registry: Registry, *, slots: int = 4) -> None:
        self.outbox, self.stats = Outbox(), Stats()
        self.hold = Hold(
            registry.prepare(),
            "worker",
            ("default",),
            slots=slots,
            prefetch=100,
            lease_seconds=30.0,
            reports=cast(Reports, self.outbox),
            stats=self.stats,
            loop=asyncio.get_running_loop(),
        )

    def take(self, body: str, *, run: str = "r", token: int = 1, trace: str | None = None, **fields: Any) -> Attempt:
        attempt = Attempt(run.encode(), Command(0, "t", body, 1, token, "n", **fields), 10, trace)
        self.hold.room.take(1, attempt.size)
        self.hold.take([attempt])
        return attempt

    async def until(self, fact: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not fact():
            assert time.monotonic() < deadline, self.outbox.sent
            await asyncio.sleep(0.002)


@pytest.fixture
async def gate() -> AsyncGenerator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def bodies(gate: threading.Event) -> Registry:
    registry = Registry()

    @registry.task("quick")
    async def quick() -> str:
        return current().task

    @registry.task("quick_sync")
    def quick_sync() -> str:
        return current().task

    @registry.task("wait")
    async def wait() -> None:
        while not gate.is_set():  # noqa: ASYNC110  # opened by another thread
            await asyncio.sleep(0.005)

    @registry.task("wait_sync")
    def wait_sync() -> None:
        gate.wait(WAIT_SECONDS)

    @registry.task("stubborn")
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(WAIT_SECONDS)
        return "ignored the cancel"

    return registry


# == the hold ==========================================================================================================
async def test_answers_of_one_turn_leave_together(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    for n in range(4):
        bench.take("quick", run=f"r{n}")
    await bench.until(lambda: len(bench.outbox.sent) == 4)
    assert [len(batch) for batch in bench.outbox.batches] == [4]
    assert all(isinstance(e, Succeeded) and bytes(e.output) == b'"t"' for e in bench.outbox.sent)
    assert bench.hold.held() == []
    assert bench.hold.room.free == bench.hold.room.limit


async def test_no_more_than_slots_run_and_sync_and_async_share_them(gate: threading.Event) -> None:
    bench = Bench(bodies(gate), slots=2)
    attempts = [bench.take(body, run=f"{body}{n}") for n in range(2) for body in ("wait", "wait_sync")]
    await bench.until(lambda: sum(1 for a in attempts if a.began_at) == 2)
    await bench.until(lambda: len(bench.outbox.sent) == 2)  # announced as started
    assert [bool(a.began_at) for a in attempts] == [True, True, False, False]
    gate.set()
    await bench.until(lambda: bench.stats.succeeded == 4)


async def test_a_long_line_of_short_sync_bodies_is_carried_out_in_full(gate: threading.Event) -> None:
    bench = Bench(bodies(gate), slots=3)
    for n in range(500):
        bench.take("quick_sync" if n % 5 else "quick", run=f"r{n}")
    await bench.until(lambda: bench.stats.succeeded == 500)
    assert bench.stats.begun == 500


async def test_what_was_dropped_while_it_waited_never_begins(gate: threading.Event) -> None:
    bench = Bench(bodies(gate), slots=1)
    first, second = bench.take("wait_sync", run="a"), bench.take("wait_sync", run="b")
    await bench.until(lambda: first.began_at)
    bench.hold.abort(Abort("b", 0, 1))
    gate.set()
    await bench.until(lambda: bench.stats.succeeded == 1)
    bench.take("quick", run="c")
    await bench.until(lambda: bench.stats.succeeded == 2)
    assert not second.began_at


async def test_an_abort_that_overtakes_its_command_refuses_it(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    bench.hold.abort(Abort("r", 0, 3))
    bench.take("quick", token=3)
    bench.take("quick", token=4)
    await bench.until(lambda: bench.stats.succeeded == 1)
    assert bench.stats.refused == 1
    assert bench.outbox.sent[0].token == 4  # type: ignore[union-attr]


async def test_a_body_that_swallows_its_cancel_is_out_of_time_all_the_same(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    bench.take("stubborn", timeout=0.05)
    await bench.until(lambda: any(isinstance(event, Failed) for event in bench.outbox.sent))
    (answer,) = [event for event in bench.outbox.sent if isinstance(event, Failed)]
    assert answer.error.code == "TIMEOUT"
    assert bench.stats.timed_out == 1


async def test_a_heartbeat_lists_what_waits_and_what_runs_but_not_what_is_answered(gate: threading.Event) -> None:
    bench = Bench(bodies(gate), slots=1)
    bench.take("wait", run="a", token=7)
    bench.take("quick", run="b", token=8)
    heartbeat = bench.hold.describe(3, ended=False)
    assert heartbeat.held == [("a", 0, 7), ("b", 0, 8)]
    assert (heartbeat.seq, heartbeat.session, heartbeat.slots) == (3, bench.hold.session.id, 1)
    gate.set()
    await bench.until(lambda: bench.stats.succeeded == 2)
    assert bench.hold.describe(4, ended=False).held == []


async def test_draining_hands_back_what_waits_and_what_still_arrives(gate: threading.Event) -> None:
    bench = Bench(bodies(gate), slots=1)
    running = bench.take("wait", run="a")
    await bench.until(lambda: running.began_at)
    bench.take("quick", run="b")
    bench.hold.drain()
    bench.take("quick", run="c")
    await bench.until(lambda: bench.stats.returned == 2)
    empty = asyncio.ensure_future(bench.hold.empty())
    gate.set()
    await asyncio.wait_for(empty, WAIT_SECONDS)
    assert bench.stats.succeeded == 1
    assert all(not event.begun for event in bench.outbox.sent if isinstance(event, Returned))


async def test_giving_up_returns_what_has_begun_and_no_later_result_counts(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    attempts = [bench.take(body, run=body) for body in ("wait", "wait_sync")]
    await bench.until(lambda: all(a.began_at for a in attempts))
    bench.hold.drain()
    await bench.hold.give_up()
    assert [event.begun for event in bench.outbox.sent if isinstance(event, Returned)] == [True, True]
    gate.set()
    await bench.until(lambda: bench.stats.begun == 2)
    assert bench.stats.succeeded == 0


async def test_slow_bodies_leave_commands_to_other_workers_and_short_ones_raise_the_limit(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(bodies(gate), slots=2)
    assert bench.hold.room.limit == 4
    for n in range(2_000):
        bench.take("quick", run=f"r{n}")
    await bench.until(lambda: bench.stats.succeeded == 2_000)
    await bench.until(lambda: bench.hold.room.limit == 100)
    bench.take("wait", run="slow")
    await bench.until(lambda: bench.hold.room.limit == 4)


# == tracing ===========================================================================================================
@pytest.fixture
def spans() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


async def test_an_attempt_is_a_span_that_continues_the_trace_of_its_command(
    spans: tuple[TracerProvider, InMemorySpanExporter],
) -> None:
    provider, exporter = spans
    registry = Registry()

    @registry.task("seen")
    async def seen() -> bool:
        return trace.get_current_span().get_span_context().is_valid

    @registry.task("fails")
    def fails() -> None:
        raise NonRetryable("no")

    execution = Execution("w", lambda: "s", provider.get_tracer("test"))
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for name in ("seen", "fails"):
        attempt = Attempt(b"r", Command(0, "t", name, 2, 1, "n"), 0, parent)
        attempt.body = registry.prepare()[name]
        if attempt.body.is_async:
            answer = await execution.attend(attempt)
            assert isinstance(answer, Succeeded)
            assert bytes(answer.output) == b"true"
        else:
            execution.attend_in_thread(attempt)
        assert attempt.traceparent is not None
        assert attempt.traceparent.startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")
        assert attempt.traceparent != parent
    done = exporter.get_finished_spans()
    assert [span.name for span in done] == ["headrace.attempt"] * 2
    assert [dict(span.attributes or {})["headrace.outcome"] for span in done] == ["succeeded", "ERROR"]
    assert dict(done[0].attributes or {})["headrace.attempt"] == 2
    assert all(span.links[0].context.span_id == 0x00F067AA0BA902B7 for span in done)


async def test_an_answer_carries_the_trace_context_of_its_command(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    bench.take("quick", trace="00-aa-bb-01")
    await bench.until(lambda: bench.outbox.batches)
    assert bench.outbox.batches[0][0][2] == "00-aa-bb-01"


# == the lease =========================================================================================================
def test_a_lease_counts_from_when_the_heartbeat_was_sent() -> None:
    session = Session(3.0)
    seq = session.beat(10.0)
    session.renewed(seq, 3.0)
    assert not session.is_lapsed(12.9, holds=True)
    assert session.is_lapsed(13.0, holds=True)


def test_late_and_repeated_renewals_never_shorten_the_lease() -> None:
    session = Session(3.0)
    first, second = session.beat(10.0), session.beat(11.0)
    session.renewed(second, 3.0)
    session.renewed(first, 3.0)
    session.renewed(99, 3.0)
    assert not session.is_lapsed(13.9, holds=True)


def test_without_any_renewal_the_lease_counts_from_when_something_was_held() -> None:
    session = Session(3.0)
    for now in range(100):
        session.beat(float(now))
        assert not session.is_lapsed(float(now), holds=False)
    assert not session.is_lapsed(100.0, holds=True)
    assert not session.is_lapsed(101.9, holds=True)
    assert session.is_lapsed(102.0, holds=True)


def test_sessions_never_share_an_id() -> None:
    assert len({Session(1.0).id for _ in range(100)}) == 100


# == tokens and room ===================================================================================================
def test_only_rising_tokens_of_a_task_are_admitted() -> None:
    seen = Seen()
    name, other = (b"r", 0), (b"r", 1)
    assert [seen.admit(name, token) for token in (2, 2, 1, 3)] == [True, False, False, True]
    assert seen.admit(other, 1)


def test_what_was_seen_is_forgotten_in_generations() -> None:
    seen = Seen()
    assert seen.admit((b"first", 0), 5)
    for n in range(NAMES_MAX):
        seen.admit((b"%d" % n, 0), 1)
    assert not seen.admit((b"first", 0), 5)
    now = time.monotonic()
    seen.forget_old(now + 1_000)
    seen.forget_old(now + 2_000)
    assert seen.admit((b"first", 0), 5)


def test_room_is_bounded_by_number_and_by_bytes() -> None:
    room = Room(10)
    room.take(10, 100)
    assert room.free == 0
    for _ in range(5):
        room.release(10)
    assert room.free == 5
    assert room.is_half_free
    room.take(1, 64 << 20)
    assert room.free == 0
    room.release(64 << 20)
    assert room.free == 5


# == errors as data ====================================================================================================
class Unreadable(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)

    __repr__ = __str__


def raised(error: BaseException) -> BaseException:
    try:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raise error from cause
    except BaseException as e:
        return e


def test_an_error_is_described_in_bounds_with_its_cause() -> None:
    error = failure.describe(raised(ValueError("x" * 100_000 + "\0\ud800")))
    assert (error.code, error.type, error.retryable) == ("ERROR", "ValueError", True)
    assert len(error.message.encode()) <= failure.MESSAGE_BYTES_MAX
    assert len(error.trace.encode()) <= failure.TRACE_BYTES_MAX
    short = failure.describe(raised(ValueError("a\0b\ud800")))
    assert short.message == "a\\u0000b\\ud800"
    assert "the cause" in short.trace
    msgspec.json.encode(error)


@pytest.mark.parametrize(
    "error", [Unreadable(), SystemExit(2), KeyboardInterrupt(), RecursionError("deep"), GeneratorExit()]
)
def test_any_exception_can_be_described(error: BaseException) -> None:
    described = failure.describe(raised(error))
    assert described.code == "ERROR"
    assert type(error).__name__ in described.type


def test_a_body_may_say_whether_and_when_to_try_again() -> None:
    assert not failure.describe(NonRetryable("no")).retryable
    assert failure.describe(RetryAfter(2.5)).retry_after == 2.5
    assert failure.describe(RetryAfter(-1)).retry_after == 0.0

    class Unset(RetryAfter):
        def __init__(self) -> None:
            Exception.__init__(self, "delay was never set")

    assert failure.describe(Unset()).retry_after is None


# == the worker itself =================================================================================================
def test_a_worker_with_nothing_to_run_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Worker(Registry())


def test_settings_come_from_the_environment_and_are_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA", "k:1")
    monkeypatch.setenv("HEADRACE_QUEUES", "io, slow")
    monkeypatch.setenv("HEADRACE_API_TOKEN", "hush")
    monkeypatch.setenv("HEADRACE_KAFKA_OPTIONS", '{"sasl.password": "hush", "sasl.username": "me"}')
    settings = WorkerSettings()
    assert settings.queues == ("io", "slow")
    assert settings.api_token == SecretStr("hush")
    shown = settings.describe()
    assert "hush" not in str(shown)
    assert shown["kafka_options"]["sasl.username"] == "me"
    registry = Registry()
    registry.task("a", queue="other")(lambda: None)
    assert Worker.from_settings(settings, registry).queues == ("io", "slow")
    monkeypatch.delenv("HEADRACE_QUEUES")
    assert Worker.from_settings(WorkerSettings(), registry).queues == ("other",)


async def test_a_worker_stopped_before_it_runs_ends_at_once() -> None:
    logging.getLogger("headrace").setLevel(logging.ERROR)
    registry = Registry()
    registry.task("a")(lambda ctx: None)
    worker = Worker(registry, kafka="127.0.0.1:9", drain_seconds=0.0)
    worker.stop(now=True)
    await asyncio.wait_for(worker.run(), WAIT_SECONDS)
    assert worker.stats == Stats()


def test_a_context_tells_its_attempt() -> None:
    attempt = Attempt(b"run-1", Command(0, "charge", "b", 2, 7, "n", timeout=5.0, workflow="orders", version=3))
    attempt.begin()
    ctx = Context(attempt)
    assert (ctx.run_id, ctx.task, ctx.attempt, ctx.token) == ("run-1", "charge", 2, 7)
    assert (ctx.workflow, ctx.version, ctx.effect_key) == ("orders", 3, "run-1/charge")
    remaining, deadline = ctx.remaining(), ctx.deadline
    assert remaining is not None
    assert 4.0 < remaining.total_seconds() <= 5.0
    assert deadline is not None
    assert deadline.tzinfo is not None
    ctx.heartbeat()
    assert not ctx.cancelled
