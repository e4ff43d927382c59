"""What the statements of tasks and attempts do, on the model."""

from typing import Any, Final

from tests.simulation.postgres import Row, Transaction
from tests.simulation.statements.registry import given, model, must, refuse, text, unique

_NEW_TASK: Final[Row] = {
    "status": "pending", "attempt": 0, "token": 0, "retries_from": 0, "session_id": None, "due_at": None, "input": None,
    "output": None, "error": None, "lookups": 0, "vanished": 0, "withheld": None, "items": None, "pool": None,
    "rounds": 0, "undo": None,
}  # fmt: skip


def _put_task(t: Transaction, key: tuple[Any, ...], task: Row) -> None:
    refuse(task["attempt"] <= task["token"], "task_attempts_within_tokens")
    refuse(task["status"] not in ("queued", "running", "waiting") or task["token"] > 0, "task_open_has_a_token")
    refuse(task["session_id"] is None or task["status"] == "running", "task_holder_only_while_running")
    refuse(
        task["due_at"] is None or task["status"] in ("pending", "queued", "running", "waiting"),
        "task_timer_only_while_it_counts",
    )
    refuse(task["withheld"] is None or (task["status"], task["due_at"]) == ("pending", None), "task_withheld")
    refuse(task["pool"] is None or task["status"] in ("waiting", "queued", "running"), "task_pool_only_while_open")
    t.put("task", key, {**task, "changed_at": t.now})


@model
def hand_out_tasks(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("hand_out_tasks", list(columns)):
        key = (row["run_ids"], row["tasks"])
        t.lock("task", key)
        task = t.get("task", *key)
        if task is None or task["token"] == 0:
            _put_task(t, key, {**(task or _NEW_TASK), "status": "queued", "token": 1, "error": None, "withheld": None})
    return []


@model
def complete_tasks(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("complete_tasks", list(columns)):
        key = (row["run_ids"], row["tasks"])
        t.lock("task", key)
        task = t.get("task", *key)
        ok = task is not None and task["token"] == row["tokens"] and task["status"] in ("queued", "running")
        must(ok, "a task was changed by another writer")
        done = {
            "status": "completed",
            "attempt": row["attempts"],
            "session_id": None,
            "due_at": None,
            "lookups": 0,
            "pool": None,
        }
        _put_task(t, key, {**(task or {}), **done})
    return []


_TASK_COLUMNS: Final = {
    "statuses": "status", "attempts": "attempt", "tokens": "token", "session_ids": "session_id", "inputs": "input",
    "outputs": "output", "errors": "error", "pools": "pool",
}  # fmt: skip


@model
def save_tasks(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("save_tasks", list(columns)):
        key = (row.pop("run_ids"), row.pop("tasks"))
        t.lock("task", key)
        task = t.get("task", *key)
        must(task is None or task["token"] <= row["tokens"], "a token would fall")
        new = {
            _TASK_COLUMNS.get(name, name): text(value) if name != "session_ids" else value
            for name, value in row.items()
        }
        new["status"] = str(new["status"])
        _put_task(t, key, {**(task or _NEW_TASK), **new})
    return []


@model
def count_items(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("count_items", list(columns)):
        key = (row["run_ids"], row["tasks"])
        t.lock("task", key)
        task = t.get("task", *key) or {}
        refuse(row["completed"] + row["failed"] <= row["begun"] <= task["items"], "task_items_add_up")
        t.put("task", key, {**task, "items_counted": (row["begun"], row["completed"], row["failed"])})
    return []


@model
def count_rounds(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("count_rounds", list(columns)):
        key = (row["run_ids"], row["tasks"])
        t.put("task", key, {**(t.get("task", *key) or {}), "rounds": row["rounds"]})
    return []


@model
def keep_undo(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("keep_undo", list(columns)):
        key = (row["run_ids"], row["tasks"])
        t.put("task", key, {**(t.get("task", *key) or {}), "undo": text(row["inputs"])})
    return []


@model
def note_rounds(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("note_rounds", list(columns)):
        key = (row["run_ids"], row["tasks"], row["tokens"])
        t.put("attempt", key, {**(t.get("attempt", *key) or {}), "round": row["rounds"]})
    return []


@model
def insert_attempts(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("insert_attempts", list(columns)):
        key = (row["run_ids"], row["tasks"], row["tokens"])
        unique(t, "attempt", key)
        refuse(0 < row["attempts"] <= row["tokens"], "attempt_counts")
        new = {
            "attempt": row["attempts"], "outcome": row["outcomes"], "row_version": row["row_versions"],
            "worker": row["workers"], "ended_at": t.now, "output": text(row["outputs"]), "error": text(row["errors"]),
        }  # fmt: skip
        t.put("attempt", key, new)
    return []
