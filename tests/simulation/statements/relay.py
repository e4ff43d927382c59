"""What the relay's own statements do, on the model."""

from typing import Any

from tests.simulation.postgres import Row, Slot, Transaction
from tests.simulation.statements.registry import model


def _is_relay_alive(t: Transaction, held: Row, row: Row) -> bool:
    slot = t.database.slots.get(row["slot"])
    is_read = slot is not None and slot.reader is not None
    patience = row["lease"] if is_read else min(row["silence"], row["lease"])
    return bool(held["owner"] != row["owner"] and held["renewed_at"] >= t.database.clock() - patience * 1_000_000)


@model
def claim_relay(t: Transaction, **row: Any) -> list[tuple[Any, ...]]:
    held = t.get("relay_owner", row["slot"])
    if held is not None and _is_relay_alive(t, held, row):
        return []
    t.lock("relay_owner", (row["slot"],))
    new = {"owner": row["owner"], "epoch": 1 if held is None else held["epoch"] + 1, "renewed_at": t.database.clock()}
    kept = {"acked_lsn": None, "gap_at": None} if held is None else held
    t.put("relay_owner", (row["slot"],), {**kept, **new})
    return [(new["epoch"], kept["acked_lsn"] or 0)]


def _own(t: Transaction, row: Row) -> Row | None:
    t.lock("relay_owner", (row["slot"],))
    held = t.get("relay_owner", row["slot"])
    return held if held is not None and (held["owner"], held["epoch"]) == (row["owner"], row["epoch"]) else None


@model
def renew_relay(t: Transaction, **row: Any) -> list[tuple[Any, ...]]:
    held = _own(t, row)
    if held is None:
        return []
    acked = max(held["acked_lsn"] or 0, read_lsn(row["position"]))
    t.put("relay_owner", (row["slot"],), {**held, "renewed_at": t.database.clock(), "acked_lsn": acked})
    slot = t.database.slots.get(row["slot"])
    return [(t.database.lsn - (acked if slot is None else slot.confirmed),)]


@model
def release_relay(t: Transaction, **row: Any) -> list[tuple[Any, ...]]:
    held = _own(t, row)
    if held is not None:
        acked = max(held["acked_lsn"] or 0, read_lsn(row["position"]))
        t.put("relay_owner", (row["slot"],), {**held, "renewed_at": 0, "acked_lsn": acked})
    return []


@model
def look_at_slot(t: Transaction, name: str) -> list[tuple[Any, ...]]:
    held, slot = t.get("relay_owner", name), t.database.slots.get(name)
    if held is None:
        return []
    return [(slot is not None, False, 0 if slot is None else slot.confirmed, held["acked_lsn"] or 0, t.database.lsn)]


@model
def create_slot(t: Transaction, name: str) -> list[tuple[Any, ...]]:
    t.database.slots[name] = Slot(t.database.lsn)
    return [(t.database.lsn,)]


@model
def drop_slot(t: Transaction, name: str) -> list[tuple[Any, ...]]:
    t.database.slots.pop(name, None)
    return []


@model
def mark_gap(t: Transaction, lsn: str, name: str, epoch: int) -> list[tuple[Any, ...]]:
    t.lock("relay_owner", (name,))
    held = t.get("relay_owner", name)
    if held is not None and held["epoch"] == epoch:
        t.put("relay_owner", (name,), {**held, "acked_lsn": read_lsn(lsn), "gap_at": t.database.clock()})
    return []


@model
def end_reader(t: Transaction, name: str) -> list[tuple[Any, ...]]:
    slot = t.database.slots.get(name)
    if slot is None or slot.reader is None:
        return []
    slot.reader = None
    return [(1, True)]


def read_lsn(written: str) -> int:
    high, low = written.split("/")
    return (int(high, 16) << 32) + int(low, 16)
