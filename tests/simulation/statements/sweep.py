"""What the statements that all sweeps share do, on the model."""

import json
from typing import Any, Final

from tests.simulation.postgres import Transaction, instant
from tests.simulation.statements.registry import MODELS, find_nothing, model


@model
def note_passes(t: Transaction, names: list[str], ago: list[float], found: list[int]) -> list[tuple[Any, ...]]:
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


@model
def try_lock(t: Transaction, name: str) -> list[tuple[Any, ...]]:
    holder = t.database.advisory.setdefault(name, t)
    return [(holder is t,)]


@model
def try_lock_pauses(t: Transaction) -> list[tuple[Any, ...]]:
    return try_lock(t, "headrace.sweep.pauses")


@model
def read_now(t: Transaction) -> list[tuple[Any, ...]]:
    return [(instant(t.now),)]


@model
def read_tick(t: Transaction) -> list[tuple[Any, ...]]:
    under_way = [*t.database.in_doubt, *t.database.locks.values()]
    return [(min([t.now, *(each.now for each in under_way if each is not t)]),)]


_FIND_NOTHING: Final = (
    "purge_answers", "purge_sessions", "purge_inbox", "purge_posted_signals", "set_config", "list_unread_records",
)  # fmt: skip
"""What nothing here is made for: retention, and records that were replayed."""
MODELS.update(dict.fromkeys(_FIND_NOTHING, find_nothing))
