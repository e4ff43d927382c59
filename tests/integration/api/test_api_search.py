"""Filters over the API: what they find, count and page through; and views, which are filters under a name."""

import pytest

from api.app import create_app
from headrace.filter_field import NOUNS, Kind, fields_of
from tests.integration.api.conftest import ORDERS, client

PRICED = """
name: priced
tasks:
  quote: { run: shop.quote, queue: slow }
  ask: { approval: { title: "Well?", expires: 1d }, needs: quote }
"""


@pytest.fixture
async def scene(api, engine):
    """Six runs by name, oldest first."""
    await api.publish(ORDERS)
    await api.publish(PRICED)
    made = {}
    made["done"] = await api.start("orders", {"customer": {"id": "acme"}, "amount": 250}, key="order-1")
    for task in ("validate", "charge", "notify"):
        engine.complete(made["done"], task, b'{"total": 7}')
    made["failed"] = await api.start(
        "orders", {"customer": {"id": "Bolt 50%"}, "amount": 99.5, "lines": [{"sku": "a"}]}
    )
    engine.fail(made["failed"], "validate")
    made["retrying"] = await api.start("orders", {"customer": {"id": "acme"}, "amount": "many"})
    engine.fail(made["retrying"], "validate", retryable=True)
    made["queued"] = await api.start("priced", {"note": 'say "time out", \\ and * too'})
    made["asking"] = await api.start("priced", ["x"], key="ask,1")
    engine.complete(made["asking"], "quote")
    made["paused"] = await api.start("orders", "just text")
    await api.post(f"/runs/{made['paused']}/pause")
    engine.apply_requests()
    return made


async def names(api, scene, text, **query):
    by_id = {id_: name for name, id_ in scene.items()}
    return [by_id[run["run_id"]] for run in (await api.read("/runs", filter=text, **query))["items"]]


FINDS = {
    "": "paused asking queued retrying failed done",
    "status:failed": "failed",
    "status:failed,completed": "failed done",
    "-status:failed,completed": "paused asking queued retrying",
    "is:open": "paused asking queued retrying",
    "is:ended": "failed done",
    "is:open -status:pausing,paused": "asking queued retrying",
    "is:open is:ended": "",
    "is:stuck": "",
    "-is:stuck is:open": "paused asking queued retrying",
    "is:ended,stuck": "failed done",
    "-is:ended,stuck": "paused asking queued retrying",
    "is:open,stuck": "paused asking queued retrying",
    "workflow:orders": "paused retrying failed done",
    "workflow:ord*": "paused retrying failed done",
    "workflow:*": "paused asking queued retrying failed done",
    "workflow:ord_rs": "",
    "-workflow:orders": "asking queued",
    "workflow:orders,priced status:waiting": "asking",
    "workflow:nope": "",
    "-workflow:nope": "paused asking queued retrying failed done",
    "version:1": "paused asking queued retrying failed done",
    "version:>1": "",
    "queue:slow": "asking queued",
    "-queue:slow is:ended": "failed done",
    "task:charge": "paused retrying failed done",
    "failed:validate": "failed",
    "failed:*": "failed",
    "failed:charge": "",
    "-failed:*": "paused asking queued retrying done",
    "code:ERROR": "retrying failed",
    "code:err*": "",
    'error:"IT BROKE"': "retrying failed",
    "error:it*oke -status:failed": "retrying",
    "waits:person": "asking",
    "waits:retry": "retrying",
    "waits:slot,signal,child,time": "",
    "-waits:person is:open": "paused queued retrying",
    "trigger:api": "paused asking queued retrying failed done",
    "-trigger:api": "",
    "by:local": "paused asking queued retrying failed done",
    "by:ana": "",
    "key:order-1": "done",
    'key:order-1,"ask,1"': "asking done",
    "-key:order-1 is:ended": "failed",
    "priority:0": "paused asking queued retrying failed done",
    "priority:<0": "",
    "started:>-1h": "paused asking queued retrying failed done",
    "started:>now": "",
    "started:<-1h": "",
    "-started:>-1h": "",
    "ended:>-1h": "failed done",
    "updated:>-1h": "paused asking queued retrying failed done",
    "took:<1h is:ended": "failed done",
    "took:>1h": "",
    "input.customer.id:acme": "retrying done",
    'input.customer.id:"Bolt 50%"': "failed",
    "input.customer.id:acm*,x": "retrying done",
    "-input.customer.id:acme": "paused asking queued failed",
    "input.amount:>100": "done",
    "input.amount:<=99.5": "failed",
    "input.amount:99.5": "failed",
    "input.lines.0.sku:a": "failed",
    "input.0:x": "asking",
    r'input.note:"say \"time out\", \\ and \* too"': "queued",
    "input.note:*out*": "queued",
    "output.total:7": "",
}


