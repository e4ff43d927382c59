"""Control of a run over HTTP, on a real Postgres: accepted once, recorded with who and why, and explained."""

import asyncio

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
    assert [item["run_id"] for item in (await api.read("/runs", status="paused"))["items"]] == [run_id]
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


# == run again, and skip ===============================================================================================
EFFECTS = """
name: effects
output: { c: "${{ tasks.c.output }}" }
tasks:
  a: { run: x }
  b: { run: x, needs: a, effect: reconcile, lookup: y }
  c: { run: x, needs: b }
  d: { run: x }
"""


async def _ended(api, engine) -> str:
    await api.publish(EFFECTS)
    run_id = await api.start("effects")
    engine.complete(run_id, "a", b'"a1"')
    engine.start_body(run_id, "b")
    for task in ("b", "c", "d"):
        engine.complete(run_id, task, b'"%s1"' % task.encode())
    assert (await api.read(f"/runs/{run_id}"))["output"] == {"c": "c1"}
    return run_id


async def _fine(api) -> None:
    checks = (await api.read("/doctor"))["checks"]
    assert [check for check in checks if not check["ok"] and check["name"] not in ("relay", "server")] == []


async def test_a_dry_run_says_what_runs_again_and_what_protects_its_effects(api, engine):
    run_id = await _ended(api, engine)
    before = await api.read(f"/runs/{run_id}")
    response = await api.post(f"/runs/{run_id}/rerun", json={"tasks": ["b"], "dry_run": True})
    assert response.status_code == 200
    found = response.json()
    assert (found["dry_run"], found["version"], found["row_version"]) == (True, 1, before["row_version"])
    assert found["reused"] == ["a", "d"]
    assert [(t["task"], t["then"], t["effect"], t["protected_by"], t["effect_key"]) for t in found["again"]] == [
        ("b", "begins", "repeats", "lookup", f"{run_id}/b"),
        ("c", "follows", "repeats", "effect_key", f"{run_id}/c"),
    ]
    assert engine.apply_requests() == []
    assert await api.read(f"/runs/{run_id}") == before


async def test_part_of_a_run_runs_again_and_the_rest_is_reused(api, engine):
    run_id = await _ended(api, engine)
    first = await api.read(f"/runs/{run_id}")
    body = {"tasks": ["a"], "input": {"n": 2}, "reason": "wrong price", "row_version": first["row_version"]}
    response = await api.post(f"/runs/{run_id}/rerun", json=body, headers=ANA)
    assert (response.status_code, response.json()["reused"]) == (202, ["d"])
    assert engine.apply_requests() == ["reran"]
    await _fine(api)
    run = await api.read(f"/runs/{run_id}")
    assert (run["status"], run["output"], run["finished_at"]) == ("running", None, None)
    assert (await api.read(f"/tasks/{run_id}.a"))["input"] == {"n": 2}
    engine.complete(run_id, "a", b'"a2"')
    await _fine(api)
    assert (await api.read(f"/tasks/{run_id}.b"))["status"] == "queued"  # its lookup
    engine.complete(run_id, "b", b'{"happened": true, "output": "b1"}')
    engine.complete(run_id, "c", b'"c2"')
    run = await api.read(f"/runs/{run_id}")
    assert (run["status"], run["output"], run["outputs"]["d"]) == ("completed", {"c": "c2"}, "d1")
    attempts = (await api.read(f"/tasks/{run_id}.c/attempts"))["items"]
    assert [(item["attempt"], item["output"]) for item in attempts] == [(1, "c1"), (2, "c2")]
    history = (await api.read(f"/runs/{run_id}/history"))["items"]
    (reran,) = [item for item in history if item["kind"] == "reran"]
    assert (reran["actor"], reran["task"]) == ("ana", "a")
    assert reran["detail"] == {"reason": "wrong price", "from": ["a"], "input": {"n": 2}}
    await _fine(api)


