"""The bodies of the benchmarks. Most do nothing, so that what is measured is the engine; the others last, so that there
is something to lose."""

import asyncio
import time
from typing import Any, Final

from headrace.context import Context
from headrace.errors import NonRetryable, RetryAfter
from headrace.registry import task

NAP_SECONDS: Final = 0.1
LONG_SECONDS: Final = 60.0
SLOW_SECONDS: Final = 10.0
"""For so long after its worker began, `bench.slow_at_first` takes SLOW_STEP_SECONDS; from then on nothing."""
SLOW_STEP_SECONDS: Final = 0.2

_ANSWER = {"ok": True, "note": "x" * 70}
_loaded_at = time.monotonic()


@task("bench.step")
async def step(input: Any) -> dict[str, Any]:
    return _ANSWER


@task("bench.sync_step")
def sync_step(input: Any) -> dict[str, Any]:
    return _ANSWER


@task("bench.echo")
async def echo(input: Any) -> Any:
    return input


@task("bench.later")
async def later(ctx: Context, delay: float) -> dict[str, Any]:
    """Leaves a durable timer behind: its task is tried again once that is due."""
    if ctx.attempt == 1:
        raise RetryAfter(delay)
    return _ANSWER


@task("bench.fail")
async def fail() -> None:
    raise NonRetryable("this body always fails")


@task("bench.nap")
async def nap(input: Any) -> dict[str, Any]:
    await asyncio.sleep(NAP_SECONDS)
    return _ANSWER


@task("bench.nap_for")
async def nap_for(input: float) -> dict[str, Any]:
    await asyncio.sleep(input)
    return _ANSWER


@task("bench.long_once")
async def long_once(ctx: Context) -> dict[str, Any]:
    """The first attempt lasts until something ends it; the others return at once."""
    if ctx.attempt == 1:
        await asyncio.sleep(LONG_SECONDS)
    return _ANSWER


@task("bench.slow_at_first")
async def slow_at_first(input: Any) -> dict[str, Any]:
    if time.monotonic() - _loaded_at < SLOW_SECONDS:
        await asyncio.sleep(SLOW_STEP_SECONDS)
    return _ANSWER
