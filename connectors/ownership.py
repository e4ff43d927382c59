"""Who publishes from a slot: one row of `relay_owner`, renewed once a second, taken over when its owner is silent.

The row answers "is the owner alive": a killed, frozen or cut-off relay stops renewing, a waiting one does not. What
keeps two relays from publishing at once is the slot, which Postgres lets one connection read; the row only says whose
turn it is. So the worst that a wrong guess can do is to publish twice, never to lose.

The row also keeps how far everything has been delivered. It is committed before the slot is told, so a slot that stands
further than its row was advanced by somebody else, or dropped and created again (`connectors.slot`). A position is one
in the log of a timeline: after a failover the same number means something else, so an owner that renews on another
timeline than it claimed on has lost its hold, and begins again from what the row says there.
"""

import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, LiteralString

import psycopg
import structlog

from connectors.connection import connect
from connectors.decoding import format_lsn

RENEW_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.25
HANG_SECONDS: Final = 30.0
"""A relay waits for nothing this long in one go (making topics takes up to 10 s): one that is silent so long hangs."""
SILENT_SECONDS: Final = 2 * RENEW_SECONDS
"""When nobody reads the slot, an owner that missed two renewals is gone: a restarted relay need not wait a lease."""

# A slot that is read proves nothing, since a frozen owner reads it too; a free one and missed renewals together do.
_IS_ALIVE: Final[LiteralString] = """
held.owner <> %(owner)s AND held.renewed_at >= clock_timestamp() - make_interval(secs => CASE
  WHEN EXISTS (SELECT FROM pg_replication_slots AS slot WHERE slot.slot_name = %(slot)s AND slot.active)
  THEN %(lease)s ELSE least(%(silence)s, %(lease)s) END)
"""
# The test stands twice: first so that a standby locks no row and writes nothing, then under the lock, for two that
# claim together.
_TIMELINE: Final[LiteralString] = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
_CLAIM: Final[LiteralString] = f"""
INSERT INTO relay_owner AS held (slot, owner, epoch, renewed_at, timeline)
SELECT %(slot)s, %(owner)s, 1, clock_timestamp(), {_TIMELINE}
WHERE NOT EXISTS (SELECT FROM relay_owner AS held WHERE held.slot = %(slot)s AND {_IS_ALIVE})
ON CONFLICT (slot) DO UPDATE SET owner = excluded.owner, epoch = held.epoch + 1, renewed_at = clock_timestamp(),
  timeline = excluded.timeline
WHERE NOT ({_IS_ALIVE})
RETURNING epoch, coalesce(acked_lsn, '0/0'::pg_lsn) - '0/0'::pg_lsn
"""  # noqa: S608 - made of constants only
_RENEW: Final[LiteralString] = f"""
UPDATE relay_owner SET renewed_at = clock_timestamp(), acked_lsn = greatest(acked_lsn, %(position)s::pg_lsn)
WHERE slot = %(slot)s AND owner = %(owner)s AND epoch = %(epoch)s AND timeline = {_TIMELINE}
RETURNING pg_current_wal_lsn() - coalesce(
  (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %(slot)s), acked_lsn)
"""  # noqa: S608 - made of constants only
_RELEASE: Final[LiteralString] = f"""
UPDATE relay_owner SET renewed_at = to_timestamp(0), acked_lsn = greatest(acked_lsn, %(position)s::pg_lsn)
WHERE slot = %(slot)s AND owner = %(owner)s AND epoch = %(epoch)s AND timeline = {_TIMELINE}
"""  # noqa: S608 - made of constants only

_log = structlog.get_logger(__name__)


