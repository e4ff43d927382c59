"""Every page opens without a fault, is legible to everybody, and shows the same to a colleague with its link."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from tests.browser.screenshots import SMALL
from tests.browser.window import Console, Engine

PARTS: Final = 2_100
AXE: Final = Path(__file__).parents[2] / "api" / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"

PAGES = {
    "overview": "/",
    "runs": "/runs",
    "runs-failed": "/runs?filter=status:failed+workflow:orders",
    "run-timeline": "/runs/{failed}",
    "run-task": "/runs/{failed}?task=charge",
    "run-graph": "/runs/{failed}?tab=graph",
    "run-tasks": "/runs/{failed}?tab=tasks",
    "run-history": "/runs/{failed}?tab=history",
    "run-logs": "/runs/{failed}?tab=logs",
    "run-data": "/runs/{failed}?tab=data",
    "run-definition": "/runs/{failed}?tab=definition",
    "run-approvals": "/runs/{asking}?tab=approvals&task=ask",
    "run-parked": "/runs/{parked}?task=transfer",
    "run-unserved": "/runs/{lonely}",
    "run-map": "/runs/{imported}?task=rows",
    "run-item": "/runs/{imported}?tab=graph&task=rows.7",
    "run-signals": "/runs/{imported}?tab=approvals",
    "run-effects": "/runs/{undone}?tab=effects",
    "run-undone": "/runs/{undone}?tab=graph&task=hotel.compensate",
    "run-relations": "/runs/{parent}?tab=relations",
    "run-rounds": "/runs/{child}?task=poll",
    "run-audit": "/runs/{asking}?tab=audit",
    "run-pool": "/runs/{queued}?task=sheet",
    "approvals": "/approvals",
    "approval-votes": "/approvals?id={question}",
    "delegations": "/approvals?show=delegations",
    "approvals-parked": "/approvals?show=parked",
    "letters": "/dead-letters",
    "letters-each": "/dead-letters?tab=letters",
    "letters-filtered": "/dead-letters?tab=letters&filter=workflow:orders+error:bank",
    "letters-replays": "/dead-letters?tab=replays",
    "letter": "/dead-letters/{letter}",
    "workflows": "/workflows",
    "workflow": "/workflows/orders",
    "launch": "/workflows/orders?tab=launch",
    "versions": "/workflows/orders?tab=versions",
    "triggers": "/triggers",
    "publish": "/publish?workflow=orders",
    "workers": "/workers",
    "pools": "/workers?tab=pools",
    "pauses": "/workers?tab=pauses",
    "bulks": "/bulk",
    "bulk": "/bulk/{bulk}",
    "audit": "/audit",
    "system": "/system",
}


@pytest.fixture(scope="module")
def scene(engine: Engine) -> dict[str, str]:
    failed, letter = engine.failed_order("scene")
    asking, _ = engine.asking()
    parked = engine.start("payout", iban="DE02")
    engine.until_status(parked, "waiting")
    lonely = engine.start("lonely")
    imported = engine.start("import", rows=[{"number": number} for number in range(40)])
    engine.until_status(imported, "waiting")
    answer = engine.http.post("/subscriptions", json={"name": "scene", "topic": "scene.orders", "workflow": "orders"})
    assert answer.is_success, answer.text
    undone = engine.start("trip")
    engine.until_status(undone, "compensated")
    parent = engine.start("parcels")
    engine.until_status(parent, "completed")
    child = engine.get(f"/runs/{parent}/relations")["items"][0]["run_id"]
    _, question = engine.asking("refund", amount=120)
    engine.put("/pools/press", limit=1)
    engine.start("print")
    queued = engine.start("print")
    engine.until("the queue of the pool", lambda: engine.get("/pools/press")["waiters"])
    engine.post("/delegations", **{"from": "ada", "to": "grace", "ends_at": "2100-01-01T00:00:00Z"})
    engine.post("/queues/slow/pause", reason="the printer is away")
    bulk = engine.post("/bulk", act="pause", run_ids=[lonely], reason="to look at")["bulk_id"]
    return {
        "undone": undone,
        "parent": parent,
        "child": child,
        "question": question,
        "queued": queued,
        "bulk": bulk,
        "failed": failed,
        "letter": letter,
        "asking": asking,
        "parked": parked,
        "lonely": lonely,
        "imported": imported,
    }


def audit(page: Page) -> list[dict[str, Any]]:
    """What axe finds serious or worse."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [
        {"id": each["id"], "impact": each["impact"], "nodes": [node["html"][:160] for node in each["nodes"][:3]]}
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("name", PAGES)
def test_page_opens_and_is_legible(console: Console, scene: dict[str, str], name: str) -> None:
    page = console.open(PAGES[name].format(**scene))
    assert audit(page) == []
    page.emulate_media(color_scheme="dark")
    console.shot("-dark")
    assert audit(page) == []
    page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("name", ["overview", "run-task", "approvals", "runs"])
