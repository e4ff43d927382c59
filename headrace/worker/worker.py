"""The worker: takes commands from Kafka, runs the bodies registered for them, and reports with the token it was given.

    Kafka ─▶ Intake (thread) ─▶ Hold: prefetch ─▶ slots (tasks of the loop, or Threads) ─▶ Reports ─▶ Kafka
                                  ▲
             Control (thread): heartbeats, renewals, aborts, fencing

The event loop owns every decision; the threads only bring something to it. A worker never talks to Postgres: a command
says "try", and the token it carries decides there whether the answer still counts.
"""

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final

import structlog

from headrace import registry as registry_module
from headrace.errors import ConfigurationError
from headrace.listing import Listing
from headrace.messages import PAYLOAD_BYTES_MAX
from headrace.object_store import OBJECT_BYTES_MAX, ObjectStore
from headrace.registry import Body, Registry
from headrace.settings import WorkerSettings
from headrace.worker.broker import Broker, Link
from headrace.worker.control import Control
from headrace.worker.hold import Hold
from headrace.worker.intake import Intake
from headrace.worker.reports import Reports
from headrace.worker.stats import Stats
from headrace.worker.task_log import TaskLog

_log = structlog.get_logger("headrace.worker")

FLUSH_SECONDS: Final = 5.0
"""Longest wait for Kafka at each stage of a stop."""
HURRIED_SECONDS: Final = 1.0
SAME_SIGNAL_SECONDS: Final = 0.3


