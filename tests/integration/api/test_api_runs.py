"""Starting, reading and cancelling runs."""

import asyncio

import pytest
from uuid_utils import uuid4, uuid7

from headrace.graph import build

LINE = "name: line\ntasks:\n" + "".join(
    f"  t{i}: {{ run: x{f', needs: t{i - 1}' if i else ''} }}\n" for i in range(120)
)


@pytest.fixture
async def orders(api, definitions):
    await api.publish(definitions["orders"])
    return "/workflows/orders/runs"


# == starting ==========================================================================================================
async def test_a_start_makes_run_task_history_and_outbox_in_one_transaction(api, orders, engine):
    response = await api.post(orders, json={"input": {"id": 7}}, headers=[("Headrace-Actor", "ana é".encode())])
    run = response.json()
    assert response.status_code == 201
    assert (run["status"], run["row_version"], run["version"], run["trigger"]) == ("running", 1, 1, "api")
    assert run["counts"] | {"pending": 2, "queued": 1} == run["counts"]
    assert sum(run["counts"].values()) == 3
    assert run["finished_at"] is None
    history = (await api.read(f"/runs/{run['run_id']}/history"))["items"]
    assert [item["kind"] for item in history] == ["started"]
    assert engine.count("task") == engine.count("history") == 1


async def test_input_keeps_its_bytes(api, orders):
    given = (
        b'{"input": {"z": 1.50,  "a": 10000000000000000000000.0e-3, "t":"\\u00e9\xc3\xa9 \\/ ", "n": 9007199254740993}}'
    )
    response = await api.post(orders, content=given, headers={"content-type": "application/json"})
    inner = given.removeprefix(b'{"input": ').removesuffix(b"}")
    assert response.status_code == 201, response.text
    assert inner in response.content
    run_id = response.json()["run_id"]
    assert inner in (await api.get(f"/runs/{run_id}")).content
    assert inner in (await api.get(f"/tasks/{run_id}.validate")).content


async def test_b73_one_key_makes_one_run_in_turn_and_fifty_at_once(api, orders, engine):
    async def start():
        return await api.post(orders, json={"input": {"id": 1}, "key": "order-1"})

    answers = [await start() for _ in range(3)] + await asyncio.gather(*(start() for _ in range(50)))
    assert [answer.status_code for answer in answers[:3]] == [201, 200, 200]
    assert {answer.status_code for answer in answers[3:]} == {200}
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert engine.count("run") == 1


async def test_b73_fifty_first_starts_with_one_key_make_one_run(api, orders, engine):
    answers = await asyncio.gather(*(api.post(orders, json={"input": 1, "key": "k"}) for _ in range(50)))
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert engine.count("run") == engine.count("history") == engine.count("task") == 1


async def test_a_key_whose_run_was_removed_starts_no_other(api, orders, engine):
    await api.start("orders", {"id": 1}, key="order-1")
    engine.connection.execute("DELETE FROM task; DELETE FROM history; DELETE FROM run")
    engine.connection.commit()
    again = await api.post("/workflows/orders/runs", json={"input": {"id": 1}, "key": "order-1"})
    assert (again.status_code, "was removed" in again.json()["detail"]) == (409, True)
    assert engine.count("run") == 0


async def test_b73_a_key_with_other_input_is_refused(api, orders, engine):
    await api.start("orders", {"id": 1}, key="k")
    response = await api.post(orders, json={"input": {"id": 2}, "key": "k"})
    assert response.status_code == 422
    assert response.json()["code"] == "HR-1010"
    assert engine.count("run") == 1


async def test_b76_the_key_of_a_failed_run_answers_that_run_as_it_is(api, orders, engine):
    run_id = await api.start("orders", 1, key="k")
    engine.fail(run_id, "validate")
    response = await api.post(orders, json={"input": 1, "key": "k"})
    assert (response.status_code, response.json()["run_id"], response.json()["status"]) == (200, run_id, "failed")


