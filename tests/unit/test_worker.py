"""The parts of a worker that need no Kafka: what it holds, its lease, its room, and what it says of a failed body."""

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr

from headrace import failure
from headrace.attempt import Attempt, Stop
from headrace.context import Context, current
from headrace.errors import AmbiguousError, ConfigurationError, FencedError, NonRetryable, RetryAfter
from headrace.listing import Listing
from headrace.messages import (
    Abort,
    Command,
    Error,
    Event,
    Failed,
    Granted,
    Returned,
    Started,
    Succeeded,
    Yield,
    decode_event,
)
from headrace.registry import Registry
from headrace.settings import WorkerSettings
from headrace.worker import Worker
from headrace.worker import hold as hold_module
from headrace.worker.execution import Execution
from headrace.worker.hold import EXIT_FENCED, Hold
from headrace.worker.reports import Reports
from headrace.worker.room import Room
from headrace.worker.seen import NAMES_MAX, Seen
from headrace.worker.session import Session
from headrace.worker.stats import Stats

WAIT_SECONDS = 10.0
ROOT = Path(__file__).parents[2]


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

    async def empty(self, seconds: float) -> int:
        self.flush()
        return 0

    @property
    def sent(self) -> list[Event]:
        return [event for batch in self.batches for _, event, _ in batch]


class Bench:
    """A hold with bodies to try it on."""

    def __init__(self, registry: Registry, *, slots: int = 4, listing: Listing | None = None) -> None:
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
            listing=listing,
        )

    def take(self, body: str, *, run: str = "r", token: int = 1, trace: str | None = None, **fields: Any) -> Attempt:
        attempt = Attempt(run.encode(), Command(0, "t", body, 1, token, "n", **fields), 10, trace)
        self.hold.room.take(1, attempt.size)
        self.hold.take([attempt])
        return attempt

    def claims(self, run: str = "r") -> list[Started]:
        sent = [(key, event) for batch in self.outbox.batches for key, event, _ in batch]
        return [event for key, event in sent if key == run and isinstance(event, Started) and event.claim]

    def grant(self, run: str = "r", *, token: int = 1, session: str | None = None) -> None:
        self.hold.granted(Granted(run, 0, token, self.hold.session.id if session is None else session))

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


@pytest.mark.parametrize("body", ["wait", "wait_sync"])
async def test_what_waits_is_handed_over_when_it_is_asked_for_and_what_has_begun_is_not(
    gate: threading.Event, body: str
) -> None:
    bench = Bench(bodies(gate), slots=1)
    running, waiting, kept = (bench.take(body, run=run) for run in ("a", "b", "c"))
    await bench.until(lambda: running.began_at)
    for run, token in (("a", 1), ("b", 2), ("b", 1), ("b", 1), ("nobody", 1)):
        bench.hold.hand_over(Yield(run, 0, token))
    await bench.until(lambda: any(isinstance(event, Returned) for event in bench.outbox.sent))
    (answer,) = [event for event in bench.outbox.sent if isinstance(event, Returned)]
    assert (answer.begun, answer.reason, bench.stats.returned) == (False, "handed over", 1)
    gate.set()
    await bench.until(lambda: bench.stats.succeeded == 2)
    assert (bool(kept.began_at), bool(waiting.began_at)) == (True, False)
    assert bench.hold.room.free == bench.hold.room.limit


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


# == claims ============================================================================================================
@pytest.mark.parametrize("body", ["quick", "quick_sync"])
async def test_a_claimed_body_starts_only_when_it_is_granted_and_keeps_a_slot_until_then(
    gate: threading.Event, body: str
) -> None:
    bench = Bench(bodies(gate), slots=1)
    attempt = bench.take(body, claim=True)
    bench.take("quick", run="behind")
    await bench.until(lambda: bench.claims())
    claim = bench.claims()[0]
    assert (claim.session, claim.worker, claim.token) == (bench.hold.session.id, "worker", 1)
    assert bench.claims() == bench.outbox.sent, "nothing else was said or run"
    assert not attempt.began_at
    bench.grant()
    await bench.until(lambda: bench.stats.succeeded == 2)
    assert len([event for event in bench.outbox.sent if isinstance(event, Succeeded)]) == 2


