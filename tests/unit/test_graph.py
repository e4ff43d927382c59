"""What a definition may say, and what it is told when it is wrong."""

import json
import re
import string
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator

from headrace.document import BYTES_MAX, DEPTH_MAX, VALUES_MAX
from headrace.duration import format_duration, parse_duration
from headrace.errors import DefinitionError, Fault
from headrace.graph import (
    ATTEMPTS_MAX,
    TASKS_MAX,
    Approval,
    Child,
    Retry,
    Signal,
    Task,
    Wait,
    Workflow,
    build,
    from_data,
    json_schema,
    parse,
)
from headrace.machine import compile_plan

DOCS = Path(__file__).parents[2] / "docs" / "graph.md"


def faults_of(text: str | bytes) -> list[Fault]:
    with pytest.raises(DefinitionError) as caught:
        parse(text)
    return caught.value.faults


def tasks(*lines: str) -> str:
    return "\n".join(["name: w", "tasks:", *(f"  {line}" for line in lines)])


# == what is read ======================================================================================================
def test_every_field_of_the_format_is_read() -> None:
    workflow = parse(
        tasks(
            "validate: { run: orders.validate }",
            "charge:",
            "  run: payments.charge",
            "  needs: [validate]",
            "  if: ${{ tasks.validate.output.total > 0 }}",
            "  with: { order: '${{ input }}', n: 1, x: 1.0, yes: no }",
            "  queue: io",
            "  retry: { attempts: 5, backoff: linear, delay: 500ms, cap: 1m30s, jitter: 0 }",
            "  timeout: 30",
            "  approval: { title: Really?, approvers: lead, expires: 2d, on_expiry: approve }",
            "  exclusive: true",
            "  effect: reconcile",
            "  lookup: payments.find",
            "  join: on_failure",
        )
    )
    assert list(workflow.tasks) == ["validate", "charge"]
    charge = workflow.tasks["charge"]
    assert charge == Task(
        run="payments.charge",
        needs=("validate",),
        if_="tasks.validate.output.total > 0",
        with_={"order": "${{ input }}", "n": 1, "x": 1.0, "yes": "no"},
        queue="io",
        retry=Retry(
            attempts=5, backoff="linear", delay=timedelta(milliseconds=500), cap=timedelta(seconds=90), jitter=0.0
        ),
        timeout=timedelta(seconds=30),
        approval=Approval(title="Really?", approvers=("lead",), expires=timedelta(days=2), on_expiry="approve"),
        exclusive=True,
        effect="reconcile",
        lookup="payments.find",
        join="on_failure",
    )
    assert type(charge.with_["n"]) is int
    assert type(charge.with_["x"]) is float


def test_what_is_left_out_has_the_documented_default() -> None:
    task = parse(tasks("a: { run: r }")).tasks["a"]
    assert (task.needs, task.if_, task.with_, task.queue, task.timeout, task.approval) == (
        (),
        None,
        None,
        "default",
        None,
        None,
    )
    assert (task.exclusive, task.effect, task.lookup, task.join) == (False, "idempotent", None, "all")
    assert parse(tasks("a: { run: r }")).output is None
    assert task.retry == Retry(
        attempts=3, backoff="exponential", delay=timedelta(seconds=1), cap=timedelta(minutes=1), jitter=0.2
    )


def test_short_forms_mean_the_long_ones() -> None:
    short = parse(tasks("a: { run: r }", "b: { run: r, needs: a, retry: 5, if: true }"))
    long = parse(tasks("a: { run: r }", "b: { run: r, needs: [a], retry: { attempts: 5 }, if: '${{ true }}' }"))
    assert short.canonical() == long.canonical()


def test_a_task_may_be_only_an_approval() -> None:
    assert parse(tasks("ask: { approval: {} }")).tasks["ask"].approval == Approval()


@pytest.mark.parametrize("word", ["on", "yes", "no", "off", "y", "true", "null", "NO"])
def test_words_that_older_yaml_takes_for_booleans_are_names(word: str) -> None:
    workflow = parse(tasks(f"{word}: {{ run: {'on' if word in ('true', 'null') else word} }}"))
    assert list(workflow.tasks) == [word]


def test_plain_scalars_follow_yaml_1_2() -> None:
    given = "{ run: r, with: [no, 2020-01-01, 12:30, 1_000, 0x1F, ~, True, .5, 1.0e+3, '5', \"5\", -7] }"
    assert parse(tasks(f"a: {given}")).tasks["a"].with_ == [
        "no", "2020-01-01", "12:30", "1_000", 31, None, True, 0.5, 1000.0, "5", "5", -7,
    ]  # fmt: skip


def test_an_alias_repeats_its_anchor() -> None:
    workflow = parse(tasks("a: { run: r, retry: &often { attempts: 9 } }", "b: { run: r, retry: *often }"))
    assert workflow.tasks["b"].retry.attempts == 9


def test_json_keeps_surrogate_pairs_and_takes_tabs() -> None:
    text = '{\n\t"name": "w",\n\t"tasks": {"a": {"run": "r", "with": "\\ud83d\\ude00"}}}'
    assert parse(text).tasks["a"].with_ == "😀"
    assert parse(text.encode()) == parse(text)


def test_later_changes_to_the_data_change_nothing() -> None:
    data = {"name": "w", "tasks": {"a": {"run": "r", "with": {"x": [1]}}}}
    workflow = from_data(data)
    data["tasks"]["a"]["with"]["x"].append(2)  # type: ignore[index]
    assert workflow.tasks["a"].with_ == {"x": [1]}


