"""The outbox relay: from Postgres' log to Kafka, at least once, in commit order per key.

    claim the slot's ownership, else stand by
      -> open the replication stream where the row of ownership says
      -> read whole transactions, as many as are here (up to a batch) -> send -> wait for Kafka -> note the position
      -> the ownership's thread records the position -> only then the slot is told

Only a prefix of transactions is ever acknowledged: the position moves past a transaction when each of its records is in
Kafka, or set aside because Kafka will never take it. Whatever ends in between, kill -9 included, begins again at the
recorded position.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Final

import psycopg
import structlog

from connectors import metrics
from connectors.decoding import Transaction
from connectors.outbox_source import read_records
from connectors.ownership import Ownership
from connectors.publisher import Interrupted, Publisher, Refusal
from connectors.replication import ReplicationStream
from connectors.settings import RelaySettings
from connectors.slot import open_stream
from connectors.topics import Topics
from headrace.errors import MessageError
from headrace.pace import Pace
from state.outbox import Record

STOP_SECONDS: Final = 3.0
"""How long records on their way may take after `stop`."""
IDLE_SECONDS: Final = 1.0
PACE_SECONDS: Final = 0.003
"""At most one delivery is begun in this time while windows are large (`headrace.pace`)."""
STANDBY_SECONDS: Final = 0.5
BACKOFF_MAX_SECONDS: Final = 2.0

SetAside = Callable[[Record, str], None]
"""Stores a record that Kafka refuses for ever, with the reason. Called again for the same record after a crash."""

_log = structlog.get_logger(__name__)


class Relay:
    """One relay process. `run` until `stop`; all waiting in between is bounded, so that stopping is."""

    def __init__(self, settings: RelaySettings, set_aside: SetAside) -> None:
        self._settings, self._set_aside = settings, set_aside
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._ownership = Ownership(
            settings.postgres, settings.slot, owner, settings.relay_lease, lambda lag: metrics.LAG_BYTES.set(lag)
        )
        topics = Topics(settings.kafka, settings.prefix, settings.partitions, can_create=settings.topic_ids)
        self._publisher = Publisher(settings.kafka, topics, self._goes_on, settings.compression)
        self._stream: ReplicationStream | None = None
        self._stop_by: float | None = None
        self._condition = ""

    def stop(self) -> None:
        """Deliver what has been read, record it, let go. Safe in a signal handler."""
        if self._stop_by is None:
            self._stop_by = time.monotonic() + STOP_SECONDS

    def run(self) -> None:
        """Publish, or stand by, until stopped. Survives Postgres and Kafka being away; raises only on bugs."""
        failures = 0
        while self._stop_by is None:
            try:
                if self._ownership.is_held() or self._ownership.claim():
                    self._publish_from_slot()
                    failures = 0
                else:
                    self._say("standing by: another relay owns the slot")
                    self._sleep(STANDBY_SECONDS)
            except (psycopg.Error, MessageError) as error:
                failures = failures + 1 if self._stream is None else 0
                self._say(f"no log from postgres: {str(error).strip()}")
                self._sleep(min(0.1 * 2**failures, BACKOFF_MAX_SECONDS))
            except Interrupted:
                self._say("delivery was interrupted, it begins again at the recorded position")
            finally:
                self._close_stream()
        self._ownership.release()
        self._ownership.close()
        self._publisher.close()

    def _publish_from_slot(self) -> None:
        """Read and publish while the slot is ours. Raises psycopg.Error when Postgres goes away."""
        settings = self._settings
        self._stream = open_stream(settings.postgres, self._ownership, settings.relay_takeover, self._goes_on)
        if self._stream is None:
            return
        self._say("publishing", epoch=self._ownership.epoch)
        metrics.IS_OWNER.set(1)
        pace = Pace(PACE_SECONDS)
        while self._stop_by is None and self._goes_on():
            pace.wait()
            window = self._read_window(self._stream)
            if window:
                pace.begun(len(window.records))
                self._deliver(window)
        if self._stop_by is not None:
            self._ownership.release()
            self._stream.acknowledge(self._ownership.recorded)

    def _read_window(self, stream: ReplicationStream) -> "_Window":
        """All that is here, up to a batch of records; waits for a while when there is nothing."""
        window = _Window()
        for transaction in stream.transactions(IDLE_SECONDS):
            window.add(transaction)
            if len(window.records) >= self._settings.relay_batch:
                break
        return window

    def _deliver(self, window: "_Window") -> None:
        """Return when every record is in Kafka or set aside; only then the position moves.

        Raises Interrupted, psycopg.Error.
        """
        if window.records:
            began = time.monotonic()
            window.refusals += self._publisher.publish(window.records)
            metrics.count_delivered(window.records, window.transactions, time.monotonic() - began)
        for record, reason in window.refusals:
            self._set_aside(record, reason)
            metrics.SET_ASIDE.inc()
            _log.error("record set aside", topic=record.topic, key=record.key, bytes=len(record.value), reason=reason)
        self._ownership.delivered = window.end_lsn

    def _goes_on(self) -> bool:
        """Whether to carry on; also tells the slot what has been recorded, which keeps the connection alive meanwhile.

        Raises psycopg.OperationalError when renewals fail: a server that shuts down waits for its readers, so leave it.
        """
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            return False
        if not self._ownership.is_held():
            return False
        if not self._ownership.is_connected:
            raise psycopg.OperationalError("ownership cannot be renewed")
        if self._stream is not None:
            self._stream.acknowledge(self._ownership.recorded)
        return True

    def _close_stream(self) -> None:
        metrics.IS_OWNER.set(0)
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._stop_by is None and time.monotonic() < until:
            time.sleep(0.1)

    def _say(self, condition: str, **fields: object) -> None:
        """Log a condition when it changes, not each time it is met."""
        if condition != self._condition:
            self._condition = condition
            _log.info(condition, slot=self._settings.slot, **fields)


class _Window:
    """Transactions read and not yet delivered, as one batch for Kafka."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.refusals: list[Refusal] = []
        self.transactions = 0
        self.end_lsn = 0

    def __bool__(self) -> bool:
        return self.end_lsn > 0

    def add(self, transaction: Transaction) -> None:
        self.end_lsn = max(self.end_lsn, transaction.end_lsn)
        if transaction.changes:
            self.records += read_records(transaction, self.refusals)
            self.transactions += 1
