"""What each named statement does, on the model: `state/sql/*.sql` and the relay's own, told again in Python.

A statement whose text changes keeps its name, so a change of meaning has to be made here too. Columns of set-based
statements are taken by their names in the SQL file. A statement that is not here raises, with its text.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

import psycopg

import connectors.ownership as relay_ownership
import connectors.slot as relay_slot
from state import outbox
from state.outbox import Record, bundle
from state.sql import FOLDER, load
from tests.simulation.postgres import Must, Row, Slot, Transaction, instant, microseconds
from tests.simulation.scheduler import sim

Model = Callable[..., list[tuple[Any, ...]]]
MODELS: Final[dict[str, Model]] = {}
"""Name -> model."""
TEXTS: Final[dict[str, str]] = {}
"""SQL text -> name."""
OPEN_RUN: Final = ("running", "waiting", "pausing", "paused", "compensating")
RUN_ENDS: Final = ("completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed")
PAUSED: Final = ("pausing", "paused")


def model(function: Model) -> Model:
    MODELS[function.__name__.rstrip("_")] = function
    return function


def must(ok: bool, why: str) -> None:
    if not ok:
        raise Must(why)


def refuse(ok: bool, constraint: str) -> None:
    if not ok:
        raise psycopg.errors.CheckViolation(f"violates {constraint}")


def unique(transaction: Transaction, table: str, key: tuple[Any, ...]) -> None:
    if transaction.get(table, *key) is not None:
        raise psycopg.errors.UniqueViolation(f"{table} {key} exists")


def given(name: str, columns: list[list[Any]]) -> Iterator[Row]:
    """The rows of a set-based statement, by the names of its columns."""
    names = [column for column, _ in load("batch")[name].columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def text(raw: Any) -> Any:
    return raw.decode() if isinstance(raw, bytes) else raw


# == batch.sql =========================================================================================================
@model
def fence(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("fence", list(columns)):
        key = (row["topics"], row["partitions"])
        t.lock("partition_owner", key)
        owner = t.get("partition_owner", *key)
        stored = -1 if owner is None or owner["next_offset"] is None else owner["next_offset"]
        ok = owner is not None and owner["epoch"] == row["epochs"] and stored == row["old"]
        must(ok, "not the owner of a partition, or its offset has moved")
        t.put("partition_owner", key, {**(owner or {}), "next_offset": row["new"]})
    return []


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
            (row["controls"] & 3 > 0) == (status in PAUSED) or status == "needs_attention", "run_paused_is_its_status"
        )
        t.put("run", key, changed)
    return []


@model
def save_outputs(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("save_outputs", list(columns)):
        key = (row["run_ids"],)
        run = t.get("run", *key) or {}
        refuse(run["status"] == "completed", "run_output_only_if_completed")
        t.put("run", key, {**run, "output": text(row["outputs"]), "output_error": text(row["errors"])})
    return []


_NEW_TASK: Final[Row] = {
    "status": "pending", "attempt": 0, "token": 0, "retries_from": 0, "session_id": None, "due_at": None, "input": None,
    "output": None, "error": None, "lookups": 0, "vanished": 0, "withheld": None, "items": None, "pool": None,
    "rounds": 0,
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


@model
def insert_history(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("insert_history", list(columns)):
        key = (row["run_ids"], row["row_versions"])
        unique(t, "history", key)
        names = {"kinds": "kind", "kind": "kind", "tasks": "task", "task": "task", "tokens": "token", "token": "token"}
        new = {names[name]: value for name, value in row.items() if name in names}
        t.put("history", key, {**new, "at": t.now})
    return []


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
def leave_queues(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("leave_queues", list(columns)):
        key = (row["run_ids"], row["tasks"])
        if t.get("pool_waiter", *key) is not None:
            t.put("pool_waiter", key, None)
    return []


@model
def free_slots(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("free_slots", list(columns)):
        key = (row["run_ids"], row["tasks"])
        if t.get("pool_slot", *key) is not None:
            t.put("pool_slot", key, None)
    return []


@model
def set_priorities(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("set_priorities", list(columns)):
        run_id, priority = row["run_ids"], row["priorities"]
        t.put("run", (run_id,), {**(t.get("run", run_id) or {}), "priority": priority})
        for key, waiter in list(t.rows("pool_waiter")):
            if key[0] == run_id:
                t.put("pool_waiter", key, {**waiter, "ranked_at": waiter["began_at"] - priority * 60_000_000})
    return []


@model
def await_slots(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("await_slots", list(columns)):
        key = (row["run_ids"], row["tasks"])
        unique(t, "pool_waiter", key)
        run = t.get("run", row["run_ids"]) or {}
        new = {"token": row["tokens"], "pool": row["pools"], "began_at": t.now, "granted_at": None, "said_at": None}
        t.put("pool_waiter", key, {**new, "ranked_at": t.now - run["priority"] * 60_000_000})
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
def ask_approvals(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("ask_approvals", list(columns)):
        unique(t, "approval", (row["approval_ids"],))
        expires = row["expires_seconds"]
        new = {
            "namespace": row["namespaces"], "run_id": row["run_ids"], "task": row["tasks"], "token": row["tokens"],
            "on_expiry": row["on_expiry"], "status": "waiting", "decided_by": None, "approvers": text(row["approvers"]),
            "needed": row["needed"], "no_self_approval": row["no_self_approvals"], "form": text(row["forms"]),
            "digest": row["digests"], "expires_seconds": expires,
            "expires_at": None if expires is None else t.now + expires * 1_000_000,
        }  # fmt: skip
        t.put("approval", (row["approval_ids"],), new)
    return []


@model
def set_approval_timers(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("set_approval_timers", list(columns)):
        key = (row["approval_ids"], row["kinds"], row["positions"])
        unique(t, "approval_timer", key)
        after = row["after_seconds"]
        due_at = None if after is None else t.now + after * 1_000_000
        t.put("approval_timer", key, {"targets": text(row["targets"]), "due_at": due_at, "fired_at": None})
    return []


@model
def close_approvals(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    wanted = {(row["run_ids"], row["tasks"], row["tokens"]) for row in given("close_approvals", list(columns))}
    for key, row in t.rows("approval"):
        if (row["run_id"], row["task"], row["token"]) in wanted and row["status"] == "waiting":
            t.put("approval", key, {**row, "status": "cancelled"})
    return []


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
def stop_listening(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("stop_listening", list(columns)):
        key = (row["run_ids"], row["tasks"])
        if t.get("signal_wait", *key) is not None:
            t.put("signal_wait", key, None)
    return []


@model
def listen(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("listen", list(columns)):
        key = (row["run_ids"], row["tasks"])
        unique(t, "signal_wait", key)
        new = {"token": row["tokens"], "name": row["names"], "key": row["keys"], "delivery": row["deliveries"]}
        t.put("signal_wait", key, {**new, "began_at": t.now})
    return []


@model
def settle_signals(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("settle_signals", list(columns)):
        key = (row["signal_ids"],)
        t.lock("signal", key)
        signal = t.get("signal", *key)
        must(signal is not None and signal["status"] in ("sent", "kept"), "a signal was taken already")
        settled = {"status": row["statuses"], "task": row["tasks"], "token": row["tokens"], "reason": row["reasons"]}
        t.put("signal", key, {**(signal or {}), **settled})
        posted = t.get("posted_signal", signal["posted_id"]) if signal and signal.get("posted_id") else None
        if posted is not None and signal and signal["is_exclusive"] and settled["status"] == "taken":
            t.put("posted_signal", (signal["posted_id"],), {**posted, "taken_as": row["signal_ids"]})
    return []


@model
def bury_tasks(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("bury_tasks", list(columns)):
        key = ("task", row["run_ids"], row["tasks"], row["tokens"])
        unique(t, "dead_letter", key)
        t.put("dead_letter", key, {"reason": row["reasons"], "error": text(row["errors"])})
    return []


@model
def bury_records(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("bury_records", list(columns)):
        key = ("record", row["topics"], row["partitions"], row["offsets"], row["dead_letter_ids"])
        t.put("dead_letter", key, {"reason": row["reasons"], "error": text(row["errors"])})
    return []


@model
def apply_inbox(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("apply_inbox", list(columns)):
        inbox = t.get("inbox", row["inbox_ids"])
        if inbox is not None and inbox["applied_at"] is None:
            t.put("inbox", (row["inbox_ids"],), {**inbox, "applied_at": t.now})
    return []


@model
def publish_messages(t: Transaction, contents: Any) -> list[tuple[Any, ...]]:
    for content in contents:
        t.emit(content)
    return []


@model
def emit_message(t: Transaction, content: bytes) -> list[tuple[Any, ...]]:
    t.emit(content)
    return []


@model
def publish_rows(
    t: Transaction, ids: Any, topics: Any, keys: Any, types: Any, payloads: Any, partitions: Any, traces: Any
) -> list[tuple[Any, ...]]:
    """The outbox table, read by the same relay: packed as a bundle, which the relay tells from it no more."""
    rows = zip(topics, keys, payloads, partitions, traces, strict=True)
    records = [Record(topic, key.encode(), value.encode(), p, trace) for topic, key, value, p, trace in rows]
    t.emit(bundle(records))
    return []


@model
def delete_rows(t: Transaction, ids: Any) -> list[tuple[Any, ...]]:
    return []


# == run.sql ===========================================================================================================
LOADED_RUN: Final = ("version_id", "row_version", "attention", "control", "namespace")
LOADED_TASK: Final = (
    "status", "attempt", "token", "retries_from", "due_at", "input", "output", "error", "session_id", "lookups",
    "vanished", "withheld", "items", "pool", "deadline_at", "rounds",
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
            found += [(*head, None if n else run["input"], *rest, parent, *row) for n, row in enumerate(rows)]
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
def load_inbox(t: Transaction, ids: list[UUID]) -> list[tuple[Any, ...]]:
    rows = [(inbox_id, t.get("inbox", inbox_id.bytes)) for inbox_id in ids]
    return [
        (id_, UUID(bytes=row["run_id"]), row["kind"], row["body"], row["actor"], row["applied_at"] is not None)
        for id_, row in rows
        if row is not None
    ]


def _signals(t: Transaction, wanted: Callable[[Row], bool]) -> list[tuple[UUID, Row]]:
    found = [(UUID(bytes=key[0]), row) for key, row in t.rows("signal") if wanted(row)]
    return sorted(found, key=lambda one: (one[1]["sent_at"], one[0]))


def _loaded_signal(signal_id: UUID, row: Row) -> tuple[Any, ...]:
    content = (row["name"], row["key"], row["data"], row["actor"], row["sent_at"])
    return (UUID(bytes=row["run_id"]), signal_id, *content)


@model
def insert_posted(t: Transaction, *, posted_id: UUID, sender_id: str | None, keep_seconds: float, **row: Any) -> Any:
    if sender_id is not None:
        t.lock("posted_signal", (row["namespace"], sender_id))  # stands for the unique index
        if find_posted_of_sender(t, namespace=row["namespace"], sender_id=sender_id):
            return []
    new = {"sender_id": sender_id, "sent_at": t.now, "expires_at": t.now + round(keep_seconds * 1e6), "taken_as": None}
    t.put("posted_signal", (posted_id.bytes,), {**row, **new})
    return [(posted_id,)]


@model
def find_posted_of_sender(t: Transaction, *, namespace: str, sender_id: str) -> list[tuple[Any, ...]]:
    found = [(key, row) for key, row in t.rows("posted_signal") if row["sender_id"] == sender_id]
    return [(UUID(bytes=key[0]), row["name"], row["key"], row["data"]) for key, row in found]


@model
def get_posted(t: Transaction, *, namespace: str, posted_id: UUID) -> list[tuple[Any, ...]]:
    row = t.get("posted_signal", posted_id.bytes)
    if row is None:
        return []
    content = (row["name"], row["key"], row["data"], row["sender_id"], row["actor"], instant(row["sent_at"]))
    return [(posted_id, *content, instant(row["expires_at"]), "taken" if row["taken_as"] else "open")]


@model
def next_keys(t: Transaction, namespace: str, name: str, key: str, most: int) -> list[tuple[Any, ...]]:
    keys = {(r["namespace"], r["name"], r["key"]) for _, r in t.rows("posted_signal") if r["expires_at"] > t.now}
    return sorted(found for found in keys if found > (namespace, name, key))[:most]


@model
def offer_posted(
    t: Transaction, namespaces: list[str], names: list[str], keys: list[str], most: int
) -> list[tuple[Any, ...]]:
    """The two unique indexes, told as a lock on the posted signal; whoever waited for it looks again."""
    offers: list[tuple[bytes, tuple[Any, ...], bool]] = []
    signals = [row for _, row in t.rows("signal") if row.get("posted_id")]
    for namespace, name, key in sorted(set(zip(namespaces, names, keys, strict=True))):
        posted = sorted(
            (row["sent_at"], id_, row) for (id_,), row in t.rows("posted_signal")
            if (row["namespace"], row["name"], row["key"]) == (namespace, name, key) and row["expires_at"] > t.now
        )  # fmt: skip
        waits = sorted(
            (row["began_at"], place, row) for place, row in t.rows("signal_wait")
            if (row["name"], row["key"]) == (name, key) and not any(
                (s["run_id"], s["offered_task"], s["offered_token"], s["status"]) == (*place, row["token"], "sent")
                for s in signals)
        )  # fmt: skip
        free = [
            id_ for _, id_, row in posted if row["taken_as"] is None and not any(
                s["posted_id"] == id_ and s["is_exclusive"] and s["status"] in ("sent", "taken") for s in signals)
        ]  # fmt: skip
        firsts = [(*place, row["token"]) for _, place, row in waits if row["delivery"] == "first"]
        offers += [(id_, wait, True) for id_, wait in zip(free, firsts, strict=False)]
        for wait in ((*place, row["token"]) for _, place, row in waits if row["delivery"] == "all"):
            heard = {s["posted_id"] for s in signals if (s["run_id"], s["offered_task"], s["offered_token"]) == wait}
            offers += [(id_, wait, False) for _, id_, _ in posted if id_ not in heard][:1]
    return [_offer(t, *offer) for offer in sorted(offers)[:most]]


def _offer(t: Transaction, posted_id: bytes, wait: tuple[Any, ...], is_exclusive: bool) -> tuple[Any, ...]:
    t.lock("posted_signal", (posted_id,))
    run_id, task, token = wait
    posted, signal_id = t.get("posted_signal", posted_id), UUID(int=sim().random.getrandbits(128), version=4)
    content = {name: (posted or {})[name] for name in ("name", "key", "data", "actor", "sent_at")}
    offered = {"posted_id": posted_id, "is_exclusive": is_exclusive, "offered_task": task, "offered_token": token}
    new = {"sender_id": None, "status": "sent", "task": None, "token": None, "reason": None}
    t.put("signal", (signal_id.bytes,), {**content, **offered, **new, "run_id": run_id})
    _new_request(t, signal_id, UUID(bytes=run_id), "signalled", "{}", content["actor"])
    return signal_id, UUID(bytes=run_id)


@model
def load_unapplied_signals(t: Transaction, ids: list[UUID]) -> list[tuple[Any, ...]]:
    named = [t.get("signal", signal_id.bytes) for signal_id in ids]
    runs = {row["run_id"] for row in named if row is not None}
    waiting = {UUID(bytes=key[0]) for key, row in t.rows("inbox") if row["applied_at"] is None}
    found = _signals(t, lambda row: row["run_id"] in runs)
    return [
        (*_loaded_signal(id_, row), row.get("offered_task"), row.get("offered_token") or 0)
        for id_, row in found
        if id_ in waiting
    ]


@model
def load_kept_signals(t: Transaction, ids: list[UUID]) -> list[tuple[Any, ...]]:
    runs = {run_id.bytes for run_id in ids}
    found = _signals(t, lambda row: row["run_id"] in runs and row["status"] == "kept")
    return [_loaded_signal(*one) for one in found]


@model
def find_signal_target(t: Transaction, *, run_id: UUID, namespace: str) -> list[tuple[Any, ...]]:
    run = t.get("run", run_id.bytes)
    if run is None:
        return []
    kept = _signals(t, lambda row: row["run_id"] == run_id.bytes and row["status"] in ("sent", "kept"))
    return [(run["status"], run["version_id"], len(kept), sum(len(row["data"]) for _, row in kept))]


@model
def insert_signal(t: Transaction, *, signal_id: UUID, run_id: UUID, sender_id: str | None, **row: Any) -> list[Any]:
    if sender_id is not None:
        t.lock("signal", (run_id.bytes, sender_id))  # stands for the unique index
        if find_signal_of_sender(t, run_id=run_id, sender_id=sender_id):
            return []
    content = {name: row[name] for name in ("name", "key", "data", "actor")}
    new = {**content, "run_id": run_id.bytes, "sender_id": sender_id, "sent_at": t.now, "status": "sent"}
    t.put("signal", (signal_id.bytes,), {**new, "task": None, "token": None, "reason": None})
    return [(signal_id,)]


@model
def find_signal_of_sender(t: Transaction, *, run_id: UUID, sender_id: str) -> list[tuple[Any, ...]]:
    found = _signals(t, lambda row: row["run_id"] == run_id.bytes and row["sender_id"] == sender_id)
    return [(id_, row["name"], row["key"], row["data"]) for id_, row in found]


@model
def get_signal(t: Transaction, *, signal_id: UUID) -> list[tuple[Any, ...]]:
    row = t.get("signal", signal_id.bytes)
    if row is None:
        return []
    head = (signal_id, UUID(bytes=row["run_id"]), row["name"], row["key"], row["data"], row["sender_id"], row["actor"])
    return [(*head, instant(row["sent_at"]), row["status"], row["task"], row["token"], None, None, row["reason"])]


def _new_request(t: Transaction, inbox_id: UUID, run_id: UUID, kind: str, body: str, actor: str) -> None:
    unique(t, "inbox", (inbox_id.bytes,))
    new = {"run_id": run_id.bytes, "kind": kind, "body": body, "actor": actor, "applied_at": None}
    t.put("inbox", (inbox_id.bytes,), {**new, "said_at": t.now, "created_at": t.now})


@model
def insert_inbox(
    t: Transaction, inbox_id: UUID, run_id: UUID, kind: str, body: str, actor: str
) -> list[tuple[Any, ...]]:
    _new_request(t, inbox_id, run_id, kind, body, actor)
    return []


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
def read_start(t: Transaction, namespace: str, workflow: str) -> list[tuple[Any, ...]]:
    return [(t.database.clock(), None, None, [])]


@model
def read_position(t: Transaction, *, run_id: UUID, namespace: str) -> list[tuple[Any, ...]]:
    run = t.get("run", run_id.bytes)
    return [] if run is None else [(run["status"], run["row_version"], run["version_id"], "")]


@model
def find_run(t: Transaction, *, run_id: UUID, namespace: str) -> list[tuple[Any, ...]]:
    run = t.get("run", run_id.bytes)
    return [] if run is None else [(run["status"], run["control"], run["row_version"])]


def _steps_left(t: Transaction, approval_id: bytes) -> list[tuple[Any, Row]]:
    return sorted(
        (key, row)
        for key, row in t.rows("approval_timer")
        if key[:2] == (approval_id, "escalate") and row["fired_at"] is None
    )


def _votes(t: Transaction, approval_id: bytes) -> str:
    return json.dumps([{"by": key[1], "decision": row["decision"]} for key, row in t.rows("approval_vote")
                       if key[0] == approval_id])  # fmt: skip


@model
def lock_approval(t: Transaction, *, approval_id: UUID, namespace: str) -> list[tuple[Any, ...]]:
    key = (approval_id.bytes,)
    t.lock("approval", key)
    row = t.get("approval", *key)
    if row is None:
        return []
    is_over = row["expires_at"] is not None and row["expires_at"] <= t.database.clock()
    if row["on_expiry"] == "escalate" and _steps_left(t, approval_id.bytes):
        is_over = False
    place = (UUID(bytes=row["run_id"]), row["task"], row["token"])
    rules = (row["approvers"], row["needed"], row["no_self_approval"], row["form"], row["digest"])
    return [(*place, row["status"], *rules, is_over, row["decided_by"])]


@model
def read_electorate(t: Transaction, *, run_id: UUID, namespace: str, actor: str) -> list[tuple[Any, ...]]:
    return [(None, [])]  # nobody starts a run by name here, and nobody delegates


@model
def insert_vote(
    t: Transaction, *, approval_id: UUID, actor: str, voter: str, role: str | None, in_place_of: str | None,
    decision: str, comment: str | None, form: str | None, digest: str, source: str, address: str,
) -> list[tuple[Any, ...]]:  # fmt: skip
    key = (approval_id.bytes, actor)
    if t.get("approval_vote", *key) is not None:
        return []
    t.put("approval_vote", key, {"decision": decision})
    return [(instant(t.now),)]


@model
def count_votes(t: Transaction, *, approval_id: UUID) -> list[tuple[Any, ...]]:
    votes = _votes(t, approval_id.bytes)
    return [(sum(vote["decision"] == "approve" for vote in json.loads(votes)), votes)]


@model
def settle_approval(
    t: Transaction, *, approval_id: UUID, status: str, actor: str, comment: str | None, form: str | None
) -> list[tuple[Any, ...]]:
    key = (approval_id.bytes,)
    row = t.get("approval", *key)
    if row is None or row["status"] != "waiting":
        return []
    t.put("approval", key, {**row, "status": status, "decided_by": actor})
    return [(UUID(bytes=row["run_id"]),)]


@model
def get_approval(t: Transaction, *, namespace: str, approval_id: UUID) -> list[tuple[Any, ...]]:
    row = t.get("approval", approval_id.bytes)
    if row is None:
        return []
    expires_at = instant(row["expires_at"])
    asked = (approval_id, UUID(bytes=row["run_id"]), 0, "", row["task"], row["token"], "", "[]", row["status"])
    shown = (None, row["form"], row["digest"], row["needed"], row["no_self_approval"], row["on_expiry"], None)
    return [(*asked, instant(t.now), expires_at, None, row["decided_by"], None, *shown, _votes(t, approval_id.bytes))]


# == sweep.sql =========================================================================================================
def _claimable(t: Transaction, table: str, wanted: Callable[[Row], bool], most: int) -> list[tuple[Any, Row]]:
    return [(key, row) for key, row in t.rows(table) if wanted(row) and t.is_free(table, key)][:most]


@model
def claim_due_timers(t: Transaction, most: int, seconds: float) -> list[tuple[Any, ...]]:
    def is_due(row: Row) -> bool:
        said = row["said_at"]
        return bool(row["due_at"] <= t.now and (said is None or said < t.now - seconds * 1_000_000))

    found = []
    for key, row in _claimable(t, "timer", is_due, most):
        t.put("timer", key, {**row, "said_at": t.now})
        found.append((UUID(bytes=key[0]), key[1], row["token"], row["kind"]))
    return found


@model
def next_timer(t: Transaction) -> list[tuple[Any, ...]]:
    due = [row["due_at"] for _, row in t.rows("timer") if row["said_at"] is None and row["due_at"] < t.now + 2_000_000]
    return [((min(due) - t.database.clock()) / 1e6,)] if due else []


def _restore(
    t: Transaction, table: str, most: int, lost: Callable[[Row], Row | None], among: set[Any] | None = None
) -> Iterator[tuple[Any, Row]]:
    """Make the rows that settled tasks of open runs count on and that are gone; `lost` says what a task counts on."""
    sql = load("sweep")["restore_" + {"timer": "timers", "parked_task": "parked_tasks"}.get(table, f"{table}s")].sql
    locks = re.search(r"FOR (NO KEY UPDATE|UPDATE|SHARE) OF t\b", sql) is not None
    restored = 0
    for key, task in t.rows("task"):
        run, row = t.get("run", key[0]), lost(task)
        is_open = run is not None and run["status"] in OPEN_RUN and task["changed_at"] < t.now - 1_000_000
        if row is None or not is_open or t.get(table, *key) is not None or restored == most:
            continue
        if among is not None and key not in among:
            continue
        if locks and not t.is_free("task", key):
            continue
        if locks:
            t.lock("task", key)
        t.put(table, key, row)
        restored += 1
        yield key, task


@model
def restore_timers(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    def lost(task: Row) -> Row | None:
        kind = {"pending": "backoff", "queued": "start", "waiting": "wait"}.get(task["status"], "timeout")
        row = {"token": task["token"], "kind": kind, "due_at": task["due_at"], "said_at": None}
        return None if task["due_at"] is None else row

    restored = _restore(t, "timer", most, lost)
    return [(UUID(bytes=key[0]), key[1], instant(task["due_at"])) for key, task in restored]


@model
def restore_deadlines(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    return _restore_deadlines(t, "task", most)


@model
def restore_run_deadlines(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    return _restore_deadlines(t, "run", most)


def _restore_deadlines(t: Transaction, table: str, most: int) -> list[tuple[Any, ...]]:
    restored = []
    for key, row in t.rows(table):
        run, index = t.get("run", key[0]), key[1] if table == "task" else -1
        is_open = run is not None and run["status"] in OPEN_RUN and row.get("deadline_at") is not None
        if is_open and t.get("timer", key[0], index, True) is None and t.is_free(table, key) and len(restored) < most:
            t.lock(table, key)
            _put_deadline(t, key[0], index, row["deadline_at"])
            restored.append((UUID(bytes=key[0]), index, instant(row["deadline_at"])))
    return restored


@model
def restore_parked_tasks(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    def lost(task: Row) -> Row | None:
        is_parked = task["status"] == "waiting" and task["error"] is not None
        return {"token": task["token"], "resolved_by": None} if is_parked else None

    return [(UUID(bytes=key[0]), key[1]) for key, _ in _restore(t, "parked_task", most, lost)]


@model
def restore_pool_waiters(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    def lost(task: Row) -> Row | None:
        if task["status"] != "waiting" or task["pool"] is None:
            return None
        row = {"token": task["token"], "pool": task["pool"], "began_at": task["changed_at"], "granted_at": None}
        return {**row, "ranked_at": task["changed_at"], "said_at": None}

    restored = list(_restore(t, "pool_waiter", most, lost))
    for key, _ in restored:
        if (slot := t.get("pool_slot", *key)) is not None:
            told = {"granted_at": slot["granted_at"], "said_at": slot["granted_at"]}
            t.put("pool_waiter", key, {**(t.get("pool_waiter", *key) or {}), **told})
    return [(UUID(bytes=key[0]), key[1]) for key, _ in restored]


@model
def restore_pool_slots(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    granted = {key: row["token"] for key, row in t.rows("pool_waiter") if row["granted_at"] is not None}

    def lost(task: Row) -> Row | None:
        if task["pool"] is None:
            return None
        return {"token": task["token"], "pool": task["pool"], "granted_at": t.now}

    keys = {key for key, task in t.rows("task") if task["status"] != "waiting" or granted.get(key) == task["token"]}
    restored = [key for key, _ in _restore(t, "pool_slot", most, lost, keys)]
    return [(UUID(bytes=key[0]), key[1]) for key in restored]


def _watermark(t: Transaction) -> int | None:
    row = t.get("watermark", "sessions")
    return None if row is None else row["at"]


@model
def expire_sessions(t: Transaction) -> list[tuple[Any, ...]]:
    mark, found = _watermark(t), []
    if mark is None or mark > t.now:
        return []
    for key, row in t.rows("worker_session"):
        lease = row["expires_at"] - row["renewed_at"]
        if row["ended_at"] is None and (row["expires_at"] < mark or row["renewed_at"] > t.now + lease):
            t.put("worker_session", key, {**row, "ended_at": t.now})
            found.append((key[0], row["worker"]))
    return found


def _live(t: Transaction) -> set[UUID]:
    return {key[0] for key, row in t.rows("worker_session") if row["ended_at"] is None}


def _is_listed(t: Transaction, live: set[UUID], hand: tuple[Any, ...]) -> bool:
    """hand: run, task, token as in `held_task`."""
    return any(key[:3] == hand and key[3] in live for key, _ in t.rows("held_task"))


@model
def release_ended(t: Transaction) -> list[tuple[Any, ...]]:
    live, known = _live(t), {key[0] for key, _ in t.rows("worker_session")}
    dropped = [key for key, _ in t.rows("held_task") if key[3] in known and key[3] not in live]
    found = []
    for key in dropped:
        t.put("held_task", key, None)
    for run_id, index, token, session in dropped:
        task = t.get("task", run_id, index)
        is_open = task is not None and task["token"] == token and task["status"] in ("queued", "running")
        if is_open and not _is_listed(t, live, (run_id, index, token)):
            found.append((UUID(bytes=run_id), index, token, session))
    return found


def _forgotten(t: Transaction, status: str, before: int, most: int) -> list[tuple[Any, ...]]:
    live = _live(t)
    held = {key[:3] for key, _ in t.rows("held_task") if key[3] in live}
    found = []
    for (run_id, index), task in t.rows("task"):
        run = t.get("run", run_id)
        if run is None or run["status"] not in OPEN_RUN or task["status"] != status or task["changed_at"] >= before:
            continue
        if (run_id, index, task["token"]) not in held:
            found.append((UUID(bytes=run_id), index, task["token"], instant(task["changed_at"]), run["version_id"]))
    return found[:most]


@model
def find_lost_running(t: Transaction, lease: float, most: int) -> list[tuple[Any, ...]]:
    mark = _watermark(t)
    if mark is None:
        return []
    return [row[:3] for row in _forgotten(t, "running", mark - round(lease * 1_000_000), most)]


@model
def find_lost_queued(t: Transaction, before: Any, most: int) -> list[tuple[Any, ...]]:
    return _forgotten(t, "queued", microseconds(before), most)


@model
def find_stuck(t: Transaction, seconds: float, lease: float, most: int) -> list[tuple[Any, ...]]:
    """All workers of the simulation serve one queue."""
    live = {key[0]: row for key, row in t.rows("worker_session") if row["ended_at"] is None}
    held = Counter(key[3] for key, _ in t.rows("held_task"))
    free = sum(
        max(0, row["slots"] - held[session])
        for session, row in live.items()
        if row["renewed_at"] > t.now - lease * 1_000_000
    )
    found = []
    for key, _ in t.rows("held_task"):
        task = t.get("task", *key[:2])
        is_waiting = task is not None and (task["status"], task["token"]) == ("queued", key[2])
        if is_waiting and task and key[3] in live and held[key[3]] > live[key[3]]["slots"]:
            found.append((task["changed_at"], key[:3]))
    old = sorted(one for one in found if one[0] < t.now - seconds * 1_000_000)
    return [(UUID(bytes=run_id), task, token) for _, (run_id, task, token) in old[: min(free, most)]]


@model
def read_marks(t: Transaction) -> list[tuple[Any, ...]]:
    gaps = [row["gap_at"] for _, row in t.rows("relay_owner") if row["gap_at"] is not None]
    return [(instant(_watermark(t)), instant(max(gaps, default=None)))]


@model
def note_logs(t: Transaction, topics: list[str], ids: list[str]) -> list[tuple[Any, ...]]:
    answers = []
    for topic, topic_id in sorted(zip(topics, ids, strict=True)):
        t.lock("topic_log", (topic,))
        known = t.get("topic_log", topic)
        since = 0 if known is None else known["since"] if known["topic_id"] == topic_id else t.now
        t.put("topic_log", (topic,), {"topic_id": topic_id, "since": since})
        answers.append((topic, instant(since)))
    return answers


@model
def claim_unapplied(t: Transaction, seconds: float, most: int) -> list[tuple[Any, ...]]:
    def is_late(row: Row) -> bool:
        return row["applied_at"] is None and row["said_at"] < t.now - seconds * 1_000_000

    found = []
    for key, row in _claimable(t, "inbox", is_late, most):
        t.put("inbox", key, {**row, "said_at": t.now})
        found.append((UUID(bytes=key[0]), UUID(bytes=row["run_id"])))
    return found


@model
def escalate_expired(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    found = []
    for key, row in _claimable(t, "approval", lambda row: _is_over(t, row) and row["on_expiry"] == "escalate", most):
        if steps := _steps_left(t, key[0]):
            place, step = steps[0]
            t.put("approval_timer", place, {**step, "fired_at": t.now})
            _ask_besides(t, key, step["targets"], t.now + row["expires_seconds"] * 1_000_000)
            found.append((UUID(bytes=key[0]), UUID(bytes=row["run_id"]), "escalate", place[2], step["targets"]))
    return found


def _is_over(t: Transaction, row: Row) -> bool:
    return bool(row["status"] == "waiting" and row["expires_at"] is not None and row["expires_at"] <= t.now)


def _ask_besides(t: Transaction, key: Any, targets: str, expires_at: int | None) -> None:
    row = t.get("approval", *key)
    assert row is not None
    approvers = json.dumps([*json.loads(row["approvers"]), *json.loads(targets)])
    t.put("approval", key, {**row, "approvers": approvers, "expires_at": expires_at})


@model
def expire_approvals(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    found = []
    for key, row in _claimable(t, "approval", lambda row: _is_over(t, row), most):
        if row["on_expiry"] == "escalate" and _steps_left(t, key[0]):
            continue
        status = {"approve": "approved", "reject": "rejected"}.get(row["on_expiry"], "expired")
        t.put("approval", key, {**row, "status": status, "decided_by": "expiry"})
        found.append((UUID(bytes=row["run_id"]), row["task"], row["token"], status, _votes(t, key[0])))
    return found


@model
def fire_approval_timers(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    def is_due(row: Row) -> bool:
        return row["fired_at"] is None and row["due_at"] is not None and row["due_at"] <= t.now

    found = []
    for key, row in _claimable(t, "approval_timer", is_due, most):
        question = t.get("approval", key[0])
        if question is None or not t.is_free("approval", (key[0],)):
            continue
        if question["status"] != "waiting":
            t.put("approval_timer", key, None)
            continue
        t.lock("approval", (key[0],))
        t.put("approval_timer", key, {**row, "fired_at": t.now})
        if key[1] == "escalate":
            _ask_besides(t, (key[0],), row["targets"], question["expires_at"])
        found.append((UUID(bytes=key[0]), UUID(bytes=question["run_id"]), key[1], key[2], row["targets"]))
    return found


@model
def insert_requests(
    t: Transaction, ids: list[UUID], runs: list[UUID], kind: str, actor: str, bodies: list[str]
) -> list[tuple[Any, ...]]:
    for inbox_id, run_id, body in zip(ids, runs, bodies, strict=True):
        _new_request(t, inbox_id, run_id, kind, body, actor)
    return []


@model
def note_pass(t: Transaction, name: str, found: int) -> list[tuple[Any, ...]]:
    return []  # for people


@model
def list_queues(t: Transaction) -> list[tuple[Any, ...]]:
    queues = {
        task.get("queue", "default")
        for _, row in t.rows("workflow_version")
        for task in json.loads(row["definition"])["tasks"].values()
    }
    return [(queue,) for queue in sorted(queues)]


@model
def list_enabled(t: Transaction) -> list[tuple[Any, ...]]:
    return []  # no subscriptions here


# == pool.sql ==========================================================================================================
def _slots_left(t: Transaction, pool: Row) -> int:
    return int(pool["slots_max"]) - sum(slot["pool"] == pool["name"] for _, slot in t.rows("pool_slot"))


@model
def has_waiters(t: Transaction) -> list[tuple[Any, ...]]:
    return [(any(True for _ in t.rows("pool_waiter")),)]


@model
def lock_pools(t: Transaction) -> list[tuple[Any, ...]]:
    wanted = {row["pool"] for _, row in t.rows("pool_waiter") if row["granted_at"] is None}
    found = sorted(key for key, pool in t.rows("pool") if pool["name"] in wanted and _slots_left(t, pool) > 0)
    for key in found:
        t.lock("pool", key)
    return found


@model
def grant_slots(t: Transaction, namespaces: list[str], names: list[str], most: int) -> list[tuple[Any, ...]]:
    granted = []
    for place in zip(namespaces, names, strict=True):
        left = min(most, _slots_left(t, t.get("pool", *place) or {}))
        free = [(key, row) for key, row in t.rows("pool_waiter") if t.is_free("pool_waiter", key)]
        waiting = [(r["ranked_at"], key) for key, r in free if r["pool"] == place[1] and r["granted_at"] is None]
        for _, key in sorted(waiting)[: max(0, left)]:
            row = t.get("pool_waiter", *key) or {}
            t.put("pool_waiter", key, {**row, "granted_at": t.now, "said_at": t.now})
            t.put("pool_slot", key, {"token": row["token"], "pool": row["pool"], "granted_at": t.now})
            granted.append((UUID(bytes=key[0]), key[1], row["token"]))
    return granted


@model
def say_granted(t: Transaction, seconds: float, most: int) -> list[tuple[Any, ...]]:
    def is_late(row: Row) -> bool:
        return row["granted_at"] is not None and row["said_at"] < t.now - seconds * 1_000_000

    found = []
    for key, row in _claimable(t, "pool_waiter", is_late, most):
        t.put("pool_waiter", key, {**row, "said_at": t.now})
        found.append((UUID(bytes=key[0]), key[1], row["token"]))
    return found


def _nothing(t: Transaction, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
    return []


_FIND_NOTHING: Final = (
    "purge_answers", "purge_sessions", "purge_inbox", "purge_posted_signals", "set_config", "claim_bulk",
    "next_step", "list_unread_records", "last_change",
    "read_paused_queues", "release_commands", "forget_commands",
)  # fmt: skip
"""What nothing here is made for: retention, what is done in bulk, workflows and queues that are paused."""
MODELS.update(dict.fromkeys(_FIND_NOTHING, _nothing))


@model
def try_lock(t: Transaction, name: str) -> list[tuple[Any, ...]]:
    holder = t.database.advisory.setdefault(name, t)
    return [(holder is t,)]


@model
def read_tick(t: Transaction) -> list[tuple[Any, ...]]:
    under_way = [*t.database.in_doubt, *t.database.locks.values()]
    return [(min([t.now, *(each.now for each in under_way if each is not t)]),)]


# == session.sql, partition.sql ========================================================================================
@model
def renew_sessions(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    ids, workers, _queues, slots, _held, _libraries, seqs, _draining, ended, lease = columns
    renewed = []
    for session, worker, seq, is_over, count in sorted(zip(ids, workers, seqs, ended, slots, strict=True)):
        t.lock("worker_session", (session,))
        known = t.get("worker_session", session)
        if known is not None and not is_renewable(known, seq):
            continue
        row = {
            "worker": worker,
            "seq": seq,
            "ended_at": t.now if is_over else None,
            "renewed_at": t.now,
            "slots": count,
        }
        t.put("worker_session", (session,), {**row, "expires_at": t.now + round(lease * 1_000_000)})
        renewed.append((session,))
    return renewed


def is_renewable(known: Row, seq: int) -> bool:
    return known["ended_at"] is None and known["seq"] < seq


@model
def drop_held(
    t: Transaction, sessions: list[UUID], runs: Any, tasks: Any, tokens: Any, holders: Any
) -> list[tuple[Any, ...]]:
    kept = {(run.bytes, task, token, by) for run, task, token, by in zip(runs, tasks, tokens, holders, strict=True)}
    for key, _ in t.rows("held_task"):
        if key[3] in sessions and key not in kept:
            t.put("held_task", key, None)
    return []


@model
def list_held(t: Transaction, runs: Any, tasks: Any, tokens: Any, holders: Any, details: Any) -> list[tuple[Any, ...]]:
    for run, task, token, by in zip(runs, tasks, tokens, holders, strict=True):
        key = (run.bytes, task, token, by)
        if t.get("held_task", *key) is None:
            t.put("held_task", key, {})
    return []


@model
def raise_watermark(t: Transaction, name: str, at: int) -> list[tuple[Any, ...]]:
    t.lock("watermark", (name,))
    known = t.get("watermark", name)
    follows = known is None or known["at"] > t.now
    t.put("watermark", (name,), {"at": at if known is None or follows else max(at, known["at"])})
    return []


@model
def take_partitions(
    t: Transaction, topic: str, topic_id: str, owner: str, partitions: list[int]
) -> list[tuple[Any, ...]]:
    answers = []
    for partition in sorted(partitions):
        t.lock("partition_owner", (topic, partition))
        known = t.get("partition_owner", topic, partition)
        epoch = 1 if known is None else known["epoch"] + 1
        following = known["next_offset"] if known is not None and known["topic_id"] == topic_id else None
        row = {"epoch": epoch, "owner": owner, "topic_id": topic_id, "next_offset": following}
        t.put("partition_owner", (topic, partition), row)
        answers.append((partition, epoch, following))
    return answers


@model
def read_partitions(t: Transaction, topic: str, partitions: list[int]) -> list[tuple[Any, ...]]:
    rows = [(partition, t.get("partition_owner", topic, partition)) for partition in partitions]
    return [(partition, row["epoch"], row["next_offset"]) for partition, row in rows if row is not None]


# == the relay =========================================================================================================
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


# == finding them ======================================================================================================
_OWN_TEXTS: Final = {
    outbox.EMIT_MESSAGE: "emit_message",
    outbox.INSERT_ROWS: "publish_rows",
    outbox.DELETE_ROWS: "delete_rows",
    "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))": "try_lock",
    "SELECT set_config('statement_timeout', %s, false)": "set_config",
    relay_ownership._CLAIM: "claim_relay",
    relay_ownership._RENEW: "renew_relay",
    relay_ownership._RELEASE: "release_relay",
    relay_slot._LOOK: "look_at_slot",
    relay_slot._CREATE: "create_slot",
    relay_slot._DROP: "drop_slot",
    relay_slot._MARK_GAP: "mark_gap",
    relay_slot._END_READER: "end_reader",
}


def find(sql: str) -> tuple[str, Model]:
    """The name and the model of a statement."""
    if not TEXTS:
        TEXTS.update(_OWN_TEXTS)
        for file in sorted(FOLDER.glob("*.sql")):
            TEXTS.update({statement.sql: name for name, statement in load(file.stem).items()})
    name = TEXTS.get(sql)
    if name is None or name not in MODELS:
        raise NotImplementedError(f"the simulation has no model of this statement: {name or sql!r}")
    return name, MODELS[name]
