"""Random workflows for the model of sequences: what is drawn, and the plan that it makes."""

from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

from headrace.expressions import (
    OF_A_COMPENSATION,
    OF_A_ROUND,
    OF_AN_ITEM,
    OF_ITS_END,
    compile_condition,
    compile_template,
    compile_value,
)
from headrace.machine import Plan, TaskPlan
from headrace.machine.backoff import RetryPlan
from headrace.machine.plan import (
    ChildPlan,
    Effect,
    Join,
    LimitPlan,
    MapPlan,
    PoolPlan,
    RepeatPlan,
    SignalPlan,
    WaitPlan,
)
from tests.unit.machine_model import BRANCHING, QUESTION, SECOND, START

TASKS_MAX: Final = 8
NAMES: Final = [f"t{index}" for index in range(TASKS_MAX)]
RETRIES: Final = [
    RetryPlan(1),
    RetryPlan(2, "exponential", SECOND),
    RetryPlan(3, "linear", 3 * SECOND, jitter=1.0),
    RetryPlan(3, "fixed", 0),
]
EFFECTS: Final[list[Effect]] = ["idempotent", "idempotent", "manual", "reconcile"]
JOINS: Final[list[Join]] = ["all", "all", "all", "all", "any", 2, "always", "on_failure", "finally", "finally"]
# How a task that needs t<n> may depend on it; the third and the fifth cannot be evaluated when the output is null.
CONDITIONS: Final = {
    name: [compile_condition(text) for text in ("true", "false", f"tasks.{name}.output.ok")] for name in NAMES
}
TEMPLATES: Final = {
    name: [compile_template(value) for value in ("${{ input }}", f"${{{{ tasks.{name}.output.n }}}}")] for name in NAMES
}
WAITS: Final = [
    *[None] * 6,
    SignalPlan("news"),
    SignalPlan("news", timeout=WaitPlan(length=5 * SECOND)),
    SignalPlan("olds", compile_template("${{ input.n }}"), WaitPlan(length=5 * SECOND), "complete"),
    WaitPlan(length=5 * SECOND),
    WaitPlan(until=START + 60 * SECOND),
    WaitPlan(value=compile_value("${{ now + duration('1m') }}")),
    ChildPlan("other"),
    ChildPlan("other", is_cancelled_with_task=False),
    ChildPlan("other", is_awaited=False, is_cancelled_with_task=False),
    WaitPlan(value=compile_value("${{ input.n }}")),  # which fails, also with the input of a replay
]
SIGNALS: Final = [("news", None), ("news", None), ("news", "1"), ("olds", "1"), ("olds", None), ("olds", "2")]
LIMITS: Final[list[dict[str, Any]]] = [
    *[{}] * 5,
    {"deadline": WaitPlan(length=20 * SECOND, is_for=True)},
    {"start_within": 2 * SECOND},
    {"deadline": WaitPlan(length=20 * SECOND, is_for=True), "start_within": 2 * SECOND},
    {"repeat": RepeatPlan(compile_condition("output.ok", OF_ITS_END), 3, delay=SECOND)},  # null cannot be evaluated
    {"repeat": RepeatPlan(compile_condition("false"), 2, on_max="complete"), "start_within": 2 * SECOND},
    {
        "repeat": RepeatPlan(compile_condition("output.ok", OF_ITS_END), 3, reads_last=True),
        "template": compile_template({"last": "${{ last }}"}, OF_A_ROUND),
    },
]
MAPS: Final = [
    *[None] * 5,
    MapPlan(compile_template([{"n": 1}, {"n": 2}, None]), 1, "fail_fast"),
    MapPlan(compile_template([1, 2, 3]), 2, "finish"),
    MapPlan(compile_template([{"n": 1}, {"n": 2}]), 1_000, "collect"),
    MapPlan(compile_template([]), 1, "fail_fast"),
    MapPlan(compile_template("${{ input.n }}"), 1, "finish"),  # which is no list
]
ITEM: Final = compile_template("${{ item.n }}", OF_AN_ITEM)
POOLS: Final = {
    name: [
        PoolPlan("pool"),
        PoolPlan("pool", compile_template("some")),
        PoolPlan("pool", compile_template("${{ input.n }}")),
        *([PoolPlan("pool", compile_template(f"k${{{{ tasks.{name}.output.n }}}}"))] if name else []),
    ]
    for name in ("", *NAMES)
}
"""By what it may depend on; the last ones cannot be rendered of every input, or when the output is null."""
ITEM_POOLS: Final = [
    PoolPlan("pool"),
    PoolPlan("pool", compile_template("k${{ index }}", OF_AN_ITEM)),
    PoolPlan("pool", compile_template("${{ item.n }}", OF_AN_ITEM)),
]
UNDO: Final = compile_template({"n": "${{ task.output.n }}"}, OF_A_COMPENSATION)
"""Neither can be rendered of what is no object."""
OUTPUT: Final = compile_template({"first": f"${{{{ tasks.{NAMES[0]}.output.n }}}}"})


