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
    searched_until: datetime | None = None
    """Of a list with a filter: the page ended because of how much it had looked at, which reaches back so far; `next`
    goes on."""


class Published(msgspec.Struct, frozen=True):
    name: str
    version: int
    created: bool
    """False: this content was that version already."""
    bulk_id: str | None = None
    """That moves runs in flight on older versions, where that was asked for and there are any."""


class RunsInFlight(msgspec.Struct, frozen=True):
    """Runs of one version and status that have not ended."""

    version: int
    status: str
    runs: int
    oldest_run_id: str
    then: str = ""
    """What a publish leads to for them: `stays`, on the version that a run began with, or `moves`, where nothing stands
    in the way."""
    oldest_at: datetime | None = None


class TaskChange(msgspec.Struct, frozen=True):
    task: str
    fields: list[str]


class Rename(msgspec.Struct, frozen=True):
    task: str
    was: str
    """In the latest version."""


class Difference(msgspec.Struct, frozen=True):
    """From the latest version to what is to be published."""

    fields: list[str] = []
    """Of the workflow itself: description, input, output, deadline or on_publish."""
    added: list[str] = []
    removed: list[str] = []
    changed: list[TaskChange] = []
    moved: list[str] = []
    """Tasks that stand at another position."""
    renamed: list[Rename] = []
    """Tasks with another name and the same effect keys."""


class Blocked(msgspec.Struct, frozen=True):
    """What stands in the way of moving runs to a version."""

    task: str
    why: str
    runs: int


class RunVerdict(msgspec.Struct, frozen=True):
    """Whether one run could be moved."""

    run_id: str
    version: int
    status: str
    why_not: str | None = None


class Moves(msgspec.Struct, frozen=True):
    """Which runs in flight could be moved to a version, once they are paused."""

    looked_at: int = 0
    """The oldest so many."""
    movable: int = 0
    obstacles: list[Blocked] = []
    runs: list[RunVerdict] = []


class PublishCheck(msgspec.Struct, frozen=True):
    """What a publish would lead to."""

    name: str
    verdict: str
    """first, new, latest, or older: content of an older version, which a publish does not make the latest again"""
    version: int
    """That it would have, or has."""
    latest_version: int | None = None
    difference: Difference | None = None
    runs: list[RunsInFlight] = []
    """Newest version first."""
    moves: Moves = Moves()


class VersionRuns(msgspec.Struct, frozen=True):
    """A version, and the runs that still hold to it."""

    version: int
    is_latest: bool
    in_flight: int
    runs: list[RunsInFlight] = []
    bodies: list[str] = []
    """Registered names that it needs and the latest version does not."""


class Workflow(msgspec.Struct, frozen=True):
    name: str
    latest_version: int
    tasks: int = 0
    """Of the latest version."""


class RunCount(msgspec.Struct, frozen=True):
    count: int
    has_more: bool = False
    """There may be more: older ones were not looked at."""
    since: datetime | None = None
    """When the oldest run that was looked at was started."""


class Run(msgspec.Struct, frozen=True):
    run_id: str
    workflow: str
    version: int
    status: str
    """running, waiting, pausing, paused, completed, failed, cancelling, cancelled, terminated, compensating,
    compensated, compensation_failed or needs_attention"""
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
    deadline_at: datetime | None = None
    """When it has to have ended, while it is open and its workflow has a deadline."""
    priority: int = 0
    """In the queues of pools; higher goes first."""
    labels: dict[str, str] = {}
    """As it was started with them, by name."""

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed")


class ItemCounts(msgspec.Struct, frozen=True):
    """How far a map has come."""

    total: int
    begun: int = 0
    completed: int = 0
    failed: int = 0


class Task(msgspec.Struct, frozen=True):
    """A task; one item of a map, whose name is that of the map, a dot and its place in the list; or what undoes a task,
    such as `charge.compensate`."""

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
    deadline_at: datetime | None = None
    """When it has to have ended, while it is open and has a deadline."""
    rounds: int = 0
    """Of a repeat: how many have ended."""
    compensation: str | None = None
    """How far its run has undone it; None while it does not."""
    is_paused: bool = False
    """By itself: nothing new of it begins until it is resumed, and what was handed out goes on."""


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
    round: int | None = None
    """Of a repeat, from 0."""


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


class LogLine(msgspec.Struct, frozen=True):
    line_id: int
    at: datetime
    task: str
    attempt: int
    token: int
    level: str
    """debug, info, warning or error"""
    message: str
    worker: str = ""
    logger: str = ""
    """Empty: `ctx.log`."""
    fields: dict[str, Any] | None = None


class LogPage(msgspec.Struct, frozen=True):
    items: list[LogLine]
    last: int = 0


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
    context: Any = None
    """What people are shown besides the title."""
    form: dict[str, Any] | None = None
    """JSON Schema of the answer."""
    digest: str = ""
    """SHA-256 of what is shown."""
    needed: int = 1
    no_self_approval: bool = False
    on_expiry: str = "fail"
    answer: Any = None
    """What the last vote filled in."""
    votes: list[dict[str, Any]] = []
    """{by, role, in_place_of, decision, comment, at}, in their order."""
    record: list[dict[str, Any]] = []
    """The same with what each was shown and where it came from; only for a single approval, as the next two."""
    timers: list[dict[str, Any]] = []
    """Reminders and steps of the escalation: {kind, number, to, due_at, fired_at}."""
    history: list[dict[str, Any]] = []
    """Comments, reminders, escalations and links: {at, kind, actor, detail}."""


