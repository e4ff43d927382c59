"""Bodies whose effects stand in a ledger outside the engine, under their keys; one of them waits until it may act."""

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from headrace import Context, FencedError, task

TABLES = """
CREATE TABLE effect (effect_key text PRIMARY KEY, token int);
CREATE TABLE call (effect_key text, token int, was_refused int);
"""


def _act(ctx: Context) -> None:
    """Do the effect if the hand-out is still ours, as a sink with keys takes it: the first call counts."""
    with sqlite3.connect(os.environ["LEDGER"], timeout=30) as ledger:
        try:
            with ctx.effect() as key:
                ledger.execute("INSERT OR IGNORE INTO effect VALUES (?, ?)", (key, ctx.token))
                ledger.execute("INSERT INTO call VALUES (?, ?, 0)", (key, ctx.token))
        except FencedError:
            ledger.execute("INSERT INTO call VALUES (?, ?, 1)", (ctx.effect_key, ctx.token))
            ledger.commit()
            raise


@task("failover.quick")
def quick(input: dict[str, Any], ctx: Context) -> dict[str, Any]:
    _act(ctx)
    return input


@task("failover.held")
def held(input: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Acts once the file that its input names is there; nothing stops it before, as nothing stops a thread."""
    while not Path(input["permit"]).exists():
        time.sleep(0.02)
    _act(ctx)
    return {"by": ctx.token}
