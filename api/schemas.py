"""What the API answers and takes, as it stands on the wire. These types encode the answers and make the OpenAPI
document.

User data is `msgspec.Raw`: it leaves as the bytes that came in. Instants are RFC 3339 in UTC. A field is only ever
added.
"""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from headrace.machine import RunStatus, TaskStatus

Text = Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00]*$(?!\n)")]
"""Words of a person."""
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
"""A name or key given by a caller: compared as it is, character by character; nothing is normalised or trimmed."""
WorkflowName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,99}$(?!\n)")]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
Version = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Fault(msgspec.Struct, omit_defaults=True):
    """One thing that is wrong with a request."""

    path: str
    message: str
    line: int | None = None
    """Line in the text of a workflow, from 1."""


class Problem(msgspec.Struct, omit_defaults=True):
    """RFC 9457 problem details; `code` is stable and has a section in docs/errors.md."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[Fault] = []


# == workflows =========================================================================================================
class Published(msgspec.Struct):
    name: str
    version: int
    created: bool
    """False: this content was that version already."""
    digest: str
    published_at: Instant


class WorkflowSummary(msgspec.Struct):
    name: str
    latest_version: int
    created_at: Instant
    updated_at: Instant
    tasks: int
    """Of the latest version."""


class WorkflowPage(msgspec.Struct):
    items: list[WorkflowSummary]
    next: str | None


class VersionSummary(msgspec.Struct):
    version: int
    digest: str
    published_at: Instant
    published_by: str


class Workflow(msgspec.Struct):
    name: str
    latest_version: int
    versions: list[VersionSummary]
    """Newest first."""
    definition: msgspec.Raw
    """Of the latest version."""


class WorkflowVersion(msgspec.Struct):
    name: str
    version: int
    digest: str
    published_at: Instant
    published_by: str
    definition: msgspec.Raw


# == runs ==============================================================================================================
class StartBody(msgspec.Struct, forbid_unknown_fields=True):
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Any JSON; `{}` when left out."""
    version: Version | None = None
    """The latest, when left out."""
    key: Name | None = None
    """Trigger identity: one key, one run, for ever."""
    run_id: str | None = None
    """A UUIDv7, when the caller wants to know it beforehand."""


class ReasonBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: Text = ""


class RerunBody(msgspec.Struct, forbid_unknown_fields=True):
    tasks: Annotated[list[Name], msgspec.Meta(max_length=1_000)] = []
    """These, and all that depends on them. Left out: what failed or was cancelled, and what was skipped because of
    that."""
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Takes the place of the input of the only task named."""
    reason: Text = ""
    dry_run: bool = False
    """Only say what would run again."""
    row_version: Version | None = None
    """As a dry run said: refused when the run has moved since."""


class RerunTask(msgspec.Struct):
    task: str
    status: TaskStatus
    """As it stands."""
    attempt: int
    then: Literal["begins", "follows", "skipped", "failed"]
    """Begins at once; follows what it needs; or is skipped, or fails, again at once."""
    effect: Literal["none", "first", "repeats", "did_not_happen"]
    """It has no body; its body never began; its body may have had its effect, and runs again; it failed, and said that
    it had none."""
    protected_by: Literal["effect_key", "lookup", "person"] | None
    """What keeps an effect that repeats from happening twice."""
    effect_key: str | None


class Rerun(msgspec.Struct):
    """What runs again, and what stands."""

    run_id: str
    dry_run: bool
    workflow: str
    version: int
    """The one that runs: the run stays on it."""
    row_version: int
    again: list[RerunTask]
    reused: list[str]
    """Tasks whose ends stand."""


class SkipBody(msgspec.Struct, forbid_unknown_fields=True):
    output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What its body would have returned; null when left out."""
    reason: Text = ""


class Run(msgspec.Struct):
    run_id: str
    workflow: str
    version: int
    status: RunStatus
    input: msgspec.Raw
    outputs: dict[str, msgspec.Raw]
    """Of completed tasks that no other task needs."""
    trigger: str
    """What started it, such as `api`."""
    row_version: int
    """Rises with everything that moves the run."""
    created_at: Instant
    updated_at: Instant
    finished_at: Instant | None
    counts: dict[str, int]
    """Tasks by status; every status is there."""
    namespace: str
    output: msgspec.Raw
    """What the workflow says comes out of a run that completed; null for one that does not say."""
    output_error: msgspec.Raw
    """{code, message}: why there is none although the run completed; or null."""


