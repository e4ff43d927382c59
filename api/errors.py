"""Turns every error into problem details (RFC 9457): a stable code, words for a person, and never a stack trace."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.schemas.problem import Fault, Problem
from headrace.errors import (
    ConflictError,
    DefinitionError,
    FencedError,
    FilterError,
    ForbiddenError,
    HeadraceError,
    KeyReusedError,
    MessageError,
    MissingObjectError,
    NotFoundError,
    PayloadError,
    UnavailableError,
)

RETRY_AFTER_SECONDS: Final = 2
"""Postgres that restarts is back in about this time; a client's own backoff takes over from there."""
_STATUS: Final[Mapping[type[HeadraceError], int]] = {
    DefinitionError: 422,
    MessageError: 422,
    NotFoundError: 404,
    ConflictError: 409,
    FencedError: 409,
    UnavailableError: 503,
    PayloadError: 422,
    MissingObjectError: 404,
    KeyReusedError: 422,
    ForbiddenError: 403,
}
_TITLE: Final = {
    400: "Bad request",
    401: "Not known",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Request too slow",
    409: "Conflict",
    410: "Gone",
    413: "Body too large",
    415: "Unsupported media type",
    422: "Unprocessable request",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
}
_FAULTS_MAX: Final = 100

_log = structlog.get_logger("api.errors")


class Refusal(HeadraceError):
    """A request that is refused for how it came, before anything looked at what it says."""

    def __init__(
        self, status: int, message: str, *, code: str = HeadraceError.code, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.problem_code, self.headers = status, code, dict(headers or {})


class FaultyRequest(PayloadError):
    """A request with faults at known places."""

    def __init__(self, message: str, faults: list[Fault]) -> None:
        super().__init__(message, reason="BAD_INPUT")
        self.faults = faults


def faulty(path: str, message: str) -> FaultyRequest:
    """One fault: in a body, a query or a header."""
    return FaultyRequest(f"{path}: {message}" if path else message, [Fault(path, message)])


def problem(
    request_id: str,
    status: int,
    detail: str,
    *,
    code: str = HeadraceError.code,
    faults: list[Fault] | None = None,
    headers: Mapping[str, str] | None = None,
    run_id: str | None = None,
) -> Response:
    content = Problem(
        type=f"urn:headrace:error:{code.lower()}",
        title=_TITLE.get(status, "Error"),
        status=status,
        detail=detail,
        code=code,
        request_id=request_id,
        errors=(faults or [])[:_FAULTS_MAX],
        run_id=run_id,
    )
    return Response(msgspec.json.encode(content), status, headers, media_type="application/problem+json")


def respond(error: HeadraceError, request_id: str) -> Response:
    """The answer to an error of ours."""
    if isinstance(error, Refusal):
        return problem(request_id, error.status, error.message, code=error.problem_code, headers=error.headers)
    status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
    if status == 500:
        _log.error("request failed", request_id=request_id, error=error.message, exc_info=error, **error.fields)
        return problem(
            request_id, 500, "something is wrong on our side; the log has it under this request id", code=error.code
        )
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else None
    holder = error.fields.get("holder")
    return problem(
        request_id, status, error.message, code=error.code, faults=_faults(error), headers=headers,
        run_id=None if holder is None else str(holder),
    )  # fmt: skip


def _faults(error: HeadraceError) -> list[Fault]:
    if isinstance(error, FaultyRequest):
        return error.faults
    if isinstance(error, DefinitionError | FilterError):
        return [Fault(fault.path, fault.message, fault.line) for fault in error.faults]
    if isinstance(error, PayloadError):
        return [Fault(str(error.fields.get("path") or ""), error.message)]
    return []


def install(app: FastAPI) -> None:
    """Let the app answer with problem details whatever is raised."""

    async def ours(request: Request, error: Exception) -> Response:
        return respond(error, _request_id(request)) if isinstance(error, HeadraceError) else _unexpected(request, error)

    async def http(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return _unexpected(request, error)
        code = NotFoundError.code if error.status_code == 404 else HeadraceError.code
        detail = "there is nothing at this address" if error.status_code == 404 else str(error.detail)
        return problem(_request_id(request), error.status_code, detail, code=code, headers=error.headers)

    async def parameters(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            return _unexpected(request, error)
        faults = [Fault(_place(fault["loc"]), str(fault["msg"])) for fault in error.errors()]
        detail = "; ".join(f"{fault.path}: {fault.message}" for fault in faults[:3])
        return problem(_request_id(request), 422, detail, code=PayloadError.code, faults=faults)

    async def data(request: Request, error: Exception) -> Response:
        return problem(_request_id(request), 422, "a value is out of range", code=PayloadError.code)

    app.add_exception_handler(HeadraceError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, parameters)
    app.add_exception_handler(psycopg.DataError, data)


def unexpected(error: Exception, request_id: str) -> Response:
    """The answer to what nobody foresaw: a line in the log with the trace, and a body without."""
    _log.error("request failed", request_id=request_id, exc_info=error)
    return problem(
        request_id, 500, "something is wrong on our side; the log has it under this request id", code="HR-1008"
    )


def _unexpected(request: Request, error: Exception) -> Response:
    return unexpected(error, _request_id(request))


def _request_id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


def _place(location: Any) -> str:
    """`("query", "limit")` -> `limit`."""
    return ".".join(str(part) for part in location if part not in ("query", "path", "body", "header"))
