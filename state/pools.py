"""Pools: their limits, and who is admitted next. The lock on a pool's row decides; see `state/sql/pool.sql`."""

from typing import Any
from uuid import UUID

import psycopg

from headrace.errors import ConflictError, NotFoundError
from headrace.machine.status import RUN_TERMINAL
from headrace.rate import Rate
from state.control import find_standing
from state.queries.pool import PoolRow, get_pool
from state.queries.rows import Connection, fetch_one
from state.requests import request
from state.sql import load
from state.store import Store

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
    tell. most: of each pool."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_SQL.text("lock_pools"))
        pools = await cursor.fetchall()
        if not pools:
            return []
        namespaces, names = zip(*pools, strict=True)
        await cursor.execute(_SQL.text("grant_slots"), (list(namespaces), list(names), most))
        return await cursor.fetchall()


async def say_granted(connection: psycopg.AsyncConnection[Any], seconds: float, most: int) -> list[Granted]:
    """Those who were granted a slot so long ago and have not taken note of it."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_SQL.text("say_granted"), (seconds, most))
        return await cursor.fetchall()


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
