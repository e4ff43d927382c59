"""Moving a run in flight to another version over HTTP: first what stands in the way, then the move."""

from headrace.machine import Resumed

ONE = """
name: pay
tasks:
  check: { run: pay.check }
  agreed: { needs: check, approval: {} }
  charge: { run: pay.charge, needs: agreed }
"""
MORE = ONE + '  tell: { run: mail.send, needs: check, with: { text: "${{ tasks.check.output }}" } }\n'
OTHER = ONE.replace("check", "verify")


async def waiting(api, engine):
    """A run on version 1 that waits for an approval; version 2 has one more task, which reads an old output."""
    await api.publish(ONE)
    run = await api.start("pay")
    engine.complete(run, "check", b'"looks good"')
    await api.publish(MORE)
    return run


async def pause(api, engine, run):
    assert (await api.post(f"/runs/{run}/pause")).status_code == 202
    engine.apply_requests()


async def test_a_dry_run_says_what_stands_in_the_way_and_changes_nothing(api, engine):
    run = await waiting(api, engine)
    answer = await api.post(f"/runs/{run}/migrate", json={"dry_run": True})
    assert answer.status_code == 200
    told = answer.json()
    assert (told["from_version"], told["to_version"]) == (1, 2)
    assert [each["task"] for each in told["obstacles"]] == [None]
    assert "pause it" in told["obstacles"][0]["why"]
    await api.publish(OTHER)
    told = (await api.post(f"/runs/{run}/migrate", json={"dry_run": True})).json()
    assert [each["task"] for each in told["obstacles"]] == [None, "check"]
    assert engine.apply_requests() == []
    assert (await api.read(f"/runs/{run}"))["version"] == 1


async def test_a_paused_run_is_moved_and_goes_on_by_the_new_version(api, engine):
    run = await waiting(api, engine)
    await pause(api, engine, run)
    answer = await api.post(f"/runs/{run}/migrate", json={"reason": "tell them, too"})
    assert (answer.status_code, answer.json()["obstacles"]) == (202, [])
    assert engine.apply_requests() == ["migrated"]
    assert (await api.read(f"/runs/{run}"))["version"] == 2
    history = (await api.read(f"/runs/{run}/history"))["items"]
    (moved,) = [item for item in history if item["kind"] == "migrated"]
    assert moved["detail"] == {"from": 1, "to": 2, "reason": "tell them, too"}
    assert (await api.post(f"/runs/{run}/resume")).status_code == 202
    engine.apply_requests()
    tasks = {task["name"]: task for task in (await api.read(f"/runs/{run}/tasks"))["items"]}
    assert {name: task["status"] for name, task in tasks.items()} == {
        "check": "completed", "agreed": "waiting", "charge": "pending", "tell": "queued",
    }  # fmt: skip
    assert engine.load(run).plan.version == 2
    (approval,) = (await api.read("/approvals"))["items"]
    assert (await api.post(f"/approvals/{approval['approval_id']}/approve")).status_code == 200
    engine.apply_requests()
    for task in ("tell", "charge"):
        engine.complete(run, task)
    assert (await api.read(f"/runs/{run}"))["status"] == "completed"
    assert [item["version"] for item in (await api.read("/workflows/pay/versions"))["items"]] == [2]


async def test_a_run_that_cannot_be_moved_is_refused_with_why(api, engine):
    run = await waiting(api, engine)
    running = await api.post(f"/runs/{run}/migrate")
    assert running.status_code == 409
    assert "pause it" in running.json()["detail"]
    await pause(api, engine, run)
    await api.publish(OTHER)
    answers = [await api.post(f"/runs/{run}/migrate", json=given) for given in ({}, {"version": 1}, {"version": 9})]
    assert [answer.status_code for answer in answers] == [409, 409, 404]
    assert "task check: it has begun, and version 3 has no such task" in answers[0].json()["detail"]
    assert "on version 1 already" in answers[1].json()["detail"]
    assert (await api.post(f"/runs/{run}/migrate", json={"version": 2})).status_code == 202
    assert (await api.post(f"/runs/{run}/migrate", json={"version": 2})).status_code == 409, "it was asked for already"
    engine.apply_requests()
    assert (await api.read(f"/runs/{run}"))["version"] == 2


async def test_a_move_that_meets_an_obstacle_when_its_turn_comes_leaves_a_line_that_says_why(api, engine):
    run = await waiting(api, engine)
    await pause(api, engine, run)
    asked = await api.post(f"/runs/{run}/migrate", json={"reason": "tell them, too"}, headers={"Headrace-Actor": "ana"})
    assert asked.status_code == 202
    assert engine.apply(run, Resumed())
    assert engine.apply_requests() == ["migrated"]
    (line,) = [
        each for each in (await api.read(f"/runs/{run}/history"))["items"] if each["kind"] == "migration_refused"
    ]
    assert (line["actor"], line["detail"]["from"], line["detail"]["to"]) == ("ana", 1, 2)
    assert line["detail"]["why"].endswith("the run is waiting: pause it, and wait until nothing of it runs")
    read = await api.read(f"/runs/{run}")
    assert (read["version"], read["status"]) == (1, "waiting")
    checks = (await api.read("/doctor"))["checks"]
    assert [check for check in checks if not check["ok"] and check["name"] not in ("relay", "server")] == []


async def test_a_run_that_has_ended_is_not_moved(api, engine):
    run = await waiting(api, engine)
    assert (await api.post(f"/runs/{run}/cancel")).status_code == 202
    engine.apply_requests()
    answer = await api.post(f"/runs/{run}/migrate", json={"dry_run": True})
    assert answer.status_code == 409
    assert "only a run in flight" in answer.json()["detail"]
