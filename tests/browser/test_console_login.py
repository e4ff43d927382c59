"""The console before and after it is known who looks at it."""

from collections.abc import Generator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.browser.window import Engine


@pytest.fixture
def stranger(browser: Browser) -> Generator[BrowserContext]:
    """A browser that nobody knows."""
    context = browser.new_context()
    yield context
    context.close()


def test_a_stranger_is_asked_and_sees_nothing_else(stranger: BrowserContext, engine: Engine) -> None:
    page = stranger.new_page()
    asked: list[str] = []
    page.on("response", lambda got: asked.append(f"{got.status} {got.url.removeprefix(engine.stack.api_url)}"))
    page.goto(engine.stack.console_url + "runs")
    expect(page.get_by_role("heading", name="Log in to Headrace")).to_be_visible()
    assert [each for each in asked if "/console/" not in each] == ["401 /session"]


def test_a_token_logs_in_and_a_wrong_one_says_so(stranger: BrowserContext, engine: Engine) -> None:
    page = stranger.new_page()
    page.goto(engine.stack.console_url)
    page.get_by_label("API token").fill("hr_nobody")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("this token is none")).to_be_visible()
    page.get_by_label("API token").fill(engine.stack.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("nav.nav")).to_be_visible()
    assert engine.stack.token not in str(page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})"))
    assert page.evaluate("document.cookie") == "", "no script sees the cookie"


def test_the_link_of_dev_logs_in_and_writes_are_taken(stranger: BrowserContext, engine: Engine) -> None:
    page = stranger.new_page()
    page.goto(engine.stack.api_url + engine.login_path())
    expect(page.locator("nav.nav")).to_be_visible()
    run_id, approval_id = engine.asking()
    page.goto(f"{engine.stack.console_url}runs/{run_id}")
    expect(page.locator("main h1").first).to_be_visible()
    session = page.evaluate("fetch('/session').then((answer) => answer.json())")
    decide = """([path, headers]) => fetch(path, {method: 'POST', headers}).then(
        async (answer) => [answer.status, (await answer.json()).code ?? null])"""
    path, said = f"/approvals/{approval_id}/approve", {"Headrace-Actor": "console"}
    assert page.evaluate(decide, [path, said]) == [403, "HR-1030"], "a page that does not know the session's token"
    assert page.evaluate(decide, [path, {**said, "X-CSRF-Token": session["csrf_token"]}]) == [200, None]
    assert engine.get(f"/approvals/{approval_id}")["status"] == "approved"


def test_who_logs_out_is_asked_again(stranger: BrowserContext, engine: Engine) -> None:
    page = stranger.new_page()
    page.goto(engine.stack.api_url + engine.login_path())
    page.get_by_title("Whom the record names for what you do").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in to Headrace")).to_be_visible()


def test_who_may_only_look_sees_every_button_and_why_it_is_off(stranger: BrowserContext, engine: Engine) -> None:
    made = engine.post("/tokens", name="reader", scopes=["read"])
    run_id = engine.start("lonely")
    page = stranger.new_page()
    page.goto(engine.stack.console_url)
    page.get_by_label("API token").fill(made["secret"])
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("nav.nav")).to_be_visible()
    page.goto(f"{engine.stack.console_url}runs/{run_id}")
    button = page.get_by_role("button", name="Cancel …")
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", "reader lacks the scope operate that this needs")
    page.goto(f"{engine.stack.console_url}audit")
    expect(page.get_by_text("reader lacks the scope admin")).to_be_visible()
