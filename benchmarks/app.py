"""The bodies of the benchmarks: they do nothing, so that what is measured is the engine."""

from typing import Any

from headrace.registry import task

_ANSWER = {"ok": True, "note": "x" * 70}


@task("bench.step")
async def step(input: Any) -> dict[str, Any]:
    return _ANSWER


@task("bench.sync_step")
def sync_step(input: Any) -> dict[str, Any]:
    return _ANSWER
