"""What the statements of dead letters do, on the model."""

from typing import Any

from tests.simulation.postgres import Transaction
from tests.simulation.statements.registry import given, model, text, unique


@model
def bury_tasks(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("bury_tasks", list(columns)):
        key = ("task", row["run_ids"], row["tasks"], row["tokens"])
        unique(t, "dead_letter", key)
        t.put("dead_letter", key, {"reason": row["reasons"], "error": text(row["errors"]), "status": "parked"})
    return []


@model
def close_letters(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("close_letters", list(columns)):
        key = ("task", row["run_ids"], row["tasks"], row["tokens"])
        letter = t.get("dead_letter", *key)
        if letter is not None and letter["status"] == "parked":
            t.put("dead_letter", key, {**letter, "status": str(row["statuses"])})
    return []


@model
def bury_records(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("bury_records", list(columns)):
        key = ("record", row["topics"], row["partitions"], row["offsets"], row["dead_letter_ids"])
        t.put("dead_letter", key, {"reason": row["reasons"], "error": text(row["errors"])})
    return []
