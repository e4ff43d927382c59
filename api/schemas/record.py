"""What became of records."""

import msgspec

from api.schemas.wire import Instant


class RecordFate(msgspec.Struct):
    topic: str
    partition: int
    offset: int
    fate: str
    """started, signalled, duplicate, filtered or failed; rejected or dropped by the limit of its workflow"""
    run_id: str | None
    """The run that it started, or to which it said a signal; of one that was rejected or dropped: that goes in its
    place."""
    reason: str | None
    at: Instant
    signal_id: str | None
    """The signal that it said; without `run_id`, the one that was posted."""


class RecordFatePage(msgspec.Struct):
    items: list[RecordFate]
    next: str | None
