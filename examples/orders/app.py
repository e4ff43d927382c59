"""The bodies of `orders`: validate → reserve → charge → ship → notify.

What a body changes in the world outside goes through `outside.Outside`, with the effect key of its task. The bank here
is a bad one: it refuses the first call, and loses its answer to the second one after it has booked. Only the third
attempt learns the receipt, and still nobody is charged twice.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace import Context, NonRetryable, task

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that this file runs alone, and together with the others
from orders.outside import Outside

SHIP_SECONDS = float(os.environ.get("ORDERS_SHIP_SECONDS", "0.2"))
"""How long packing takes."""
PRICES_CENTS = {"lamp": 2450, "chair": 8900, "desk": 31900}

outside = Outside(Path(os.environ.get("ORDERS_DATA", ".headrace/orders")))


class Order(BaseModel):
    """An order that can be carried out. Strict: a text is no amount."""

    model_config = ConfigDict(strict=True)

    order_id: str = Field(pattern=r"^[A-Za-z0-9-]{1,40}$")
    sku: str
    quantity: int = Field(ge=1, le=100)
    amount_cents: int = Field(gt=0)
    email: str = Field(pattern=r"^[^@\s]+@[^@\s]+$")


@task("orders.validate")
def validate(input: dict[str, Any]) -> Order:
    """Check the order. Another attempt would find the same faults, so none is made."""
    try:
        order = Order.model_validate(input)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise NonRetryable(f"order {input.get('order_id')}: {faults}") from None
    price = PRICES_CENTS.get(order.sku)
    if price is None:
        raise NonRetryable(f"order {order.order_id}: we do not sell {order.sku!r}")
    if order.amount_cents != price * order.quantity:
        raise NonRetryable(f"order {order.order_id}: {order.quantity} x {price} is not {order.amount_cents}")
    return order


@task("orders.reserve")
def reserve(ctx: Context, order: Order) -> dict[str, Any]:
    outside.reserve(ctx.effect_key, order.order_id, order.sku, order.quantity)
    return {"sku": order.sku, "quantity": order.quantity}


@task("orders.charge", queue="io")
def charge(ctx: Context, order: Order) -> dict[str, str]:
    """Charge once, however often this is tried."""
    if ctx.attempt == 1:
        raise ConnectionError("the bank does not answer")
    receipt = outside.charge(ctx.effect_key, order.order_id, order.amount_cents)
    if ctx.attempt == 2:
        raise TimeoutError("the bank has booked, and its answer was lost")
    return {"receipt": receipt}


@task("orders.ship", queue="slow")
async def ship(ctx: Context, order: Order, receipt: str) -> dict[str, str]:
    """Pack, then hand over. Whoever dies while packing has handed over nothing."""
    ctx.log.info("packing", order=order.order_id)
    await asyncio.sleep(SHIP_SECONDS)
    parcel = await asyncio.to_thread(outside.ship, ctx.effect_key, order.order_id, receipt)
    return {"parcel": parcel}


@task("orders.notify", queue="io")
def notify(ctx: Context, to: str, text: str) -> None:
    outside.send_mail(ctx.effect_key, to, text)
