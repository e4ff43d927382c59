"""Bodies that take as long as they are told, and fail the first time when they are told to."""

import asyncio
from typing import Any

from headrace.context import Context
from headrace.registry import task


@task("clock.work")
async def work(input: Any, ctx: Context) -> dict[str, Any]:
    await asyncio.sleep(input.get("seconds", 0.0))
    if input.get("fails_once") and ctx.attempt == 1:
        raise RuntimeError("the first attempt fails")
    return dict(input)
