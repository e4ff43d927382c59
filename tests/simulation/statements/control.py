"""What the statements of control by people do, on the model."""

from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction
from tests.simulation.statements.registry import model


@model
def find_run(t: Transaction, *, run_id: UUID, namespace: str) -> list[tuple[Any, ...]]:
    run = t.get("run", run_id.bytes)
    return [] if run is None else [(run["status"], run["control"], run["row_version"])]


@model
def find_runs(t: Transaction, *, run_ids: list[UUID], namespace: str) -> list[tuple[Any, ...]]:
    found = [(run_id, t.get("run", run_id.bytes)) for run_id in run_ids]
    return [
        (run_id, run["status"], run["control"], run["row_version"], _unapplied(t, run_id.bytes))
        for run_id, run in found
        if run is not None
    ]


def _unapplied(t: Transaction, run_id: bytes) -> str | None:
    def is_left(row: Row) -> bool:
        return row["run_id"] == run_id and row["applied_at"] is None

    found = sorted((row["created_at"], row["kind"]) for _, row in t.rows("inbox") if is_left(row))
    return found[0][1] if found else None


@model
def find_unapplied(t: Transaction, *, run_id: UUID) -> list[tuple[Any, ...]]:
    kind = _unapplied(t, run_id.bytes)
    return [] if kind is None else [(kind,)]


@model
def touch_run(t: Transaction, *, run_id: UUID, namespace: str) -> list[tuple[Any, ...]]:
    """It locks the run, and changes nothing of what is modelled of it."""
    t.lock("run", (run_id.bytes,))
    return [] if t.get("run", run_id.bytes) is None else [(run_id,)]


@model
def touch_runs(t: Transaction, *, run_ids: list[UUID], namespace: str) -> list[tuple[Any, ...]]:
    for run_id in sorted(run_ids):
        t.lock("run", (run_id.bytes,))
    return []
