"""Counters that outlive a process: every streams process adds what it counted, the API shows the sum."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from state.sql import load

_SQL = load("counter")


class CounterRow(NamedTuple):
    """One sample as Prometheus knows it: `headrace_task_attempts_total{outcome="failed"}` is sample and labels."""

    metric: str
    kind: str
    """counter or histogram"""
    what: str
    sample: str
    labels: dict[str, str]
    value: float
    """When added: since the last time. When read: the sum."""


async def add_counters(connection: psycopg.AsyncConnection[Any], rows: Sequence[CounterRow]) -> None:
    """Add to the sums, in the caller's transaction (or in autocommit: it is one statement)."""
    columns = [
        [row.sample for row in rows],
        [json.dumps(row.labels, sort_keys=True) for row in rows],
        [row.metric for row in rows],
        [row.kind for row in rows],
        [row.what for row in rows],
        [row.value for row in rows],
    ]
    await psycopg.AsyncRawCursor(connection).execute(_SQL.text("add_counters"), columns)


async def read_counters(connection: psycopg.AsyncConnection[Any]) -> list[CounterRow]:
    cursor = await psycopg.AsyncRawCursor(connection).execute(_SQL.text("read_counters"))
    return [
        CounterRow(metric, kind, what, sample, json.loads(labels), value)
        for metric, kind, what, sample, labels, value in await cursor.fetchall()
    ]
