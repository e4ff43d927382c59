"""The states of a task and of a run. The values equal the enums in Postgres; a test compares the two."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class TaskStatus(StrEnum):
    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class RunStatus(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NEEDS_ATTENTION = "needs_attention"
    PAUSING = "pausing"
    PAUSED = "paused"
    TERMINATED = "terminated"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"
    CANCELLING = "cancelling"


PENDING: Final = TaskStatus.PENDING
QUEUED: Final = TaskStatus.QUEUED
RUNNING: Final = TaskStatus.RUNNING
WAITING: Final = TaskStatus.WAITING
COMPLETED: Final = TaskStatus.COMPLETED
FAILED: Final = TaskStatus.FAILED
SKIPPED: Final = TaskStatus.SKIPPED
CANCELLED: Final = TaskStatus.CANCELLED
TERMINAL: Final = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.SKIPPED, TaskStatus.CANCELLED})
RUN_TERMINAL: Final = frozenset({
    RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TERMINATED, RunStatus.COMPENSATED,
    RunStatus.COMPENSATION_FAILED,
})  # fmt: skip

PAUSED: Final = 1
WORKFLOW_PAUSED: Final = 2
TERMINATED: Final = 4
OVERDUE: Final = 8
TASKS_PAUSED: Final = 16
MOVING: Final = 32
CANCELLING: Final = 64
AWAITS_PERMIT: Final = 128
"""Bits of a run's `control`: what people said about it as a whole, or its deadline, or the limit of its workflow did.
Stored, so none ever gets another meaning. CANCELLING: of a workflow with clean-ups, a
cancel or its deadline has ended all but those."""
PAUSES: Final = PAUSED | WORKFLOW_PAUSED | MOVING
"""What people say of the whole run."""
WITHHOLDS: Final = PAUSES | AWAITS_PERMIT
"""While any of them is set, nothing new of the run begins."""
HOLDS: Final = WITHHOLDS | TASKS_PAUSED
"""While none of them is set, whatever may begin does so: one look for what is on every path."""


class CompensationCounts(msgspec.Struct, frozen=True):
    """How far a run has come that undoes what it did."""

    total: int
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def open(self) -> int:
        return self.total - self.completed - self.failed - self.cancelled

    def after(self, before: TaskStatus | None, status: TaskStatus) -> "CompensationCounts":
        """With one that was so, and is so now."""
        return CompensationCounts(
            self.total,
            self.completed + (status is COMPLETED) - (before is COMPLETED),
            self.failed + (status is FAILED) - (before is FAILED),
            self.cancelled + (status is CANCELLED) - (before is CANCELLED),
        )


def derive_status(
    tasks: int,
    counts: Mapping[TaskStatus, int],
    *,
    attention: bool,
    control: int = 0,
    compensations: CompensationCounts | None = None,
) -> RunStatus:
    """Derive a run's status from its tasks and its flags: total, and independent of the order of the tasks.

    tasks: how many the graph has. counts: tasks by state; those nobody has touched yet are left out. compensations: of
    a run that has begun to undo what it did.
    `headrace doctor` recomputes this in SQL for every run and must find no difference.
    """
    if attention:
        return RunStatus.NEEDS_ATTENTION
    get = counts.get
    failed, cancelled = get(TaskStatus.FAILED, 0), get(TaskStatus.CANCELLED, 0)
    if get(TaskStatus.COMPLETED, 0) + get(TaskStatus.SKIPPED, 0) + failed + cancelled == tasks:
        if control & TERMINATED:
            return RunStatus.TERMINATED
        if compensations is None:
            if failed or control & OVERDUE:
                return RunStatus.FAILED
            return RunStatus.CANCELLED if cancelled or control & CANCELLING else RunStatus.COMPLETED
        if not compensations.open:
            return RunStatus.COMPENSATION_FAILED if compensations.failed else RunStatus.COMPENSATED
        if not control & WITHHOLDS:
            return RunStatus.COMPENSATING
    if control & PAUSES:
        is_busy = get(TaskStatus.QUEUED, 0) or get(TaskStatus.RUNNING, 0)
        return RunStatus.PAUSING if is_busy else RunStatus.PAUSED
    if control & CANCELLING:
        return RunStatus.CANCELLING
    if control & AWAITS_PERMIT:  # before anything of it has begun, so nothing is busy
        return RunStatus.WAITING
    busy = get(TaskStatus.QUEUED, 0) + get(TaskStatus.RUNNING, 0) + get(TaskStatus.PENDING, 0)
    return RunStatus.WAITING if get(TaskStatus.WAITING, 0) and not busy else RunStatus.RUNNING
