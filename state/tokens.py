"""API tokens: who may call, stored as hashes.

python -m state.tokens create ci --scope read --scope operate --expires 90d

makes one at the database and prints its secret, once: the first token of an installation cannot come from the API.
"""

import argparse
import asyncio
import secrets
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import psycopg

from headrace.duration import parse_duration
from headrace.errors import ConflictError, HeadraceError, NotFoundError, PayloadError
from state.audit import AT_THE_DATABASE, record
from state.queries.rows import AT_MAX, ID_MAX, Connection, fetch, fetch_one
from state.settings import EngineSettings
from state.sql import load

PREFIX: Final = "hr_"
"""So that a scanner for leaked secrets can know one."""
SECRET_BYTES: Final = 32
LIFETIME_DEFAULT: Final = timedelta(days=90)
LIFETIME_MAX: Final = timedelta(days=366 * 2)
_SQL = load("access")


class Scope(StrEnum):
    """What a token may do; none contains another."""

    READ = "read"
    """All that GET answers."""
    OPERATE = "operate"
    """Publish, start, signal, cancel, replay and so on: all that writes and is not below."""
    APPROVE = "approve"
    """Decide approvals."""
    ADMIN = "admin"
    """Tokens and the audit."""


class TokenRow(NamedTuple):
    token_id: UUID
    name: str
    scopes: list[str]
    roles: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    last_used_at: datetime | None


class Holder(NamedTuple):
    """Whose token it is. All None: of the local token."""

    token_id: UUID | None
    name: str | None
    scopes: list[str] | None
    roles: list[str] | None
    is_unnoted: bool | None
    """Whether it is time to note that it was used."""


def new_secret(prefix: str = PREFIX) -> str:
    return prefix + secrets.token_urlsafe(SECRET_BYTES)


def digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


async def create_token(
    connection: Connection,
    namespace: str,
    name: str,
    scopes: Sequence[Scope],
    *,
    roles: Sequence[str] = (),
    lifetime: timedelta = LIFETIME_DEFAULT,
    created_by: str,
) -> tuple[TokenRow, str]:
    """Make a token in the caller's open transaction; answers it and its secret, which is nowhere afterwards. Raises
    ConflictError when the name is taken, PayloadError for a lifetime that is none.
    """
    if not timedelta() < lifetime <= LIFETIME_MAX:
        raise PayloadError(f"a token lives between a moment and {LIFETIME_MAX.days} days", path="expires")
    secret = new_secret()
    row = await fetch_one(
        connection, TokenRow, _SQL.text("insert_token"), namespace=namespace, name=name, secret_hash=digest(secret),
        scopes=sorted(set(scopes)), roles=sorted(set(roles)), created_by=created_by, lifetime=lifetime,
    )  # fmt: skip
    if row is None:
        raise ConflictError(f"there is a token {name!r} already; revoke it, or choose another name", name=name)
    return row, secret


async def find_token(connection: Connection, namespace: str, secret_hash: bytes) -> Holder | None:
    """Who has the secret with this hash; None: nobody, or not any more."""
    return await fetch_one(connection, Holder, _SQL.text("find_token"), namespace=namespace, secret_hash=secret_hash)


async def touch_token(connection: Connection, token_id: UUID) -> None:
    """Note that a token was used, at most once a minute."""
    await connection.execute(_SQL.text("touch_token"), {"token_id": token_id})


async def list_tokens(
    connection: Connection, namespace: str, *, limit: int, before: tuple[datetime, UUID] = (AT_MAX, ID_MAX)
) -> list[TokenRow]:
    """Newest first, with those that are over."""
    return await fetch(
        connection, TokenRow, _SQL.text("list_tokens"), namespace=namespace, before_at=before[0], before_id=before[1],
        limit=limit,
    )  # fmt: skip


async def revoke_token(connection: Connection, namespace: str, token_id: UUID, revoked_by: str) -> TokenRow:
    """End a token and its sessions; one that is revoked stays as it is. Raises NotFoundError."""
    given = {"namespace": namespace, "token_id": token_id}
    row = await fetch_one(connection, TokenRow, _SQL.text("revoke_token"), **given, revoked_by=revoked_by)
    row = row or await fetch_one(connection, TokenRow, _SQL.text("find_token_by_id"), **given)
    if row is None:
        raise NotFoundError(f"there is no token {token_id}", token_id=str(token_id))
    return row


async def has_token(connection: Connection, namespace: str) -> bool:
    """Whether anybody can call at all."""
    return bool(await fetch_one(connection, bool, _SQL.text("has_token"), namespace=namespace))


async def _create(options: argparse.Namespace) -> str:
    settings = EngineSettings()
    async with await psycopg.AsyncConnection.connect(settings.postgres, connect_timeout=5) as connection:
        row, secret = await create_token(
            connection, settings.namespace, options.name, options.scope, roles=options.role, lifetime=options.expires,
            created_by=AT_THE_DATABASE,
        )  # fmt: skip
        await record(
            connection, settings.namespace, actor=AT_THE_DATABASE, act="create_token", target=f"/tokens/{row.token_id}",
            reason=f"{row.name}: {' '.join(row.scopes)}",
        )  # fmt: skip
    return secret


def _lifetime(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m state.tokens", description=__doc__)
    commands = parser.add_subparsers(required=True)
    create = commands.add_parser("create", help="make a token and print its secret")
    create.add_argument("name", help="whom it is for: it stands beside all that is done with it")
    create.add_argument("--scope", action="append", type=Scope, required=True, help="read, operate, approve, admin")
    create.add_argument("--role", action="append", default=[], help="a role of its holder, for approvals")
    create.add_argument("--expires", type=_lifetime, default=LIFETIME_DEFAULT, help="such as 12h or 90d, the default")
    create.add_argument("--file", type=Path, help="write the secret there, readable for its owner alone, not print it")
    options = parser.parse_args()
    try:
        secret = asyncio.run(_create(options))
    except HeadraceError as error:
        sys.exit(f"{error.code} {error.message}")
    except psycopg.OperationalError as error:
        sys.exit(f"HR-1007 the database cannot be reached: {str(error).strip()}")
    if options.file is None:
        print(secret)
        return
    options.file.touch(mode=0o600)
    options.file.write_text(secret)


if __name__ == "__main__":
    main()