# == faults ============================================================================================================
FAULTS = [
    # the text
    ("", "", 1, "empty"),
    ("# only a comment\n", "", 1, "empty"),
    ("name: w\ntasks: [\n", "", 3, "YAML: "),
    ("name: w\ntasks:\n\ta: 1\n", "", 3, "YAML: "),
    ("name: w\nx: \x01\n", "", 2, "YAML: "),
    (b"name: w\nx: \xff\n", "", 2, "not UTF-8"),
    ("name: w\nx: \x00\n", "", 2, "U+0000"),
    ("name: w\nx: \ud800\n", "", 2, "surrogate"),
    ("name: w\n---\nname: v\n", "", 2, "second document"),
    ('{"name": "w",\n "tasks": {,}}', "", 2, "JSON: expected a key"),
    ('{"name": "w",\n "tasks": {"a": {"run": NaN}}}', "", 2, "JSON: expected a value"),
    ('{"name": "w"}\n{}', "", 2, "JSON: something follows"),
    ('{"name": "w"', "", 1, "JSON: expected ','"),
    ('{"name":\n"w', "", 2, "JSON: "),
    ("- a\n- b", "", 1, "must be a map, not a list"),
    ("just text", "", 1, "must be a map, not text"),
    (" " * (BYTES_MAX + 1), "", 1, "bytes are too many"),
    # a limit
    ("name: w\nlimit: 3\ntasks: { a: { run: r } }", "limit", 2, "must be a map"),
    ("name: w\nlimit: { runs: 0 }\ntasks: { a: { run: r } }", "limit.runs", 2, "greater than or equal to 1"),
    ("name: w\nlimit: { run: 1 }\ntasks: { a: { run: r } }", "limit.run", 2, "did you mean runs?"),
    ("name: w\nlimit: { over: wait }\ntasks: { a: { run: r } }", "limit.over", 2, "must be 'queue', 'reject'"),
    ("name: w\nlimit: { key: c }\ntasks: { a: { run: r } }", "limit", 2, "the same for all runs: leave it out"),
    ('name: w\nlimit: { key: "${{ ( }}" }\ntasks: { a: { run: r } }', "limit.key", 2, ""),
    ('name: w\nlimit: { key: "${{ tasks.a.output }}" }\ntasks: { a: { run: r } }', "limit.key", 2, "sees only `input`"),
    # keys and values that mean trouble
    (tasks("a: { run: r }", "b: { run: r }", "a: { run: s }"), "tasks.a", 5, "duplicate task name, first on line 3"),
    (tasks("a:", "  run: r", "  run: s"), "tasks.a.run", 5, "duplicate key, first on line 4"),
    ('{"name": "w",\n"tasks": {"a": {"run": "r"},\n"a": {"run": "r"}}}', "tasks.a", 3, "duplicate task name, first on"),
    (tasks("a:", "  run: r", '  with: { x: "\\0" }'), "tasks.a.with.x", 5, "U+0000"),
    (tasks("a:", "  run: r", '  with: { "x\\0": 1 }'), "tasks.a.with", 5, "key must not hold"),
    ('{"name": "w", "tasks": {"a":\n{"run": "r", "with": "\\ud800"}}}', "tasks.a.with", 2, "surrogate"),
    (tasks("a: { run: r, with: 007 }"), "tasks.a.with", 3, "different things to different readers"),
    (tasks("a: { run: r, with: [1e3] }"), "tasks.a.with[0]", 3, "different things to different readers"),
    (tasks("a: { run: r, with: .nan }"), "tasks.a.with", 3, "JSON has no such number"),
    (tasks("a: { run: r, with: 1.0e+999 }"), "tasks.a.with", 3, "JSON has no such number"),
    (tasks("a: { run: r, with: 9223372036854775808 }"), "tasks.a.with", 3, "64 bits"),
    (tasks("a: { run: r, with: !!python/name:os.system x }"), "tasks.a.with", 3, "tags such as"),
    (tasks("a: { run: r, with: !!binary aGk= }"), "tasks.a.with", 3, "tags such as"),
    (tasks("a: &x { run: r }", "b:", "  <<: *x"), "", 5, "merge keys"),
    (tasks("a: &x { run: r, with: *x }"), "", 3, "before its anchor is complete"),
    (tasks("? [1]", ": { run: r }"), "", 3, "a key must be text"),
    # fields
    ("tasks: { a: { run: r } }", "name", 1, "is missing"),
    ("name: w", "tasks", 1, "is missing"),
    ("name: w\ntasks: {}", "tasks", 2, "at least 1"),
    ("name: w\ntasks: [a]", "tasks", 2, "must be a map, not a list"),
    ("name: 12\ntasks: { a: { run: r } }", "name", 1, "must be text, not a number"),
    ("name: a/b\ntasks: { a: { run: r } }", "name", 1, "no name of a workflow"),
    ("name: w\nversion: 2\ntasks: { a: { run: r } }", "version", 2, "unknown field; known are name, description"),
    (tasks("a:"), "tasks.a", 3, "must be a map, not null"),
    (tasks("a: {}"), "tasks.a", 3, "must have `run`, `approval`, or both"),
    (tasks("a:", "  run: r", "  tiemout: 3s"), "tasks.a.tiemout", 5, "unknown field; did you mean timeout?"),
    (tasks("a:", "  run: r", "  if_: x"), "tasks.a.if_", 5, "unknown field; did you mean if?"),
    (tasks("a: { run: [r] }"), "tasks.a.run", 3, "must be text, not a list"),
    (tasks("a: { run: a b }"), "tasks.a.run", 3, "no name of a body"),
    (tasks("a: { run: r, queue: IO }"), "tasks.a.queue", 3, "no name of a queue"),
    (tasks("a: { run: r, needs: 3 }"), "tasks.a.needs", 3, "must be a list, not a number"),
    (tasks("a: { run: r, needs: [3] }"), "tasks.a.needs[0]", 3, "must be text, not a number"),
    (tasks("a: { run: r, if: 3 }"), "tasks.a.if", 3, "must be text, not a number"),
    (tasks("a: { run: r, with: }"), "tasks.a.with", 3, "null says nothing"),
    (tasks("a: { run: r, timeout: soon }"), "tasks.a.timeout", 3, "'soon' is no duration"),
    (tasks("a: { run: r, timeout: 0 }"), "tasks.a.timeout", 3, "longer than 0s"),
    (tasks("a: { run: r, timeout: -1 }"), "tasks.a.timeout", 3, "between 0 and"),
    (tasks("a: { run: r, timeout: 4000d }"), "tasks.a.timeout", 3, "between 0 and"),
    (tasks("a: { run: r, timeout: true }"), "tasks.a.timeout", 3, "write a duration"),
    (tasks("a: { run: r, retry: 0 }"), "tasks.a.retry.attempts", 3, "greater than or equal to 1"),
    (tasks(f"a: {{ run: r, retry: {ATTEMPTS_MAX + 1} }}"), "tasks.a.retry.attempts", 3, "less than or equal to"),
    (tasks("a: { run: r, retry: true }"), "tasks.a.retry", 3, "must be a map, not true or false"),
    (tasks("a: { run: r, retry: { attempts: '5' } }"), "tasks.a.retry.attempts", 3, "must be a number, not text"),
    (tasks("a: { run: r, retry: { backoff: slow } }"), "tasks.a.retry.backoff", 3, "'exponential', 'linear' or"),
    (tasks("a: { run: r, retry: { jitter: 2 } }"), "tasks.a.retry.jitter", 3, "less than or equal to 1"),
    (tasks("a: { run: r, retry: { delay: 5m } }"), "tasks.a.retry", 3, "cap 1m is below delay 5m"),
    (tasks("a: { run: r, retry: { tries: 5 } }"), "tasks.a.retry.tries", 3, "unknown field; known are attempts"),
    (tasks("a: { approval: { approvers: [1] } }"), "tasks.a.approval.approvers[0]", 3, "must be text"),
    (tasks("a: { approval: { needed: 0 } }"), "tasks.a.approval.needed", 3, "greater than or equal to 1"),
    (tasks("a: { approval: { approvers: [x, y], needed: 3 } }"), "tasks.a.approval", 3, "only 2 may approve"),
    (tasks("a: { approval: { on_reject: shrug } }"), "tasks.a.approval.on_reject", 3, "'fail' or 'complete'"),
    (tasks("a: { approval: { remind: [soon] } }"), "tasks.a.approval.remind[0]", 3, "is no duration"),
    (tasks("a: { approval: { on_expiry: escalate, escalate: [{ to: x }], approvers: y } }"), "tasks.a.approval", 3,
     "needs `expires`"),
    (tasks("a: { approval: { on_expiry: escalate, expires: 1h } }"), "tasks.a.approval", 3, "needs `escalate`"),
    (tasks("a: { approval: { approvers: x, escalate: [{ to: y }] } }"), "tasks.a.approval", 3, "needs `after`"),
    (tasks("a: { approval: { escalate: [{ to: y, after: 1h }] } }"), "tasks.a.approval", 3, "needs `approvers`"),
    (tasks("a: { approval: { approvers: x, escalate: [{ too: y, after: 1h, to: z }] } }"),
     "tasks.a.approval.escalate[0].too", 3, "did you mean to?"),
    (tasks("a: { approval: { form: { type: 7 } } }"), "tasks.a.approval.form.type", 3, "not valid"),
    (tasks("a: { approval: { context: { x: '${{ tasks.b.output }}' } } }"), "tasks.a.approval.context.x", 3,
     "there is no task b"),
    (tasks("a: { approval: { title: '${{ nope( }}' } }"), "tasks.a.approval.title", 3, ""),
    (tasks("a: { approval: { on_expiry: shrug } }"), "tasks.a.approval.on_expiry", 3, "'fail', 'approve', 'reject' or"),
    (tasks("a: { run: r }", "b:", "  run: r", "  exclusive: 1"), "tasks.b.exclusive", 6, "a valid boolean"),
    (tasks("a: { run: r, exclusive: yes }"), "tasks.a.exclusive", 3, "a valid boolean"),
    (tasks("a: { run: r, effect: hope }"), "tasks.a.effect", 3, "'idempotent', 'reconcile' or 'manual'"),
    (tasks("a:", "  run: r", "  lookup: a b"), "tasks.a.lookup", 5, "no name of a body"),
    (tasks("a: { run: r }", "b:", "  run: r", "  lookup: r.find"), "tasks.b", 4, "and `lookup` go together"),
    (tasks("a: { run: r, effect: manual, lookup: r.find }"), "tasks.a", 3, "and `lookup` go together"),
    (tasks("a: { run: r }", "b: { run: r, effect: reconcile }"), "tasks.b", 4, "and `lookup` go together"),
    (tasks("a: { approval: {}, exclusive: true }"), "tasks.a", 3, "`exclusive` and `effect` need a `run`"),
    (tasks("a: { approval: {}, effect: manual }"), "tasks.a", 3, "`exclusive` and `effect` need a `run`"),
    (tasks("a: { approval: {}, effect: reconcile, lookup: r }"), "tasks.a", 3, "`effect` need a `run`"),
    (tasks("a: { run: r, lockup: r.find }"), "tasks.a.lockup", 3, "did you mean lookup?"),
    # edges
    (tasks("a: { run: r }", "b:", "  run: r", "  needs:", "  - a", "  - c"), "tasks.b.needs[1]", 8, "no task 'c'"),
    (tasks("check: { run: r }", "b: { run: r, needs: chekc }"), "tasks.b.needs", 4, "did you mean check?"),
    (tasks("a: { run: r }", "b: { run: r, needs: [a, a] }"), "tasks.b.needs[1]", 4, "needs a twice"),
    # joins
    (tasks("a: { run: r }", "b:", "  run: r", "  needs: a", "  join: most"), "tasks.b.join", 7, "must be all, any,"),
    (tasks("a: { run: r }", "b: { run: r, needs: a, join: 0 }"), "tasks.b.join", 4, "or how many of its needs"),
    (tasks("a: { run: r }", "b: { run: r, needs: a, join: true }"), "tasks.b.join", 4, "must be all, any, always"),
    (tasks("a: { run: r }", "b: { run: r, needs: a, join: [any] }"), "tasks.b.join", 4, "must be all, any, always"),
    (tasks("a: { run: r, join: finally }"), "tasks.a.join", 3, "there is nothing to join: a has no needs"),
    (tasks("a: { run: r }", "b: { run: r, needs: a, join: finally, approval: {} }"), "tasks.b", 4, "no `approval`"),
    (tasks("a: { run: r }", "b: { wait: { for: 3s }, needs: a, join: finally }"), "tasks.b", 4, "no `wait`"),
    (tasks("a: { run: r }", "b: { signal: s, needs: a, join: finally }"), "tasks.b", 4, "no `signal`"),
    (tasks("a: { run: r }", "b: { run: r, needs: a, join: finally, compensate: u }"), "tasks.b", 4, "undoes that"),
    (tasks("a: { run: r }", "b:", "  run: r", "  needs: [a]", "  join: 2"), "tasks.b.join", 7, "b has 1 needs"),
    (tasks("a: { run: r, join: any }"), "tasks.a.join", 3, "nothing to join: a has no needs"),
    (tasks("a: { run: r, jion: any }"), "tasks.a.jion", 3, "did you mean join?"),
    # maps
    (tasks("a: { map: [1] }"), "tasks.a", 3, "must have `run`"),
    (tasks("a: { approval: {}, map: [1] }"), "tasks.a", 3, "a `map` needs a `run`"),
    (tasks("a: { run: b, map: 7 }"), "tasks.a.map", 3, "must be a map, not a number"),
    (tasks("a: { run: b, map: soon }"), "tasks.a.map.over", 3, "must be a list of up to 10,000 items, or one ${{ … }}"),
    (tasks("a: { run: b, map: { over: [1], max_parallel: 0 } }"), "tasks.a.map.max_parallel", 3, "greater than"),
    (tasks("a: { run: b, map: { over: [1], failures: none } }"), "tasks.a.map.failures", 3, "'fail_fast', 'finish'"),
    (tasks("a: { run: b, map: { over: [1], paralel: 3 } }"), "tasks.a.map.paralel", 3, "did you mean max_parallel?"),
    (tasks("a: { run: b, map: '${{ item }}' }"), "tasks.a.map", 3, "only the `with` of a map knows its items"),
    (tasks("a: { run: b, map: '${{ tasks.c.output }}' }"), "tasks.a.map", 3, "there is no task c"),
    (tasks("a: { run: b, map: '${{ 1 + }}' }"), "tasks.a.map", 3, "syntax error"),
    (tasks("a: { run: b, with: '${{ index }}' }"), "tasks.a.with", 3, "unknown variable index"),
    (tasks("a: { run: b, if: 'item == 1', map: [1] }"), "tasks.a.if", 3, "unknown variable item"),
    (tasks("a: { wait: { for: 1s }, map: [1] }"), "tasks.a", 3, "leave out map"),
    # compensations
    (tasks("a: { approval: {}, compensate: b }"), "tasks.a", 3, "a `compensate` needs a `run`, which it undoes"),
    (tasks("a: { wait: { for: 1s }, compensate: b }"), "tasks.a", 3, "leave out compensate"),
    (tasks("a: { run: r, compensate: 7 }"), "tasks.a.compensate", 3, "must be a map, not a number"),
    (tasks("a: { run: r, compensate: a b }"), "tasks.a.compensate.run", 3, "no name of a body"),
    (tasks("a:", "  run: r", "  compensate:", "    retry: 2"), "tasks.a.compensate.run", 5, "is missing"),
    (tasks("a: { run: r, compensate: { run: u, quueue: x } }"), "tasks.a.compensate.quueue", 3, "did you mean queue?"),
    (tasks("a: { run: r, compensate: { run: u, with: null } }"), "tasks.a.compensate.with", 3, "null says nothing"),
    (tasks("a: { run: r, compensate: { run: u, with: '${{ tasks.b.output }}' } }", "b: { run: r }"),
     "tasks.a.compensate.with", 3, "which is not upstream: add it to the needs of a"),
    (tasks("a: { run: r, compensate: { run: u, with: '${{ 1 + }}' } }"), "tasks.a.compensate.with", 3, "syntax error"),
    (tasks("a: { run: r, with: '${{ task.output }}', compensate: u }"), "tasks.a.with", 3, "unknown variable task"),
    # waits
    (tasks("a: { wait: { for: 3d, until: 2026-01-01T00:00:00Z } }"), "tasks.a.wait", 3, "either `for` or `until`"),
    (tasks("a: { wait: {} }"), "tasks.a.wait", 3, "either `for` or `until`"),
    (tasks("a: { wait: 3d }"), "tasks.a.wait", 3, "must be a map, not text"),
    (tasks("a:", "  wait:", "    for: soon"), "tasks.a.wait.for", 5, "'soon' is no duration"),
    (tasks("a: { wait: { for: 0 } }"), "tasks.a.wait.for", 3, "longer than 0s"),
    (tasks("a: { wait: { until: 2026-03-29T09:00 } }"), "tasks.a.wait.until", 3, "says no offset"),
    (tasks("a: { wait: { until: 2026-03-29 } }"), "tasks.a.wait.until", 3, "says no offset"),
    (tasks("a: { wait: { until: tomorrow } }"), "tasks.a.wait.until", 3, "is no instant: write 2026-03-29T09:00:00Z"),
    (tasks("a: { wait: { until: 2026-02-30T09:00:00Z } }"), "tasks.a.wait.until", 3, "is no instant: day"),
    (tasks("a: { wait: { until: 3 } }"), "tasks.a.wait.until", 3, "must be text, not a number"),
    (tasks("a: { wait: { till: 3d } }"), "tasks.a.wait.till", 3, "unknown field; did you mean until?"),
    (tasks("a: { wait: { for: 3d }, run: r, retry: 5 }"), "tasks.a", 3, "does nothing else: leave out run, retry"),
    (tasks("a:", "  wait:", "    until: ${{ nextDay(now, '09:00', 'X') }}"), "tasks.a.wait.until", 5, "time zone 'X'"),
    (tasks("a:", "  wait:", "    until: ${{ nextDay(now, '9', 'UTC') }}"), "tasks.a.wait.until", 5, "no time of day"),
    (tasks("a:", "  wait:", "    until: ${{ nextDay(now, 'UTC') }}"), "tasks.a.wait.until", 5, "takes 3 arguments"),
    (tasks("a:", "  wait:", "    until: on ${{ now }}"), "tasks.a.wait.until", 5, "the whole of it in one"),
    (tasks("a:", "  wait:", "    for: ${{ tasks.b.output }}"), "tasks.a.wait.for", 5, "there is no task b"),
    (tasks("a: { run: r }", "b: { wait: { for: '${{ tasks.a.output }}' } }"), "tasks.b.wait.for", 4, "not upstream"),
    # signals
    (tasks("a: { signal: {} }"), "tasks.a.signal.name", 3, "is missing"),
    (tasks("a: { signal: 7 }"), "tasks.a.signal", 3, "must be a map, not a number"),
    (tasks("a: { signal: a b }"), "tasks.a.signal.name", 3, "'a b' is no name of a signal"),
    (tasks("a: { signal: { name: s, kee: x } }"), "tasks.a.signal.kee", 3, "did you mean key?"),
    (tasks("a: { signal: { name: s, timeout: soon } }"), "tasks.a.signal.timeout", 3, "'soon' is no duration"),
    (tasks("a: { signal: { name: s, timeout: 0 } }"), "tasks.a.signal.timeout", 3, "longer than 0s"),
    (tasks("a: { signal: { name: s, on_timeout: complete } }"), "tasks.a.signal", 3, "`on_timeout` needs a `timeout`"),
    (tasks("a: { signal: { name: s, on_timeout: skip } }"), "tasks.a.signal.on_timeout", 3, "'fail' or 'complete'"),
    (tasks("a: { signal: { name: s, delivery: all } }"), "tasks.a.signal", 3, "`delivery` needs a `key`"),
    (tasks("a: { signal: { name: s, key: k, delivery: some } }"), "tasks.a.signal.delivery", 3, "'first' or 'all'"),
    (tasks("a: { signal: s, run: r }"), "tasks.a", 3, "a `signal` does nothing else: leave out run"),
    (tasks("a: { signal: s, timeout: 3s }"), "tasks.a", 3, "the time-out of a signal is `signal: {timeout: …}`"),
    (tasks("a: { signal: s, wait: { for: 3d } }"), "tasks.a", 3, "a `wait` does nothing else: leave out signal"),
    (tasks("a: { signal: { name: s, key: '' } }"), "tasks.a.signal.key", 3, "at least 1"),
    (tasks("a: { signal: { name: s, key: '${{ input. }}' } }"), "tasks.a.signal.key", 3, "syntax error at column 7"),
    (tasks("a: { run: r }", "b: { signal: { name: s, key: '${{ tasks.a.output }}' } }"), "tasks.b.signal.key", 4,
     "not upstream"),
    (tasks("a: { run: r }", "b: { signal: { name: s, timeout: '${{ tasks.c.output }}' } }"), "tasks.b.signal.timeout",
     4, "there is no task c"),
    # children
    (tasks("a: { workflow: {} }"), "tasks.a.workflow.name", 3, "is missing"),
    (tasks("a: { workflow: 7 }"), "tasks.a.workflow", 3, "must be a map, not a number"),
    (tasks("a: { workflow: a b }"), "tasks.a.workflow.name", 3, "'a b' is no name of a workflow"),
    (tasks("a: { workflow: { name: o, verion: 2 } }"), "tasks.a.workflow.verion", 3, "did you mean version?"),
    (tasks("a: { workflow: { name: o, version: 0 } }"), "tasks.a.workflow.version", 3, "greater than or equal to 1"),
    (tasks("a: { workflow: { name: o, on_cancel: stop } }"), "tasks.a.workflow.on_cancel", 3, "'cancel' or 'abandon'"),
    (tasks("a: { workflow: { name: o, wait: false, on_cancel: abandon } }"), "tasks.a.workflow", 3,
     "`on_cancel` is for a task that waits"),
    (tasks("a: { workflow: o, run: r }"), "tasks.a", 3, "a `workflow` does nothing else: leave out run"),
    (tasks("a: { workflow: o, retry: 5, map: [1] }"), "tasks.a", 3, "leave out retry, map"),
    (tasks("a: { signal: s, workflow: o }"), "tasks.a", 3, "a `signal` does nothing else: leave out workflow"),
    (tasks("a: { workflow: w }"), "tasks.a.workflow", 3, "a workflow cannot start itself: w -> w"),
    (tasks("a: { workflow: { name: w, version: 1 } }"), "tasks.a.workflow", 3, "a workflow cannot start itself"),
    (tasks("a: { run: r, if: now > timestamp(input.x) }"), "tasks.a.if", 3, "only a wait knows what time it is"),
    # names that were
    (tasks("a: { run: r, was: a }"), "tasks.a.was", 3, "is its name now"),
    (tasks("a: { run: r, was: b c }"), "tasks.a.was", 3, "'b c' is no name of a task"),
    (tasks("a: { run: r, was: b }", "b: { run: r }"), "tasks.a.was", 3, "b has the effect keys of b"),
    (tasks("a: { run: r, was: c }", "b: { run: r, was: c }"), "tasks.b.was", 4, "a has the effect keys of c"),
    (tasks("a: { run: r, was: b }", "b: { run: r, was: a }", "c: { run: r, was: a }"), "tasks.c.was", 5,
     "b has the effect keys of a"),
    # what comes out
    ("output: 3\n" + tasks("a: { run: r }"), "output", 1, "must be a map, not a number"),
    ("output:\n  x: 1\n  y: ${{ tasks.b.output }}\n" + tasks("a: { run: r }"), "output.y", 3, "there is no task b"),
    ("output: { x: ['${{ 1 + }}'] }\n" + tasks("a: { run: r }"), "output.x[0]", 1, "syntax error at"),
    # expressions
    (tasks("a:", "  run: r", "  with:", "    x: 1", "    y: ${{ 1 + }}"), "tasks.a.with.y", 7, "syntax error at"),
    (tasks("a: { run: r, with: ['', '${{ input'] }"), "tasks.a.with[1]", 3, "not closed"),
    (tasks("a: { run: r, with: '${{ foo }}' }"), "tasks.a.with", 3, "unknown variable foo"),
    (tasks("a: { run: r, with: '${{ tasks[input.x].output }}' }"), "tasks.a.with", 3, "must be named"),
    (tasks("a: { run: r, with: '${{ tasks.b.output }}' }"), "tasks.a.with", 3, "there is no task b"),
    (tasks("a: { run: r, with: '${{ tasks.a.output }}' }"), "tasks.a.with", 3, "its own output"),
    (tasks("a: { run: r, with: { '${{ input }}': 1 } }"), 'tasks.a.with["${{ input }}"]', 3, "key cannot hold"),
    (tasks("a: { run: r }", "b:", "  run: r", "  if: tasks.a.output"), "tasks.b.if", 6, "a, which is not upstream"),
    (tasks("a: { run: r, if: 'x y' }"), "tasks.a.if", 3, "unknown variable x"),
    (tasks("a: { run: r, if: '${{ true }} and ${{ true }}' }"), "tasks.a.if", 3, "whole condition in one"),
    # the schema of the input
    ("input: { type: thing }\n" + tasks("a: { run: r }"), "input.type", 1, "is not valid"),
    ("input: 3\n" + tasks("a: { run: r }"), "input", 1, "must be a map, not a number"),
    ("input:\n  not: { $ref: 'http://x/y' }\n" + tasks("a: { run: r }"), "input.not[\"$ref\"]", 2, "inside the schema"),
    ("input: { $ref: '#/$defs/no' }\n" + tasks("a: { run: r }"), 'input["$ref"]', 1, "nothing stands at"),
    ("input: { pattern: '(' }\n" + tasks("a: { run: r }"), "input.pattern", 1, "no regular expression"),
    ("input: { $schema: 'urn:x' }\n" + tasks("a: { run: r }"), 'input["$schema"]', 1, "unknown dialect"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "line", "message"), FAULTS, ids=[fault[3][:30] for fault in FAULTS])