class RunPage(msgspec.Struct):
    items: list[Run]
    next: str | None


class RunSummary(msgspec.Struct):
    run_id: str
    workflow: str
    status: RunStatus
    row_version: int
    counts: dict[str, int]


class EmptyBody(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing to say."""


class Accepted(msgspec.Struct):
    run_id: str
    accepted: bool


class SignalBody(msgspec.Struct, forbid_unknown_fields=True):
    name: WorkflowName
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Any JSON."""
    key: Name | None = None
    """Only for a task that waits for this key; any that waits for the name, when left out."""
    id: Name | None = None
    """The sender's own name for it, such as the id of a CloudEvent: sent twice, it is one signal."""


class Signal(msgspec.Struct):
    signal_id: str
    run_id: str
    name: str
    key: str | None
    data: msgspec.Raw
    id: str | None
    """The sender's own name for it."""
    actor: str
    sent_at: Instant
    status: Literal["sent", "kept", "taken", "refused"]
    """sent: stored, and its run has not taken note of it yet; kept: no task waits for it; refused: the run had ended
    when it came."""
    task: str | None
    """Which task took it."""
    token: int | None
    row_version: int | None
    """The move of the run by which it was taken, see the history."""
    settled_at: Instant | None
    reason: str | None
    """Why it was refused."""


class SignalPage(msgspec.Struct):
    items: list[Signal]
    next: str | None


class PostBody(msgspec.Struct, forbid_unknown_fields=True):
    name: WorkflowName
    key: Name
    """Whoever waits for this key may have it."""
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Any JSON."""
    id: Name | None = None
    """The sender's own name for it, such as the id of a CloudEvent: posted twice, it is one signal."""
    keep: str | float = "1d"
    """How long it waits for somebody who waits for it: text such as `12h`, or seconds; 30 days at most."""


class Offer(msgspec.Struct):
    run_id: str
    task: str
    status: Literal["sent", "taken", "refused"]
    row_version: int | None
    """The move of the run by which it was taken."""
    settled_at: Instant | None
    reason: str | None
    """Why it was refused."""


class PostedSignal(msgspec.Struct):
    signal_id: str
    name: str
    key: str
    data: msgspec.Raw
    id: str | None
    """The sender's own name for it."""
    actor: str
    sent_at: Instant
    expires_at: Instant
    status: Literal["open", "taken", "expired"]
    """taken: by a task with `delivery: first`; it is still told to those with `all`, until it expires."""
    offers: list[Offer] | msgspec.UnsetType = msgspec.UNSET
    """Waits that it came to, a hundred at most; only for a single signal."""


class PostedSignalPage(msgspec.Struct):
    items: list[PostedSignal]
    next: str | None


class HistoryItem(msgspec.Struct):
    row_version: int
    at: Instant
    kind: str
    task: str | None
    token: int | None
    actor: str | None
    detail: msgspec.Raw


class HistoryPage(msgspec.Struct):
    items: list[HistoryItem]
    next: str | None


# == tasks =============================================================================================================
class ItemCounts(msgspec.Struct):
    """How far a map has come. What has begun and neither completed nor failed is under way, or was cancelled."""

    total: int
    begun: int
    completed: int
    failed: int


class Task(msgspec.Struct):
    """A task, or one item of a map."""

    task_id: str
    run_id: str
    name: str
    """Of an item: that of its map, a dot and its place in the list from 0."""
    index: int
    """Position in the graph, from 0; of an item, that of its map."""
    run: str | None
    """Name of the body; null for what is only an approval, a wait or a signal."""
    queue: str
    needs: list[str]
    status: TaskStatus
    attempt: int
    """Bodies that began."""
    token: int
    """Hand-outs."""
    attempts_max: int
    due_at: Instant | None
    """When its backoff, its time-out or its wait ends."""
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


class AttemptPage(msgspec.Struct):
    items: list[Attempt]
    next: str | None


# == approvals =========================================================================================================
class DecisionBody(msgspec.Struct, forbid_unknown_fields=True):
    decision: Literal["approve", "reject"]
    comment: Text = ""


class CommentBody(msgspec.Struct, forbid_unknown_fields=True):
    comment: Text = ""


class Approval(msgspec.Struct):
    approval_id: str
    run_id: str
    workflow: str
    task: str
    task_id: str
    title: str
    approvers: msgspec.Raw
    """List of roles and names."""
    status: str
    """waiting, approved, rejected, expired or cancelled"""
    asked_at: Instant
    expires_at: Instant | None
    decided_at: Instant | None
    decided_by: str | None
    comment: str | None


class ApprovalPage(msgspec.Struct):
    items: list[Approval]
    next: str | None


# == parked tasks ======================================================================================================
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


# == dead letters ======================================================================================================
class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Takes the place of the task's input, or of the record's value."""
    value_base64: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9+/]*={0,2}$(?!\n)")] | None = None
    """Any bytes, in place of a record's value."""


Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000, pattern=r"^[^\x00]+$(?!\n)")]


class DiscardBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: Reason


class DeadLetterFilter(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which parked dead letters: all that is given must hold, and something must be."""

    kind: Literal["task", "record"] | None = None
    workflow: WorkflowName | None = None
    version: Version | None = None
    task: Name | None = None
    topic: Name | None = None
    fingerprint: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9a-f]*$(?!\n)")] | None = None
    """A group."""
    code: Name | None = None
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00]+$(?!\n)")] | None = None
    """Stands in its reason or message, in small or capital letters."""
    run_id: UUID | None = None
    since: Instant | None = None
    until: Instant | None = None
    dead_letter_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=10_000)] | None = None
    """These and no others: what a dry run answered."""


class BulkReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    filter: DeadLetterFilter
    dry_run: bool = False
    """Only say what would be replayed."""
    rate: Annotated[float, msgspec.Meta(ge=0.01, le=1_000)] = 10.0
    """Dead letters per second."""


class BulkDiscardBody(msgspec.Struct, forbid_unknown_fields=True):
    filter: DeadLetterFilter
    reason: Reason
    dry_run: bool = False


class DeadLetter(msgspec.Struct):
    dead_letter_id: str
    kind: str
    """task or record"""
    status: str
    """parked, replayed or discarded"""
    run_id: str | None
    workflow: str | None
    version: int | None
    task: str | None
    task_id: str | None
    token: int | None
    topic: str | None
    partition: int | None
    offset: int | None
    """-1: Kafka refused it, it never had a place."""
    key: str | None
    key_encoding: str | None
    """text or base64"""
    value: str | None
    value_encoding: str | None
    reason: str
    error: msgspec.Raw
    code: str
    fingerprint: str
    """The same for letters of one cause: error, task or topic, workflow and version."""
    created_at: Instant
    closed_at: Instant | None
    closed_by: str | None
    close_reason: str | None
    replay_of: str | None
    """The dead letter whose replay ended here."""
    replay_token: int | None
    """Hand-out under which its replay began."""
    replayed_as: str | None
    """The dead letter in which its replay ended."""
    replay_outcome: str | None
    """What became of its replay: pending, completed, failed_again or cancelled; null unless it was replayed."""


class DeadLetterPage(msgspec.Struct):
    items: list[DeadLetter]
    next: str | None


class RecordHeader(msgspec.Struct):
    name: str
    value: str | None
    encoding: str
    """text or base64"""


class DeadLetterContext(DeadLetter):
    """A dead letter with all that is known about it."""

    attempts: list[Attempt]
    """Of its task, up to this one, the newest 100, in order."""
    input: msgspec.Raw | msgspec.UnsetType
    """What its body was given; left out when there is none, and `input_missing` says why."""
    input_missing: str | None
    run_input: msgspec.Raw
    headers: list[RecordHeader]
    key_base64: str | None
    value_base64: str | None
    """The record's bytes, whatever they are."""
    traceparent: str | None
    history: str | None
    """Path of its run's history."""


class DeadLetterGroup(msgspec.Struct):
    fingerprint: str
    count: int
    first_at: Instant
    last_at: Instant
    kind: str
    workflow: str | None
    version: int | None
    task: str | None
    topic: str | None
    code: str
    message: str
    """Of the newest one."""
    sample: str
    """Id of the newest one."""


class DeadLetterGroupPage(msgspec.Struct):
    items: list[DeadLetterGroup]
    next: str | None


class DeadLetterClosed(msgspec.Struct):
    dead_letter_id: str
    status: str


class DeadLetterSelection(msgspec.Struct):
    """Parked dead letters that match a filter and are not being replayed already."""

    dry_run: bool
    count: int
    has_more: bool
    """Older ones match as well: one selection has 10,000 at most."""
    sample: list[DeadLetter]
    """The oldest ones."""
    dead_letter_ids: list[str]
    """All of them, oldest first: a filter of these ids takes exactly what was shown."""


class DeadLettersDiscarded(msgspec.Struct):
    discarded: int
    has_more: bool
    """Older ones match as well: one request closes 10,000 at most."""


class ReplayRefusal(msgspec.Struct):
    dead_letter_id: str
    reason: str


class BulkReplay(msgspec.Struct):
    replay_id: str
    status: str
    """running, completed or stopped"""
    filter: msgspec.Raw
    rate: float
    selected: int
    left: int
    """Not gone out yet."""
    replayed: int
    refused: int
    """Could not be replayed when their turn came."""
    stopped: int
    created_at: Instant
    created_by: str
    finished_at: Instant | None
    stopped_by: str | None


class BulkReplayProgress(BulkReplay):
    outcomes: dict[str, int]
    """What became of those replayed: pending, completed, failed_again, cancelled."""
    refusals: list[ReplayRefusal]
    """The first 20."""


class BulkReplayPage(msgspec.Struct):
    items: list[BulkReplay]
    next: str | None


# == explain ===========================================================================================================
class CauseObject(msgspec.Struct):
    """What a cause points to."""

    kind: str
    """run, task, timer, session, queue, approval, parked_task, request, dead_letter, partition, relay, slot, sweep or
    kafka"""
    id: str
    """Empty when there is none, such as a relay that never was."""
    link: str | None
    """Path of this API that shows it."""


class CauseAct(msgspec.Struct):
    """What a person can do about a cause."""

    cli: str
    api: str


class Cause(msgspec.Struct):
    code: str
    """Stable, such as NO_WORKER."""
    text: str
    points_to: CauseObject
    moves: str
    """The event that would move it."""
    since: Instant | None
    until: Instant | None
    """When that comes by itself, where that is known."""
    acts: list[CauseAct]
    tasks: list[str]
    """Tasks that it holds up; the first few of `tasks_total`."""
    tasks_total: int


class Explanation(msgspec.Struct):
    run_id: str
    task: str | None
    """null: the run as a whole."""
    status: str
    at: Instant
    """By the database's clock."""
    causes: list[Cause]
    """Nearest first; never empty."""
    open_tasks: int
    looked_at: int


# == the rest ==========================================================================================================
class Worker(msgspec.Struct):
    session_id: str
    worker: str
    queues: list[str]
    slots: int
    held: int
    draining: bool
    library: str
    started_at: Instant
    renewed_at: Instant
    expires_at: Instant
    live: bool


class WorkerPage(msgspec.Struct):
    items: list[Worker]
    next: str | None


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,99}$(?!\n)")]
    topic: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$(?!\n)")]
    workflow: WorkflowName
    filter: Text | None = None
    """CEL over the record; the records for which it is true start a run."""
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Template of the run's input; the record's value, when left out."""


class Subscription(msgspec.Struct):
    name: str
    topic: str
    workflow: str
    filter: str | None
    input: msgspec.Raw
    enabled: bool
    created_at: Instant
    waits_since: Instant | None
    """Since when its records wait in Kafka because too many runs are under way."""


class SubscriptionPage(msgspec.Struct):
    items: list[Subscription]
    next: str | None


class RelayHealth(msgspec.Struct):
    owner: str | None
    renewed_at: Instant | None
    lag_bytes: int | None


class StreamsHealth(msgspec.Struct):
    partitions: int
    owners: int
    swept_at: Instant | None


class Health(msgspec.Struct):
    status: Literal["ok", "degraded"]
    postgres: Literal["ok", "away"]
    relay: RelayHealth | None
    streams: StreamsHealth | None


class AppliedOffset(msgspec.Struct):
    """How far a partition has been applied; whether its log goes that far, only Kafka knows."""

    topic: str
    partition: int
    next_offset: int | None
    topic_id: str


class CheckResult(msgspec.Struct):
    name: str
    ok: bool
    detail: str
    """What was looked at; when something is wrong, with up to three examples."""
    count: int
    """How many things are wrong."""
    hint: str = ""
    """What to do about it."""
    seconds: float = 0.0
    positions: list[AppliedOffset] = []
    """Of the check `partitions`."""


class Diagnosis(msgspec.Struct):
    ok: bool
    checks: list[CheckResult]


# == what only people look at ==========================================================================================
class Span(msgspec.Struct):
    """An attempt that ended."""

    attempt: int
    token: int
    outcome: str
    """completed, failed, lost, cancelled or returned"""
    worker: str
    started_at: Instant | None
    finished_at: Instant | None
    """By the worker's clock, as `started_at`."""
    ended_at: Instant
    """By the database's clock."""


