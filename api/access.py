"""The gate: who calls, and whether they may.

A route needs a principal with a scope, unless `api.app` lists it as open. Lists hold the routes' endpoints themselves:
an address is never compared, so no spelling of one leads past the gate. A route that nobody thought of needs `read`,
or `operate` when it writes.

What a secret means is read from Postgres and remembered for a while, so that a call costs no look at the database: a
token that is revoked is refused after FORGOTTEN_SECONDS at the latest, by every process.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final
from uuid import UUID

import psycopg
from fastapi import Request
from fastapi.routing import APIRoute

from api.database import Database
from api.errors import Refusal
from api.settings import ApiSettings, hostname, is_loopback
from headrace.errors import AccessError, ConfigurationError, UnavailableError
from state.sessions import find_session
from state.tokens import Holder, Scope, digest, find_token, has_token, touch_token

FRESH_SECONDS: Final = 2.0
"""So long what was read of a secret is taken as it is; then the next call has it read again, and does not wait."""
FORGOTTEN_SECONDS: Final = 10.0
"""So long it is taken at all."""
SECRETS_MAX: Final = 10_000
"""Secrets remembered; more begin anew."""
CSRF_HEADER: Final = "x-csrf-token"
LOCAL_NAME: Final = "local"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Principal:
    """Who calls."""

    name: str
    scopes: frozenset[Scope]
    roles: frozenset[str] = frozenset()
    token_id: UUID | None = None
    """None: the local token."""

    @property
    def is_local(self) -> bool:
        """The owner of this machine, who says by `Headrace-Actor` who acts. Everybody else acts in their own name."""
        return self.token_id is None


LOCAL: Final = Principal(LOCAL_NAME, frozenset(Scope))


@dataclass
class _Known:
    """What a secret meant when it was read."""

    principal: Principal | None
    read_at: float
    is_reading: bool = False


class Gate:
    """One for a process. open_: endpoints that need no principal; scopes: of those that need another one than usual."""

    def __init__(
        self, database: Database, settings: ApiSettings, *, open_: frozenset[Any], scopes: Mapping[Any, Scope]
    ) -> None:
        self._database, self._settings = database, settings
        self._open, self._scopes = open_, scopes
        token = settings.api_local_token
        self._local = None if token is None else digest(token.get_secret_value())
        self._known: dict[tuple[bool, bytes], _Known] = {}
        self._tasks = set[asyncio.Task[None]]()

    def need(self, route: APIRoute) -> Scope | None:
        """The scope that a route asks for; None: it is open."""
        if route.endpoint in self._open:
            return None
        usual = Scope.READ if route.methods and route.methods <= _SAFE_METHODS else Scope.OPERATE
        return self._scopes.get(route.endpoint, usual)

    async def admit(self, request: Request) -> None:
        """Let a request pass, with its principal, or raise Refusal: 401 who are you, 403 you may not."""
        need = self.need(request.scope["route"])
        if need is not None:
            await self.require(request, need)

    async def require(self, request: Request, need: Scope) -> None:
        """The same for a scope."""
        principal = await self.identify(request)
        if principal is None:
            raise _unknown("say who you are: Authorization: Bearer <token>, or log in to the console")
        if need not in principal.scopes:
            raise Refusal(403, f"{principal.name} lacks the scope {need!r} that this needs", code=AccessError.code)
        request.state.principal = principal

    async def identify(self, request: Request) -> Principal | None:
        """Who sends a request; None: it does not say. Raises Refusal for a wrong secret, or a cookie alone that would
        write.
        """
        given = request.headers.get("authorization")
        if given is not None:
            scheme, _, secret = given.partition(" ")
            principal = await self._of_token(secret.strip()) if scheme.lower() == "bearer" else None
            if principal is None:
                raise _unknown("this token is none, has expired or was revoked")
            return principal
        secret = request.cookies.get(cookie_name(request), "") if "cookie" in request.headers else ""
        if not secret:
            return None
        principal = await self._look_up(is_session=True, secret=secret)
        if principal is None:
            raise _unknown("this login is over; log in again")
        if request.method not in _SAFE_METHODS:
            check_csrf(request, secret)
        return principal

    async def identify_if_right(self, request: Request) -> Principal | None:
        """The same for an open route that says more to those it knows: whoever is not known is nobody."""
        try:
            return await self.identify(request)
        except (Refusal, UnavailableError):
            return None

    async def is_still_known(self, request: Request) -> bool:
        """Whether a caller that was let in would still be; yes while the database cannot be asked."""
        try:
            return await self.identify(request) is not None
        except Refusal:
            return False
        except UnavailableError:
            return True

    def is_local_token(self, secret: str) -> bool:
        return self._local is not None and compare_digest(digest(secret), self._local)

    async def _of_token(self, secret: str) -> Principal | None:
        if not secret.isascii():
            return None
        if self.is_local_token(secret):
            return LOCAL
        return await self._look_up(is_session=False, secret=secret)

    async def _look_up(self, *, is_session: bool, secret: str) -> Principal | None:
        key = (is_session, digest(secret))
        known = self._known.get(key)
        age = FORGOTTEN_SECONDS if known is None else time.monotonic() - known.read_at
        if known is None or age >= FORGOTTEN_SECONDS or (known.principal is None and age >= FRESH_SECONDS):
            return await self._read(key)
        if age >= FRESH_SECONDS and not known.is_reading:
            known.is_reading = True
            self._in_background(self._read_again(key, known))
        return known.principal

    async def _read(self, key: tuple[bool, bytes]) -> Principal | None:
        is_session, hash_ = key
        began, namespace = time.monotonic(), self._settings.namespace
        async with self._database.writing() as connection:  # its pool is not filled by slow reads
            holder = await (find_session if is_session else find_token)(connection, namespace, hash_)
        principal = self._principal(holder)
        if len(self._known) >= SECRETS_MAX:
            self._known.clear()
        self._known[key] = _Known(principal, began)
        if holder is not None and holder.token_id is not None and holder.is_unnoted:
            self._in_background(self._touch(holder.token_id))
        return principal

    def _principal(self, holder: Holder | None) -> Principal | None:
        if holder is None or (holder.token_id is None and self._local is None):
            return None
        if holder.token_id is None:
            return LOCAL
        scopes = frozenset(map(Scope, holder.scopes or ()))
        return Principal(holder.name or "", scopes, frozenset(holder.roles or ()), holder.token_id)

    async def _read_again(self, key: tuple[bool, bytes], known: _Known) -> None:
        try:
            await self._read(key)
        finally:
            known.is_reading = False

    async def _touch(self, token_id: UUID) -> None:
        async with self._database.writing() as connection:
            await touch_token(connection, token_id)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """What no call waits for. Without Postgres it is left for the next one."""

        async def do() -> None:
            with suppress(UnavailableError):
                await work

        task = asyncio.create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self) -> None:
        """Read everything anew: a token or a session has just ended through this process."""
        self._known.clear()


async def check_exposure(settings: ApiSettings) -> None:
    """Refuse to serve beyond the loopback while nobody could say who they are. Opens a connection of its own. Raises
    ConfigurationError, or UnavailableError when the database cannot be asked.
    """
    if not settings.is_exposed:
        return
    try:
        async with await psycopg.AsyncConnection.connect(settings.postgres, connect_timeout=5) as connection:
            is_there = await has_token(connection, settings.namespace)
    except (psycopg.OperationalError, psycopg.errors.UndefinedTable) as error:
        raise UnavailableError(f"whether there is an API token cannot be asked: {str(error).strip()}") from None
    if not is_there:
        raise ConfigurationError(
            f"HEADRACE_API_HOST={settings.api_host} is not a loopback address, and there is no API token yet; "
            "make one: python -m state.tokens create NAME --scope admin",
            setting="HEADRACE_API_HOST",
        )


async def admit(request: Request) -> None:
    """The dependency of every route."""
    await request.app.state.wiring.gate.admit(request)


def _unknown(message: str) -> Refusal:
    return Refusal(401, message, code=AccessError.code, headers={"WWW-Authenticate": 'Bearer realm="headrace"'})


# == cookies ===========================================================================================================
def cookie_name(request: Request) -> str:
    """On the loopback with the port in it: cookies know hosts, and several of ours may be there."""
    if is_secure(request):
        return "__Host-headrace"
    return f"headrace-{request.url.port or 80}"


def is_secure(request: Request) -> bool:
    """Whether the cookie may only travel encrypted: always, but on the loopback, where nobody has a certificate."""
    return not is_loopback(hostname(f"//{request.headers.get('host', '')}"))


def csrf_token(secret: str) -> str:
    """What a page of ours knows of its session and another one cannot: made from the cookie, which no script sees."""
    return sha256(b"csrf:" + secret.encode()).hexdigest()


def check_csrf(request: Request, secret: str) -> None:
    given = request.headers.get(CSRF_HEADER, "")
    if not given.isascii() or not compare_digest(given, csrf_token(secret)):
        raise Refusal(403, "a write by cookie needs X-CSRF-Token, which GET /session tells", code=AccessError.code)