def test_a_fault_has_its_path_and_line(text: str | bytes, path: str, line: int, message: str) -> None:
    faults = faults_of(text)
    assert [(fault.path.replace("'", '"'), fault.line) for fault in faults] == [(path, line)], faults
    assert message in faults[0].message


def test_all_faults_come_at_once_in_the_order_of_the_document() -> None:
    text = tasks(
        "a: { run: r, needs: [a], queue: IO }",
        "b c: { run: r }",
        "d: { with: '${{ tasks.e.output }}', needs: [e, zzz] }",
        "e: { run: r, needs: [d] }",
        "f: { run: r, run: r, with: '${{ nope }}' }",
    )
    faults = faults_of(text)
    assert [(fault.line, fault.path) for fault in faults] == [
        (3, "tasks.a.needs[0]"),
        (3, "tasks.a.queue"),
        (4, "tasks['b c']"),
        (5, "tasks.d"),
        (5, "tasks.d.needs[0]"),
        (5, "tasks.d.needs[1]"),
        (7, "tasks.f.run"),
        (7, "tasks.f.with"),
    ]


def test_parsed_data_has_the_same_faults_without_lines() -> None:
    text = tasks("a: { run: r, needs: [b], queue: IO }", "b: { run: r, needs: [a], wiht: 1 }", "c: {}")
    with pytest.raises(DefinitionError) as caught:
        from_data(yaml.safe_load(text))
    expected = [Fault(fault.path, fault.message) for fault in faults_of(text)]
    assert len(expected) == 4
    assert caught.value.faults == expected


