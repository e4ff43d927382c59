"""Bodies for the cases on the whole set of processes. Their first attempt waits for a file; a ledger keeps what they
did."""

import os
import time
from pathlib import Path
from typing import Any

from headrace import Context, FencedError, task


def _folder() -> Path:
    return Path(os.environ["CASES"])


def _note(what: str, ctx: Context) -> None:
    with (_folder() / "ledger").open("a") as ledger:
        ledger.write(f"{what} {ctx.effect_key} {ctx.attempt}\n")


def _act(key: str, ctx: Context) -> None:
    """At a sink that honours the key: a record may reach two workers, and both may run it."""
    try:
        (_folder() / key.replace("/", ".")).touch(exist_ok=False)
    except FileExistsError:
        return
    _note("effect", ctx)


@task("cases.held")
def held(input: dict[str, Any], ctx: Context) -> str:
    """Waits in its first attempt, then does what it was told to."""
    while ctx.attempt == 1 and not (_folder() / str(input["gate"])).exists():
        time.sleep(0.02)
    if input["then"] == "fail" and ctx.attempt == 1:
        _note("failed", ctx)
        raise RuntimeError("too late")
    if input["then"] == "effect":
        try:
            with ctx.effect() as key:
                _act(key, ctx)
        except FencedError:
            _note("refused", ctx)
            raise
    return f"attempt {ctx.attempt}"


@task("cases.echo")
def echo(input: Any, ctx: Context) -> Any:
    _note("echo", ctx)
    return input
