"""Dead letters, their groups and replays."""

from typing import Annotated
from uuid import UUID

import msgspec

from api.schemas.task import Attempt
from api.schemas.wire import FilterText, Instant, Reason

LetterIds = Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=10_000)] | None


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Takes the place of the task's input, or of the record's value."""
    value_base64: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9+/]*={0,2}$(?!\n)")] | None = None
    """Any bytes, in place of a record's value."""


class DiscardBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: Reason


class BulkReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    """It says which by a filter, by ids, or by both; not by neither."""

    filter: FilterText = ""
    """Of parked dead letters: all of its clauses must hold."""
    dead_letter_ids: LetterIds = None
    """These and no others: what a dry run answered."""
    dry_run: bool = False
    """Only say what would be replayed."""
    rate: Annotated[float, msgspec.Meta(ge=0.01, le=1_000)] = 10.0
    """Dead letters per second."""


class BulkDiscardBody(msgspec.Struct, forbid_unknown_fields=True):
    """It says which as a replay of many does."""

    reason: Reason
    filter: FilterText = ""
    dead_letter_ids: LetterIds = None
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
    searched_until: Instant | None
    """The page ended because of how many letters it had looked at, the last of which was set aside then; `next` goes
    on. null: nothing was left out."""


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
    """There may be older ones that match: one selection has 10,000 at most, and a search looks at so many."""
    sample: list[DeadLetter]
    """The oldest ones."""
    dead_letter_ids: list[str]
    """All of them, oldest first: a replay of these ids takes exactly what was shown."""


class DeadLettersDiscarded(msgspec.Struct):
    discarded: int
    has_more: bool
    """There may be older ones that match: one request closes 10,000 at most, and a search looks at so many."""


class ReplayRefusal(msgspec.Struct):
    dead_letter_id: str
    reason: str


class BulkReplay(msgspec.Struct):
    replay_id: str
    status: str
    """running, completed or stopped"""
    filter: str
    """Its text; empty: its letters were named one by one."""
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
