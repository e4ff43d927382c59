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


class RunsInFlight(msgspec.Struct):
    """Runs of one version and status that have not ended."""

    version: int
    status: RunStatus
    runs: int
    oldest_run_id: str
    oldest_at: Instant
    """When that began."""
    then: Literal["stays"]
    """What a publish leads to for them: a run stays on the version it began with."""


class TaskChange(msgspec.Struct):
    task: str
    fields: list[str]
    """Those that say something else."""


class Difference(msgspec.Struct):
    """From the latest version to what is to be published."""

    fields: list[str]
    """Of the workflow itself: description, input or output."""
    added: list[str]
    removed: list[str]
    changed: list[TaskChange]
    moved: list[str]
    """Tasks that stand at another position."""


class Blocked(msgspec.Struct):
    """What stands in the way of moving runs to a version."""

    task: str
    why: str
    runs: int


class Moves(msgspec.Struct):
    """Which runs in flight could be moved to a version, once they are paused."""

    looked_at: int
    """The oldest so many, 200 at most."""
    movable: int
    obstacles: list[Blocked]
    """Of the others, the most frequent first."""


class PublishCheck(msgspec.Struct):
    """What a publish of this content would lead to; nothing was published."""

    name: str
    verdict: Literal["first", "new", "latest", "older"]
    """The first version of its workflow; the next one; the content of the latest; or that of an older version, which a
    publish does not make the latest again."""
    version: int
    """That it would have, or has."""
    latest_version: int | None
    digest: str
    difference: Difference | None
    """None for the first."""
    runs: list[RunsInFlight]
    """Newest version first."""
    moves: Moves


class VersionRuns(msgspec.Struct):
    """A version, and the runs that still hold to it."""

    version: int
    digest: str
    published_at: Instant
    published_by: str
    is_latest: bool
    in_flight: int
    """Runs that have not ended."""
    runs: list[RunsInFlight]
    bodies: list[str]
    """Registered names that it needs and the latest version does not: workers keep them while a run is in flight."""


class VersionRunsList(msgspec.Struct):
    name: str
    items: list[VersionRuns]
    """Newest first: the latest version, and older ones with runs in flight."""


# == runs ==============================================================================================================
Priority = Annotated[int, msgspec.Meta(ge=-100, le=100)]


class StartBody(msgspec.Struct, forbid_unknown_fields=True):
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Any JSON; `{}` when left out."""
    version: Version | None = None
    """The latest, when left out."""
    key: Name | None = None
    """Trigger identity: one key, one run, for ever."""
    run_id: str | None = None
    """A UUIDv7, when the caller wants to know it beforehand."""
    priority: Priority = 0
    """In the queues of pools: each point is worth a minute of waiting."""


class PriorityBody(msgspec.Struct, forbid_unknown_fields=True):
    priority: Priority
    """Each point is worth a minute of waiting."""
    reason: Text = ""


class ReasonBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: Text = ""


class RerunBody(msgspec.Struct, forbid_unknown_fields=True):
    tasks: Annotated[list[Name], msgspec.Meta(max_length=1_000)] = []
    """These, and all that depends on them; items of a map, such as `pages.17`. Left out: what failed or was cancelled,
    of a map only its items that did, and what was skipped because of that."""
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Takes the place of the input of the only task named."""
    reason: Text = ""
    dry_run: bool = False
    """Only say what would run again."""
    row_version: Version | None = None
    """As a dry run said: refused when the run has moved since."""


class MigrateBody(msgspec.Struct, forbid_unknown_fields=True):
    version: Version | None = None
    """The latest, when left out."""
    reason: Text = ""
    dry_run: bool = False
    """Only say what stands in the way."""


class Obstacle(msgspec.Struct):
    task: str | None
    """None: the run as a whole."""
    why: str


class Migration(msgspec.Struct):
    """A run that is moved to another version, or what stands in the way."""

    run_id: str
    dry_run: bool
    workflow: str
    from_version: int
    to_version: int
    obstacles: list[Obstacle]
    """None: it can be moved as it stands."""


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
    items: int | None
    """Of a map: how many of its items that began run again; all of them where it starts over with a new list."""


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


class LogLine(msgspec.Struct):
    """What a body logged."""

    line_id: int
    at: Instant
    """By the clock of its worker."""
    task: str
    attempt: int
    token: int
    level: Literal["debug", "info", "warning", "error"]
    worker: str
    logger: str
    """Empty: `ctx.log`."""
    message: str
    fields: msgspec.Raw | None
    """What was said with it, by name."""


