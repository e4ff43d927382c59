"""API tokens, and the audit: what an administrator sees and does."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import Answer, answer, reply
from api.bodies import read
from api.errors import faulty
from api.idempotency import perform
from api.identity import actor, parse_id
from api.openapi import answers, body
from api.paging import ByInstant, Limit, PageToken, cut, parse
from api.schemas.access import ApiToken, ApiTokenPage, AuditItem, AuditPage, TokenBody, TokenCreated
from api.schemas.wire import ReasonBody
from api.wiring import Wired
from headrace.duration import parse_duration
from state.audit import list_audit
from state.queries.rows import AT_MAX, ID_MAX, Connection
from state.tokens import LIFETIME_DEFAULT, Scope, TokenRow, create_token, list_tokens, revoke_token

router = APIRouter(tags=["tokens"])

Text = Annotated[str | None, Query(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


@router.post(
    "/tokens",
    status_code=201,
    responses=answers({201: TokenCreated}, 401, 408, 409, 413, 415),
    openapi_extra=body(TokenBody, idempotent=False),
)
async def create(request: Request, wired: Wired) -> Response:
    """Make a token. Its secret stands in this answer and nowhere else, so an `Idempotency-Key` is refused: its answer
    would be stored.
    """
    asked, content = await read(request, TokenBody)
    if "idempotency-key" in request.headers:
        raise faulty("Idempotency-Key", "cannot be used here: the answer holds a secret, which is stored nowhere")
    lifetime, who = _lifetime(asked.expires), actor(request)

    async def act(connection: Connection) -> Answer:
        row, secret = await create_token(
            connection, wired.namespace, asked.name, [Scope(scope) for scope in asked.scopes], roles=asked.roles,
            lifetime=lifetime, created_by=who,
        )  # fmt: skip
        return answer(TokenCreated(_token(row), secret), 201)

    return await perform(wired, request, content, act, reason=_described(asked.name, asked.scopes))


@router.get("/tokens", responses=answers({200: ApiTokenPage}, 401))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Tokens, newest first, with those that have expired or were revoked; never their secrets."""
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    async with wired.database.reading() as connection:
        rows = await list_tokens(connection, wired.namespace, limit=limit + 1, before=before)
    kept, after = cut(rows, limit, lambda row: (row.created_at, row.token_id))
    return reply(ApiTokenPage([_token(row) for row in kept], after))


@router.post(
    "/tokens/{token_id}/revoke",
    responses=answers({200: ApiToken}, 401, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def revoke(token_id: str, request: Request, wired: Wired) -> Response:
    """End a token and the sessions made from it. Every process refuses it within ten seconds."""
    id_ = parse_id(token_id, "token")
    _, content = await read(request, ReasonBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        return answer(_token(await revoke_token(connection, wired.namespace, id_, who)))

    response = await perform(wired, request, content, act)
    wired.gate.forget()
    return response


@router.get("/audit", responses=answers({200: AuditPage}, 401))
async def list_acts(
    wired: Wired,
    by: Annotated[Text, Query(alias="actor", description="Only what they did")] = None,
    act: Annotated[Text, Query(description="Only acts of this name, such as `runs.cancel`")] = None,
    target: Annotated[Text, Query(description="Only on what has this in its address")] = None,
    limit: Limit = 50,
    page: PageToken = None,
) -> Response:
    """What was done through the API, newest first: who, when, why, from where. Starts and signals are in the history of
    their runs. With a filter, of the newest 100,000 acts.
    """
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    async with wired.database.reading() as connection:
        rows = await list_audit(
            connection, wired.namespace, limit=limit + 1, before=before, actor=by, act=act, target=target
        )
    kept, after = cut(rows, limit, lambda row: (row.at, row.audit_id))
    items = [
        AuditItem(
            str(row.audit_id), row.at, row.actor, None if row.token_id is None else str(row.token_id), row.act,
            row.target, row.reason, row.address, row.request_id,
        )
        for row in kept
    ]  # fmt: skip
    return reply(AuditPage(items, after))


def _lifetime(text: str | msgspec.UnsetType) -> timedelta:
    if isinstance(text, msgspec.UnsetType):
        return LIFETIME_DEFAULT
    try:
        return parse_duration(text)
    except ValueError as error:
        raise faulty("expires", str(error)) from None


def _described(name: str, scopes: Sequence[str]) -> str:
    return f"{name}: {' '.join(sorted(set(scopes)))}"


def _token(row: TokenRow) -> ApiToken:
    return ApiToken(
        str(row.token_id), row.name, row.scopes, row.roles, row.created_at, row.created_by, row.expires_at,
        row.revoked_at, row.revoked_by, row.last_used_at,
    )  # fmt: skip
