"""What the statements that all sweeps share do, on the model."""

import json
from typing import Any, Final

from tests.simulation.postgres import Transaction
from tests.simulation.statements.registry import MODELS, find_nothing, model


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


@model
def try_lock(t: Transaction, name: str) -> list[tuple[Any, ...]]:
    holder = t.database.advisory.setdefault(name, t)
    return [(holder is t,)]


@model
def read_tick(t: Transaction) -> list[tuple[Any, ...]]:
    under_way = [*t.database.in_doubt, *t.database.locks.values()]
    return [(min([t.now, *(each.now for each in under_way if each is not t)]),)]


_FIND_NOTHING: Final = (
    "purge_answers", "purge_sessions", "purge_inbox", "purge_posted_signals", "set_config", "claim_bulk",
    "next_step", "list_unread_records", "last_change",
    "read_paused_queues", "release_commands", "forget_commands",
)  # fmt: skip
"""What nothing here is made for: retention, what is done in bulk, workflows and queues that are paused."""
MODELS.update(dict.fromkeys(_FIND_NOTHING, find_nothing))
