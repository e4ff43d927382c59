"""The replication slot: create it, notice that it was lost, open it for reading, take it from a predecessor.

A slot can vanish: dropped by an operator, invalidated because it held more log than `max_slot_wal_keep_size`, missing
on a promoted standby. What was committed until a new one exists is never read. That cannot be repaired from the log,
only noticed: the relay sets `relay_owner.gap_at`, and a sweep publishes open work again from the state. A gap that is
none does no harm but work.
"""

import time
from collections.abc import Callable
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
import structlog

from connectors.connection import connect
from connectors.decoding import format_lsn
from connectors.ownership import Ownership
from connectors.replication import ReplicationStream
from state.outbox import PUBLICATION

RETRY_SECONDS: Final = 0.1

_LOOK: Final[LiteralString] = """
SELECT slot.slot_name IS NOT NULL, coalesce(slot.wal_status = 'lost', false),
       coalesce(slot.confirmed_flush_lsn, '0/0'::pg_lsn) - '0/0'::pg_lsn,
       coalesce(relay.acked_lsn, '0/0'::pg_lsn) - '0/0'::pg_lsn,
       pg_current_wal_lsn() - '0/0'::pg_lsn
FROM relay_owner AS relay LEFT JOIN pg_replication_slots AS slot ON slot.slot_name = relay.slot
WHERE relay.slot = %s
"""
_CREATE: Final[LiteralString] = "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
_DROP: Final[LiteralString] = "SELECT pg_drop_replication_slot(%s)"
# Compared by epoch: a relay that was replaced meanwhile must not move its successor's position.
_MARK_GAP: Final[LiteralString] = """
UPDATE relay_owner SET acked_lsn = %s::pg_lsn, gap_at = clock_timestamp() WHERE slot = %s AND epoch = %s
"""
_END_READER: Final[LiteralString] = """
SELECT active_pid, pg_terminate_backend(active_pid) FROM pg_replication_slots
WHERE slot_name = %s AND active_pid IS NOT NULL
"""

_log = structlog.get_logger(__name__)


class _Sight(NamedTuple):
    """What Postgres says about a slot, and what our row says about it; positions as numbers, 0 for none."""

    exists: bool
    is_lost: bool
    confirmed: int
    acked: int
    log_end: int


def find_gap(exists: bool, is_lost: bool, confirmed: int, acked: int, log_end: int) -> str | None:
    """Say why records between what we delivered and what the slot will give may have been missed; None: none were.

    The row's position is committed before the slot is told. So confirmed <= acked <= log_end, or the slot is not the
    one we knew.
    """
    if not exists:
        return "the slot is missing"
    if is_lost:
        return "the slot was invalidated"
    if confirmed > acked:
        return "the slot stands further than we ever told it"
    if acked > log_end:
        return "the log is another one than we delivered from"
    return None


def prepare(connection: psycopg.Connection[Any], ownership: Ownership) -> None:
    """See that the slot exists and continues where our row says; otherwise mark the gap and begin where it stands.

    connection: ordinary, autocommit. Repeating it is safe at any point: a gap not yet marked is found again.
    Creating a slot waits for transactions that are open, so it may end in a statement timeout: try again.
    """
    row = connection.execute(_LOOK, (ownership.slot,)).fetchone()
    if row is None:
        raise psycopg.OperationalError(f"no row of relay_owner for slot {ownership.slot}")
    sight = _Sight(bool(row[0]), bool(row[1]), *map(int, row[2:]))
    reason = find_gap(*sight)
    if reason is None:
        return
    if sight.is_lost:
        connection.execute(_DROP, (ownership.slot,))
    lsn = sight.confirmed if sight.exists and not sight.is_lost else _create(connection, ownership.slot)
    ownership.start_at(lsn)
    connection.execute(_MARK_GAP, (format_lsn(lsn), ownership.slot, ownership.epoch))
    if not sight.exists and not sight.acked:
        _log.info("slot made: the relay's first start on this database", slot=ownership.slot, position=format_lsn(lsn))
    else:
        _log.warning("open work will be published again", slot=ownership.slot, reason=reason, position=format_lsn(lsn))


def _create(connection: psycopg.Connection[Any], slot: str) -> int:
    row = connection.execute(_CREATE, (slot,)).fetchone()
    assert row is not None
    return int(row[0])


def open_stream(
    postgres: str, ownership: Ownership, takeover_seconds: float, goes_on: Callable[[], bool]
) -> ReplicationStream | None:
    """Begin to read behind what was delivered; None when `goes_on` says no first. To be called by the owner only.

    A connection that still reads the slot belongs to a predecessor that is dead or frozen, or is our own old one that
    Postgres has not missed yet. It gets `takeover_seconds` to go by itself, then it is ended. Raises psycopg.Error.
    """
    patience = time.monotonic() + takeover_seconds
    with connect(postgres, "headrace-relay-slot") as connection:
        prepare(connection, ownership)
        while goes_on():
            try:
                return ReplicationStream(postgres, ownership.slot, PUBLICATION, ownership.recorded, "headrace-relay")
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > patience:
                    ended = connection.execute(_END_READER, (ownership.slot,)).fetchone()
                    _log.warning(
                        "ended the connection that still read the slot", slot=ownership.slot, pid=ended and ended[0]
                    )
                time.sleep(RETRY_SECONDS)
    return None
