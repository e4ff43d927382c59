"""Bodies with an effect in a file outside the engine, and a death at the worst moment."""

import os
from pathlib import Path
from typing import Any

from headrace import Context, did_not_happen, happened, task, unknown


def _ledger() -> Path:
    return Path(os.environ["LEDGER"])


def _act(key: str) -> None:
    with _ledger().open("a") as file:
        file.write(f"{key}\n")


def _dies_once(input: dict[str, Any], moment: str, ctx: Context) -> None:
    if input.get("dies") == moment and ctx.attempt == 1:
        os._exit(9)


@task("effects.charge")
def charge(input: dict[str, Any], ctx: Context) -> dict[str, Any]:
    with ctx.effect() as key:
        _dies_once(input, "before", ctx)
        _act(key)
        _dies_once(input, "after", ctx)
    return {"charged_by": "the body"}


@task("effects.find_charge")
def find_charge(input: dict[str, Any], ctx: Context) -> dict[str, Any]:
    if input.get("lookup") == "unknown":
        return unknown()
    has_happened = ctx.effect_key in _ledger().read_text().split()
    return happened({"charged_by": "the lookup"}) if has_happened else did_not_happen()
