"""A window of the console, and the engine behind it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, expect

from headrace.stack import Stack
from tests.browser.screenshots import WIDE, listed, size_of

SHOTS: Final = Path(__file__).parent / "shots"
_TELL_VIOLATIONS: Final = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""
WAIT_SECONDS: Final = 40.0
"""For a fact, on a machine that is busy with other tests."""


def new_context(browser: Browser) -> BrowserContext:
    width, height = WIDE
    return browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")


class Engine:
    """A whole Headrace, and a caller of its API."""

    def __init__(self, stack: Stack, http: httpx.Client) -> None:
        self.stack, self.http = stack, http

    def get(self, path: str, **query: Any) -> Any:
        response = self.http.get(path, params=query)
        assert response.is_success, response.text
        return response.json()

    def publish(self, text: str) -> None:
        answer = self.http.post("/workflows", content=text, headers={"content-type": "application/yaml"})
        assert answer.is_success, answer.text

    def start(self, workflow: str, **input: Any) -> str:
        answer = self.http.post(f"/workflows/{workflow}/runs", json={"input": input})
        assert answer.is_success, answer.text
        return str(answer.json()["run_id"])

    def post(self, path: str, **body: Any) -> Any:
        response = self.http.post(path, json=body)
        assert response.is_success, response.text
        return response.json()

    def put(self, path: str, **body: Any) -> None:
        response = self.http.put(path, json=body)
        assert response.is_success, response.text

    def login_path(self) -> str:
        """What logs one browser in."""
        return str(self.http.post("/login-codes").raise_for_status().json()["path"])

    def until(self, what: str, fact: Callable[[], Any], *, seconds: float = WAIT_SECONDS) -> Any:
        """Wait for a fact and answer it."""
        give_up_at = time.monotonic() + seconds
        while not (found := fact()):
            assert time.monotonic() < give_up_at, f"waited {seconds:g} s for {what}"
            time.sleep(0.1)
        return found

    def until_status(self, run_id: str, status: str) -> None:
        self.until(f"run {run_id} to be {status}", lambda: self.get(f"/runs/{run_id}")["status"] == status)

    def failed_order(self, order_id: str) -> tuple[str, str]:
        """A run that failed because the bank declined, and its dead letter."""
        run_id = self.start("orders", order_id=order_id, amount=9000)
        self.until_status(run_id, "failed")
        letter = self.until("the letter", lambda: self.get("/dead-letters", filter=f"run:{run_id}")["items"])[0]
        return run_id, str(letter["dead_letter_id"])

    def asking(self, workflow: str = "release", **input: Any) -> tuple[str, str]:
        """A run that waits for a decision, and the approval."""
        run_id = self.start(workflow, **input)
        self.until_status(run_id, "waiting")
        approvals = self.get("/approvals")["items"]
        return run_id, next(each["approval_id"] for each in approvals if each["run_id"] == run_id)


class Console:
    """The console in one window, and what went wrong in it."""

    def __init__(self, context: BrowserContext, base: str, name: str) -> None:
        """base: the address of the API that serves it."""
        context.add_init_script(_TELL_VIOLATIONS)
        self.page: Page = context.new_page()
        self.faults: list[str] = []
        self._base, self._name = base, name
        self.page.on("console", lambda said: self._note(said.type in ("error", "warning"), f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self._note(True, f"error: {error}"))
        self.page.on("dialog", self._refuse)
        self.page.on("response", lambda got: self._note(got.status >= 400, f"{got.status} {got.url}"))
        self.page.on("request", lambda sent: self._note(not sent.url.startswith((self._base, "data:")), sent.url))
        # A page that is left, or a list whose filter changed, gives up what it asked for.
        self.page.on(
            "requestfailed",
            lambda sent: self._note("ERR_ABORTED" not in (sent.failure or ""), f"failed: {sent.url} {sent.failure}"),
        )

    def _note(self, is_fault: bool, what: str) -> None:
        if is_fault:
            self.faults.append(what)

    def _refuse(self, dialog: Dialog) -> None:
        self._note(True, f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str) -> Page:
        """Open a page of the console, and wait until it shows what it is about."""
        self.page.goto(f"{self._base}/console{path}")
        self.settle()
        return self.page

    def settle(self) -> None:
        expect(self.page.locator("main h1").first).to_be_visible()
        expect(self.page.locator("main .bone")).to_have_count(0)

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        self.page.set_viewport_size({"width": width, "height": height})

    def shot(self, ending: str = "") -> None:
        """Keep what the page shows. It has to be in the list of docs/console.md, in this size."""
        SHOTS.mkdir(exist_ok=True)
        name = f"{self._name}{ending}.png"
        png = self.page.screenshot(path=SHOTS / name)
        told = listed().get(name)
        assert told == size_of(png), f"docs/console.md lists {name} as {told}: python -m tests.browser.screenshots"
