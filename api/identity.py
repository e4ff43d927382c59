"""Ids that come in addresses. One that cannot exist is not found, like one that does not."""

import re
from typing import Final
from uuid import UUID

from fastapi import Request

from api.errors import faulty
from headrace.errors import NotFoundError

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_TASK: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,104}")
_ACTOR_CHARS_MAX: Final = 200
_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def parse_id(text: str, noun: str) -> UUID:
    """A UUID in its usual form, upper or lower case. Raises NotFoundError."""
    if _UUID.fullmatch(text):
        return UUID(text)
    raise NotFoundError(f"there is no {noun} {text[:100]!a}")


def parse_task_id(text: str) -> tuple[UUID, str]:
    """`<run id>.<task name>`, and behind that a dot and its number for an item of a map. Raises NotFoundError."""
    run_id, _, name = text.partition(".")
    if _UUID.fullmatch(run_id) and _TASK.fullmatch(name):
        return UUID(run_id), name
    raise NotFoundError(f"there is no task {text[:200]!a}")


def check_name(text: str, noun: str) -> str:
    """A name of a workflow or subscription. Raises NotFoundError."""
    if _NAME.fullmatch(text):
        return text
    raise NotFoundError(f"there is no {noun} {text[:100]!a}")


def parse_run_id_given(text: str) -> str:
    """A run id that a caller chose. Raises FaultyRequest unless it is a UUIDv7: ids must rise with time, lists rely
    on it.
    """
    if _UUID.fullmatch(text) and UUID(text).version == 7:
        return text.lower()
    raise faulty("run_id", "must be a UUIDv7")


def actor(request: Request) -> str:
    """Who acts, as the caller says: nobody checks it yet. Raises FaultyRequest."""
    text = request.headers.get("headrace-actor", "").strip()
    if not text:
        return "anonymous"
    try:
        text = text.encode("latin-1").decode()
    except UnicodeError:
        raise faulty("Headrace-Actor", "must be UTF-8") from None
    if len(text) > _ACTOR_CHARS_MAX or not text.isprintable():
        raise faulty("Headrace-Actor", f"must be at most {_ACTOR_CHARS_MAX} printable characters")
    return text


def traceparent(request: Request) -> str | None:
    """The caller's W3C trace context; one that is malformed is left out, as the standard asks."""
    text = request.headers.get("traceparent", "")
    return text if _TRACEPARENT.fullmatch(text) else None