async def test_a_filter_finds_what_it_says(api, scene):
    for text, found in FINDS.items():
        assert await names(api, scene, text) == found.split(), text
        counted = await api.read("/runs/count", filter=text)
        assert (counted["count"], counted["has_more"]) == (len(found.split()), False), text
    every = ",".join(scene.values())
    assert await names(api, scene, f"run:{every} status:failed") == ["failed"]
    assert await names(api, scene, f"-run:{scene['done']} is:ended") == ["failed"]
    assert await names(api, scene, f"parent:{scene['done']}") == []


async def test_the_short_parameters_are_clauses(api, scene):
    assert await names(api, scene, "", status="failed", workflow="orders") == ["failed"]
    assert await names(api, scene, "failed:*", workflow="priced") == []
    of_priced = (await api.read("/workflows/priced/runs", filter="waits:person"))["items"]
    assert [run["run_id"] for run in of_priced] == [scene["asking"]]


# == what is wrong =====================================================================================================
async def test_a_wrong_filter_is_refused_with_every_place(api):
    for path in ("/runs", "/runs/count", "/runs/facets", "/runs/histogram", "/tasks", "/attempts", "/history"):
        response = await api.get(path, params={"filter": "stats:failed colour:red"})
        problem = response.json()
        assert (response.status_code, problem["code"]) == (422, "HR-1033"), path
        assert [fault["path"] for fault in problem["errors"]] == ["filter:1", "filter:14"]
    problem = (await api.get("/runs", params={"filter": "stats:failed"})).json()
    assert problem["detail"] == "column 1 of the filter: runs have no field 'stats'; did you mean status?"


async def test_a_parameter_that_would_be_passed_over_is_refused(api):
    for path in ("/runs", "/runs/count", "/tasks", "/dead-letters", "/dead-letters/groups"):
        response = await api.get(path, params={"run_id": "x"})
        assert (response.status_code, response.json()["errors"][0]["path"]) == (422, "run_id"), path


SPITEFUL = [
    "'", "' OR '1'='1", "'); DROP TABLE run; --", "%(namespace)s", "{look}", "$1", "\\'", "a\\", "%", "_", "[", "(?<",
    "\u2028", "p0", "{}", "\x7f", "😀" * 20,
]  # fmt: skip


async def test_no_value_reaches_the_statement(api, scene, engine):
    """Of every field that takes text; the answer is that nothing is called so, and everything is still there."""
    lists = dict(zip(NOUNS, ("/runs", "/tasks", "/attempts", "/history", "/dead-letters"), strict=True))
    for of in NOUNS:
        for field in fields_of(of).values():
            if field.kind not in (Kind.WORD, Kind.TEXT, Kind.JSON):
                continue
            for text in SPITEFUL:
                escaped = text.replace("\\", "\\\\").replace("*", "\\*").replace('"', '\\"')
                name = f"{field.name}.a.b" if field.kind is Kind.JSON else field.name
                found = await api.read(lists[of], filter=f'{name}:"{escaped}"')
                assert field.kind is Kind.TEXT or found["items"] == [], (of, field.name, text)
    assert engine.count("run") == len(scene)


# == pages =============================================================================================================
async def test_a_page_token_is_good_for_its_filter_only(api, scene):
    token = (await api.read("/runs", filter="is:open", limit=2))["next"]
    assert len((await api.read("/runs", filter=" is:open ", limit=2, page=token))["items"]) == 2
    for other in ("", "is:ended", "is:open workflow:orders"):
        response = await api.get("/runs", params={"filter": other, "page": token})
        assert response.status_code == 422, other
        assert response.json()["errors"] == [{"path": "page", "message": "a page token of another filter"}]
    assert (await api.get("/tasks", params={"filter": "", "page": token})).status_code == 422


