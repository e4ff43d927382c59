"""Pools: their limits, and who is admitted next. The lock on a pool's row decides; see `state/sql/pool.sql`."""

from collections import defaultdict
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

import psycopg

from headrace.errors import ConflictError, NotFoundError, PayloadError
from headrace.machine import Transition
from headrace.machine.draft import fairness_key_of
from headrace.machine.status import RUN_TERMINAL
from headrace.rate import Rate
from state.control import find_standing, load_runs
from state.plans import Plans
from state.queries.pool import PoolRow, get_pool
from state.queries.rows import Connection, fetch_one
from state.requests import request
from state.sql import load
from state.store import Store, StoredRun
from state.turns import Line, Turns, Waiter

_SQL, _QUERIES = load("pool"), load("pool_queries")
Granted = tuple[UUID, int, int]
"""Run, task, token."""


async def has_waiters(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether anybody waits for a slot, or has one and may not know it."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_SQL.text("has_waiters"))
        return bool((await cursor.fetchall())[0][0])


async def grant_slots(connection: psycopg.AsyncConnection[Any], most: int) -> list[Granted]:
    """Give what is free in every pool to those who are next for it, in the caller's open transaction; answers whom to
    tell. most: of each pool.

    Costs by the slots that are given and held and by the keys that are waited for, and not by how many wait.
    """
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_SQL.text("pin_plans"))
        await cursor.execute(_SQL.text("lock_pools"))
        locked = await cursor.fetchall()
        if not locked:
            return []
        namespaces, names, _ = map(list, zip(*locked, strict=True))
        await cursor.execute(_SQL.text("read_keys"), (namespaces, names, most))
        pools = {pool: _turns(list(rows)) for pool, rows in groupby(await cursor.fetchall(), itemgetter(1, 2))}
        await _claim(cursor, list(pools.values()))
        given = {pool: turns.in_turn() for pool, turns in pools.items()}
        if slots := [_slot(line, waiter) for in_turn in given.values() for line, waiter in in_turn]:
            await cursor.execute(_SQL.text("give_slots"), _columns(slots))
        if notes := [note for pool, turns in pools.items() for note in _notes(turns, given[pool])]:
            await cursor.execute(_SQL.text("note_turns"), _columns(notes))
        if paid := [(*pool, len(given.get(tuple(pool), ()))) for *pool, has_rate in locked if has_rate]:
            await cursor.execute(_SQL.text("pay_rates"), _columns(paid))
    return [(run_id, task, token) for run_id, task, token, *_ in slots]


