"""One act on many runs."""

from typing import Annotated, Literal
from uuid import UUID

import msgspec

from api.schemas.wire import FilterText, Instant, Text

BulkAct = Literal["cancel", "terminate", "pause", "resume", "release", "rerun", "migrate", "move"]


class BulkBody(msgspec.Struct, forbid_unknown_fields=True):
    act: BulkAct
    """What is asked of each run; a rerun is that of what failed or was cancelled; `migrate` moves paused runs to the
    latest version, and `move` pauses runs for that and lets them go on.
    Dead letters have their own: `/dead-letters/replay`."""
    filter: FilterText = ""
    """Which runs; it must say something, unless `run_ids` does. Without a status it means those in which the act can be
    done; for a rerun, those that failed."""
    run_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=10_000)] | None = None
    """These and no others: what a dry run answered."""
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
    filter: str
    """As it was understood; ages are instants, so that it means the same when it is sent back with `run_ids`."""
    count: int
    """Runs that match."""
    has_more: bool
    """There may be older ones that match: beyond what one bulk takes, or beyond what a search looks at."""
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
    filter: str
    """Its text; empty: its items were named one by one."""
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
    stayed when something stood in the way of a move, gone when retention has removed it; otherwise how the run stands
    now, and failed_again after a rerun."""
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
