"""Pauses of workflows and queues."""

import msgspec

from api.schemas.wire import Instant


class WorkflowPaused(msgspec.Struct):
    """What was asked; its runs follow."""

    workflow: str
    paused: bool


class Pause(msgspec.Struct):
    workflow: str
    reason: str
    paused_at: Instant
    paused_by: str
    runs: dict[str, int]
    """Its open runs, by status: `pausing` still run something, `paused` do not, `running` and `waiting` are yet to be
    told."""


class QueuePaused(msgspec.Struct):
    queue: str
    paused: bool


class QueuePause(msgspec.Struct):
    queue: str
    reason: str
    paused_at: Instant
    paused_by: str
    held: int
    """Commands that are kept back; what workers have taken before goes on."""


class QueuePauses(msgspec.Struct):
    items: list[QueuePause]


class PausePage(msgspec.Struct):
    items: list[Pause]
    next: str | None
