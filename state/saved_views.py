"""Filters that people keep under a name: for themselves, or for all who read."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from headrace.errors import ConflictError, ForbiddenError, NotFoundError
from headrace.filter import Filter
from state.queries.rows import Connection, fetch, fetch_one
from state.sql import load

_SQL: Final = load("saved_view")
VIEWS_MAX: Final = 200
"""Of one person: more than anybody finds again."""
LISTED_MAX: Final = 2_000


class ViewRow(NamedTuple):
    view_id: UUID
    of: str
    name: str
    owner: str
    is_shared: bool
    filter: str
    layout: str
    created_at: datetime
    updated_at: datetime


async def list_views(connection: Connection, namespace: str, owner: str, of: str | None = None) -> list[ViewRow]:
    """Those that this person sees, by name."""
    statement = _SQL.text("list_views")
    return await fetch(connection, ViewRow, statement, namespace=namespace, owner=owner, of=of, limit=LISTED_MAX)


async def get_view(connection: Connection, namespace: str, owner: str, view_id: UUID) -> ViewRow:
    """Raises NotFoundError, also for one that somebody else keeps for themselves."""
    found = await fetch_one(
        connection, ViewRow, _SQL.text("get_view"), namespace=namespace, owner=owner, view_id=view_id
    )
    if found is None:
        raise NotFoundError(f"there is no view {view_id}", view_id=str(view_id))
    return found


async def save_view(
    connection: Connection, namespace: str, owner: str, name: str, filter: Filter, *, is_shared: bool, layout: bytes
) -> ViewRow:
    """Keep a filter, in the caller's open transaction. layout: JSON. Raises ConflictError when the name is taken, or
    this person keeps too many."""
    if (await fetch_one(connection, int, _SQL.text("count_views"), namespace=namespace, owner=owner) or 0) >= VIEWS_MAX:
        raise ConflictError(f"{owner} keeps {VIEWS_MAX} views already; remove one")
    view_id = uuid7()
    await _write(connection, "insert_view", namespace, view_id, owner, name, filter, is_shared, layout)
    return await get_view(connection, namespace, owner, view_id)


async def change_view(
    connection: Connection,
    namespace: str,
    owner: str,
    view_id: UUID,
    name: str,
    filter: Filter,
    *,
    is_shared: bool,
    layout: bytes,
) -> ViewRow:
    """Raises NotFoundError; ForbiddenError for one of somebody else; ConflictError when the name is taken."""
    await _own(connection, namespace, owner, view_id)
    await _write(connection, "update_view", namespace, view_id, owner, name, filter, is_shared, layout)
    return await get_view(connection, namespace, owner, view_id)


async def delete_view(connection: Connection, namespace: str, owner: str, view_id: UUID) -> None:
    """Raises NotFoundError, and ForbiddenError for one of somebody else."""
    await _own(connection, namespace, owner, view_id)
    await connection.execute(_SQL.text("delete_view"), {"namespace": namespace, "view_id": view_id})


async def _own(connection: Connection, namespace: str, owner: str, view_id: UUID) -> None:
    found = await get_view(connection, namespace, owner, view_id)
    if found.owner != owner:
        raise ForbiddenError(f"the view {found.name!r} is kept by {found.owner}", view_id=str(view_id))


async def _write(
    connection: Connection,
    statement: str,
    namespace: str,
    view_id: UUID,
    owner: str,
    name: str,
    filter: Filter,
    is_shared: bool,
    layout: bytes,
) -> None:
    given = {
        "namespace": namespace, "view_id": view_id, "of": filter.of, "name": name, "owner": owner,
        "is_shared": is_shared, "filter": str(filter), "layout": layout.decode(),
    }  # fmt: skip
    try:
        await connection.execute(_SQL.text(statement), given)
    except psycopg.errors.UniqueViolation:
        raise ConflictError(f"there is a view {name!r} already", name=name) from None