class Ownership:
    """One relay's hold on one slot.

    A thread renews it over a connection of its own, so that a relay that is busy or waits for Kafka does not lose it;
    but the thread stops once the relay has not asked `is_held` for HANG_SECONDS, so a relay that hangs does lose it.
    """

    def __init__(
        self, postgres: str, slot: str, owner: str, lease_seconds: float, on_lag: Callable[[int], None] = lambda _: None
    ) -> None:
        """on_lag: told with each renewal how many bytes of log the slot is behind; called from the thread."""
        self.slot = slot
        self._postgres, self._lease, self._on_lag = postgres, lease_seconds, on_lag
        self._row: dict[str, Any] = {
            "slot": slot,
            "owner": owner,
            "lease": lease_seconds,
            "silence": SILENT_SECONDS,
            "epoch": 0,
        }
        self._connection: psycopg.Connection[Any] | None = None
        self._thread: threading.Thread | None = None
        self._bell, self._ear = socket.socketpair()
        self._held_until = self._asked_at = 0.0
        self.is_connected = False
        """Whether the last renewal went through.

        If not, Postgres may be shutting down, and waits for readers of its log to leave.
        """
        self.delivered = 0
        """Position up to which everything is in Kafka; set by the relay, recorded with the next renewal."""
        self.recorded = 0
        """Position that is committed in the row: only up to here may the slot be told."""

    @property
    def epoch(self) -> int:
        """Rises with every take-over."""
        return int(self._row["epoch"])

    def claim(self) -> bool:
        """Try once to become the owner; False while another one is alive.

        Raises psycopg.Error when Postgres is away.
        """
        self._end_thread()
        began = time.monotonic()
        try:
            found = self._connect().execute(_CLAIM, self._row).fetchone()
        except psycopg.Error:
            self._disconnect()
            raise
        if found is None:
            return False
        self._row["epoch"] = found[0]
        self.start_at(int(found[1]))
        self._held_until, self._asked_at, self.is_connected = began + self._lease, began, True
        self._thread = threading.Thread(target=self._renew_until_lost, name="relay-ownership", daemon=True)
        self._thread.start()
        return True

    def is_held(self) -> bool:
        """Whether the last committed renewal is younger than the lease (monotonic, from before it was sent)."""
        self._asked_at = time.monotonic()
        return self._asked_at < self._held_until

    def start_at(self, lsn: int) -> None:
        """Take up a position that stands in the row."""
        self.delivered = self.recorded = lsn

    def release(self) -> None:
        """Hand the slot to whoever comes next, with the position reached.

        Never raises: an owner that cannot say so goes silent.
        """
        self._end_thread()
        if self.is_held():
            try:
                self._connect().execute(_RELEASE, self._row | {"position": format_lsn(self.delivered)})
                self.recorded = self.delivered
            except psycopg.Error as error:
                _log.warning("ownership not released", slot=self.slot, reason=str(error).strip())
        self._held_until = 0.0
        self._disconnect()

    def close(self) -> None:
        """End for good; what is held is left to run out."""
        self._end_thread()
        self._disconnect()
        self._bell.close()
        self._ear.close()

    def _renew_until_lost(self) -> None:
        """Be the thread.

        Ends when told to, when the row has another owner, when the lease has run out, or with a relay that hangs.
        """
        while not self._is_told_to_end() and time.monotonic() < min(self._held_until, self._asked_at + HANG_SECONDS):
            try:
                self._renew()
            except psycopg.Error:
                self.is_connected = False
                self._disconnect()

    def _renew(self) -> None:
        began, position = time.monotonic(), self.delivered
        found = self._connect().execute(_RENEW, self._row | {"position": format_lsn(position)}).fetchone()
        if found is None:
            _log.warning("ownership lost: to another relay, or by a failover", slot=self.slot, epoch=self.epoch)
            self._held_until = 0.0
            return
        self.recorded, self._held_until, self.is_connected = position, began + self._lease, True
        self._on_lag(max(0, int(found[0])))

    def _is_told_to_end(self) -> bool:
        """Wait until the next renewal; less when the server speaks up: that is a goodbye, as the renewal will find."""
        sockets: list[Any] = [self._ear]
        if self._connection is not None:
            sockets.append(self._connection.fileno())
        wait_seconds = RENEW_SECONDS if self.is_connected else RETRY_SECONDS
        return self._ear in select.select(sockets, [], [], wait_seconds)[0]

    def _end_thread(self) -> None:
        if self._thread is None:
            return
        self._bell.send(b"!")
        self._thread.join()
        self._ear.recv(16)
        self._thread = None

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = connect(self._postgres, "headrace-relay-owner")
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
