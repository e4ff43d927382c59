"""Delegations: somebody decides in place of an approver, between two instants. In the caller's open transaction."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from uuid_utils import uuid7

from headrace.approval import ROLE
from headrace.errors import ConflictError, ForbiddenError, NotFoundError
from headrace.standing import Person
from state.queries.rows import Connection, fetch, fetch_one
from state.sql import load

_SQL: Final = load("approval")


class DelegationRow(NamedTuple):
    delegation_id: UUID
    from_name: str
    """A name, or a role as `role:finance`."""
    to_name: str
    starts_at: datetime
    ends_at: datetime
    reason: str
    made_by: str
    made_at: datetime
    ended_by: str | None


async def delegate(
    connection: Connection,
    namespace: str,
    *,
    from_name: str,
    to_name: str,
    starts_at: datetime | None,
    ends_at: datetime,
    reason: str,
    by: Person,
) -> DelegationRow:
    """Let another decide in one's place. starts_at: None: from now on. A delegate cannot pass it on.

    Raises ForbiddenError when it is not by's to give, ConflictError when it would be over before it begins.
    """
    _check_owner(from_name, by)
    if from_name == to_name:
        raise ConflictError(f"{from_name} needs no delegation to decide in their own place")
    now = await fetch_one(connection, _instant, "SELECT now()")
    if now is not None and ends_at <= max(now, starts_at or now):
        raise ConflictError("the delegation would be over before it begins")
    row = await fetch_one(
        connection,
        DelegationRow,
        _SQL.text("insert_delegation"),
        delegation_id=UUID(bytes=uuid7().bytes),
        namespace=namespace,
        from_name=from_name,
        to_name=to_name,
        starts_at=starts_at,
        ends_at=ends_at,
        reason=reason,
        actor=by.name,
    )
    assert row is not None
    return row


async def list_delegations(connection: Connection, namespace: str, *, limit: int) -> list[DelegationRow]:
    """Those that are not over, newest first."""
    return await fetch(connection, DelegationRow, _SQL.text("list_delegations"), namespace=namespace, limit=limit)


async def end_delegation(connection: Connection, namespace: str, delegation_id: UUID, by: Person) -> DelegationRow:
    """End it now. Raises NotFoundError, ForbiddenError, and ConflictError when it was ended before."""
    given = {"namespace": namespace, "delegation_id": delegation_id}
    row = await fetch_one(connection, DelegationRow, _SQL.text("get_delegation"), **given)
    if row is None:
        raise NotFoundError(f"there is no delegation {delegation_id}", delegation_id=str(delegation_id))
    _check_owner(row.from_name, by)
    if row.ended_by is not None:
        raise ConflictError(f"the delegation was ended by {row.ended_by}", delegation_id=str(delegation_id))
    await connection.execute(_SQL.text("end_delegation"), {**given, "actor": by.name})
    ended = await fetch_one(connection, DelegationRow, _SQL.text("get_delegation"), **given)
    assert ended is not None
    return ended


def _check_owner(from_name: str, by: Person) -> None:
    if from_name.startswith(ROLE):
        if from_name.removeprefix(ROLE) not in by.roles:
            raise ForbiddenError(f"{by.name} does not have {from_name}, and cannot delegate it")
    elif from_name != by.name:
        raise ForbiddenError(f"{by.name} cannot delegate for {from_name}: only {from_name} can")


def _instant(value: datetime) -> datetime:
    return value
