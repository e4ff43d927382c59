"""Bodies that leave a line in a ledger outside the engine: one row for every call of an effect."""

import asyncio
import os
import sqlite3
import time
from typing import Any

from headrace.context import Context
from headrace.registry import task


def _note(ctx: Context) -> None:
    with sqlite3.connect(os.environ["LEDGER"], timeout=30) as ledger:
        ledger.execute(
            "INSERT INTO effect (effect_key, attempt, token) VALUES (?, ?, ?)", (ctx.effect_key, ctx.attempt, ctx.token)
        )


@task("faults.quick")
async def quick(input: Any, ctx: Context) -> dict[str, Any]:
    await asyncio.sleep(0.01)
    _note(ctx)
    return dict(input)


@task("faults.slow")
def slow(input: Any, ctx: Context) -> dict[str, Any]:
    time.sleep(input.get("seconds", 0.4))
    _note(ctx)
    return {"n": input["n"]}
