"""What the statements of bulk acts do, on the model."""

from math import floor
from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction, instant
from tests.simulation.statements.registry import model, refuse


@model
def insert_bulk(
    t: Transaction, *, bulk_id: UUID, namespace: str, act: str, filter: str, reason: str, rate: float, actor: str
) -> list[tuple[Any, ...]]:
    new = {"act": act, "reason": reason, "rate": rate, "created_by": actor, "created_at": t.now, "next_at": t.now}
    t.put("bulk", (bulk_id.bytes,), {**new, "selected": 0, "finished_at": None, "stopped_by": None})
    return []


@model
def freeze_runs(t: Transaction, *, bulk_id: UUID, namespace: str, act: str, ids: list[UUID]) -> list[tuple[Any, ...]]:
    frozen = 0
    for position, run_id in sorted(enumerate(ids, 1), key=lambda one: one[1]):
        t.lock("bulk_item", (act, run_id.bytes))  # stands for the unique index
        waits = any(
            (row["act"], row["item_id"], row["outcome"]) == (act, run_id.bytes, None) for _, row in t.rows("bulk_item")
        )
        if t.get("run", run_id.bytes) is None or waits:
            continue
        new = {"act": act, "item_id": run_id.bytes, "asked_at": None, "looked_at": None}
        turn = {"outcome": None, "reason": None, "inbox_id": None, "done_at": None}
        t.put("bulk_item", (bulk_id.bytes, position), new | turn)
        frozen += 1
    return [(frozen,)]


@model
def note_selected(t: Transaction, *, bulk_id: UUID, selected: int, **_: Any) -> list[tuple[Any, ...]]:
    t.put("bulk", (bulk_id.bytes,), {**(t.get("bulk", bulk_id.bytes) or {}), "selected": selected})
    return []


@model
def lock_bulk(t: Transaction, *, bulk_id: UUID, **_: Any) -> list[tuple[Any, ...]]:
    t.lock("bulk", (bulk_id.bytes,))
    return []


@model
def stop_bulk(t: Transaction, *, bulk_id: UUID, namespace: str, actor: str) -> list[tuple[Any, ...]]:
    row = t.get("bulk", bulk_id.bytes)
    if row is None or row["finished_at"] is not None or row["stopped_by"] is not None:
        return []
    is_over = not any(item["asked_at"] is not None for _, item in _left(t, bulk_id))
    told = {"stopped_by": actor, "next_at": t.now, "finished_at": t.now if is_over else None}
    t.put("bulk", (bulk_id.bytes,), {**row, **told})
    return [(bulk_id,)]


def _left(t: Transaction, bulk_id: UUID) -> list[tuple[Any, Row]]:
    """Items that have had no turn yet, by position."""
    found = [(key, row) for key, row in t.rows("bulk_item") if key[0] == bulk_id.bytes and row["outcome"] is None]
    return sorted(found, key=lambda one: one[0])


@model
def release_selection(t: Transaction, *, bulk_id: UUID, **_: Any) -> list[tuple[Any, ...]]:
    for key, item in _left(t, bulk_id):
        if item["asked_at"] is None:
            t.put("bulk_item", key, {**item, "outcome": "stopped", "done_at": t.now})
    return []


@model
def read_bulks(t: Transaction, *, bulk_id: UUID, **_: Any) -> list[tuple[Any, ...]]:
    """Without the counts of its items: nobody reads them here."""
    row = t.get("bulk", bulk_id.bytes)
    if row is None:
        return []
    head = (bulk_id, row["act"], "{}", row["reason"], row["rate"], row["selected"], instant(row["created_at"]))
    return [(*head, row["created_by"], instant(row["finished_at"]), row["stopped_by"], 0, 0, 0, 0, 0)]


@model
def claim_bulk(t: Transaction, *, namespace: str, step_max: int) -> list[tuple[Any, ...]]:
    now = t.database.clock()
    due = [(row["next_at"], key, row) for key, row in t.rows("bulk") if row["finished_at"] is None]
    for next_at, key, row in sorted(due, key=lambda one: one[:2]):
        if next_at <= now and t.is_free("bulk", key):
            t.lock("bulk", key)
            allowed = min(step_max, 1 + floor(row["rate"] * min(1.0, (now - next_at) / 1e6)))
            asked = (row["act"], row["created_by"], row["reason"], row["rate"], row["stopped_by"] is not None)
            return [(UUID(bytes=key[0]), *asked, allowed)]
    return []


@model
def list_items_left(t: Transaction, *, bulk_id: UUID, limit: int, look: float) -> list[tuple[Any, ...]]:
    now = t.database.clock()
    free = [
        (row["looked_at"] or float("inf"), key[1], row)
        for key, row in _left(t, bulk_id)
        if row["looked_at"] is None or row["looked_at"] < now - look * 1e6
    ]
    return [
        (position, UUID(bytes=row["item_id"]), None if row["asked_at"] is None else (now - row["asked_at"]) / 1e6)
        for _, position, row in sorted(free, key=lambda one: one[:2])[:limit]
    ]


@model
def note_looks(t: Transaction, *, bulk_id: UUID, positions: list[int]) -> list[tuple[Any, ...]]:
    now = t.database.clock()
    for key, row in _left(t, bulk_id):
        if key[1] in positions:
            t.put("bulk_item", key, {**row, "asked_at": row["asked_at"] or now, "looked_at": now})
    return []


@model
def note_outcomes(
    t: Transaction, *, bulk_id: UUID, positions: list[int], outcomes: list[str], reasons: list[str | None],
    inbox_ids: list[UUID | None], row_versions: list[int | None],
) -> list[tuple[Any, ...]]:  # fmt: skip
    for position, outcome, reason, inbox_id in zip(positions, outcomes, reasons, inbox_ids, strict=True):
        key = (bulk_id.bytes, position)
        item = t.get("bulk_item", *key)
        if item is None or item["outcome"] is not None:
            continue
        refuse(inbox_id is None or outcome == "done", "bulk_item_asked_only_if_done")
        asked = None if inbox_id is None else inbox_id.bytes
        t.put("bulk_item", key, {**item, "outcome": outcome, "reason": reason, "inbox_id": asked, "done_at": t.now})
    return []


@model
def note_step(t: Transaction, *, bulk_id: UUID, done: int, look: float) -> list[tuple[Any, ...]]:
    row, now, is_over = t.get("bulk", bulk_id.bytes) or {}, t.database.clock(), not _left(t, bulk_id)
    next_at = (
        max(row["next_at"], now - 1_000_000) + round(done / row["rate"] * 1e6) if done else now + round(look * 1e6)
    )
    t.put("bulk", (bulk_id.bytes,), {**row, "next_at": next_at, "finished_at": t.now if is_over else None})
    return [(is_over,)]


@model
def next_step(t: Transaction, *, namespace: str) -> list[tuple[Any, ...]]:
    due = [row["next_at"] for _, row in t.rows("bulk") if row["finished_at"] is None]
    return [((min(due) - t.database.clock()) / 1e6 if due else None,)]
