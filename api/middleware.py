"""What every request passes: an id, safe headers, a look at where it comes from, the metrics, and the last net for
errors.
"""

import re
import time
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from api.errors import Refusal, respond, unexpected
from api.metrics import Metrics
from api.settings import ApiSettings, hostname, is_address, is_loopback
from headrace.errors import HeadraceError

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Envelope:
    """The outermost layer around the routes. Pure ASGI, so that a stream is passed on as it comes."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, settings: ApiSettings) -> None:
        self.app, self.metrics, self.settings = app, metrics, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        started_at, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            check_origin(scope, self.settings)
            await self.app(scope, receive, send_with_headers)
        except HeadraceError as error:
            await respond(error, request_id)(scope, receive, send_with_headers)
        except Exception as error:
            if (
                status
            ):  # too late for another answer: the connection breaks, so that the caller does not take it for whole
                unexpected(error, request_id)
                raise
            await unexpected(error, request_id)(scope, receive, send_with_headers)
        finally:
            self.metrics.request(scope["method"], _route(scope), status, time.perf_counter() - started_at)


def check_origin(scope: Scope, settings: ApiSettings) -> None:
    """Refuse a call by a name that is not ours, and a write by a page of another origin. Raises Refusal with 403.

    A name in `Host` that nobody told us may be an outsider's that was made to point here (DNS rebinding): then a page
    of theirs would count as one of ours. An address cannot be made to point elsewhere.
    """
    server = scope.get("server")
    if not settings.is_exposed and server and server[1] is not None and not is_loopback(str(server[0])):
        raise Refusal(403, "the API answers on the loopback only; HEADRACE_API_HOST says where it listens")
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if host and not _is_ours(hostname(f"//{host}"), settings):
        raise Refusal(403, "call the API by its address, localhost, or a name in HEADRACE_API_NAMES")
    origin = headers.get("origin")
    if origin is not None and scope["method"] not in _SAFE_METHODS and _netloc(origin) != host:
        raise Refusal(403, "a page of another origin may not change anything here")


def _is_ours(host: str, settings: ApiSettings) -> bool:
    named = bool(host) and host in (*settings.api_names, hostname(settings.api_url))
    return named or is_loopback(host) or (settings.is_exposed and is_address(host))


def _netloc(url: str) -> str:
    """Host and port of an origin; empty when it is none."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else str(uuid7())


def _route(scope: Scope) -> str:
    """The route's template, never the address itself: labels must stay few."""
    route: Any = scope.get("route")
    return getattr(route, "path", None) or "unknown"
