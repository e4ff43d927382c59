"""What people decide, is decided once."""

import asyncio

import pytest
from uuid_utils import uuid7


@pytest.fixture
async def run_id(api, definitions, engine):
    """A run that waits for its approval."""
    await api.publish(definitions["release"])
    run_id = await api.start("release")
    engine.complete(run_id, "build")
    return run_id


@pytest.fixture
async def buried(api, definitions, engine):
    """A failed run, and its dead letter."""
    await api.publish(definitions["orders"])
    run_id = await api.start("orders", {"id": 1})
    engine.fail(run_id, "validate")
    letters = (await api.read("/dead-letters"))["items"]
    return run_id, letters[0]["dead_letter_id"]


# == approvals =========================================================================================================
async def test_an_approval_waits_with_what_people_need_to_decide(api, run_id):
    (approval,) = (await api.read("/approvals"))["items"]
    assert (approval["title"], approval["approvers"], approval["status"]) == ("Ship it?", ["role:lead"], "waiting")
    assert (approval["workflow"], approval["task"], approval["task_id"]) == ("release", "ask", f"{run_id}.ask")
    assert approval["expires_at"] > approval["asked_at"]
    detail = await api.read(f"/approvals/{approval['approval_id']}")
    assert detail == {**approval, "record": [], "timers": [], "history": []}
    assert (await api.read(f"/tasks/{run_id}.ask"))["approval_id"] == approval["approval_id"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "waiting"
    assert (await api.read("/runs", status="waiting"))["items"][0]["run_id"] == run_id


async def test_an_approved_task_goes_on(api, run_id, engine):
    approval_id = (await api.read("/approvals"))["items"][0]["approval_id"]
    headers = {"Headrace-Actor": "ana"}
    response = await api.post(f"/approvals/{approval_id}/approve", json={"comment": "fine"}, headers=headers)
    decided = response.json()
    assert response.status_code == 200
    assert (decided["status"], decided["decided_by"], decided["comment"]) == ("approved", "ana", "fine")
    assert engine.apply_requests() == ["decided"]
    assert (await api.read(f"/tasks/{run_id}.ship"))["status"] == "queued"
    assert (await api.read("/approvals"))["items"] == []
    assert (await api.read("/approvals", status="approved"))["items"] == [decided]
    assert (await api.read("/approvals", status="all"))["items"] == [decided]
    detail = (await api.read(f"/runs/{run_id}/history"))["items"][-1]
    assert (detail["kind"], detail["task"], detail["actor"]) == ("decided", "ask", "ana")


async def test_a_rejected_task_fails_its_run(api, run_id, engine):
    response = await api.post(f"/tasks/{run_id}.ask/approval", json={"decision": "reject", "comment": "no"})
    assert (response.status_code, response.json()["status"]) == (200, "rejected")
    engine.apply_requests()
    assert (await api.read(f"/runs/{run_id}"))["status"] == "failed"


async def test_of_racing_decisions_one_wins_and_the_others_hear_409(api, run_id, engine):
    approval_id = (await api.read("/approvals"))["items"][0]["approval_id"]
    paths = [f"/approvals/{approval_id}/{what}" for what in ("approve", "reject") * 10]
    answers = await asyncio.gather(*(api.post(path) for path in paths))
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 19
    assert engine.apply_requests() == ["decided"]


async def test_b78_a_decision_before_the_question_is_refused(api, definitions):
    await api.publish(definitions["release"])
    run_id = await api.start("release")
    for task in ("ask", "build"):
        response = await api.post(f"/tasks/{run_id}.{task}/approval", json={"decision": "approve"})
        assert (response.status_code, response.json()["code"]) == (409, "HR-1005")
    assert (await api.post(f"/tasks/{run_id}.nope/approval", json={"decision": "approve"})).status_code == 404


async def test_a_decision_after_the_expiry_is_refused_also_before_the_sweep_saw_it(api, run_id, engine):
    engine.connection.execute("UPDATE approval SET expires_at = now() - interval '1 second'")
    approval_id = (await api.read("/approvals"))["items"][0]["approval_id"]
    response = await api.post(f"/approvals/{approval_id}/approve")
    assert (response.status_code, "expired" in response.json()["detail"]) == (409, True)
    assert engine.apply_requests() == []


async def test_the_question_of_a_cancelled_run_can_not_be_answered(api, run_id, engine):
    await api.post(f"/runs/{run_id}/cancel")
    engine.apply_requests()
    response = await api.post(f"/tasks/{run_id}.ask/approval", json={"decision": "approve"})
    assert response.status_code == 409


@pytest.mark.parametrize(
    "body", [{}, {"decision": "maybe"}, {"decision": "approve", "comment": "\x00"}, {"decision": 1}, []]
)
async def test_wrong_decisions_are_refused(api, run_id, engine, body):
    response = await api.post(f"/tasks/{run_id}.ask/approval", json=body)
    assert response.status_code == 422
    assert engine.apply_requests() == []


async def test_approvals_are_paged_newest_first(api, definitions, engine):
    await api.publish(definitions["release"])
    runs = [await api.start("release", i) for i in range(5)]
    for run_id in runs:
        engine.complete(run_id, "build")
    for status in ("waiting", "all"):
        pages = await api.pages("/approvals", limit=2, status=status)
        assert [approval["run_id"] for page in pages for approval in page] == list(reversed(runs))


# == dead letters ======================================================================================================
async def test_a_failed_task_is_parked_with_its_error(api, buried):
    run_id, dead_letter_id = buried
    letter = await api.read(f"/dead-letters/{dead_letter_id}")
    assert (letter["kind"], letter["status"], letter["reason"]) == ("task", "parked", "ERROR")
    assert (letter["task"], letter["task_id"], letter["workflow"]) == ("validate", f"{run_id}.validate", "orders")
    assert letter["error"]["message"] == "it broke"
    assert (await api.read("/dead-letters", filter="kind:record"))["items"] == []


async def test_a_replay_hands_the_task_out_again_with_the_new_input_byte_for_byte(api, buried, engine):
    run_id, dead_letter_id = buried
    content = b'{"input": {"id":  2.50}}'
    response = await api.post(
        f"/dead-letters/{dead_letter_id}/replay", content=content, headers={"content-type": "application/json"}
    )
    assert (response.status_code, response.json()["status"]) == (202, "replayed")
    assert engine.apply_requests() == ["replayed"]
    task = await api.get(f"/tasks/{run_id}.validate")
    assert (task.json()["status"], task.json()["token"], task.json()["attempts_max"]) == ("queued", 2, 4)
    assert b'"input":{"id":  2.50}' in task.content
    assert (await api.read(f"/runs/{run_id}"))["status"] == "running"
    again = await api.post(f"/dead-letters/{dead_letter_id}/replay")
    assert again.status_code == 409
    assert (await api.read("/dead-letters", status="replayed"))["items"][0]["closed_by"] == "local"


async def test_of_racing_replays_one_wins(api, buried, engine):
    _, dead_letter_id = buried
    answers = await asyncio.gather(*(api.post(f"/dead-letters/{dead_letter_id}/replay") for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 19
    assert engine.apply_requests() == ["replayed"]


async def test_a_replay_that_the_run_would_ignore_is_refused_and_the_letter_stays_parked(api, buried, engine):
    run_id, dead_letter_id = buried
    engine.connection.execute("UPDATE task SET token = token + 1 WHERE run_id = %s", (run_id,))
    response = await api.post(f"/dead-letters/{dead_letter_id}/replay")
    assert response.status_code == 409
    assert (await api.read(f"/dead-letters/{dead_letter_id}"))["status"] == "parked"
    assert engine.apply_requests() == []


async def test_a_discarded_letter_is_closed_with_its_reason(api, buried):
    _, dead_letter_id = buried
    path = f"/dead-letters/{dead_letter_id}"
    assert (await api.post(f"{path}/discard", json={})).status_code == 422
    response = await api.post(f"{path}/discard", json={"reason": "a test order"}, headers={"Headrace-Actor": "ana"})
    assert (response.status_code, response.json()["status"]) == (200, "discarded")
    closed = await api.read(path)
    assert (closed["closed_by"], closed["close_reason"]) == ("ana", "a test order")
    assert (await api.post(f"{path}/replay")).status_code == 409


async def test_a_record_is_shown_with_its_bytes_and_published_again_to_its_topic(api, engine):
    letter = str(uuid7())
    engine.connection.execute(
        'INSERT INTO dead_letter (dead_letter_id, kind, topic, partition, "offset", key, value, reason) '
        "VALUES (%s, 'record', 'shop.orders', 3, 42, %s, %s, 'not JSON')",
        (letter, b"order-1", b"\xff\x00"),
    )
    (shown,) = (await api.read("/dead-letters", filter="kind:record"))["items"]
    assert (shown["topic"], shown["partition"], shown["offset"]) == ("shop.orders", 3, 42)
    assert (shown["key"], shown["key_encoding"]) == ("order-1", "text")
    assert (shown["value"], shown["value_encoding"]) == ("/wA=", "base64")
    before = _outbox_position(engine)
    response = await api.post(f"/dead-letters/{letter}/replay", json={"input": {"id": 1}})
    assert response.status_code == 202
    assert _outbox_position(engine) > before


def _outbox_position(engine):
    return engine.connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0]


async def test_what_is_not_there_is_not_found(api):
    for id_ in (str(uuid7()), "x"):
        assert (await api.get(f"/approvals/{id_}")).status_code == 404
        assert (await api.post(f"/approvals/{id_}/approve")).status_code == 404
        assert (await api.get(f"/dead-letters/{id_}")).status_code == 404
        assert (await api.post(f"/dead-letters/{id_}/replay")).status_code == 404
        assert (await api.post(f"/dead-letters/{id_}/discard", json={"reason": "x"})).status_code == 404


# == subscriptions =====================================================================================================
async def test_a_subscription_is_made_once_and_deleted(api, definitions):
    await api.publish(definitions["orders"])
    body = {
        "name": "shop",
        "topic": "shop.orders",
        "workflow": "orders",
        "filter": "input.data.total > 0",
        "input": "${{ input.data }}",
    }
    first, again = [await api.post("/subscriptions", json=body) for _ in range(2)]
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    other = await api.post("/subscriptions", json=body | {"topic": "x"})
    assert other.status_code == 409
    assert (await api.read("/subscriptions"))["items"] == [first.json()]
    assert (await api.delete("/subscriptions/shop")).status_code == 204
    assert (await api.delete("/subscriptions/shop")).status_code == 404
    assert (await api.read("/subscriptions"))["items"] == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"filter": "input.a >"}, "filter"),
        ({"filter": "tasks.a.output.x == 1"}, "filter"),
        ({"input": {"a": "${{ nope("}}, "input"),
        ({"topic": "headrace.events"}, "topic"),
        ({"topic": "a b"}, "topic"),
        ({"topic": ".."}, "topic"),
        ({"name": "a/b"}, "name"),
    ],
)
async def test_wrong_subscriptions_are_refused(api, definitions, change, path):
    await api.publish(definitions["orders"])
    body = {"name": "shop", "topic": "shop.orders", "workflow": "orders"} | change
    response = await api.post("/subscriptions", json=body)
    assert (response.status_code, response.json()["errors"][0]["path"]) == (422, path)


async def test_a_subscription_to_an_unknown_workflow_is_refused(api):
    response = await api.post("/subscriptions", json={"name": "s", "topic": "t", "workflow": "nope"})
    assert response.status_code == 404
