"""Browsers that are logged in, and the codes that log one in once. Only hashes of what they show are stored."""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from headrace.errors import InvariantError
from state.queries.rows import Connection, fetch_one
from state.sql import load
from state.tokens import Holder, digest, new_secret

SESSION_LIFETIME: Final = timedelta(hours=12)
"""A working day; then a person logs in again."""
CODE_LIFETIME: Final = timedelta(minutes=10)
_SQL = load("access")


async def create_login_code(connection: Connection, namespace: str, token_id: UUID | None) -> tuple[str, datetime]:
    """A code that makes one session of this token, and until when. token_id: None for the local token."""
    code = new_secret("")
    expires_at = await fetch_one(
        connection, _only, _SQL.text("insert_login_code"), code_hash=digest(code), namespace=namespace,
        token_id=token_id, lifetime=CODE_LIFETIME,
    )  # fmt: skip
    if expires_at is None:
        raise InvariantError("a login code was not stored")
    return code, expires_at


async def redeem_login_code(connection: Connection, namespace: str, code: str) -> str | None:
    """Use a code up and answer the secret of the session that it makes; None: it is none, or was used."""

    def token(token_id: UUID | None) -> tuple[UUID | None]:
        return (token_id,)

    given = {"code_hash": digest(code), "namespace": namespace}
    found = await fetch_one(connection, token, _SQL.text("redeem_login_code"), **given)
    return None if found is None else await create_session(connection, namespace, found[0])


async def create_session(connection: Connection, namespace: str, token_id: UUID | None) -> str:
    """Make a session and answer its secret. What has expired leaves."""
    await connection.execute(_SQL.text("delete_expired"))
    secret = new_secret("")
    given = {"namespace": namespace, "token_id": token_id, "lifetime": SESSION_LIFETIME}
    await connection.execute(_SQL.text("insert_session"), {"session_hash": digest(secret), **given})
    return secret


async def find_session(connection: Connection, namespace: str, session_hash: bytes) -> Holder | None:
    """Whose session it is; None: there is none, or it or its token is over."""
    return await fetch_one(
        connection, Holder, _SQL.text("find_session"), namespace=namespace, session_hash=session_hash
    )


async def end_session(connection: Connection, session_hash: bytes) -> None:
    await connection.execute(_SQL.text("delete_session"), {"session_hash": session_hash})


def _only(value: datetime) -> datetime:
    return value
