"""Too much under way: more is refused, what is under way goes on, and starts are taken again."""

from collections.abc import AsyncGenerator

import pytest

import api.backlog
from api.app import create_app
from tests.integration.api.conftest import Api, client

LIMIT = 3


@pytest.fixture
async def limited(settings, definitions, monkeypatch) -> AsyncGenerator[Api]:
    monkeypatch.setattr(api.backlog, "READ_SECONDS", 0.0)
    monkeypatch.setattr(api.backlog, "_SHARE", 0)
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
    monkeypatch.setattr(api.backlog, "READ_SECONDS", 60.0)
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