@pytest.mark.parametrize("value", [{1, 2}, b"x", float("nan"), float("inf"), object(), 2**63, {1: 2}, "\0", "\udc00"])
def test_data_that_is_not_json_is_a_fault(value: object) -> None:
    with pytest.raises(DefinitionError) as caught:
        from_data({"name": "w", "tasks": {"a": {"run": "r", "with": {"x": [value]}}}})
    assert [fault.path for fault in caught.value.faults] == ["tasks.a.with.x[0]"]


def test_the_source_comes_back_with_the_error() -> None:
    with pytest.raises(DefinitionError) as caught:
        parse("name: [", source="orders.yaml")
    assert caught.value.fields["source"] == "orders.yaml"


def test_a_fault_reads_well() -> None:
    with pytest.raises(DefinitionError, match=r"^line 3: tasks\.a\.queue: 'IO' is no name of a queue: a small letter"):
        parse(tasks("a: { run: r, queue: IO }"))


# == upstream ==========================================================================================================
def test_an_output_may_be_used_from_any_distance_upstream() -> None:
    chain = ["t0: { run: r }"]
    chain += [f"t{i}: {{ run: r, needs: [t{i - 1}], with: '${{{{ tasks.t{i // 2}.output }}}}' }}" for i in range(1, 50)]
    assert len(parse(tasks(*chain)).tasks) == 50


