"""Clients of the HTTP API, blocking and async, with the same methods:

    with Client("http://127.0.0.1:8400") as client:
        run = client.start("orders", {"order": 7}, key="order-7")
        print(client.wait(run.run_id, timeout=30).outputs)

    async with AsyncClient() as client:
        run = await client.start("orders", {"order": 7}, key="order-7")

Each method is written once, in `headrace.requests`; `Endpoint` gives it the two shapes, typed.
"""

import asyncio
import functools
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar, overload
from urllib.parse import urlsplit

import httpx

from headrace import requests
from headrace.errors import ConfigurationError
from headrace.requests import Flow, Reply, Send
from headrace.settings import ClientSettings

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_SECONDS: Final = 10.0


class Endpoint(Generic[P, T]):
    """A request as a method: blocking on a `Client`, awaited on an `AsyncClient`."""

    def __init__(self, flow: Callable[P, Flow[T]]) -> None:
        self._flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, client: "Client", owner: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: Any = None) -> Self: ...
    def __get__(self, client: Any, owner: Any = None) -> Any:
        if client is None:
            return self

        @functools.wraps(self._flow)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.carry_out(self._flow(*args, **kwargs))

        return call


class _Endpoints:
    publish = Endpoint(requests.publish)
    check = Endpoint(requests.check)
    versions = Endpoint(requests.versions)
    workflows = Endpoint(requests.workflows)
    start = Endpoint(requests.start)
    run = Endpoint(requests.run)
    runs = Endpoint(requests.runs)
    count_runs = Endpoint(requests.count_runs)
    wait = Endpoint(requests.wait)
    tasks = Endpoint(requests.tasks)
    task = Endpoint(requests.task)
    items = Endpoint(requests.items)
    attempts = Endpoint(requests.attempts)
    history = Endpoint(requests.history)
    children = Endpoint(requests.children)
    parent = Endpoint(requests.parent)
    explain = Endpoint(requests.explain)
    cancel = Endpoint(requests.cancel)
    pause = Endpoint(requests.pause)
    pause_task = Endpoint(requests.pause_task)
    pause_workflow = Endpoint(requests.pause_workflow)
    resume_task = Endpoint(requests.resume_task)
    resume_workflow = Endpoint(requests.resume_workflow)
    pauses = Endpoint(requests.pauses)
    resume = Endpoint(requests.resume)
    terminate = Endpoint(requests.terminate)
    prioritise = Endpoint(requests.prioritise)
    rerun = Endpoint(requests.rerun)
    migrate = Endpoint(requests.migrate)
    skip = Endpoint(requests.skip)
    signal = Endpoint(requests.signal)
    signals = Endpoint(requests.signals)
    logs = Endpoint(requests.logs)
    post = Endpoint(requests.post)
    posted_signal = Endpoint(requests.posted_signal)
    release = Endpoint(requests.release)
    pools = Endpoint(requests.pools)
    pool = Endpoint(requests.pool)
    set_pool = Endpoint(requests.set_pool)
    approvals = Endpoint(requests.approvals)
    approval = Endpoint(requests.approval)
    approve = Endpoint(requests.approve)
    reject = Endpoint(requests.reject)
    comment_approval = Endpoint(requests.comment_approval)
    link_approval = Endpoint(requests.link_approval)
    delegate = Endpoint(requests.delegate)
    parked_tasks = Endpoint(requests.parked_tasks)
    resolve = Endpoint(requests.resolve)
    dead_letters = Endpoint(requests.dead_letters)
    dead_letter = Endpoint(requests.dead_letter)
    dead_letter_groups = Endpoint(requests.dead_letter_groups)
    replay = Endpoint(requests.replay)
    discard = Endpoint(requests.discard)
    select_dead_letters = Endpoint(requests.select_dead_letters)
    replay_many = Endpoint(requests.replay_many)
    discard_many = Endpoint(requests.discard_many)
    bulk_replay = Endpoint(requests.bulk_replay)
    stop_bulk_replay = Endpoint(requests.stop_bulk_replay)
    bulk = Endpoint(requests.bulk)
    foresee_bulk = Endpoint(requests.foresee_bulk)
    bulk_progress = Endpoint(requests.bulk_progress)
    bulk_items = Endpoint(requests.bulk_items)
    stop_bulk = Endpoint(requests.stop_bulk)
    workers = Endpoint(requests.workers)


