"""What the API says and allows of runs that undo what they did."""

SAGA = """
name: saga
tasks:
  a: { run: t.a, with: { n: 1 }, compensate: { run: t.undo, queue: slow, timeout: 30s } }
  b: { run: t.b, needs: a, compensate: { run: t.undo, with: { id: "${{ task.output.id }}" } } }
  c: { run: t.c, needs: b }
"""
ANA = {"Headrace-Actor": "ana"}


async def _failed(api, engine) -> str:
    await api.publish(SAGA)
    run_id = await api.start("saga")
    engine.complete(run_id, "a", b'{"id":7}')
    engine.complete(run_id, "b", b'{"id":8}')
    engine.fail(run_id, "c")
    return run_id


async def _codes(api, path: str) -> list[str]:
    return [cause["code"] for cause in (await api.read(f"{path}/explain"))["causes"]]


async def test_a_run_tells_how_far_it_is_undone(api, engine):
    run_id = await _failed(api, engine)
    assert (await api.read(f"/runs/{run_id}"))["status"] == "compensating"
    tasks = (await api.read(f"/runs/{run_id}/tasks"))["items"]
    assert [(task["name"], task["status"], task["compensation"]) for task in tasks] == [
        ("a", "completed", "pending"), ("b", "completed", "queued"), ("c", "failed", None),
    ]  # fmt: skip
    undo = await api.read(f"/tasks/{run_id}.b.compensate")
    assert (undo["name"], undo["run"], undo["index"], undo["input"]) == ("b.compensate", "t.undo", 1, {"id": 8})
    assert (undo["status"], undo["attempts_max"], undo["needs"]) == ("queued", 3, [])
    assert (await api.get(f"/tasks/{run_id}.c.compensate")).status_code == 404
    engine.complete(run_id, "b.compensate")
    undo = await api.read(f"/tasks/{run_id}.a.compensate")
    assert (undo["queue"], undo["input"]) == ("slow", {"input": {"n": 1}, "output": {"id": 7}})
    engine.complete(run_id, "a.compensate")
    assert (await api.read(f"/runs/{run_id}"))["status"] == "compensated"
    attempts = (await api.read(f"/tasks/{run_id}.a.compensate/attempts"))["items"]
    assert [attempt["outcome"] for attempt in attempts] == ["completed"]
    history = (await api.read(f"/runs/{run_id}/history"))["items"]
    assert [item["task"] for item in history[-2:]] == ["b.compensate", "a.compensate"]
    runs = (await api.read("/runs", status="compensated"))["items"]
    assert [run["run_id"] for run in runs] == [run_id]


async def test_explain_tells_why_it_is_undone_and_what_it_waits_for(api, engine):
    run_id = await _failed(api, engine)
    causes = (await api.read(f"/runs/{run_id}/explain"))["causes"]
    assert causes[0]["code"] == "RUN_COMPENSATING"
    assert causes[0]["text"] == (
        "The run has failed: task c failed first; what it did is being undone, and 0 of 2 compensations have ended."
    )
    assert (await _codes(api, f"/tasks/{run_id}.a.compensate"))[0] == "COMPENSATION_LATER"
    engine.fail(run_id, "b.compensate")
    engine.complete(run_id, "a.compensate")
    codes = await _codes(api, f"/runs/{run_id}")
    assert codes[:3] == ["RUN_COMPENSATION_FAILED", "TASK_FAILED", "TASK_FAILED"]
    assert (await _codes(api, f"/tasks/{run_id}.b.compensate"))[0] == "TASK_FAILED"


async def test_a_failed_compensation_is_replayed_and_nothing_else_of_its_run(api, engine):
    run_id = await _failed(api, engine)
    engine.fail(run_id, "b.compensate")
    letters = (await api.read("/dead-letters", filter=f"run:{run_id}"))["items"]
    by_task = {letter["task"]: letter["dead_letter_id"] for letter in letters}
    assert by_task.keys() == {"c", "b.compensate"}
    refused = await api.post(f"/dead-letters/{by_task['c']}/replay")
    assert (refused.status_code, "undoes what it did" in refused.json()["detail"]) == (409, True)
    engine.complete(run_id, "a.compensate")
    assert (await api.read(f"/runs/{run_id}"))["status"] == "compensation_failed"
    for path in (f"/runs/{run_id}/rerun", f"/tasks/{run_id}.c/skip", f"/runs/{run_id}/cancel"):
        assert (await api.post(path)).status_code == 409, path
    response = await api.post(f"/dead-letters/{by_task['b.compensate']}/replay")
    assert response.status_code in (200, 202), response.text
    assert engine.apply_requests() == ["replayed"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "compensating"
    engine.complete(run_id, "b.compensate")
    assert (await api.read(f"/runs/{run_id}"))["status"] == "compensated"
    checks = (await api.read("/doctor"))["checks"]
    assert [check for check in checks if not check["ok"] and check["name"] not in ("relay", "server")] == []


async def test_a_cancel_undoes_what_the_run_did_and_says_by_whom(api, engine):
    await api.publish(SAGA)
    run_id = await api.start("saga")
    engine.complete(run_id, "a", b'{"id":7}')
    assert (await api.post(f"/runs/{run_id}/cancel", json={"reason": "no time"}, headers=ANA)).status_code == 202
    assert engine.apply_requests() == ["cancelled"]
    assert (await api.post(f"/runs/{run_id}/cancel")).status_code == 409
    causes = (await api.read(f"/runs/{run_id}/explain"))["causes"]
    assert causes[0]["text"].startswith("The run was cancelled by ana: no time; what it did is being undone")
    assert (await api.post(f"/runs/{run_id}/terminate")).status_code == 202
    assert engine.apply_requests() == ["terminated"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "terminated"
    assert (await _codes(api, f"/runs/{run_id}"))[0] == "RUN_TERMINATED"
