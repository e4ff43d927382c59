"""What an operator asks in an incident is answered within two clicks from the overview.

Each test counts: a click is a press on what is on the page; nothing is typed and no address is known.
"""

import re
from collections.abc import Generator
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Locator, Page, expect

from headrace.embedded.kafka import ApacheKafka
from tests.browser.window import WAIT_SECONDS, Console, Engine

CLICKS_MAX = 2


class Scene(NamedTuple):
    lonely: str
    """Its task waits in a queue that nobody serves."""
    failed: str
    good: str
    shipping: str
    """Its last body takes as long as the scene."""
    asked: str
    """Two people agreed to it."""
    bulk: str


class Operator:
    """Somebody at the overview, whose clicks are counted."""

    def __init__(self, console: Console) -> None:
        self._console, self.clicks = console, 0
        self.page: Page = console.open("/")

    def click(self, what: Locator) -> Page:
        self.clicks += 1
        what.first.click()
        return self.page

    def navigate(self, word: str) -> Page:
        return self.click(self.page.get_by_role("navigation").get_by_role("link", name=word))


@pytest.fixture
def operator(console: Console) -> Generator[Operator]:
    operator = Operator(console)
    yield operator
    assert 0 < operator.clicks <= CLICKS_MAX


@pytest.fixture(scope="module")
def scene(engine: Engine, kafka: ApacheKafka) -> Scene:
    good = engine.start("orders", order_id="good", amount=10)
    engine.until_status(good, "completed")
    failed, _ = engine.failed_order("bad")
    bulk = engine.post("/bulk", act="rerun", run_ids=[failed], reason="the bank is back")["bulk_id"]
    engine.until("the turn of the bulk", lambda: engine.get(f"/bulk/{bulk}")["finished_at"])
    engine.until_status(failed, "failed")
    asked, question = engine.asking("refund", amount=120)
    for name in ("grace", "alan"):
        answer = engine.http.post(
            f"/approvals/{question}/approve",
            json={"form": {"reason": "it broke"}, "comment": f"{name} has seen it"},
            headers={"Headrace-Actor": name},
        )
        assert answer.is_success, answer.text
    engine.until_status(asked, "completed")
    engine.put("/pools/press", limit=1)
    engine.start("print")
    engine.start("print")
    engine.until("the queue of the pool", lambda: engine.get("/pools/press")["waiters"])
    shipping = engine.start("napping")
    engine.until("a worker to hold it", lambda: engine.get(f"/tasks/{shipping}.nap")["status"] == "running")
    topic = f"ten.{failed[-6:]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_SECONDS)
    engine.post("/subscriptions", name="ten", topic=topic, workflow="orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b'{"order_id": "from-a-record", "amount": 3}')
    producer.flush(WAIT_SECONDS)
    engine.until("the record", lambda: engine.get("/subscriptions/ten/records")["items"])
    lonely = engine.start("lonely")  # the newest, so that it stands on the overview
    return Scene(lonely, failed, good, shipping, asked, bulk)


def of_run(page: Page, run_id: str) -> Locator:
    return page.locator(f"a[href$='/runs/{run_id}']")


def test_why_is_this_not_running(operator: Operator, scene: Scene) -> None:
    page = operator.click(of_run(operator.page, scene.lonely))
    expect(page.locator(".banner [data-code=NO_WORKER]")).to_contain_text("No live worker serves queue nobody")


def test_who_holds_the_slots(operator: Operator, scene: Scene) -> None:
    operator.navigate("Workers")
    page = operator.click(operator.page.get_by_role("tab", name="Pools"))
    expect(page.locator(".detail")).to_contain_text("sheet")
    expect(page.locator(".detail")).to_contain_text("1 of 1")


def test_did_the_bulk_rerun_really_fix_them(operator: Operator, scene: Scene) -> None:
    operator.navigate("Bulk")
    page = operator.click(operator.page.locator(".table-row", has_text="the bank is back"))
    row = page.locator(".table-row", has_text=scene.failed[-6:])
    expect(row).to_contain_text("failed again")


def test_what_became_of_this_record(operator: Operator, scene: Scene) -> None:
    page = operator.navigate("Triggers")
    ledger = page.get_by_role("table", name="Records and their fates, newest first")
    expect(ledger.locator("[data-status=started]")).to_have_count(1)


def test_which_version_a_rerun_uses_and_what_it_repeats(operator: Operator, scene: Scene) -> None:
    operator.click(of_run(operator.page, scene.failed))
    page = operator.click(operator.page.locator(".run-head").get_by_role("button", name="Rerun"))
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("on version 1, the one that it is on")
    expect(dialog.locator("table")).to_contain_text("repeats")


def test_who_approved_this_and_what_they_saw(operator: Operator, scene: Scene) -> None:
    operator.click(of_run(operator.page, scene.asked))
    page = operator.click(operator.page.get_by_role("tab", name="Approvals and signals"))
    record = page.locator("main")
    for word in ("grace", "alan", "Refund 120 EUR?", "it broke"):
        expect(record).to_contain_text(word)


def test_what_changed_since_the_last_good_run(operator: Operator, scene: Scene) -> None:
    operator.click(of_run(operator.page, scene.failed))
    page = operator.click(operator.page.get_by_role("tab", name="Data"))
    expect(page.get_by_label("Input against the last good run")).to_contain_text("9000")


def test_which_worker_holds_this_task_and_when_it_last_spoke(operator: Operator, scene: Scene) -> None:
    operator.click(of_run(operator.page, scene.shipping))
    page = operator.click(operator.page.locator(".timeline-row[data-task=nap]"))
    panel = page.get_by_role("complementary", name="Task nap")
    expect(panel).to_contain_text(re.compile("worker.* last heard of"))


def test_what_is_stuck(operator: Operator, scene: Scene) -> None:
    page = operator.click(operator.page.locator(".tile", has_text="Stuck"))
    expect(page.locator("main h1")).to_contain_text("Runs")
