"""The thread that keeps the worker session: sends heartbeats, reads the control topic, fences when the lease runs out.

Not on the event loop, so that a body which blocks the loop for a minute is late, but not taken for dead: it is still
running, and saying so is the truth.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from headrace.attempt import Attempt, Stop
from headrace.errors import MessageError
from headrace.messages import Abort, Granted, Renewed, Yield, decode_control_message
from headrace.worker.broker import Broker, Link, LogIdentity, Rebuild, is_lost
from headrace.worker.heartbeats import Heartbeats
from headrace.worker.hold import EXIT_FENCED, Hold
from headrace.worker.session import Session

_log = structlog.get_logger("headrace.worker")

POLL_SECONDS: Final = 0.2
MISSING_SECONDS: Final = 0.5
FLUSH_SECONDS: Final = 2.0


class Control(threading.Thread):
    """Reads what is held and replaces its session; everything else it asks of the event loop."""

    def __init__(
        self,
        broker: Broker,
        hold: Hold,
        *,
        loop: asyncio.AbstractEventLoop,
        fail: Callable[[BaseException], object],
        link: Link,
    ) -> None:
        super().__init__(name="headrace-control", daemon=True)
        self._broker, self._hold = broker, hold
        self._heartbeats = Heartbeats(broker, hold.session.lease_seconds, link)
        self._loop, self._fail, self._link = loop, fail, link
        self._halt = threading.Event()
        self._next_beat_at = 0.0
        self._next_open_at = 0.0
        self._from_beginning = False
        self.listening: Final = threading.Event()
        """Set once every order that is given from now on will be heard."""

    def stop(self) -> None:
        """Send the session's last heartbeat and end; `join` tells when that is done."""
        self._halt.set()

    # -- the thread ----------------------------------------------------------------------------------------------------
    def run(self) -> None:
        identity = LogIdentity(self._broker, [self._broker.control], self._link)
        try:
            while not self._halt.is_set():
                try:
                    self._read(identity)
                except (Rebuild, KafkaException) as e:
                    _log.warning("a new consumer of the control topic is needed", reason=str(e))
                    self._next_open_at = time.monotonic() + MISSING_SECONDS
            self._beat(time.monotonic(), ended=True)
            self._heartbeats.close(FLUSH_SECONDS)
        except BaseException as e:
            with suppress(RuntimeError):  # the loop is closed: the worker did not wait for us
                self._loop.call_soon_threadsafe(self._fail, e)

    def _read(self, identity: LogIdentity) -> None:
        consumer = Consumer(
            {
                **self._broker.consumer(
                    f"{self._broker.prefix}.control.{self._session.id}"
                ),  # no group: never joined or committed
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "error_cb": self._link.on_error,
            }
        )
        try:
            partitions = 0
            while not self._halt.is_set():
                now = time.monotonic()
                if not partitions and now >= self._next_open_at:
                    partitions = self._open(consumer, identity)
                self._keep(time.monotonic())
                wait = max(0.0, min(POLL_SECONDS, self._next_beat_at - time.monotonic()))
                if not partitions:
                    self._halt.wait(wait)
                    continue
                messages = consumer.consume(1, wait)
                if messages:
                    messages += consumer.consume(999, 0)
                self._handle(messages)
                if identity.changed():
                    self._from_beginning = True  # what was said there while we did not listen is still ours to hear
                    raise Rebuild("the control topic was replaced")
        finally:
            consumer.close()

    def _open(self, consumer: Consumer, identity: LogIdentity) -> int:
        """Start at the end of every partition, found now so that the answer to the next heartbeat is not missed."""
        topic = self._broker.control
        self._next_open_at = time.monotonic() + MISSING_SECONDS
        try:
            found = consumer.list_topics(topic, timeout=1.0).topics.get(topic)
            if found is None or found.error is not None or not found.partitions:
                self._link.missing(topic)
                return 0
            partitions = [TopicPartition(topic, number) for number in found.partitions]
            for partition in partitions:
                end = consumer.get_watermark_offsets(partition, timeout=2.0)[1]
                partition.offset = OFFSET_BEGINNING if self._from_beginning else end
        except KafkaException:
            return 0  # away or not ready: `error_cb` tells which
        identity.learn(1.0)
        consumer.assign(partitions)
        self.listening.set()
        self._link.up()
        self._link.found(topic)
        return len(partitions)

    # -- the session ---------------------------------------------------------------------------------------------------
    @property
    def _session(self) -> Session:
        return self._hold.session

    def _keep(self, now: float) -> None:
        holds = [attempt for attempt in self._hold.held() if attempt.stop is not Stop.FENCED]
        if self._session.is_lapsed(now, holds=bool(holds)):
            self._fence(holds, now)
        if now >= self._next_beat_at:
            self._beat(now)

    def _beat(self, now: float, *, ended: bool = False) -> None:
        self._next_beat_at = now + self._session.interval_seconds
        self._heartbeats.send(self._hold.describe(self._session.beat(now), ended=ended))

    def _fence(self, holds: list[Attempt], now: float) -> None:
        """Let go of everything, and be another session from here on."""
        if holds:
            _log.warning("the lease ran out without a renewal; letting go", session=self._session.id, held=len(holds))
        if any(attempt.is_exclusive_body for attempt in holds):
            os._exit(EXIT_FENCED)  # here, because the event loop may be blocked; another may start from now on
        for attempt in holds:
            attempt.stop = Stop.FENCED  # here, so that threads see it even while the event loop is blocked
        # Behind any heartbeat that still waits for Kafka, so that those cannot keep alive what is gone.
        self._beat(now, ended=True)
        self._hold.renew_session()
        self._next_beat_at = now
        if holds:
            self._loop.call_soon_threadsafe(self._hold.fence, holds)

    def _handle(self, messages: list[Message]) -> None:
        for message in messages:
            if (error := message.error()) is not None:
                if is_lost(error):
                    self._from_beginning = True
                    raise Rebuild(error.str())
                continue
            try:
                order = decode_control_message(message.value())
            except MessageError:
                continue  # from a newer engine; it repeats by tokens what matters
            match order:
                case Renewed(session=session):
                    if session == self._session.id:
                        self._session.renewed(order.seq, order.lease)
                        self._link.up()
                case Granted():
                    self._loop.call_soon_threadsafe(self._hold.granted, order)
                case Abort():
                    self._loop.call_soon_threadsafe(self._hold.abort, order)
                case Yield():
                    self._loop.call_soon_threadsafe(self._hold.hand_over, order)
