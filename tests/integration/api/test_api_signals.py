"""Signals over HTTP: stored once, listed with what became of them, refused where nobody will ever take them."""

import json

import pytest

INVOICES = """
name: invoices
tasks:
  send: { run: mail.send }
  paid: { needs: send, signal: { name: payment.received, key: "${{ input.id }}", timeout: 14d } }
  book: { run: ledger.book, needs: paid, with: "${{ tasks.paid.output.data }}" }
"""


@pytest.fixture
async def run_id(api):
    await api.publish(INVOICES)
    return await api.start("invoices", {"id": "i-1"})


async def test_a_signal_is_stored_and_then_taken(api, run_id, engine):
    engine.complete(run_id, "send")
    sent = await api.post(
        f"/runs/{run_id}/signals",
        json={"name": "payment.received", "data": {"sum": 3.50}, "key": "i-1"},
        headers={"Headrace-Actor": "bank"},
    )
    signal = sent.json()
    assert (await api.read(f"/tasks/{run_id}.paid"))["signal"] == "payment.received"
    assert (sent.status_code, signal["status"], signal["actor"], signal["data"]) == (201, "sent", "bank", {"sum": 3.5})
    assert engine.apply_requests() == ["signalled"]
    (taken,) = (await api.read(f"/runs/{run_id}/signals"))["items"]
    assert (taken["status"], taken["task"], taken["token"], taken["reason"]) == ("taken", "paid", 1, None)
    moved = (await api.read(f"/runs/{run_id}/history"))["items"][taken["row_version"] - 1]
    assert (moved["kind"], moved["task"], moved["actor"]) == ("signalled", "paid", "bank")
    assert moved["detail"] == {"signal_id": signal["signal_id"], "name": "payment.received"}
    assert (await api.read(f"/tasks/{run_id}.book"))["input"] == {"sum": 3.5}
    assert (await api.read(f"/tasks/{run_id}.paid"))["output"]["signal_id"] == signal["signal_id"]


async def test_the_same_id_or_idempotency_key_is_the_same_signal(api, run_id, engine):
    body = {"name": "payment.received", "data": 1, "id": "evt-1"}
    answers = [await api.post(f"/runs/{run_id}/signals", json=body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert answers[0].json() == answers[1].json()
    refused = await api.post(f"/runs/{run_id}/signals", json={**body, "data": 2})
    assert (refused.status_code, refused.json()["code"]) == (422, "HR-1010")
    del body["id"]
    headers = {"Idempotency-Key": "k"}
    answers = [await api.post(f"/runs/{run_id}/signals", json=body, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert len((await api.read(f"/runs/{run_id}/signals"))["items"]) == engine.count("inbox") == 2


async def test_early_signals_are_kept_and_listed_page_by_page_in_order(api, run_id, engine):
    for number in range(5):
        sent = await api.post(f"/runs/{run_id}/signals", json={"name": "payment.received", "data": number})
        assert sent.status_code == 201
    engine.apply_requests()
    pages = await api.pages(f"/runs/{run_id}/signals", limit=2)
    assert [[item["data"] for item in page] for page in pages] == [[0, 1], [2, 3], [4]]
    assert {item["status"] for page in pages for item in page} == {"kept"}
    engine.complete(run_id, "send")
    items = (await api.read(f"/runs/{run_id}/signals"))["items"]
    assert [item["status"] for item in items] == ["taken"] + ["kept"] * 4


async def test_a_signal_is_posted_for_whoever_waits_and_says_to_whom_it_came(api, run_id, engine):
    body = {"name": "payment.received", "key": "i-1", "data": {"sum": 3}, "id": "evt-1", "keep": "2h"}
    first = (await api.post("/signals", json=body, headers={"Headrace-Actor": "bank"})).json()
    assert (first["status"], first["offers"], first["actor"]) == ("open", [], "bank")
    engine.complete(run_id, "send")
    second = await api.post("/signals", json={**body, "id": "evt-2"})
    assert second.status_code == 201
    (offer,) = (await api.read(f"/signals/{first['signal_id']}"))["offers"]
    assert (offer["run_id"], offer["task"], offer["status"]) == (run_id, "paid", "sent"), "the oldest first"
    assert second.json()["offers"] == []
    again = await api.post("/signals", json=body)
    assert (again.status_code, again.json()["signal_id"]) == (200, first["signal_id"])
    assert engine.apply_requests() == ["signalled"]
    taken = await api.read(f"/signals/{first['signal_id']}")
    assert (taken["status"], taken["offers"][0]["status"]) == ("taken", "taken")
    assert (await api.read(f"/runs/{run_id}/signals"))["items"][0]["row_version"] == taken["offers"][0]["row_version"]
    pages = await api.pages("/signals", limit=1)
    assert [[item["signal_id"] for item in page] for page in pages] == [
        [second.json()["signal_id"]],
        [first["signal_id"]],
    ]


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"name": "n"}, 422, ""),
        ({"name": "n", "key": ""}, 422, "key"),
        ({"name": "n", "key": "k", "keep": "soon"}, 422, "keep"),
        ({"name": "n", "key": "k", "keep": "31d"}, 422, "keep"),
        ({"name": "n", "key": "k", "data": 1e400}, 422, ""),
    ],
)
async def test_what_cannot_be_posted_is_refused_with_its_place(api, body, status, path):
    content = json.dumps(body).replace("Infinity", "1e400")
    answer = await api.post("/signals", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["errors"][0]["path"] in (path, "data")
    assert (await api.get("/signals/01a2289f-ec84-73e0-907f-576654f809f9")).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "path", "why"),
    [
        ({"name": "payment.recieved"}, 422, "name", "its tasks wait for payment.received"),
        ({"name": "a b"}, 422, "name", "regex"),
        ({}, 422, "", "name"),
        ({"name": "payment.received", "data": {"a": "\u0000"}}, 422, "data.a", "U+0000"),
        ({"name": "payment.received", "key": ""}, 422, "key", "length"),
        ({"name": "payment.received", "kee": "x"}, 422, "", "kee"),
    ],
)
async def test_a_signal_that_cannot_be_taken_is_refused_with_its_place(api, run_id, body, status, path, why):
    answer = await api.post(f"/runs/{run_id}/signals", json=body)
    assert answer.status_code == status, answer.text
    (fault,) = answer.json()["errors"]
    assert fault["path"] == path
    assert why in fault["message"]
    assert (await api.read(f"/runs/{run_id}/signals"))["items"] == []


async def test_a_run_that_has_ended_or_is_not_there_takes_none(api, run_id, engine):
    body = {"name": "payment.received"}
    engine.fail(run_id, "send")
    ended = await api.post(f"/runs/{run_id}/signals", json=body)
    assert (ended.status_code, ended.json()["code"]) == (409, "HR-1005")
    for method in ("POST", "GET"):
        missing = await api.request(method, "/runs/01a2289f-ec84-73e0-907f-576654f809f9/signals", json=body)
        assert missing.status_code == 404
