"""Before a publish: what it would lead to. After it: which runs still hold to older versions."""

YAML = {"content-type": "application/yaml"}
ONE = "name: pay\ntasks: { check: { run: pay.check }, charge: { run: pay.charge, needs: check } }"
TWO = "name: pay\ntasks: { check: { run: pay.check }, book: { run: pay.book, needs: check } }"


async def check(api, text):
    answer = await api.post("/workflows/check", content=text, headers=YAML)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_check_says_which_version_it_would_be_and_publishes_nothing(api, engine):
    first = await check(api, ONE)
    assert (first["verdict"], first["version"], first["latest_version"], first["difference"]) == (
        "first",
        1,
        None,
        None,
    )
    assert (engine.count("workflow"), engine.count("workflow_version")) == (0, 0)
    published = await api.publish(ONE)
    assert published["digest"] == first["digest"]
    assert (await check(api, ONE))["verdict"] == "latest"
    new = await check(api, TWO)
    assert (new["verdict"], new["version"]) == ("new", 2)
    assert (new["difference"]["added"], new["difference"]["removed"]) == (["book"], ["charge"])
    await api.publish(TWO)
    again = await check(api, ONE)
    assert (again["verdict"], again["version"], again["latest_version"]) == ("older", 1, 2)


async def test_a_check_counts_the_runs_in_flight_and_says_that_they_stay(api, engine):
    await api.publish(ONE)
    open_, done = [await api.start("pay") for _ in range(2)]
    for task in ("check", "charge"):
        engine.complete(done, task)
    new = await check(api, TWO)
    verdict = {"run_id": open_, "version": 1, "status": "running", "why_not": None}
    assert new["moves"] == {"looked_at": 1, "movable": 1, "obstacles": [], "runs": [verdict]}
    moved = await check(api, TWO.replace("tasks: {", "tasks: { first: { run: pay.first },"))
    why = "it has begun as task 1, and is task 2 now: add new tasks behind it"
    obstacles, (verdict,) = moved["moves"]["obstacles"], moved["moves"]["runs"]
    assert (moved["moves"]["movable"], obstacles) == (0, [{"task": "check", "why": why, "runs": 1}])
    assert verdict["why_not"].startswith(f"the run cannot be moved to version 2: task check: {why}")
    (row,) = new["runs"]
    assert (row["version"], row["status"], row["runs"], row["oldest_run_id"], row["then"]) == (
        1, "running", 1, open_, "stays",
    )  # fmt: skip


async def test_a_publish_moves_runs_where_it_is_asked_to_or_the_workflow_says_so(api, engine):
    await api.publish(ONE)
    run_ids = [await api.start("pay") for _ in range(2)]
    pinned = await api.publish(ONE + "\ndescription: other")
    assert (pinned["version"], pinned["bulk_id"]) == (2, None)
    asked = await api.post("/workflows", params={"migrate": "true"}, content=TWO, headers=YAML)
    bulk = await api.read(f"/bulk/{asked.json()['bulk_id']}")
    assert (bulk["act"], bulk["selected"], bulk["filter"]) == ("move", 2, "workflow:pay version:<3")
    again = await api.post("/workflows", params={"migrate": "true"}, content=TWO, headers=YAML)
    assert (again.status_code, again.json()["bulk_id"]) == (200, None), "an open bulk moves them already"
    await api.post(f"/bulk/{asked.json()['bulk_id']}/stop")
    declared = TWO + "\non_publish: migrate"
    assert (await check(api, declared))["runs"][0]["then"] == "moves"
    made = await api.publish(declared)
    items = (await api.read(f"/bulk/{made['bulk_id']}/items"))["items"]
    assert sorted(item["run_id"] for item in items) == sorted(run_ids)
    assert (await api.publish(declared))["bulk_id"] is None, "it is no news"
    older = await api.post("/workflows", params={"migrate": "true"}, content=ONE, headers=YAML)
    assert (older.json()["version"], older.json()["bulk_id"]) == (1, None), "only to the latest"


async def test_a_wrong_definition_is_refused_as_by_a_publish(api):
    wrong = "name: pay\ntasks:\n  charge: { run: pay.charge, needs: nope }\n"
    answers = [await api.post(path, content=wrong, headers=YAML) for path in ("/workflows", "/workflows/check")]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert answers[0].json()["errors"] == answers[1].json()["errors"]


async def test_a_version_is_listed_until_its_last_run_has_ended(api, engine):
    await api.publish(ONE)
    run = await api.start("pay")
    await api.publish(TWO)
    latest, older = (await api.read("/workflows/pay/versions"))["items"]
    assert (latest["version"], latest["is_latest"], latest["in_flight"], latest["bodies"]) == (2, True, 0, [])
    assert (older["version"], older["is_latest"], older["in_flight"], older["bodies"]) == (1, False, 1, ["pay.charge"])
    assert older["runs"][0]["oldest_run_id"] == run
    for task in ("check", "charge"):
        engine.complete(run, task)
    assert [item["version"] for item in (await api.read("/workflows/pay/versions"))["items"]] == [2]


async def test_what_undoes_a_task_is_a_body_to_keep(api):
    undone = ONE.replace("needs: check", "needs: check, compensate: pay.refund")
    await api.publish(undone)
    await api.start("pay")
    await api.publish(TWO)
    _, older = (await api.read("/workflows/pay/versions"))["items"]
    assert older["bodies"] == ["pay.charge", "pay.refund"]


async def test_versions_of_what_was_never_published_are_not_found(api):
    assert (await api.get("/workflows/nope/versions")).status_code == 404
