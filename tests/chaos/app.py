"""The bodies of the chaos workflows. Every one that touches the world outside does it through the effect ledger."""

import asyncio
import ctypes
import json
import math
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import headrace
from headrace import Context
from headrace.errors import AmbiguousError, NonRetryable, RetryAfter

LEDGER_PORT: Final = int(os.environ["CHAOS_LEDGER"])
LEDGER_SECONDS: Final = 0.8
now: Final = time.time
"""The true clock, for the oracle, also in a worker whose own is skewed."""


class NoAnswer(Exception):
    """The ledger was asked and said nothing: it may have happened."""


class Refused(Exception):
    """The ledger did nothing."""


class Unclear(NonRetryable, AmbiguousError):
    """It is not tried again, and it may have happened."""


def _asked(ctx: Context, begun_at: float, op: str, **more: Any) -> dict[str, Any]:
    attempt = {"run": ctx.run_id, "task": ctx.task, "token": ctx.token, "attempt": ctx.attempt, "pid": os.getpid()}
    return {"op": op, "key": ctx.effect_key, "begun_at": begun_at, **attempt, **more}


async def _ask(asked: dict[str, Any]) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", LEDGER_PORT)
    try:
        writer.write(json.dumps(asked).encode() + b"\n")
        line = await asyncio.wait_for(reader.readline(), LEDGER_SECONDS)
    except TimeoutError:
        line = b""
    finally:
        writer.close()
    return _answer(line)


def _ask_in_thread(asked: dict[str, Any]) -> dict[str, Any]:
    line = b""
    with socket.create_connection(("127.0.0.1", LEDGER_PORT), LEDGER_SECONDS) as connection:
        connection.sendall(json.dumps(asked).encode() + b"\n")
        try:
            with connection.makefile("rb") as file:
                line = file.readline()
        except TimeoutError:
            pass
    return _answer(line)


def _answer(line: bytes) -> dict[str, Any]:
    if not line:
        raise NoAnswer("the ledger did not answer")
    answer: dict[str, Any] = json.loads(line)
    if answer.get("outcome") in ("refused", "stale"):
        raise Refused(answer["outcome"])
    return answer


@headrace.task("chaos.effect")
async def effect(input: Any, ctx: Context) -> dict[str, Any]:
    """Waits a while, does its effect, waits a while: a kill finds it before, in and after the effect."""
    begun_at = now()
    await asyncio.sleep(input.get("before", 0.01))
    receipt = (await _ask(_asked(ctx, begun_at, "call")))["receipt"]
    await asyncio.sleep(input.get("after", 0.01))
    return {**_carried(input), "receipt": receipt}


@headrace.task("chaos.effect_in_thread")
def effect_in_thread(input: Any, ctx: Context) -> dict[str, Any]:
    begun_at = now()
    time.sleep(input.get("before", 0.01))
    receipt = _ask_in_thread(_asked(ctx, begun_at, "call"))["receipt"]
    time.sleep(input.get("after", 0.01))
    return {**_carried(input), "receipt": receipt}


@headrace.task("chaos.saga")
async def saga(input: Any, ctx: Context) -> dict[str, Any]:
    """An effect. Where the input says so the task fails for good: before it, so that there is nothing to undo, or
    behind it, as a body does that cannot tell what became of it."""
    begun_at = now()
    fails = ctx.task == input.get("fails_at") and not input.get("mended")
    await asyncio.sleep(input.get("before", 0.01))
    if fails and input.get("how") == "before":
        raise NonRetryable("it fails here, and did nothing")
    try:
        receipt = (await _ask(_asked(ctx, begun_at, "call")))["receipt"]
    except NoAnswer as error:
        raise AmbiguousError(str(error)) from None
    if fails:
        raise Unclear("it fails here, and may have done it")
    await asyncio.sleep(input.get("after", 0.01))
    return {**_carried(input), "receipt": receipt}


@headrace.task("chaos.undo")
async def undo(input: Any, ctx: Context) -> dict[str, Any]:
    """Undoes a task; where the input says so it fails for good, until it is repaired."""
    begun_at = now()
    await asyncio.sleep(input.get("before", 0.01))
    if ctx.task == f"{input.get('undo_fails')}.compensate" and not input.get("mended"):
        raise NonRetryable("it cannot be undone as it is")
    return {**_carried(input), "receipt": (await _ask(_asked(ctx, begun_at, "call")))["receipt"]}


@headrace.task("chaos.pooled")
async def pooled(input: Any, ctx: Context) -> dict[str, Any]:
    """Marks when it enters and leaves what only so many may be in at once."""
    begun_at = now()
    await _ask(_asked(ctx, begun_at, "note", mark="enter"))
    await asyncio.sleep(input.get("before", 0.01))
    receipt = (await _ask(_asked(ctx, begun_at, "call")))["receipt"]
    await _ask(_asked(ctx, begun_at, "note", mark="leave"))
    return {**_carried(input), "receipt": receipt}


