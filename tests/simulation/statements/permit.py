"""What the statements of limits do, on the model."""

import json
from typing import Any
from uuid import UUID

from tests.control_bits import AWAITS_PERMIT
from tests.simulation.postgres import Row, Transaction
from tests.simulation.statements.inbox import new_request
from tests.simulation.statements.registry import OPEN_RUN, given, model

Line = tuple[str, str, str]
"""Namespace, workflow, key."""


def limit_of(t: Transaction, workflow: str) -> Row | None:
    """As the latest version says."""
    rows = [row for _, row in t.rows("workflow_version") if row["name"] == workflow]
    limit: Row | None = json.loads(rows[-1]["definition"]).get("limit")
    return limit


def _runs_max(t: Transaction, workflow: str) -> int | None:
    limit = limit_of(t, workflow)
    return None if limit is None else limit.get("runs", 1)


def _permits(t: Transaction, line: Line) -> list[tuple[Any, Row]]:
    found = [(key, row) for key, row in t.rows("run_permit") if row["line"] == line]
    return sorted(found, key=lambda one: (one[1]["asked_at"], one[0]))


@model
def return_permits(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("return_permits", list(columns)):
        key = (row["run_ids"],)
        t.lock("run_permit", key)
        if t.get("run_permit", *key) is not None:
            t.put("run_permit", key, None)
    return []


@model
def await_permits(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("await_permits", list(columns)):
        now, run = t.database.clock(), t.get("run", row["run_ids"]) or {}
        new = {
            "line": (row["namespaces"], row["workflows"], row["keys"]), "asked_at": now,
            "ranked_at": now - run["priority"] * 60_000_000, "granted_at": now if row["granted"] else None,
            "replaced_by": None,
        }  # fmt: skip
        t.put("run_permit", (row["run_ids"],), new)
    return []


@model
def replace_runs(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("replace_runs", list(columns)):
        key = (row["run_ids"],)
        permit = t.get("run_permit", *key)
        if permit is not None and t.is_free("run_permit", key):
            t.put("run_permit", key, {**permit, "replaced_by": row["by_runs"]})
        ids = (UUID(bytes=row["inbox_ids"]), UUID(bytes=row["run_ids"]))
        new_request(t, *ids, "cancelled", '{"reason": "another takes its place"}', "limit")
    return []


@model
def lock_permits(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    """An advisory lock is a lock on a row that is never written."""
    lines = sorted(set(zip(*columns, strict=True)))
    for line in lines:
        t.lock("lock_permits", line)
    return [("",)] * len(lines)


@model
def read_lines(
    t: Transaction, namespaces: list[str], workflows: list[str], keys: list[str], wanted: list[bool]
) -> list[tuple[Any, ...]]:
    found = []
    asked = dict(zip(zip(namespaces, workflows, keys, strict=True), wanted, strict=True))
    for line, replaces in asked.items():
        permits = _permits(t, line)
        granted = sorted((row["granted_at"], key) for key, row in permits if row["granted_at"] is not None)
        waiting = sorted((row["ranked_at"], key) for key, row in permits if row["granted_at"] is None)
        first = next((str(UUID(bytes=key[0])) for _, key in (*granted, *waiting)), None)
        staying = [str(UUID(bytes=key[0])) for key, row in permits if row["replaced_by"] is None]
        stands = (_runs_max(t, line[1]), len(granted), bool(waiting), first, staying if replaces else None)
        found.append((*line, *stands))
    return found


@model
def next_permit_keys(t: Transaction, namespace: str, workflow: str, key: str, most: int) -> list[tuple[Any, ...]]:
    lines = sorted({row["line"] for _, row in t.rows("run_permit") if row["granted_at"] is None})
    return [line for line in lines if line > (namespace, workflow, key)][:most]


@model
def grant_permits(
    t: Transaction, namespaces: list[str], workflows: list[str], keys: list[str], most: int
) -> list[tuple[Any, ...]]:
    granted = []
    for line in zip(namespaces, workflows, keys, strict=True):
        permits, runs_max = _permits(t, line), _runs_max(t, line[1])
        left = most if runs_max is None else runs_max - sum(row["granted_at"] is not None for _, row in permits)
        waiting = sorted(
            (row["ranked_at"], key)
            for key, row in permits
            if row["granted_at"] is None
            and t.is_free("run_permit", key)
            and (t.get("run", *key) or {}).get("status") in ("waiting", "cancelling")
        )
        for _, key in waiting[: max(0, min(most, left))]:
            t.put("run_permit", key, {**(t.get("run_permit", *key) or {}), "granted_at": t.database.clock()})
            granted.append((UUID(bytes=key[0]),))
    return granted


@model
def point_trigger_keys(t: Transaction, namespace: str, keys: list[str], run_ids: list[UUID]) -> list[tuple[Any, ...]]:
    for key, run_id in zip(keys, run_ids, strict=True):
        row = t.get("trigger_key", namespace, key)
        if row is not None:
            t.put("trigger_key", (namespace, key), {**row, "run_id": run_id})
    return []


@model
def find_unlisted(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    told = {row["run_id"] for _, row in t.rows("inbox") if row["kind"] == "permitted" and row["applied_at"] is None}
    for key, run in t.rows("run"):
        version = t.get("workflow_version", run["version_id"]) or {}
        is_limited = "limit" in json.loads(version["definition"])
        is_settled = run["status"] in OPEN_RUN and is_limited and t.is_free("run", key)
        if is_settled and t.get("run_permit", *key) is None and len(found) < most:
            t.lock("run", key)
            has_it = not run["control"] & AWAITS_PERMIT or key[0] in told
            found.append((UUID(bytes=key[0]), run["version_id"], run["input"], has_it))
    return found


@model
def restore_permits(
    t: Transaction, run_ids: list[UUID], workflows: list[str], keys: list[str], granted: list[bool]
) -> list[tuple[Any, ...]]:
    for run_id, workflow, key, is_granted in zip(run_ids, workflows, keys, granted, strict=True):
        new = {"line": ("default", workflow, key), "asked_at": t.now, "ranked_at": t.now, "replaced_by": None}
        t.put("run_permit", (run_id.bytes,), {**new, "granted_at": t.now if is_granted else None})
    return []
