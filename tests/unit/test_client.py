"""Both clients against an API that is played by the test."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headrace import requests
from headrace.client import AsyncClient, Client
from headrace.errors import (
    ConfigurationError,
    ConflictError,
    DefinitionError,
    HeadraceError,
    KeyReusedError,
    MessageError,
    NotFoundError,
    PayloadError,
    UnavailableError,
)

Handler = Callable[[httpx.Request], httpx.Response]
RUN = {"run_id": "r1", "workflow": "orders", "version": 1, "status": "running", "something_new": 1}


@pytest.fixture(params=["blocking", "async"])
def call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """call(handler, method, *args): what the method of either client gives; pauses are skipped and do not take time."""

    def blocking(handler: Handler, method: str, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr("headrace.client.time.sleep", lambda seconds: None)
        with Client("http://api/base", "secret", transport=httpx.MockTransport(handler), actor="Zoë") as client:
            return getattr(client, method)(*args, **kwargs)

    def on_a_loop(handler: Handler, method: str, *args: Any, **kwargs: Any) -> Any:
        async def sleep(seconds: float) -> None:
            return None

        async def go() -> Any:
            async with AsyncClient("http://api/base", "secret", transport=httpx.MockTransport(handler)) as client:
                monkeypatch.setattr("headrace.client.asyncio.sleep", sleep)
                return await getattr(client, method)(*args, **kwargs)

        return asyncio.run(go())

    return blocking if request.param == "blocking" else on_a_loop


def answering(*responses: httpx.Response | Exception, seen: list[httpx.Request] | None = None) -> Handler:
    left = list(responses)

    def handle(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        response = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(response, Exception):
            raise response
        return httpx.Response(response.status_code, content=response.content)  # one object can be sent only once

    return handle


def problem(status: int, code: str, **fields: Any) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": "what happened", "request_id": "q", **fields})


def test_a_start_sends_its_input_key_and_credentials(call: Callable[..., Any]) -> None:
    seen: list[httpx.Request] = []
    run = call(answering(httpx.Response(201, json=RUN), seen=seen), "start", "orders", {"order": "é"}, key="k")
    assert (run.run_id, run.status, run.is_over, run.labels) == ("r1", "running", False, {})
    assert str(seen[0].url) == "http://api/base/workflows/orders/runs"
    assert json.loads(seen[0].content) == {"input": {"order": "é"}, "key": "k"}
    assert seen[0].headers["authorization"] == "Bearer secret"


def test_a_start_sends_its_labels_and_a_run_has_them(call: Callable[..., Any]) -> None:
    seen: list[httpx.Request] = []
    labelled = httpx.Response(201, json={**RUN, "labels": {"customer": "acme"}})
    run = call(answering(labelled, seen=seen), "start", "orders", labels={"customer": "acme"})
    assert json.loads(seen[0].content) == {"input": {}, "labels": {"customer": "acme"}}
    assert run.labels == {"customer": "acme"}


def test_an_api_that_is_away_is_asked_again_with_the_same_idempotency_key(call: Callable[..., Any]) -> None:
    seen: list[httpx.Request] = []
    away: list[httpx.Response | Exception] = [
        problem(503, "HR-1007"),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.Response(502, text="proxy"),
    ]
    run = call(answering(*away, httpx.Response(200, json=RUN), seen=seen), "start", "orders")
    assert run.run_id == "r1"
    assert len(seen) == 5
    assert len({request.headers["idempotency-key"] for request in seen}) == 1


def test_an_api_that_stays_away_is_unavailable_after_bounded_tries(call: Callable[..., Any]) -> None:
    seen: list[httpx.Request] = []
    with pytest.raises(UnavailableError, match="ConnectError"):
        call(answering(httpx.ConnectError("refused"), seen=seen), "run", "r1")
    assert len(seen) == requests.TRIES_MAX


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (problem(404, "HR-1004"), NotFoundError),
        (problem(409, "HR-1005"), ConflictError),
        (problem(422, "HR-1009"), PayloadError),
        (problem(422, "HR-1010"), KeyReusedError),
        (httpx.Response(404, text="<html>"), NotFoundError),
        (problem(500, "HR-1000"), HeadraceError),
        (problem(401, "HR-9999"), HeadraceError),
        (httpx.Response(200, text="{"), MessageError),
    ],
)
def test_problems_become_errors_and_are_not_tried_again(
    call: Callable[..., Any], response: httpx.Response, kind: type[HeadraceError]
) -> None:
    seen: list[httpx.Request] = []
    with pytest.raises(HeadraceError) as caught:
        call(answering(response, seen=seen), "cancel" if response.status_code != 200 else "run", "r1")
    assert type(caught.value) is kind
    assert len(seen) == 1


def test_a_refused_definition_names_every_fault(call: Callable[..., Any]) -> None:
    faults = [{"path": "tasks.a", "message": "cycle", "line": 3}, {"path": "name", "message": "missing"}]
    with pytest.raises(DefinitionError) as caught:
        call(answering(problem(422, "HR-1002", errors=faults)), "publish", "name: x")
    assert [(fault.path, fault.line) for fault in caught.value.faults] == [("tasks.a", 3), ("name", None)]


@pytest.mark.parametrize(
    ("workflow", "media_type", "body"),
    [
        ("name: x", "application/yaml", b"name: x"),
        ({"name": "x"}, "application/json", b'{"name":"x"}'),
    ],
)
def test_a_workflow_is_published_as_text_or_as_data(
    call: Callable[..., Any], workflow: Any, media_type: str, body: bytes
) -> None:
    seen: list[httpx.Request] = []
    answer = httpx.Response(201, json={"name": "x", "version": 2, "created": True, "digest": "d"})
    assert call(answering(answer, seen=seen), "publish", workflow).version == 2
    assert (seen[0].headers["content-type"], seen[0].content) == (media_type, body)


def test_lists_follow_their_pages_up_to_the_limit(call: Callable[..., Any]) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        page = int(request.url.params.get("page", "0"))
        items = [
            {"task_id": f"r1.t{page}{n}", "run_id": "r1", "name": f"t{page}{n}", "status": "queued"} for n in (0, 1)
        ]
        return httpx.Response(200, json={"items": items, "next": str(page + 1) if page < 2 else None})

    assert [task.name for task in call(handle, "tasks", "r1")] == ["t00", "t01", "t10", "t11", "t20", "t21"]


def test_wait_returns_a_run_that_is_over_or_needs_attention(call: Callable[..., Any]) -> None:
    for status in ("completed", "failed", "cancelled", "needs_attention"):
        responses = [httpx.Response(200, json=RUN)] * 3 + [httpx.Response(200, json={**RUN, "status": status})]
        assert call(answering(*responses), "wait", "r1", timeout=60).status == status


def test_wait_gives_up_after_its_timeout(call: Callable[..., Any]) -> None:
    with pytest.raises(TimeoutError, match="still running"):
        call(answering(httpx.Response(200, json=RUN)), "wait", "r1", timeout=0.0)


def test_ids_are_one_part_of_the_path(call: Callable[..., Any]) -> None:
    seen: list[httpx.Request] = []
    call(answering(httpx.Response(200, json=RUN), seen=seen), "run", "../a/b?c")
    assert seen[0].url.raw_path == b"/base/runs/..%2Fa%2Fb%3Fc"


def test_a_replay_may_carry_another_input_even_null(call: Callable[..., Any]) -> None:
    seen: list[httpx.Request] = []
    handler = answering(httpx.Response(202, json={"dead_letter_id": "d", "status": "replayed"}), seen=seen)
    call(handler, "replay", "d")
    call(handler, "replay", "d", input=None)
    assert [json.loads(request.content) for request in seen] == [{}, {"input": None}]


def test_an_input_that_is_not_json_is_refused_before_it_is_sent(call: Callable[..., Any]) -> None:
    with pytest.raises(PayloadError) as caught:
        call(answering(httpx.Response(500)), "start", "orders", {"a": {1}})
    assert caught.value.reason == "BAD_INPUT"


def test_a_url_that_cannot_be_one_is_found_at_once() -> None:
    for url in ("", "127.0.0.1:8400", "ftp://x"):
        with pytest.raises(ConfigurationError):
            Client(url)
