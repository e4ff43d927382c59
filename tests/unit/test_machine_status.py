"""The status of a run is a function of its tasks; and Postgres knows the same words."""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import reduce
from itertools import product
from operator import or_
from pathlib import Path

import pytest

from headrace.machine import RunStatus, TaskStatus, derive_status
from headrace.machine import status as of_the_machine
from headrace.machine.status import RUN_TERMINAL, TERMINAL
from tests import control_bits

STATE = Path(__file__).parents[2] / "state"
SPINE = STATE / "migrations" / "0001_spine.sql"
MASKS = re.compile(r"\bcontrol\b\s*[&|#]\s*(\d+)(?: /\* ([A-Z_ |]+) \*/)?")
"""In SQL: bits of `control`, and their names in a comment."""
PRESENT = list(product((0, 1, 2), repeat=len(TaskStatus)))
"""How many tasks are in each state, up to two of each."""


def _expected(present: Mapping[str, int], untouched: int, *, attention: bool) -> str:
    """The rule as a person would say it."""
    if attention:
        return "needs_attention"
    going_on = {name for name, count in present.items() if count and name in ("pending", "queued", "running")}
    if going_on or present["waiting"] or untouched:
        return "waiting" if present["waiting"] and not going_on else "running"
    if present["failed"]:
        return "failed"
    return "cancelled" if present["cancelled"] else "completed"


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("untouched", [0, 1])
def test_the_status_of_a_run_is_decided_for_every_multiset_of_states(untouched: int, attention: bool):
    for counts in PRESENT:
        present = dict(zip([status.value for status in TaskStatus], counts, strict=True))
        given = {TaskStatus(name): count for name, count in present.items() if count}
        status = derive_status(sum(counts) + untouched, given, attention=attention)
        assert status.value == _expected(present, untouched, attention=attention), given
        with_zeros = {TaskStatus(name): count for name, count in present.items()}
        assert derive_status(sum(counts) + untouched, with_zeros, attention=attention) is status


def test_a_run_has_ended_exactly_when_all_its_tasks_have():
    for counts in PRESENT:
        given = dict(zip(TaskStatus, counts, strict=True))
        has_ended = not any(count for status, count in given.items() if status not in TERMINAL)
        assert (derive_status(sum(counts), given, attention=False) in RUN_TERMINAL) is has_ended


@pytest.mark.parametrize(("name", "statuses"), [("task_status", TaskStatus), ("run_status", RunStatus)])
def test_statuses_equal_the_enums_in_postgres(name: str, statuses: type[StrEnum]):
    found = re.search(rf"CREATE TYPE {name} AS ENUM \(([^)]*)\)", SPINE.read_text())
    assert found is not None
    assert re.findall(r"'([^']*)'", found[1]) == [status.value for status in statuses]


def test_each_number_that_sql_asks_of_control_is_what_the_code_calls_so():
    found = [(file.name, *mask.groups()) for file in STATE.rglob("*.sql") for mask in MASKS.finditer(file.read_text())]
    assert {file for file, _, _ in found} >= {"0001_spine.sql", "doctor.sql", "explain.sql", "pause.sql", "permit.sql"}
    for file, number, names in found:
        assert names is not None, f"{file}: control & {number} says no name"
        bits = [getattr(of_the_machine, name) for name in names.split(" | ")]
        assert int(number) == reduce(or_, bits), f"{file}: control & {number} is not {names}"


def test_the_bits_that_checkers_know_are_those_of_the_code():
    said = {name: value for name, value in vars(control_bits).items() if name.isupper()}
    assert said == {name: getattr(of_the_machine, name) for name in said}