@pytest.mark.parametrize(
    "key", ["a/b", "a#b", "a%2Fb", "../x", "e\u0301", "\u00e9", "\U0001f600", "\u202e", "x ", "x" * 200]
)
async def test_b89_odd_keys_are_accepted_as_they_are(api, orders, key):
    first, again, other = [
        await api.post(orders, json={"input": 1, "key": name})
        for name in (key, key, key + "." if len(key) < 200 else "y")
    ]
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 201)
    assert first.json()["run_id"] == again.json()["run_id"] != other.json()["run_id"]


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "a\n", "\x00", "\x7f", 7, ["k"], {}])
async def test_b89_keys_that_cannot_be_kept_are_refused(api, orders, engine, key):
    response = await api.post(orders, json={"input": 1, "key": key})
    assert response.status_code == 422
    assert response.json()["errors"][0]["path"] == "key"
    assert engine.count("run") == 0


async def test_b75_eight_starts_of_one_run_id_make_one_run_and_all_succeed(api, orders, engine):
    run_id = str(uuid7())
    answers = await asyncio.gather(*(api.post(orders, json={"input": 1, "run_id": run_id}) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert {answer.json()["run_id"] for answer in answers} == {run_id}
    assert engine.count("run") == engine.count("history") == 1


async def test_a_run_id_that_another_start_took_is_a_conflict(api, orders):
    run_id = await api.start("orders", 1)
    response = await api.post(orders, json={"input": 1, "run_id": run_id})
    assert (response.status_code, response.json()["code"]) == (409, "HR-1005")
    for wrong in (str(uuid4()), "x", "{" + run_id + "}"):
        assert (await api.post(orders, json={"run_id": wrong})).json()["errors"][0]["path"] == "run_id"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ('{"input": {"a": ["\\u0000"]}}', "input.a[0]"),
        ('{"input": {"a\\u0000": 1}}', "input"),
        ('{"input": {"a": 1, "a": 2}}', "input.a"),
        ('{"input": {"n": 99999999999999999999}}', "input.n"),
        ('{"input": NaN}', ""),
        ('{"input": "\\ud800"}', ""),
        ('{"input": ' + "[" * 70 + "]" * 70 + "}", "input"),
        ('{"input": ' + "[" * 100_000 + "]" * 100_000 + "}", ""),
        ('{"input": 1', ""),
        ('{"input": 1} x', ""),
        ("[]", ""),
        ("\xff", ""),
        ('{"version": 0}', "version"),
        ('{"version": "1"}', "version"),
        ('{"unknown": 1}', ""),
    ],
)
async def test_b83_bodies_that_are_wrong_are_refused_with_the_path(api, orders, engine, body, path):
    response = await api.post(orders, content=body.encode("latin-1"), headers={"content-type": "application/json"})
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["errors"][0]["path"].startswith(path)
    assert engine.count("run") == 0


async def test_b85_body_limits_are_exact(api, orders):
    from api.bodies import BODY_BYTES_MAX
    from headrace.messages import PAYLOAD_BYTES_MAX

    def of(size):
        return b'"' + b"x" * (size - 2) + b'"'

    async def send(content):
        response = await api.post(orders, content=content, headers={"content-type": "application/json"})
        return response.status_code

    assert await send(b'{"input":' + of(PAYLOAD_BYTES_MAX) + b"}") == 201
    assert await send(b'{"input":' + of(PAYLOAD_BYTES_MAX + 1) + b"}") == 422
    padding = b" " * (BODY_BYTES_MAX - len(b'{"input":1}'))
    assert await send(b'{"input":1}' + padding) == 201
    assert await send(b'{"input":1}' + padding + b" ") == 413

    async def chunks():
        for _ in range(40):
            yield b" " * 32768

    assert await send(chunks()) == 413


async def test_input_is_checked_against_the_schema(api, engine):
    await api.publish(
        "name: typed\n"
        "input: { required: [id], properties: { id: { type: integer }, tags: { items: { type: string } } } }\n"
        "tasks: { a: { run: x } }"
    )
    response = await api.post("/workflows/typed/runs", json={"input": {"tags": ["a", 1]}})
    assert response.status_code == 422
    assert {fault["path"] for fault in response.json()["errors"]} == {"input", "input.tags[1]"}
    assert engine.count("run") == 0
    assert await api.start("typed", {"id": 1})


