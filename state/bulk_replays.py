"""Bulk replays: what is to be replayed is frozen when somebody asks for it, and goes out at a rate.

    ask   -> one transaction: a row of `bulk_replay`, a row of `bulk_replay_letter` for each letter chosen
    step  -> one transaction: some letters leave 'parked', their requests, what became of each, when the next may go

A step that dies leaves nothing behind, so the letters it had are found again by the next: each goes out once. A letter
waits in one bulk replay at most, and leaves 'parked' once, whoever comes first.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from headrace.errors import ConflictError, HeadraceError, NotFoundError
from state.decisions import replay_dead_letter
from state.queries.dead_letter import LetterFilter, find_dead_letters
from state.queries.rows import AT_MAX, ID_MAX, Connection, fetch, fetch_one
from state.sql import load
from state.store import Store

_SQL = load("bulk_replay")

SELECTED_MAX: Final = 10_000
"""Letters of one selection: their ids fit one request and one answer. The newest are chosen first; more is another
bulk replay."""
RATE_DEFAULT: Final = 10.0
"""Letters per second: what broke under load should not meet all of it again at once."""
STEP_MAX: Final = 100
"""Letters of one transaction, some of which may carry a mebibyte."""
SETTLE_SECONDS: Final = 15.0
"""Longer than any transaction that replays a record may take."""
UNREAD_MAX: Final = 1_000
OUTCOMES: Final = ("pending", "completed", "failed_again", "cancelled")


class Selection(NamedTuple):
    """Parked letters that match a filter and that no open bulk replay has, oldest first."""

    ids: list[UUID]
    has_more: bool
    """Older ones match as well, beyond SELECTED_MAX."""


class BulkReplayRow(NamedTuple):
    replay_id: UUID
    filter: str
    rate: float
    selected: int
    created_at: datetime
    created_by: str
    finished_at: datetime | None
    stopped_by: str | None
    replayed: int
    refused: int
    """Could not be replayed when their turn came; see `list_refusals`."""
    stopped: int
    left: int


class Refusal(NamedTuple):
    dead_letter_id: UUID
    reason: str | None


class _Outcome(NamedTuple):
    outcome: str
    letters: int


class _Claim(NamedTuple):
    replay_id: UUID
    actor: str
    rate: float
    allowed: int


class _Left(NamedTuple):
    position: int
    dead_letter_id: UUID


class Unread(NamedTuple):
    """A replayed record that is in its topic by now, and may be read at any moment."""

    dead_letter_id: UUID
    topic: str
    partition: int


# == asked for by people ===============================================================================================
async def select_letters(
    connection: Connection, namespace: str, filter: LetterFilter, *, is_free: bool = True
) -> Selection:
    """is_free: leave out what an open bulk replay has."""
    found = await find_dead_letters(connection, namespace, filter, limit=SELECTED_MAX + 1, is_free=is_free)
    return Selection(found[:SELECTED_MAX][::-1], len(found) > SELECTED_MAX)


async def start_bulk_replay(
    connection: Connection, store: Store, ids: Sequence[UUID], *, filter: bytes, rate: float, actor: str
) -> UUID:
    """Freeze a selection, in the caller's open transaction. filter: JSON, for people to see what was asked.

    Raises ConflictError when none of the letters is there to be replayed: they were closed, or another bulk replay has
    them.
    """
    replay_id, namespace = uuid7(), store.settings.namespace
    given = {"replay_id": replay_id, "namespace": namespace}
    await connection.execute(
        _SQL.text("insert_bulk_replay"), {**given, "filter": filter.decode(), "rate": rate, "actor": actor}
    )
    cursor = await connection.execute(_SQL.text("freeze_selection"), {**given, "ids": list(ids)})
    row = await cursor.fetchone()
    if row is None or not row[0]:
        raise ConflictError("no parked dead letter matches that is not being replayed already")
    await connection.execute(_SQL.text("note_selected"), {**given, "selected": row[0]})
    return replay_id


async def stop_bulk_replay(connection: Connection, namespace: str, replay_id: UUID, *, actor: str) -> None:
    """End it now, in the caller's open transaction: what has not gone out stays parked. Raises NotFoundError, and
    ConflictError when it is over.
    """
    given = {"replay_id": replay_id, "namespace": namespace, "actor": actor}
    cursor = await connection.execute(_SQL.text("stop_bulk_replay"), given)
    if await cursor.fetchone() is None:
        await get_bulk_replay(connection, namespace, replay_id)
        raise ConflictError(f"the bulk replay {replay_id} is over already", replay_id=str(replay_id))
    await connection.execute(_SQL.text("release_selection"), given)


async def get_bulk_replay(connection: Connection, namespace: str, replay_id: UUID) -> BulkReplayRow:
    """Raises NotFoundError."""
    rows = await list_bulk_replays(connection, namespace, limit=1, replay_id=replay_id)
    if not rows:
        raise NotFoundError(f"there is no bulk replay {replay_id}", replay_id=str(replay_id))
    return rows[0]


async def list_bulk_replays(
    connection: Connection,
    namespace: str,
    *,
    limit: int,
    before: tuple[datetime, UUID] = (AT_MAX, ID_MAX),
    replay_id: UUID | None = None,
) -> list[BulkReplayRow]:
    """Newest first. before: (created_at, replay_id) of the last one seen."""
    return await fetch(
        connection,
        BulkReplayRow,
        _SQL.text("read_bulk_replays"),
        namespace=namespace,
        replay_id=replay_id,
        limit=limit,
        before=before[0],
        before_id=before[1],
    )


async def count_outcomes(connection: Connection, replay_id: UUID) -> dict[str, int]:
    """Letters it has replayed, by what became of that: pending, completed, failed_again, cancelled."""
    counted = await fetch(connection, _Outcome, _SQL.text("count_outcomes"), replay_id=replay_id)
    return {**dict.fromkeys(OUTCOMES, 0), **{row.outcome: row.letters for row in counted}}


async def list_refusals(connection: Connection, replay_id: UUID, *, limit: int) -> list[Refusal]:
    return await fetch(connection, Refusal, _SQL.text("list_refusals"), replay_id=replay_id, limit=limit)


# == carried out by the sweep ==========================================================================================
async def step(connection: Connection, store: Store) -> int:
    """Replay what the rate allows now of one open bulk replay, in the caller's open transaction; answers how many
    letters were dealt with, 0 when none is due.
    """
    claim = await fetch_one(
        connection,
        _Claim,
        _SQL.text("claim_bulk_replay"),
        namespace=store.settings.namespace,
        step_max=STEP_MAX,
    )
    if claim is None:
        return 0
    left = await fetch(
        connection, _Left, _SQL.text("list_letters_left"), replay_id=claim.replay_id, limit=claim.allowed
    )
    refusals = [await _replay(connection, store, letter.dead_letter_id, claim.actor) for letter in left]
    await connection.execute(
        _SQL.text("note_outcomes"),
        {
            "replay_id": claim.replay_id,
            "positions": [letter.position for letter in left],
            "outcomes": ["replayed" if reason is None else "refused" for reason in refusals],
            "reasons": refusals,
        },
    )
    await connection.execute(_SQL.text("note_step"), {"replay_id": claim.replay_id, "done": len(left)})
    return len(left)


async def _replay(connection: Connection, store: Store, dead_letter_id: UUID, actor: str) -> str | None:
    """Replay one as a person would; answers why not, when it cannot be. One that Postgres refuses must not hold up the
    others.
    """
    try:
        async with connection.transaction():
            await replay_dead_letter(connection, store, dead_letter_id, actor=actor)
    except HeadraceError as e:
        return e.message
    except (psycopg.DataError, psycopg.IntegrityError) as e:
        return f"Postgres refused it: {e}".strip()
    return None


async def seconds_to_next(connection: Connection, namespace: str) -> float | None:
    """Until an open bulk replay may go on; None when none is open."""
    cursor = await connection.execute(_SQL.text("next_step"), {"namespace": namespace})
    row = await cursor.fetchone()
    return None if row is None or row[0] is None else float(row[0])


async def list_unread_records(connection: Connection) -> list[Unread]:
    return await fetch(connection, Unread, _SQL.text("list_unread_records"), settle=SETTLE_SECONDS, limit=UNREAD_MAX)


async def note_ends(connection: Connection, ends: Sequence[tuple[UUID, int]]) -> None:
    """Note where the logs of replayed records end: once a partition has been read so far, what is not set aside again
    was taken.
    """
    await connection.execute(
        _SQL.text("note_ends"), {"ids": [id_ for id_, _ in ends], "ends": [end for _, end in ends]}
    )