async def test_a_search_that_ends_early_says_so_and_goes_on(api, scene, monkeypatch):
    monkeypatch.setattr("state.filter_sql.LOOKS_DEAR", 2)
    page = await api.read("/runs", filter="input.customer.id:acme", limit=1)
    assert (page["items"], page["searched_until"] is not None) == ([], True)
    found, token, pages = [], page["next"], 1
    while token is not None:
        page = await api.read("/runs", filter="input.customer.id:acme", limit=1, page=token)
        found += [run["run_id"] for run in page["items"]]
        token, pages = page["next"], pages + 1
    assert found == [scene["retrying"], scene["done"]]
    assert pages > 2
    counted = await api.read("/runs/count", filter="input.customer.id:acme")
    assert (counted["count"], counted["has_more"]) == (0, True)


# == counts ============================================================================================================
async def test_facets_count_what_was_found(api, scene):
    answer = await api.read("/runs/facets")
    facets = {facet["field"]: {each["value"]: each["count"] for each in facet["values"]} for facet in answer["facets"]}
    assert (answer["count"], answer["has_more"]) == (6, False)
    assert facets["workflow"] == {"orders": 4, "priced": 2}
    assert facets["status"]["failed"] == 1
    assert facets["queue"] == {"default": 4, "slow": 2}
    assert facets["code"] == {"ERROR": 1, "UPSTREAM_FAILED": 1}
    assert facets["trigger"] == {"api": 6}
    only = await api.read("/runs/facets", filter="workflow:priced")
    by_field = {facet["field"]: facet["values"] for facet in only["facets"]}
    assert by_field["workflow"] == [{"value": "priced", "count": 2, "clause": "workflow:priced"}]
    assert (await api.read("/runs/facets", filter="workflow:nope"))["facets"] == []


async def test_a_histogram_adds_up(api, scene, engine):
    engine.connection.execute(
        "UPDATE run SET created_at = created_at - interval '3 h' WHERE run_id = %s", (scene["done"],)
    )
    answer = await api.read("/runs/histogram", filter="workflow:orders", buckets=10)
    assert (answer["count"], answer["step_seconds"]) == (4, 1800)
    assert answer["buckets"][0]["counts"] == {"completed": 1}
    assert sum(sum(bucket["counts"].values()) for bucket in answer["buckets"]) == 4
    assert [bucket["at"] for bucket in answer["buckets"]] == sorted(bucket["at"] for bucket in answer["buckets"])
    assert (await api.read("/runs/histogram", filter="workflow:nope"))["buckets"] == []
    assert (await api.get("/runs/histogram", params={"buckets": 1})).status_code == 422


# == tasks, attempts, history ==========================================================================================
TASKS = {
    "status:failed": ["failed.validate"],
    "status:completed run_status:waiting": ["asking.quote"],
    "queue:slow": ["asking.quote", "queued.quote"],
    "-queue:slow status:queued,running": ["paused.validate"],
    "task:validate code:ERROR": ["retrying.validate", "failed.validate"],
    "error:broke": ["retrying.validate", "failed.validate"],
    "task:nope": [],
    "output.total:7": ["done.validate", "done.charge", "done.notify"],
    "output.total:>7": [],
    "attempt:>=1 workflow:orders is_x:1": None,
    "status:pending": ["retrying.validate"],
    "due:<now status:completed": [],
}


async def test_tasks_are_listed_over_all_runs(api, scene):
    by_id = {id_: name for name, id_ in scene.items()}
    for text, found in TASKS.items():
        if found is None:
            assert (await api.get("/tasks", params={"filter": text})).status_code == 422
            continue
        items = (await api.read("/tasks", filter=text))["items"]
        assert [f"{by_id[item['run_id']]}.{item['name']}" for item in items] == found, text
    pages = await api.pages("/tasks", limit=2)
    assert [item["task_id"] for page in pages for item in page] == [
        item["task_id"] for item in (await api.read("/tasks"))["items"]
    ]


async def test_attempts_are_listed_over_all_runs(api, scene):
    items = (await api.read("/attempts", filter="outcome:failed"))["items"]
    assert [(item["run_id"], item["task"], item["error"]["code"]) for item in items] == [
        (scene["retrying"], "validate", "ERROR"), (scene["failed"], "validate", "ERROR"),
    ]  # fmt: skip
    assert len((await api.read("/attempts", filter="worker:host* took:<1s"))["items"]) == 6
    pages = await api.pages("/attempts", limit=2)
    assert sum(len(page) for page in pages) == 6
    assert (await api.read("/attempts", filter="-outcome:failed task:quote"))["items"][0]["queue"] == "slow"