def test_a_sibling_is_not_upstream() -> None:
    faults = faults_of(
        tasks(
            "a: { run: r }",
            "b: { run: r, needs: a }",
            "c: { run: r, needs: a, with: '${{ tasks.b.output }}' }",
            "d: { run: r, needs: [b, c], with: '${{ tasks.b.output }}' }",
        )
    )
    assert faults == [
        Fault("tasks.c.with", "uses the output of b, which is not upstream: add it to the needs of c", line=5)
    ]


# == B88: size and depth ===============================================================================================
def test_b88_a_chain_of_5000_tasks_is_published() -> None:
    lines = ["t0: { run: r }"]
    lines += [
        f"t{i}: {{ run: r, needs: [t{i - 1}], with: '${{{{ tasks.t{i - 1}.output.n }}}}' }}" for i in range(1, 5_000)
    ]
    workflow = parse(tasks(*lines))
    assert len(workflow.tasks) == 5_000
    assert Workflow.model_validate_json(workflow.canonical()) == workflow


def test_b88_a_cycle_of_5000_tasks_is_found_and_written_short() -> None:
    lines = [f"t{i}: {{ run: r, needs: [t{(i + 1) % 5_000}] }}" for i in range(5_000)]
    (fault,) = faults_of(tasks(*lines))
    assert fault.message.startswith("the needs form a cycle: t0 -> t1 -> ")
    assert fault.message.endswith(" -> t4999 -> t0")
    assert len(fault.message) < 300


def test_b88_ten_thousand_tasks_fit_and_one_more_does_not() -> None:
    data: dict[str, Any] = {"name": "w", "tasks": {f"t{i}": {"run": "r"} for i in range(TASKS_MAX)}}
    data["tasks"]["join"] = {"run": "r", "needs": list(data["tasks"])}
    with pytest.raises(DefinitionError) as caught:
        from_data(data)
    assert [(fault.path, "at most 10000" in fault.message) for fault in caught.value.faults] == [("tasks", True)]
    del data["tasks"]["t0"]
    data["tasks"]["join"]["needs"].remove("t0")
    assert len(from_data(data).tasks) == TASKS_MAX


@pytest.mark.parametrize("opening", ["[", '{"a":', "{a: "])
def test_b88_nesting_of_10000_is_refused(opening: str) -> None:
    (fault,) = faults_of("name: w\nx: " + opening * 10_000)
    assert fault.message in (f"nested more than {DEPTH_MAX} deep", "YAML: exceeded maximum nesting depth")
    (fault,) = faults_of('{"x": ' + ("[" if opening == "[" else '{"a":') * 10_000)
    assert fault.message == f"nested more than {DEPTH_MAX} deep"


def test_b88_nested_data_of_10000_is_refused() -> None:
    nested: Any = 1
    for _ in range(10_000):
        nested = [nested]
    with pytest.raises(DefinitionError, match="nested more than 64 deep"):
        from_data({"name": "w", "tasks": {"a": {"run": "r", "with": nested}}})


def test_b88_block_indentation_of_10000_is_refused() -> None:
    assert "nested more than" in faults_of("- " * 10_000 + "x")[0].message


