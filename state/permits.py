"""Permits of runs under the limit of their workflow: who begins at once, who waits, who is next.

    start  -> locks its key, reads how that stands, and begins, waits, or is not started (`headrace.machine.limit`)
    end    -> takes the run's row away, in the transaction of the end
    sweep  -> locks keys that somebody waits for, and grants what is free, oldest first

What a start or a sweep has counted stays so until it commits, since whoever else would grant waits for the key.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

import psycopg

from headrace.errors import PayloadError
from headrace.machine import Plan
from headrace.machine.limit import Line
from state.plans import Plans
from state.requests import Wanted, request_all
from state.sql import load
from state.store import Key, Store

SQL: Final = load("permit")
GRANTED_MAX: Final = 1_000
"""Of one key in one pass; as many as a limit may have."""
Asked = tuple[Key, bool]
"""Of a start: its key, and whether it replaces others."""
Lines = dict[Key, Line]


def asked(namespace: str, plan: Plan, input: bytes) -> Asked | None:
    """What a start asks for; None: its workflow has no limit. Raises PayloadError when it has no key."""
    if plan.limit is None:
        return None
    return Key(namespace, plan.name, plan.limit.key_of(input)), plan.limit.over == "replace_oldest"


def _columns(given: Sequence[Asked]) -> list[list[Any]]:
    keys = [key for key, _ in given]
    return [[key.namespace for key in keys], [key.name for key in keys], [key.key for key in keys]]


def _lines(rows: Sequence[tuple[Any, ...]]) -> Lines:
    return {Key(*row[:3]): Line(row[3], row[4], is_waited=row[5], holder=row[6], staying=row[7]) for row in rows}


async def lock_lines(connection: psycopg.AsyncConnection[Any], given: Sequence[Asked]) -> Lines:
    """How the keys of these starts stand, and nobody else grants any of them until the caller's transaction ends;
    nothing is asked for none."""
    if not given:
        return {}
    columns = _columns(given)
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(SQL.text("lock_permits"), columns)
        await cursor.execute(SQL.text("read_lines"), (*columns, [replaces for _, replaces in given]))
        return _lines(await cursor.fetchall())


def lock_lines_sync(connection: psycopg.Connection[Any], given: Sequence[Asked]) -> Lines:
    """The same, for a thread of its own."""
    if not given:
        return {}
    columns = _columns(given)
    with psycopg.RawCursor(connection) as cursor:
        cursor.execute(SQL.text("lock_permits"), columns)
        cursor.execute(SQL.text("read_lines"), (*columns, [replaces for _, replaces in given]))
        return _lines(cursor.fetchall())


async def next_keys(connection: psycopg.AsyncConnection[Any], after: Key, most: int) -> list[Key]:
    """Keys for which runs wait, in an order of their own."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(SQL.text("next_permit_keys"), (*after, most))
        return [Key(*row) for row in await cursor.fetchall()]


async def grant_permits(connection: psycopg.AsyncConnection[Any], store: Store, keys: Collection[Key]) -> int:
    """Give what is free of these keys to those who are next, and tell them, in the caller's open transaction; answers
    how many that were."""
    columns = _columns([(key, False) for key in sorted(keys)])
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(SQL.text("lock_permits"), columns)
        await cursor.execute(SQL.text("grant_permits"), (*columns, GRANTED_MAX))
        granted = await cursor.fetchall()
    await request_all(connection, store, "permitted", [Wanted(str(run_id), {}) for (run_id,) in granted], "")
    return len(granted)


async def restore_permits(connection: psycopg.AsyncConnection[Any], plans: Plans, most: int) -> int:
    """Give runs their rows again that wait for a permit, or have one, and whose rows are gone, in the caller's open
    transaction; answers how many."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(SQL.text("find_unlisted"), (most,))
        found = await cursor.fetchall()
        if not found:
            return 0
        await plans.load(connection, {version_id for _, version_id, _, _ in found})
        rows = []
        for run_id, version_id, given, is_granted in found:
            plan = plans.get(version_id)  # none: a newer release puts it back
            if plan is not None and plan.limit is not None:
                rows.append((run_id, plan.name, _key(plan, given), is_granted))
        if rows:
            await cursor.execute(SQL.text("restore_permits"), [list(column) for column in zip(*rows, strict=True)])
    return len(rows)


def _key(plan: Plan, given: str) -> str:
    """Of a run that is there already: as `headrace.machine.limit.key_of_run` has it."""
    try:
        return "" if plan.limit is None else plan.limit.key_of(given.encode())
    except PayloadError:
        return ""
