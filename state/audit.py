"""The audit: who did what, when, why and from where. Rows are written in the transaction of the act, and stay."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from uuid_utils.compat import uuid7

from state.queries.rows import AT_MAX, ID_MAX, Connection, fetch
from state.sql import load

AT_THE_DATABASE: Final = "database"
"""The actor of what is done by a program of the engine, beside the API."""
LOOKED_AT_MAX: Final = 100_000
"""Rows that a filter looks at: its columns have no index, and people ask about what was done lately."""
_SQL = load("access")


class AuditRow(NamedTuple):
    audit_id: UUID
    at: datetime
    actor: str
    token_id: UUID | None
    act: str
    target: str
    reason: str
    address: str
    request_id: str


async def record(
    connection: Connection,
    namespace: str,
    *,
    actor: str,
    act: str,
    target: str,
    reason: str = "",
    token_id: UUID | None = None,
    address: str = "",
    request_id: str = "",
) -> None:
    """Add a row, in the caller's open transaction."""
    await connection.execute(
        _SQL.text("insert_audit"),
        {
            "audit_id": uuid7(), "namespace": namespace, "actor": actor, "token_id": token_id, "act": act,
            "target": target, "reason": reason, "address": address, "request_id": request_id,
        },
    )  # fmt: skip


async def list_audit(
    connection: Connection,
    namespace: str,
    *,
    limit: int,
    before: tuple[datetime, UUID] = (AT_MAX, ID_MAX),
    actor: str | None = None,
    act: str | None = None,
    target: str | None = None,
) -> list[AuditRow]:
    """Newest first, of the newest LOOKED_AT_MAX before `before`. target: a part of it."""
    return await fetch(
        connection, AuditRow, _SQL.text("list_audit"), namespace=namespace, before_at=before[0], before_id=before[1],
        actor=actor, act=act, target=target, looked_at=LOOKED_AT_MAX, limit=limit,
    )  # fmt: skip
