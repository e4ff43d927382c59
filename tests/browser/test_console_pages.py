"""Every page opens without a fault, is legible to everybody, and shows the same to a colleague with its link."""

from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from tests.browser.window import Console, Engine

AXE: Final = Path(__file__).parents[2] / "api" / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"

PAGES = {
    "overview": "/",
    "runs": "/runs",
    "runs-failed": "/runs?status=failed&workflow=orders",
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
    "approvals": "/approvals",
    "approvals-parked": "/approvals?show=parked",
    "letters": "/dead-letters",
    "letters-each": "/dead-letters?tab=letters",
    "letters-replays": "/dead-letters?tab=replays",
    "letter": "/dead-letters/{letter}",
    "workflows": "/workflows",
    "workflow": "/workflows/orders",
    "launch": "/workflows/orders?tab=launch",
    "versions": "/workflows/orders?tab=versions",
    "triggers": "/triggers",
    "workers": "/workers",
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
    return {
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


@pytest.mark.parametrize("name", ["overview", "run-task", "approvals", "runs"])
def test_nothing_is_cut_off_on_a_small_screen(console: Console, scene: dict[str, str], name: str) -> None:
    console.page.set_viewport_size({"width": 1024, "height": 768})
    page = console.open(PAGES[name].format(**scene))
    assert page.evaluate("document.documentElement.scrollWidth") <= 1024


def test_a_link_shows_the_same_after_a_reload(console: Console, scene: dict[str, str]) -> None:
    page = console.open(f"/runs/{scene['failed']}?tab=tasks&only=open&find=char&task=charge")
    for _ in range(2):
        expect(page.get_by_role("tab", name="Tasks")).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("complementary", name="Task charge")).to_be_visible()
        expect(page.locator(".table-row")).to_have_count(1)
        page.reload()
        console.settle()


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
