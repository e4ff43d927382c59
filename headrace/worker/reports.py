"""Sends a worker's answers to `<prefix>.events` through an idempotent producer.

The answers of one turn of the event loop leave as one batch. Nothing that was answered is lost while the process lives:
what Kafka refuses for a passing reason, or what a broken producer still held, is sent again by the next one.
"""

import time
from collections import deque
from contextlib import suppress
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.messages import TRACEPARENT, Error, Failed, Succeeded, decode_event, encode
from headrace.worker.broker import Broker, Link
from headrace.worker.stats import Stats

_log = structlog.get_logger("headrace.worker")

UNSENT_MAX: Final = 10_000
"""More answers than this waiting for Kafka, and the worker takes no more commands."""
POLLS_MAX: Final = 10
Record = tuple[bytes, bytes, str | None]
"""Key, value, traceparent."""


class Reports:
    """Owned by the event loop."""

    def __init__(self, broker: Broker, link: Link, stats: Stats) -> None:
        self._broker, self._link, self._stats = broker, link, stats
        self._batch: list[dict[str, bytes]] = []
        self._traced: list[Record] = []
        self._refused: deque[Record] = deque()
        self._broken: str | None = None
        self._producer = self._make()

    def add(self, key: bytes, value: bytes, traceparent: str | None) -> None:
        if traceparent is None:
            self._batch.append({"key": key, "value": value})
        else:
            self._traced.append((key, value, traceparent))

    @property
    def unsent(self) -> int:
        return len(self._producer) + len(self._batch) + len(self._traced) + len(self._refused)

    @property
    def is_clogged(self) -> bool:
        return self.unsent > UNSENT_MAX

    def flush(self) -> None:
        """Hand everything added so far to the producer; what it has no room for stays here for the next call."""
        if self._broken is not None:
            self._renew()
        if self._batch:
            batch, self._batch = self._batch, []
            self._send_batch(batch)
        if self._traced or self._refused:
            traced, self._traced = self._traced, []
            again = [self._refused.popleft() for _ in range(len(self._refused))]
            self._send_each(again + traced)
        self._serve()

    def close(self, seconds: float) -> int:
        """Wait so long for Kafka to have everything; the number of records it does not have."""
        give_up_at = time.monotonic() + seconds
        self.flush()
        if self._broken is not None:
            self.flush()  # through a new producer
        with suppress(KafkaException):
            self._producer.flush(max(0.0, give_up_at - time.monotonic()))
        return self.unsent

    # -- inside --------------------------------------------------------------------------------------------------------
    def _make(self) -> Producer:
        return Producer({**self._broker.producer(), "error_cb": self._on_error, "on_delivery": self._on_delivery})

    def _renew(self) -> None:
        """A fatal error ends an idempotent producer. Purging hands its records to `_on_delivery`, which keeps them."""
        reason, self._broken = self._broken, None
        _log.warning("a new producer is needed", reason=reason)
        self._stats.rebuilds += 1
        old, self._producer = self._producer, self._make()
        old.purge()
        for _ in range(POLLS_MAX):
            try:
                old.poll(0)
                break
            except KafkaException:  # it says once more why it is broken, before it hands out what it held
                continue

    def _serve(self) -> None:
        """Hear what became of records. A fatal error is raised here, and not told to `error_cb`."""
        try:
            self._producer.poll(0)
        except KafkaException as e:
            self._broken = str(e)

    def _send_batch(self, batch: list[dict[str, bytes]]) -> None:
        try:
            taken = self._producer.produce_batch(self._broker.events, batch)
        except (BufferError, KafkaException) as e:
            _log.warning("answers wait: the producer takes no more", reason=str(e))
            self._note_fatal(e)
            taken = 0
        if taken < len(batch):
            left = batch if taken == 0 else [record for record in batch if "_error" in record]
            self._refused.extend((record["key"], record["value"], None) for record in left)

    def _send_each(self, records: list[Record]) -> None:
        for done, (key, value, traceparent) in enumerate(records):
            headers: list[tuple[str, str | bytes | None]] | None = [(TRACEPARENT, traceparent)] if traceparent else None
            try:
                self._producer.produce(self._broker.events, value, key, headers=headers)
            except (BufferError, KafkaException) as e:
                self._note_fatal(e)
                self._refused.extend(records[done:])
                return

    def _note_fatal(self, error: BufferError | KafkaException) -> None:
        if isinstance(error, KafkaException) and error.args[0].fatal():
            self._broken = str(error)

    def _on_error(self, error: KafkaError) -> None:
        self._link.on_error(error)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Called for records that failed, and only for them."""
        if error is None:
            return
        key, value = message.key() or b"", message.value() or b""
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            value = _too_large(value)
        self._stats.resent += 1
        self._refused.append((key, value, None))


def _too_large(value: bytes) -> bytes:
    """The broker's own limit is below ours: the attempt failed for that, and must say so instead of vanishing."""
    event = decode_event(value)
    if not isinstance(event, Succeeded | Failed):
        return value
    error = Error("RESULT_TOO_LARGE", f"Kafka refused the answer of {len(value)} bytes", retryable=False)
    return encode(
        Failed(event.task, event.token, event.nonce, error, event.session, event.worker, event.started, event.finished)
    )