def _columns(rows: list[Any]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _turns(rows: list[Any]) -> Turns:
    """Of one pool. rows: of `read_keys`."""
    lines = [
        Line(namespace=namespace, pool=pool, key=key, held=held, turned_at=at, is_known=is_known, is_shared=is_shared)
        for _, namespace, pool, key, held, at, is_known, is_shared in rows
    ]
    return Turns(rows[0][0], lines)


async def _claim(cursor: "psycopg.AsyncRawCursor[Any]", pools: list[Turns]) -> None:
    """Lock those who are next, as many as there are slots. A line that gives fewer than were asked of it ends there;
    then the others are asked for more, so that each time somebody's line has ended, or all is given."""
    while wanted := [each for turns in pools for each in turns.next_lines()]:
        rows = []
        for line, count in wanted:
            last = line.claimed[-1] if line.claimed else None
            behind = (None, None, None) if last is None else (last.ranked_at, last.run_id, last.task)
            rows.append((line.namespace, line.pool, line.key, count, *behind))
        await cursor.execute(_SQL.text("claim_waiters"), _columns(rows))
        found = defaultdict[int, list[Waiter]](list)
        for number, *waiter in await cursor.fetchall():
            found[number].append(Waiter(*waiter))
        for number, (line, count) in enumerate(wanted, 1):
            line.claimed += found[number]
            line.is_spent = len(found[number]) < count


def _slot(line: Line, waiter: Waiter) -> tuple[Any, ...]:
    return waiter.run_id, waiter.task, waiter.token, line.namespace, line.pool, line.key


def _notes(turns: Turns, in_turn: list[tuple[Line, Waiter]]) -> list[tuple[Any, ...]]:
    """The turns to remember: of those that had one, and since when those wait that were not seen before."""
    last = {line.key: turn for turn, (line, _) in enumerate(in_turn, 1)}
    return [
        (line.namespace, line.pool, line.key, last.get(line.key), line.turned_at)
        for line in turns.lines
        if line.is_shared and (line.key in last or not line.is_known)
    ]


async def say_granted(connection: psycopg.AsyncConnection[Any], seconds: float, most: int) -> list[Granted]:
    """Those who were granted a slot so long ago and have not taken note of it."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_SQL.text("say_granted"), (seconds, most))
        return await cursor.fetchall()


async def restore_waiters(connection: psycopg.AsyncConnection[Any], store: Store, plans: Plans, most: int) -> int:
    """Put tasks in their queues again that wait for a slot and whose rows are gone, in the caller's open transaction;
    answers how many."""
    return await _restore(connection, store, plans, most, "waiters")


async def restore_slots(connection: psycopg.AsyncConnection[Any], store: Store, plans: Plans, most: int) -> int:
    """The same for slots: what works, or was granted one, has its slot."""
    return await _restore(connection, store, plans, most, "slots")


async def _restore(connection: psycopg.AsyncConnection[Any], store: Store, plans: Plans, most: int, rows: str) -> int:
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_SQL.text(f"find_lost_{rows}"), (most,))
        found = await cursor.fetchall()
        if not found:
            return 0
        await plans.load(connection, {version_id for *_, version_id, _ in found})
        unsaid = {
            run_id for run_id, task, version_id, key in found if key is None and _has_key(plans, version_id, task)
        }
        runs = await load_runs(connection, store, plans, list(unsaid)) if unsaid else {}
        restored = [
            (run_id, task, key if key is not None else _key_again(runs.get(run_id), task))
            for run_id, task, _, key in found
        ]
        await cursor.execute(_SQL.text(f"restore_pool_{rows}"), _columns(restored))
    return len(restored)


def _has_key(plans: Plans, version_id: int, task: int) -> bool:
    plan = plans.get(version_id)
    return plan is not None and (pool := plan.at(task).pool) is not None and pool.fairness_key is not None


def _key_again(run: StoredRun | None, task: int) -> str:
    """As it was worked out when the task began to wait; without one, the task counts with those that have none."""
    try:
        return "" if run is None else fairness_key_of(run.plan, run, Transition(run), task)
    except PayloadError:
        return ""


async def set_pool(
    connection: Connection, store: Store, name: str, *, slots: int | None, rate: Rate | None, actor: str
) -> PoolRow:
    """Make a pool, or give it other limits, in the caller's open transaction. slots, rate: None for no such limit, one
    of them at most.

    Nothing is stopped when there are fewer slots than holders: nothing is granted until so many are free.
    """
    namespace = store.settings.namespace
    count, seconds = (None, None) if rate is None else rate
    await connection.execute(
        _QUERIES.text("set_pool"),
        {"namespace": namespace, "name": name, "slots": slots, "count": count, "seconds": seconds, "actor": actor},
    )
    row = await get_pool(connection, namespace, name)
    assert row is not None
    return row


async def remove_pool(connection: Connection, store: Store, name: str) -> None:
    """Take a pool away, in the caller's open transaction. Raises NotFoundError, and ConflictError while some task holds
    a slot of it or waits for one."""
    given = {"namespace": store.settings.namespace, "name": name}
    if await fetch_one(connection, str, _QUERIES.text("find_pool_for_removal"), **given) is None:
        raise NotFoundError(f"there is no pool {name}", pool=name)
    if await fetch_one(connection, str, _QUERIES.text("remove_pool"), **given) is None:
        raise ConflictError(f"tasks hold slots of pool {name}, or wait for one", pool=name)


async def prioritise_run(
    connection: Connection, store: Store, run_id: UUID, priority: int, *, reason: str, actor: str
) -> None:
    """Ask that a run's tasks have another place in the queues of pools. Raises NotFoundError, and ConflictError when it
    has ended."""
    run = await find_standing(connection, store.settings.namespace, run_id)
    if run.status in RUN_TERMINAL:
        raise ConflictError(f"the run is {run.status} already", run_id=str(run_id), status=run.status)
    await request(connection, store, str(run_id), "prioritised", {"priority": priority, "reason": reason}, actor)
