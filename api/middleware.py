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
from api.settings import is_loopback
from headrace.errors import HeadraceError

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Envelope:
    """The outermost layer around the routes. Pure ASGI, so that a stream is passed on as it comes."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

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
            check_origin(scope)
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


def check_origin(scope: Scope) -> None:
    """While callers need not say who they are, only this machine may call, and no page of another origin through a
    browser on it.

    A name in `Host` that is neither an address nor localhost may be an outsider's that was made to point here (DNS
    rebinding).
    Raises Refusal with 403.
    """
    server = scope.get("server")
    if server and server[1] is not None and not is_loopback(str(server[0])):
        raise Refusal(403, "the API answers on the loopback only until callers can say who they are")
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if host and not is_loopback(_hostname(f"//{host}")):
        raise Refusal(403, "call the API by a loopback address or localhost")
    origin = headers.get("origin")
    if origin is not None and scope["method"] not in _SAFE_METHODS and _netloc(origin) != host:
        raise Refusal(403, "a page of another origin may not change anything here")


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


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