class Worker:
    """Runs the bodies of a registry until it is stopped.

        Worker(kafka="127.0.0.1:9092", queues=["default"]).run_forever()

    registry: the bodies; the module-level one when left out.
    queues: those to serve; when left out, the ones the bodies name.
    slots: bodies that run at once. prefetch: most commands held, waiting or running; fewer while bodies are slow.
    objects: URL of the object store for large results; empty: there is none.
    listing: where a parent process reads what is held; `headrace worker` has one.
    Raises ConfigurationError when a body's annotations cannot be used, or nothing is registered.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        kafka: str = "127.0.0.1:9092",
        queues: Sequence[str] | None = None,
        slots: int = 16,
        prefetch: int = 1000,
        lease: float = 30.0,
        name: str | None = None,
        prefix: str = "headrace",
        drain_seconds: float = 20.0,
        topic_ids: bool = True,
        kafka_options: Mapping[str, str] | None = None,
        objects: str = "",
        listing: Listing | None = None,
    ) -> None:
        registry = registry_module.default if registry is None else registry
        self._objects = ObjectStore(objects) if objects else None
        self._bodies: Mapping[str, Body] = registry.prepare(OBJECT_BYTES_MAX if objects else PAYLOAD_BYTES_MAX)
        if not self._bodies:
            raise ConfigurationError("this worker has nothing to run: no function is registered with @task")
        if slots < 1 or prefetch < 1 or lease <= 0:
            raise ConfigurationError("slots and prefetch must be at least 1, and the lease longer than nothing")
        self.name: Final = name or f"{socket.gethostname()}:{os.getpid()}"
        self.queues: Final = tuple(queues) if queues else registry.queues()
        self.stats: Final = Stats()
        self._slots, self._prefetch = slots, prefetch
        self._lease, self._drain_seconds = lease, drain_seconds
        self._broker = Broker(kafka, prefix, topic_ids, dict(kafka_options or {}))
        self._listing, self._member = listing, ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hold: Hold | None = None
        self._is_asked, self._is_hurried = False, False
        self._asked_at = 0.0
        self._failure: BaseException | None = None

    @classmethod
    def from_settings(
        cls, settings: WorkerSettings, registry: Registry | None = None, *, listing: Listing | None = None
    ) -> "Worker":
        return cls(
            registry,
            kafka=settings.kafka,
            queues=settings.queues,
            slots=settings.slots,
            prefetch=settings.prefetch,
            lease=settings.lease_seconds,
            name=settings.worker_name,
            prefix=settings.prefix,
            drain_seconds=settings.drain_seconds,
            topic_ids=settings.topic_ids,
            kafka_options=settings.kafka_options,
            objects=settings.objects,
            listing=listing,
        )

    @property
    def session_id(self) -> str:
        """Id of the present worker session; another one after the worker fenced itself, and empty before `run`."""
        return self._hold.session.id if self._hold is not None else ""

    # == life ==========================================================================================================
    async def run(self) -> None:
        """Work until `stop` is called or this coroutine is cancelled, then drain. Raises what broke the worker."""
        self._loop = asyncio.get_running_loop()
        self._asked, self._hurry = asyncio.Event(), asyncio.Event()
        self._heed()
        link = Link(self._broker.servers)
        reports = Reports(self._broker)
        reports.start(self._fail)
        task_log = TaskLog(self._broker, self.name, self._loop)
        hold = self._hold = self._make_hold(self._loop, reports, task_log)
        self._note()
        control = Control(self._broker, hold, loop=self._loop, fail=self._fail, link=link)
        intake = self._make_intake(self._loop, hold, reports, link, control.listening)
        control.start()
        intake.start()
        task_log.install()
        _log.info("worker started", worker=self.name, queues=self.queues, slots=self._slots, tasks=sorted(self._bodies))
        try:
            await self._asked.wait()
        except asyncio.CancelledError:
            self._hurry.set()
            raise
        finally:
            await self._drain(intake, hold, control, reports, task_log)
        if self._failure is not None:
            raise self._failure

    def stop(self, *, now: bool = False) -> None:
        """Drain and return from `run`; `now`: without waiting for running bodies. Safe from any thread, and twice."""
        self._is_asked, self._is_hurried = True, self._is_hurried or now
        if self._loop is not None:  # otherwise `run` finds the flags when it begins
            self._loop.call_soon_threadsafe(self._heed)

    def run_forever(self) -> None:
        """Work in this thread until SIGTERM or SIGINT, then drain; a second signal does not wait for running bodies."""
        # What was loaded before the first command stays: no reason to look at it again in every collection.
        gc.collect()
        gc.freeze()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._run_until_signalled())

    async def _run_until_signalled(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear_signal)
        await self.run()

    def _hear_signal(self) -> None:
        """A second one means now; but not the same said twice, by a service manager to a parent and to its child."""
        now = time.monotonic()
        self.stop(now=self._is_asked and now - self._asked_at > SAME_SIGNAL_SECONDS)
        self._asked_at = self._asked_at or now

    def _heed(self) -> None:
        if self._is_asked:
            self._asked.set()
        if self._is_hurried:
            self._hurry.set()

    def _fail(self, error: BaseException) -> None:
        """One of the threads broke: end this worker rather than go on without it."""
        _log.error("the worker broke", worker=self.name, exc_info=error)
        self._failure = error
        self.stop()

    # == parts =========================================================================================================
    def _make_hold(self, loop: asyncio.AbstractEventLoop, reports: Reports, log: TaskLog) -> Hold:
        return Hold(
            self._bodies,
            self.name,
            self.queues,
            slots=self._slots,
            prefetch=self._prefetch,
            lease_seconds=self._lease,
            reports=reports,
            stats=self.stats,
            loop=loop,
            objects=self._objects,
            listing=self._listing,
            log=log,
            on_session=self._note,
        )

    def _note(self) -> None:
        """Tell the parent in whose name it would have to speak."""
        if self._listing is not None and self._hold is not None:
            self._listing.note(
                {
                    "session": self._hold.session.id,
                    "worker": self.name,
                    "lease": self._lease,
                    "producer": self._broker.plain_producer(),
                    "events": self._broker.events,
                    "workers": self._broker.workers,
                    "servers": self._broker.servers,
                    "group": self._broker.group,
                    "member": self._member if self._broker.is_plain else "",
                }
            )

    def _note_member(self, member: str) -> None:
        self._member = member
        self._note()

    def _make_intake(
        self,
        loop: asyncio.AbstractEventLoop,
        hold: Hold,
        reports: Reports,
        link: Link,
        listening: threading.Event,
    ) -> Intake:
        return Intake(
            self._broker,
            self.queues,
            loop=loop,
            room=hold.room,
            take=hold.take,
            fail=self._fail,
            is_clogged=lambda: reports.is_clogged,
            link=link,
            stats=self.stats,
            on_member=self._note_member,
            listening=listening,
        )

    # == the end =======================================================================================================
    async def _drain(self, intake: Intake, hold: Hold, control: Control, reports: Reports, task_log: TaskLog) -> None:
        """Take nothing more, hand back what waits, give running bodies their time, say good-bye; all of it bounded."""
        intake.stop()
        hold.drain()
        await _join(intake)  # it commits and leaves the group, so that others take over at once
        await self._wait_for(hold.empty(), self._drain_seconds)
        await hold.give_up()
        control.stop()
        await _join(control)
        seconds = HURRIED_SECONDS if self._hurry.is_set() else FLUSH_SECONDS
        unsent = await reports.close(seconds)
        await task_log.close_within(HURRIED_SECONDS)
        if self._listing is not None and not unsent:
            self._listing.end()
        _log.info("worker stopped", worker=self.name, unsent=unsent)

    async def _wait_for(self, quiet: Coroutine[None, None, None], seconds: float) -> None:
        """Until it is quiet, the time is over, or somebody is in a hurry."""
        waits = {asyncio.ensure_future(quiet), asyncio.ensure_future(self._hurry.wait())}
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


async def _join(thread: threading.Thread) -> None:
    await asyncio.to_thread(thread.join, FLUSH_SECONDS)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
