"""Labels of runs: given at the start, kept with the run, found by the filter."""

import httpx
import pytest

from headrace.client import AsyncClient
from headrace.errors import KeyReusedError, PayloadError
from tests.caller import TOKEN
from tests.integration.api.conftest import ORDERS, RELEASE

START = "/workflows/orders/runs"


@pytest.fixture
async def orders(api):
    await api.publish(ORDERS)


async def test_a_run_tells_its_labels_by_name_wherever_it_is_shown(api, orders, engine):
    labels = {"region": "eu", "customer.id": "Acme & Söhne, *", "empty": ""}
    answer = await api.post(START, json={"labels": labels})
    assert (answer.status_code, answer.json()["labels"]) == (201, labels)
    assert list(answer.json()["labels"]) == sorted(labels)
    run_id = answer.json()["run_id"]
    plain = await api.start("orders")
    assert (await api.read(f"/runs/{run_id}"))["labels"] == labels
    assert {run["run_id"]: run["labels"] for run in (await api.read("/runs"))["items"]} == {run_id: labels, plain: {}}
    assert engine.count("run_label") == 3


WRONG = [
    ({"Customer": "acme"}, "labels.Customer", "such as customer.id"),
    ({"": "x"}, "labels.", "such as customer.id"),
    ({"a\u0000": "x"}, "labels.a\u0000", "such as customer.id"),
    ({"a": "x" * 201}, "labels.a", "at most 200"),
    ({"a": "x\u0000"}, "labels.a", "control character"),
    ({f"l{n}": "x" for n in range(17)}, "labels", "at most 16 labels, and these are 17"),
    ({"a": 7}, "labels[...]", "Expected `str`"),
    (["a"], "labels", "Expected `object`"),
    (None, "labels", "Expected `object`"),
]


@pytest.mark.parametrize(("labels", "path", "said"), WRONG)
async def test_what_is_no_label_is_refused_with_its_place_and_what_to_write(api, orders, engine, labels, path, said):
    answer = await api.post(START, json={"labels": labels})
    assert answer.status_code == 422, answer.text
    (fault,) = answer.json()["errors"]
    assert (fault["path"], said in fault["message"]) == (path, True), fault
    assert engine.count("run") == engine.count("run_label") == 0


async def test_a_key_with_other_labels_is_refused_as_with_another_input(api, orders, engine):
    first = await api.post(START, json={"key": "k", "labels": {"a": "1", "b": "2"}})
    again = await api.post(START, json={"key": "k", "labels": {"b": "2", "a": "1"}})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["labels"] == {"a": "1", "b": "2"}
    for labels in ({}, {"a": "1"}, {"a": "1", "b": "3"}, {"a": "1", "b": "2", "c": "3"}):
        other = await api.post(START, json={"key": "k", "labels": labels})
        assert (other.status_code, other.json()["code"]) == (422, "HR-1010"), labels
    await api.start("orders", key="plain")
    assert (await api.post(START, json={"key": "plain", "input": None, "labels": {"a": "1"}})).status_code == 422
    assert (engine.count("run"), engine.count("run_label")) == (2, 2)


async def test_a_start_that_is_refused_leaves_no_label(api, engine):
    await api.publish("name: one\nlimit: { runs: 1, over: reject }\ntasks: { a: { run: x } }")
    await api.start("one", labels={"a": "1"})
    assert (await api.post("/workflows/one/runs", json={"labels": {"a": "2"}})).status_code == 409
    assert engine.connection.execute("SELECT value FROM run_label").fetchall() == [("1",)]


async def test_a_replay_and_a_rerun_keep_them(api, orders, engine):
    run_id = await api.start("orders", labels={"customer": "acme"})
    engine.fail(run_id, "validate")
    (letter,) = (await api.read("/dead-letters"))["items"]
    assert (await api.post(f"/dead-letters/{letter['dead_letter_id']}/replay")).status_code == 202
    engine.apply_requests()
    run = await api.read(f"/runs/{run_id}")
    assert (run["status"], run["labels"]) == ("running", {"customer": "acme"})
    engine.fail(run_id, "validate")
    assert (await api.post(f"/runs/{run_id}/rerun", json={})).status_code == 202
    engine.apply_requests()
    run = await api.read(f"/runs/{run_id}")
    assert (run["status"], run["labels"]) == ("running", {"customer": "acme"})


