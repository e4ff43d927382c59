"""What the statements of requests do, on the model."""

from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction
from tests.simulation.statements.registry import claimable, given, model, unique


@model
def apply_inbox(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("apply_inbox", list(columns)):
        inbox = t.get("inbox", row["inbox_ids"])
        if inbox is not None and inbox["applied_at"] is None:
            t.put("inbox", (row["inbox_ids"],), {**inbox, "applied_at": t.now})
    return []


@model
def load_inbox(t: Transaction, ids: list[UUID]) -> list[tuple[Any, ...]]:
    rows = [(inbox_id, t.get("inbox", inbox_id.bytes)) for inbox_id in ids]
    return [
        (id_, UUID(bytes=row["run_id"]), row["kind"], row["body"], row["actor"], row["applied_at"] is not None)
        for id_, row in rows
        if row is not None
    ]


def new_request(t: Transaction, inbox_id: UUID, run_id: UUID, kind: str, body: str, actor: str) -> None:
    unique(t, "inbox", (inbox_id.bytes,))
    new = {"run_id": run_id.bytes, "kind": kind, "body": body, "actor": actor, "applied_at": None}
    t.put("inbox", (inbox_id.bytes,), {**new, "said_at": t.now, "created_at": t.now})


@model
def insert_inbox(
    t: Transaction, inbox_id: UUID, run_id: UUID, kind: str, body: str, actor: str
) -> list[tuple[Any, ...]]:
    new_request(t, inbox_id, run_id, kind, body, actor)
    return []


@model
def insert_requests(
    t: Transaction, ids: list[UUID], runs: list[UUID], kind: str, actor: str, bodies: list[str]
) -> list[tuple[Any, ...]]:
    for inbox_id, run_id, body in zip(ids, runs, bodies, strict=True):
        new_request(t, inbox_id, run_id, kind, body, actor)
    return []


@model
def claim_unapplied(t: Transaction, seconds: float, most: int) -> list[tuple[Any, ...]]:
    def is_late(row: Row) -> bool:
        return row["applied_at"] is None and row["said_at"] < t.now - seconds * 1_000_000

    found = []
    for key, row in claimable(t, "inbox", is_late, most):
        t.put("inbox", key, {**row, "said_at": t.now})
        found.append((UUID(bytes=key[0]), UUID(bytes=row["run_id"])))
    return found


@model
def insert_inbox_rows(
    t: Transaction, ids: list[UUID], run_ids: list[UUID], kind: str, bodies: list[str], actor: str
) -> list[tuple[Any, ...]]:
    for inbox_id, run_id, body in zip(ids, run_ids, bodies, strict=True):
        new_request(t, inbox_id, run_id, kind, body, actor)
    return []