async def test_a_start_pins_the_version_asked_for(api, orders):
    await api.publish("name: orders\ntasks: { only: { run: x } }")
    latest, first = await api.start("orders"), await api.start("orders", version=1)
    assert (await api.read(f"/runs/{latest}"))["version"] == 2
    assert (await api.read(f"/runs/{first}"))["version"] == 1
    response = await api.post(orders, json={"version": 3})
    assert (response.status_code, response.json()["code"]) == (404, "HR-1004")


async def test_an_empty_body_starts_with_an_empty_object(api, orders):
    response = await api.post(orders)
    assert (response.status_code, response.json()["input"]) == (201, {})


async def test_an_unknown_workflow_is_not_found(api):
    for name in ("nope", "a%2Fb", "..%2Fx", "%F0%9F%98%80", "x" * 300, "a%00b", "a%0A"):
        assert (await api.post(f"/workflows/{name}/runs", json={})).status_code == 404


# == reading ===========================================================================================================
async def test_a_finished_run_has_the_outputs_of_its_last_tasks(api, orders, engine):
    run_id = await api.start("orders", {"id": 1})
    engine.complete(run_id, "validate", b'{"total": 1.50}')
    charge = await api.read(f"/tasks/{run_id}.charge")
    assert charge["input"] == {"total": 1.5}
    engine.complete(run_id, "charge", b'"paid"')
    engine.complete(run_id, "notify", b'{"sent":  true}')
    response = await api.get(f"/runs/{run_id}")
    run = response.json()
    assert (run["status"], run["outputs"]) == ("completed", {"notify": {"sent": True}})
    assert b'{"notify":{"sent":  true}}' in response.content
    assert run["counts"]["completed"] == 3
    assert run["finished_at"].endswith("Z")
    kinds = [item["kind"] for item in (await api.read(f"/runs/{run_id}/history"))["items"]]
    assert kinds == ["started", "attempt_completed", "attempt_completed", "attempt_completed"]
    assert (await api.read("/doctor", runs=1))["checks"][8]["ok"]


async def test_tasks_are_all_there_in_the_order_of_the_graph(api, engine):
    await api.publish(LINE)
    run_id = await api.start("line")
    engine.complete(run_id, "t0", b"7")
    pages = await api.pages(f"/runs/{run_id}/tasks", limit=50)
    tasks = [task for page in pages for task in page]
    assert [len(page) for page in pages] == [50, 50, 20]
    assert [task["index"] for task in tasks] == list(range(120))
    assert [task["status"] for task in tasks[:3]] == ["completed", "queued", "pending"]
    assert (tasks[0]["output"], tasks[0]["attempt"], tasks[0]["token"]) == (7, 1, 1)
    assert (tasks[2]["needs"], tasks[2]["changed_at"], tasks[2]["attempts_max"]) == (["t1"], None, 3)


async def test_a_run_has_the_output_that_its_workflow_says(api, engine):
    output = {"total": "${{ tasks.a.output.total }}", "of": "${{ input.id }}"}
    await api.publish(build("priced", output=output).task("a", run="price").publishable().canonical().decode())
    good, bad, failed = [await api.start("priced", {"id": number}) for number in range(3)]
    engine.complete(good, "a", b'{"total": 1.50}')
    engine.complete(bad, "a", b"{}")
    runs = {run["run_id"]: run for run in (await api.read("/runs", workflow="priced"))["items"]}
    assert (runs[good]["output"], runs[good]["output_error"]) == ({"of": 0, "total": 1.5}, None)
    assert runs[good]["outputs"] == {"a": {"total": 1.5}}
    assert (runs[bad]["status"], runs[bad]["output"]) == ("completed", None)
    assert runs[bad]["output_error"]["code"] == "BAD_INPUT"
    assert (runs[failed]["output"], runs[failed]["output_error"]) == (None, None)
    assert b'{"of":0,"total":1.50}' in (await api.get(f"/runs/{good}")).content


