"""Dead letters: found by what they have in common, grouped, read with their context."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from psycopg import sql

from headrace.filter import Filter
from state.filter_sql import CANDIDATES, PATIENCE, conditions_of
from state.queries.rows import AT_MAX, ID_MAX, PAGE_BYTES, UNBOUNDED, Connection, fetch, fetch_filtered, fetch_one
from state.queries.task import AttemptRow
from state.sql import load

_SQL = load("dead_letter_queries")
GROUPED_MAX: Final = 100_000
"""Letters that a list of groups looks at, newest first: counting all of a million would time out."""


class LetterPlace(NamedTuple):
    """Where a letter stands among all."""

    at: datetime
    dead_letter_id: UUID


class FoundLetters(NamedTuple):
    ids: list[UUID]
    """Newest first."""
    bound: LetterPlace | None
    """The last one that was looked at, when the search ended there; None: as many as were asked for were found, or all
    there are."""


class DeadLetterRow(NamedTuple):
    dead_letter_id: UUID
    kind: str
    status: str
    run_id: UUID | None
    workflow: str | None
    version: int | None
    version_id: int | None
    """None for a record that belongs to no run we have."""
    task: int | None
    task_name: str | None
    token: int | None
    topic: str | None
    partition: int | None
    offset: int | None
    key: bytes | None
    value: bytes | None
    headers: str | None
    reason: str
    error: str | None
    code: str
    message: str
    fingerprint: str
    created_at: datetime
    closed_at: datetime | None
    closed_by: str | None
    close_reason: str | None
    replay_of: UUID | None
    replay_token: int | None
    replayed_as: UUID | None
    """The letter in which its replay ended."""
    replay_outcome: str | None
    """pending, completed, failed_again or cancelled; None unless it was replayed."""


class GroupRow(NamedTuple):
    fingerprint: str
    letters: int
    first_at: datetime
    last_at: datetime
    sample_id: UUID
    kind: str
    workflow: str | None
    version: int | None
    task_name: str | None
    topic: str | None
    code: str
    message: str


class LetterRunRow(NamedTuple):
    """What a letter's run knows about it."""

    input: str
    traceparent: str | None
    replayed: str | None
    """Detail of the last replay before it that carried an input: `{"input": …}`."""


async def find_dead_letters(
    connection: Connection,
    namespace: str,
    filter: Filter,
    *,
    limit: int,
    before: tuple[datetime, UUID] = (AT_MAX, ID_MAX),
    among: Collection[UUID] | None = None,
    is_free: bool = False,
    is_selection: bool = False,
) -> FoundLetters:
    """Newest first; parked ones, unless the filter says another status. before: (created_at, dead_letter_id) of the
    last one seen. among: of these only. is_free: only those that no open bulk replay has. is_selection: for an act on
    many, searched for with PATIENCE.
    """
    made = await conditions_of(connection, namespace, filter)
    if among is not None:
        made.only(among)
    if is_free:
        made.look.append(sql.SQL(CANDIDATES.text("is_in_no_replay")))
    if made.is_nothing:
        return FoundLetters([], None)
    if is_selection:
        made.looks *= PATIENCE
    scanned = max(limit, made.looks) if made.has_looks else limit
    given = made.given(namespace=namespace, before_at=before[0], before=before[1], scanned=scanned, limit=limit)
    found = await fetch_filtered(connection, lambda id_: id_, made.statement("find_letters"), **given)
    if len(found) >= limit or not made.has_looks:
        return FoundLetters(found, None)
    last = await fetch_filtered(connection, LetterPlace, made.statement("find_last_letter"), **given)
    return FoundLetters(found, last[0] if last else None)


async def read_dead_letters(
    connection: Connection, namespace: str, ids: Sequence[UUID], *, is_bounded: bool = False
) -> list[DeadLetterRow]:
    """Newest first, whatever their status. is_bounded: at most PAGE_BYTES of values, but at least one letter."""
    return await fetch(
        connection,
        DeadLetterRow,
        _SQL.text("read_dead_letters"),
        namespace=namespace,
        ids=list(ids),
        bytes=PAGE_BYTES if is_bounded else UNBOUNDED,
    )


async def get_dead_letter(connection: Connection, namespace: str, dead_letter_id: UUID) -> DeadLetterRow | None:
    rows = await read_dead_letters(connection, namespace, [dead_letter_id])
    return rows[0] if rows else None


async def group_dead_letters(
    connection: Connection,
    namespace: str,
    filter: Filter,
    *,
    limit: int,
    after: tuple[datetime, str] = (AT_MAX, ""),
) -> list[GroupRow]:
    """The group with the newest letter first, of the newest GROUPED_MAX letters. after: (last_at, fingerprint) of the
    last one seen."""
    made = await conditions_of(connection, namespace, filter)
    if made.is_nothing:
        return []
    given = made.given(
        namespace=namespace, before_at=AT_MAX, before=ID_MAX, scanned=GROUPED_MAX, after_at=after[0],
        after_fingerprint=after[1], limit=limit,
    )  # fmt: skip
    return await fetch_filtered(connection, GroupRow, made.statement("group_letters"), **given)


async def read_letter_run(connection: Connection, run_id: UUID, task: int, token: int) -> LetterRunRow | None:
    """None when the run is gone. task, token: of the letter; -1 for one of no task."""
    return await fetch_one(
        connection, LetterRunRow, _SQL.text("read_letter_run"), run_id=run_id, task=task, token=token
    )


async def list_letter_attempts(
    connection: Connection, run_id: UUID, task: int, token: int, *, limit: int
) -> list[AttemptRow]:
    """The newest attempts of a task up to a hand-out, in order; without outputs, as none of them completed."""
    return await fetch(
        connection, AttemptRow, _SQL.text("list_letter_attempts"), run_id=run_id, task=task, token=token, limit=limit
    )


async def discard_dead_letters(
    connection: Connection, namespace: str, ids: Iterable[UUID], *, actor: str, reason: str
) -> int:
    """Close those that are still parked, in the caller's open transaction; answers how many those were."""
    cursor = await connection.execute(
        _SQL.text("discard_dead_letters"),
        {"namespace": namespace, "ids": list(ids), "closed_by": actor, "reason": reason},
    )
    return cursor.rowcount
