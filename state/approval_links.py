"""Links to decide by: an address that is signed, is for one person and one question, and works once.

The address carries no right by itself but this one: to vote as the person it was made for. Its row says whether it was
used; its signature keeps others from trying ids.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple
from uuid import UUID

from uuid_utils import uuid7

from headrace.errors import NotFoundError
from headrace.standing import Person
from state.approvals import check_maker, check_standing, note
from state.queries.rows import Connection, fetch_one
from state.sql import load
from state.store import Store

_KEY_NAME: Final = "approval links"
_SIGNATURE_BYTES: Final = 32
_SQL: Final = load("approval")


class LinkRow(NamedTuple):
    approval_id: UUID
    name: str
    role: str | None
    made_by: str
    expires_at: datetime
    used_at: datetime | None
    is_over: bool

    @property
    def person(self) -> Person:
        """Who votes by it."""
        return Person(self.name, frozenset(() if self.role is None else (self.role,)))


class Signed(NamedTuple):
    token: str
    expires_at: datetime


async def make_link(
    connection: Connection, store: Store, key: bytes, approval_id: UUID, person: Person, length: timedelta, by: Person
) -> Signed:
    """Make an address for a person who may decide. Raises NotFoundError, ConflictError when the question is not open,
    ForbiddenError when that person may not decide, or whoever makes it started the run and may not approve.
    """
    standing = await check_standing(connection, store, approval_id, person)
    await check_maker(connection, store, approval_id, by)
    link_id = UUID(bytes=uuid7().bytes)
    row = await fetch_one(
        connection,
        _expires_at,
        _SQL.text("insert_link"),
        link_id=link_id,
        approval_id=approval_id,
        namespace=store.settings.namespace,
        name=person.name,
        role=standing.role,
        actor=by.name,
        length=length,
    )
    assert row is not None
    await note(connection, approval_id, "linked", by.name, {"for": person.name, "link_id": str(link_id)})
    signature = hmac.digest(key, link_id.bytes, sha256)
    return Signed(urlsafe_b64encode(link_id.bytes + signature).decode().rstrip("="), row)


async def find_link(connection: Connection, store: Store, key: bytes, token: str) -> tuple[UUID, LinkRow]:
    """Its id and its row. Raises NotFoundError for what is none of ours."""
    link_id = _verify(key, token)
    row = None
    if link_id is not None:
        row = await fetch_one(
            connection, LinkRow, _SQL.text("read_link"), link_id=link_id, namespace=store.settings.namespace
        )
    if link_id is None or row is None:
        raise NotFoundError("there is no such link")
    return link_id, row


async def use_link(connection: Connection, store: Store, link_id: UUID) -> bool:
    """Use it up; whether it could be used. Undone with the transaction when the decision is refused."""
    used = await fetch_one(connection, _any, _SQL.text("use_link"), link_id=link_id, namespace=store.settings.namespace)
    return used is not None


async def read_key(connection: Connection) -> bytes:
    """The key that Postgres keeps. Raises NotFoundError when none was ever made: so no link was."""
    key = await fetch_one(connection, _any, _SQL.text("read_key"), name=_KEY_NAME)
    if key is None:
        raise NotFoundError("there is no such link")
    return bytes(key)


async def make_key(connection: Connection) -> bytes:
    """The same, made by the first that asks for it."""
    given = {"name": _KEY_NAME, "key": secrets.token_bytes(32)}
    await connection.execute(_SQL.text("make_key"), given)
    return await read_key(connection)


def _verify(key: bytes, token: str) -> UUID | None:
    try:
        content = urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        return None
    link_id, signature = content[:16], content[16:]
    if len(signature) != _SIGNATURE_BYTES or not hmac.compare_digest(hmac.digest(key, link_id, sha256), signature):
        return None
    return UUID(bytes=link_id)


def _expires_at(value: datetime) -> datetime:
    return value


def _any(value: Any) -> Any:
    return value
