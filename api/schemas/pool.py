"""Pools, and who holds or waits for their slots."""

from typing import Annotated

import msgspec

from api.schemas.wire import Instant, Priority, Text


class PriorityBody(msgspec.Struct, forbid_unknown_fields=True):
    priority: Priority
    """Each point is worth a minute of waiting."""
    reason: Text = ""


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
    fairness_key: str | None
    """Between whom the slots go in turns; null: with all others that have none."""


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