async def test_large_outputs_make_short_pages_and_none_is_lost(api, engine, monkeypatch):
    monkeypatch.setattr("state.queries.task.PAGE_BYTES", 3_000)
    monkeypatch.setattr("state.queries.run.PAGE_BYTES", 3_000)
    await api.publish("name: wide\ntasks:\n" + "".join(f"  t{i}: {{ run: x }}\n" for i in range(8)))
    run_id = await api.start("wide")
    for i in range(8):
        engine.complete(run_id, f"t{i}", b'"' + bytes(f"{i}" * 1500, "ascii") + b'"')
    pages = await api.pages(f"/runs/{run_id}/tasks")
    assert len(pages) > 1
    assert [task["name"] for page in pages for task in page] == [f"t{i}" for i in range(8)]
    assert all(task["output"] for page in pages for task in page)
    others = [await api.start("wide", "x" * 2000) for _ in range(3)]
    pages = await api.pages("/runs")
    assert len(pages) > 1
    runs = [run for page in pages for run in page]
    assert [run["run_id"] for run in runs] == [*reversed(others), run_id]
    assert len(runs[-1]["outputs"]) == 8


async def test_runs_are_listed_newest_first_page_by_page_and_by_status(api, orders, engine):
    await api.publish("name: other\ntasks: { only: { run: x } }")
    ids = [await api.start("orders", i) for i in range(5)]
    other = await api.start("other")
    engine.fail(ids[1], "validate")
    pages = await api.pages("/runs", limit=2)
    assert [len(page) for page in pages] == [2, 2, 2]
    assert [run["run_id"] for page in pages for run in page] == [other, *reversed(ids)]
    of_orders = await api.pages("/workflows/orders/runs", limit=2)
    assert [run["run_id"] for page in of_orders for run in page] == list(reversed(ids))
    assert await api.pages("/runs", workflow="orders", limit=2) == of_orders
    failed = await api.pages("/runs", status="failed")
    assert [run["run_id"] for run in failed[0]] == [ids[1]]
    running = await api.pages("/workflows/orders/runs", status="running", limit=3)
    assert sum(len(page) for page in running) == 4
    assert sum(len(page) for page in await api.pages("/runs", status="running", limit=3)) == 5
    assert (await api.get("/workflows/nope/runs")).status_code == 404
    assert await api.pages("/runs", workflow="nope") == [[]]


async def test_a_run_stays_on_its_version_when_it_is_listed(api, orders):
    first = await api.start("orders")
    await api.publish("name: orders\ntasks: { only: { run: x } }")
    second = await api.start("orders")
    runs = (await api.read("/workflows/orders/runs"))["items"]
    assert [(run["run_id"], run["version"]) for run in runs] == [(second, 2), (first, 1)]


NOBODY = "01a22bd1-8065-7276-a3fe-a88e1fb5a60a"


@pytest.mark.parametrize(
    "run_id", ["zz", "a%2Fb", "..%2Fx", "%F0%9F%98%80", "x" * 300, "%00", "0" * 32, NOBODY, "a%0A"]
)
async def test_ids_that_are_none_are_not_found(api, run_id):
    for path in ("", "/tasks", "/history", "/events"):
        response = await api.get(f"/runs/{run_id}{path}")
        assert (response.status_code, response.json()["code"]) == (404, "HR-1004")
    assert (await api.post(f"/runs/{run_id}/cancel", json={})).status_code == 404
    assert (await api.get(f"/tasks/{run_id}.a")).status_code == 404
    assert (await api.get(f"/tasks/{run_id}")).status_code == 404


async def test_tokens_of_another_list_are_refused(api, orders):
    run_id = await api.start("orders")
    token = (await api.pages("/runs"))[0][0]["run_id"]
    for path in ("/runs", f"/runs/{run_id}/tasks", f"/runs/{run_id}/history", "/approvals", "/workers", "/workflows"):
        for page in (token, "x", "WyJhIl0", "W10", "é"):
            response = await api.get(path, params={"page": page})
            assert response.status_code == 422 or (path == "/workflows" and page == "WyJhIl0"), (path, page)