def test_nothing_is_cut_off_on_a_small_screen(console: Console, scene: dict[str, str], name: str) -> None:
    console.resize(SMALL)
    page = console.open(PAGES[name].format(**scene))
    assert page.evaluate("document.documentElement.scrollWidth") <= SMALL[0]


def test_a_link_shows_the_same_after_a_reload(console: Console, scene: dict[str, str]) -> None:
    page = console.open(f"/runs/{scene['failed']}?tab=tasks&only=open&find=char&task=charge")
    for _ in range(2):
        expect(page.get_by_role("tab", name="Tasks")).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("complementary", name="Task charge")).to_be_visible()
        expect(page.locator(".table-row")).to_have_count(1)
        page.reload()
        console.settle()


def test_a_second_tab_hears_the_stream_that_the_first_reads(console: Console, engine: Engine) -> None:
    page = console.open("/runs")
    expect(page.locator(".live")).to_contain_text("live")
    second = page.context.new_page()
    second.goto(f"{engine.stack.api_url}/console/runs")
    expect(second.locator(".live")).to_contain_text("live")
    expect(second.locator("main h1").first).to_be_visible()
    expect(second.locator("main .bone")).to_have_count(0)  # so the list is from before the run
    run_id = engine.start("lonely")
    expect(second.get_by_role("button", name=re.compile("new run"))).to_be_visible()
    second.get_by_role("button", name=re.compile("new run")).click()
    expect(second.locator(f"[data-row='{run_id}']")).to_be_visible()
    second.close()


def test_what_waits_says_why(console: Console, scene: dict[str, str]) -> None:
    page = console.open(f"/runs/{scene['lonely']}")
    expect(page.locator(".banner [data-code=NO_WORKER]")).to_contain_text("No live worker serves queue nobody")
    page = console.open(f"/runs/{scene['asking']}")
    expect(page.locator(".banner [data-code=APPROVAL_OPEN]")).to_be_visible()
    expect(page.locator(".banner").get_by_role("button", name="Approve")).to_be_visible()


def test_the_graph_is_laid_out_by_a_worker_that_is_a_file(console: Console, scene: dict[str, str]) -> None:
    page = console.open(f"/runs/{scene['failed']}?tab=graph")
    expect(page.locator(".graph-node.is-failed")).to_contain_text("charge")
    assert [worker.url for worker in page.workers if "/console/assets/elk-worker" in worker.url]
    page.locator(".graph-node", has_text="validate").click()
    expect(page.get_by_role("complementary", name="Task validate")).to_be_visible()


def test_tasks_that_stand_in_one_place_are_one_box_of_a_large_graph(console: Console, engine: Engine) -> None:
    """More than one page of tasks: all of them are there in the end."""
    parts = {f"part{number}": {"run": "shop.notify", "needs": ["first"]} for number in range(PARTS)}
    tasks = {"first": {"run": "shop.notify"}, **parts, "last": {"run": "shop.notify", "needs": [*parts]}}
    assert engine.http.post("/workflows", json={"name": "large", "tasks": tasks}).is_success
    run_id = engine.start("large")
    engine.until_status(run_id, "completed")
    page = console.open(f"/runs/{run_id}?tab=graph")
    expect(page.locator(".graph-node")).to_have_count(3)
    stack = page.locator(".graph-node", has_text="part0")
    expect(stack).to_contain_text(f"{PARTS}/{PARTS} ok")
    stack.click()
    expect(page.get_by_role("tab", name="Tasks")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".filters")).to_contain_text(f"{PARTS} of {PARTS + 2}")
    page = console.open(f"/runs/{run_id}?task=last")
    panel = page.get_by_role("complementary", name="Task last")
    needs = panel.locator(".needs").get_by_role("button")
    expect(needs.last).to_have_text(re.compile("and .* more"))
    assert needs.count() < 30
    needs.last.click()
    expect(needs).to_have_count(PARTS)


def test_a_map_is_counters_and_a_table_of_its_items(console: Console, scene: dict[str, str]) -> None:
    page = console.open(f"/runs/{scene['imported']}?task=rows")
    expect(page.locator(".timeline-row[data-task=rows]")).to_contain_text("36/40 ok, 4 failed")
    panel = page.get_by_role("complementary")
    panel.get_by_role("button", name="failed", exact=True).click()
    expect(panel.locator(".table-row")).to_have_count(4)
    panel.locator(".table-row").first.click()
    expect(page.get_by_role("complementary", name="Task rows.7")).to_contain_text("row 7 has no price")


