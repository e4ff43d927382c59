"""Limits of runs over HTTP: what a start is answered with, and why a run waits."""

import pytest

SYNC = """
name: sync
limit: {{ key: "${{{{ input.customer }}}}", over: {over} }}
tasks:
  fetch: {{ run: crm.fetch }}
"""
ADA = {"input": {"customer": "ada"}}


async def test_a_run_in_line_says_its_place_and_who_goes_and_begins_behind_that(api, engine):
    await api.publish(SYNC.format(over="queue"))
    first = await api.start("sync", {"customer": "ada"})
    waiting = [(await api.post("/workflows/sync/runs", json=ADA)).json() for _ in range(2)]
    assert [run["status"] for run in waiting] == ["waiting"] * 2
    second, third = (run["run_id"] for run in waiting)
    causes = (await api.read(f"/runs/{third}/explain"))["causes"]
    assert [cause["code"] for cause in causes[:2]] == ["PERMIT_AWAITED", "WITHHELD"]
    assert causes[0]["text"] == (
        f"The run waits for a permit of workflow sync and key 'ada', as number 2 of 2: 1 of 1 are held, by {first}."
    )
    assert (causes[0]["points_to"]["id"], causes[0]["tasks"]) == (first, ["fetch"])
    await api.post(f"/runs/{third}/priority", json={"priority": 3})
    engine.apply_requests()
    assert "as the next" in (await api.read(f"/runs/{third}/explain"))["causes"][0]["text"]
    engine.complete(first, "fetch")
    await engine.permit()
    assert [(await api.read(f"/runs/{one}"))["status"] for one in (third, second)] == ["running", "waiting"]
    kinds = [item["kind"] for item in (await api.read(f"/runs/{third}/history"))["items"]]
    assert kinds == ["started", "prioritised", "permitted"]


async def test_a_start_too_many_is_a_conflict_with_the_run_that_goes(api, engine):
    await api.publish(SYNC.format(over="reject"))
    first = await api.start("sync", {"customer": "ada"})
    keyed = {"Idempotency-Key": "k"}
    refused = await api.post("/workflows/sync/runs", json=ADA, headers=keyed)
    assert (refused.status_code, refused.json()["run_id"]) == (409, first)
    assert "as many runs of workflow sync of key 'ada' go as go at once" in refused.json()["detail"]
    assert (await api.post("/workflows/sync/runs", json={"input": {"customer": "grace"}})).status_code == 201
    engine.complete(first, "fetch")
    begun = await api.post("/workflows/sync/runs", json=ADA, headers=keyed)
    assert (begun.status_code, begun.json()["status"]) == (201, "running")


async def test_a_start_too_many_is_answered_with_the_run_that_goes(api, engine):
    await api.publish(SYNC.format(over="drop"))
    first = await api.start("sync", {"customer": "ada"})
    given = {**ADA, "key": "two"}
    answers = [await api.post("/workflows/sync/runs", json=given) for _ in range(2)]
    assert [(answer.status_code, answer.json()["run_id"]) for answer in answers] == [(200, first)] * 2
    engine.complete(first, "fetch")
    again = await api.post("/workflows/sync/runs", json=given)
    assert (again.status_code, again.json()["run_id"]) == (200, first), "one key has one answer"


@pytest.mark.parametrize("customer", ["", 1.5, None, ["ada"]])
async def test_an_input_that_gives_no_key_is_refused(api, customer):
    await api.publish(SYNC.format(over="queue"))
    refused = await api.post("/workflows/sync/runs", json={"input": {"customer": customer}})
    assert (refused.status_code, refused.json()["code"]) == (422, "HR-1009")