class Link(msgspec.Struct, frozen=True):
    """An address at which one person decides one approval, once."""

    url: str
    expires_at: datetime


class Delegation(msgspec.Struct, frozen=True, rename={"from_name": "from"}):
    delegation_id: str
    from_name: str
    to: str
    starts_at: datetime
    ends_at: datetime
    reason: str = ""
    made_by: str = ""
    ended_by: str | None = None


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
    items: int | None = None
    """Of a map: how many of its items that began run again."""


class Obstacle(msgspec.Struct, frozen=True):
    why: str
    task: str | None = None
    """None: the run as a whole."""


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
    to_version: int = 0
    """The one on which it runs again: its own, unless another was asked for."""
    obstacles: list[Obstacle] = []
    """What stands in the way of that version; then nothing runs again."""


class Migration(msgspec.Struct, frozen=True):
    """A run that is moved to another version, or what stands in the way."""

    run_id: str
    from_version: int
    to_version: int
    obstacles: list[Obstacle] = []
    """None: it can be moved as it stands."""
    dry_run: bool = False


class DeadLetterSelection(msgspec.Struct, frozen=True):
    """What a replay or discard of many would take."""

    count: int
    dead_letter_ids: list[str]
    """All of them, oldest first."""
    sample: list[DeadLetter] = []
    has_more: bool = False
    """Older ones match as well, beyond what one request takes."""


class WorkflowPause(msgspec.Struct, frozen=True):
    """A workflow that is paused."""

    workflow: str
    reason: str
    paused_at: datetime
    paused_by: str
    runs: dict[str, int] = {}
    """Its open runs, by status."""


class BulkRefusals(msgspec.Struct, frozen=True):
    reason: str
    count: int


class BulkEffect(msgspec.Struct, frozen=True):
    """Tasks that would run again."""

    effect: str
    """none, first, repeats or did_not_happen"""
    protected_by: str | None
    tasks: int


class BulkPreview(msgspec.Struct, frozen=True):
    """What an act on many runs would do."""

    act: str
    count: int
    done: int
    """Of which it could be asked, as they stand now."""
    run_ids: list[str]
    """All that match, oldest first."""
    refused: list[BulkRefusals] = []
    effects: list[BulkEffect] = []
    """Of a rerun: over the first `foreseen` runs."""
    foreseen: int = 0
    has_more: bool = False
    """There may be older ones that match: beyond what one bulk takes, or beyond what a search looks at."""
    filter: str = ""
    """With instants instead of ages."""


class Bulk(msgspec.Struct, frozen=True):
    """One act on many runs, or the replay of many dead letters."""

    bulk_id: str
    act: str
    status: str
    """running, completed or stopped"""
    rate: float
    selected: int
    left: int = 0
    done: int = 0
    refused: int = 0
    """Could not be asked, as they stood at their turn."""
    gone: int = 0
    stopped: int = 0
    reason: str = ""
    created_at: datetime | None = None
    created_by: str = ""
    finished_at: datetime | None = None
    stopped_by: str | None = None
    later: dict[str, int] = {}
    """What became of those that were done; only of a single bulk."""
    refusals: list[BulkRefusals] = []


class BulkItem(msgspec.Struct, frozen=True):
    outcome: str | None
    """done, refused, gone or stopped; None before its turn."""
    run_id: str | None = None
    dead_letter_id: str | None = None
    reason: str | None = None
    done_at: datetime | None = None
    later: str | None = None
    """What became of it: how the run stands now; pending, overtaken, stayed, failed_again or gone."""


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


class PoolTask(msgspec.Struct, frozen=True):
    """A task that holds a slot, or waits for one."""

    run_id: str
    task: str
    workflow: str
    token: int = 0
    since: datetime | None = None
    priority: int = 0
    fairness_key: str | None = None
    """Between whom the slots go in turns; None: with all others that have none."""


class Pool(msgspec.Struct, frozen=True):
    name: str
    is_set: bool = True
    """False: some task waits for it, and nobody has said how many slots it has."""
    limit: int | None = None
    rate: str | None = None
    held: int = 0
    waiting: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    updated_by: str = ""
    holders: list[PoolTask] = []
    """Only of one pool: those who have had their slot for longest."""
    waiters: list[PoolTask] = []
    """Only of one pool: in the order in which they will get one."""


class ParentRun(msgspec.Struct, frozen=True):
    """The run of which a task has asked for another."""

    run_id: str
    task: str
    token: int = 0
    workflow: str = ""
    version: int = 0
    status: str = ""
    waits: bool = True
    """Whether that task ends with the other run."""
    depth: int = 1


class ChildRun(msgspec.Struct, frozen=True):
    """A run that a task has asked for."""

    run_id: str
    task: str
    token: int = 0
    workflow: str = ""
    version: int | None = None
    status: str = ""
    """Of that run; or asked, refused, cancelled, when it has not started."""
    waits: bool = True
    """Whether the task ends with it."""
    asked_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cancel_asked_at: datetime | None = None
    reason: str | None = None
    """Why it was refused."""


class Relations(msgspec.Struct, frozen=True):
    parent: ParentRun | None = None


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
