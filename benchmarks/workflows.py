"""The workflows of the benchmarks, as they are published."""

from typing import Any


def linear(steps: int = 10, run: str = "bench.step") -> dict[str, Any]:
    """A chain; each step gets the output of the one before."""
    tasks: dict[str, Any] = {"s0": {"run": run}}
    for i in range(1, steps):
        tasks[f"s{i}"] = {"run": run, "needs": [f"s{i - 1}"], "with": "${{ tasks.s" + str(i - 1) + ".output }}"}
    return {"name": f"linear-{steps}", "tasks": tasks}


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
