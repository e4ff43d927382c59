"""What the API shows of a map: counters with the run's tasks, items page by page, one item like any task."""

import json

DOCUMENTS = """
name: documents
tasks:
  list: { run: t.list }
  read:
    run: t.read
    needs: list
    map: { over: "${{ tasks.list.output }}", max_parallel: 3, failures: finish }
    with: { page: "${{ item }}", number: "${{ index + 1 }}" }
    retry: 1
  store: { run: t.store, needs: read }
"""


async def begin(api, engine, pages: int) -> str:
    await api.publish(DOCUMENTS)
    run_id = await api.start("documents")
    engine.complete(run_id, "list", json.dumps([f"p{n}" for n in range(pages)]).encode())
    return str(run_id)


async def test_a_run_shows_counters_and_no_items(api, engine):
    run_id = await begin(api, engine, 5)
    engine.complete(run_id, "read.0", b'"zero"')
    engine.fail(run_id, "read.1")
    tasks = (await api.read(f"/runs/{run_id}/tasks"))["items"]
    assert [task["name"] for task in tasks] == ["list", "read", "store"]
    assert (tasks[0]["items"], tasks[1]["items"]) == (None, {"total": 5, "begun": 5, "completed": 1, "failed": 1})
    run = await api.read(f"/runs/{run_id}")
    assert run["counts"] == {**dict.fromkeys(run["counts"], 0), "completed": 1, "waiting": 1, "pending": 1}
    assert run["status"] == "running"
    history = (await api.read(f"/runs/{run_id}/history"))["items"]
    assert [item["task"] for item in history] == [None, "list", "read.0", "read.1"]


async def test_items_are_listed_by_status_and_page(api, engine):
    run_id = await begin(api, engine, 9)
    for item in range(6):
        (engine.fail if item == 4 else engine.complete)(run_id, f"read.{item}")
    path = f"/runs/{run_id}/tasks/read/items"
    answer = await api.read(path)
    assert [item["name"] for item in answer["items"]] == [f"read.{item}" for item in range(9)]
    assert answer["counts"] == {"total": 9, "begun": 9, "completed": 5, "failed": 1}
    pages = await api.pages(path, limit=4)
    assert [item["name"] for page in pages for item in page] == [f"read.{item}" for item in range(9)]
    (failed,) = (await api.read(path, status="failed"))["items"]
    assert (failed["name"], failed["error"]["code"], failed["task_id"]) == ("read.4", "ERROR", f"{run_id}.read.4")
    completed = await api.pages(path, status="completed", limit=2)
    assert [item["name"] for page in completed for item in page] == [f"read.{item}" for item in (0, 1, 2, 3, 5)]
    assert (await api.get(path, params={"status": "nonsense"})).status_code == 422
    assert (await api.get(f"/runs/{run_id}/tasks/list/items")).status_code == 409
    assert (await api.get(f"/runs/{run_id}/tasks/nothing/items")).status_code == 404


async def test_one_item_is_shown_like_a_task(api, engine):
    run_id = await begin(api, engine, 4)
    engine.complete(run_id, "read.2", b'"two"')
    item = await api.read(f"/tasks/{run_id}.read.2")
    assert (item["status"], item["output"], item["input"]) == ("completed", "two", {"page": "p2", "number": 3})
    (attempt,) = (await api.read(f"/tasks/{run_id}.read.2/attempts"))["items"]
    assert (attempt["attempt"], attempt["output"]) == (1, "two")
    assert (await api.read(f"/tasks/{run_id}.read"))["input"] == ["p0", "p1", "p2", "p3"]
    for nothing in ("read.4", "read.02", "read.x", "read.10000", "list.0"):
        assert (await api.get(f"/tasks/{run_id}.{nothing}")).status_code == 404, nothing


async def test_a_map_and_its_items_are_explained(api, engine):
    run_id = await begin(api, engine, 9)
    engine.complete(run_id, "read.0")
    of_map = await api.read(f"/tasks/{run_id}.read/explain")
    assert of_map["causes"][0]["code"] == "ITEMS_OPEN"
    assert "of 9 items 1 have completed, 5 have not begun, and 3 are under way" in of_map["causes"][0]["text"]
    behind = of_map["causes"][1]
    assert (behind["code"], behind["tasks_total"]) == ("NOT_PUBLISHED", 3)
    assert behind["tasks"] == ["read.1", "read.2", "read.3"]
    assert (await api.read(f"/tasks/{run_id}.read.2/explain"))["causes"][0]["tasks"] == ["read.2"]
    codes = [cause["code"] for cause in (await api.read(f"/runs/{run_id}/explain"))["causes"]]
    assert "ITEMS_OPEN" in codes
    assert "NOT_PUBLISHED" in codes


async def test_the_letter_of_an_item_is_shown_and_replayed(api, engine):
    run_id = await begin(api, engine, 2)
    engine.complete(run_id, "read.0")
    engine.fail(run_id, "read.1")
    assert (await api.read(f"/runs/{run_id}"))["status"] == "failed"
    (letter,) = (await api.read("/dead-letters"))["items"]
    assert (letter["task"], letter["task_id"]) == ("read.1", f"{run_id}.read.1")
    (same,) = (await api.read("/dead-letters", filter="task:read"))["items"]
    assert same["dead_letter_id"] == letter["dead_letter_id"]
    shown = await api.read(f"/dead-letters/{letter['dead_letter_id']}")
    assert shown["input"] == {"page": "p1", "number": 2}
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["failed"]
    cause = (await api.read(f"/tasks/{run_id}.read/explain"))["causes"][0]
    assert cause["text"].startswith("Task read failed, with 1 of 2 items completed: ITEM_FAILED 1 of 2 items failed")
    assert (await api.post(f"/dead-letters/{letter['dead_letter_id']}/replay")).status_code == 202
    assert engine.apply_requests() == ["replayed"]
    assert (await api.read(f"/tasks/{run_id}.read"))["status"] == "waiting"
    engine.complete(run_id, "read.1", b"1")
    assert (await api.read(f"/tasks/{run_id}.read"))["output"] == [None, 1]
