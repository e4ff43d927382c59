"""What the statements of children do, on the model."""

from typing import Any, Final
from uuid import UUID

import msgspec

from tests.simulation.postgres import Row, Transaction
from tests.simulation.statements.registry import given, model, refuse, text, unique

OPEN: Final = ("asked", "started")


def _find(t: Transaction, run_id: bytes) -> tuple[Any, Row] | None:
    return next(((key, row) for key, row in t.rows("child_run") if row["run_id"] == run_id), None)


def _request(t: Transaction, inbox_id: bytes, run_id: bytes, kind: str, body: str, said_at: int) -> None:
    unique(t, "inbox", (inbox_id,))
    new = {"run_id": run_id, "kind": kind, "body": body, "actor": "", "applied_at": None}
    t.put("inbox", (inbox_id,), {**new, "said_at": said_at, "created_at": t.now})


@model
def start_children(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("start_children", list(columns)):
        key = (row["parent_run_ids"], row["tasks"], row["tokens"])
        unique(t, "child_run", key)
        above = _find(t, row["parent_run_ids"])
        new = {
            "run_id": row["run_ids"], "namespace": row["namespaces"], "workflow": row["workflows"],
            "version": row["versions"], "input": text(row["inputs"]), "traceparent": row["traceparents"],
            "is_awaited": row["are_awaited"], "depth": 1 if above is None else 1 + above[1]["depth"],
            "status": "asked", "asked_at": t.now, "tried_at": None, "cancel_asked_at": None, "error": None,
        }  # fmt: skip
        t.put("child_run", key, new)
    return []


@model
def cancel_children(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("cancel_children", list(columns)):
        key = (row["parent_run_ids"], row["tasks"], row["tokens"])
        t.lock("child_run", key)
        child = t.get("child_run", *key)
        if child is None or child["status"] not in OPEN:
            continue
        status = "cancelled" if child["status"] == "asked" else "started"
        t.put("child_run", key, {**child, "status": status, "cancel_asked_at": t.now})
        if status == "started":
            _request(t, row["inbox_ids"], child["run_id"], "cancelled", '{"reason": "not waited for any more"}', 0)
    return []


@model
def end_children(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("end_children", list(columns)):
        found = _find(t, row["run_ids"])
        if found is None or not found[1]["is_awaited"]:
            continue
        (parent, task, token), _ = found
        t.lock("child_run", found[0])
        t.put("child_run", found[0], {**(t.get("child_run", *found[0]) or {}), "status": str(row["statuses"])})
        body = {
            "task": task, "token": token, "child": str(UUID(bytes=row["run_ids"])), "outcome": str(row["statuses"]),
            "output": msgspec.Raw(row["outputs"] or b"null"), "error": msgspec.Raw(row["errors"] or b"null"),
        }  # fmt: skip
        _request(t, row["inbox_ids"], parent, "child_told", msgspec.json.encode(body).decode(), t.now)
    return []


@model
def has_asked_children(t: Transaction) -> list[tuple[Any, ...]]:
    return [(any(row["status"] == "asked" for _, row in t.rows("child_run")),)]


@model
def claim_asked_children(t: Transaction, seconds: float, most: int) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    asked = sorted(
        (row["asked_at"], key, row)
        for key, row in t.rows("child_run")
        if row["status"] == "asked" and (row["tried_at"] is None or row["tried_at"] < t.now - seconds * 1_000_000)
    )
    for _, key, row in asked:
        if len(found) == most or not t.is_free("child_run", key):
            continue
        t.put("child_run", key, {**row, "tried_at": t.now})
        what = (row["namespace"], row["workflow"], row["version"], row["input"], row["traceparent"])
        found.append(
            (UUID(bytes=key[0]), *key[1:], UUID(bytes=row["run_id"]), *what, row["is_awaited"], row["depth"], None)
        )
    return found


@model
def settle_children(
    t: Transaction, run_ids: list[UUID], statuses: list[str], errors: list[str | None]
) -> list[tuple[Any, ...]]:
    for run_id, status, error in zip(run_ids, statuses, errors, strict=True):
        found = _find(t, run_id.bytes)
        assert found is not None
        t.lock("child_run", found[0])
        refuse((error is not None) == (status == "refused"), "child_run_refused_for_a_reason")
        t.put("child_run", found[0], {**found[1], "status": status, "input": None, "error": error})
    return []


@model
def tell_parents(t: Transaction, ids: list[UUID], runs: list[UUID], bodies: list[str]) -> list[tuple[Any, ...]]:
    for inbox_id, run_id, body in zip(ids, runs, bodies, strict=True):
        _request(t, inbox_id.bytes, run_id.bytes, "child_told", body, t.now)
    return []


@model
def find_version(t: Transaction, namespace: str, workflow: str, version: int | None) -> list[tuple[Any, ...]]:
    rows = [(id_, row) for (id_,), row in t.rows("workflow_version") if row["name"] == workflow]
    rows = [(id_, row) for id_, row in rows if version in (None, row["version"])]
    return [(id_, workflow, row["version"], row["definition"]) for id_, row in rows[-1:]]


@model
def get_input_schema(t: Transaction, *, version_id: int) -> list[tuple[Any, ...]]:
    row = t.get("workflow_version", version_id)
    schema = None if row is None else msgspec.json.decode(row["definition"]).get("input")
    return [(None if schema is None else msgspec.json.encode(schema).decode(),)]
