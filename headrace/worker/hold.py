"""All that a worker holds: every attempt from its receipt to its answer, in the prefetch or in a slot.

Everything here happens on the event loop, which makes it one decision after the other: `take` what came, fill free
slots, send the answers of a turn together, look at what runs. Threads only call `held` and `describe`, which read.
"""

import asyncio
import importlib.metadata
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from msgspec import Raw

from headrace.attempt import ABANDONED, Answer, Attempt, Name, Stop
from headrace.listing import Listing
from headrace.messages import Abort, Error, Failed, Granted, Heartbeat, Returned, Succeeded, Yield, encode
from headrace.object_store import ObjectStore
from headrace.registry import Body
from headrace.tracing import attempt_tracer
from headrace.worker.execution import Execution
from headrace.worker.reports import Reports
from headrace.worker.room import Room
from headrace.worker.seen import Seen
from headrace.worker.session import Session
from headrace.worker.stats import Stats
from headrace.worker.task_log import TaskLog
from headrace.worker.threads import Threads

_log = structlog.get_logger("headrace.worker")

ANNOUNCE_SECONDS: Final = 0.25
"""A body that outlives this is reported as started; a shorter one costs one message, its result."""
TICK_SECONDS: Final = 0.05
"""How often running bodies are looked at, while there are any: the precision of timeouts."""
UNWIND_SECONDS: Final = 1.0
"""How long a cancelled async body may take to clean up before it is answered for anyway."""
WAIT_SECONDS: Final = 0.25
"""Commands are held back in Kafka for other workers beyond what this one gets through in so long."""
BATCH_SECONDS: Final = 0.01
"""How long answers wait for company at a high rate, while more commands are ready to start."""
BATCH_RATE: Final = 4_000
"""Answers per second from which that is worth it: Kafka costs per batch and partition, not per record."""
CLAIM_SECONDS: Final = 1.0
"""How long to wait for the answer to a claim before it is made again."""
EXIT_FENCED: Final = 75
"""Exit code of a process that was left with an exclusive body it could not stop (EX_TEMPFAIL)."""