async def test_a_grant_is_the_announcement_of_a_long_body(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    attempt = bench.take("wait", claim=True)
    await bench.until(lambda: bench.claims())
    bench.grant()
    await bench.until(lambda: attempt.began_at and time.monotonic() > attempt.began_at + hold_module.ANNOUNCE_SECONDS)
    gate.set()
    await bench.until(lambda: bench.stats.succeeded == 1)
    assert not [event for event in bench.outbox.sent if isinstance(event, Started) and not event.claim]


async def test_a_hand_out_that_was_granted_to_another_session_is_let_go(gate: threading.Event) -> None:
    bench = Bench(bodies(gate), slots=1)
    attempt = bench.take("quick", claim=True)
    bench.take("quick", run="behind")
    await bench.until(lambda: bench.claims())
    bench.grant(session="0" * 32)
    await bench.until(lambda: bench.stats.succeeded == 1)
    assert (attempt.stop, attempt.settled, attempt.began_at) == (Stop.SUPERSEDED, True, 0.0)
    assert bench.stats.dropped == 1
    bench.grant()  # too late, and of nothing that is held
    await asyncio.sleep(0)
    assert bench.stats.begun == 1
    assert bench.hold.held() == []


async def test_only_a_grant_of_the_claimed_hand_out_counts_and_only_once(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    attempt = bench.take("wait", claim=True, token=7)
    await bench.until(lambda: bench.claims())
    bench.grant(token=6)
    bench.grant(token=8)
    bench.grant("other", token=7)
    await asyncio.sleep(0.05)
    assert not attempt.began_at
    for _ in range(3):  # each claim is answered
        bench.grant(token=7)
    await bench.until(lambda: attempt.began_at)
    bench.grant(token=7, session="0" * 32)
    gate.set()
    await bench.until(lambda: bench.stats.succeeded == 1)
    await bench.until(lambda: bench.hold._running == 0)
    assert (bench.stats.begun, bench.stats.dropped) == (1, 0)


async def test_a_grant_before_its_claim_starts_nothing(gate: threading.Event) -> None:
    bench = Bench(bodies(gate), slots=1)
    bench.take("wait", run="first")
    attempt = bench.take("quick", claim=True)
    bench.grant()  # of another worker's claim, as every worker hears
    gate.set()
    await bench.until(lambda: bench.claims())
    assert not attempt.began_at
    bench.grant()
    await bench.until(lambda: bench.stats.succeeded == 2)


async def test_a_claim_is_made_again_until_it_is_answered(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_module, "CLAIM_SECONDS", 0.06)
    bench = Bench(bodies(gate))
    attempt = bench.take("wait", claim=True)
    await bench.until(lambda: len(bench.claims()) >= 3)
    assert len(set(map(repr, bench.claims()))) == 1
    bench.grant()
    await bench.until(lambda: attempt.began_at)
    made = len(bench.claims())
    await bench.until(lambda: time.monotonic() > attempt.began_at + 0.25)
    assert len(bench.claims()) == made
    gate.set()
    await bench.until(lambda: bench.stats.succeeded == 1)


async def test_a_grant_after_the_lease_starts_nothing(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    attempt = bench.take("quick", claim=True)
    await bench.until(lambda: bench.claims())
    expire(bench.hold.session)  # and the control thread has not looked yet
    bench.grant()
    await asyncio.sleep(0.05)
    assert not attempt.began_at
    bench.hold.fence([attempt])
    await bench.until(lambda: bench.hold._running == 0)
    assert bench.hold.held() == []


async def test_draining_hands_a_claimed_hand_out_back_unbegun(gate: threading.Event) -> None:
    bench = Bench(bodies(gate), slots=2)
    running = bench.take("wait", run="a")
    claiming = bench.take("quick", run="b", claim=True)
    await bench.until(lambda: running.began_at and bench.claims("b"))
    bench.hold.drain()
    await bench.until(lambda: bench.stats.returned == 1)
    bench.grant("b")
    gate.set()
    await asyncio.wait_for(bench.hold.empty(), WAIT_SECONDS)
    (returned,) = [event for event in bench.outbox.sent if isinstance(event, Returned)]
    assert not returned.begun
    assert not claiming.began_at
    await bench.until(lambda: bench.hold._running == 0)


async def test_giving_up_in_the_middle_of_a_claim_hands_it_back_unbegun(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    attempts = [bench.take(body, run=body, claim=True) for body in ("wait", "wait_sync")]
    await bench.until(lambda: bench.claims("wait") and bench.claims("wait_sync"))
    await bench.hold.give_up()
    assert [event.begun for event in bench.outbox.sent if isinstance(event, Returned)] == [False, False]
    for attempt in attempts:
        bench.grant(attempt.run_id)
    gate.set()
    await bench.until(lambda: bench.hold._running == 0)
    assert bench.stats.begun == 0


async def test_an_abort_in_the_middle_of_a_claim_frees_its_slot(gate: threading.Event) -> None:
    bench = Bench(bodies(gate), slots=1)
    attempt = bench.take("quick", claim=True)
    bench.take("quick", run="behind")
    await bench.until(lambda: bench.claims())
    bench.hold.abort(Abort("r", 0, 1))
    await bench.until(lambda: bench.stats.succeeded == 1)
    assert (attempt.stop, attempt.began_at) == (Stop.ABORTED, 0.0)
    bench.grant()
    await asyncio.sleep(0)
    assert bench.hold._running == 0


@pytest.mark.parametrize("body", ["quick", "quick_sync"])
async def test_a_command_that_may_have_been_called_off_is_claimed_as_well(gate: threading.Event, body: str) -> None:
    bench = Bench(bodies(gate), slots=1)
    for n in range(5):
        bench.take("quick_sync", run=f"before{n}")
    attempt = Attempt(b"r", Command(0, "t", body, 1, 1, "n"), 10)
    attempt.asks = True
    bench.hold.room.take(1, attempt.size)
    bench.hold.take([attempt])
    await bench.until(lambda: bench.claims() and bench.stats.succeeded == 5)
    assert not attempt.began_at
    bench.grant()
    await bench.until(lambda: bench.stats.succeeded == 6)


async def test_an_unknown_body_is_not_claimed(gate: threading.Event) -> None:
    bench = Bench(bodies(gate))
    bench.take("nobody", claim=True)
    await bench.until(lambda: bench.outbox.sent)
    assert [type(event) for event in bench.outbox.sent] == [Failed]
    assert bench.hold._running == 0


async def test_no_way_in_which_a_claim_ends_leaks_a_slot(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_module, "CLAIM_SECONDS", 0.05)
    bench = Bench(bodies(gate), slots=3)
    count = 120
    for n in range(count):
        bench.take(("quick", "quick_sync")[n % 2], run=f"r{n}", claim=n % 4 != 3)
    asked: set[str] = set()
    while len(asked) < count * 3 // 4:
        for attempt in bench.hold.held():
            run, n = attempt.run_id, int(attempt.run_id[1:])
            if attempt.claimed_at is None or run in asked:
                continue
            asked.add(run)
            match n % 5:
                case 0:
                    bench.hold.abort(Abort(run, 0, 1))
                case 1:
                    bench.grant(run, session="0" * 32)
                case 2:  # a newer hand-out of the same task
                    bench.take("quick", run=run, token=2)
                case 3:
                    bench.hold.fence([attempt])
                case _:
                    bench.grant(run)
        await asyncio.sleep(0.001)
    await bench.until(lambda: not bench.hold.held() and bench.hold._running == 0)
    assert bench.hold.room.free == bench.hold.room.limit
    running = [bench.take("wait", run=f"last{n}") for n in range(4)]
    await bench.until(lambda: sum(1 for attempt in running if attempt.began_at) == 3)
    gate.set()


# == effects ===========================================================================================================
def expire(session: Session) -> None:
    """A lease that was given, and is over by now."""
    session.renewed(session.beat(time.monotonic() - 60.0), 30.0)


def renew(session: Session) -> None:
    session.renewed(session.beat(time.monotonic()), 30.0)


def carried_out(body: Callable[[Context], object], session: Session | None = None, *, fenced: bool = False) -> Error:
    """What a worker would say of a body that raises."""
    registry = Registry()
    registry.task("b")(body)
    attempt = Attempt(b"r", Command(0, "charge", "b", 1, 1, "n"))
    attempt.body, attempt.session = registry.prepare()["b"], session
    attempt.stop = Stop.FENCED if fenced else None
    answer = Execution("w", lambda: "s", None).attend_in_thread(attempt)
    assert isinstance(answer, Failed), answer
    return answer.error


def test_an_effect_begins_with_the_key_of_its_task() -> None:
    attempt = Attempt(b"run-1", Command(0, "charge", "b", 2, 7, "n"))
    attempt.session = Session(30.0)
    renew(attempt.session)
    ctx = Context(attempt)
    with ctx.effect() as key:
        assert key == ctx.effect_key == "run-1/charge"


def test_an_effect_is_refused_after_the_lease_although_nobody_has_noticed_yet() -> None:
    """As after a freeze of the whole process: the body's thread may go on before the thread that fences."""
    session, acted = Session(30.0), False
    expire(session)

    def body(ctx: Context) -> None:
        nonlocal acted
        ctx.heartbeat()
        assert not ctx.cancelled
        with ctx.effect():
            acted = True

    error = carried_out(body, session)
    assert error.type.endswith("FencedError")
    assert (acted, error.ambiguous) == (False, False)


@pytest.mark.parametrize(("age", "is_allowed"), [(1.0, True), (60.0, False)])
def test_an_effect_is_allowed_for_one_lease_while_nobody_has_given_any(age: float, is_allowed: bool) -> None:
    """The engine may have recorded the first heartbeat, and its answer not be read yet."""
    attempt = Attempt(b"r", Command(0, "t", "b", 1, 1, "n"))
    attempt.session = Session(30.0)
    attempt.session.is_lapsed(time.monotonic() - age, holds=True)
    with contextlib.nullcontext() if is_allowed else pytest.raises(FencedError), Context(attempt).effect():
        pass
    assert attempt.had_effect is is_allowed


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (Stop.FENCED, FencedError),
        (Stop.ABORTED, FencedError),
        (Stop.SUPERSEDED, FencedError),
        (Stop.TIMED_OUT, asyncio.CancelledError),
        (Stop.DRAINED, asyncio.CancelledError),
    ],
)
def test_an_effect_does_not_begin_when_the_attempt_has_to_stop(stop: Stop, error: type[BaseException]) -> None:
    attempt = Attempt(b"r", Command(0, "t", "b", 1, 1, "n"))
    attempt.stop = stop
    with pytest.raises(error), Context(attempt).effect():
        raise AssertionError("begun")
    assert not attempt.had_effect


def nothing(ctx: Context) -> None:
    raise ValueError("before")


def inside(ctx: Context) -> None:
    with ctx.effect():
        raise ConnectionError("reset")


def behind(ctx: Context) -> None:
    with ctx.effect():
        pass
    raise ValueError("behind it")


def nested(ctx: Context) -> None:
    with ctx.effect(), contextlib.suppress(NonRetryable), ctx.effect():
        raise NonRetryable("refused")
    raise ValueError("behind both")


def refused(ctx: Context) -> None:
    with ctx.effect():
        raise NonRetryable("the card is stolen")


def refused_in_both(ctx: Context) -> None:
    with ctx.effect(), ctx.effect():
        raise NonRetryable("the card is stolen")


def busy(ctx: Context) -> None:
    with ctx.effect():
        raise RetryAfter(3.0)


def refused_then_broken(ctx: Context) -> None:
    try:
        refused(ctx)
    except NonRetryable:
        raise ValueError("nothing happened, and something else broke") from None


def second_refused(ctx: Context) -> None:
    with ctx.effect():
        pass
    with ctx.effect():
        raise NonRetryable("but the first one happened")


def second_busy(ctx: Context) -> None:
    with ctx.effect():
        pass
    with ctx.effect():
        raise RetryAfter(timedelta(seconds=3))


def said_so(ctx: Context) -> None:
    raise AmbiguousError("the bank did not answer")


def said_so_inside(ctx: Context) -> None:
    with ctx.effect():
        raise AmbiguousError("the bank did not answer")


def exits(ctx: Context) -> None:
    with ctx.effect():
        raise SystemExit(3)


def unencodable(ctx: Context) -> object:
    with ctx.effect():
        pass
    return object()


@pytest.mark.parametrize(
    ("body", "is_ambiguous", "is_retryable"),
    [
        (nothing, False, True),
        (inside, True, True),
        (behind, True, True),
        (nested, True, True),
        (refused, False, False),
        (refused_in_both, False, False),
        (busy, False, True),
        (refused_then_broken, False, True),
        (second_refused, True, False),
        (second_busy, True, True),
        (said_so, True, True),
        (said_so_inside, True, True),
        (exits, True, True),
        (unencodable, True, False),
    ],
)
def test_a_failure_from_an_effect_on_is_ambiguous_unless_it_says_that_nothing_happened(
    body: Callable[[Context], object], is_ambiguous: bool, is_retryable: bool
) -> None:
    error = carried_out(body)
    assert (error.ambiguous, error.retryable) == (is_ambiguous, is_retryable)


def test_a_delay_is_kept_when_nothing_happened() -> None:
    assert carried_out(busy).retry_after == 3.0


async def test_a_cancelled_async_effect_is_ambiguous() -> None:
    registry, begun = Registry(), asyncio.Event()

    @registry.task("b")
    async def body(ctx: Context) -> None:
        with ctx.effect():
            begun.set()
            await asyncio.sleep(WAIT_SECONDS)

    attempt = Attempt(b"r", Command(0, "t", "b", 1, 1, "n"))
    attempt.body = registry.prepare()["b"]
    running = asyncio.ensure_future(Execution("w", lambda: "s", None).attend(attempt))
    await asyncio.wait_for(begun.wait(), WAIT_SECONDS)
    running.cancel()
    answer = await running
    assert isinstance(answer, Failed)
    assert answer.error.ambiguous


# == bodies that must not overlap ======================================================================================
async def hold_of_a_lapsed_lease(body: str, *, exclusive: bool, granted: bool) -> None:
    """Runs in a process of its own, which may end here."""
    gate = threading.Event()
    bench = Bench(bodies(gate))
    attempt = bench.take(body, claim=True, exclusive=exclusive)
    await bench.until(lambda: bench.claims())
    if granted:
        bench.grant()
        await bench.until(lambda: attempt.began_at)
    bench.hold.fence([attempt])
    assert attempt.settled
    gate.set()
    print("lives")


@pytest.mark.parametrize(
    ("body", "exclusive", "granted", "code"),
    [
        ("wait_sync", True, True, EXIT_FENCED),  # nothing can stop a thread
        ("wait_sync", True, False, 0),
        ("wait_sync", False, True, 0),
        ("wait", True, True, 0),  # cancelled
    ],
)
def test_an_exclusive_body_that_cannot_be_stopped_takes_its_process_with_it(
    body: str, exclusive: bool, granted: bool, code: int
) -> None:
    script = (
        "import asyncio; from tests.unit.test_worker import hold_of_a_lapsed_lease as f; "
        f"asyncio.run(f({body!r}, exclusive={exclusive}, granted={granted}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert ("lives" in ran.stdout) == (not code)


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
