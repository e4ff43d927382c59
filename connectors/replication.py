"""One replication connection to Postgres: reads whole transactions, says how far they have been delivered.

psycopg 3 knows no replication, but lets libpq's COPY_BOTH through: START_REPLICATION, then CopyData payloads in both
directions.

The connection never blocks for longer than it was asked to, so that its owner can stop, renew or give up in
between.
"""

import select
import struct
import time
from collections.abc import Iterator
from typing import Final

import psycopg

from connectors.connection import describe
from connectors.decoding import Decoder, Transaction, format_lsn

STATUS_SECONDS: Final = 10.0
"""Report at least this often: Postgres drops a reader it has not heard of for wal_sender_timeout (60 s)."""
PROBE_SECONDS: Final = 5.0
"""Ask for a sign of life after this silence, and give the connection up when none comes within twice this."""
_POSTGRES_EPOCH: Final = 946_684_800
_STATUS: Final = struct.Struct(">cQQQqB")


class ReplicationStream:
    """Transactions of one slot. Not thread-safe. Raises psycopg.OperationalError once it is broken."""

    def __init__(self, postgres: str, slot: str, publication: str, start_lsn: int, application_name: str) -> None:
        """Read from `start_lsn`, or from where the slot was last acknowledged when that is further.

        Raises psycopg.errors.ObjectInUse while another connection reads the slot.
        """
        self._connection = psycopg.connect(
            describe(postgres, application_name), replication="database", autocommit=True
        )
        try:
            # This protocol knows no parameters; the settings have checked the slot's name.
            options = f"proto_version '1', publication_names '{publication}', messages 'true'"
            self._connection.execute(
                f"START_REPLICATION SLOT {slot} LOGICAL {format_lsn(start_lsn)} ({options})".encode()
            )
        except BaseException:
            self._connection.close()
            raise
        self._libpq = self._connection.pgconn
        self._libpq.nonblocking = 1
        self._decoder = Decoder()
        self._received = self._delivered = 0
        self._reported_at = self._heard_at = time.monotonic()
        self._asked_at: float | None = None

    def transactions(self, wait_seconds: float) -> Iterator[Transaction]:
        """Yield what has arrived, in commit order; wait up to `wait_seconds` for something first, never for more.

        A generator may be left early: a half-read transaction stays and is completed by the next call.
        """
        frames = self._frames(wait_seconds)
        feed = self._decoder.feed
        for frame in frames:
            found = feed(frame)
            if found is None:
                continue
            self._received = max(self._received, found.end_lsn)
            if isinstance(found, Transaction):
                yield found
                continue
            if found.is_reply_wanted:
                self._report()
            if not self._decoder.is_inside:
                yield Transaction(found.end_lsn, [])

    def acknowledge(self, lsn: int) -> None:
        """Let the slot forget everything below `lsn`.

        Also the sign of life that keeps the connection: call it often.
        """
        if lsn > self._delivered:
            self._delivered = lsn
            self._report()
        elif time.monotonic() - self._reported_at >= STATUS_SECONDS:
            self._report()

    def close(self) -> None:
        self._connection.close()

    def _frames(self, wait_seconds: float) -> Iterator[bytes]:
        """CopyData payloads that are here; when there are none, those that come within the wait."""
        deadline = time.monotonic() + wait_seconds
        is_waiting = True
        while True:
            size, payload = self._libpq.get_copy_data(1)
            if size > 0:
                is_waiting = False
                self._asked_at = None
                yield bytes(payload)
            elif size == 0:
                left = deadline - time.monotonic() if is_waiting else 0.0
                if not self._wait_readable(left):
                    return
                self._libpq.consume_input()
            else:
                raise psycopg.OperationalError(f"the replication stream ended: {self._last_words(size)}")

    def _wait_readable(self, seconds: float) -> bool:
        """Whether something came, within at most `seconds`."""
        if select.select([self._libpq.socket], [], [], max(seconds, 0.0))[0]:
            self._heard_at = time.monotonic()
            return True
        if seconds > 0:
            self._probe()
        return False

    def _probe(self) -> None:
        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at > 2 * PROBE_SECONDS:
            raise psycopg.OperationalError("the replication stream is silent and does not answer")
        if self._asked_at is None and now - self._heard_at > PROBE_SECONDS:
            self._asked_at = now
            self._report(is_reply_wanted=True)

    def _report(self, is_reply_wanted: bool = False) -> None:
        """Send a standby status: written, flushed, applied. Only 'flushed' moves the slot."""
        clock = int((time.time() - _POSTGRES_EPOCH) * 1_000_000)
        status = _STATUS.pack(b"r", self._received, self._delivered, self._delivered, clock, is_reply_wanted)
        self._libpq.put_copy_data(status)
        deadline = time.monotonic() + PROBE_SECONDS
        while self._libpq.flush() == 1:
            if time.monotonic() > deadline:
                raise psycopg.OperationalError("the replication stream takes no more of our reports")
            select.select([], [self._libpq.socket], [], 0.5)
        self._reported_at = time.monotonic()

    def _last_words(self, size: int) -> str:
        if size == -1:
            result = self._libpq.get_result()
            message = result.error_message if result is not None else b""
        else:
            message = self._libpq.error_message
        return message.decode(errors="replace").strip() or "closed by the server"
