"""What the statements of timers and deadlines do, on the model."""

from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction, instant
from tests.simulation.statements.registry import OPEN_RUN, claimable, given, model
from tests.simulation.statements.restore import restore


@model
def delete_timers(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("delete_timers", list(columns)):
        key = (row["run_ids"], row["tasks"])
        if t.get("timer", *key) is not None:
            t.put("timer", key, None)
    return []


@model
def set_timers(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("set_timers", list(columns)):
        new = {"token": row["tokens"], "kind": row["kinds"], "due_at": row["due_at"], "said_at": None}
        t.put("timer", (row["run_ids"], row["tasks"]), new)
    return []


@model
def save_deadlines(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("save_deadlines", list(columns)):
        run_id, index, due_at = row["run_ids"], row["tasks"], row["due_at"]
        table, key = ("run", (run_id,)) if index == -1 else ("task", (run_id, index))
        t.put(table, key, {**(t.get(table, *key) or {}), "deadline_at": due_at})
        _put_deadline(t, run_id, index, due_at)
    return []


def _put_deadline(t: Transaction, run_id: bytes, index: int, due_at: int | None) -> None:
    """A third part of the key tells it from the timer of the present hand-out."""
    new = {"token": 0, "kind": "deadline", "due_at": due_at, "said_at": None}
    if due_at is not None or t.get("timer", run_id, index, True) is not None:
        t.put("timer", (run_id, index, True), None if due_at is None else new)


@model
def claim_due_timers(t: Transaction, most: int, seconds: float) -> list[tuple[Any, ...]]:
    def is_due(row: Row) -> bool:
        said = row["said_at"]
        return bool(row["due_at"] <= t.now and (said is None or said < t.now - seconds * 1_000_000))

    found = []
    for key, row in claimable(t, "timer", is_due, most):
        t.put("timer", key, {**row, "said_at": t.now})
        found.append((UUID(bytes=key[0]), key[1], row["token"], row["kind"]))
    return found


@model
def next_timer(t: Transaction) -> list[tuple[Any, ...]]:
    due = [row["due_at"] for _, row in t.rows("timer") if row["said_at"] is None and row["due_at"] < t.now + 2_000_000]
    return [((min(due) - t.database.clock()) / 1e6,)] if due else []


@model
def restore_timers(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    def lost(task: Row) -> Row | None:
        kind = {"pending": "backoff", "queued": "start", "waiting": "wait"}.get(task["status"], "timeout")
        row = {"token": task["token"], "kind": kind, "due_at": task["due_at"], "said_at": None}
        return None if task["due_at"] is None else row

    restored = restore(t, "timer", most, lost)
    return [(UUID(bytes=key[0]), key[1], instant(task["due_at"])) for key, task in restored]


@model
def restore_deadlines(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    return _restore_deadlines(t, "task", most)


@model
def restore_run_deadlines(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    return _restore_deadlines(t, "run", most)


def _restore_deadlines(t: Transaction, table: str, most: int) -> list[tuple[Any, ...]]:
    restored: list[tuple[Any, ...]] = []
    for key, row in t.rows(table):
        run, index = t.get("run", key[0]), key[1] if table == "task" else -1
        is_open = run is not None and run["status"] in OPEN_RUN and row.get("deadline_at") is not None
        if is_open and t.get("timer", key[0], index, True) is None and t.is_free(table, key) and len(restored) < most:
            t.lock(table, key)
            _put_deadline(t, key[0], index, row["deadline_at"])
            restored.append((UUID(bytes=key[0]), index, instant(row["deadline_at"])))
    return restored
