"""Deadlines and repeats in a definition: what may be written, its one spelling, and what is refused."""

import json
from typing import Any

import pytest

from headrace.errors import DefinitionError
from headrace.graph import Workflow, build, from_data, json_schema
from headrace.machine import compile_plan


def graph(**task: Any) -> Workflow:
    return from_data({"name": "w", "tasks": {"before": {"run": "b"}, "a": {"run": "a", "needs": "before", **task}}})


def written(workflow: Workflow) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(workflow.canonical())
    return content


@pytest.mark.parametrize(
    ("given", "spelt"),
    [
        ("2h", {"for": "2h"}),
        (7200, {"for": "2h"}),
        ({"for": "120m"}, {"for": "2h"}),
        ({"until": "2026-12-24T18:00:00+01:00"}, {"until": "2026-12-24T17:00:00Z"}),
        ("${{ tasks.before.output.limit }}", {"for": "${{ tasks.before.output.limit }}"}),
        ({"until": '${{ nextWeekday(now, "18:00", "UTC") }}'}, {"until": '${{ nextWeekday(now, "18:00", "UTC") }}'}),
    ],
)
def test_a_deadline_has_one_spelling(given: object, spelt: object) -> None:
    workflow = graph(deadline=given)
    assert written(workflow)["tasks"]["a"]["deadline"] == spelt
    assert Workflow.model_validate_json(workflow.canonical()).digest == workflow.digest


def test_a_run_has_a_deadline_and_a_hand_out_its_time_in_the_queue() -> None:
    workflow = from_data({"name": "w", "deadline": 86400, "tasks": {"a": {"run": "a", "start_within": "5m"}}})
    plan = compile_plan(workflow)
    assert (plan.deadline, plan.tasks[0].start_within) == (86_400_000_000, 300_000_000)
    assert written(workflow)["deadline"] == "1d"


def test_an_output_that_only_a_deadline_reads_is_kept() -> None:
    plan = compile_plan(graph(deadline="${{ tasks.before.output.limit }}"))
    assert plan.tasks[0].is_referenced
    assert plan.tasks[0].is_read


def test_a_repeat_compiles() -> None:
    repeat = {"until": "${{ output.done && index > 1 }}", "max": 5, "delay": "30s", "on_max": "complete"}
    plan = compile_plan(graph(repeat=repeat, **{"with": {"last": "${{ last }}"}}))
    compiled = plan.tasks[1].repeat
    assert compiled is not None
    assert (compiled.max, compiled.delay, compiled.on_max, compiled.reads_last) == (5, 30_000_000, "complete", True)
    assert written(graph(repeat=repeat))["tasks"]["a"]["repeat"]["until"] == "output.done && index > 1"


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"deadline": "0s"}, "tasks.a.deadline.for", "must be longer than 0s"),
    ({"deadline": {"for": "1h", "until": "2026-12-24T18:00:00Z"}}, "tasks.a.deadline", "either `for` or `until`"),
    ({"deadline": {"until": "2026-12-24T18:00:00"}}, "tasks.a.deadline.until", "offset"),
    ({"deadline": "${{ tasks.later.output }}"}, "tasks.a.deadline", "there is no task later"),
    ({"start_within": "soon"}, "tasks.a.start_within", "no duration"),
    ({"repeat": {"until": "output.done"}}, "tasks.a.repeat.max", "is missing"),
    ({"repeat": {"max": 3}}, "tasks.a.repeat.until", "is missing"),
    ({"repeat": {"until": "true", "max": 1001}}, "tasks.a.repeat.max", "1000"),
    ({"repeat": {"until": "last.done", "max": 3}}, "tasks.a.repeat.until", "only the `with` of a repeat"),
    ({"repeat": {"until": "true", "max": 3}, "map": [1]}, "tasks.a", "no `map`"),
    ({"repeat": {"until": "true", "max": 3, "times": 2}}, "tasks.a.repeat.times", "unknown field"),
    ({"with": "${{ last }}"}, "tasks.a.with", "only the `with` of a repeat"),
    ({"if": "output.done"}, "tasks.a.if", "only the `until` of a repeat"),
]


@pytest.mark.parametrize(("task", "path", "message"), FAULTS)
def test_what_cannot_be_is_named_with_its_path(task: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        graph(**task)
    assert [(fault.path, message in fault.message) for fault in raised.value.faults] == [(path, True)]


@pytest.mark.parametrize("what", [{"wait": {"for": "1h"}}, {"signal": "paid"}])
@pytest.mark.parametrize("limit", [{"deadline": "1h"}, {"start_within": "1h"}, {"repeat": {"until": "true", "max": 2}}])
def test_what_only_waits_has_no_body_to_limit(what: dict[str, Any], limit: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=f"leave out {next(iter(limit))}"):
        from_data({"name": "w", "tasks": {"a": {**what, **limit}}})


def test_python_writes_the_same() -> None:
    built = build("w", deadline="1d").task(
        "a", run="a", deadline="2h", start_within="5m", repeat={"until": "output.done", "max": 3}
    )
    task = {"run": "a", "deadline": "2h", "start_within": "5m", "repeat": {"until": "output.done", "max": 3}}
    assert built.publishable() == from_data({"name": "w", "deadline": "1d", "tasks": {"a": task}})


def test_the_schema_for_editors_knows_them() -> None:
    properties = json_schema()["$defs"]["Task"]["properties"]
    assert {"deadline", "start_within", "repeat"} <= properties.keys()
    assert {"type": ["string", "number"], "exclusiveMinimum": 0} in properties["deadline"]["anyOf"]