@headrace.task("chaos.round")
async def round_(input: Any, ctx: Context) -> dict[str, Any]:
    """One round of a repeat, with an effect of its own; done after as many as the input says."""
    begun_at = now()
    await asyncio.sleep(input.get("before", 0.01))
    receipt = (await _ask(_asked(ctx, begun_at, "call")))["receipt"]
    done = bool(input.get("mended")) or (ctx.round or 0) + 1 >= int(input["rounds"])
    return {**_carried(input), "receipt": receipt, "done": done}


@headrace.task("chaos.outside")
async def outside(input: Any, ctx: Context) -> dict[str, Any]:
    """An effect in a system that knows no keys: only the engine stands between a retry and a second one."""
    begun_at = now()
    await asyncio.sleep(input.get("before", 0.01))
    with ctx.effect():
        try:
            answer = await _ask(_asked(ctx, begun_at, "call", plain=True))
        except Refused:
            raise RetryAfter(0.2, "refused, so nothing happened") from None
    await asyncio.sleep(input.get("after", 0.01))
    return {**_carried(input), "receipt": answer["receipt"]}


@headrace.task("chaos.look_up")
async def look_up(input: Any, ctx: Context) -> Any:
    """What became of the effect; now and then nobody can tell."""
    begun_at = now()
    answer = await _ask(_asked(ctx, begun_at, "lookup"))
    if (int(ctx.run_id[-4:], 16) + ctx.token) % 8 == 0:
        return headrace.unknown()
    found = {**_carried(input), "receipt": answer["receipt"]}
    return headrace.happened(found) if answer["happened"] else headrace.did_not_happen()


@headrace.task("chaos.alone")
async def alone(input: Any, ctx: Context) -> dict[str, Any]:
    """Marks when it enters and leaves what must not be entered by two."""
    begun_at = now()
    await _ask(_asked(ctx, begun_at, "note", mark="enter"))
    await asyncio.sleep(input.get("before", 0.01))
    with ctx.effect():
        receipt = (await _ask(_asked(ctx, begun_at, "call")))["receipt"]
    await asyncio.sleep(input.get("after", 0.01))
    await _ask(_asked(ctx, begun_at, "note", mark="leave"))
    return {**_carried(input), "receipt": receipt}


@headrace.task("chaos.flaky")
async def flaky(input: Any, ctx: Context) -> dict[str, Any]:
    """Fails a given number of times, in one of three ways, before it does its effect."""
    begun_at = now()
    fails = 0 if input.get("mended") else int(input.get("fails", 0))
    if ctx.attempt <= fails:
        match input.get("how", "error"):
            case "later":
                raise RetryAfter(0.3)
            case "never":
                raise NonRetryable("this one is not tried again")
            case "slow":
                await asyncio.sleep(60)  # its timeout ends it
            case _:
                pass
        raise RuntimeError(f"failure {ctx.attempt} of {fails}")
    receipt = (await _ask(_asked(ctx, begun_at, "call")))["receipt"]
    return {**_carried(input), "receipt": receipt}


@headrace.task("chaos.odd")
async def odd(input: Any, ctx: Context) -> Any:
    """Returns what cannot be stored, or ends its worker: by what the input says, for as many attempts as it says."""
    begun_at, kind = now(), input["kind"]
    if input.get("mended") or ctx.attempt > int(input.get("times", 1)):
        return _carried(input)
    if kind in ("exit", "segfault"):
        await _ask(_asked(ctx, begun_at, "note", mark="kills_worker"))
    return _ODD[kind]()


def _exit() -> None:
    os._exit(3)


def _segfault() -> None:
    ctypes.string_at(0, 1)


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(70):
        value = [value]
    return value


def _block() -> str:
    time.sleep(3.0)  # the event loop stands still, heartbeats must not
    return "blocked"


def _raise_exit() -> None:
    raise SystemExit(4)


_ODD: Final[dict[str, Callable[[], Any]]] = {
    "exit": _exit,
    "segfault": _segfault,
    "raise_exit": _raise_exit,
    "block": _block,
    "nan": lambda: math.nan,
    "nul": lambda: "a\0b",
    "surrogate": lambda: "\ud800",
    "deep": _deep,
    "limit": lambda: "x" * (900_000 - 2),
    "over": lambda: "x" * (900_000 - 1),
    "huge": lambda: "x" * 10_000_000,
    "bytes": lambda: b"\xff",
    "big": lambda: 2**80,
}


_CARRIED: Final = ("n", "before", "after", "fails_at", "how", "undo_fails", "mended")


def _carried(input: Any) -> dict[str, Any]:
    return {key: input[key] for key in _CARRIED if key in input}


def _skew_clock() -> None:
    """A worker whose wall clock is wrong, by CHAOS_SKEW seconds: leases and tokens must not care."""
    skew = float(os.environ.get("CHAOS_SKEW", "0"))
    if skew:
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + skew
        time.time_ns = lambda: real_ns() + int(skew * 1e9)


_skew_clock()
