"""Read request bodies: bounded in size and time, decoded by type, with user data left as the bytes that came."""

import asyncio
import re
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from api.errors import FaultyRequest, Refusal, faulty
from api.schemas.problem import Fault
from headrace import payload
from headrace.errors import PayloadError
from headrace.label import faults_of_labels

BODY_BYTES_MAX: Final = 1024 * 1024
"""One payload of PAYLOAD_BYTES_MAX with what stands around it, or a workflow of 10,000 tasks."""
BODY_SECONDS_MAX: Final = 10.0
"""A caller that needs longer for a mebibyte holds a connection for nothing."""
_PLACE: Final = re.compile(r"(?s)(.*) - at `(?:key in )?\$\.?(.*)`$")

_Body = TypeVar("_Body", bound=msgspec.Struct)


async def read_body(request: Request) -> bytes:
    """The whole body. Raises Refusal with 413 as soon as it is known to be too large, 408 when it comes too slowly."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > BODY_BYTES_MAX:
        raise _too_large()
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY_BYTES_MAX:
                    raise _too_large()
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {BODY_SECONDS_MAX:g} seconds") from None
    except ClientDisconnect:
        raise Refusal(400, "the caller went away") from None
    return b"".join(chunks)


def _too_large() -> Refusal:
    return Refusal(413, f"the body is larger than {BODY_BYTES_MAX} bytes", code=PayloadError.code)


async def read(request: Request, kind: type[_Body]) -> tuple[_Body, bytes]:
    """The body decoded, and the digest source of `canonical`. An empty body stands for `{}`."""
    _check_media_type(request)
    content = await read_body(request) or b"{}"
    return decode(content, kind), content


def _check_media_type(request: Request) -> None:
    """JSON only: anything a page of another origin could send without asking first is refused."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise Refusal(415, f"send application/json, not {media_type[:100]}")


def decode(content: bytes, kind: type[_Body]) -> _Body:
    """Decode JSON. Raises FaultyRequest that says where it is wrong."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        place = _PLACE.match(str(error))
        raise faulty(*((place[2], place[1]) if place else ("", str(error)))) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise faulty("", f"not JSON: {error}") from None


def check_payload(content: msgspec.Raw, path: str, *, may_refer: bool = False) -> bytes:
    """User data inside a body, as it came, once it is known to be strict JSON. Raises FaultyRequest.

    may_refer: whether it may hold references to large values of the run that it is for; they are found in compact JSON.
    """
    given = bytes(content)
    try:
        payload.check(given, may_refer=may_refer)
    except PayloadError as error:
        inner = str(error.fields.get("path") or "")
        joint = "" if not inner or inner.startswith("[") else "."
        raise faulty(f"{path}{joint}{inner}", error.message.removeprefix(inner).strip()) from None
    return msgspec.json.encode(msgspec.json.decode(given)) if may_refer and b"$object" in given else given


def check_labels(labels: Mapping[str, str]) -> None:
    """Raises FaultyRequest with every fault."""
    if faults := [Fault(fault.path, fault.message) for fault in faults_of_labels(labels)]:
        raise FaultyRequest(f"{faults[0].path}: {faults[0].message}", faults)


def canonical(content: bytes) -> bytes:
    """The same bytes for the same JSON, however its keys are ordered and its space is set; anything else is left as
    it is.
    """
    try:
        return msgspec.json.encode(msgspec.json.decode(content), order="deterministic")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return content