def test_b88_aliases_inside_aliases_are_refused() -> None:
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    began = time.process_time()
    (fault,) = faults_of("\n".join(bomb))
    assert fault.message == f"more than {VALUES_MAX} values, with what the aliases repeat"
    assert time.process_time() - began < 5


def test_b88_aliases_cannot_nest_deeper_than_text() -> None:
    chain = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 100))]
    assert "nested more than" in faults_of("\n".join(chain))[0].message


def test_b88_a_text_that_is_wrong_everywhere_has_a_bounded_list_of_faults() -> None:
    faults = faults_of(tasks(*(f"t{i}: {{ run: '{i}' }}" for i in range(3_000))))
    assert len(faults) == 1_001
    assert faults[-1] == Fault("", "and 2000 more faults")


# == B89: odd names ====================================================================================================
ODD_NAMES = [
    "a/b", "a#b", "a%2Fb", "../x", "é", "e\u0301", "🚰", "a\u200fb", "a" * 101, "a ", " a", "a'b", "a|b", "a\nb",
    "a\tb", "", "1a", "-a", "_a", "a.b", "a:b", 'a"b', "a\\b", "<b>",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_b89_odd_task_names_are_refused_at_publish(name: str) -> None:
    data = {"name": "w", "tasks": {name: {"run": "r"}}}
    ways: list[Callable[[], object]] = [
        lambda: parse(json.dumps(data)),
        lambda: parse(yaml.safe_dump(data)),
        lambda: build("w").task(name, run="r").publishable(),
    ]
    for refuse in ways:
        with pytest.raises(DefinitionError, match="no name of a task: a letter, then up to 99 letters") as caught:
            refuse()
        assert len(caught.value.faults) == 1
        assert str(caught.value).isascii()


@pytest.mark.parametrize("name", [name for name in ODD_NAMES if name != "a.b"])
def test_b89_odd_workflow_and_body_names_are_refused_at_publish(name: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        build(name).task("a", run=name).publishable()
    assert [fault.path for fault in caught.value.faults] == ["name", "tasks.a.run"]


@pytest.mark.parametrize("name", ["A", "a" * 100, "a-b_c", "in", "input", "tasks", "null"])
def test_b89_plain_names_are_taken_and_can_be_referred_to(name: str) -> None:
    build("w").task(name, run="r").task("z", run="r", needs=name, if_=f'tasks["{name}"].output.ok').publishable()


# == B90: cycles and edges =============================================================================================
def test_b90_a_self_loop_is_refused_and_named() -> None:
    assert faults_of(tasks("A: { run: r, needs: [A] }")) == [
        Fault("tasks.A.needs[0]", "a task cannot need itself: A -> A", line=3)
    ]


def test_b90_a_cycle_of_two_is_refused_and_named() -> None:
    assert faults_of(tasks("A: { run: r, needs: B }", "B: { run: r, needs: A }")) == [
        Fault("tasks.A.needs", "the needs form a cycle: A -> B -> A", line=3)
    ]


def test_b90_every_knot_is_named_once_by_its_shortest_cycle() -> None:
    faults = faults_of(
        tasks(
            "root: { run: r }",
            "a: { run: r, needs: [root, b] }",
            "b: { run: r, needs: [c, d] }",
            "c: { run: r, needs: [a] }",
            "d: { run: r, needs: [c] }",
            "x: { run: r, needs: [a, y] }",
            "y: { run: r, needs: [x] }",
            "behind: { run: r, needs: [y] }",
        )
    )
    assert faults == [
        Fault("tasks.a.needs[1]", "the needs form a cycle: a -> b -> c -> a", line=4),
        Fault("tasks.x.needs[1]", "the needs form a cycle: x -> y -> x", line=8),
    ]


def test_b90_duplicate_task_names_are_refused_in_python_too() -> None:
    with pytest.raises(DefinitionError) as caught:
        build("w").task("a", run="r").task("a", run="s").publishable()
    assert caught.value.faults == [Fault("tasks.a", "duplicate task name")]


def test_b90_an_edge_to_an_unknown_task_is_refused() -> None:
    assert [fault.path for fault in faults_of(tasks("a: { run: r, needs: [nobody] }"))] == ["tasks.a.needs[0]"]


@given(edges=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_b90_a_graph_is_accepted_exactly_when_it_has_no_cycle(edges: list[tuple[int, int]]) -> None:
    needs = {node: sorted({b for a, b in edges if a == node}) for node in range(8)}
    data = {"name": "w", "tasks": {f"t{a}": {"run": "r", "needs": [f"t{b}" for b in bs]} for a, bs in needs.items()}}

    def reaches(start: int) -> set[int]:
        seen: set[int] = set()
        waiting = list(needs[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(needs[node])
        return seen

    if any(node in reaches(node) for node in needs):
        with pytest.raises(DefinitionError, match=r"cycle|itself"):
            from_data(data)
    else:
        from_data(data)


# == one content, one version ==========================================================================================
json_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8).filter(
    lambda text: "${{" not in text and not re.fullmatch(r"[-+.0-9eo]+", text, re.IGNORECASE)
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | json_text | st.sampled_from(["${{ input }}", "of ${{ input.x }}", "no", "0x1F", "007", "~", "- a", "a: b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_text, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
durations = st.sampled_from(["500ms", "1s", "1m30s", "2d", 3, 0.25])
retries = st.integers(1, 20) | st.fixed_dictionaries(
    {},
    optional={
        "attempts": st.integers(1, ATTEMPTS_MAX),
        "backoff": st.sampled_from(["exponential", "linear", "fixed"]),
        "cap": st.just("3d"),
        "delay": st.sampled_from(["1s", 2]),
        "jitter": st.sampled_from([0, 0.5, 1]),
    },
)
approvals = st.fixed_dictionaries(
    {},
    optional={
        "title": json_text,
        "approvers": st.just(["lead"]) | st.just("lead"),
        "expires": durations,
        "on_expiry": st.sampled_from(["fail", "approve", "reject"]),
        "context": st.sampled_from(["${{ input }}", {"b": 1, "a": "${{ input.a }}"}, [1.0, True]]),
        "form": st.sampled_from([{"type": "object", "properties": {"b": {}, "a": {"type": "string"}}}, {}]),
        "needed": st.just(1),
        "no_self_approval": st.booleans(),
        "remind": durations | st.lists(durations, min_size=1, max_size=3),
        "on_reject": st.sampled_from(["fail", "complete"]),
    },
)
CHAINS = [
    {"approvers": "a", "needed": 2, "escalate": [{"to": "b", "after": "1h"}, {"to": ["role:c", "d"], "after": 7200}]},
    {"approvers": ["a"], "expires": "1d", "on_expiry": "escalate", "escalate": [{"to": "b"}]},
]


coin = st.booleans()
WAITS = [
    {"for": "72h"},
    {"for": 5},
    {"for": "${{ input.delay }}"},
    {"until": "2026-03-29T09:00:00+02:00"},
    {"until": '${{ nextWeekday(now, "09:00", input.zone) }}'},
]


SIGNALS: list[Any] = [
    "paid",
    {"name": "paid", "key": "order-${{ input.order }}", "timeout": "72h", "delivery": "all"},
    {"name": "a.b-c", "timeout": "${{ input.delay }}", "on_timeout": "complete"},
]


CHILDREN: list[Any] = ["other", {"name": "other", "version": 3, "on_cancel": "abandon"}, {"name": "o.x", "wait": False}]


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    one_name = st.text(string.ascii_letters, min_size=1, max_size=5)
    names = draw(st.lists(one_name, min_size=1, max_size=5, unique=True))
    made: dict[str, Any] = {}
    for name in names:
        task: dict[str, Any] = {"run": draw(st.sampled_from(["a.b", "on", "x"]))}
        if waits := draw(coin) and draw(coin):
            waiting = [*({"wait": wait} for wait in WAITS), *({"signal": s} for s in SIGNALS)]
            task = draw(st.sampled_from([*waiting, *({"workflow": child} for child in CHILDREN)]))
        before = list(made)
        if draw(coin) and before:
            task["needs"] = draw(st.lists(st.sampled_from(before), unique=True) | st.sampled_from(before))
            if task["needs"] and draw(coin):
                task["join"] = draw(st.sampled_from(["all", "any", "always", "on_failure", 1]))
        for key, values in {
            "with": json_values.filter(lambda value: value is not None),
            "if": st.sampled_from(["${{ input.x }}", "input.x", True]),
            "queue": st.sampled_from(["default", "io"]),
            "retry": retries,
            "timeout": durations,
            "approval": approvals | st.sampled_from(CHAINS),
            "exclusive": coin,
            "effect": st.sampled_from(["idempotent", "reconcile", "manual"]),
        }.items():
            if draw(coin) and (not waits or key == "if"):
                task[key] = draw(values)
        if task.get("effect") == "reconcile":
            task["lookup"] = draw(st.sampled_from(["a.find", "on"]))
        made[name] = task
    data: dict[str, Any] = {"name": draw(st.sampled_from(["w", "no", "a.b-c"])), "tasks": made}
    if draw(coin):
        data["input"] = draw(st.sampled_from([{}, {"type": "object"}, {"required": ["b", "a"], "type": "object"}]))
    if draw(coin):
        data["description"] = draw(json_text)
    if draw(coin):
        data["output"] = draw(st.sampled_from([{}, {"b": 1, "a": f'${{{{ tasks["{names[-1]}"].output }}}}'}]))
    return data


def built(data: dict[str, Any]) -> Workflow:
    description, input, output = data.get("description", ""), data.get("input"), data.get("output")
    builder = build(data["name"], description=description, input=input, output=output)
    for name, task in data["tasks"].items():
        renamed = {"if": "if_", "with": "with_"}
        given: dict[str, Any] = {renamed.get(key) or key: value for key, value in task.items()}
        builder.task(name, **given)
    return builder.publishable()


def test_a_wait_has_one_spelling() -> None:
    first = parse(tasks("a: { wait: { for: 72h } }", "b: { wait: { until: 2026-03-29T09:00:00+02:00 } }"))
    second = build("w").task("a", wait={"for": timedelta(days=3)}).task("b", wait=Wait(until="2026-03-29T07:00Z"))
    assert first.canonical() == second.publishable().canonical()
    assert b'"wait":{"for":"3d"}' in first.canonical()
    assert b'"wait":{"until":"2026-03-29T07:00:00Z"}' in first.canonical()


def test_a_child_has_one_spelling() -> None:
    first = parse(tasks("a: { workflow: other, timeout: 72h }", "b: { workflow: { name: other, on_cancel: cancel } }"))
    second = build("w").task("a", workflow="other", timeout="3d").task("b", workflow=Child(name="other"))
    assert first.canonical() == second.publishable().canonical()
    assert b'"a":{"timeout":"3d","workflow":{"name":"other"}}' in first.canonical()


def test_a_signal_has_one_spelling() -> None:
    first = parse(tasks("a: { signal: paid }", "b: { signal: { name: paid, timeout: 72h } }"))
    second = build("w").task("a", signal="paid").task("b", signal=Signal(name="paid", timeout="3d"))
    assert first.canonical() == second.publishable().canonical()
    assert b'"a":{"signal":{"name":"paid"}}' in first.canonical()
    assert b'"signal":{"name":"paid","timeout":"3d"}' in first.canonical()


@settings(deadline=None)
@given(definitions())
def test_yaml_json_and_python_give_the_same_bytes(data: dict[str, Any]) -> None:
    expected = from_data(data)
    from_yaml = parse(yaml.safe_dump(data, sort_keys=False))
    from_flow = parse("# flow style\n" + yaml.safe_dump(data, sort_keys=False, default_flow_style=True, width=10**6))
    from_json = parse(json.dumps(data, indent=1))
    for workflow in (from_yaml, from_flow, from_json, built(data)):
        assert workflow == expected
        assert workflow.canonical() == expected.canonical()
        assert workflow.digest == expected.digest


@settings(deadline=None)
@given(definitions())
def test_the_canonical_form_reads_back_as_itself(data: dict[str, Any]) -> None:
    workflow = from_data(data)
    again = Workflow.model_validate_json(workflow.canonical())
    assert again == workflow == parse(workflow.canonical())
    assert again.canonical() == workflow.canonical()


@settings(deadline=None)
@given(definitions())
def test_what_is_accepted_fits_the_exported_schema(data: dict[str, Any]) -> None:
    from_data(data)
    Draft202012Validator(json_schema()).validate(data)


def test_the_exported_schema_is_a_schema_and_refuses_what_it_can() -> None:
    Draft202012Validator.check_schema(json_schema())
    validator = Draft202012Validator(json_schema())
    for wrong in (
        {"name": "w", "tasks": {"a/b": {"run": "r"}}},
        {"name": "w", "tasks": {"a": {}}},
        {"name": "w", "tasks": {"a": {"run": "r", "tiemout": 1}}},
        {"name": "w", "tasks": {"a": {"run": "r", "timeout": "soon"}}},
        {"name": "w", "tasks": {"a": {"run": "r", "with": None}}},
        {"name": "w", "tasks": {"a": {"run": "r", "join": "most"}}},
        {"name": "w", "tasks": {"a": {"run": "r", "join": 0}}},
        {"name": "w", "tasks": {"a": {"wait": {}}}},
        {"name": "w", "tasks": {"a": {"wait": {"for": "1d", "until": "2026-03-29T09:00:00Z"}}}},
        {"name": "w", "tasks": {"a": {"wait": {"for": True}}}},
        {"name": "w", "tasks": {"a": {"signal": {}}}},
        {"name": "w", "tasks": {"a": {"signal": "a b"}}},
        {"name": "w", "tasks": {"a": {"signal": {"name": "s", "on_timeout": "skip"}}}},
        {"name": "w", "tasks": {"a": {"run": "r"}}, "output": []},
        {"name": "w", "tasks": {}},
    ):
        assert not validator.is_valid(wrong)


def test_order_of_keys_and_spelled_out_defaults_make_no_new_version() -> None:
    first = from_data({"name": "w", "tasks": {"a": {"run": "r", "with": {"x": 1, "y": {"p": 1, "q": 2}}}}})
    second = from_data(
        {
            "tasks": {"a": {"queue": "default", "retry": 3, "with": {"y": {"q": 2, "p": 1}, "x": 1}, "run": "r"}},
            "name": "w",
        }
    )
    assert first.canonical() == second.canonical()
    assert first.canonical() == b'{"name":"w","tasks":{"a":{"run":"r","with":{"x":1,"y":{"p":1,"q":2}}}}}'


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": {"b": {"run": "r"}, "a": {"run": "r"}}},
        {"tasks": {"a": {"run": "r"}, "b": {"run": "r", "with": {}}}},
        {"description": "new"},
        {"input": {}},
        {"output": {}},
        {"tasks": {"a": {"run": "r"}, "b": {"run": "r", "needs": ["a"], "join": "any"}}},
    ],
)
def test_other_content_has_another_digest(change: dict[str, Any]) -> None:
    data = {"name": "w", "tasks": {"a": {"run": "r"}, "b": {"run": "r"}}}
    assert from_data(data).digest != from_data({**data, **change}).digest


def test_one_and_one_point_zero_are_different_content() -> None:
    one, other = (build("w").task("a", run="r", with_=value).publishable() for value in (1, 1.0))
    assert one.digest != other.digest


def test_the_builder_takes_models_and_timedeltas() -> None:
    workflow = (
        build("w")
        .task("a", run="r", timeout=timedelta(seconds=90), retry=Retry(attempts=9, delay=timedelta(seconds=2)))
        .task("b", needs=["a"], approval=Approval(title="Go?", expires=timedelta(days=1)))
        .publishable()
    )
    text = tasks(
        "a: { run: r, timeout: 1m30s, retry: { attempts: 9, delay: 2s } }",
        "b: { needs: [a], approval: { title: Go?, expires: 24h } }",
    )
    assert workflow.canonical() == parse(text).canonical()


def test_the_builder_says_what_an_effect_promises() -> None:
    workflow = (
        build("w")
        .task("a", run="r", exclusive=True)
        .task("b", run="r", effect="manual")
        .task("c", run="r", effect="reconcile", lookup="r.find")
        .publishable()
    )
    text = tasks(
        "a: { run: r, exclusive: true }",
        "b: { run: r, effect: manual }",
        "c: { run: r, lookup: r.find, effect: reconcile }",
    )
    assert workflow == parse(text)
    assert workflow.digest == parse(text).digest


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"run": "r", "lookup": "r.find"}, "tasks.a"),
        ({"run": "r", "effect": "reconcile"}, "tasks.a"),
        ({"approval": {}, "exclusive": True}, "tasks.a"),
        ({"run": "r", "exclusive": "yes"}, "tasks.a.exclusive"),
        ({"run": "r", "effect": "hope"}, "tasks.a.effect"),
    ],
)
def test_the_builder_has_the_same_faults(given: dict[str, Any], path: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        build("w").task("a", **given).publishable()
    assert [fault.path for fault in caught.value.faults] == [path]


def test_versions_published_before_there_were_effects_keep_their_digest() -> None:
    workflow = build("orders").task("charge", run="payments.charge", needs=(), retry=5).publishable()
    assert (
        workflow.canonical() == b'{"name":"orders","tasks":{"charge":{"run":"payments.charge","retry":{"attempts":5}}}}'
    )
    spelled_out = parse(
        "name: orders\ntasks: { charge: { run: payments.charge, retry: 5, exclusive: false, effect: idempotent } }"
    )
    assert spelled_out.digest == workflow.digest
    for more in ("exclusive: true", "effect: manual", "effect: reconcile, lookup: r"):
        other = parse(f"name: orders\ntasks: {{ charge: {{ run: payments.charge, retry: 5, {more} }} }}")
        assert other.digest != workflow.digest
        assert Workflow.model_validate_json(other.canonical()) == other


def test_a_workflow_is_frozen() -> None:
    workflow = parse(tasks("a: { run: r }"))
    with pytest.raises(ValueError, match="frozen"):
        workflow.name = "other"


# == durations =========================================================================================================
@given(st.timedeltas(timedelta(0), timedelta(days=3_650)))
def test_a_duration_survives_being_written(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("1m30s", 90), ("2d", 172_800), ("1.5h", 5_400), ("1us", 1e-6), (2.5, 2.5), (0, 0)],
)
def test_a_duration_is_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "s", "5", "-1s", "1 s", "1s ", "1S", "1y", "0.1us", "٣s", "1e3s", "9" * 16 + "d", None, [], True, 1e300],
)
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration|microsecond"):
        parse_duration(text)