class LogPage(msgspec.Struct):
    items: list[LogLine]
    last: int
    """`after` of the next page."""


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
    """A task, one item of a map, or what undoes a task."""

    task_id: str
    run_id: str
    name: str
    """Of an item: that of its map, a dot and its place in the list from 0. Of a compensation: that of its task, and
    `.compensate`."""
    index: int
    """Position in the graph, from 0; of an item, that of its map, and of a compensation, that of its task."""
    run: str | None
    """Name of the body; null for what is only an approval, a wait, a signal or a workflow."""
    queue: str
    needs: list[str]
    status: TaskStatus
    attempt: int
    """Bodies that began."""
    token: int
    """Hand-outs."""
    attempts_max: int
    due_at: Instant | None
    """When its backoff, its time-out, its time in the queue or its wait ends."""
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
    deadline_at: Instant | None
    """When it has to have ended, while it is open and has a deadline."""
    rounds: int
    """Of a repeat: how many have ended."""
    workflow: str | None
    """The workflow that it runs, as a run of its own; `GET /runs/{run_id}/relations` has that."""
    compensation: TaskStatus | None
    """How far its run has undone it; null while it does not."""
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
    round: int | None
    """Of a repeat, from 0."""


class AttemptPage(msgspec.Struct):
    items: list[Attempt]
    next: str | None


# == approvals =========================================================================================================
class DecisionBody(msgspec.Struct, forbid_unknown_fields=True):
    decision: Literal["approve", "reject"]
    comment: Text = ""
    form: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What was filled in, where the approval has a form."""


class VoteBody(msgspec.Struct, forbid_unknown_fields=True):
    comment: Text = ""
    form: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What was filled in, where the approval has a form."""


class CommentBody(msgspec.Struct, forbid_unknown_fields=True):
    comment: Annotated[Text, msgspec.Meta(min_length=1)]


class LinkBody(msgspec.Struct, forbid_unknown_fields=True, rename={"name": "for"}):
    name: Name
    """Who decides by it."""
    role: Name | None = None
    """By which role, where they may not by their name."""
    expires_in: Annotated[float, msgspec.Meta(gt=0, le=30 * 86_400)] = 3 * 86_400.0
    """Seconds."""


class Link(msgspec.Struct):
    url: str
    """GET shows the question, POST decides it, once."""
    expires_at: Instant


class DelegationBody(msgspec.Struct, forbid_unknown_fields=True, rename={"from_name": "from"}):
    from_name: Name
    """Your name, or a role of yours as `role:finance`."""
    to: Name
    ends_at: Instant
    starts_at: Instant | None = None
    """null: from now on."""
    reason: Text = ""


class Delegation(msgspec.Struct, rename={"from_name": "from"}):
    delegation_id: str
    from_name: str
    to: str
    starts_at: Instant
    ends_at: Instant
    reason: str
    made_by: str
    made_at: Instant
    ended_by: str | None
    """Who ended it before its time."""


class DelegationList(msgspec.Struct):
    items: list[Delegation]


class Approval(msgspec.Struct):
    approval_id: str
    run_id: str
    workflow: str
    task: str
    task_id: str
    title: str
    approvers: msgspec.Raw
    """List of names, and of roles as `role:finance`; empty: whoever may approve at all."""
    status: str
    """waiting, approved, rejected, expired or cancelled"""
    asked_at: Instant
    expires_at: Instant | None
    decided_at: Instant | None
    decided_by: str | None
    comment: str | None
    context: msgspec.Raw
    """What people are shown besides the title, or null."""
    form: msgspec.Raw
    """JSON Schema of the answer that comes with a yes, or null."""
    digest: str
    """SHA-256 of what is shown: of the JSON `{"title":…,"context":…,"form":…}` without spaces."""
    needed: int
    """Yeses that it takes; the first no is enough."""
    no_self_approval: bool
    on_expiry: str
    """fail, approve, reject or escalate"""
    answer: msgspec.Raw
    """What the last vote filled in, or null."""
    votes: msgspec.Raw
    """List of {by, role, in_place_of, decision, comment, at}, in their order."""