async def test_what_failed_is_rerun_and_its_letters_are_closed(api, engine):
    await api.publish("name: two\ntasks:\n  a: { run: x }\n  b: { run: x }\n  c: { run: x, needs: [a, b] }\n")
    run_id = await api.start("two")
    for task in ("a", "b"):
        engine.fail(run_id, task)
    assert (await api.read(f"/runs/{run_id}"))["status"] == "failed"
    answered = await api.post(f"/runs/{run_id}/rerun", json={"reason": "fixed"}, headers=ANA)
    assert [task["then"] for task in answered.json()["again"]] == ["begins", "begins", "follows"]
    assert engine.apply_requests() == ["reran"]
    letters = (await api.read("/dead-letters", status="replayed"))["items"]
    assert [(item["closed_by"], item["close_reason"], item["replay_outcome"]) for item in letters] == [
        ("ana", "fixed", "pending"), ("ana", "fixed", "pending"),
    ]  # fmt: skip
    await _fine(api)
    engine.fail(run_id, "a")
    (again,) = (await api.read("/dead-letters"))["items"]
    assert again["replay_of"] in [item["dead_letter_id"] for item in letters]
    await _fine(api)


async def test_a_rerun_that_cannot_be_is_refused(api, engine):
    run_id = await _ended(api, engine)
    path = f"/runs/{run_id}/rerun"
    assert (await api.post(path, json={})).status_code == 409  # nothing failed
    assert (await api.post(path, json={"tasks": ["nope"]})).status_code == 404
    assert (await api.post(path, json={"input": 1})).status_code == 422
    assert (await api.post(path, json={"tasks": ["a", "b"], "input": 1})).status_code == 422
    assert (await api.post(path, json={"tasks": ["a"], "row_version": 1})).status_code == 409
    assert (await api.post(f"/runs/{run_id[:-4]}0000/rerun", json={"tasks": ["a"]})).status_code == 404
    assert (await api.post(path, json={"tasks": ["d"]})).status_code == 202
    second = await api.post(path, json={"tasks": ["a"]})
    assert (second.status_code, "not applied yet" in second.json()["detail"]) == (409, True)
    assert engine.apply_requests() == ["reran"]
    running = await api.post(path, json={"tasks": ["a"]})
    assert (running.status_code, "only a run that has ended" in running.json()["detail"]) == (409, True)


async def test_two_reruns_that_race_are_one(api, engine):
    run_id = await _ended(api, engine)
    answers = await asyncio.gather(*(api.post(f"/runs/{run_id}/rerun", json={"tasks": ["d"]}) for _ in range(2)))
    assert sorted(each.status_code for each in answers) == [202, 409]
    assert engine.apply_requests() == ["reran"]