# == the input of a run ================================================================================================
ORDER = build(
    "orders",
    input={
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "string"}, "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
        "$defs": {"line": {"type": "object", "properties": {"qty": {"minimum": 1}}}},
    },
).task("a", run="r")


def test_an_input_is_checked_against_the_schema() -> None:
    workflow = ORDER.publishable()
    assert workflow.check_input({"id": "o-1", "lines": [{"qty": 1}]}) == []
    assert [(fault.path, fault.line) for fault in workflow.check_input({"lines": [{"qty": 1}, {"qty": 0}, 3]})] == [
        ("", None),
        ("lines[1].qty", None),
        ("lines[2]", None),
    ]


def test_without_a_schema_any_input_will_do() -> None:
    assert parse(tasks("a: { run: r }")).check_input(["anything"]) == []


def test_a_schema_that_never_ends_is_a_fault_and_not_a_crash() -> None:
    workflow = build("w", input={"$ref": "#"}).task("a", run="r").publishable()
    assert [fault.message for fault in workflow.check_input({})] == ["the schema refers to itself without an end"]


# == the documentation =================================================================================================
def test_the_examples_of_the_reference_page_run(tmp_path: Path) -> None:
    fences = re.findall(r"```(\w+)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    workflows = [parse(text) for kind, text in fences if kind == "yaml"]
    names = [
        "orders", "refunds", "nightly", "documents", "long-job", "closing", "trip", "follow-up", "invoices",
        "orders-paid", "order",
    ]  # fmt: skip
    assert [workflow.name for workflow in workflows] == names
    assert list(workflows[0].tasks) == ["validate", "charge", "release", "ship"]
    script = tmp_path / "examples.py"
    script.write_text("\n".join(text for kind, text in fences if kind == "python"))
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)  # our own page
    assert [text for kind, text in fences if kind == "text"] == [ran.stdout]


