"""Rows that are restored: what the statements of the sweep have in common that look for what is gone."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from state.sql import load
from tests.simulation.postgres import Row, Transaction
from tests.simulation.statements.registry import OPEN_RUN


def restore(t: Transaction, table: str, most: int, lost: Callable[[Row], Row | None]) -> Iterator[tuple[Any, Row]]:
    """Make the rows that settled tasks of open runs count on and that are gone; `lost` says what a task counts on."""
    sql = load("sweep")["restore_" + {"timer": "timers", "parked_task": "parked_tasks"}.get(table, f"{table}s")].sql
    locks = re.search(r"FOR (NO KEY UPDATE|UPDATE|SHARE) OF t\b", sql) is not None
    restored = 0
    for key, task in t.rows("task"):
        run, row = t.get("run", key[0]), lost(task)
        is_open = run is not None and run["status"] in OPEN_RUN and task["changed_at"] < t.now - 1_000_000
        if row is None or not is_open or t.get(table, *key) is not None or restored == most:
            continue
        if locks and not t.is_free("task", key):
            continue
        if locks:
            t.lock("task", key)
        t.put(table, key, row)
        restored += 1
        yield key, task
