"""Why something does not move."""

import msgspec

from api.schemas.wire import Instant


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
