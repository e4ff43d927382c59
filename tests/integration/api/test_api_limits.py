"""What the API shows of deadlines and rounds; and subscriptions whose records say signals."""

import pytest

LIMITED = """
name: limited
deadline: 1d
tasks:
  poll:
    run: t.poll
    deadline: 2h
    repeat: { until: output.done, max: 3 }
  use: { run: t.use, needs: poll }
"""
SIGNAL = {"name": "paid", "key": "${{ input.data.order }}", "keep": "7d"}
PAYMENTS = {
    "name": "payments",
    "topic": "bank.payments",
    "filter": "input.data.sum > 0",
    "input": {"sum": "${{ input.data.sum }}"},
    "signal": SIGNAL,
}


async def test_a_task_has_its_deadline_and_its_rounds_and_an_attempt_its_round(api, engine):
    await api.publish(LIMITED)
    run_id = await api.start("limited")
    engine.complete(run_id, "poll", b'{"done":false}')
    task = await api.read(f"/tasks/{run_id}.poll")
    assert (task["status"], task["token"], task["rounds"]) == ("queued", 2, 1)
    assert task["deadline_at"] > task["changed_at"]
    explained = await api.read(f"/tasks/{run_id}.poll/explain")
    assert "DEADLINE" in [cause["code"] for cause in explained["causes"]]
    engine.complete(run_id, "poll", b'{"done":true}')
    task, other = (await api.read(f"/runs/{run_id}/tasks"))["items"]
    assert (task["status"], task["deadline_at"], task["rounds"], task["output"]) == (
        "completed",
        None,
        2,
        {"done": True},
    )
    assert (other["deadline_at"], other["rounds"]) == (None, 0)
    attempts = (await api.read(f"/tasks/{run_id}.poll/attempts"))["items"]
    assert [(each["attempt"], each["round"], each["output"]) for each in attempts] == [
        (1, 0, {"done": False}),
        (2, 1, {"done": True}),
    ]


async def test_a_run_tells_its_deadline_while_it_is_open_and_its_priority(api, engine):
    await api.publish(LIMITED)
    run_id = await api.start("limited", priority=7)
    run = await api.read(f"/runs/{run_id}")
    assert (run["deadline_at"] > run["created_at"], run["priority"]) == (True, 7)
    (listed,) = (await api.read("/runs"))["items"]
    assert (listed["deadline_at"], listed["priority"]) == (run["deadline_at"], 7)
    await api.post(f"/runs/{run_id}/priority", json={"priority": -3})
    await api.post(f"/runs/{run_id}/cancel", json={})
    engine.apply_requests()
    run = await api.read(f"/runs/{run_id}")
    assert (run["status"], run["deadline_at"], run["priority"]) == ("cancelled", None, -3)


async def test_a_subscription_says_a_signal_and_is_shown_as_it_was_made(api, engine):
    made = await api.post("/subscriptions", json=PAYMENTS)
    assert made.status_code == 201, made.text
    assert (made.json()["workflow"], made.json()["signal"]) == (None, {**SIGNAL, "run": None})
    again = await api.post("/subscriptions", json=PAYMENTS)
    assert (again.status_code, again.json()) == (200, made.json())
    other = await api.post("/subscriptions", json={**PAYMENTS, "signal": {"name": "paid", "key": "o-1"}})
    assert other.status_code == 409
    (listed,) = (await api.read("/subscriptions"))["items"]
    assert listed == made.json()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"workflow": "limited"}, "signal"),
        ({"signal": None}, "signal"),
        ({"signal": {"name": "paid"}}, "signal"),
        ({"signal": {"name": "paid", "key": "${{ tasks.a.output }}"}}, "signal.key"),
        ({"signal": {"name": "paid", "run": "${{ input."}}, "signal.run"),
        ({"signal": {"name": "paid", "key": "k", "keep": "31d"}}, "signal.keep"),
    ],
)
async def test_a_subscription_that_cannot_work_is_refused_with_its_path(api, engine, change, path):
    answer = await api.post("/subscriptions", json={**PAYMENTS, **change})
    assert answer.status_code == 422, answer.text
    assert [fault["path"] for fault in answer.json()["errors"]] == [path]


async def test_a_record_that_said_a_signal_names_it(api, engine):
    await api.post("/subscriptions", json=PAYMENTS)
    engine.connection.execute("INSERT INTO partition_owner VALUES ('bank.payments', 0, 1, 9, 'log', 'me', now())")
    engine.connection.execute(
        """INSERT INTO trigger_event (subscription_id, topic, partition, "offset", fate, signal_id)
           SELECT subscription_id, topic, 0, 0, 'signalled', '01890a5d-ac96-774b-bcce-b302099a8057' FROM subscription"""
    )
    (record,) = (await api.read("/subscriptions/payments/records"))["items"]
    assert (record["fate"], record["run_id"]) == ("signalled", None)
    assert record["signal_id"] == "01890a5d-ac96-774b-bcce-b302099a8057"
