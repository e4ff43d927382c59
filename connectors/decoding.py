"""Read what Postgres' `pgoutput` plugin sends: frames of the streaming replication protocol in, whole transactions out.

Protocol version 1: a transaction arrives after its commit, undivided and in commit order, however long it took and
whatever other transactions did meanwhile. So a late commit is never overtaken by its id, and nothing is seen that was
rolled back.

Source: PostgreSQL manual, "Streaming Replication Protocol" and "Logical Replication Message Formats".

Nothing here touches a socket: `Decoder.feed` takes one CopyData payload at a time and keeps a half-read transaction
until its end.
"""

import struct
from typing import Final, NamedTuple

from headrace.errors import MessageError

_U16: Final = struct.Struct(">H").unpack_from
_U32: Final = struct.Struct(">I").unpack_from
_U64: Final = struct.Struct(">Q").unpack_from

_WAL_DATA, _KEEPALIVE = ord("w"), ord("k")
_BEGIN, _COMMIT, _MESSAGE, _INSERT, _RELATION = b"BCMIR"
_BODY: Final = 25
"""A WAL data frame: kind, start, end, clock (1 + 8 + 8 + 8 bytes), then the plugin's message."""
_TRANSACTIONAL: Final = 1


class Message(NamedTuple):
    """A logical message (`pg_logical_emit_message`)."""

    prefix: bytes
    content: bytes


class Insert(NamedTuple):
    """A row inserted into a published table; values in Postgres' text form."""

    table: str
    row: dict[str, bytes | None]


class Transaction(NamedTuple):
    """What one committed transaction left, in the order it did so.

    Without changes it may stand for a keepalive: all that concerns us below `end_lsn` has been sent before it.
    """

    end_lsn: int
    """Position behind the commit: acknowledging it acknowledges this transaction and all before it."""
    changes: list[Message | Insert]


class Keepalive(NamedTuple):
    """The server is alive and has read its log up to `end_lsn`."""

    end_lsn: int
    is_reply_wanted: bool


class Decoder:
    """The state of one replication connection: the tables announced in it, and the transaction being read."""

    def __init__(self) -> None:
        self._tables: dict[int, tuple[str, list[str]]] = {}
        self._changes: list[Message | Insert] = []
        self.is_inside = False
        """Whether a transaction has begun and not yet ended."""

    def feed(self, frame: bytes) -> Transaction | Keepalive | None:
        """Take one frame; the frame of a commit brings its transaction.

        Raises MessageError on a frame cut short or unknown.
        """
        try:
            kind = frame[0]
            if kind == _WAL_DATA:
                return self._take(frame)
            if kind == _KEEPALIVE:
                return Keepalive(_U64(frame, 1)[0], frame[17] != 0)
        except (IndexError, KeyError, ValueError, struct.error) as error:
            raise MessageError(f"a replication frame makes no sense: {error!r}") from error
        raise MessageError(f"unknown replication frame {kind:#x}")

    def _take(self, frame: bytes) -> Transaction | None:
        """Updates, deletes, truncations, types and origins are passed over: an outbox is only inserted into."""
        kind = frame[_BODY]
        if kind == _MESSAGE:
            self._take_message(frame)
        elif kind == _INSERT:
            self._changes.append(self._insert(frame))
        elif kind == _BEGIN:
            self._changes, self.is_inside = [], True
        elif kind == _COMMIT:
            changes, self._changes, self.is_inside = self._changes, [], False
            return Transaction(_U64(frame, _BODY + 10)[0], changes)  # kind, flags, commit position, end position
        elif kind == _RELATION:
            self._learn_table(frame)
        return None

    def _take_message(self, frame: bytes) -> None:
        """Flags (1), position (8), prefix up to NUL, length (4), content. One that is not transactional is not ours."""
        end = frame.index(0, _BODY + 10)
        start = end + 5
        content = _slice(frame, start, _U32(frame, end + 1)[0])
        if frame[_BODY + 1] & _TRANSACTIONAL:
            self._changes.append(Message(frame[_BODY + 10 : end], content))

    def _insert(self, frame: bytes) -> Insert:
        """Table (4), 'N', number of columns (2); for each a kind, and for text a length (4) and that many bytes."""
        table, columns = self._tables[_U32(frame, _BODY + 1)[0]]
        count, position = _U16(frame, _BODY + 6)[0], _BODY + 8
        row: dict[str, bytes | None] = {}
        for column in columns[:count]:
            kind = frame[position]
            position += 1
            if kind == ord("t"):
                size = _U32(frame, position)[0]
                row[column] = _slice(frame, position + 4, size)
                position += 4 + size
            else:
                row[column] = None
        return Insert(table, row)

    def _learn_table(self, frame: bytes) -> None:
        """Table (4), schema, name, identity (1), columns (2); of each flags (1), name, type (4), modifier (4)."""
        schema_end = frame.index(0, _BODY + 5)
        name_end = frame.index(0, schema_end + 1)
        position = name_end + 4
        columns = []
        for _ in range(_U16(frame, name_end + 2)[0]):
            end = frame.index(0, position + 1)
            columns.append(frame[position + 1 : end].decode())
            position = end + 9
        self._tables[_U32(frame, _BODY + 1)[0]] = (frame[schema_end + 1 : name_end].decode(), columns)


def _slice(frame: bytes, start: int, size: int) -> bytes:
    part = frame[start : start + size]
    if len(part) != size:
        raise ValueError("cut short")
    return part


def format_lsn(lsn: int) -> str:
    """Write a log position as Postgres does: `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
