"""One idempotency key, one effect, one answer."""

import asyncio

import pytest


@pytest.fixture
async def orders(api, definitions):
    await api.publish(definitions["orders"])
    return "/workflows/orders/runs"


def key(text):
    return {"Idempotency-Key": text}


async def test_fifty_racing_requests_have_one_effect_and_one_answer(api, orders, engine):
    answers = await asyncio.gather(*(api.post(orders, json={"input": 1}, headers=key("k")) for _ in range(50)))
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert len({answer.content for answer in answers}) == 1
    replayed = [answer for answer in answers if answer.headers.get("Idempotent-Replayed") == "true"]
    assert len(replayed) == 49
    assert engine.count("run") == engine.count("request_key") == 1


async def test_the_first_answer_is_given_again_though_the_run_went_on(api, orders, engine):
    first = await api.post(orders, json={"input": 1}, headers=key("k"))
    engine.complete(first.json()["run_id"], "validate", b'{"total": 1}')
    again = await api.post(orders, content=b'{ "input":1 }', headers=key("k") | {"content-type": "application/json"})
    assert again.content == first.content
    assert (first.status_code, again.status_code) == (201, 200)
    assert "Idempotent-Replayed" not in first.headers


async def test_another_body_is_refused_and_changes_nothing(api, orders, engine):
    await api.post(orders, json={"input": 1}, headers=key("k"))
    response = await api.post(orders, json={"input": 2}, headers=key("k"))
    assert (response.status_code, response.json()["code"]) == (422, "HR-1010")
    assert engine.count("run") == 1


async def test_a_refused_request_does_not_use_its_key_up(api, orders, engine):
    assert (await api.post(orders, json={"version": 9}, headers=key("k"))).status_code == 404
    assert (await api.post(orders, json={"input": 1}, headers=key("k"))).status_code == 201
    assert engine.count("run") == 1


async def test_a_key_counts_for_one_resource(api, orders, definitions):
    await api.publish(definitions["release"])
    first = await api.post(orders, json={}, headers=key("k"))
    other = await api.post("/workflows/release/runs", json={}, headers=key("k"))
    assert (first.status_code, other.status_code) == (201, 201)


@pytest.mark.parametrize("text", ["", " ", "a b", "x" * 201, "\xe9"])
async def test_keys_that_are_none_are_refused(api, orders, engine, text):
    response = await api.post(orders, json={}, headers=[(b"idempotency-key", text.encode("latin-1"))])
    assert response.status_code == 422
    assert engine.count("run") == 0


async def test_every_write_takes_a_key(api, orders, engine, definitions):
    async def twice(method, path, name, **content):
        headers = key(name) | content.pop("headers", {})
        first, again = [await api.request(method, path, headers=headers, **content) for _ in range(2)]
        assert again.headers["Idempotent-Replayed"] == "true"
        assert first.content == again.content
        return again

    await twice("POST", "/workflows", "p", content=definitions["release"], headers={"content-type": "application/yaml"})
    run_id = await api.start("orders")
    assert (await twice("POST", f"/runs/{run_id}/cancel", "c", json={})).status_code == 202
    assert engine.apply_requests() == ["cancelled"]
    late = await api.post(f"/runs/{run_id}/cancel", json={}, headers=key("c"))
    assert late.status_code == 202
    await twice("POST", "/subscriptions", "s", json={"name": "s", "topic": "t", "workflow": "orders"})
    deleted = await twice("DELETE", "/subscriptions/s", "d")
    assert (deleted.status_code, deleted.content) == (204, b"")
    waiting = await api.start("release")
    engine.complete(waiting, "build")
    await twice("POST", f"/tasks/{waiting}.ask/approval", "a", json={"decision": "approve"})
    assert engine.apply_requests() == ["decided"]
    engine.fail(waiting, "ship")
    (letter,) = (await api.read("/dead-letters"))["items"]
    await twice("POST", f"/dead-letters/{letter['dead_letter_id']}/replay", "r")
    assert engine.apply_requests() == ["replayed"]
