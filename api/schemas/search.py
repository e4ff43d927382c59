"""What a filter finds: how many runs, of which kinds, and since when; and what runs consist of, over all of them."""

import msgspec

from api.schemas.wire import Instant
from headrace.machine import RunStatus, TaskStatus


class RunCount(msgspec.Struct):
    filter: str
    """As it was understood."""
    count: int
    has_more: bool
    """"More than": there may be older ones, which were not looked at."""
    since: Instant | None
    """When the oldest run that was looked at was started; null when none was."""


class FacetValue(msgspec.Struct):
    value: str
    count: int
    clause: str
    """To be added to the filter."""


class Facet(msgspec.Struct):
    field: str
    values: list[FacetValue]
    """The 20 with the most runs, those first."""


class RunFacets(msgspec.Struct):
    filter: str
    count: int
    """Over so many runs."""
    has_more: bool
    """There may be older ones, which were not looked at."""
    facets: list[Facet]
    """status, workflow, version, trigger, queue (a task of the graph is in it) and code (of errors); those without a
    value are left out."""


class RunBucket(msgspec.Struct):
    at: Instant
    """Its beginning; those in which no run was started are left out."""
    counts: dict[str, int]
    """Runs started in it, by how they stand now."""


class RunHistogram(msgspec.Struct):
    filter: str
    count: int
    has_more: bool
    """There may be older ones, which were not looked at."""
    since: Instant | None
    """When the oldest run that was looked at was started."""
    step_seconds: int
    """Length of a bucket."""
    buckets: list[RunBucket]
    """In order."""


class TaskItem(msgspec.Struct):
    """A task that was handed out, in a list over all runs; without what it was given and gave."""

    task_id: str
    run_id: str
    workflow: str
    version: int
    run_status: RunStatus
    name: str
    queue: str
    status: TaskStatus
    attempt: int
    token: int
    due_at: Instant | None
    changed_at: Instant
    pool: str | None
    error: msgspec.Raw
    """Of the last attempt, while another will follow."""


class TaskItemPage(msgspec.Struct):
    items: list[TaskItem]
    next: str | None
    searched_until: Instant | None
    """The page ended because of how many runs it had looked at, the last of which was started then; `next` goes on."""


class AttemptItem(msgspec.Struct):
    """An attempt that ended, in a list over all runs; without what it gave."""

    task_id: str
    run_id: str
    workflow: str
    version: int
    run_status: RunStatus
    task: str
    queue: str
    attempt: int
    token: int
    outcome: str
    worker: str
    started_at: Instant | None
    finished_at: Instant | None
    ended_at: Instant
    error: msgspec.Raw


class AttemptItemPage(msgspec.Struct):
    items: list[AttemptItem]
    next: str | None
    searched_until: Instant | None
    """As of a page of tasks."""


class EventItem(msgspec.Struct):
    """What moved a run, in a list over all of them."""

    run_id: str
    workflow: str
    version: int
    run_status: RunStatus
    row_version: int
    at: Instant
    kind: str
    task: str | None
    token: int | None
    actor: str | None
    detail: msgspec.Raw


class EventItemPage(msgspec.Struct):
    items: list[EventItem]
    next: str | None
    searched_until: Instant | None
    """As of a page of tasks."""
