"""Logging in: a browser's session, made from a token or from a code that works once."""

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from api.access import cookie_name, csrf_token, is_secure
from api.answers import reply
from api.bodies import read
from api.console import PREFIX
from api.errors import Refusal
from api.identity import principal_of
from api.openapi import answers, body
from api.schemas.access import LoginBody, LoginCode, Session
from api.wiring import Wired
from headrace.errors import AccessError
from state.sessions import SESSION_LIFETIME, create_login_code, create_session, end_session, redeem_login_code
from state.tokens import digest, find_token

_NOTHING: Final[dict[int | str, dict[str, Any]]] = {204: {"description": "Done"}}

router = APIRouter(tags=["access"])


@router.get("/login", include_in_schema=False)
async def follow_code(request: Request, wired: Wired, code: str = "") -> Response:
    """What the link of `headrace dev` leads to: the code makes a session, once. A code that is none leads to the
    console, which asks.
    """
    async with wired.database.writing() as connection:
        secret = await redeem_login_code(connection, wired.namespace, code) if code.isascii() else None
    response = RedirectResponse(PREFIX, 303)
    if secret is not None:
        _set_cookie(request, response, secret)
    return response


@router.post(
    "/login",
    status_code=204,
    responses={**_NOTHING, **answers({}, 401, 408, 413, 415)},
    openapi_extra=body(LoginBody, idempotent=False),
)
async def log_in(request: Request, wired: Wired) -> Response:
    """Make a session for this browser. It may what the token may, and ends with it, or after 12 hours."""
    asked, _ = await read(request, LoginBody)
    async with wired.database.writing() as connection:
        holder = await find_token(connection, wired.namespace, digest(asked.token))
        is_local = holder is None and wired.gate.is_local_token(asked.token)
        if holder is None and not is_local:
            raise Refusal(401, "this token is none, has expired or was revoked", code=AccessError.code)
        secret = await create_session(connection, wired.namespace, None if holder is None else holder.token_id)
    response = Response(status_code=204)
    _set_cookie(request, response, secret)
    return response


@router.post("/login-codes", status_code=201, responses=answers({201: LoginCode}, 401))
async def create_code(request: Request, wired: Wired) -> Response:
    """A link that logs a browser in as the caller, once, within ten minutes."""
    async with wired.database.writing() as connection:
        code, expires_at = await create_login_code(connection, wired.namespace, principal_of(request).token_id)
    return reply(LoginCode(f"/login?code={code}", expires_at), 201)


@router.get("/session", responses=answers({200: Session}, 401))
async def get_session(request: Request, wired: Wired) -> Response:
    """Who calls, what they may, and in a browser the token that its writes carry."""
    principal = principal_of(request)
    secret = request.cookies.get(cookie_name(request))
    is_by_cookie = secret is not None and "authorization" not in request.headers
    return reply(
        Session(
            principal.name,
            sorted(principal.scopes),
            sorted(principal.roles),
            principal.is_local,
            principal.is_local and wired.settings.api_crash_folder is not None,
            csrf_token(secret) if is_by_cookie and secret else None,
        )
    )


@router.post("/logout", status_code=204, responses={**_NOTHING, **answers({}, 401)})
async def log_out(request: Request, wired: Wired) -> Response:
    """End this browser's session."""
    secret = request.cookies.get(cookie_name(request))
    if secret:
        async with wired.database.writing() as connection:
            await end_session(connection, digest(secret))
        wired.gate.forget()
    response = Response(status_code=204)
    response.delete_cookie(cookie_name(request), path="/", secure=is_secure(request), httponly=True, samesite="strict")
    return response


def _set_cookie(request: Request, response: Response, secret: str) -> None:
    response.set_cookie(
        cookie_name(request),
        secret,
        max_age=int(SESSION_LIFETIME.total_seconds()),
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="strict",
    )
