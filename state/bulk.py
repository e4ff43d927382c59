"""Bulk acts: one act on many dead letters or runs. What it acts on is frozen when it is asked for, and has its turn at
a rate.

    ask   -> one transaction: a row of `bulk`, a row of `bulk_item` for each dead letter or run chosen
    step  -> one transaction: some items have their turn: what is asked of them, what came of that, when the next may go

A step that dies leaves nothing behind, so its items have their turn in the next: each has it once. Of two bulks that
want the same of one item, the first has it. What is chosen and done stands in `bulk_replays` and `bulk_runs`, the steps
in `bulk_steps`.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from uuid_utils.compat import uuid7

from headrace.errors import ConflictError, NotFoundError
from state.queries.rows import AT_MAX, ID_MAX, Connection, fetch, fetch_one
from state.sql import load
from state.store import Store

SQL: Final = load("bulk")

SELECTED_MAX: Final = 10_000
"""Items of one selection: their ids fit one request and one answer. The newest are chosen first; more is another
bulk."""
RATE_DEFAULT: Final = 10.0
"""Items per second: what broke under load should not meet all of it again at once."""
REASONS_MAX: Final = 20
"""Different reasons of refusals that are told; the items have them all."""

Act = Literal["replay", "cancel", "terminate", "pause", "resume", "release", "rerun", "migrate", "move"]


class Selection(NamedTuple):
    """What matches a filter and is in no open bulk of the same act, oldest first."""

    ids: list[UUID]
    has_more: bool
    """There may be older ones that match: beyond SELECTED_MAX, or beyond what a search looks at."""


class Turn(NamedTuple):
    """What came of one item at its turn."""

    outcome: Literal["done", "refused", "gone", "stopped"]
    reason: str | None = None
    inbox_id: UUID | None = None
    row_version: int | None = None


class BulkRow(NamedTuple):
    bulk_id: UUID
    act: str
    filter: str
    reason: str
    rate: float
    selected: int
    created_at: datetime
    created_by: str
    finished_at: datetime | None
    stopped_by: str | None
    done: int
    refused: int
    """Could not be done when their turn came."""
    gone: int
    stopped: int
    left: int


class BulkItemRow(NamedTuple):
    position: int
    item_id: UUID
    outcome: str | None
    reason: str | None
    done_at: datetime | None
    later: str | None
    """What became of it; None unless it was done."""


class Counted(NamedTuple):
    name: str
    items: int


# == asked for by people ===============================================================================================
async def start_bulk(
    connection: Connection,
    store: Store,
    act: Act,
    ids: Sequence[UUID],
    *,
    filter: str,
    reason: str = "",
    rate: float,
    actor: str,
) -> UUID:
    """Freeze a selection, in the caller's open transaction. filter: its text, for people to see what was asked.

    Raises ConflictError when none of the items is there any more, or another bulk of the same act has them all.
    """
    bulk_id, namespace = uuid7(), store.settings.namespace
    given = {"bulk_id": bulk_id, "namespace": namespace, "act": act}
    await connection.execute(
        SQL.text("insert_bulk"), {**given, "filter": filter, "reason": reason, "rate": rate, "actor": actor}
    )
    freeze = SQL.text("freeze_letters" if act == "replay" else "freeze_runs")
    selected = await fetch_one(connection, int, freeze, **given, ids=list(ids))
    if not selected:
        what = "no parked dead letter matches" if act == "replay" else "no run matches"
        raise ConflictError(f"{what} that no open bulk of this act has already")
    await connection.execute(SQL.text("note_selected"), {**given, "selected": selected})
    return bulk_id


async def stop_bulk(connection: Connection, namespace: str, bulk_id: UUID, *, actor: str) -> None:
    """End it now, in the caller's open transaction: what has not had its turn stays as it is. Runs that it has paused
    to move them are let go by its next steps, and it is over then. Raises NotFoundError, and ConflictError when it is
    over, or was stopped before.
    """
    given = {"bulk_id": bulk_id, "namespace": namespace, "actor": actor}
    await connection.execute(SQL.text("lock_bulk"), given)
    cursor = await connection.execute(SQL.text("stop_bulk"), given)
    if await cursor.fetchone() is None:
        await get_bulk(connection, namespace, bulk_id)
        raise ConflictError(f"the bulk {bulk_id} is over already", bulk_id=str(bulk_id))
    await connection.execute(SQL.text("release_selection"), given)


async def get_bulk(connection: Connection, namespace: str, bulk_id: UUID, *, act: Act | None = None) -> BulkRow:
    """Raises NotFoundError, also for one of another act."""
    rows = await list_bulks(connection, namespace, limit=1, bulk_id=bulk_id, act=act)
    if not rows:
        raise NotFoundError(f"there is no bulk {bulk_id}", bulk_id=str(bulk_id))
    return rows[0]


async def list_bulks(
    connection: Connection,
    namespace: str,
    *,
    limit: int,
    before: tuple[datetime, UUID] = (AT_MAX, ID_MAX),
    bulk_id: UUID | None = None,
    act: Act | None = None,
) -> list[BulkRow]:
    """Newest first. before: (created_at, bulk_id) of the last one seen."""
    return await fetch(
        connection,
        BulkRow,
        SQL.text("read_bulks"),
        namespace=namespace,
        bulk_id=bulk_id,
        act=act,
        limit=limit,
        before=before[0],
        before_id=before[1],
    )


async def list_items(
    connection: Connection, bulk_id: UUID, *, after: int = 0, outcome: str | None = None, limit: int
) -> list[BulkItemRow]:
    """In the order of their turns. after: the position of the last one seen."""
    return await fetch(
        connection, BulkItemRow, SQL.text("list_items"), bulk_id=bulk_id, after=after, outcome=outcome, limit=limit
    )


async def count_later(connection: Connection, bulk_id: UUID) -> dict[str, int]:
    """What became of the items that were done: how many of each."""
    counted = await fetch(connection, Counted, SQL.text("count_later"), bulk_id=bulk_id)
    return {row.name: row.items for row in counted}


async def count_refusals(connection: Connection, bulk_id: UUID) -> list[Counted]:
    """Why items were refused, and how many; the most frequent first, up to REASONS_MAX."""
    return await fetch(connection, Counted, SQL.text("count_refusals"), bulk_id=bulk_id, limit=REASONS_MAX)


async def seconds_to_next(connection: Connection, namespace: str) -> float | None:
    """Until an open bulk may go on; None when none is open."""

    def seconds(found: Any) -> float | None:
        return None if found is None else float(found)

    return await fetch_one(connection, seconds, SQL.text("next_step"), namespace=namespace)
