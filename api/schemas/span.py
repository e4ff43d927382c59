"""How the tasks of a run passed their time."""

import msgspec

from api.schemas.task import ItemCounts
from api.schemas.wire import Instant
from headrace.machine import TaskStatus


class Span(msgspec.Struct):
    """An attempt that ended."""

    attempt: int
    token: int
    outcome: str
    """completed, failed, lost, cancelled or returned"""
    worker: str
    started_at: Instant | None
    finished_at: Instant | None
    """By the worker's clock, as `started_at`."""
    ended_at: Instant
    """By the database's clock."""
    round: int | None
    """Of a repeat, from 0."""


class TaskSpans(msgspec.Struct):
    """How one task passed its time."""

    name: str
    index: int
    kind: str
    """body, approval, wait, signal, map, repeat or workflow"""
    status: TaskStatus
    attempt: int
    token: int
    needs: list[int]
    """Positions of the tasks that it needs."""
    join: str
    """What it asks of them: `all`, `any`, a number, `always`, `on_failure` or `finally`."""
    due_at: Instant | None
    changed_at: Instant | None
    worker: str | None
    """Who runs it now."""
    items: ItemCounts | None
    """Of a map, once its list is known; its items are no tasks of the graph."""
    rounds: int
    """Of a repeat: how many have ended."""
    deadline_at: Instant | None
    """When it has to have ended, while it is open and has a deadline."""
    compensation: TaskStatus | None
    """How far its run has undone it; null while it does not."""
    spans: list[Span]
    """The newest 100, in order."""


class SpanPage(msgspec.Struct):
    items: list[TaskSpans]
    next: str | None
    at: Instant
    """When this was so, by the database's clock."""
    total: int
    """Tasks of the graph."""
