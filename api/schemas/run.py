"""Runs, and what moved them."""

import msgspec

from api.schemas.wire import Instant, Name, Priority, Version
from headrace.machine import RunStatus


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
    labels: dict[str, str] = {}
    """What it is found by again, such as `{"customer": "acme"}`; they change nothing that it does. At most 16; names of
    small letters, digits, `_`, `.` and `-`, a letter first; values of at most 200 characters."""


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
    deadline_at: Instant | None
    """When it has to have ended, while it is open and its workflow has a deadline."""
    priority: int
    """In the queues of pools: higher goes first, and a point is worth a minute of waiting."""
    labels: dict[str, str]
    """As it was started with them, by name."""


class RunPage(msgspec.Struct):
    items: list[Run]
    next: str | None
    searched_until: Instant | None
    """The page ended because of how many runs it had looked at, the last of which was started then; `next` goes on.
    null: nothing was left out."""


class RunSummary(msgspec.Struct):
    run_id: str
    workflow: str
    status: RunStatus
    row_version: int
    counts: dict[str, int]


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
