"""The bodies of `settlement`: hold → risk → two of three agree → settle → confirm → audit, and what undoes it.

Each booking has the effect key of its task, so that it is made once however often its body is tried; what undoes a
booking is a booking of its own, under a key of its own.
"""

import os
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headrace import Context, NonRetryable, did_not_happen, happened, task

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from settlement.ledger import CLOSED, HELD, Ledger

LARGE_CENTS = 100_000


class Payment(BaseModel):
    id: str
    payer: str
    payee: str
    cents: int


def ledger() -> Ledger:
    return Ledger(Path(os.environ.get("SETTLEMENT_DATA", ".headrace/settlement")))


@task("settlement.hold", queue="io")
def hold(ctx: Context, payment: Payment) -> dict[str, str]:
    with ctx.effect() as key:
        return {"receipt": ledger().book(key, "hold", payment.id, payment.payer, HELD, payment.cents)}


@task("settlement.release", queue="io")
def release(ctx: Context, payment: Payment) -> dict[str, str]:
    """Undoes `hold`."""
    with ctx.effect() as key:
        return {"receipt": ledger().book(key, "release", payment.id, HELD, payment.payer, payment.cents)}


@task("settlement.assess")
def assess(payment: Payment) -> dict[str, Any]:
    """Where a model of risks would be asked. Large is risky enough here."""
    is_large = payment.cents >= LARGE_CENTS
    return {"score": 80 if is_large else 10, "why": "a large amount" if is_large else "an ordinary amount"}


@task("settlement.waive")
def waive(payment: dict[str, Any]) -> dict[str, str]:
    """Nobody has to agree to this one."""
    return {"why": f"{payment['cents']} cents are below the limit"}


@task("settlement.settle", queue="io")
def settle(ctx: Context, payment: Payment) -> dict[str, str]:
    with ctx.effect() as key:
        return {"receipt": ledger().book(key, "settle", payment.id, HELD, payment.payee, payment.cents)}


@task("settlement.find", queue="io")
def find(ctx: Context) -> dict[str, Any]:
    """Whether an attempt that ended without a word has settled: it is never done blindly again."""
    receipt = ledger().find(ctx.effect_key)
    return did_not_happen() if receipt is None else happened({"receipt": receipt})


@task("settlement.reverse", queue="io")
def reverse(ctx: Context, payment: Payment) -> dict[str, str]:
    """Undoes `settle`: the money is held again."""
    with ctx.effect() as key:
        return {"receipt": ledger().book(key, "reverse", payment.id, payment.payee, HELD, payment.cents)}


@task("settlement.confirm", queue="io")
def confirm(payment: Payment) -> dict[str, bool]:
    """Ask the bank of the payee, which knows its accounts."""
    if payment.payee in CLOSED:
        raise NonRetryable(f"payment {payment.id}: the account {payment.payee} is closed")
    return {"confirmed": True}


@task("settlement.record", queue="io")
def record(ctx: Context, payment: Payment, receipt: str, agreed: dict[str, Any] | None) -> None:
    """The audit event: what was paid, and who agreed."""
    who = "nobody had to agree" if agreed is None else f"agreed: {agreed}"
    with ctx.effect() as key:
        ledger().record(key, payment.id, f"{payment.cents} cents to {payment.payee} ({receipt}); {who}")
