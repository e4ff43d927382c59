"""Bodies that log, by the two ways there are."""

import logging
from typing import Any

import structlog

from headrace import Context, task

logging.basicConfig(level=logging.INFO)
structlog.configure(
    processors=[lambda _, __, event: repr(event["event"])], logger_factory=structlog.stdlib.LoggerFactory()
)
_log = logging.getLogger("bank")


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("nobody may look")


@task("logs.charge", queue="default")
def charge(ctx: Context, fails: int = 0) -> str:
    ctx.log.info("charging", card="4711", amount=12.5, attempt_number=ctx.attempt)
    _log.warning("the bank is %s", "slow", extra={"waited": 3})
    _log.debug("not wanted by the level of the root")
    if ctx.attempt <= fails:
        try:
            raise ValueError("no answer")
        except ValueError:
            ctx.log.exception("the bank failed")
        raise RuntimeError("try again")
    return "charged"


@task("logs.odd", queue="default")
async def odd(ctx: Context) -> None:
    ctx.log.info("zero \0 and \ud800", nan=float("nan"), odd=Odd(), big=2**80, nothing=None)
    ctx.log.error("long " + "x" * 20_000, much="y" * 20_000)


@task("logs.many", queue="default")
def many(ctx: Context, lines: int) -> int:
    for number in range(lines):
        ctx.log.info("line", number=number)
    return lines


def unused() -> Any:
    _log.error("written outside of every body")
