"""The states of a task and of a run. The values equal the enums in Postgres; a test compares the two."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


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


TERMINAL: Final = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.SKIPPED, TaskStatus.CANCELLED})
RUN_TERMINAL: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


def derive_status(tasks: int, counts: Mapping[TaskStatus, int], *, attention: bool) -> RunStatus:
    """Derive a run's status from its tasks: total, and independent of their order.

    tasks: how many the graph has. counts: tasks by state; those nobody has touched yet are left out.
    `headrace doctor` recomputes this in SQL for every run and must find no difference.
    """
    if attention:
        return RunStatus.NEEDS_ATTENTION
    get = counts.get
    failed, cancelled = get(TaskStatus.FAILED, 0), get(TaskStatus.CANCELLED, 0)
    if get(TaskStatus.COMPLETED, 0) + get(TaskStatus.SKIPPED, 0) + failed + cancelled == tasks:
        if failed:
            return RunStatus.FAILED
        return RunStatus.CANCELLED if cancelled else RunStatus.COMPLETED
    busy = get(TaskStatus.QUEUED, 0) + get(TaskStatus.RUNNING, 0) + get(TaskStatus.PENDING, 0)
    return RunStatus.WAITING if get(TaskStatus.WAITING, 0) and not busy else RunStatus.RUNNING
