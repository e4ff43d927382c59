"""What the API answers, as a caller of `headrace.client` sees it. User data is plain JSON data here.

Fields that a newer API adds are ignored; a status is its word, such as `completed`, so that a new one breaks nobody.
"""

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    items: list[T]
    next: str | None = None
    """Token of the page behind this one; None on the last."""


class Published(msgspec.Struct, frozen=True):
    name: str
    version: int
    created: bool
    """False: this content was that version already."""


class Workflow(msgspec.Struct, frozen=True):
    name: str
    latest_version: int
    tasks: int = 0
    """Of the latest version."""


class Run(msgspec.Struct, frozen=True):
    run_id: str
    workflow: str
    version: int
    status: str
    """running, waiting, completed, failed, cancelled or needs_attention"""
    input: Any = None
    outputs: dict[str, Any] = {}
    """Of completed tasks that no other task needs."""
    trigger: str = ""
    row_version: int = 0
    """Rises with everything that moves the run."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    counts: dict[str, int] = {}
    """Tasks by status."""

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")


class Task(msgspec.Struct, frozen=True):
    task_id: str
    run_id: str
    name: str
    status: str
    run: str | None = None
    """Name of the body; None for a pure approval."""
    queue: str = "default"
    needs: list[str] = []
    attempt: int = 0
    token: int = 0
    attempts_max: int = 0
    due_at: datetime | None = None
    session_id: str | None = None
    changed_at: datetime | None = None
    input: Any = None
    """Only for a single task, once it was handed out."""
    output: Any = None
    error: Any = None
    """{code, message, …}, or None."""
    approval_id: str | None = None
    progress: Any = None
    """What its body last said by `ctx.heartbeat(details)`."""


class Attempt(msgspec.Struct, frozen=True):
    attempt: int
    token: int
    outcome: str
    worker: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    ended_at: datetime | None = None
    output: Any = None
    error: Any = None


class HistoryItem(msgspec.Struct, frozen=True):
    row_version: int
    at: datetime
    kind: str
    task: str | None = None
    token: int | None = None
    actor: str | None = None
    detail: Any = None


class Approval(msgspec.Struct, frozen=True):
    approval_id: str
    run_id: str
    workflow: str
    task: str
    title: str
    status: str
    """waiting, approved, rejected, expired or cancelled"""
    approvers: list[str] | None = None
    asked_at: datetime | None = None
    expires_at: datetime | None = None
    decided_at: datetime | None = None
    decided_by: str | None = None
    comment: str | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    dead_letter_id: str
    kind: str
    """task or record"""
    status: str
    """parked, replayed or discarded"""
    reason: str
    run_id: str | None = None
    workflow: str | None = None
    task: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    value: str | None = None
    error: Any = None
    created_at: datetime | None = None


class Worker(msgspec.Struct, frozen=True):
    session_id: str
    worker: str
    queues: list[str]
    slots: int = 0
    held: int = 0
    draining: bool = False
    library: str = ""
    started_at: datetime | None = None
    renewed_at: datetime | None = None
    expires_at: datetime | None = None
    live: bool = True
