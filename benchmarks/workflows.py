"""The workflows of the benchmarks, as they are published."""

from typing import Any, Final


def linear(steps: int = 10, run: str = "bench.step", name: str = "") -> dict[str, Any]:
    """A chain; each step gets the output of the one before."""
    tasks: dict[str, Any] = {"s0": {"run": run}}
    for i in range(1, steps):
        tasks[f"s{i}"] = {"run": run, "needs": [f"s{i - 1}"], "with": "${{ tasks.s" + str(i - 1) + ".output }}"}
    return {"name": name or f"linear-{steps}", "tasks": tasks}


def fan_out(width: int = 1000) -> dict[str, Any]:
    """One task, `width` tasks that need it, and a join behind them."""
    tasks: dict[str, Any] = {"first": {"run": "bench.step"}}
    for i in range(width):
        tasks[f"m{i}"] = {"run": "bench.step", "needs": ["first"]}
    tasks["join"] = {"run": "bench.step", "needs": [f"m{i}" for i in range(width)]}
    return {"name": f"fan-out-{width}", "tasks": tasks}


def independent(tasks: int, run: str = "bench.step") -> dict[str, Any]:
    """So many tasks that need nothing: all are handed out when the run starts, with the run's input."""
    return {"name": f"independent-{tasks}", "tasks": {f"t{i}": {"run": run} for i in range(tasks)}}


ECHO: Final = linear(10, "bench.echo", "echo-10")
"""Every step is given the run's input and gives it on."""
LATER: Final[dict[str, Any]] = {"name": "later", "tasks": {"only": {"run": "bench.later", "retry": 2}}}
"""One task that asks to be tried again after `delay` seconds, and then succeeds."""
FAILING: Final[dict[str, Any]] = {"name": "failing", "tasks": {"only": {"run": "bench.fail", "retry": 1}}}
VICTIM: Final[dict[str, Any]] = {"name": "victim", "tasks": {"only": {"run": "bench.long_once"}}}
"""One task whose first attempt lasts for a minute."""
MAP: Final[dict[str, Any]] = {
    "name": "items",
    "tasks": {
        "rows": {"run": "bench.step", "map": {"over": "${{ input.items }}"}},
        "done": {"run": "bench.step", "needs": ["rows"]},
    },
}
NAP: Final[dict[str, Any]] = independent(1, "bench.nap_for") | {"name": "nap"}
"""One task that takes as many seconds as the input says."""
STRANDED: Final[dict[str, Any]] = {"name": "stranded", "tasks": {"only": {"run": "bench.step", "queue": "nobody"}}}
"""One task in a queue that no worker serves."""
