"""What the statements of parked tasks do, on the model."""

from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction
from tests.simulation.statements.registry import given, model, unique
from tests.simulation.statements.restore import restore


@model
def park_tasks(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("park_tasks", list(columns)):
        key = (row["run_ids"], row["tasks"])
        unique(t, "parked_task", key)
        t.put("parked_task", key, {"token": row["tokens"], "resolved_by": None})
    return []


@model
def unpark_tasks(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("unpark_tasks", list(columns)):
        key = (row["run_ids"], row["tasks"])
        if t.get("parked_task", *key) is not None:
            t.put("parked_task", key, None)
    return []


@model
def resolve_parked_task(
    t: Transaction, *, run_id: UUID, task: int, namespace: str, actor: str
) -> list[tuple[Any, ...]]:
    key = (run_id.bytes, task)
    t.lock("parked_task", key)
    row = t.get("parked_task", *key)
    if row is None or row["resolved_by"] is not None:
        return []
    t.put("parked_task", key, {**row, "resolved_by": actor})
    return [(row["token"],)]


@model
def find_resolver(t: Transaction, *, run_id: UUID, task: int, namespace: str) -> list[tuple[Any, ...]]:
    row = t.get("parked_task", run_id.bytes, task)
    return [] if row is None else [(row["resolved_by"],)]


@model
def restore_parked_tasks(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    def lost(task: Row) -> Row | None:
        is_parked = task["status"] == "waiting" and task["error"] is not None
        return {"token": task["token"], "resolved_by": None} if is_parked else None

    return [(UUID(bytes=key[0]), key[1]) for key, _ in restore(t, "parked_task", most, lost)]
