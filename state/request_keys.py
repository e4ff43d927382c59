"""Idempotency keys: the first request with a key stores its answer in its own transaction; later ones get that
answer.

A racing request waits on the unique index until the first has committed (and then finds its answer) or rolled back
(and then is the first itself). So an effect and its answer exist together or not at all.
"""

from typing import NamedTuple

from headrace.errors import InvariantError
from state.queries.rows import Connection, fetch_one
from state.sql import load

_SQL = load("request_queries")


class RequestKey(NamedTuple):
    namespace: str
    route: str
    """Method and path of the request: the same key on another resource is another request."""
    key: str


class StoredAnswer(NamedTuple):
    digest: bytes
    """Of the body of the request that was answered."""
    status: int
    body: str


async def claim_request_key(connection: Connection, key: RequestKey, digest: bytes) -> StoredAnswer | None:
    """Take a key that is free (None), or find what was answered to it. In the caller's open transaction, as its first
    write.
    """

    def claimed(key: str) -> str:
        return key

    statement = _SQL.text("claim_request_key")
    if await fetch_one(connection, claimed, statement, **key._asdict(), digest=digest) is not None:
        return None
    stored = await fetch_one(connection, StoredAnswer, _SQL.text("find_request_key"), **key._asdict())
    if stored is None:
        raise InvariantError("a used request key was not found; it may just have been cleaned away", key=key.key)
    return stored._replace(digest=bytes(stored.digest))


async def save_answer(connection: Connection, key: RequestKey, status: int, body: str) -> None:
    """Store the answer of the request that claimed the key, in the same transaction."""
    await connection.execute(_SQL.text("save_answer"), {**key._asdict(), "status": status, "body": body})
