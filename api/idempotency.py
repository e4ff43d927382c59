"""Every write goes through `perform`: one transaction with its effect, its outbox message, and the answer to its
idempotency key.
"""

import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final

import msgspec
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from api.answers import Answer
from api.bodies import canonical
from api.errors import faulty
from api.identity import actor, address, principal_of
from api.wiring import Wiring
from headrace.errors import KeyReusedError
from state.audit import record
from state.queries.rows import Connection
from state.request_keys import RequestKey, StoredAnswer, claim_request_key, save_answer

_KEY: Final = re.compile(r"[\x21-\x7e]{1,200}")

Act = Callable[[Connection], Awaitable[Answer]]


class _Why(msgspec.Struct):
    """What a body of any route may say of an act."""

    reason: str = ""
    comment: str = ""
    dry_run: bool = False


async def perform(
    wiring: Wiring, request: Request, body: bytes, act: Act, *, reason: str | None = None, audited: bool = True
) -> Response:
    """Run `act` once for the request's idempotency key, or always when it has none, and answer after the commit.

    The act gets its row in the audit. audited: False for what is recorded by itself, with who, when and from where.
    reason: why; what the body says when left out.

    body: of the request; the same key with another body raises KeyReusedError. What `act` raises rolls everything
    back, the key too, so that a refused request may be corrected and sent again under its key.
    """
    key, digest = _key(wiring, request), sha256(canonical(body)).digest()
    async with wiring.database.writing() as connection:
        if key is not None and (stored := await claim_request_key(connection, key, digest)) is not None:
            return _again(key, digest, stored)
        answer = await act(connection)
        if audited:
            await _record(wiring, connection, request, _why(body) if reason is None else _Why(reason))
        if key is not None:
            await save_answer(connection, key, answer.status, answer.body.decode())
    return answer.response()


async def _record(wiring: Wiring, connection: Connection, request: Request, why: _Why) -> None:
    if why.dry_run:
        return
    await record(
        connection, wiring.namespace, actor=actor(request), act=_act_name(request),
        target=request.url.path, reason=why.reason or why.comment, token_id=principal_of(request).token_id,
        address=address(request), request_id=request.state.request_id,
    )  # fmt: skip


def _act_name(request: Request) -> str:
    """`runs.cancel`"""
    route: APIRoute = request.scope["route"]
    return f"{route.tags[0]}.{route.name}"


def _why(body: bytes) -> _Why:
    try:
        return msgspec.json.decode(body, type=_Why)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # a workflow, or nothing
        return _Why()


def _key(wiring: Wiring, request: Request) -> RequestKey | None:
    text = request.headers.get("idempotency-key")
    if text is None:
        return None
    if not _KEY.fullmatch(text):
        raise faulty("Idempotency-Key", "must be 1 to 200 visible ASCII characters")
    return RequestKey(wiring.namespace, f"{request.method} {request.url.path}", text)


def _again(key: RequestKey, digest: bytes, stored: StoredAnswer) -> Response:
    if stored.digest != digest:
        raise KeyReusedError("this idempotency key was used with another body", key=key.key)
    status = 200 if stored.status == 201 else stored.status  # nothing was created by this request
    return Answer(status, stored.body.encode()).response(Idempotent_Replayed="true")
