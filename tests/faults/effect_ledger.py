"""The ledger outside the engine: one row for every call of an effect, kept in the file that LEDGER names."""

import os
import sqlite3
from collections.abc import Collection
from pathlib import Path

from headrace.context import Context


def create(path: Path) -> None:
    with sqlite3.connect(path) as ledger:
        ledger.execute("PRAGMA journal_mode = WAL")
        ledger.execute("CREATE TABLE effect (effect_key text, run_id text, attempt int, token int)")


def note(ctx: Context) -> None:
    """Do the effect: it is there once this returns, and stays whatever becomes of the process. Raises FencedError."""
    with ctx.effect(), sqlite3.connect(os.environ["LEDGER"], timeout=30) as ledger:
        ledger.execute(
            "INSERT INTO effect (effect_key, run_id, attempt, token) VALUES (?, ?, ?, ?)",
            (ctx.effect_key, ctx.run_id, ctx.attempt, ctx.token),
        )


def calls(path: Path, run_ids: Collection[str]) -> dict[str, int]:
    """How often each effect of these runs was called, by effect key."""
    with sqlite3.connect(path, timeout=30) as ledger:
        rows = ledger.execute("SELECT effect_key, run_id, count(*) FROM effect GROUP BY 1, 2").fetchall()
    return {key: count for key, run_id, count in rows if run_id in run_ids}