class Client(_Endpoints):
    """Blocking client; may be shared by threads. Errors are those of `headrace.errors`.

    base_url: of the API. token: an API token; the one in HEADRACE_API_TOKEN when left out. timeout: seconds for one
    exchange; one that finds the API away is tried again a few times. actor: who acts, for the record; roles: theirs,
    where an approval asks for one: both count with the local token, others act as their token says. transport: for
    tests.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8400",
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        *,
        actor: str | None = None,
        roles: Iterable[str] = (),
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=_checked(base_url), headers=_headers(token, actor, roles), timeout=timeout, transport=transport
        )

    @classmethod
    def from_settings(cls, settings: ClientSettings) -> Self:
        return cls(settings.api, settings.api_token.get_secret_value() if settings.api_token else None)

    def carry_out(self, flow: Flow[T]) -> T:
        """Do what a flow of `headrace.requests` asks for until it returns."""
        answer: Reply | None = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as stop:
                value: T = stop.value
                return value
            if isinstance(step, Send):
                answer = self._send(step)
            else:
                time.sleep(step.seconds)

    def _send(self, send: Send) -> Reply:
        try:
            return _reply(self._http.send(_request(self._http, send)))
        except httpx.TransportError as e:
            return _no_reply(e)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Endpoints):
    """The same on an event loop; see `Client`."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8400",
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        *,
        actor: str | None = None,
        roles: Iterable[str] = (),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=_checked(base_url), headers=_headers(token, actor, roles), timeout=timeout, transport=transport
        )

    @classmethod
    def from_settings(cls, settings: ClientSettings) -> Self:
        return cls(settings.api, settings.api_token.get_secret_value() if settings.api_token else None)

    async def carry_out(self, flow: Flow[T]) -> T:
        """Do what a flow of `headrace.requests` asks for until it returns."""
        answer: Reply | None = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as stop:
                value: T = stop.value
                return value
            if isinstance(step, Send):
                answer = await self._send(step)
            else:
                await asyncio.sleep(step.seconds)

    async def _send(self, send: Send) -> Reply:
        try:
            return _reply(await self._http.send(_request(self._http, send)))
        except httpx.TransportError as e:
            return _no_reply(e)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _request(http: httpx.Client | httpx.AsyncClient, send: Send) -> httpx.Request:
    return http.build_request(
        send.method, send.path.lstrip("/"), params=dict(send.params), content=send.body, headers=dict(send.headers)
    )


def _reply(response: httpx.Response) -> Reply:
    return Reply(response.status_code, response.content, response.headers.get("retry-after"))


def _no_reply(error: httpx.TransportError) -> Reply:
    return Reply(0, f"the API does not answer: {type(error).__name__}: {error}".encode())


def _headers(token: str | None, actor: str | None, roles: Iterable[str]) -> list[tuple[bytes, bytes]]:
    headers = [(b"Accept", b"application/json")]
    if token := token or os.environ.get("HEADRACE_API_TOKEN"):
        headers.append((b"Authorization", b"Bearer " + token.encode()))
    if actor:
        headers.append((b"Headrace-Actor", actor.encode()))
    if named := ",".join(roles):
        headers.append((b"Headrace-Roles", named.encode()))
    return headers


def _checked(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigurationError(f"{base_url!r} is not the URL of an API, such as http://127.0.0.1:8400")
    return base_url.rstrip("/") + "/"