class Vote(msgspec.Struct):
    """One decision, as it is on record."""

    by: str
    voter: str
    """Whose vote it is: of whoever gave it, or of the person in whose place."""
    role: str | None
    in_place_of: str | None
    decision: str
    """approve or reject"""
    comment: str | None
    form: msgspec.Raw
    digest: str
    """Of what was shown."""
    source: str
    """api, cli, console or link"""
    address: str
    at: Instant


class ApprovalTimer(msgspec.Struct):
    """A reminder, or a step of the escalation."""

    kind: str
    """remind or escalate"""
    number: int
    to: msgspec.Raw
    """Who is asked besides, or null."""
    due_at: Instant | None
    """null: when the question expires."""
    fired_at: Instant | None


class ApprovalEntry(msgspec.Struct):
    """Something else that happened to it."""

    at: Instant
    kind: str
    """commented, reminded, escalated or linked"""
    actor: str
    detail: msgspec.Raw


class ApprovalDetail(Approval):
    record: list[Vote]
    timers: list[ApprovalTimer]
    history: list[ApprovalEntry]


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


# == pauses ============================================================================================================
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


# == bulk ==============================================================================================================
BulkAct = Literal["cancel", "terminate", "pause", "resume", "release", "rerun", "migrate"]


class BulkFilter(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which runs: all that is given must hold, and something must be."""

    workflow: WorkflowName | None = None
    version: Version | None = None
    status: RunStatus | list[RunStatus] | None = None
    """One, or any of several. Left out: those in which the act can be done; for a rerun, those that failed."""
    since: Instant | None = None
    """Started then or later."""
    until: Instant | None = None
    """Started before."""
    run_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=10_000)] | None = None
    """These and no others: what a dry run answered."""


class BulkBody(msgspec.Struct, forbid_unknown_fields=True):
    act: BulkAct
    """What is asked of each run; a rerun is that of what failed or was cancelled, a move that to the latest version.
    Dead letters have their own: `/dead-letters/replay`."""
    filter: BulkFilter
    reason: Text = ""
    dry_run: bool = False
    """Only say what would be done."""
    rate: Annotated[float, msgspec.Meta(ge=0.01, le=1_000)] = 10.0
    """Runs per second."""


class Refusals(msgspec.Struct):
    reason: str
    count: int


class BulkEffect(msgspec.Struct):
    """Tasks that would run again, as in the preview of one rerun."""

    effect: str
    """none, first, repeats or did_not_happen"""
    protected_by: str | None
    tasks: int


class BulkPreview(msgspec.Struct):
    dry_run: bool
    act: str
    count: int
    """Runs that match."""
    has_more: bool
    """Older ones match as well, beyond what one bulk takes."""
    done: int
    """Of which it could be asked, as they stand now."""
    refused: list[Refusals]
    effects: list[BulkEffect]
    """Of a rerun: over the first runs, as many as `foreseen` says."""
    foreseen: int
    run_ids: list[str]


class Bulk(msgspec.Struct):
    bulk_id: str
    act: str
    """Also `replay`, of dead letters."""
    status: str
    """running, completed or stopped"""
    filter: msgspec.Raw
    reason: str
    rate: float
    selected: int
    left: int
    """Whose turn is to come."""
    done: int
    """Asked; what became of that is told by `later`."""
    refused: int
    """Could not be asked, as they stood at their turn."""
    gone: int
    """Not there any more at their turn."""
    stopped: int
    created_at: Instant
    created_by: str
    finished_at: Instant | None
    stopped_by: str | None


class BulkProgress(Bulk):
    later: dict[str, int]
    """What became of those that were done: pending until it is applied, overtaken when the run had moved on before,
    gone when retention has removed it; otherwise how the run stands now, and failed_again after a rerun."""
    refusals: list[Refusals]
    """The 20 most frequent reasons."""


class BulkPage(msgspec.Struct):
    items: list[Bulk]
    next: str | None


class BulkItem(msgspec.Struct):
    run_id: str | None
    dead_letter_id: str | None
    """Of a replay."""
    outcome: str | None
    """done, refused, gone or stopped; null before its turn."""
    reason: str | None
    done_at: Instant | None
    later: str | None
    """What became of it, once it was done."""


class BulkItemPage(msgspec.Struct):
    items: list[BulkItem]
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


class PoolBody(msgspec.Struct, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    """How many tasks may hold a slot at once; left out: as many as ask for one."""
    rate: Text | None = None
    """How many may begin in how long, such as `10/s` or `100/m`; left out: any number."""


class PoolTask(msgspec.Struct):
    """A task that holds a slot, or waits for one."""

    run_id: str
    task: str
    workflow: str
    token: int
    since: Instant
    priority: int
    """Of its run."""


class Pool(msgspec.Struct):
    name: str
    is_set: bool
    """False: some task waits for it, and nobody has said how many slots it has."""
    limit: int | None
    rate: str | None
    held: int
    waiting: int
    created_at: Instant | None
    updated_at: Instant | None
    updated_by: str
    holders: list[PoolTask] = []
    """Only of one pool: those who have had their slot for longest."""
    waiters: list[PoolTask] = []
    """Only of one pool: in the order in which they will get one."""


class PoolPage(msgspec.Struct):
    items: list[Pool]
    next: str | None


class SignalOfRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The signal that every record says: to the run that `run` names, or else to whoever waits for its `key`."""

    name: WorkflowName
    key: Text | None = None
    """Text with expressions over the record; required without `run`."""
    run: Text | None = None
    """An expression that gives the id of a run."""
    keep: str | float = "1d"
    """How long it waits for somebody who waits for its key: text such as `12h`, or seconds; 30 days at most."""


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,99}$(?!\n)")]
    topic: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$(?!\n)")]
    workflow: WorkflowName | None = None
    """What every record starts; this or `signal`."""
    filter: Text | None = None
    """CEL over the record; those for which it is true start a run, or say the signal."""
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Template of the run's input, or of the signal's data; the record's value, when left out."""
    signal: SignalOfRecord | None = None


