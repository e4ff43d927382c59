"""A real browser on the console: headless Chromium, and what a page took by its own clock.

A page is *usable* once what it is about stands on it, nothing of it is still loading, it was painted and its thread is
free. Chromium is Debian's, or the one that HEADRACE_TEST_CHROMIUM names.
"""

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

import httpx
from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright

from benchmarks.bench import Bench
from benchmarks.processes import families

CHROMIUMS: Final = ("chromium", "chromium-browser", "google-chrome")
USABLE_SECONDS: Final = 120.0
"""After so long a page is not waited for."""
LOWEST_PRIORITY: Final = 19
WIDTH: Final = 1440
HEIGHT: Final = 900

_ON_EVERY_PAGE: Final = """
performance.setResourceTimingBufferSize(20000);
addEventListener("pointerdown", () => { window.pressedAt = performance.now(); }, true);"""
_UNTIL_USABLE: Final = """
async ([selector, text, isPressed, seconds]) => {
  const since = isPressed ? window.pressedAt : 0;
  const isThere = () => !document.querySelector("main .bone")
    && [...document.querySelectorAll(selector)].some((found) => found.textContent.includes(text));
  while (!isThere()) {
    if (performance.now() - since > seconds * 1000) return null;
    await new Promise(requestAnimationFrame);
  }
  await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
  const ms = performance.now() - since;
  const asked = performance.getEntriesByType("resource")
    .filter((one) => one.initiatorType === "fetch" && one.startTime >= since && one.responseEnd);
  const waited = asked.map((one) => one.responseStart - one.requestStart);
  return { ms, requests: asked.length, api_ms: Math.max(0, ...waited) };
}"""
_WHEN_THERE: Final = """
async ([selector, text, seconds]) => {
  const end = performance.now() + seconds * 1000;
  while (![...document.querySelectorAll(selector)].some((found) => found.textContent.includes(text))) {
    if (performance.now() > end) return null;
    await new Promise(requestAnimationFrame);
  }
  return Date.now();
}"""
_ASKED: Final = 'performance.getEntriesByType("resource").filter((one) => one.initiatorType === "fetch").length'
_SCROLL_UNTIL_THERE: Final = """
async (table, [selector, row, seconds]) => {
  window.pressedAt = performance.now();
  const height = table.querySelector("[data-index], [data-task]").offsetHeight;
  while (!document.querySelector(selector) && performance.now() - window.pressedAt < seconds * 1000) {
    table.scrollTop = row * height;
    await new Promise(requestAnimationFrame);
  }
}"""

Seen = dict[str, float]
"""Of one page, or of one press: `ms` until it was usable, `requests` meanwhile, `api_ms` of the slowest of them until
its first byte, `heap_mib` behind a collection of garbage."""


class Fact(NamedTuple):
    """What stands on a page once it shows what it is about: an element with this text in it."""

    selector: str
    text: str = ""


class Window:
    """One page of the console."""

    def __init__(self, page: Page, base: str) -> None:
        """base: the address of the API that serves it."""
        self.page, self._base = page, base
        self._devtools = page.context.new_cdp_session(page)

    def open(self, path: str, fact: Fact) -> Seen:
        """Go there by its address."""
        self.page.goto(f"{self._base}/console{path}", wait_until="commit")
        return self._until(fact, is_pressed=False)

    def press(self, what: Locator, fact: Fact) -> Seen:
        what.click()
        return self._until(fact)

    def choose(self, what: Locator, option: str, fact: Fact) -> Seen:
        """An option of a list; counted from the press that would choose it."""
        self.page.evaluate("() => { window.pressedAt = performance.now(); }")
        what.select_option(option)
        return self._until(fact)

    def scroll(self, what: Locator, row: int, fact: Fact) -> Seen:
        """To a row: to the end of what is there, and on as more of it comes."""
        what.evaluate(_SCROLL_UNTIL_THERE, [fact.selector, row, USABLE_SECONDS])
        return self._until(fact)

    def asked(self) -> int:
        """How often the page has asked the API until now."""
        return int(self.page.evaluate(_ASKED))

    def when(self, fact: Fact) -> float:
        """Milliseconds since 1970 when it first stands there."""
        at: float | None = self.page.evaluate(_WHEN_THERE, [*fact, USABLE_SECONDS])
        if at is None:
            raise self._missing(fact)
        return at

    def _missing(self, fact: Fact) -> SystemExit:
        return SystemExit(f"bench: {self.page.url} does not show {fact} within {USABLE_SECONDS:g} s")

    def _until(self, fact: Fact, *, is_pressed: bool = True) -> Seen:
        found: Seen | None = self.page.evaluate(_UNTIL_USABLE, [*fact, is_pressed, USABLE_SECONDS])
        if found is None:
            raise self._missing(fact)
        self._devtools.send("HeapProfiler.collectGarbage")
        used = self._devtools.send("Runtime.getHeapUsage")["usedSize"]
        return {**found, "heap_mib": used / 2**20}


@contextlib.contextmanager
def open_browser() -> Generator[Browser]:
    """While it is open, this thread has an event loop, so nothing else may run one in it."""
    path = os.environ.get("HEADRACE_TEST_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if path is None:
        raise SystemExit("bench: no browser: apt-get install chromium, or name one by HEADRACE_TEST_CHROMIUM")
    with sync_playwright() as playwright:
        # Its sandbox needs more than a container or root has; it only ever sees our own pages.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def logged_in(browser: Browser, bench: Bench) -> Generator[BrowserContext]:
    """A browser that has never been here, but for its login."""
    with contextlib.closing(browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})) as context:
        context.add_init_script(_ON_EVERY_PAGE)
        answer = httpx.post(f"{bench.stack.api_url}/login-codes", headers=bench.stack.headers).raise_for_status()
        context.request.get(bench.stack.api_url + answer.json()["path"], max_redirects=0)
        yield context


def new_window(context: BrowserContext, bench: Bench) -> Window:
    return Window(context.new_page(), bench.stack.api_url)


def driver_pid() -> int:
    """The process that drives the browser of this one; the browser is its child. 0: none."""
    mine = families([os.getpid()])[os.getpid()]
    return next((pid for pid in mine if b"playwright/driver" in _command_line(pid)), 0)


def stand_back() -> None:
    """Give the browser the lowest priority, all of its threads and those that they start: what the engine can use of
    this machine comes first."""
    driver = driver_pid()
    if not driver:
        return
    for pid in families([driver])[driver]:
        with contextlib.suppress(OSError):  # it has just ended
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.setpriority(os.PRIO_PROCESS, int(thread), LOWEST_PRIORITY)


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
