"""The HTTP API as the commands see it: documents as they come, so that `--json` prints what the API said."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import httpx

from headrace import errors
from headrace.errors import (
    AccessError,
    ConflictError,
    DefinitionError,
    Fault,
    HeadraceError,
    NotFoundError,
    UnavailableError,
)

Document = dict[str, Any]

TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
PAGE_MAX: Final = 200
"""Items of one page; the API gives no more."""
_BUILT_OTHERWISE: Final = (DefinitionError, errors.RetryAfter)
_BY_CODE: Final[Mapping[str, type[HeadraceError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HeadraceError) and kind not in _BUILT_OTHERWISE
}
_BY_STATUS: Final[Mapping[int, type[HeadraceError]]] = {
    httpx.codes.UNAUTHORIZED: AccessError,
    httpx.codes.NOT_FOUND: NotFoundError,
    httpx.codes.CONFLICT: ConflictError,
    httpx.codes.SERVICE_UNAVAILABLE: UnavailableError,
    httpx.codes.BAD_GATEWAY: UnavailableError,
    httpx.codes.GATEWAY_TIMEOUT: UnavailableError,
}


class Refusal(HeadraceError):
    """What the API said no to, with the paths of all faults; for codes that have no class of their own here."""


class Api:
    """One connection to the API. Every method raises the error of `headrace.errors` that the API named.

    transport: for tests; the network when left out.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        actor: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        headers = {
            "Headrace-Source": "cli",
            **({"Authorization": f"Bearer {token}"} if token else {}),
            **({"Headrace-Actor": actor.encode("ascii", "replace").decode()} if actor else {}),
        }
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, transport=transport)

    def act_with(self, roles: Sequence[str]) -> None:
        """Whoever acts has these roles, for an approval that asks for one."""
        if roles:
            self._http.headers["Headrace-Roles"] = ",".join(roles)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Document:
        return self._call("GET", path, params=_given(query))

    def post(self, path: str, document: Mapping[str, Any] | None = None, *, key: str | None = None) -> Document:
        """key: the idempotency key; the same one again gets the same answer."""
        return self._call("POST", path, json=document or {}, headers={"Idempotency-Key": key} if key else {})

    def put(self, path: str, document: Mapping[str, Any]) -> Document:
        return self._call("PUT", path, json=document)

    def delete(self, path: str) -> None:
        """Of what answers with nothing."""
        self._exchange("DELETE", path)

    def post_text(self, path: str, text: str, media_type: str) -> Document:
        return self._call("POST", path, content=text.encode(), headers={"Content-Type": media_type})

    def page(self, path: str, *, limit: int, **query: Any) -> Document:
        """`{"items", "next"}` with the first `limit` items, over as many pages as that takes."""
        items: list[Any] = []
        token = None
        while True:
            answer = self.get(path, limit=min(limit - len(items), PAGE_MAX), page=token, **query)
            items += answer["items"]
            token = answer.get("next")
            if not token or len(items) >= limit:
                return {"items": items[:limit], "next": token}

    def stream(self, path: str) -> Iterator[tuple[str, Document]]:
        """Server-sent events as (event, data), until the API ends the stream."""
        timeout = httpx.Timeout(None, connect=5.0)
        try:
            with self._http.stream("GET", path, headers={"Accept": "text/event-stream"}, timeout=timeout) as answer:
                if answer.is_error:
                    answer.read()
                    raise error_of(answer)
                yield from _events(answer.iter_lines())
        except httpx.HTTPError as error:
            raise self._away(error) from None

    def _call(self, method: str, path: str, **how: Any) -> Document:
        return _document(self._exchange(method, path, **how))

    def _exchange(self, method: str, path: str, **how: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **how)
        except httpx.InvalidURL as error:
            raise errors.ConfigurationError(f"{self.url} is not an address of an API: {error}") from None
        except httpx.HTTPError as error:
            raise self._away(error) from None
        if answer.is_error:
            raise error_of(answer)
        return answer

    def _away(self, error: httpx.HTTPError) -> HeadraceError:
        if isinstance(error, httpx.UnsupportedProtocol):
            return errors.ConfigurationError(f"{self.url} is not an address of an API: {error}")
        reason = str(error) or type(error).__name__
        return UnavailableError(
            f"the API at {self.url} does not answer: {reason}\nis it running? start one: headrace dev"
        )


def error_of(answer: httpx.Response) -> HeadraceError:
    """The error that a problem document names; without one, what the HTTP status says."""
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    text = str(problem.get("detail") or problem.get("title") or f"the API answered {answer.status_code}")
    faults = [item for item in problem.get("errors") or [] if isinstance(item, dict)]
    code = str(problem.get("code"))
    if code == DefinitionError.code and faults:
        return DefinitionError([Fault(f.get("path", ""), f.get("message", ""), f.get("line")) for f in faults])
    kind: Callable[..., HeadraceError] = _BY_CODE.get(code) or _BY_STATUS.get(answer.status_code) or Refusal
    fields = {"holder": problem["run_id"]} if problem.get("run_id") else {}
    return kind(text, errors=faults, request_id=problem.get("request_id"), **fields)


def _document(answer: httpx.Response) -> Document:
    try:
        document = answer.json()
    except ValueError:
        raise UnavailableError(f"{answer.url} is not a Headrace API: it did not answer with JSON") from None
    return document if isinstance(document, dict) else {"value": document}


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Document]]:
    """The part of the event-stream format that the API uses: one `event:` and one or more `data:` lines."""
    name, data = "message", []
    for line in lines:
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield name, json.loads("\n".join(data))
            name, data = "message", []


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}