class TaskSpans(msgspec.Struct):
    """How one task passed its time."""

    name: str
    index: int
    kind: str
    """body, approval, wait, signal or map"""
    status: TaskStatus
    attempt: int
    token: int
    needs: list[int]
    """Positions of the tasks that it needs."""
    due_at: Instant | None
    changed_at: Instant | None
    worker: str | None
    """Who runs it now."""
    items: ItemCounts | None
    """Of a map, once its list is known; its items are no tasks of the graph."""
    spans: list[Span]
    """The newest 100, in order."""


class SpanPage(msgspec.Struct):
    items: list[TaskSpans]
    next: str | None
    at: Instant
    """When this was so, by the database's clock."""
    total: int
    """Tasks of the graph."""


class QueueLoad(msgspec.Struct):
    queue: str
    queued: int
    running: int
    oldest_seconds: float
    """Since the oldest waiting task was handed out; 0 when none waits."""
    workers: int
    """Live sessions that serve it and take new work."""
    slots: int
    held: int


class MinuteOfRuns(msgspec.Struct):
    at: Instant
    counts: dict[str, int]
    """Runs that began in this minute, by how they stand now."""


class Overview(msgspec.Struct):
    """How everything stands; a few seconds old at most, and over the oldest 10,000 open runs."""

    at: Instant
    namespace: str
    version: str
    runs: dict[str, int]
    """Open runs by status."""
    queues: list[QueueLoad]
    approvals_waiting: int
    parked_tasks: int
    dead_letters_parked: int
    requests_unapplied: int
    timers_late: int
    timer_lateness_seconds: float
    workers_live: int
    workers_lost: int
    """Whose lease ran out within the last hour."""
    outbox_lag_bytes: int | None
    relay_renewed_seconds: float | None
    recent: list[MinuteOfRuns]
    """The last hour, of the newest 10,000 runs."""