class Subscription(msgspec.Struct):
    name: str
    topic: str
    workflow: str | None
    """null: its records say a signal."""
    filter: str | None
    input: msgspec.Raw
    enabled: bool
    created_at: Instant
    waits_since: Instant | None
    """Since when its records wait in Kafka because too many runs are under way."""
    signal: SignalOfRecord | None


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
    """started, signalled, duplicate, filtered or failed"""
    run_id: str | None
    """The run that it started, or to which it said a signal."""
    reason: str | None
    at: Instant
    signal_id: str | None
    """The signal that it said; without `run_id`, the one that was posted."""


class RecordFatePage(msgspec.Struct):
    items: list[RecordFate]
    next: str | None


# == access ============================================================================================================
class LoginBody(msgspec.Struct, forbid_unknown_fields=True):
    token: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """An API token."""


class LoginCode(msgspec.Struct):
    path: str
    """To be opened in a browser, at this API."""
    expires_at: Instant


class Session(msgspec.Struct):
    """Who calls."""

    name: str
    scopes: list[str]
    roles: list[str]
    local: bool
    """By the local token of `headrace dev`: then `Headrace-Actor` says who acts."""
    csrf_token: str | None
    """For `X-CSRF-Token` of writes, where a cookie says who calls."""


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    """Whom it is for: it stands beside all that is done with it."""
    scopes: Annotated[list[Literal["read", "operate", "approve", "admin"]], msgspec.Meta(min_length=1, max_length=4)]
    roles: Annotated[list[Name], msgspec.Meta(max_length=100)] = []
    expires: Annotated[str, msgspec.Meta(max_length=50)] | msgspec.UnsetType = msgspec.UNSET
    """A duration such as `90d`, the default."""


class ApiToken(msgspec.Struct):
    """A token, without its secret."""

    token_id: str
    name: str
    scopes: list[str]
    roles: list[str]
    created_at: Instant
    created_by: str
    expires_at: Instant
    revoked_at: Instant | None
    revoked_by: str | None
    last_used_at: Instant | None
    """To a minute."""


class TokenCreated(msgspec.Struct):
    token: ApiToken
    secret: str
    """Shown now and never again."""


class ApiTokenPage(msgspec.Struct):
    items: list[ApiToken]
    next: str | None


class AuditItem(msgspec.Struct):
    """One act through the API."""

    audit_id: str
    at: Instant
    actor: str
    token_id: str | None
    """Null: the local token of `headrace dev`, or a program at the database."""
    act: str
    target: str
    reason: str
    address: str
    """From where: the other end of the connection."""
    request_id: str


class AuditPage(msgspec.Struct):
    items: list[AuditItem]
    next: str | None