class Sketch(NamedTuple):
    """One task, as it is drawn."""

    needs: int
    """A bit for each task before it."""
    condition: int
    """3: none."""
    template: int
    """2: none."""
    asks: bool
    has_body: bool
    retry: int
    has_timeout: bool
    effect: Effect
    exclusive: bool
    join: Join
    wait: WaitPlan | SignalPlan | ChildPlan | None
    """Instead of all that concerns a body."""
    pool: int
    """0: none; 1: one without a fairness key."""
    limits: dict[str, Any]
    map: MapPlan | None
    undo: int
    """0: nothing undoes it; 2: by a body whose input may not be rendered."""


SKETCHES: Final = st.builds(
    Sketch,
    st.integers(0, 2**TASKS_MAX - 1),
    st.sampled_from([3, 3, 3, 3, 0, 1, 2, 2]),
    st.sampled_from([2, 2, 2, 0, 1]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([True, True, False]),
    st.integers(0, len(RETRIES) - 1),
    st.booleans(),
    st.sampled_from(EFFECTS),
    st.booleans(),
    st.sampled_from(JOINS),
    st.sampled_from(WAITS),
    st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3, 4]),
    st.sampled_from(LIMITS),
    st.sampled_from(MAPS),
    st.sampled_from([0, 0, 0, 1, 1, 2]),
)
WORKFLOWS: Final = st.tuples(
    st.lists(SKETCHES, min_size=1, max_size=TASKS_MAX),
    st.sampled_from([None, None, None, 40 * SECOND]),
    st.sampled_from([False, False, True]),
)
"""Tasks, the deadline of a run, and whether something comes out of one."""


def plan_of(
    sketches: list[Sketch], deadline: int | None, has_output: bool, version_id: int = 0, limit: LimitPlan | None = None
) -> Plan:
    tasks = [_task_of(index, sketch) for index, sketch in enumerate(sketches)]
    output = OUTPUT if has_output else None
    return Plan(
        "random", tasks, output=output, deadline=deadline, version=version_id + 1, version_id=version_id, limit=limit
    )


def _task_of(index: int, sketch: Sketch) -> TaskPlan:
    needs = tuple(need for need in range(index) if sketch.needs >> need & 1)
    source = NAMES[needs[-1]] if needs else ""
    wait, join = sketch.wait, sketch.join
    asks = sketch.asks and wait is None
    runs = wait is None and (sketch.has_body or not asks)
    template = TEMPLATES[source][sketch.template] if source and sketch.template < 2 else None
    timeout = 10.0 if sketch.has_timeout else None
    more: dict[str, Any] = {"template": template} | (_of_a_body(index, sketch) if runs else {})
    return TaskPlan(
        index,
        NAMES[index],
        run="body" if runs else None,
        needs=needs,
        retry=RETRIES[sketch.retry],
        timeout=timeout,
        approval=None if not asks else BRANCHING if sketch.has_timeout else QUESTION,
        condition=CONDITIONS[source][sketch.condition] if source and sketch.condition < 3 else None,
        exclusive=sketch.exclusive and runs,
        effect=sketch.effect if runs else "idempotent",
        lookup="lookup" if runs and sketch.effect == "reconcile" else None,
        join="all" if not needs or (isinstance(join, int) and join > len(needs)) else join,
        wait=wait if isinstance(wait, WaitPlan) else None,
        signal=wait if isinstance(wait, SignalPlan) else None,
        child=wait if isinstance(wait, ChildPlan) else None,
        pool=_pool_of(sketch, source) if runs and sketch.pool else None,
        **more,
    )


def _pool_of(sketch: Sketch, source: str) -> PoolPlan:
    pools = POOLS[source] if sketch.map is None else ITEM_POOLS
    return pools[(sketch.pool - 1) % len(pools)]


def _of_a_body(index: int, sketch: Sketch) -> dict[str, Any]:
    """Its limits, its map and what undoes it, as far as they go together: a repeat has neither of the others."""
    found = dict(sketch.limits)
    if sketch.map is not None:
        found = {name: limit for name, limit in found.items() if name not in ("repeat", "template")}
        found |= {"map": sketch.map} | ({"template": ITEM} if sketch.template < 2 else {})
    if sketch.undo and "repeat" not in found:
        retry, template = RETRIES[sketch.retry], UNDO if sketch.undo == 2 else None
        found["compensation"] = TaskPlan(index, NAMES[index], run="undo", retry=retry, template=template, timeout=10.0)
    return found