async def test_the_client_gives_and_reads_labels(app, orders):
    transport = httpx.ASGITransport(app)
    async with AsyncClient("http://127.0.0.1", TOKEN, transport=transport) as client:
        run = await client.start("orders", key="k", labels={"customer": "acme"})
        assert run.labels == (await client.run(run.run_id)).labels == {"customer": "acme"}
        found = await client.runs("label.customer:acme")
        assert [each.run_id for each in found.items] == [run.run_id]
        with pytest.raises(KeyReusedError):
            await client.start("orders", key="k", labels={"customer": "bolt"})
        with pytest.raises(PayloadError, match=r"labels\.Customer"):
            await client.start("orders", labels={"Customer": "bolt"})


# == the filter ========================================================================================================
@pytest.fixture
async def scene(api, engine):
    """Runs by name, oldest first."""
    await api.publish(ORDERS)
    await api.publish(RELEASE)
    labels = {
        "first": {"customer": "acme", "region": "eu"},
        "second": {"customer": "acme", "region": "us"},
        "third": {"customer": "bolt", "region": "eu"},
        "fourth": {"customer": "50% *_", "team.name": "a"},
        "plain": {},
    }
    made = {name: await api.start("orders", labels=given) for name, given in labels.items()}
    made["ship"] = await api.start("release", labels={"customer": "acme", "region": "eu"})
    engine.fail(made["second"], "validate")
    return made


FINDS = {
    "label.customer:acme": "ship second first",
    "label.customer:acme,bolt": "ship third second first",
    "label.customer:acme,acme": "ship second first",
    "label.customer:bolt,nobody": "third",
    "label.customer:Acme": "",
    "label.customer:nobody": "",
    "label.customer:*": "ship fourth third second first",
    "-label.customer:*": "plain",
    "label.customer:ac*,b*": "ship third second first",
    "-label.customer:acme": "plain fourth third",
    "-label.customer:acme label.customer:*": "fourth third",
    r'label.customer:"50% \*_"': "fourth",
    'label.customer:"50%*"': "fourth",
    "label.team.name:a": "fourth",
    "label.team:a": "",
    "label.customer:acme label.region:eu": "ship first",
    "label.customer:acme -label.region:eu": "second",
    "label.customer:acme workflow:orders": "second first",
    "label.customer:acme workflow:release": "ship",
    "label.customer:acme status:failed": "second",
    "label.customer:acme is:open": "ship first",
    "label.customer:acme started:>-1h": "ship second first",
    "label.customer:acme started:<-1h": "",
    "label.customer:acme started:>-1h started:<now took:<1h": "ship second first",
    "label.customer:acme trigger:api by:local": "ship second first",
    "label.customer:acme task:validate": "second first",
    "label.customer:acme workflow:nope": "",
}


async def test_a_filter_finds_runs_by_their_labels(api, scene):
    by_id = {id_: name for name, id_ in scene.items()}
    for text, found in FINDS.items():
        items = (await api.read("/runs", filter=text))["items"]
        assert [by_id[run["run_id"]] for run in items] == found.split(), text
        counted = await api.read("/runs/count", filter=text)
        assert (counted["count"], counted["has_more"]) == (len(found.split()), False), text
    named = await api.read("/runs", filter=f"run:{scene['first']},{scene['third']} label.customer:acme")
    assert [run["run_id"] for run in named["items"]] == [scene["first"]]
    pages = await api.pages("/runs", filter="label.customer:acme", limit=1)
    assert [by_id[run["run_id"]] for page in pages for run in page] == ["ship", "second", "first"]


async def test_a_run_whose_own_time_is_not_that_of_its_id_is_found_by_its_time(api, scene, engine):
    """Along a label only ids are at hand, which tell the time within an hour; the run itself is asked as well."""
    sql = "UPDATE run SET created_at = created_at - interval '10 minutes' WHERE run_id = %s"
    engine.connection.execute(sql, (scene["second"],))
    names = {scene["ship"]: "ship", scene["second"]: "second", scene["first"]: "first"}
    for text, found in (("started:>-5m", ["ship", "first"]), ("started:<-5m", ["second"])):
        items = (await api.read("/runs", filter=f"label.customer:acme {text}"))["items"]
        assert [names[run["run_id"]] for run in items] == found, text