async def test_a_terminated_run_is_taken_up_again(api, engine):
    run_id = await _start(api)
    engine.start_body(run_id, "a")
    await api.post(f"/runs/{run_id}/terminate")
    assert engine.apply_requests() == ["terminated"]
    assert (await api.post(f"/runs/{run_id}/rerun", json={})).status_code == 202
    assert engine.apply_requests() == ["reran"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "running"
    await _fine(api)
    engine.complete(run_id, "a")
    engine.complete(run_id, "b")
    assert (await api.read(f"/runs/{run_id}"))["status"] == "completed"
    await _fine(api)


async def test_a_failed_task_is_skipped_with_an_output_and_its_run_goes_on(api, engine):
    run_id = await _start(api)
    engine.fail(run_id, "a")
    answered = await api.post(
        f"/tasks/{run_id}.a/skip", json={"output": {"by": "hand"}, "reason": "known"}, headers=ANA
    )
    assert answered.status_code == 202
    assert engine.apply_requests() == ["supplied"]
    assert (await api.read(f"/tasks/{run_id}.a"))["output"] == {"by": "hand"}
    assert (await api.read(f"/runs/{run_id}"))["status"] == "running"
    (letter,) = (await api.read("/dead-letters", status="discarded"))["items"]
    assert (letter["closed_by"], letter["close_reason"]) == ("ana", "known")
    await _fine(api)
    engine.complete(run_id, "b")
    (row,) = [r for r in (await api.read(f"/runs/{run_id}/history"))["items"] if r["kind"] == "supplied"]
    assert (row["task"], row["actor"], row["detail"]) == ("a", "ana", {"reason": "known", "output": {"by": "hand"}})
    refused = await api.post(f"/tasks/{run_id}.a/skip", json={})
    assert (refused.status_code, refused.json()["detail"]) == (409, "task a is completed")


async def test_a_task_that_runs_or_has_not_begun_is_skipped_too(api, engine):
    run_id = await _start(api)
    engine.start_body(run_id, "a")
    assert (await api.post(f"/tasks/{run_id}.b/skip", json={"output": 2})).status_code == 202
    assert engine.apply_requests() == ["supplied"]
    assert (await api.post(f"/tasks/{run_id}.a/skip", json={"output": 1})).status_code == 202
    assert engine.apply_requests() == ["supplied"]
    run = await api.read(f"/runs/{run_id}")
    assert (run["status"], run["outputs"]) == ("completed", {"b": 2})
    await _fine(api)


async def test_an_approval_is_not_skipped(api, engine):
    await api.publish("name: ask\ntasks:\n  ok: { approval: { title: ok? } }\n  b: { run: x, needs: ok }\n")
    run_id = await api.start("ask")
    refused = await api.post(f"/tasks/{run_id}.ok/skip", json={})
    assert (refused.status_code, "approval" in refused.json()["detail"]) == (409, True)
    assert engine.apply_requests() == []


# == one task ==========================================================================================================
async def test_a_pause_of_a_task_is_shown_explained_and_sound_and_the_rest_goes_on(api, engine):
    await api.publish("name: two\ntasks:\n  a: { run: x }\n  b: { run: x, needs: a }\n  c: { run: x, needs: a }\n")
    run_id = await api.start("two")
    engine.start_body(run_id, "a")
    body = {"reason": "to look"}
    for name in ("a", "b"):
        assert (await api.post(f"/tasks/{run_id}.{name}/pause", json=body, headers=ANA)).status_code == 202
    assert engine.apply_requests() == ["paused", "paused"]
    first, second = (await api.read(f"/runs/{run_id}/explain"))["causes"][:2]
    assert (first["code"], second["code"]) == ("TASK_PAUSED", "TASK_PAUSED")
    assert first["text"].endswith("by ana: to look; a still runs."), first["text"]
    assert second["text"].endswith("by ana: to look; nothing of it runs.")
    assert first["acts"][0]["api"] == f"POST /tasks/{run_id}.a/resume"
    tasks = (await api.read(f"/runs/{run_id}/tasks"))["items"]
    assert [(task["name"], task["is_paused"]) for task in tasks] == [("a", True), ("b", True), ("c", False)]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "running"
    engine.complete(run_id, "a")
    engine.complete(run_id, "c")
    (cause, *_) = (await api.read(f"/tasks/{run_id}.b/explain"))["causes"]
    assert (cause["code"], cause["tasks"]) == ("TASK_PAUSED", ["b"])
    assert cause["text"].endswith("nothing of it runs, and b begins when it is resumed.")
    checks = (await api.read("/doctor"))["checks"]
    assert [check for check in checks if not check["ok"] and check["name"] not in ("relay", "server")] == []
    assert (await api.post(f"/tasks/{run_id}.b/resume", json={"reason": "looked"}, headers=ANA)).status_code == 202
    engine.apply_requests()
    engine.complete(run_id, "b")
    run = await api.read(f"/runs/{run_id}")
    assert run["status"] == "completed"
    assert await _history(api, run_id, "paused") == [("ana", "to look")] * 2
    assert engine.load(run_id).paused == frozenset()


async def test_a_task_that_cannot_be_paused_or_resumed_is_refused(api, engine):
    await api.publish("name: some\ntasks:\n  a: { run: x }\n  pages: { run: x, map: { over: [1, 2] } }\n")
    run_id = await api.start("some")
    for path, status in (("nobody/pause", 404), ("pages.0/pause", 409), ("a/resume", 409)):
        assert (await api.post(f"/tasks/{run_id}.{path}")).status_code == status, path
    engine.complete(run_id, "a")
    refused = await api.post(f"/tasks/{run_id}.a/pause")
    assert (refused.status_code, refused.json()["detail"]) == (409, "task a is completed already")
    await api.post(f"/tasks/{run_id}.pages/pause")
    engine.apply_requests()
    assert (await api.post(f"/tasks/{run_id}.pages/pause")).status_code == 409
    await api.post(f"/runs/{run_id}/pause")
    engine.apply_requests()
    assert "its run is" in (await api.post(f"/tasks/{run_id}.a/resume")).json()["detail"]
    assert (await api.post(f"/runs/{run_id}/cancel")).status_code == 202
    engine.apply_requests()
    assert (await api.post(f"/tasks/{run_id}.pages/resume")).status_code == 409


# == another version ===================================================================================================
async def test_a_rerun_on_another_version_is_shown_with_its_verdict_and_is_one_act(api, engine):
    run_id = await _failed_at_b(api, engine)
    more = CHAIN.replace("b: { run: x,", "b: { run: y,") + "  tell: { run: x, needs: b }\n"
    await api.publish(more)
    path = f"/runs/{run_id}/rerun"
    shown = (await api.post(path, json={"version": 2, "dry_run": True})).json()
    assert (shown["version"], shown["to_version"], shown["obstacles"], shown["reused"]) == (1, 2, [], ["a"])
    assert [(each["task"], each["then"]) for each in shown["again"]] == [("b", "begins"), ("tell", "follows")]
    body = {"version": 2, "row_version": shown["row_version"], "reason": "fixed in 2"}
    assert (await api.post(path, json=body, headers=ANA)).status_code == 202
    assert engine.apply_requests() == ["reran"]
    run = await api.read(f"/runs/{run_id}")
    assert (run["version"], run["status"]) == (2, "running")
    assert engine.load(run_id).plan.tasks[1].run == "y"
    (line,) = [item for item in (await api.read(f"/runs/{run_id}/history"))["items"] if item["kind"] == "reran"]
    assert line["detail"]["version"] == {"from": 1, "to": 2}
    for name in ("b", "tell"):
        engine.complete(run_id, name)
    assert (await api.read(f"/runs/{run_id}"))["status"] == "completed"
    checks = (await api.read("/doctor"))["checks"]
    assert [check for check in checks if not check["ok"] and check["name"] not in ("relay", "server")] == []


async def test_a_rerun_on_a_version_that_does_not_fit_is_refused_with_why(api, engine):
    run_id = await _failed_at_b(api, engine)
    await api.publish("name: chain\ntasks:\n  first: { run: x }\n  b: { run: x, needs: first }\n")
    path = f"/runs/{run_id}/rerun"
    shown = (await api.post(path, json={"version": 2, "dry_run": True})).json()
    assert (shown["again"], [each["task"] for each in shown["obstacles"]]) == ([], ["a"])
    refused = await api.post(path, json={"version": 2})
    assert (refused.status_code, "version 2 has no such task" in refused.json()["detail"]) == (409, True)
    assert (await api.post(path, json={"version": 9})).status_code == 404
    assert (await api.post(path, json={"version": 1, "dry_run": True})).json()["to_version"] == 1
    assert (await api.post(path, json={})).status_code == 202
    engine.apply_requests()
    assert (await api.read(f"/runs/{run_id}"))["version"] == 1


async def _failed_at_b(api, engine) -> str:
    run_id = await _start(api)
    engine.complete(run_id, "a")
    engine.fail(run_id, "b")
    return run_id