async def test_history_is_listed_over_all_runs(api, scene):
    started = (await api.read("/history", filter="kind:started"))["items"]
    assert [item["run_id"] for item in started] == [*reversed(scene.values())]
    of_one = (await api.read("/history", filter=f"run:{scene['failed']}"))["items"]
    alone = (await api.read(f"/runs/{scene['failed']}/history"))["items"]
    assert [{name: item[name] for name in alone[0]} for item in of_one] == alone
    whole = [(item["run_id"], item["row_version"], item["kind"]) for item in (await api.read("/history"))["items"]]
    paged = await api.pages("/history", limit=3)
    assert [(item["run_id"], item["row_version"], item["kind"]) for page in paged for item in page] == whole


# == chips and views ===================================================================================================
async def test_a_filter_is_explained_clause_by_clause(api):
    read = await api.read("/filters/runs", filter='STATUS:failed  -error:"time out"')
    assert read["text"] == 'status:failed -error:"time out"'
    assert read["clauses"] == [
        {"text": "status:failed", "field": "status", "comparison": "", "values": ["failed"], "is_negated": False},
        {"text": '-error:"time out"', "field": "error", "comparison": "", "values": ["time out"], "is_negated": True},
    ]
    assert {field["name"] for field in read["fields"]} == set(fields_of("runs"))
    assert (await api.get("/filters/nope")).status_code == 422


async def test_views_are_kept_for_oneself_or_for_all(api):
    ana, bob = {"Headrace-Actor": "ana"}, {"Headrace-Actor": "bob"}
    body = {"name": "late", "filter": "  is:open   started:<-1d ", "layout": {"columns": ["run", "took"]}}
    made = await api.post("/views", json=body, headers=ana)
    assert (made.status_code, made.json()["filter"], made.json()["owner"]) == (201, "is:open started:<-1d", "ana")
    assert made.json()["layout"] == {"columns": ["run", "took"]}
    assert (await api.post("/views", json=body, headers=ana)).status_code == 409
    assert (await api.post("/views", json=body, headers=bob)).status_code == 201
    path = f"/views/{made.json()['view_id']}"
    assert (await api.get(path, headers=bob)).status_code == 404
    assert (await api.delete(path, headers=bob)).status_code == 404
    shared = await api.put(path, json={**body, "is_shared": True}, headers=ana)
    assert shared.json()["is_shared"]
    assert (await api.get(path, headers=bob)).json()["name"] == "late"
    assert (await api.put(path, json=body, headers=bob)).status_code == 403
    assert (await api.delete(path, headers=bob)).status_code == 403
    seen = (await api.get("/views", params={"of": "runs"}, headers=bob)).json()["items"]
    kept = [(view["name"], view["owner"]) for view in seen if view["view_id"]]
    assert sorted(kept) == [("late", "ana"), ("late", "bob")]
    assert "Started by me" in [view["name"] for view in seen if view["view_id"] is None]
    assert (await api.delete(path, headers=ana)).status_code == 200
    assert (await api.get(path, headers=ana)).status_code == 404


async def test_every_view_that_is_always_there_can_be_read(api, scene):
    for view in (await api.read("/views"))["items"]:
        found = await names(api, scene, view["filter"])
        assert bool(found) == (view["name"] not in ("Waiting for a slot", "Stuck")), view


STUCK = {
    "retrying stands aside": "UPDATE run SET status = 'needs_attention', attention = true WHERE run_id = 'RETRYING'",
    "retrying has a timer": "UPDATE timer SET due_at = AGO WHERE run_id = 'RETRYING'",
    "retrying was asked to end": "INSERT INTO inbox (inbox_id, run_id, kind, body, created_at) "
    "VALUES (gen_random_uuid(), 'RETRYING', 'cancelled', '{}', AGO)",
    "queued has no worker": "UPDATE task SET changed_at = AGO WHERE run_id = 'QUEUED'",
    "asking has expired": "UPDATE approval SET expires_at = AGO WHERE run_id = 'ASKING'",
    "asking asks nobody": "DELETE FROM approval WHERE run_id = 'ASKING'; "
    "UPDATE task SET changed_at = AGO WHERE run_id = 'ASKING' AND status = 'waiting'",
    "queued has nothing open": "DELETE FROM task WHERE run_id = 'QUEUED'; "
    "UPDATE run SET updated_at = AGO WHERE run_id = 'QUEUED'",
}


