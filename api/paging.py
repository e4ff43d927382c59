"""Pages by key: a token names the last item seen, so that a page costs the same however far down it is."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from fastapi import Query

from api.errors import faulty
from state.queries.rows import ID_MAX
from state.queries.search import LAST

LIMIT_MAX: Final = 200
INT_MAX: Final = 2**31 - 1

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Items on a page")]
PageToken = Annotated[str | None, Query(max_length=500, description="`next` of the page before")]

Int = Annotated[int, msgspec.Meta(ge=-1, le=INT_MAX)]


class ByInt(NamedTuple):
    number: Int


class ByName(NamedTuple):
    name: Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00]*$")]


class ById(NamedTuple):
    id: UUID


class ByInstant(NamedTuple):
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    id: UUID


class ByTask(NamedTuple):
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    id: UUID
    task: Int


class ByHistory(NamedTuple):
    row_version: Int
    is_attempt: bool
    task: Int


class ByRunTask(NamedTuple):
    run_id: UUID = ID_MAX
    task: Int = LAST


class ByAttempt(NamedTuple):
    run_id: UUID = ID_MAX
    task: Int = LAST
    token: Int = LAST


class ByEvent(NamedTuple):
    run_id: UUID = ID_MAX
    row_version: Int = LAST
    is_attempt: bool = True
    task: Int = LAST


class ByHandOut(NamedTuple):
    task: Int
    token: Int


class ByOffsets(NamedTuple):
    """The last offset seen, by partition."""

    offsets: dict[str, Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]]


Key = TypeVar("Key")
_Item = TypeVar("_Item")


def token(*parts: Any) -> str:
    """Make an opaque page token of the last item's key."""
    return urlsafe_b64encode(msgspec.json.encode(parts)).rstrip(b"=").decode()


def parse(page: str, kind: type[Key]) -> Key:
    """The key in a page token. kind: a named tuple. Raises FaultyRequest for a token of another list."""
    try:
        content = urlsafe_b64decode(page.encode("ascii") + b"=" * (-len(page) % 4))
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
        raise faulty("page", "not a page token of this list") from None


def cut(items: list[_Item], limit: int, key: Callable[[_Item], tuple[Any, ...]]) -> tuple[list[_Item], str | None]:
    """From up to limit + 1 items: those of the page, and the token of the next one when there is one."""
    if len(items) <= limit:
        return items, None
    page = items[:limit]
    return page, token(*key(page[-1]))