def test_what_a_body_logged_is_found_by_its_text(console: Console, scene: dict[str, str]) -> None:
    page = console.open(f"/runs/{scene['failed']}?tab=logs")
    lines = page.get_by_role("log").locator(".log-line")
    expect(lines.first).to_contain_text("asked for")
    expect(lines.first).to_contain_text("markup=<img src=x onerror=alert(1)>")
    page.get_by_label("Text").fill("ORDER")
    expect(lines.first).to_be_visible()
    page.get_by_label("Text").fill("nobody says this")
    expect(page.get_by_text("Nothing was logged.")).to_be_visible()
    page.get_by_label("Text").fill("")
    lines.first.get_by_role("button").click()
    expect(page.get_by_role("complementary", name="Task charge")).to_be_visible()


def test_what_was_undone_stands_with_its_task(console: Console, scene: dict[str, str]) -> None:
    page = console.open(f"/runs/{scene['undone']}?tab=effects")
    expect(page.locator(".notice")).to_contain_text("2 of 2 undone")
    page.get_by_role("button", name="what undoes hotel").click()
    expect(page.get_by_role("complementary", name="Task hotel.compensate")).to_contain_text("shop.gift")
    page.get_by_role("tab", name="Graph").click()
    expect(page.locator(".graph-node", has_text="flight").locator(".graph-undo")).to_contain_text("undone: completed")


def test_parent_and_child_lead_to_each_other(console: Console, scene: dict[str, str]) -> None:
    page = console.open(f"/runs/{scene['parent']}?task=check")
    page.get_by_role("complementary").locator(f"a[href$='{scene['child']}']").click()
    expect(page.locator(".run-facts")).to_contain_text("check")
    expect(page.locator(".timeline-row[data-task=poll]")).to_contain_text("3 rounds")
    page.locator(".timeline-row[data-task=poll]").click()
    expect(page.get_by_role("complementary").locator(".attempts")).to_contain_text("round 3")
    page.get_by_role("tab", name="Relations").click()
    page.locator(".facts a").first.click()
    expect(page).to_have_url(re.compile(scene["parent"]))


def test_who_holds_the_slots_is_two_presses_away(console: Console, scene: dict[str, str]) -> None:
    page = console.open(f"/runs/{scene['queued']}")
    page.locator(".banner [data-code=SLOT_AWAITED]").get_by_role("link", name="pool").click()
    expect(page.get_by_role("table", name="Holders of press")).to_contain_text("sheet")
    expect(page.get_by_role("table", name="Queue of press").locator(f"a[href$='{scene['queued']}']")).to_be_visible()


def test_chips_and_text_are_one_filter(console: Console, scene: dict[str, str]) -> None:
    page = console.open("/runs?filter=workflow:orders")
    box = page.get_by_label("Filter", exact=True)
    expect(box).to_have_value("workflow:orders")
    box.fill("workflow:orders   status:failed,cancelled")
    box.press("Enter")
    chips = page.get_by_role("group", name="Clauses of the filter")
    expect(chips).to_contain_text("status failed or cancelled")
    expect(page).to_have_url(re.compile("status%3Afailed%2Ccancelled"))
    expect(page.get_by_label("How many match")).to_have_text("1")
    facets = page.get_by_role("complementary", name="What they are")
    facets.get_by_role("button", name=re.compile("^failed")).click()
    expect(box).to_have_value("workflow:orders status:failed,cancelled status:failed")
    chips.get_by_role("button", name="Remove workflow:orders").click()
    expect(box).to_have_value("status:failed,cancelled status:failed")


def test_a_filter_that_is_wrong_says_what_was_meant(console: Console, scene: dict[str, str]) -> None:
    page = console.open("/runs")
    page.get_by_label("Filter", exact=True).fill("statsu:failed")
    expect(page.locator(".field-error")).to_contain_text("status")
    expect(page.locator(".table-row").first).to_be_visible()  # what was shown stays
    console.faults[:] = [fault for fault in console.faults if "422" not in fault]  # what was just shown


def test_a_stretch_of_time_is_chosen_by_dragging_over_it(console: Console, scene: dict[str, str]) -> None:
    page = console.open("/runs")
    bars = page.locator(".histogram-bars.brushed")
    expect(bars).to_be_visible()
    area = bars.bounding_box()
    assert area is not None
    page.mouse.move(area["x"] + 1, area["y"] + 10)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] - 1, area["y"] + 10)
    page.mouse.up()
    chips = page.get_by_role("group", name="Clauses of the filter")
    expect(chips.get_by_role("button", name=re.compile("^Remove started:>="))).to_be_visible()
    expect(chips.get_by_role("button", name=re.compile("^Remove started:<"))).to_be_visible()


