"""Pools, who holds their slots and who waits for one."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from state.queries.rows import Connection, fetch, fetch_one
from state.sql import load

_SQL = load("pool_queries")


class PoolRow(NamedTuple):
    name: str
    is_set: bool
    """False: some task waits for it, and nobody has said how many slots it has."""
    slots: int | None
    """None: as many as are asked for."""
    rate_count: int | None
    rate_seconds: float | None
    held: int
    waiting: int
    created_at: datetime | None
    updated_at: datetime | None
    updated_by: str


class PoolTaskRow(NamedTuple):
    """A task that holds a slot, or waits for one."""

    run_id: UUID
    task: int
    version_id: int
    token: int
    since: datetime
    priority: int
    """Of its run."""
    fairness_key: str | None
    """Between whom the slots go in turns; None: with all others that have none."""


async def list_pools(connection: Connection, namespace: str, *, limit: int, after: str = "") -> list[PoolRow]:
    """By name."""
    return await fetch(
        connection, PoolRow, _SQL.text("list_pools"), namespace=namespace, after=after, name=None, limit=limit
    )


async def get_pool(connection: Connection, namespace: str, name: str) -> PoolRow | None:
    statement = _SQL.text("list_pools")
    return await fetch_one(connection, PoolRow, statement, namespace=namespace, after="", name=name, limit=1)


async def list_holders(connection: Connection, namespace: str, name: str, *, limit: int) -> list[PoolTaskRow]:
    """Those who have had a slot for longest first."""
    statement = _SQL.text("list_holders")
    return await fetch(connection, PoolTaskRow, statement, namespace=namespace, name=name, limit=limit)


async def list_waiters(connection: Connection, namespace: str, name: str, *, limit: int) -> list[PoolTaskRow]:
    """In the order in which they will get a slot."""
    statement = _SQL.text("list_waiters")
    return await fetch(connection, PoolTaskRow, statement, namespace=namespace, name=name, limit=limit)
