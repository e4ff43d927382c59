"""What the statements of runs, their starts and their history do, on the model."""

from typing import Any, Final
from uuid import UUID

from tests.control_bits import PAUSES
from tests.simulation.postgres import Transaction, instant
from tests.simulation.statements.registry import PAUSED, RUN_ENDS, given, model, must, refuse, text, unique


@model
def insert_runs(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("insert_runs", list(columns)):
        key = (row["run_ids"],)
        unique(t, "run", key)
        status = row["statuses"]
        new = {
            "namespace": row["namespaces"], "version_id": row["version_ids"], "status": str(status),
            "row_version": row["row_versions"], "input": text(row["inputs"]), "traceparent": row["traceparents"],
            "attention": False, "control": row["controls"], "priority": 0, "created_at": t.now,
            "finished_at": t.now if status in RUN_ENDS else None,
            "trigger_source": row["sources"],
        }  # fmt: skip
        t.put("run", key, new)
    return []


@model
def label_runs(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("label_runs", list(columns)):
        key = (row["run_ids"], row["names"])
        unique(t, "run_label", key)
        t.put("run_label", key, {"namespace": row["namespaces"], "value": row["values"]})
    return []


@model
def save_runs(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("save_runs", list(columns)):
        key = (row["run_ids"],)
        t.lock("run", key)
        run = t.get("run", *key)
        must(run is not None and run["row_version"] == row["old"], "a run was changed by another writer")
        status = str(row["statuses"])
        changed = {
            **(run or {}), "row_version": row["new"], "status": status, "attention": status == "needs_attention",
            "control": row["controls"], "finished_at": t.now if status in RUN_ENDS else None,
        }  # fmt: skip
        refuse(
            (row["controls"] & PAUSES > 0) == (status in PAUSED) or status == "needs_attention",
            "run_paused_is_its_status",
        )
        t.put("run", key, changed)
    return []


@model
def clear_outputs(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("clear_outputs", list(columns)):
        t.put("run", (row["run_ids"],), {**(t.get("run", row["run_ids"]) or {}), "output": None})
    return []


@model
def move_runs(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("move_runs", list(columns)):
        key = (row["run_ids"],)
        t.put("run", key, {**(t.get("run", *key) or {}), "version_id": row["version_ids"]})
    return []


@model
def save_outputs(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("save_outputs", list(columns)):
        key = (row["run_ids"],)
        run = t.get("run", *key) or {}
        refuse(run["status"] == "completed", "run_output_only_if_completed")
        t.put("run", key, {**run, "output": text(row["outputs"]), "output_error": text(row["errors"])})
    return []


@model
def insert_history(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("insert_history", list(columns)):
        key = (row["run_ids"], row["row_versions"])
        unique(t, "history", key)
        names = {"kinds": "kind", "kind": "kind", "tasks": "task", "task": "task", "tokens": "token", "token": "token"}
        new = {names[name]: value for name, value in row.items() if name in names}
        t.put("history", key, {**new, "at": t.now})
    return []


LOADED_RUN: Final = ("version_id", "row_version", "attention", "control", "namespace")


LOADED_TASK: Final = (
    "status", "attempt", "token", "retries_from", "due_at", "input", "output", "error", "session_id", "lookups",
    "vanished", "withheld", "items", "pool", "deadline_at", "rounds", "undo",
)  # fmt: skip
"""Columns of `load_runs` behind the run's id, and behind a task's index."""


@model
def load_runs(t: Transaction, ids: list[UUID]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    tasks: dict[bytes, list[tuple[Any, ...]]] = {run_id.bytes: [] for run_id in ids}
    for (run_id, index), task in t.rows("task"):
        is_undo = index >= 200_000_000
        owner = t.get("task", run_id, index // 10_000 - 1) if index >= 10_000 and not is_undo else None
        run = t.get("run", run_id)
        if owner is not None and owner["status"] == "completed" and (run is None or run["finished_at"] is None):
            continue
        if run_id in tasks and (task["token"] > 0 or task["status"] != "pending" or task["withheld"] or is_undo):
            tasks[run_id].append((index, *_loaded_task(t, run_id, index, task)))
    for run_id in ids:
        run = t.get("run", run_id.bytes)
        if run is not None:
            head = (run_id, *(run[name] for name in LOADED_RUN))
            rest = (run["traceparent"], instant(run.get("deadline_at")))
            rows = tasks[run_id.bytes] or [(None,) * (1 + len(LOADED_TASK))]
            parent = _parent_of(t, run_id.bytes) if run["trigger_source"] == "child" else None
            found += [
                (*head, None if n else run["input"], *rest, parent, run.get("paused_tasks"), *row)
                for n, row in enumerate(rows)
            ]
    return found


def _parent_of(t: Transaction, run_id: bytes) -> UUID | None:
    """Of a child, the run that waits for it."""
    found = (key[0] for key, row in t.rows("child_run") if row["run_id"] == run_id and row["is_awaited"])
    return next((UUID(bytes=parent) for parent in found), None)


def _loaded_task(t: Transaction, run_id: bytes, index: int, task: Any) -> tuple[Any, ...]:
    holder = task["session_id"]
    shown = dict(task, due_at=instant(task["due_at"]), deadline_at=instant(task.get("deadline_at")))
    shown["session_id"] = None if holder is None else UUID(bytes=holder)
    if task["status"] == "completed" and task["output"] is None:
        attempt = t.get("attempt", run_id, index, task["token"])
        shown["output"] = None if attempt is None else attempt["output"]
    return tuple(shown[name] for name in LOADED_TASK)


@model
def claim_trigger_keys(
    t: Transaction, namespace: str, keys: list[str], run_ids: list[UUID], digests: list[bytes]
) -> list[tuple[Any, ...]]:
    new = []
    for key, run_id, digest in sorted(zip(keys, run_ids, digests, strict=True)):
        t.lock("trigger_key", (namespace, key))
        if t.get("trigger_key", namespace, key) is None:
            t.put("trigger_key", (namespace, key), {"run_id": run_id, "digest": digest})
            new.append((key,))
    return new


@model
def find_trigger_keys(t: Transaction, namespace: str, keys: list[str]) -> list[tuple[Any, ...]]:
    rows = [(key, t.get("trigger_key", namespace, key)) for key in keys]
    return [(key, row["run_id"], row["digest"]) for key, row in rows if row is not None]


@model
def load_versions(t: Transaction, ids: list[int]) -> list[tuple[Any, ...]]:
    rows = [(version_id, t.get("workflow_version", version_id)) for version_id in ids]
    return [(id_, row["name"], row["version"], row["definition"]) for id_, row in rows if row is not None]


@model
def read_clock(t: Transaction) -> list[tuple[Any, ...]]:
    return [(t.database.clock(),)]


@model
def read_position(t: Transaction, *, run_id: UUID, namespace: str) -> list[tuple[Any, ...]]:
    run = t.get("run", run_id.bytes)
    return [] if run is None else [(run["status"], run["row_version"], run["version_id"], "")]
