"""Pools over HTTP: limits that are set and changed, who holds a slot and who is next, the priority of a run."""

import pytest

LOADS = """
name: loads
tasks:
  load: { run: db.load, pool: db }
"""


@pytest.fixture
async def run_ids(api):
    await api.publish(LOADS)
    return [await api.start("loads", {"n": number}) for number in range(3)]


async def test_a_pool_is_made_changed_listed_and_removed(api):
    made = await api.put("/pools/db", json={"limit": 2, "rate": "10/s"}, headers={"Headrace-Actor": "ada"})
    pool = made.json()
    assert (made.status_code, pool["limit"], pool["rate"], pool["updated_by"]) == (200, 2, "10/s", "ada")
    assert (pool["is_set"], pool["held"], pool["waiting"]) == (True, 0, 0)
    changed = (await api.put("/pools/db", json={"limit": 0})).json()
    assert (changed["limit"], changed["rate"]) == (0, None)
    await api.put("/pools/mail", json={"rate": "5/1m30s"})
    pages = await api.pages("/pools", limit=1)
    assert [[item["name"] for item in page] for page in pages] == [["db"], ["mail"]]
    assert (await api.delete("/pools/mail")).status_code == 204
    assert (await api.get("/pools/mail")).status_code == (await api.delete("/pools/mail")).status_code == 404


async def test_a_pool_that_nobody_has_set_is_listed_and_explained(api, run_ids):
    (pool,) = (await api.read("/pools"))["items"]
    assert (pool["name"], pool["is_set"], pool["limit"], pool["waiting"]) == ("db", False, None, 3)
    cause = (await api.read(f"/runs/{run_ids[0]}/explain"))["causes"][0]
    assert (cause["code"], cause["points_to"]["link"]) == ("POOL_NOT_SET", "/pools/db")
    assert cause["acts"][0]["api"] == "PUT /pools/db"


async def test_the_queue_goes_by_priority_and_explain_says_the_place_and_the_holders(api, run_ids, engine):
    await api.put("/pools/db", json={"limit": 1})
    urgent = await api.post("/workflows/loads/runs", json={"priority": 7})
    assert urgent.status_code == 201
    sent = await api.post(f"/runs/{run_ids[2]}/priority", json={"priority": 3}, headers={"Headrace-Actor": "ada"})
    assert (sent.status_code, sent.json()) == (202, {"run_id": run_ids[2], "accepted": True})
    assert engine.apply_requests() == ["prioritised"]
    waiters = (await api.read("/pools/db"))["waiters"]
    order = [urgent.json()["run_id"], run_ids[2], run_ids[0], run_ids[1]]
    assert [(item["run_id"], item["task"], item["priority"]) for item in waiters] == list(
        zip(order, ["load"] * 4, [7, 3, 0, 0], strict=True)
    )
    await engine.admit()
    pool = await api.read("/pools/db")
    assert ([item["run_id"] for item in pool["holders"]], pool["held"], pool["waiting"]) == ([order[0]], 1, 3)
    cause = (await api.read(f"/tasks/{run_ids[1]}.load/explain"))["causes"][0]
    assert cause["code"] == "SLOT_AWAITED"
    assert (
        cause["text"]
        == f"Task load waits for a slot of pool db, as number 3 of 3: 1 of 1 are held, by {order[0]}.load."
    )
    assert (await api.delete("/pools/db")).status_code == 409
    history = (await api.read(f"/runs/{run_ids[2]}/history"))["items"]
    assert [(item["kind"], item["detail"]) for item in history[1:]] == [("prioritised", {"priority": 3, "reason": ""})]


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({}, "limit"),
        ({"limit": -1}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"rate": "fast"}, "rate"),
        ({"rate": "0/s"}, "rate"),
        ({"limit": 1, "slots": 2}, ""),
    ],
)
async def test_what_limits_nothing_or_is_no_limit_is_refused(api, content, path):
    refused = await api.put("/pools/db", json=content)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["path"] == path


async def test_a_priority_is_refused_out_of_range_and_for_a_run_that_has_ended(api, run_ids, engine):
    for priority in (101, -101, "high"):
        answer = await api.post(f"/runs/{run_ids[0]}/priority", json={"priority": priority})
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "priority")
    await api.post(f"/runs/{run_ids[0]}/cancel")
    engine.apply_requests()
    assert (await api.post(f"/runs/{run_ids[0]}/priority", json={"priority": 1})).status_code == 409
