"""The bodies of the examples here: one workflow for each construct of the language.

headrace dev examples/constructs/app.py      publishes them all, and starts a worker
"""

from typing import Any

from headrace import Context, NonRetryable, did_not_happen, happened, task

done: dict[str, str] = {}
"""The world outside, as far as it is played here: what was done, by effect key."""


@task("text.greet")
def greet(name: str) -> str:
    return f"Hello, {name}"


@task("text.shout")
def shout(text: str, marks: int) -> str:
    return text.upper() + "!" * marks


@task("text.say")
def say(text: str) -> str:
    return text


@task("text.measure")
def measure(text: str, place: int) -> dict[str, Any]:
    if not text:
        raise NonRetryable(f"word {place} is empty")
    return {"text": text, "length": len(text)}


@task("text.longest")
def longest(lengths: list[dict[str, Any]]) -> str:
    return str(max(lengths, key=lambda each: each["length"])["text"])


@task("offers.ask")
def ask(who: str, broken: list[str]) -> str:
    if who in broken:
        raise ConnectionError(f"{who} does not answer")
    return f"an offer of {who}"


@task("service.call")
def call(ctx: Context, failures: int) -> int:
    """Works after so many failures; answers which attempt it was."""
    if ctx.attempt <= failures:
        raise ConnectionError("the service is away")
    return ctx.attempt


@task("job.status")
def status(rounds: int, place: int, before: dict[str, Any] | None) -> dict[str, Any]:
    """How a job stands that is done after so many looks; and how often it was looked at."""
    seen = 1 if before is None else before["seen"] + 1
    return {"state": "done" if place + 1 == rounds else "busy", "seen": seen}


@task("bank.charge")
def charge(ctx: Context, order: str) -> str:
    with ctx.effect() as key:
        return done.setdefault(key, f"receipt for {order}")


@task("mail.send")
def send(ctx: Context, to: str) -> str:
    with ctx.effect() as key:
        done[key] = f"mail to {to}"
    return done[key]


@task("mail.find")
def find(ctx: Context) -> dict[str, Any]:
    """Whether the mail of an attempt that ended without a word was sent."""
    return happened(done[ctx.effect_key]) if ctx.effect_key in done else did_not_happen()


@task("printer.print")
def print_(ctx: Context, text: str) -> None:
    with ctx.effect() as key:
        done[key] = text


@task("stock.take")
def take(ctx: Context, order: str) -> str:
    with ctx.effect() as key:
        return done.setdefault(key, f"a parcel for {order}")


@task("stock.put_back")
def put_back(ctx: Context, output: str | None) -> str:
    """Undoes `stock.take`: given its input and its output, null if nobody knows what became of it."""
    with ctx.effect() as key:
        return done.setdefault(key, f"{output} is back")


@task("bank.refund")
def refund(ctx: Context, receipt: str | None) -> str:
    with ctx.effect() as key:
        return done.setdefault(key, f"{receipt} is paid back")
