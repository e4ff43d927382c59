"""Whether the engine is well."""

from typing import Literal

import msgspec

from api.schemas.wire import Instant


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
