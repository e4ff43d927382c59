"""Server-sent events over a real socket."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import httpx
import psycopg
import pytest
import uvicorn
from uuid_utils import uuid7

from api import access, stream
from api.app import create_app
from state.tokens import Scope, create_token
from tests.caller import HEADERS


async def until(is_so):
    """Wait for what another task of this loop brings about."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110  # nothing tells us
            await asyncio.sleep(0.01)


@pytest.fixture
async def server(app):
    """The app behind uvicorn; answers its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=2))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    app.state.wiring.is_draining = True
    server.should_exit = True
    await serving


@asynccontextmanager
async def follow(address, path, **headers):
    """Events of a stream, as (event, id, data)."""
    async with (
        httpx.AsyncClient(timeout=15) as client,
        client.stream(
            "GET", f"{address}{path}", headers={**HEADERS, **{k.replace("_", "-"): v for k, v in headers.items()}}
        ) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield events(response)


async def events(response):
    event = {}
    async for line in response.aiter_lines():
        if not line and "data" in event:
            yield event["event"], event.get("id"), json.loads(event["data"])
            event = {}
        elif ": " in line:
            name, _, value = line.partition(": ")
            event[name] = value


async def collect(source):
    return [event async for event in source]


@pytest.fixture
async def run_id(api, definitions):
    await api.publish(definitions["orders"])
    return await api.start("orders", {"id": 1})


async def test_a_run_is_followed_to_its_end(server, engine, run_id):
    async with follow(server, f"/runs/{run_id}/events") as source:
        assert (await anext(source))[:2] == ("history", "1")
        event, id_, data = await anext(source)
        assert (event, id_, data["status"], data["counts"]["queued"]) == ("run", "1", "running", 1)
        for task in ("validate", "charge", "notify"):
            engine.complete(run_id, task, b'{"total":\n1}')
        rest = await collect(source)
    assert [event[2]["kind"] for event in rest if event[0] == "history"] == ["attempt_completed"] * 3
    assert rest[-1][0] == "run"
    assert (rest[-1][1], rest[-1][2]["status"]) == ("4", "completed")


async def test_a_stream_resumes_behind_the_last_event_seen(server, api, engine, run_id):
    engine.complete(run_id, "validate", b'{"total": 1}')
    await api.post(f"/runs/{run_id}/cancel", json={"reason": "two\nlines"})
    engine.apply_requests()
    async with follow(server, f"/runs/{run_id}/events") as source:
        whole = await collect(source)
    assert [event[1] for event in whole] == ["1", "2", "3", "3"]
    async with follow(server, f"/runs/{run_id}/events", last_event_id="1") as source:
        assert await collect(source) == whole[1:]
    for odd in ("99999999999999999999", "-1", "x", "\u0663".encode("utf-8").decode("latin-1")):
        headers = {"Last-Event-ID": odd.encode("latin-1")}
        async with follow(server, f"/runs/{run_id}/events", **headers) as source:
            assert (await collect(source))[-1] == whole[-1]
    async with follow(server, f"/runs/{run_id}/events", last_event_id="7") as source:
        assert await collect(source) == whole[-1:]


async def test_a_row_version_with_several_items_has_its_id_on_the_last(server, api, engine):
    await api.publish("name: wide\ntasks: { a: { run: x }, b: { run: x } }")
    run_id = await api.start("wide")
    for task in ("a", "b"):
        engine.start_body(run_id, task)
    await api.post(f"/runs/{run_id}/cancel")
    engine.apply_requests()
    async with follow(server, f"/runs/{run_id}/events") as source:
        ids = [event[1] for event in await collect(source)]
    assert ids == ["1", "2", "3", None, None, "4", "4"]


async def test_all_runs_are_followed_from_now_on(server, api, engine, run_id):
    async with follow(server, "/events") as source:
        first = asyncio.ensure_future(anext(source))
        await asyncio.sleep(0)
        deadline = time.monotonic() + 10
        while not first.done() and time.monotonic() < deadline:  # the first look only learns what there is
            other = await api.start("orders", {"id": 2})
            engine.fail(other, "validate")
            await asyncio.wait([first], timeout=0.3)
        event, _, data = await first
        assert (event, data["workflow"]) == ("run", "orders")
        assert data["run_id"] != run_id
        engine.complete(run_id, "validate", b'{"total": 1}')
        async for _, _, data in source:
            if data["run_id"] == run_id:
                break
        assert (data["row_version"], data["counts"]["completed"]) == (2, 1)


async def test_a_silent_stream_says_that_it_lives(server, run_id, monkeypatch):
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.3)
    async with (
        httpx.AsyncClient(timeout=10) as client,
        client.stream("GET", f"{server}/runs/{run_id}/events", headers={**HEADERS, "Last-Event-ID": "1"}) as response,
    ):
        async for line in response.aiter_lines():
            if line == ": alive":
                return
    pytest.fail("no heartbeat")


async def test_streams_are_bounded_and_given_back_when_the_caller_leaves(settings, database, api, run_id):
    app = create_app(settings.model_copy(update={"api_streams_max": 2}))
    async with app.router.lifespan_context(app):
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        async with (
            follow(address, f"/runs/{run_id}/events") as one,
            follow(address, f"/runs/{run_id}/events") as two,
            httpx.AsyncClient(base_url=address, headers=HEADERS) as client,
        ):
            await anext(one)
            await anext(two)
            for path in (f"/runs/{run_id}/events", "/events"):
                refused = await client.get(path)
                assert (refused.status_code, refused.headers["Retry-After"]) == (429, "2")
        await until(lambda: app.state.wiring.streams_open == 0)
        app.state.wiring.is_draining = server.should_exit = True
        await serving


async def test_a_stream_of_no_run_is_not_found(api):
    response = await api.get(f"/runs/{uuid7()}/events")
    assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json")


async def test_streams_end_when_the_process_is_about_to_stop(server, app, run_id):
    async with follow(server, f"/runs/{run_id}/events") as source, follow(server, "/events") as all_runs:
        await anext(source)
        app.state.wiring.is_draining = True
        await asyncio.wait_for(asyncio.gather(collect(source), collect(all_runs)), 5)


async def test_a_stream_ends_with_the_token_that_opened_it(server, app, database, run_id, monkeypatch):
    monkeypatch.setattr(stream, "KNOWN_SECONDS", 0.0)
    monkeypatch.setattr(access, "FRESH_SECONDS", 0.0)
    async with await psycopg.AsyncConnection.connect(database) as connection:
        _, secret = await create_token(connection, "default", "ada", [Scope.READ], created_by="a test")
    async with follow(server, "/events", Authorization=f"Bearer {secret}") as source:
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE api_token SET revoked_at = now(), revoked_by = 'a test'")
        await asyncio.wait_for(collect(source), 20)
