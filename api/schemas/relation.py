"""Runs that began one another."""

import msgspec

from api.schemas.wire import Instant
from headrace.machine import RunStatus


class ParentRun(msgspec.Struct):
    """The run of which a task has asked for this one."""

    run_id: str
    task: str
    token: int
    """Of the hand-out that asked."""
    workflow: str
    version: int
    status: RunStatus
    waits: bool
    """Whether that task ends with this run; false with `wait: false`."""
    depth: int
    """How many runs stand above this one, each started by the one before."""


class ChildRun(msgspec.Struct):
    """A run that a task has asked for."""

    run_id: str
    task: str
    token: int
    """Of the hand-out that asked: after a replay the task has another child."""
    workflow: str
    version: int | None
    """null until it starts, unless the task names one."""
    status: str
    """Of that run; or asked, refused, cancelled, when it has not started."""
    waits: bool
    """Whether the task ends with it; false with `wait: false`."""
    asked_at: Instant
    started_at: Instant | None
    ended_at: Instant | None
    cancel_asked_at: Instant | None
    """When its parent needed it no more, and asked it to end."""
    reason: str | None
    """Why it was refused."""


class RelationPage(msgspec.Struct):
    items: list[ChildRun]
    """What tasks of the run have asked for."""
    next: str | None
    parent: ParentRun | None
    """null for a run that no task has asked for, or whose parent has been removed."""
