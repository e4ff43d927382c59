"""What dead letters of one cause have in common: a fingerprint, made where the letter is made.

    kind, code and type of the error, its normalised message  what went wrong
    name of the task, workflow and version                    where, for a task
    topic                                                     where, for a record

A message is normalised by taking out what differs from one case to the next: quoted text, ids, instants, numbers. The
fingerprint is stored, so other rules here regroup only the letters that come later.
"""

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from headrace.messages import Error

if TYPE_CHECKING:
    from headrace.machine import Plan

MESSAGE_CHARS_MAX: Final = 1_000
"""Of a message, what is stored for search and looked at here; the whole of it stands in the letter's error."""

_QUOTED: Final = r"""(?<!\w)(["'`])(?:\\.|(?!\1)[^\\])*\1(?!\w)|“[^”]*”|«[^»]*»"""
_UUID: Final = r"(?<![0-9a-f])[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}(?![0-9a-f])"
_DATE: Final = r"\d{4}-\d\d-\d\d"
_TIME: Final = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?"
_CLOCK: Final = r"(?<![.:])\d\d:\d\d:\d\d(?:[.,]\d+)?"
_INSTANT: Final = rf"\b(?:{_DATE}(?:[T ]{_TIME}(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?|{_CLOCK})(?!\w)"
_HEX: Final = r"\b0x[0-9a-f]+\b|(?<![0-9a-z])(?=[a-f]*\d)[0-9a-f]{8,}(?![0-9a-z])"
_NUMBER: Final = r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?"
_PARTS: Final = (
    (re.compile(_QUOTED, re.DOTALL), "<text>"),
    (re.compile(_UUID, re.IGNORECASE), "<id>"),
    (re.compile(_INSTANT, re.IGNORECASE), "<instant>"),
    (re.compile(_HEX, re.IGNORECASE), "<hex>"),
    (re.compile(_NUMBER, re.IGNORECASE), "<n>"),
    (re.compile(r"\s+"), " "),
)
"""In this order: a quoted id is quoted text, an instant is no row of numbers."""


class Label(NamedTuple):
    """What a dead letter is found and grouped by."""

    code: str
    message: str
    """As it came, without what Postgres refuses, and not all of a long one."""
    fingerprint: str


def label_task(error: Error, plan: "Plan", task: int) -> Label:
    """Label the dead letter of a task."""
    return _label(error, "task", plan.at(task).name, plan.name, plan.version)


def label_record(error: Error, topic: str) -> Label:
    """Label the dead letter of a record of this topic."""
    return _label(error, "record", topic)


def _label(error: Error, *where: str | int) -> Label:
    parts = [error.code, error.type, normalise(error.message), *where]
    digest = hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()
    return Label(_storable(error.code), _storable(error.message), digest)


def normalise(message: str) -> str:
    """Take out of a message what differs from one case to the next.

    >>> normalise("order 'A-7' of 2026-11-29T10:00:03Z costs 12.50, account 0x1f3a")
    'order <text> of <instant> costs <n>, account <hex>'
    """
    text = message[:MESSAGE_CHARS_MAX]
    for pattern, word in _PARTS:
        text = pattern.sub(word, text)
    return text.strip()


def _storable(text: str) -> str:
    return text[:MESSAGE_CHARS_MAX].replace("\0", "\\0")


Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None
"""Of a record, as the Kafka client hands them out."""


class Header(msgspec.Struct, frozen=True):
    """One header of a record, as it is stored and shown: a name may stand there more than once."""

    name: str
    value: str | None
    encoding: str = "text"
    """text or base64"""

    @property
    def content(self) -> bytes | None:
        if self.value is None:
            return None
        return b64decode(self.value) if self.encoding == "base64" else self.value.encode()


def encode_headers(headers: Headers) -> bytes | None:
    """A record's headers as JSON that Postgres takes; None when it has none."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return msgspec.json.encode([_header(name, value) for name, value in pairs])


def _header(name: str, value: str | bytes | None) -> Header:
    if value is None or isinstance(value, str):
        return Header(name, value)
    try:
        return Header(name, value.decode())
    except UnicodeDecodeError:
        return Header(name, b64encode(value).decode(), "base64")


def decode_headers(stored: str | None) -> list[Header]:
    """Headers as they stand in `dead_letter`: a list, or the relay's object of names and texts."""
    if stored is None:
        return []
    found = msgspec.json.decode(stored, type=list[Header] | dict[str, str])
    return found if isinstance(found, list) else [Header(name, value) for name, value in found.items()]
