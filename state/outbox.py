"""The outbox: records written in the transaction that decided them, published afterwards by `connectors`.

A transaction leaves its records in one of two places; the relay reads both from the write-ahead log, in commit order:

    messages   one logical message per transaction (`pg_logical_emit_message`), its content is `bundle(records)`
    table      one row per record in `outbox`, in the shape of Debezium's EventRouter, so that a real one can publish it

The same Kafka record comes out of either, byte for byte: topic, key, value, partition, and header `traceparent` when
there is one; other headers, those of a record that is replayed, travel in messages only. The bundle's layout is not
versioned: another layout gets another message prefix (docs/decisions/0002-outbox-bundle.md).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, LiteralString, NamedTuple

import msgspec
import psycopg
from uuid_utils.compat import uuid7

from headrace.errors import MessageError

MESSAGE_PREFIX: Final = "headrace"
"""Names our logical messages among those of other programs in the same database."""
PUBLICATION: Final = "headrace_outbox"
"""FOR TABLE outbox WITH (publish = 'insert'); logical messages need a publication too, whatever is in it."""
BUNDLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Where `bundles` cuts: a logical message near 1 GiB cannot be decoded, and would block the slot for good."""

EMIT_MESSAGE: Final[LiteralString] = "SELECT pg_logical_emit_message(true, 'headrace', $1::bytea)"
INSERT_ROWS: Final[LiteralString] = (
    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, partition, traceparent)"
    " SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::text[])"
)
"""Parameters: the lists of `table_columns`, in their order. Rows reach the log in the order of the lists."""
DELETE_ROWS: Final[LiteralString] = "DELETE FROM outbox WHERE id = ANY($1::uuid[])"
"""Right behind INSERT_ROWS, in the same transaction: the log keeps the rows, so the table is always empty."""

ROW_TYPE: Final = "record"
"""EventRouter wants a type in every row; the kind of a record is inside its value, so ours says nothing."""


class OutboxMode(StrEnum):
    """Where a transaction leaves its records: setting HEADRACE_OUTBOX."""

    MESSAGES = "messages"
    TABLE = "table"


class Record(NamedTuple):
    """One Kafka record to be."""

    topic: str
    key: bytes
    value: bytes
    partition: int | None = None
    """None: placed by murmur2 of the key."""
    traceparent: str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """All others. A record without any costs less: it shares a call with its neighbours."""


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record inside a bundle, under its topic. What is at its default at the end of a row is not written."""

    key: bytes
    value: bytes
    partition: int | None = None
    traceparent: str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[tuple[str, list[_Row]]]).decode


def bundle(records: Sequence[Record]) -> bytes:
    """Pack one transaction's records into one message: decoding costs per message, in Postgres as in the relay.

    Records are grouped by topic, so order is kept within a topic, which is all that Kafka keeps.
    """
    topics: dict[str, list[tuple[Any, ...]]] = {}
    for topic, key, value, partition, traceparent, headers in records:
        row: tuple[Any, ...]
        if headers:
            row = (key, value, partition, traceparent, headers)
        elif traceparent is not None:
            row = (key, value, partition, traceparent)
        elif partition is not None:
            row = (key, value, partition)
        else:
            row = (key, value)
        rows = topics.get(topic)
        if rows is None:
            topics[topic] = [row]
        else:
            rows.append(row)
    return _encode(list(topics.items()))


def bundles(records: Sequence[Record]) -> list[bytes]:
    """Pack records into as few messages as BUNDLE_BYTES_MAX allows: normally one, none for no records."""
    contents, start, size = [], 0, 0
    for position, record in enumerate(records):
        size += len(record.value)
        if size > BUNDLE_BYTES_MAX and position > start:
            contents.append(bundle(records[start:position]))
            start, size = position, len(record.value)
    if start < len(records):
        contents.append(bundle(records[start:]))
    return contents


def unbundle(content: bytes) -> list[Record]:
    """Undo `bundle`. Raises MessageError on anything else."""
    try:
        topics = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(f"not an outbox bundle: {error}") from error
    return [Record(topic, *msgspec.structs.astuple(row)) for topic, rows in topics for row in rows]


def table_columns(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Turn records into the columns of `outbox`, in the order of INSERT_ROWS: UUIDs, then str, int and None.

    Raises MessageError for a key or value that is not UTF-8 text without NUL, and for headers: only `messages` carries
    those.
    """
    if any(record.headers for record in records):
        raise MessageError("the outbox table carries no header but traceparent")
    return {
        "id": [uuid7() for _ in records],
        "aggregatetype": [record.topic for record in records],
        "aggregateid": [_text(record.key) for record in records],
        "type": [ROW_TYPE] * len(records),
        "payload": [_text(record.value) for record in records],
        "partition": [record.partition for record in records],
        "traceparent": [record.traceparent for record in records],
    }


def statements(records: Sequence[Record], mode: OutboxMode) -> list[tuple[LiteralString, tuple[Any, ...]]]:
    """Name what to execute, in order, in the deciding transaction, with a raw cursor; empty for no records."""
    if not records:
        return []
    if mode is OutboxMode.MESSAGES:
        return [(EMIT_MESSAGE, (content,)) for content in bundles(records)]
    columns = table_columns(records)
    return [(INSERT_ROWS, tuple(columns.values())), (DELETE_ROWS, (columns["id"],))]


async def emit(conn: psycopg.AsyncConnection[Any], records: Sequence[Record], mode: OutboxMode) -> None:
    """Leave records in the outbox, inside the caller's open transaction.

    Not for the hot path, which has its own pipeline.
    """
    async with psycopg.AsyncRawCursor(conn) as cursor:
        for statement, parameters in statements(records, mode):
            await cursor.execute(statement, parameters)


def _text(content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"the outbox table holds text only: {error}") from error
    if "\0" in text:
        raise MessageError("the outbox table holds text only: NUL found")
    return text
