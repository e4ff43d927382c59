"""Ids that come in addresses, and who a request comes from. An id that cannot exist is not found, like one that does
not."""

import re
from typing import Final
from uuid import UUID

from fastapi import Request

from api.access import Principal
from api.errors import faulty
from headrace.errors import NotFoundError
from headrace.standing import Person
from state.approvals import Source, Voter

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_TASK: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,104}")
_ACTOR_CHARS_MAX: Final = 200
_ROLES_MAX: Final = 50
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


def principal_of(request: Request) -> Principal:
    """Who calls; the gate has put it there."""
    principal: Principal = request.state.principal
    return principal


def actor(request: Request) -> str:
    """Who acts: the holder of the token. With the local token it is the owner of the machine, who may say another name;
    what others say is not taken. Raises FaultyRequest.
    """
    principal = principal_of(request)
    text = request.headers.get("headrace-actor", "").strip()
    if not text or not principal.is_local:
        return principal.name
    try:
        text = text.encode("latin-1").decode()
    except UnicodeError:
        raise faulty("Headrace-Actor", "must be UTF-8") from None
    if len(text) > _ACTOR_CHARS_MAX or not text.isprintable():
        raise faulty("Headrace-Actor", f"must be at most {_ACTOR_CHARS_MAX} printable characters")
    return text


def person(request: Request) -> Person:
    """Who acts, with their roles: those of the token, or with the local token those that are said. Raises
    FaultyRequest.
    """
    principal = principal_of(request)
    if not principal.is_local:
        return Person(principal.name, principal.roles)
    given = [role.strip() for role in request.headers.get("headrace-roles", "").split(",") if role.strip()]
    if len(given) > _ROLES_MAX or any(len(role) > _ACTOR_CHARS_MAX or not role.isprintable() for role in given):
        raise faulty("Headrace-Roles", f"must be at most {_ROLES_MAX} printable names with commas between them")
    return Person(actor(request), frozenset(given))


def source(request: Request) -> Source:
    """By what a person acts, as the caller says: `cli`, `console`, or `api`."""
    said = request.headers.get("headrace-source", "api").strip().lower()
    return "cli" if said == "cli" else "console" if said == "console" else "api"


def address(request: Request) -> str:
    """The other end of the connection: a proxy, where there is one before the API."""
    return "" if request.client is None else request.client.host


def voter(request: Request) -> Voter:
    """Who decides, and from where. Raises FaultyRequest."""
    return Voter(person(request), source(request), address(request))


def traceparent(request: Request) -> str | None:
    """The caller's W3C trace context; one that is malformed is left out, as the standard asks."""
    text = request.headers.get("traceparent", "")
    return text if _TRACEPARENT.fullmatch(text) else None
