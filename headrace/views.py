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
    """running, waiting, pausing, paused, completed, failed, cancelled, terminated or needs_attention"""
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
    output: Any = None
    """What the workflow says comes out of a run that completed."""
    output_error: Any = None
    """{code, message}: why there is none although the run completed; or None."""

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed", "cancelled", "terminated")


class ItemCounts(msgspec.Struct, frozen=True):
    """How far a map has come."""

    total: int
    begun: int = 0
    completed: int = 0
    failed: int = 0


class Task(msgspec.Struct, frozen=True):
    """A task, or one item of a map: its name is then that of the map, a dot and its place in the list."""

    task_id: str
    run_id: str
    name: str
    status: str
    run: str | None = None
    """Name of the body; None for what is only an approval, a wait or a signal."""
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
    signal: str | None = None
    """The name of the signal that it waits for, if that is what it does."""
    progress: Any = None
    """What its body last said by `ctx.heartbeat(details)`."""
    items: ItemCounts | None = None
    """Of a map, once its list is known."""


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


class Signal(msgspec.Struct, frozen=True):
    signal_id: str
    run_id: str
    name: str
    status: str
    """sent, kept, taken or refused"""
    data: Any = None
    key: str | None = None
    id: str | None = None
    """The sender's own name for it."""
    actor: str = ""
    sent_at: datetime | None = None
    task: str | None = None
    """Which task took it."""
    token: int | None = None
    row_version: int | None = None
    settled_at: datetime | None = None
    reason: str | None = None


class PostedSignal(msgspec.Struct, frozen=True):
    signal_id: str
    name: str
    key: str
    status: str
    """open, taken or expired"""
    data: Any = None
    id: str | None = None
    """The sender's own name for it."""
    actor: str = ""
    sent_at: datetime | None = None
    expires_at: datetime | None = None
    offers: list[dict[str, Any]] = []
    """{run_id, task, status, …}: waits that it came to; only for a single signal."""


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


class RecordHeader(msgspec.Struct, frozen=True):
    name: str
    value: str | None
    encoding: str = "text"
    """text or base64"""


class ParkedTask(msgspec.Struct, frozen=True):
    task_id: str
    run_id: str
    workflow: str
    task: str
    token: int
    parked_at: datetime
    error: dict[str, Any]
    """What is not known, and what ended the attempt."""


class DeadLetter(msgspec.Struct, frozen=True):
    dead_letter_id: str
    kind: str
    """task or record"""
    status: str
    """parked, replayed or discarded"""
    reason: str
    run_id: str | None = None
    workflow: str | None = None
    version: int | None = None
    task: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    value: str | None = None
    error: Any = None
    code: str = ""
    fingerprint: str = ""
    """The same for letters of one cause."""
    created_at: datetime | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None
    close_reason: str | None = None
    replay_of: str | None = None
    """The dead letter whose replay ended here."""
    replayed_as: str | None = None
    """The dead letter in which its replay ended."""
    replay_outcome: str | None = None
    """pending, completed, failed_again or cancelled; None unless it was replayed."""
    attempts: list[Attempt] = []
    """This and what follows only of a single one."""
    input: Any = None
    input_missing: str | None = None
    """Why there is no input."""
    run_input: Any = None
    headers: list[RecordHeader] = []
    value_base64: str | None = None
    traceparent: str | None = None


class DeadLetterGroup(msgspec.Struct, frozen=True):
    fingerprint: str
    count: int
    kind: str
    code: str
    message: str
    """Of the newest one."""
    sample: str
    """Id of the newest one."""
    first_at: datetime
    last_at: datetime
    workflow: str | None = None
    version: int | None = None
    task: str | None = None
    topic: str | None = None


class RerunTask(msgspec.Struct, frozen=True):
    task: str
    status: str
    """As it stood before."""
    then: str
    """begins, follows, skipped or failed"""
    effect: str
    """none, first, repeats or did_not_happen"""
    protected_by: str | None = None
    """effect_key, lookup or person: what keeps an effect that repeats from happening twice."""
    attempt: int = 0
    effect_key: str | None = None


class Rerun(msgspec.Struct, frozen=True):
    """What of a run runs again, and what stands."""

    run_id: str
    again: list[RerunTask]
    reused: list[str]
    row_version: int
    """Of the run that was looked at; `rerun` takes it, and is refused when the run has moved since."""
    workflow: str = ""
    version: int = 0
    dry_run: bool = False


class DeadLetterSelection(msgspec.Struct, frozen=True):
    """What a replay or discard of many would take."""

    count: int
    dead_letter_ids: list[str]
    """All of them, oldest first."""
    sample: list[DeadLetter] = []
    has_more: bool = False
    """Older ones match as well, beyond what one request takes."""


class BulkReplay(msgspec.Struct, frozen=True):
    replay_id: str
    status: str
    """running, completed or stopped"""
    rate: float
    selected: int
    left: int = 0
    replayed: int = 0
    refused: int = 0
    """Could not be replayed when their turn came."""
    stopped: int = 0
    created_at: datetime | None = None
    created_by: str = ""
    finished_at: datetime | None = None
    outcomes: dict[str, int] = {}
    """What became of those replayed; only of a single bulk replay."""


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


class CauseObject(msgspec.Struct, frozen=True):
    kind: str
    """run, task, timer, session, queue, approval, parked_task, request, dead_letter, partition, relay, slot …"""
    id: str
    link: str | None = None
    """Path of the API that shows it."""


class CauseAct(msgspec.Struct, frozen=True):
    """What a person can do about a cause."""

    cli: str
    api: str


class Cause(msgspec.Struct, frozen=True):
    code: str
    """Stable, such as NO_WORKER."""
    text: str
    points_to: CauseObject
    moves: str
    """The event that would move it."""
    since: datetime | None = None
    until: datetime | None = None
    """When that comes by itself, where that is known."""
    acts: list[CauseAct] = []
    tasks: list[str] = []
    """Tasks that it holds up; the first few of `tasks_total`."""
    tasks_total: int = 0


class Explanation(msgspec.Struct, frozen=True):
    run_id: str
    status: str
    causes: list[Cause]
    """Nearest first; never empty."""
    task: str | None = None
    """None: the run as a whole."""
    at: datetime | None = None
    open_tasks: int = 0
    looked_at: int = 0
