"""Too much under way: more is refused, what is under way goes on, and starts are taken again. Too much is read: starts
go on."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from fastapi import FastAPI

from api.app import create_app
from state import running
from tests.integration.api.conftest import Api, client

LIMIT = 3


@pytest.fixture
async def limited(settings, definitions, monkeypatch) -> AsyncGenerator[Api]:
    monkeypatch.setattr(running, "READ_SECONDS", 0.0)
    monkeypatch.setattr(running, "SHARE", 0)
    app = create_app(settings.model_copy(update={"api_backlog_max": LIMIT}))
    async with app.router.lifespan_context(app), client(app) as api_of_app:
        for definition in definitions.values():
            await api_of_app.publish(definition)
        yield api_of_app


async def start(api: Api, workflow: str = "orders", **fields: object) -> tuple[int, dict[str, object], dict[str, str]]:
    answer = await api.post(f"/workflows/{workflow}/runs", json={"input": {"id": 1}, **fields})
    return answer.status_code, answer.json(), dict(answer.headers)


async def test_a_start_past_the_limit_is_refused_and_makes_nothing(limited, engine):
    for _ in range(LIMIT):
        assert (await start(limited))[0] == 201
    status, problem, headers = await start(limited)
    assert (status, problem["code"], headers["retry-after"]) == (429, "HR-1007", "5")
    assert "3 runs are under way" in str(problem["detail"])
    assert engine.count("run") == LIMIT
    assert "headrace_starts_refused_total 1.0" in (await limited.get("/metrics")).text


async def test_starts_are_taken_again_when_one_has_ended(limited, engine):
    runs = [(await start(limited))[1]["run_id"] for _ in range(LIMIT)]
    assert (await start(limited))[0] == 429
    await limited.post(f"/runs/{runs[0]}/cancel", json={"reason": "room"})
    engine.apply_requests()
    assert (await start(limited))[0] == 201


async def test_between_two_counts_what_this_process_starts_counts(limited, monkeypatch):
    monkeypatch.setattr(running, "READ_SECONDS", 60.0)
    assert [(await start(limited))[0] for _ in range(LIMIT + 1)] == [201] * LIMIT + [429]


async def test_runs_that_wait_for_people_do_not_count(limited, engine):
    for _ in range(LIMIT):
        await start(limited)
    engine.connection.execute("UPDATE run SET status = 'waiting'")
    engine.connection.commit()
    assert (await start(limited))[0] == 201


async def test_an_idempotency_key_gives_its_first_answer_past_the_limit_too(limited):
    path, first = "/workflows/orders/runs", []
    for number in range(LIMIT):
        first.append(await limited.post(path, json={"input": 1}, headers={"Idempotency-Key": f"k{number}"}))
    again = await limited.post(path, json={"input": 1}, headers={"Idempotency-Key": "k0"})
    assert (again.status_code, again.json()["run_id"]) == (200, first[0].json()["run_id"])
    assert (await limited.post(path, json={"input": 1}, headers={"Idempotency-Key": "another"})).status_code == 429


# == reads and writes apart ============================================================================================
@pytest.fixture
async def narrow(settings, definitions) -> AsyncGenerator[FastAPI]:
    """Two connections for reads and one for writes."""
    app = create_app(settings.model_copy(update={"api_pool_size": 2, "api_write_pool_size": 1}))
    async with app.router.lifespan_context(app), client(app) as api_of_app:
        await api_of_app.publish(definitions["orders"])
        yield app


async def test_a_start_goes_through_while_every_connection_for_reads_is_busy(narrow):
    database = narrow.state.wiring.database

    busy = asyncio.Semaphore(0)

    async def read_slowly() -> None:
        async with database.reading() as connection:
            busy.release()
            await connection.execute("SELECT pg_sleep(4)")

    readers = [asyncio.create_task(read_slowly()) for _ in range(2)]
    for _ in readers:
        await asyncio.wait_for(busy.acquire(), 10)
    async with client(narrow) as api_of_app:
        began = time.monotonic()
        assert (await start(api_of_app))[0] == 201
        assert time.monotonic() - began < 1
        refused = await api_of_app.get("/runs")
    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    assert not any(reader.done() for reader in readers)
    await asyncio.gather(*readers)


async def test_a_start_that_gets_no_connection_is_refused_soon_and_reads_go_on(narrow):
    async with AsyncExitStack() as held, client(narrow) as api_of_app:
        await held.enter_async_context(narrow.state.wiring.database.writing())
        began = time.monotonic()
        status, problem, headers = await start(api_of_app)
        assert (status, problem["code"], "retry-after" in headers) == (503, "HR-1007", True)
        assert time.monotonic() - began < 2
        assert await api_of_app.read("/runs") == {"items": [], "next": None, "searched_until": None}
