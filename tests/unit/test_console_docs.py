"""The page on the console lists the screenshots that its tests keep, and names tests that there are."""

import re
from importlib import import_module

from tests.browser.screenshots import PAGE, listed, of_tests, table

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_lists_every_screenshot_that_is_kept_and_no_others() -> None:
    assert table() in TEXT, "python -m tests.browser.screenshots prints the table of docs/console.md"
    assert listed() == {f"{kept.test}{ending}.png": kept.size for kept in of_tests() for ending in kept.endings}


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`tests/browser/(\w+)\.py::(\w+)`", TEXT)
    assert len(named) >= 3
    for module, test in named:
        assert callable(vars(import_module(f"tests.browser.{module}"))[test]), test
