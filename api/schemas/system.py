"""The engine's own parts."""

import msgspec

from api.schemas.wire import Instant


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
