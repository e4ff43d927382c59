"""Tasks whose effect is not known."""

from typing import Literal

import msgspec

from api.schemas.wire import Instant, Text


class ResolveBody(msgspec.Struct, forbid_unknown_fields=True):
    outcome: Literal["happened", "did_not_happen", "fail"]
    output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What the body would have returned, when it happened; null when left out."""
    comment: Text = ""


class ParkedTask(msgspec.Struct):
    task_id: str
    run_id: str
    workflow: str
    task: str
    token: int
    parked_at: Instant
    error: msgspec.Raw
    """What is not known, and what ended the attempt."""


class ParkedTaskPage(msgspec.Struct):
    items: list[ParkedTask]
    next: str | None


class TaskResolved(msgspec.Struct):
    task_id: str
    outcome: str
    resolved_by: str