def make_so(engine, statement, scene):
    """AGO: when a minute is just over. A name in capitals is the id of that run."""
    for name, run_id in scene.items():
        statement = statement.replace(name.upper(), run_id)
    engine.connection.execute(statement.replace("AGO", "now() - interval '61 s'").encode())


@pytest.mark.parametrize("why", STUCK)
async def test_what_nothing_moves_without_an_operator_is_stuck(api, engine, scene, why):
    make_so(engine, STUCK[why], scene)
    name = why.partition(" ")[0]
    assert await names(api, scene, "is:stuck") == [name]
    assert (await api.read("/runs/count", filter="is:stuck"))["count"] == 1
    assert await names(api, scene, "-is:stuck") == [each for each in FINDS[""].split() if each != name]
    assert name in await names(api, scene, "is:stuck,ended")


@pytest.mark.parametrize(
    ("session", "is_stuck"),
    [
        ("now() + interval '9 s', NULL, false", False),
        ("now() - interval '30 s', NULL, false", False),
        ("now() + interval '9 s', now() - interval '30 s', false", False),
        ("AGO, NULL, false", True),
        ("now() + interval '9 s', AGO, false", True),
        ("now() + interval '9 s', NULL, true", True),
    ],
)
async def test_a_queue_without_a_worker_is_given_a_minute(api, engine, scene, session, is_stuck):
    """A rolling restart strands nobody, however long the queue is."""
    make_so(engine, "UPDATE task SET changed_at = AGO WHERE run_id = 'QUEUED'", scene)
    statement = (
        "INSERT INTO worker_session (session_id, worker, queues, slots, seq, lease, renewed_at, expires_at, ended_at, "
        "draining) VALUES (gen_random_uuid(), 'w', '{slow}', 4, 1, '10 s', now(), GIVEN)"
    )
    make_so(engine, statement.replace("GIVEN", session), scene)
    assert await names(api, scene, "is:stuck") == (["queued"] if is_stuck else [])


@pytest.mark.parametrize(("seconds", "is_stuck"), [(90, False), (30, True)])
async def test_how_long_a_run_may_stand_before_it_is_stuck_is_a_setting(settings, engine, scene, seconds, is_stuck):
    """In every question that takes a filter of runs; the overview tells it to the console."""
    make_so(engine, "UPDATE task SET changed_at = AGO WHERE run_id = 'QUEUED'", scene)
    app = create_app(settings.model_copy(update={"api_stuck_seconds": seconds}))
    async with app.router.lifespan_context(app), client(app) as api:
        assert (await api.read("/overview"))["stuck_seconds"] == seconds
        assert await names(api, scene, "is:stuck") == (["queued"] if is_stuck else [])
        for path in ("count", "facets", "histogram"):
            assert (await api.read(f"/runs/{path}", filter="is:stuck"))["count"] == is_stuck, path
        asked = {"act": "cancel", "filter": "is:stuck", "reason": "", "dry_run": True}
        assert len((await api.post("/bulk", json=asked)).json()["run_ids"]) == is_stuck


async def test_what_undoes_a_task_may_be_stuck_in_a_queue_of_its_own(api, engine):
    await api.publish("name: undo\ntasks: { a: { run: x, compensate: { run: y, queue: rare } } }")
    scene = {"undo": await api.start("undo", {})}
    make_so(
        engine,
        "INSERT INTO worker_session (session_id, worker, queues, slots, seq, lease, renewed_at, expires_at) "
        "VALUES (gen_random_uuid(), 'w', '{default}', 4, 1, '10 s', now(), now() + interval '9 s'); "
        "UPDATE task SET changed_at = AGO",
        {},
    )
    assert await names(api, scene, "is:stuck") == []
    undoing = "INSERT INTO task (run_id, task, status, token, changed_at) VALUES ('UNDO', 200000000, 'queued', 1, AGO)"
    make_so(engine, undoing, scene)
    assert await names(api, scene, "is:stuck") == ["undo"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "a", "filter": "stats:1"},
        {"name": "a", "of": "workers"},
        {"name": "a", "layout": [1]},
        {"name": "a", "layout": {"a": "x" * 10_001}},
        {"name": "a", "of": "tasks", "filter": "took:>1s"},
    ],
)
async def test_a_view_that_cannot_be_shown_is_refused(api, body):
    assert (await api.post("/views", json=body)).status_code == 422
