"""The page that shows the machine is drawn by the machine."""

from pathlib import Path

from headrace.machine import TaskStatus
from headrace.machine.diagram import EVENTS, ROWS, draw

PAGE = Path(__file__).parents[2] / "docs" / "state_machine.md"


def test_the_page_is_what_the_machine_does():
    assert PAGE.read_text() == draw(), "python -m headrace.machine.diagram > docs/state_machine.md"


def test_the_page_shows_each_state_as_it_says():
    for row in ROWS:
        assert row.tell({}).subject.status.name == row.state
    assert {row.state for row in ROWS} == {status.name for status in TaskStatus}


def test_the_page_tells_every_event():
    page = draw()
    assert all(f"\n| {name} |" in page for name in EVENTS)
    assert ": 0 of " in page
