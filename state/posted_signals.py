"""Signals for whoever waits for a name and a key: posted first, then offered to waits, in whichever order the two come.

Who posts offers to those who wait already; who begins to wait has a sweep look at what is posted already. Two that miss
each other, because neither saw the other's transaction, are found by that sweep a little later.
"""

from collections.abc import Collection
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
import psycopg
from uuid_utils import uuid7

from headrace.errors import InvariantError, KeyReusedError
from headrace.messages import Requested, encode
from state.outbox import Record, emit
from state.queries.posted_signal import PostedRow, get_posted
from state.queries.rows import Connection, fetch_one
from state.signals import Message
from state.sql import load
from state.store import Key, Store

_SQL = load("posted_signal")
OFFERS_MAX: Final = 1_000
"""In one transaction; the rest is for the sweep."""


async def post_signal(
    connection: Connection, store: Store, message: Message, *, keep_seconds: float, actor: str
) -> tuple[PostedRow, bool]:
    """Store a signal for whoever waits for its name and key, now or before it expires, and offer it, in the caller's
    open transaction; answers (the signal, whether it is new).

    Raises KeyReusedError when its sender has used the id for another.
    """
    namespace = store.settings.namespace
    posted_id = UUID(str(uuid7()))
    given: dict[str, Any] = {**message._asdict(), "data": message.data.decode()}
    new = await fetch_one(
        connection, _posted_id, _SQL.text("insert_posted"), posted_id=posted_id, namespace=namespace, actor=actor,
        keep_seconds=keep_seconds, **given,
    )  # fmt: skip
    if new is None:
        posted_id = await _posted_before(connection, namespace, message)
    elif message.key is not None:
        await offer_signals(connection, store, [Key(namespace, message.name, message.key)])
    row = await get_posted(connection, namespace, posted_id)
    if row is None:
        raise InvariantError("a signal that was posted is not there", posted_id=str(posted_id))
    return row, new is not None


async def offer_signals(connection: psycopg.AsyncConnection[Any], store: Store, keys: Collection[Key]) -> int:
    """Offer what is posted for these keys to those who wait for them, and wake their runs, in the caller's open
    transaction; answers how many offers were made. One statement, whatever there is."""
    columns = [list(column) for column in zip(*keys, strict=True)]
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_SQL.text("offer_posted"), (*columns, OFFERS_MAX))
        offers = await cursor.fetchall()
    topic = store.settings.events_topic
    await emit(
        connection,
        [Record(topic, str(run_id).encode(), encode(Requested(str(signal_id)))) for signal_id, run_id in offers],
        store.mode,
    )
    return len(offers)


class _Posted(NamedTuple):
    posted_id: UUID
    name: str
    key: str
    data: str


def _posted_id(posted_id: UUID) -> UUID:
    return posted_id


async def _posted_before(connection: Connection, namespace: str, message: Message) -> UUID:
    """What the sender posted under this id. Raises KeyReusedError when that was something else."""
    known = await fetch_one(
        connection, _Posted, _SQL.text("find_posted_of_sender"), namespace=namespace, sender_id=message.sender_id
    )
    if known is None:
        raise InvariantError("a signal that was posted before is not there", sender_id=message.sender_id)
    is_same = (known.name, known.key) == (message.name, message.key)
    if not is_same or msgspec.json.decode(known.data) != msgspec.json.decode(message.data):
        raise KeyReusedError(f"id {message.sender_id!r} was used for another signal", signal_id=str(known.posted_id))
    return known.posted_id