class PartitionState(msgspec.Struct):
    topic: str
    partition: int
    owner: str
    epoch: int
    next_offset: int | None
    topic_id: str
    taken_at: Instant


class SweepState(msgspec.Struct):
    name: str
    at: Instant
    age_seconds: float
    found: int


class SlotState(msgspec.Struct):
    slot: str
    owner: str
    epoch: int
    renewed_at: Instant
    age_seconds: float
    lag_bytes: int | None
    """WAL that the relay has not acknowledged."""
    retained_bytes: int | None
    """WAL that Postgres keeps for it."""
    active: bool | None
    wal_status: str | None


class TableSize(msgspec.Struct):
    name: str
    rows: int
    """As Postgres last estimated."""
    bytes: int
    """With indexes."""


class System(msgspec.Struct):
    """The engine's own parts."""

    at: Instant
    version: str
    partitions: list[PartitionState]
    sweeps: list[SweepState]
    slots: list[SlotState]
    tables: list[TableSize]
    """The largest."""


class RecordFate(msgspec.Struct):
    topic: str
    partition: int
    offset: int
    fate: str
    """started, duplicate, filtered or failed"""
    run_id: str | None
    reason: str | None
    at: Instant


class RecordFatePage(msgspec.Struct):
    items: list[RecordFate]
    next: str | None
