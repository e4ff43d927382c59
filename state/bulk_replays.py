"""Bulk replays: many dead letters go out again at a rate; see `bulk`. A letter leaves 'parked' once, whoever comes
first."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple
from uuid import UUID

import psycopg

from headrace.errors import HeadraceError
from headrace.filter import Filter
from state.bulk import SELECTED_MAX, SQL, Selection, Turn, count_later
from state.decisions import replay_dead_letter
from state.queries.dead_letter import find_dead_letters
from state.queries.rows import Connection, fetch
from state.store import Store

SETTLE_SECONDS: Final = 15.0
"""Longer than any transaction that replays a record may take."""
UNREAD_MAX: Final = 1_000
OUTCOMES: Final = ("pending", "completed", "failed_again", "cancelled")


class Unread(NamedTuple):
    """A replayed record that is in its topic by now, and may be read at any moment."""

    dead_letter_id: UUID
    topic: str
    partition: int


async def select_letters(
    connection: Connection,
    namespace: str,
    filter: Filter,
    *,
    among: Collection[UUID] | None = None,
    is_free: bool = True,
) -> Selection:
    """Parked letters. among: of these only. is_free: leave out what an open bulk replay has."""
    found, bound = await find_dead_letters(
        connection, namespace, filter.and_("status", "parked"), limit=SELECTED_MAX + 1, among=among, is_free=is_free,
        is_selection=True,
    )  # fmt: skip
    return Selection(found[:SELECTED_MAX][::-1], len(found) > SELECTED_MAX or bound is not None)


async def count_outcomes(connection: Connection, bulk_id: UUID) -> dict[str, int]:
    """Letters it has replayed, by what became of that: pending, completed, failed_again, cancelled."""
    found = await count_later(connection, bulk_id)
    return {outcome: found.get(outcome, 0) for outcome in OUTCOMES}


async def replay_letters(connection: Connection, store: Store, ids: Sequence[UUID], actor: str) -> list[Turn]:
    """Replay each as a person would, in the caller's open transaction."""
    return [await _replay(connection, store, dead_letter_id, actor) for dead_letter_id in ids]


async def _replay(connection: Connection, store: Store, dead_letter_id: UUID, actor: str) -> Turn:
    """One that Postgres refuses must not hold up the others."""
    try:
        async with connection.transaction():
            await replay_dead_letter(connection, store, dead_letter_id, actor=actor)
    except HeadraceError as e:
        return Turn("refused", e.message)
    except (psycopg.DataError, psycopg.IntegrityError) as e:
        return Turn("refused", f"Postgres refused it: {e}".strip())
    return Turn("done")


async def list_unread_records(connection: Connection) -> list[Unread]:
    return await fetch(connection, Unread, SQL.text("list_unread_records"), settle=SETTLE_SECONDS, limit=UNREAD_MAX)


async def note_ends(connection: Connection, ends: Sequence[tuple[UUID, int]]) -> None:
    """Note where the logs of replayed records end: once a partition has been read so far, what is not set aside again
    was taken.
    """
    await connection.execute(SQL.text("note_ends"), {"ids": [id_ for id_, _ in ends], "ends": [end for _, end in ends]})