class Hold:
    """At most one attempt of a task at a time, at most `slots` of them running."""

    def __init__(
        self,
        bodies: Mapping[str, Body],
        worker: str,
        queues: tuple[str, ...],
        *,
        slots: int,
        prefetch: int,
        lease_seconds: float,
        reports: Reports,
        stats: Stats,
        loop: asyncio.AbstractEventLoop,
        objects: ObjectStore | None = None,
        listing: Listing | None = None,
        log: TaskLog | None = None,
        on_session: Callable[[], object] = lambda: None,
    ) -> None:
        """objects: where large results go. listing: where the worker's parent reads what is held, when there is one.
        log: takes what bodies log."""
        self._bodies, self._worker, self._queues = bodies, worker, queues
        self._slots, self._prefetch = slots, max(prefetch, slots)
        self._reports, self._stats, self._loop = reports, stats, loop
        self._library = importlib.metadata.version("headrace")
        self._listing, self._log, self._on_session = listing, log, on_session
        self.session = Session(lease_seconds)
        """Replaced, never changed, when the worker fences itself."""
        self.room = Room(min(self._prefetch, 2 * slots))
        self._execution = Execution(worker, lambda: self.session.id, attempt_tracer(), objects)
        self._threads = Threads(
            slots,
            loop=loop,
            attend=self._execution.attend_in_thread,
            following=self._next_for_thread,
            finish=self._finish,
            free_slot=self._free_slot,
        )
        self._held: dict[Name, Attempt] = {}
        self._ready: deque[Attempt] = deque()
        self._seen = Seen()
        self._running = 0
        self._is_draining = False
        self._is_empty = asyncio.Event()
        self._is_turn_due = False
        self._is_ticking = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._ticked_at, self._answered, self._answered_at_tick = time.monotonic(), 0, 0
        self._rate = 0.0
        """Answers per second, lately."""

    # == taking ========================================================================================================
    def take(self, attempts: list[Attempt]) -> None:
        """What one poll of Kafka brought."""
        self._stats.received += len(attempts)
        for attempt in attempts:
            if not self._seen.admit(attempt.name, attempt.command.token):
                self._stats.refused += 1
                self.room.release(attempt.size)
                continue
            if (older := self._held.get(attempt.name)) is not None:
                self._drop(older, Stop.SUPERSEDED)
            self._held[attempt.name] = attempt
            attempt.session, attempt.log = self.session, self._log
            if self._listing is not None:
                self._listing.put(attempt)
            attempt.body = self._bodies.get(attempt.command.run)
            if attempt.body is None:
                self._answer(attempt, self._unknown(attempt))
            else:
                self._ready.append(attempt)
        if self._is_draining:
            self._hand_back_waiting()
        self._turn_soon()
        self._tick_soon()

    def _unknown(self, attempt: Attempt) -> Answer:
        """Retryable: during a rolling update another worker of the queue may know the body already."""
        names = ", ".join(sorted(self._bodies)[:20])
        message = f"this worker has no body {attempt.command.run!r}; it has: {names}"
        return attempt.failed(Error("UNKNOWN_TASK", message[:1000]), self.session.id, self._worker)

    def _fill(self) -> None:
        """Start what is ready while there are free slots."""
        while self._running < self._slots and (attempt := self._next()) is not None:
            self._running += 1
            if attempt.asks:
                self._claim(attempt)
            else:
                self._start(attempt)

    def _start(self, attempt: Attempt) -> None:
        """In a slot that was counted already."""
        if attempt.body is not None and attempt.body.is_async:
            attempt.task = self._loop.create_task(self._attend(attempt))
        else:
            self._threads.run(attempt)

    def _claim(self, attempt: Attempt) -> None:
        """Ask to be recorded as the owner; the slot is kept meanwhile."""
        attempt.claimed_at = time.monotonic()
        claim = attempt.claim(self.session.id, self._worker)
        self._reports.add(attempt.name[0], encode(claim), attempt.traceparent)

    def granted(self, message: Granted) -> None:
        """Start the body of a claimed hand-out that is ours now; let go of one that is another session's."""
        attempt = self._held.get((message.run.encode(), message.task))
        if attempt is None or attempt.command.token != message.token or attempt.claimed_at is None:
            return
        if attempt.session is None or message.session != attempt.session.id:
            self._drop(attempt, Stop.SUPERSEDED)
        elif attempt.is_ours():
            attempt.claimed_at = None
            attempt.announced = True  # the grant is the record of its start
            self._start(attempt)
        self._turn_soon()

    def _next(self) -> Attempt | None:
        """The first that still waits. A deque's ends are atomic, so loop and threads share it without a lock."""
        while self._ready:
            try:
                attempt = self._ready.popleft()
            except IndexError:
                return None  # a thread was quicker
            if not attempt.settled:
                return attempt
        return None

    def _next_for_thread(self) -> Attempt | None:
        """The next one, if it is a thread's turn: an async body goes back to its place and waits for the loop."""
        attempt = self._next()
        if attempt is not None and (attempt.asks or (attempt.body is not None and attempt.body.is_async)):
            self._ready.appendleft(attempt)
            return None
        return attempt

    def _hand_back_waiting(self) -> None:
        while (attempt := self._next()) is not None:
            self._answer(attempt, self._returned(attempt))
        self._turn_soon()

    # == running =======================================================================================================
    async def _attend(self, attempt: Attempt) -> None:
        if attempt.stop is None:  # it may have been dropped between its creation and its first step
            self._finish(attempt, await self._execution.attend(attempt))
        self._free_slot()

    def _finish(self, attempt: Attempt, answer: Answer | None) -> None:
        """A body has ended; `answer` is what it would say. None: it never began, and who stopped it settles it."""
        if answer is None:
            return
        self._stats.begun += 1
        if attempt.settled:
            self._stats.overdue -= attempt.overdue
        elif attempt.stop is None:
            self._answer(attempt, answer)
        elif attempt.stop in ABANDONED:
            self._settle(attempt)
            self._stats.dropped += 1
        elif attempt.stop is Stop.TIMED_OUT:
            self._answer(attempt, self._timeout(attempt))
        else:
            ended_well = isinstance(answer, Succeeded)
            self._answer(attempt, answer if ended_well else self._returned(attempt))

    def _free_slot(self) -> None:
        self._running -= 1
        self._turn_soon()

    def _answer(self, attempt: Attempt, answer: Answer) -> None:
        self._settle(attempt)
        match answer:
            case Succeeded():
                self._stats.succeeded += 1
            case Failed():
                self._stats.failed += 1
            case Returned():
                self._stats.returned += 1
        self._answered += 1
        self._reports.add(attempt.name[0], encode(answer), attempt.traceparent)
        self._turn_soon()

    def _settle(self, attempt: Attempt) -> None:
        attempt.settled = True
        if attempt.claimed_at is not None:  # the slot that was kept for it
            attempt.claimed_at = None
            self._free_slot()
        if self._listing is not None:
            self._listing.remove(attempt)
        if self._held.get(attempt.name) is attempt:
            del self._held[attempt.name]
        self.room.release(attempt.size)
        if self._is_draining and not self._held:
            self._is_empty.set()

    def _returned(self, attempt: Attempt) -> Answer:
        return attempt.returned("drain", self.session.id, self._worker)

    # == ending early ==================================================================================================
    def _interrupt(self, attempt: Attempt, stop: Stop) -> None:
        """Ask a body to end; what is then said about it is decided when it does, or by the next tick."""
        attempt.stop = attempt.stop or stop
        if attempt.task is not None and attempt.began_at:
            attempt.task.cancel()

    def _drop(self, attempt: Attempt, stop: Stop, *, has_successor: bool = True) -> None:
        """Give an attempt up without an answer: somebody else decides about its task now."""
        self._interrupt(attempt, stop)
        if has_successor:
            self._let_none_outlive(attempt)
        self._settle(attempt)
        self._stats.dropped += 1
        self._count_overdue(attempt)

    def _let_none_outlive(self, attempt: Attempt) -> None:
        """End the process rather than let an exclusive body run beside its successor: a thread cannot be stopped, and
        an async body gets a moment to clean up. What else is held here is handed out again."""
        if not attempt.is_exclusive_body:
            return
        if attempt.task is None:
            _die(attempt)
        else:
            self._loop.call_later(UNWIND_SECONDS, _die_unless_done, attempt, attempt.task)

    def _count_overdue(self, attempt: Attempt) -> None:
        if attempt.began_at:
            attempt.overdue = True
            self._stats.overdue += 1

    def _time_out(self, attempt: Attempt, now: float) -> None:
        """A thread is answered for at once; an async body is cancelled and gets a moment to clean up first."""
        if attempt.task is not None and attempt.stop is None:
            attempt.limit_at = now + UNWIND_SECONDS
            self._interrupt(attempt, Stop.TIMED_OUT)
            return
        self._interrupt(attempt, Stop.TIMED_OUT)
        if attempt.is_exclusive_body:
            _die(attempt)  # without an answer, which would call a successor in
        self._answer(attempt, self._timeout(attempt))
        self._count_overdue(attempt)

    def _timeout(self, attempt: Attempt) -> Answer:
        self._stats.timed_out += 1
        message = f"the body did not end within {attempt.command.timeout:g} s"
        return attempt.failed(Error("TIMEOUT", message), self.session.id, self._worker)

    # == turns and ticks ===============================================================================================
    def _turn_soon(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Once in a turn of the loop in which something happened: fill the free slots, send the answers together."""
        self._is_turn_due = False
        if self._ready:
            self._fill()
        if self._ready and self._rate > BATCH_RATE:
            self._flush_later()
        else:
            self._flush()
        self.room.offer()

    def _flush_later(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(BATCH_SECONDS, self._flush)

    def _flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        self._reports.flush()

    def _tick_soon(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        """Look at what runs: announce it, time it out. One timer for all, and none while nothing is held."""
        self._is_ticking = False
        try:
            self._look(time.monotonic())
        finally:
            if self._held or self._reports.unsent:
                self._tick_soon()

    def _look(self, now: float) -> None:
        for attempt in self.held():
            if not attempt.began_at:
                if attempt.claimed_at is not None and now - attempt.claimed_at >= CLAIM_SECONDS:
                    self._claim(attempt)
                continue
            if not attempt.announced and now - attempt.began_at >= ANNOUNCE_SECONDS:
                self._announce(attempt)
            if attempt.limit_at is not None and now >= attempt.limit_at:
                self._time_out(attempt, now)
        self._adapt(now)
        self._seen.forget_old(now)
        self._reports.flush()

    def _announce(self, attempt: Attempt) -> None:
        attempt.announced = True
        started = attempt.announcement(self.session.id, self._worker)
        self._reports.add(attempt.name[0], encode(started), attempt.traceparent)

    def _adapt(self, now: float) -> None:
        """Hold what is done in about WAIT_SECONDS: short bodies get large batches, slow ones leave work to others. What
        was let go was not done: a worker that loses its lease must not take more the next time."""
        self._rate = (self._answered - self._answered_at_tick) / max(now - self._ticked_at, 0.001)
        self._ticked_at, self._answered_at_tick = now, self._answered
        self.room.limit = max(self._slots, min(self._prefetch, max(2 * self._slots, int(self._rate * WAIT_SECONDS))))

    # == what the session says and hears ===============================================================================
    def held(self) -> list[Attempt]:
        return list(self._held.values())

    def describe(self, seq: int, *, ended: bool) -> Heartbeat:
        """What its session holds; the last one lists what nobody will answer for, so that it goes to others at once and
        not when it was unlisted for a lease."""
        session = self.session
        held = [attempt for attempt in self.held() if ended or attempt.stop is not Stop.FENCED]
        return Heartbeat(
            session=session.id,
            worker=self._worker,
            seq=seq,
            queues=list(self._queues),
            held=[(attempt.run_id, attempt.command.task, attempt.command.token) for attempt in held],
            lease=session.lease_seconds,
            slots=self._slots,
            draining=self._is_draining,
            ended=ended,
            library=self._library,
            details=[
                (attempt.run_id, attempt.command.task, attempt.command.token, Raw(attempt.details))
                for attempt in held
                if attempt.details is not None
            ],
        )

    def abort(self, message: Abort) -> None:
        """Stop the body of a hand-out that is no longer current; refuse its command if that is still on the way."""
        name = (message.run.encode(), message.task)
        self._seen.admit(name, message.token)
        attempt = self._held.get(name)
        if attempt is not None and attempt.command.token <= message.token:
            self._drop(attempt, Stop.ABORTED, has_successor=message.reason not in ("cancelled", "terminated"))
            self._turn_soon()

    def hand_over(self, message: Yield) -> None:
        """Give back what still waits here, for a worker that is idle."""
        attempt = self._held.get((message.run.encode(), message.task))
        if attempt is None or attempt.command.token != message.token or attempt.settled:
            return
        try:
            self._ready.remove(attempt)
        except (ValueError, IndexError):  # it has begun, or a thread was taking the next one at this moment
            return
        self._answer(attempt, attempt.returned("handed over", self.session.id, self._worker))

    def fence(self, fenced: list[Attempt]) -> None:
        self._stats.fences += 1
        for attempt in fenced:
            if not attempt.settled:
                self._drop(attempt, Stop.FENCED)
        self._turn_soon()

    def renew_session(self) -> None:
        """Be another session from here on; what is held belongs to the old one."""
        self.session = Session(self.session.lease_seconds)
        self._on_session()

    # == draining ======================================================================================================
    def drain(self) -> None:
        """From here on hand back, unbegun, all that waits or still arrives."""
        self._is_draining = True
        self._hand_back_waiting()
        for attempt in self.held():
            if attempt.claimed_at is not None:  # not begun either, and nothing to wait for
                self._answer(attempt, self._returned(attempt))
        if not self._held:
            self._is_empty.set()

    async def empty(self) -> None:
        """Wait until nothing is held; only while draining."""
        await self._is_empty.wait()

    async def give_up(self) -> None:
        """Cancel what still runs, wait a moment for it to unwind, and hand it back as begun."""
        for attempt in self.held():
            self._interrupt(attempt, Stop.DRAINED)
        if tasks := [attempt.task for attempt in self.held() if attempt.task is not None]:
            await asyncio.wait(tasks, timeout=UNWIND_SECONDS)
        stubborn = [attempt for attempt in self.held() if attempt.is_exclusive_body]
        for attempt in self.held():
            if attempt not in stubborn:
                self._answer(attempt, self._returned(attempt))
        self._flush()
        self._threads.stop()
        if stubborn:
            await self._reports.empty(UNWIND_SECONDS)
            _die(stubborn[0])


def _die(attempt: Attempt) -> None:
    _log.error(
        "an exclusive body cannot be stopped; this process ends", run_id=attempt.run_id, task=attempt.command.name
    )
    os._exit(EXIT_FENCED)


def _die_unless_done(attempt: Attempt, task: "asyncio.Task[None]") -> None:
    if not task.done():
        _die(attempt)
