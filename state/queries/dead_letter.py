"""Dead letters: found by what they have in common, grouped, read with their context."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from state.queries.rows import AT_MAX, ID_MAX, PAGE_BYTES, UNBOUNDED, Connection, fetch, fetch_filtered, fetch_one
from state.queries.task import AttemptRow
from state.sql import load

_SQL = load("dead_letter_queries")
GROUPED_MAX: Final = 100_000
"""Letters that a list of groups looks at, newest first: counting all of a million would time out."""


@dataclass(frozen=True)
class LetterFilter:
    """Which dead letters; None asks for nothing. All that are given must hold."""

    kind: str | None = None
    workflow: str | None = None
    version: int | None = None
    task: str | None = None
    topic: str | None = None
    fingerprint: str | None = None
    code: str | None = None
    text: str | None = None
    """Stands in its reason or message, whatever the case of the letters."""
    run_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    """Set aside before this instant."""
    ids: tuple[UUID, ...] | None = None

    @property
    def is_empty(self) -> bool:
        return all(value is None for value in asdict(self).values())


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
    filter: LetterFilter,
    *,
    status: str = "parked",
    limit: int,
    before: tuple[datetime, UUID] = (AT_MAX, ID_MAX),
    is_free: bool = False,
) -> list[UUID]:
    """Ids, newest first. before: (created_at, dead_letter_id) of the last one seen. is_free: only those that no open
    bulk replay has.
    """
    return await fetch_filtered(
        connection,
        lambda found: found,
        _SQL.text("find_dead_letters"),
        namespace=namespace,
        status=status,
        limit=limit,
        before=before[0],
        before_id=before[1],
        is_free=is_free,
        **_parameters(filter),
    )


async def list_dead_letters(
    connection: Connection,
    namespace: str,
    filter: LetterFilter,
    *,
    status: str = "parked",
    limit: int,
    before: tuple[datetime, UUID] = (AT_MAX, ID_MAX),
) -> list[DeadLetterRow]:
    """Newest first. Large values cut a page short, but never to nothing."""
    found = await find_dead_letters(connection, namespace, filter, status=status, limit=limit, before=before)
    return await read_dead_letters(connection, namespace, found, is_bounded=True)


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
    filter: LetterFilter,
    *,
    status: str = "parked",
    limit: int,
    before: tuple[datetime, str] = (AT_MAX, ""),
) -> list[GroupRow]:
    """The group with the newest letter first. before: (last_at, fingerprint) of the last one seen."""
    return await fetch_filtered(
        connection,
        GroupRow,
        _SQL.text("group_dead_letters"),
        namespace=namespace,
        status=status,
        limit=limit,
        before=before[0],
        before_fingerprint=before[1],
        scanned=GROUPED_MAX,
        **_parameters(filter),
    )


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


def _parameters(filter: LetterFilter) -> dict[str, object]:
    return {**asdict(filter), "ids": None if filter.ids is None else list(filter.ids)}
