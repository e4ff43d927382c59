"""The first five minutes, as a person has them: `headrace new`, `headrace dev`, and the console.

A crash in a wait and inside a body, an approval, a record that comes three times, a failure that is fixed and run
again, and at the end what `explain` and `doctor` say.
"""

import re
import textwrap
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.screenshots import name_of
from tests.browser.window import Console, new_context
from tests.integration.test_dev import Dev, headrace, wait_for

pytestmark = pytest.mark.slow

APP = """
    import time
    from pathlib import Path
    from headrace import Context, task

    @task("hello.look_up")
    def look_up(name: str, ctx: Context) -> str:
        with Path("looked-up").open("a") as file:
            print(name, file=file)
        if name == "Slow" and ctx.attempt == 1:
            time.sleep(60)  # long enough to be crashed inside
        return name

    @task("hello.send")
    def send() -> str:
        return "sent"

    @task("shop.charge")
    def charge(amount: int) -> int:
        return 100 // amount
"""
GREET = """
    name: greet
    tasks:
      look_up: { run: hello.look_up }
      cool_off: { needs: look_up, wait: { for: 20s } }
      ask: { needs: cool_off, approval: { title: Send the greeting? } }
      send: { run: hello.send, needs: ask }
"""
ORDER = """
    name: order
    tasks:
      validate: { run: hello.send }
      charge:
        run: shop.charge
        needs: validate
        with: { amount: "${{ input.amount }}" }
        retry: { attempts: 3, delay: 100ms }
      ship: { run: hello.send, needs: charge }
"""


@pytest.fixture
def dev(tmp_path: Path) -> Generator[Dev]:
    headrace(tmp_path, "new", "hello")
    folder = tmp_path / "hello"
    (folder / "app.py").write_text(textwrap.dedent(APP))
    (folder / "workflow.yaml").write_text(textwrap.dedent(GREET))
    (folder / "order.yaml").write_text(textwrap.dedent(ORDER))
    dev = Dev(folder)
    try:
        yield dev
        assert dev.stop() == 130
    finally:
        if dev.process.poll() is None:
            dev.kill()


@pytest.fixture
def console(request: pytest.FixtureRequest, browser: Browser, dev: Dev) -> Generator[Console]:
    context = new_context(browser)
    console = Console(context, dev.api, name_of(request.node.name))
    console.page.goto(dev.banner["login"])  # what the banner shows
    yield console
    console.shot()
    context.close()
    assert console.faults == []


def test_the_first_five_minutes(dev: Dev, console: Console) -> None:
    folder = dev.folder

    def read(path: str, **query: Any) -> Any:
        return httpx.get(dev.api + path, headers=dev.headers, params=query).raise_for_status().json()

    def tray(text: str) -> None:
        expect(console.page.locator(".tray")).to_contain_text(text)

    # a crash while nothing runs: the run needs no worker, and what has ended does not run again
    ada = headrace(folder, "run", "greet", "--input", '{"name": "Ada"}', "--detach")["run_id"]
    page = console.open(f"/runs/{ada}")
    expect(page.locator(".banner [data-code=WAIT]")).to_contain_text("cool_off")
    expect(page.locator(".timeline-row[data-task=look_up] .seg-completed")).to_have_count(1)
    expect(page.locator(".timeline-row[data-task=cool_off] .seg-asleep")).to_have_count(1)
    page = console.open("/workers")
    page.get_by_role("button", name="Crash …").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("as if its host were lost")
    page.get_by_role("dialog").get_by_role("button", name="Crash", exact=True).click()
    tray("as another session")

    # a crash inside a body: another worker has it, under a higher token
    slow = headrace(folder, "run", "greet", "--input", '{"name": "Slow"}', "--detach")["run_id"]
    page = console.open(f"/runs/{slow}?task=look_up")
    panel = page.get_by_role("complementary", name="Task look_up")
    panel.get_by_role("button", name="Crash its worker").click()
    page.get_by_role("dialog").get_by_role("button", name="Crash", exact=True).click()
    expect(panel.locator(".attempts [data-status=lost]")).to_be_visible()
    expect(panel.locator(".task-head [data-status=completed]")).to_be_visible()
    tokens = {each["outcome"]: each["token"] for each in read(f"/tasks/{slow}.look_up/attempts")["items"]}
    assert tokens["lost"] < tokens["completed"]
    assert (folder / "looked-up").read_text().split() == ["Ada", "Slow", "Slow"]

    # the approval, and its record
    page = console.open("/approvals")
    page.locator(".table-row", has_text=ada[-6:]).click()
    page.locator(".detail").get_by_role("button", name="Approve").click()
    page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    tray("ask is completed")
    page = console.open(f"/runs/{ada}?tab=audit")
    expect(page.locator(".table-row", has_text="decided")).to_contain_text("console")

    # a record that comes three times is one run, and the ledger says so
    event = ("--cloudevent", "--type", "order.created", "--source", "/shop")
    order = ("orders.created", "--data", '{"amount": 4}', *event, "--id", "order-1")
    mapping = '{"amount": "${{ input.data.amount }}"}'
    headrace(folder, "send", *order)
    headrace(folder, "subscribe", "orders", "orders.created", "--workflow", "order", "--input", mapping)
    for _ in range(2):
        headrace(folder, "send", *order)
    page = console.open("/triggers?name=orders")
    ledger = page.get_by_role("table", name="Records and their fates, newest first")
    expect(ledger.locator("[data-status=started]")).to_have_count(1)
    expect(ledger.locator("[data-status=duplicate]")).to_have_count(2)

    # a failure where it stands, its fix, and the rerun from there
    headrace(folder, "send", "orders.created", "--data", '{"amount": 0}', *event, "--id", "order-2")
    failed = wait_for(lambda: read("/runs", status="failed")["items"])[0]["run_id"]
    page = console.open(f"/runs/{failed}?tab=graph")
    expect(page.locator(".graph-node.is-failed")).to_contain_text("charge")
    page.locator(".graph-node.is-failed").click()
    panel = page.get_by_role("complementary", name="Task charge")
    expect(panel.locator(".attempts [data-status=failed]")).to_have_count(3)
    expect(panel).to_contain_text("ZeroDivisionError")
    (folder / "app.py").write_text(textwrap.dedent(APP).replace("100 // amount", "100 // max(amount, 1)"))
    dev.wait_text("the workers start anew")
    dev.wait_text("worker started")
    panel.get_by_role("button", name="Rerun from here").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("on version 1, the one that it is on")
    expect(dialog.get_by_role("row", name=re.compile("charge"))).to_contain_text("effect key")
    expect(dialog).to_contain_text("Reused as they stand: validate.")
    dialog.get_by_role("button", name="Rerun 2 tasks").click()
    tray("it helped: the run is completed")
    expect(page.locator(".graph-node.is-completed")).to_have_count(3)

    # why the other one does not move, and whether all is well
    wait_for(lambda: read(f"/runs/{slow}")["status"] == "waiting" and read("/approvals")["items"])
    assert headrace(folder, "explain", slow, "ask")["causes"][0]["code"] == "APPROVAL_OPEN"
    assert headrace(folder, "doctor")["ok"]