async def test_what_runs_consist_of_is_found_by_their_labels(api, scene):
    tasks = (await api.read("/tasks", filter="label.region:eu"))["items"]
    assert [task["task_id"] for task in tasks] == [
        f"{scene['ship']}.build", f"{scene['third']}.validate", f"{scene['first']}.validate",
    ]  # fmt: skip
    tasks = (await api.read("/tasks", filter="-label.region:* workflow:orders"))["items"]
    assert [task["run_id"] for task in tasks] == [scene["plain"], scene["fourth"]]
    attempts = (await api.read("/attempts", filter="label.customer:acme outcome:failed"))["items"]
    assert [attempt["run_id"] for attempt in attempts] == [scene["second"]]
    history = (await api.read("/history", filter="label.customer:bolt kind:started"))["items"]
    assert [event["run_id"] for event in history] == [scene["third"]]


async def test_a_search_along_a_label_that_ends_early_goes_on(api, scene, monkeypatch):
    monkeypatch.setattr("state.filter_sql.LOOKS_DEAR", 2)
    filter = "label.customer:acme,bolt input.x:1"
    page = await api.read("/runs", filter=filter, limit=1)
    assert (page["items"], page["searched_until"] is not None) == ([], True)
    pages = 1
    while page["next"] is not None:
        page, pages = await api.read("/runs", filter=filter, limit=1, page=page["next"]), pages + 1
        assert page["items"] == []
    assert pages == 3


async def test_facets_count_labels_and_the_values_of_one(api, scene):
    def counted(answer):
        return {facet["field"]: [tuple(each.values()) for each in facet["values"]] for facet in answer["facets"]}

    facets = counted(await api.read("/runs/facets"))
    assert facets["label"] == [
        ("customer", 5, "label.customer:*"), ("region", 4, "label.region:*"), ("team.name", 1, "label.team.name:*"),
    ]  # fmt: skip
    assert "label.customer" not in facets
    facets = counted(await api.read("/runs/facets", label="customer", filter="workflow:orders"))
    assert facets["label.customer"] == [
        ("acme", 2, "label.customer:acme"), ("50% *_", 1, r'label.customer:"50% \*_"'),
        ("bolt", 1, "label.customer:bolt"),
    ]  # fmt: skip
    for values in facets.values():
        for _, count, clause in values:
            assert (await api.read("/runs/count", filter=f"workflow:orders {clause}"))["count"] == count, clause
    assert "label.nobody" not in counted(await api.read("/runs/facets", label="nobody"))
    assert (await api.get("/runs/facets", params={"label": "No"})).status_code == 422


async def test_an_act_on_many_takes_a_label(api, scene, engine):
    asked = await api.post("/bulk", json={"act": "cancel", "filter": "label.customer:acme is:open", "dry_run": True})
    assert asked.status_code == 200, asked.text
    assert sorted(asked.json()["run_ids"]) == sorted([scene["ship"], scene["first"]])


# == subscriptions =====================================================================================================
async def test_a_subscription_keeps_the_templates_of_labels(api, orders):
    body = {"name": "s", "topic": "shop.orders", "workflow": "orders", "labels": {"customer": "${{ input.data.c }}"}}
    assert (await api.post("/subscriptions", json=body)).json()["labels"] == body["labels"]
    assert (await api.post("/subscriptions", json=body)).status_code == 200
    assert (await api.post("/subscriptions", json={**body, "labels": {}})).status_code == 409
    (listed,) = (await api.read("/subscriptions"))["items"]
    assert listed["labels"] == body["labels"]


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"labels": {"Customer": "x"}}, "labels.Customer"),
        ({"labels": {"customer": "${{ input. }}"}}, "labels.customer"),
        ({"labels": {"customer": "${{ tasks.a.output }}"}}, "labels.customer"),
        ({"labels": {"customer": "x"}, "workflow": None, "signal": {"name": "paid", "key": "k"}}, "labels"),
    ],
)
async def test_labels_that_no_record_could_give_are_refused_at_once(api, orders, more, path):
    answer = await api.post("/subscriptions", json={"name": "s", "topic": "t", "workflow": "orders", **more})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, path)
