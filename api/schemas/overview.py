"""How everything stands."""

import msgspec

from api.schemas.wire import Instant


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
    stuck_seconds: float
    """For so long nothing moves a run before it is called stuck."""
    recent: list[MinuteOfRuns]
    """The last hour, of the newest 10,000 runs."""
