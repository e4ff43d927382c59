"""Children over HTTP: who asked for a run, what its tasks have asked for, and cycles that are refused at publish."""

import psycopg

from state.children import Starter

ORDER = """
name: order
tasks:
  price: { run: orders.price }
  bill: { needs: price, workflow: invoice }
  tell: { needs: price, workflow: { name: notice, wait: false } }
"""
INVOICE = "name: invoice\ntasks: { write: { run: invoices.write } }"


async def sweep(engine) -> None:
    connection = await psycopg.AsyncConnection.connect(engine.store.settings.postgres)
    async with connection:
        await Starter(engine.store, engine.plans).start(connection)


async def test_a_run_names_its_parent_and_its_children(api, engine):
    await api.publish(INVOICE)
    await api.publish(ORDER)
    run_id = await api.start("order", {})
    assert await api.read(f"/runs/{run_id}/relations") == {"items": [], "next": None, "parent": None}
    engine.complete(run_id, "price")
    (bill, tell) = (await api.read(f"/runs/{run_id}/relations"))["items"]
    assert [bill["status"], bill["version"], bill["started_at"], bill["waits"]] == ["asked", None, None, True]
    assert [tell["task"], tell["workflow"], tell["waits"]] == ["tell", "notice", False]
    assert (await api.read(f"/tasks/{run_id}.bill"))["workflow"] == "invoice"
    await sweep(engine)
    (bill, tell) = (await api.read(f"/runs/{run_id}/relations"))["items"]
    assert (bill["task"], bill["token"], bill["status"], bill["version"]) == ("bill", 1, "running", 1)
    assert (tell["status"], tell["reason"]) == ("refused", "there is no workflow notice")
    child = bill["run_id"]
    assert (await api.read(f"/runs/{child}"))["trigger"] == "child"
    above = await api.read(f"/runs/{child}/relations")
    assert above["items"] == []
    wanted = {"run_id": run_id, "task": "bill", "token": 1, "workflow": "order", "version": 1, "status": "waiting"}
    assert {name: above["parent"][name] for name in wanted} | {"status": "waiting"} == wanted
    assert (above["parent"]["waits"], above["parent"]["depth"]) == (True, 1)
    causes = (await api.read(f"/tasks/{run_id}.bill/explain"))["causes"]
    assert (causes[0]["code"], causes[0]["points_to"]["id"]) == ("CHILD_OPEN", child)
    engine.complete(child, "write")
    assert sorted(engine.apply_requests()) == ["child_told", "child_told"]
    pages = await api.pages(f"/runs/{run_id}/relations", limit=1)
    assert [[item["status"] for item in page] for page in pages] == [["completed"], ["refused"]]
    assert (await api.get("/runs/01a2289f-ec84-73e0-907f-576654f809f9/relations")).status_code == 404


async def test_a_cycle_of_workflows_is_refused_with_its_line(api):
    await api.publish("name: invoice\ntasks: { again: { workflow: order } }")
    answer = await api.post("/workflows", content=ORDER, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert (fault["path"], fault["line"]) == ("tasks.bill.workflow", 5)
    assert fault["message"] == "workflows that start each other in a cycle: order -> invoice -> order"
    assert (await api.get("/workflows/order")).status_code == 404
