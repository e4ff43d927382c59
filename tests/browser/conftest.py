"""A real browser on the real API, Postgres and Kafka.

Every page that a test opens is watched: an error on its console, a request that fails, an answer above 399, a
violation of the content security policy or a dialog fails the test. What it showed last is kept in `shots/`.
"""

import os
import shutil
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import httpx
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from headrace.embedded.kafka import ApacheKafka
from headrace.stack import Stack
from tests.browser.browser_app import WORKFLOWS
from tests.browser.screenshots import name_of
from tests.browser.window import WAIT_SECONDS, Console, Engine, new_context

STUCK_SECONDS: Final = 5.0
"""Instead of a minute, so that a test can wait it out."""
CHROMIUMS: Final = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where the browser is: HEADRACE_TEST_CHROMIUM, or on the path. Debian's package is `chromium`."""
    found = os.environ.get("HEADRACE_TEST_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found is None:
        pytest.skip("no browser: apt-get install chromium, or say where one is by HEADRACE_TEST_CHROMIUM")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Generator[Browser]:
    """Not for the session: while it is there, Playwright's event loop runs in this thread, and no other one can."""
    expect.set_options(timeout=WAIT_SECONDS * 1000)
    with sync_playwright() as playwright:
        # Its sandbox needs more than a container or root has; it only ever sees our own pages.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def engine(
    request: pytest.FixtureRequest, kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Engine]:
    """One for all tests of a module: each makes runs of its own."""
    prefix = f"t{time.time_ns():x}"
    with (
        Stack(
            Path(__file__).parent / "browser_app.py",
            kafka=kafka.bootstrap,
            data=tmp_path_factory.mktemp("browser"),
            prefix=prefix,
            log_level="warning",
            queues=("default",),
            settings={"HEADRACE_SLOT": prefix, "HEADRACE_API_STUCK_SECONDS": f"{STUCK_SECONDS:g}"},
        ) as stack,
        httpx.Client(base_url=stack.api_url, timeout=20, headers={**stack.headers, "Headrace-Actor": "ada"}) as http,
    ):
        engine = Engine(stack, http)
        for workflow in WORKFLOWS:
            engine.publish(workflow)
        stack.wait_workers(1)
        yield engine


@pytest.fixture
def console(browser: Browser, engine: Engine, request: pytest.FixtureRequest) -> Generator[Console]:
    """Fails its test when anything goes wrong on the page, whatever the test looks at."""
    context = new_context(browser)
    context.request.get(engine.stack.api_url + engine.login_path(), max_redirects=0)
    console = Console(context, engine.stack.api_url, name_of(request.node.name))
    yield console
    console.shot()
    context.close()
    assert console.faults == []
