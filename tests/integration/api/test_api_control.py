"""Control of a run over HTTP, on a real Postgres: accepted once, recorded with who and why, and explained."""

CHAIN = "name: chain\ntasks:\n  a: { run: x }\n  b: { run: x, needs: a }\n"
ANA = {"Headrace-Actor": "ana"}


async def _start(api) -> str:
    await api.publish(CHAIN)
    return str(await api.start("chain"))


async def _history(api, run_id: str, kind: str) -> list:
    items = (await api.read(f"/runs/{run_id}/history"))["items"]
    return [(item["actor"], item["detail"]["reason"]) for item in items if item["kind"] == kind]


async def test_a_pause_lets_what_runs_end_and_withholds_what_is_next(api, engine):
    run_id = await _start(api)
    response = await api.post(f"/runs/{run_id}/pause", json={"reason": "to look"}, headers=ANA)
    assert (response.status_code, response.json()) == (202, {"run_id": run_id, "accepted": True})
    assert engine.apply_requests() == ["paused"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "pausing"
    engine.complete(run_id, "a")
    run = await api.read(f"/runs/{run_id}")
    assert (run["status"], run["counts"]["pending"]) == ("paused", 1)
    assert [item["run_id"] for item in (await api.read("/runs?status=paused"))["items"]] == [run_id]
    first, second = (await api.read(f"/runs/{run_id}/explain"))["causes"][:2]
    assert (first["code"], first["tasks"], second["code"]) == ("PAUSED", ["b"], "WITHHELD")
    assert first["text"].endswith("by ana: to look; nothing of it runs, and b begins when it goes on.")
    checks = (await api.read("/doctor"))["checks"]
    assert [check for check in checks if not check["ok"] and check["name"] not in ("relay", "server")] == []

    assert (await api.post(f"/runs/{run_id}/resume", json={"reason": "looked"}, headers=ANA)).status_code == 202
    assert engine.apply_requests() == ["resumed"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "running"
    engine.complete(run_id, "b")
    assert (await api.read(f"/runs/{run_id}"))["status"] == "completed"
    assert await _history(api, run_id, "paused") == [("ana", "to look")]
    assert await _history(api, run_id, "resumed") == [("ana", "looked")]


async def test_what_cannot_be_done_now_is_refused(api, engine):
    run_id = await _start(api)
    assert (await api.post(f"/runs/{run_id}/resume")).status_code == 409
    assert (await api.post(f"/runs/{run_id}/pause")).status_code == 202
    assert engine.apply_requests() == ["paused"]
    assert (await api.post(f"/runs/{run_id}/pause")).status_code == 409
    assert (await api.post(f"/runs/{run_id}/terminate")).status_code == 202
    assert engine.apply_requests() == ["terminated"]
    for verb in ("pause", "resume", "terminate", "cancel"):
        refused = await api.post(f"/runs/{run_id}/{verb}")
        assert (refused.status_code, refused.json()["code"]) == (409, "HR-1005"), verb
        assert (await api.post(f"/runs/{run_id[:-4]}0000/{verb}")).status_code == 404
    assert engine.apply_requests() == []


async def test_the_same_key_is_one_act(api, engine):
    run_id = await _start(api)
    answers = [await api.post(f"/runs/{run_id}/pause", json={}, headers={"Idempotency-Key": "k"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 202]
    assert engine.apply_requests() == ["paused"]


async def test_two_pauses_that_race_are_one(api, engine):
    run_id = await _start(api)
    for _ in range(2):
        assert (await api.post(f"/runs/{run_id}/pause")).status_code == 202
    assert engine.apply_requests() == ["paused", "paused"]
    assert len(await _history(api, run_id, "paused")) == 1


async def test_a_termination_ends_the_run_and_says_who_asked_for_it(api, engine):
    run_id = await _start(api)
    engine.start_body(run_id, "a")
    response = await api.post(f"/runs/{run_id}/terminate", json={"reason": "it harms"}, headers=ANA)
    assert response.status_code == 202
    assert engine.apply_requests() == ["terminated"]
    run = await api.read(f"/runs/{run_id}")
    assert (run["status"], run["counts"]["cancelled"]) == ("terminated", 2)
    assert run["finished_at"]
    assert await _history(api, run_id, "terminated") == [("ana", "it harms")]
    (cause,) = (await api.read(f"/runs/{run_id}/explain"))["causes"]
    assert (cause["code"], cause["text"]) == ("RUN_TERMINATED", "The run was terminated by ana: it harms.")
    (cause,) = (await api.read(f"/tasks/{run_id}.b/explain"))["causes"]
    assert cause["text"] == "Task b was terminated with its run by ana: it harms."
    checks = (await api.read("/doctor"))["checks"]
    assert [check for check in checks if not check["ok"] and check["name"] not in ("relay", "server")] == []


async def test_a_completion_before_the_termination_stands(api, engine):
    run_id = await _start(api)
    engine.complete(run_id, "a")
    assert (await api.post(f"/runs/{run_id}/terminate")).status_code == 202
    engine.complete(run_id, "b")
    assert engine.apply_requests() == ["terminated"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "completed"


async def test_an_isolated_run_can_be_terminated(api, engine):
    run_id = await _start(api)
    engine.isolate(run_id)
    assert (await api.post(f"/runs/{run_id}/terminate")).status_code == 202
    assert engine.apply_requests() == ["terminated"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "terminated"
