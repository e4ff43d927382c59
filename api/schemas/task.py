"""Tasks and their attempts."""

import msgspec

from api.schemas.wire import Instant
from headrace.machine import TaskStatus


class ItemCounts(msgspec.Struct):
    """How far a map has come. What has begun and neither completed nor failed is under way, or was cancelled."""

    total: int
    begun: int
    completed: int
    failed: int


class Task(msgspec.Struct):
    """A task, one item of a map, or what undoes a task."""

    task_id: str
    run_id: str
    name: str
    """Of an item: that of its map, a dot and its place in the list from 0. Of a compensation: that of its task, and
    `.compensate`."""
    index: int
    """Position in the graph, from 0; of an item, that of its map, and of a compensation, that of its task."""
    run: str | None
    """Name of the body; null for what is only an approval, a wait, a signal or a workflow."""
    queue: str
    needs: list[str]
    status: TaskStatus
    attempt: int
    """Bodies that began."""
    token: int
    """Hand-outs."""
    attempts_max: int
    due_at: Instant | None
    """When its backoff, its time-out, its time in the queue or its wait ends."""
    session_id: str | None
    """The worker session that runs it."""
    changed_at: Instant | None
    """null: it was never touched."""
    output: msgspec.Raw
    error: msgspec.Raw
    """{code, message, …}, or null."""
    approval_id: str | None
    progress: msgspec.Raw
    """What its body last said by `ctx.heartbeat(details)`, or null."""
    items: ItemCounts | None
    """Of a map, once its list is known."""
    signal: str | None
    """The name of the signal that it waits for, if that is what it does."""
    deadline_at: Instant | None
    """When it has to have ended, while it is open and has a deadline."""
    rounds: int
    """Of a repeat: how many have ended."""
    workflow: str | None
    """The workflow that it runs, as a run of its own; `GET /runs/{run_id}/relations` has that."""
    compensation: TaskStatus | None
    """How far its run has undone it; null while it does not."""
    is_paused: bool
    """By itself: nothing new of it begins until it is resumed, and what was handed out goes on."""
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What its body is given, or the list of a map; only for a single task, once it was handed out."""


class TaskPage(msgspec.Struct):
    items: list[Task]
    next: str | None


class ItemPage(msgspec.Struct):
    items: list[Task]
    next: str | None
    counts: ItemCounts | None
    """Of all items, also of those that are not listed; null before the list is known."""


class Attempt(msgspec.Struct):
    attempt: int
    token: int
    outcome: str
    worker: str
    started_at: Instant | None
    finished_at: Instant | None
    """By the worker's clock, as `started_at`."""
    ended_at: Instant
    """By the database's clock: when the end was recorded."""
    output: msgspec.Raw
    error: msgspec.Raw
    round: int | None
    """Of a repeat, from 0."""


class AttemptPage(msgspec.Struct):
    items: list[Attempt]
    next: str | None