def test_a_map_may_be_only_its_list():
    short = parse('name: w\ntasks: { a: { run: b, map: "${{ input.pages }}", with: "${{ item }}-${{ index }}" } }')
    long = build("w").task("a", run="b", map={"over": "${{ input.pages }}"}, with_="${{ item }}-${{ index }}")
    assert short == long.publishable()
    assert short.digest == long.publishable().digest
    task = short.tasks["a"].map
    assert task is not None
    assert (task.over, task.max_parallel, task.failures) == ("${{ input.pages }}", 1_000, "fail_fast")
    assert Workflow.model_validate_json(short.canonical()) == short


def test_a_compensation_may_be_only_its_body():
    short = parse("name: w\ntasks: { a: { run: b, compensate: c } }")
    assert short == build("w").task("a", run="b", compensate={"run": "c"}).publishable()
    undo = short.tasks["a"].compensate
    assert undo is not None
    assert (undo.run, undo.with_, undo.queue, undo.retry, undo.timeout) == ("c", None, None, Retry(), None)
    assert Workflow.model_validate_json(short.canonical()) == short


def test_a_compensation_has_fields_of_its_own():
    text = """
name: w
tasks:
  a:
    run: b
    queue: io
    compensate: { run: c, with: { y: "${{ task.output.id }}", x: 1 }, queue: slow, retry: 7, timeout: 30s }
"""
    workflow = parse(text)
    undo = workflow.tasks["a"].compensate
    assert undo is not None
    assert (undo.queue, undo.retry.attempts, undo.timeout) == ("slow", 7, timedelta(seconds=30))
    assert b'"with":{"x":1,"y":' in workflow.canonical()
    Draft202012Validator(json_schema()).validate(yaml.safe_load(text))
    plan = compile_plan(workflow)
    spec = plan.tasks[0].compensation
    assert spec is not None
    assert (spec.name, spec.run, spec.queue, spec.retry.attempts, spec.timeout) == (
        "a.compensate",
        "c",
        "slow",
        7,
        30.0,
    )
    assert (plan.find("a.compensate"), plan.name_of(200_000_000), plan.at(200_000_000)) == (
        200_000_000, "a.compensate", spec,
    )  # fmt: skip
    assert plan.tasks[0].is_referenced
    assert plan.tasks[0].is_read
    assert compile_plan(parse("name: w\ntasks: { a: { run: b } }")).find("a.compensate") is None