# == attempts, history =================================================================================================
async def test_attempts_are_listed_and_a_retry_shows_when_it_is_due(api, orders, engine):
    run_id = await api.start("orders")
    engine.start_body(run_id, "validate")
    task = await api.read(f"/tasks/{run_id}.validate")
    assert (task["status"], task["attempt"]) == ("running", 1)
    assert task["session_id"] == "3b241101-e2bb-4255-8caf-4136c566a962"
    engine.fail(run_id, "validate", retryable=True)
    task = await api.read(f"/tasks/{run_id}.validate")
    assert (task["status"], task["attempt"], task["token"], task["attempts_max"]) == ("pending", 1, 1, 3)
    assert task["due_at"] is not None
    attempts = (await api.read(f"/tasks/{run_id}.validate/attempts"))["items"]
    assert [(item["attempt"], item["outcome"], item["error"]["code"]) for item in attempts] == [(1, "failed", "ERROR")]
    assert (await api.read(f"/tasks/{run_id}.charge/attempts")) == {"items": [], "next": None}
    checks = (await api.read("/doctor"))["checks"]
    assert [check for check in checks if not check["ok"] and check["name"] not in ("relay", "server")] == []


async def test_history_is_paged_without_loss_also_within_one_row_version(api, engine):
    await api.publish("name: wide\ntasks:\n" + "".join(f"  t{i}: {{ run: x }}\n" for i in range(5)))
    run_id = await api.start("wide")
    for i in range(5):
        engine.start_body(run_id, f"t{i}")
    await api.post(f"/runs/{run_id}/cancel", json={"reason": "enough"}, headers={"Headrace-Actor": "ana"})
    engine.apply_requests()
    whole = await api.pages(f"/runs/{run_id}/history")
    by_one = await api.pages(f"/runs/{run_id}/history", limit=1)
    assert [item for page in by_one for item in page] == whole[0]
    back = await api.pages(f"/runs/{run_id}/history", limit=1, order="newest")
    assert [item for page in back for item in page] == whole[0][::-1]
    assert len(whole[0]) == 1 + 5 + 1 + 5
    cancelled = whole[0][6]
    assert (cancelled["kind"], cancelled["actor"], cancelled["detail"]) == ("cancelled", "ana", {"reason": "enough"})
    assert [item["task"] for item in whole[0][7:]] == [f"t{i}" for i in range(5)]
    assert {item["row_version"] for item in whole[0]} == set(range(1, 8))


# == cancelling ========================================================================================================
async def test_a_cancel_is_stored_with_its_wake_up_and_ends_the_run(api, orders, engine):
    run_id = await api.start("orders")
    response = await api.post(f"/runs/{run_id}/cancel", json={"reason": "wrong"})
    assert (response.status_code, response.json()) == (202, {"run_id": run_id, "accepted": True})
    assert engine.apply_requests() == ["cancelled"]
    run = await api.read(f"/runs/{run_id}")
    assert (run["status"], run["counts"]["cancelled"]) == ("cancelled", 3)
    again = await api.post(f"/runs/{run_id}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "HR-1005")
    assert engine.apply_requests() == []


# == releasing =========================================================================================================
async def test_a_run_that_stands_aside_is_released_once(api, orders, engine):
    run_id = await api.start("orders")
    response = await api.post(f"/runs/{run_id}/release", json={})
    assert response.status_code == 409
    engine.isolate(run_id)
    assert (await api.read(f"/runs/{run_id}"))["status"] == "needs_attention"
    response = await api.post(f"/runs/{run_id}/release", json={})
    assert response.status_code == 202
    assert engine.apply_requests() == ["released"]
    assert (await api.read(f"/runs/{run_id}"))["status"] == "running"
    assert (await api.post(f"/runs/{run_id}/release", json={})).status_code == 409
    assert (await api.post(f"/runs/{run_id[:-4]}0000/release", json={})).status_code == 404
