"""What the API says and allows of runs that were cancelled and clean up."""

LEASED = """
name: leased
tasks:
  acquire: { run: t.acquire }
  work: { run: t.work, needs: acquire }
  release: { run: t.release, needs: work, join: finally, with: { id: "${{ tasks.acquire.output.id }}" } }
"""
ANA = {"Headrace-Actor": "ana"}


async def _cancelled(api, engine) -> str:
    await api.publish(LEASED)
    run_id = await api.start("leased")
    engine.complete(run_id, "acquire", b'{"id":7}')
    assert (await api.post(f"/runs/{run_id}/cancel", json={"reason": "enough"}, headers=ANA)).status_code == 202
    assert engine.apply_requests() == ["cancelled"]
    return run_id


async def _codes(api, path: str) -> list[str]:
    return [cause["code"] for cause in (await api.read(f"{path}/explain"))["causes"]]


async def test_a_run_that_cleans_up_says_so_and_is_cancelled_once(api, engine):
    run_id = await _cancelled(api, engine)
    assert (await api.read(f"/runs/{run_id}"))["status"] == "cancelling"
    assert [run["run_id"] for run in (await api.read("/runs", status="cancelling"))["items"]] == [run_id]
    release = await api.read(f"/tasks/{run_id}.release")
    assert (release["status"], release["input"]) == ("queued", {"id": 7})
    refused = await api.post(f"/runs/{run_id}/cancel")
    assert (refused.status_code, "cleans up" in refused.json()["detail"]) == (409, True)
    assert (await api.post(f"/runs/{run_id}/pause")).status_code == 202
    assert engine.apply_requests() == ["paused"]
    refused = await api.post(f"/runs/{run_id}/cancel")
    assert (refused.status_code, "cleans up" in refused.json()["detail"]) == (409, True)
    refused = await api.post(f"/runs/{run_id}/migrate", json={})
    assert refused.status_code == 409
    assert (await api.post(f"/runs/{run_id}/resume")).status_code == 202
    assert engine.apply_requests() == ["resumed"]
    engine.complete(run_id, "release")
    assert (await api.read(f"/runs/{run_id}"))["status"] == "cancelled"
    checks = (await api.read("/doctor"))["checks"]
    assert [check for check in checks if not check["ok"] and check["name"] not in ("relay", "server")] == []


async def test_explain_says_who_cancelled_it_and_how_far_it_has_cleaned_up(api, engine):
    run_id = await _cancelled(api, engine)
    cause = (await api.read(f"/runs/{run_id}/explain"))["causes"][0]
    assert (cause["code"], cause["text"]) == (
        "RUN_CANCELLING", "The run was cancelled by ana: enough; it cleans up, and 0 of 1 clean-ups have ended.",
    )  # fmt: skip
    engine.complete(run_id, "release")
    assert (await _codes(api, f"/runs/{run_id}"))[0] == "RUN_CANCELLED"


async def test_of_a_cancelled_run_its_clean_ups_are_replayed_and_skipped_and_nothing_else(api, engine):
    run_id = await _cancelled(api, engine)
    engine.fail(run_id, "release")
    assert (await api.read(f"/runs/{run_id}"))["status"] == "failed"
    (letter,) = (await api.read("/dead-letters", filter=f"run:{run_id}"))["items"]
    assert (await api.post(f"/tasks/{run_id}.work/skip")).status_code == 409
    response = await api.post(f"/dead-letters/{letter['dead_letter_id']}/replay")
    assert response.status_code in (200, 202), response.text
    assert engine.apply_requests() == ["replayed"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "cancelling"
    assert (await api.post(f"/tasks/{run_id}.release/skip", json={"output": 1})).status_code == 202
    assert engine.apply_requests() == ["supplied"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "cancelled"


async def test_what_failed_before_the_cancel_stays_as_it_is(api, engine):
    await api.publish("""
name: two
tasks:
  bad: { run: t.bad }
  work: { run: t.work }
  tidy: { run: t.tidy, needs: work, join: finally }
""")
    run_id = await api.start("two")
    engine.fail(run_id, "bad")
    assert (await api.post(f"/runs/{run_id}/cancel")).status_code == 202
    assert engine.apply_requests() == ["cancelled"]
    (letter,) = (await api.read("/dead-letters", filter=f"run:{run_id}"))["items"]
    refused = await api.post(f"/dead-letters/{letter['dead_letter_id']}/replay")
    assert (refused.status_code, "was cancelled" in refused.json()["detail"]) == (409, True)


async def test_a_termination_leaves_clean_ups_out(api, engine):
    run_id = await _cancelled(api, engine)
    assert (await api.post(f"/runs/{run_id}/terminate")).status_code == 202
    assert engine.apply_requests() == ["terminated"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "terminated"
    assert (await api.read(f"/tasks/{run_id}.release"))["status"] == "cancelled"
