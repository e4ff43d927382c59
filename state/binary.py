"""Postgres arrays in binary, built by hand.

psycopg's own dumpers cost about 0.4 µs a value, joining bytes about 0.1 (measured on the hot path, where a step writes
some 25 values). One dimension, lower bound 1; the layout is that of `array_send` in the server's source.
"""

from collections.abc import Callable, Sequence
from struct import pack
from typing import Any, Final

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_NULL: Final = b"\xff\xff\xff\xff"
# Microseconds between 1970, where ours are counted from, and 2000, where Postgres counts from.
_EPOCH: Final = 946_684_800_000_000


def _array(oid: int, count: int, body: bytes, *, has_null: bool = True) -> bytes:
    return pack(">iiIii", 1, int(has_null), oid, count, 1) + body if count else pack(">iiI", 0, 0, oid)


def _interleave(size: int, values: Sequence[int]) -> list[int]:
    out = [size] * (2 * len(values))
    out[1::2] = values
    return out


def uuids(values: Sequence[bytes | None]) -> bytes:
    """16 raw bytes each."""
    return _array(2950, len(values), b"".join([_NULL if v is None else b"\0\0\0\x10" + v for v in values]))


def ints(values: Sequence[int]) -> bytes:
    return _array(23, len(values), pack(f">{2 * len(values)}i", *_interleave(4, values)))


def bigints(values: Sequence[int]) -> bytes:
    return _array(20, len(values), pack(">" + "iq" * len(values), *_interleave(8, values)))


def optional_ints(values: Sequence[int | None]) -> bytes:
    return _array(23, len(values), b"".join([_NULL if v is None else pack(">ii", 4, v) for v in values]))


def instants(values: Sequence[int | None]) -> bytes:
    """Microseconds since 1970 UTC."""
    return _array(1184, len(values), b"".join([_NULL if v is None else pack(">iq", 8, v - _EPOCH) for v in values]))


def booleans(values: Sequence[bool]) -> bytes:
    return _array(16, len(values), b"".join([b"\0\0\0\x01\x01" if v else b"\0\0\0\x01\0" for v in values]))


def _texts(oid: int, values: Sequence[bytes | str | None]) -> bytes:
    parts = []
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            raw = value.encode() if isinstance(value, str) else value
            parts.append(len(raw).to_bytes(4, "big") + raw)
    return _array(oid, len(values), b"".join(parts))


def texts(values: Sequence[bytes | str | None]) -> bytes:
    return _texts(25, values)


def jsons(values: Sequence[bytes | str | None]) -> bytes:
    return _texts(114, values)


def byteas(values: Sequence[bytes | None]) -> bytes:
    return _texts(17, values)


# type word in a `-- columns:` line -> (array oid, builder)
TYPES: Final[dict[str, tuple[int, Callable[[Any], bytes]]]] = {
    "uuid": (2951, uuids),
    "int": (1007, ints),
    "int?": (1007, optional_ints),
    "bigint": (1016, bigints),
    "timestamptz": (1185, instants),
    "boolean": (1000, booleans),
    "text": (1009, texts),
    "json": (199, jsons),
    "bytea": (1001, byteas),
}


class Array:
    """An array already encoded, as a parameter of an ordinary psycopg statement; the statement casts it
    (`$1::uuid[]`)."""

    __slots__ = ("raw",)

    def __init__(self, kind: str, values: Sequence[Any]) -> None:
        self.raw = TYPES[kind][1](values)

    @classmethod
    def encoded(cls, raw: bytes) -> "Array":
        """Wrap what a builder above has made."""
        array = cls.__new__(cls)
        array.raw = raw
        return array


class _ArrayDumper(Dumper):
    format = Format.BINARY
    oid = 0

    def dump(self, obj: Array) -> bytes:
        return obj.raw


psycopg.adapters.register_dumper(Array, _ArrayDumper)
