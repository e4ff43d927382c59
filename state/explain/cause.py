"""What is told: a cause, with its stable code, what it points to and what would move it."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal, NamedTuple

NAMES_MAX: Final = 5
"""Tasks that one cause names; its `tasks_total` says how many there are."""


class Code(StrEnum):
    """Stable words for programs; docs/explain.md has a line for each."""

    # what ends it, if nothing does before
    DEADLINE = "DEADLINE"
    START_DEADLINE = "START_DEADLINE"
    RUN_DEADLINE = "RUN_DEADLINE"
    # a run
    RUN_COMPLETED = "RUN_COMPLETED"
    RUN_FAILED = "RUN_FAILED"
    RUN_CANCELLING = "RUN_CANCELLING"
    RUN_CANCELLED = "RUN_CANCELLED"
    RUN_TERMINATED = "RUN_TERMINATED"
    RUN_COMPENSATING = "RUN_COMPENSATING"
    RUN_COMPENSATED = "RUN_COMPENSATED"
    RUN_COMPENSATION_FAILED = "RUN_COMPENSATION_FAILED"
    PAUSED = "PAUSED"
    TASK_PAUSED = "TASK_PAUSED"
    PERMIT_AWAITED = "PERMIT_AWAITED"
    PERMIT_GRANTED = "PERMIT_GRANTED"
    PERMIT_MISSING = "PERMIT_MISSING"
    NEEDS_ATTENTION = "NEEDS_ATTENTION"
    REQUEST_NOT_APPLIED = "REQUEST_NOT_APPLIED"
    NOTHING_OPEN = "NOTHING_OPEN"
    # a task that is PENDING
    NEEDS_UNFINISHED = "NEEDS_UNFINISHED"
    COMPENSATION_LATER = "COMPENSATION_LATER"
    JOIN_MISSED = "JOIN_MISSED"
    WITHHELD = "WITHHELD"
    BACKOFF = "BACKOFF"
    BETWEEN_ROUNDS = "BETWEEN_ROUNDS"
    TIMER_OVERDUE = "TIMER_OVERDUE"
    TIMER_MISSING = "TIMER_MISSING"
    # QUEUED
    NOT_PUBLISHED = "NOT_PUBLISHED"
    QUEUE_PAUSED = "QUEUE_PAUSED"
    NO_WORKER = "NO_WORKER"
    WORKERS_DRAINING = "WORKERS_DRAINING"
    WORKERS_FULL = "WORKERS_FULL"
    NOT_RECEIVED = "NOT_RECEIVED"
    COMMAND_LOST = "COMMAND_LOST"
    BACKLOG = "BACKLOG"
    IN_PREFETCH = "IN_PREFETCH"
    CLAIM_NOT_GRANTED = "CLAIM_NOT_GRANTED"
    RECEIVED = "RECEIVED"
    BODY_UNKNOWN = "BODY_UNKNOWN"
    # RUNNING, or QUEUED and listed by a session
    RUNNING = "RUNNING"
    TIMEOUT_OVERDUE = "TIMEOUT_OVERDUE"
    SESSION_EXPIRED = "SESSION_EXPIRED"
    SESSION_ENDED = "SESSION_ENDED"
    SESSION_UNKNOWN = "SESSION_UNKNOWN"
    NOT_LISTED = "NOT_LISTED"
    WORKER_DRAINING = "WORKER_DRAINING"
    LOOKING_UP = "LOOKING_UP"
    # WAITING
    WAIT = "WAIT"
    SIGNAL_AWAITED = "SIGNAL_AWAITED"
    SIGNAL_WAIT_MISSING = "SIGNAL_WAIT_MISSING"
    CHILD_OPEN = "CHILD_OPEN"
    CHILD_NOT_STARTED = "CHILD_NOT_STARTED"
    CHILD_NOT_TOLD = "CHILD_NOT_TOLD"
    CHILD_MISSING = "CHILD_MISSING"
    ITEMS_OPEN = "ITEMS_OPEN"
    ITEMS_MISSED = "ITEMS_MISSED"
    SLOT_AWAITED = "SLOT_AWAITED"
    RATE_AWAITED = "RATE_AWAITED"
    SLOT_GRANTED = "SLOT_GRANTED"
    POOL_NOT_SET = "POOL_NOT_SET"
    SLOT_WAIT_MISSING = "SLOT_WAIT_MISSING"
    APPROVAL_OPEN = "APPROVAL_OPEN"
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED"
    APPROVAL_MISSING = "APPROVAL_MISSING"
    DECISION_NOT_APPLIED = "DECISION_NOT_APPLIED"
    PARKED = "PARKED"
    PARKED_MISSING = "PARKED_MISSING"
    # a task that has ended
    TASK_COMPLETED = "TASK_COMPLETED"
    TASK_FAILED = "TASK_FAILED"
    TASK_SKIPPED = "TASK_SKIPPED"
    TASK_CANCELLED = "TASK_CANCELLED"
    STILL_HELD = "STILL_HELD"
    # the engine
    STREAMS_AWAY = "STREAMS_AWAY"
    KAFKA_AWAY = "KAFKA_AWAY"
    SWEEP_LATE = "SWEEP_LATE"
    RELAY_AWAY = "RELAY_AWAY"
    SLOT_LOST = "SLOT_LOST"
    RELAY_BEHIND = "RELAY_BEHIND"
    TICKS_LATE = "TICKS_LATE"
    PARTITION_UNOWNED = "PARTITION_UNOWNED"
    PARTITION_SILENT = "PARTITION_SILENT"


Kind = Literal["run", "task", "timer", "session", "queue", "approval", "parked_task", "request", "dead_letter",
               "partition", "relay", "slot", "sweep", "kafka", "pool"]  # fmt: skip


class Object(NamedTuple):
    kind: Kind
    id: str
    link: str | None = None
    """Path of the API that shows it."""


class Act(NamedTuple):
    """What a person can do."""

    cli: str
    api: str


class Cause(NamedTuple):
    code: Code
    text: str
    points_to: Object
    moves: str
    """The event that moves it."""
    since: datetime | None = None
    until: datetime | None = None
    """When that comes by itself, where that is known."""
    acts: Sequence[Act] = ()
    tasks: Sequence[str] = ()
    """Names of the tasks it holds up; the first NAMES_MAX."""
    tasks_total: int = 0
    """How many there are."""
