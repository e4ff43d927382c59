"""Bodies of the crash points' workload; each leaves a line in the effect ledger."""

import time
from typing import Any

from headrace.context import Context
from headrace.registry import task
from tests.faults import effect_ledger


@task("crash.quick")
async def quick(input: Any, ctx: Context) -> dict[str, Any]:
    effect_ledger.note(ctx)
    return {"n": input["n"]}


@task("crash.slow")
def slow(input: Any, ctx: Context) -> dict[str, Any]:
    time.sleep(input.get("seconds", 0.4))  # long enough to be announced as started
    effect_ledger.note(ctx)
    return {"n": input["n"]}


@task("crash.flaky")
async def flaky(input: Any, ctx: Context) -> dict[str, Any]:
    if ctx.attempt == 1:
        raise RuntimeError("the first attempt fails")
    effect_ledger.note(ctx)
    return {"n": input["n"]}


@task("crash.broken")
async def broken(input: Any, ctx: Context) -> dict[str, Any]:
    if not input.get("mended"):
        raise ValueError("broken until somebody mends its input")
    effect_ledger.note(ctx)
    return {"n": input["n"]}