def test_a_filter_is_kept_as_a_view_for_others(console: Console, engine: Engine, scene: dict[str, str]) -> None:
    page = console.open("/runs?filter=workflow:payout")
    page.get_by_role("button", name="Keep as a view").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("Payouts")
    dialog.get_by_label("For all").select_option("true")
    dialog.get_by_role("button", name="Keep", exact=True).click()
    views = page.get_by_role("group", name="Views")
    expect(views.get_by_role("button", name="Payouts")).to_have_attribute("aria-pressed", "true")
    (view,) = [each for each in engine.get("/views", of="runs")["items"] if each["name"] == "Payouts"]
    assert (view["filter"], view["owner"], view["is_shared"]) == ("workflow:payout", "console", True)


def test_a_label_is_a_chip_that_lists_the_runs_which_have_it(console: Console, engine: Engine) -> None:
    customer, clause = "acme, Inc. *", 'label.customer:"acme, Inc. \\*"'
    run_id = engine.post("/workflows/lonely/runs", labels={"customer": customer, "region": "eu"})["run_id"]
    engine.post("/workflows/lonely/runs", labels={"customer": customer, "region": "us"})
    engine.post("/workflows/lonely/runs", labels={"customer": "acme"})
    page = console.open(f"/runs/{run_id}")
    page.locator(".run-facts").get_by_role("link", name=f"customer {customer}").click()
    console.settle()
    box, matching = page.get_by_label("Filter", exact=True), page.get_by_label("How many match")
    expect(box).to_have_value(clause)
    expect(matching).to_have_text("2")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Labels", exact=True).check()
    page.get_by_text("Columns", exact=True).click()
    row = page.locator(f".table-row[data-row='{run_id}']")
    row.get_by_role("button", name="region eu").click()
    expect(box).to_have_value(f"{clause} label.region:eu")
    expect(matching).to_have_text("1")
    expect(page.locator(".table-row")).to_have_count(1)
    page.get_by_role("group", name="Clauses of the filter").get_by_role("button", name=f"Remove {clause}").click()
    facets = page.get_by_role("complementary", name="What they are")
    expect(facets.get_by_role("heading", name="label.region")).to_be_visible()
    assert audit(page) == []


def test_an_address_that_is_none_says_so(console: Console, engine: Engine) -> None:
    page = console.page
    page.goto(f"{engine.stack.api_url}/console/no/such/page")
    expect(page.get_by_text("The console has no such page.")).to_be_visible()


def test_everything_is_reached_by_keyboard(console: Console, scene: dict[str, str]) -> None:
    page = console.open("/")
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", name="Runs", level=1)).to_be_visible()
    console.settle()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Timeline")).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog", name="Go to")).to_be_visible()
    page.keyboard.type("dead letters")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Dead letters", level=1)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_columns_are_picked_and_kept_in_the_address_and_the_browser(console: Console, engine: Engine) -> None:
    run_id = engine.start("lonely")
    page = console.open("/runs")
    heads = page.locator("[role=columnheader]")
    usual = ["", "Status", "Run", "Version", "Tasks", "Started by", "Started", "Duration"]
    expect(heads).to_have_text(usual)
    page.locator(".picker summary").click()
    picker = page.get_by_role("group", name="Columns")
    picker.get_by_label("Tasks").uncheck()
    picker.get_by_label("Priority").check()
    page.keyboard.press("Escape")
    picked = [head for head in usual if head != "Tasks"] + ["Priority"]
    expect(heads).to_have_text(picked)
    expect(page).to_have_url(re.compile("columns="))
    console.open("/runs")
    expect(heads).to_have_text(picked)
    console.open("/runs?columns=status")
    expect(heads).to_have_text(["", "Status", "Run"])
    expect(page.locator(f"[data-row='{run_id}']")).to_be_visible()


def test_a_row_is_as_wide_as_its_columns_where_the_window_is_not(console: Console, engine: Engine) -> None:
    run_id = engine.start("lonely")
    page = console.open("/runs?columns=status,version,tasks,trigger,created,took,ended,deadline,priority,labels")
    page.set_viewport_size({"width": 760, "height": 700})
    row = page.locator(f"[data-row='{run_id}']")
    expect(row).to_be_visible()
    ends = "(each) => [each, each.lastElementChild].map((one) => one.getBoundingClientRect().right)"
    whole, last = row.evaluate(ends)
    assert whole >= last, "the last column hangs out of its row"
    assert whole == page.locator(".faceted .table-head").evaluate(ends)[0]
    page.set_viewport_size({"width": 1440, "height": 900})
