"""What the statements of pauses of workflows and queues do, on the model."""

import re
from typing import Any
from uuid import UUID

from state.sql import load
from tests.control_bits import WORKFLOW_PAUSED
from tests.simulation.postgres import Row, Transaction, instant
from tests.simulation.statements.registry import claimable, given, model, text


@model
def pause_workflow(t: Transaction, *, namespace: str, workflow: str, reason: str, actor: str) -> list[tuple[Any, ...]]:
    known = t.get("workflow_pause", namespace, workflow)
    if known is not None and known["resumed_at"] is None:
        return []
    new = {"reason": reason, "paused_by": actor, "paused_at": t.now, "resumed_at": None, "resumed_by": None}
    t.put("workflow_pause", (namespace, workflow), {**new, "resume_reason": ""})
    return [(workflow,)]


@model
def resume_workflow(t: Transaction, *, namespace: str, workflow: str, reason: str, actor: str) -> list[tuple[Any, ...]]:
    known = t.get("workflow_pause", namespace, workflow)
    if known is None or known["resumed_at"] is not None:
        return []
    told = {"resumed_at": t.now, "resumed_by": actor, "resume_reason": reason}
    t.put("workflow_pause", (namespace, workflow), {**known, **told})
    return [(workflow,)]


@model
def find_workflow(t: Transaction, *, namespace: str, workflow: str) -> list[tuple[Any, ...]]:
    known = _pause_of(t, namespace, workflow)
    return [(workflow, instant(known["paused_at"]) if known else None, known["paused_by"] if known else None)]


def _pause_of(t: Transaction, namespace: str, workflow: str) -> Row | None:
    known = t.get("workflow_pause", namespace, workflow)
    return None if known is None or known["resumed_at"] is not None else known


@model
def read_start(t: Transaction, namespace: str, workflow: str) -> list[tuple[Any, ...]]:
    known, queues = _pause_of(t, namespace, workflow), [key[0] for key, _ in t.rows("queue_pause")]
    by, reason = (None, None) if known is None else (known["paused_by"], known["reason"])
    return [(t.database.clock(), by, reason, queues)]


@model
def find_paused(t: Transaction, namespace: str, workflows: list[str]) -> list[tuple[Any, ...]]:
    found = [(workflow, _pause_of(t, namespace, workflow)) for workflow in workflows]
    return [(workflow, row["paused_by"], row["reason"]) for workflow, row in found if row is not None]


@model
def last_change(t: Transaction) -> list[tuple[Any, ...]]:
    changes = [max(row["paused_at"], row["resumed_at"] or 0) for _, row in t.rows("workflow_pause")]
    is_left = any(run["control"] & WORKFLOW_PAUSED for _, run in t.rows("run"))
    return [(instant(max(changes) if changes else 0 if is_left else None),)]


def _unasked(t: Transaction, *, is_paused: bool) -> list[tuple[UUID, Row, Row | None]]:
    """Runs that are paused with their workflow, or are not, beside what is known of that pause; without those of which
    that was asked already."""
    kinds = ("paused", "resumed")
    asked = {row["run_id"] for _, row in t.rows("inbox") if row["applied_at"] is None and row["kind"] in kinds}
    found = []
    for (run_id,), run in sorted(t.rows("run")):
        version = t.get("workflow_version", run["version_id"]) or {}
        if run_id not in asked and is_paused == bool(run["control"] & WORKFLOW_PAUSED):
            found.append((UUID(bytes=run_id), run, t.get("workflow_pause", run["namespace"], version["name"])))
    return found


@model
def find_unpaused(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    """Which runs are open is what the statement says."""
    written = re.search(r"r\.status IN \(([^)]*)\)", load("pause")["find_unpaused"].sql)
    assert written is not None
    statuses = re.findall(r"'(\w+)'", written[1])
    return [
        (run_id, pause["reason"], pause["paused_by"])
        for run_id, run, pause in _unasked(t, is_paused=False)
        if run["status"] in statuses and pause is not None and pause["resumed_at"] is None
    ][:most]


@model
def find_unresumed(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    return [
        (run_id, "over" if pause is None else pause["resume_reason"], "" if pause is None else pause["resumed_by"])
        for run_id, _, pause in _unasked(t, is_paused=True)
        if pause is None or pause["resumed_at"] is not None
    ][:most]


@model
def forget_pauses(t: Transaction, seconds: float) -> list[tuple[Any, ...]]:
    paused = {
        (run["namespace"], (t.get("workflow_version", run["version_id"]) or {})["name"])
        for _, run in t.rows("run")
        if run["control"] & WORKFLOW_PAUSED
    }
    for key, row in t.rows("workflow_pause"):
        if row["resumed_at"] is not None and row["resumed_at"] < t.now - seconds * 1_000_000 and key not in paused:
            t.put("workflow_pause", key, None)
    return []


# == queues ============================================================================================================
@model
def pause_queue(t: Transaction, *, queue: str, reason: str, actor: str) -> list[tuple[Any, ...]]:
    if t.get("queue_pause", queue) is not None:
        return []
    t.put("queue_pause", (queue,), {"paused_at": t.now})
    return [(queue,)]


@model
def resume_queue(t: Transaction, *, queue: str) -> list[tuple[Any, ...]]:
    if t.get("queue_pause", queue) is None:
        return []
    t.put("queue_pause", (queue,), None)
    return [(queue,)]


@model
def is_queue(t: Transaction, *, queue: str) -> list[tuple[Any, ...]]:
    return [(True,)]


@model
def read_paused_queues(t: Transaction) -> list[tuple[Any, ...]]:
    return [key for key, _ in t.rows("queue_pause")]


@model
def hold_commands(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("hold_commands", list(columns)):
        new = {"token": row["tokens"], "queue": row["queues"], "partition": row["partitions"]}
        kept = {"value": text(row["contents"]), "traceparent": row["traceparents"], "held_at": t.now}
        t.put("held_command", (row["run_ids"], row["tasks"]), {**new, **kept, "released_at": None})
    return []


@model
def has_held_commands(t: Transaction) -> list[tuple[Any, ...]]:
    return [(any(True for _ in t.rows("held_command")),)]


@model
def release_commands(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    def is_due(row: Row) -> bool:
        return row["released_at"] is None and t.get("queue_pause", row["queue"]) is None

    found = []
    for key, row in sorted(claimable(t, "held_command", is_due, 2**31), key=lambda one: one[1]["held_at"])[:most]:
        t.put("held_command", key, {**row, "released_at": t.now})
        task = t.get("task", *key)
        is_wanted = task is not None and (task["status"], task["token"]) == ("queued", row["token"])
        command = (row["queue"], row["partition"], row["value"], row["traceparent"])
        found.append((UUID(bytes=key[0]), *command, is_wanted))
    return found


@model
def forget_commands(t: Transaction) -> list[tuple[Any, ...]]:
    for key, row in t.rows("held_command"):
        task = t.get("task", *key)
        is_wanted = task is not None and (task["status"], task["token"]) == ("queued", row["token"])
        if row["released_at"] is not None and not is_wanted:
            t.put("held_command", key, None)
    return []
