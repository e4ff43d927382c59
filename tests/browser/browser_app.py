"""Bodies and workflows for the console's tests: each ends in its own way, so that every state can be looked at."""

import asyncio
import logging
import os

import headrace

ORDERS = """
name: orders
description: Validates, charges, packs and ships one order.
input:
  type: object
  properties:
    order_id: { type: string, description: as the shop names it }
    amount: { type: number, minimum: 0 }
    express: { type: boolean }
    carrier: { enum: [dhl, ups, post] }
  required: [order_id, amount]
tasks:
  validate: { run: shop.validate }
  stock: { run: shop.stock, needs: validate }
  fraud: { run: shop.fraud, needs: validate }
  charge:
    run: shop.charge
    needs: [stock, fraud]
    with: { order_id: "${{ input.order_id }}", amount: "${{ input.amount }}" }
    retry: { attempts: 3, delay: 200ms, backoff: fixed }
  pack: { run: shop.pack, needs: charge }
  gift: { run: shop.gift, needs: charge, if: "${{ has(input.express) && input.express }}" }
  ship: { run: shop.ship, needs: [pack, gift], join: always }
  notify: { run: shop.notify, needs: ship }
output:
  parcel: ${{ tasks.ship.output.parcel }}
"""
RELEASE = """
name: release
tasks:
  build: { run: ci.build }
  unit: { run: ci.test, needs: build }
  browser: { run: ci.test, needs: build }
  ask:
    needs: [unit, browser]
    approval:
      title: "Ship this build to production?"
      approvers: [console, "role:lead"]
      expires: 2d
      on_expiry: reject
  ship: { run: ci.ship, needs: ask }
  soak: { needs: ship, wait: { for: 2h } }
  report: { run: ci.report, needs: soak, queue: slow }
"""
PAYOUT = """
name: payout
tasks:
  transfer: { run: bank.transfer, effect: manual }
  receipt: { run: shop.notify, needs: transfer }
"""
LONELY = """
name: lonely
tasks:
  wait: { run: shop.notify, queue: nobody }
"""
IMPORT = """
name: import
tasks:
  fetch: { run: shop.notify }
  rows: { run: shop.row, needs: fetch, retry: 1, map: { over: "${{ input.rows }}", failures: collect } }
  paid: { needs: rows, signal: payment.received }
  done: { run: shop.notify, needs: paid }
"""
TRIP = """
name: trip
tasks:
  flight: { run: shop.notify, compensate: shop.notify }
  hotel: { run: shop.notify, needs: flight, compensate: { run: shop.gift, retry: 2 } }
  pay: { run: shop.decline, needs: hotel, retry: 1 }
"""
JOB = """
name: job
deadline: 1d
tasks:
  poll: { run: shop.round, repeat: { until: output >= 3, max: 10, delay: 50ms } }
"""
PARCELS = """
name: parcels
tasks:
  check: { workflow: job }
  send: { run: shop.notify, needs: check, deadline: 2h }
"""
REFUND = """
name: refund
tasks:
  agreed:
    approval:
      title: "Refund ${{ input.amount }} EUR?"
      context: { order: "${{ input }}" }
      form:
        type: object
        required: [reason]
        properties: { reason: { type: string, title: Why }, amount: { type: number, maximum: 500 } }
      needed: 2
      expires: 2d
  pay: { needs: agreed, run: shop.notify }
"""
PRINT = """
name: print
tasks:
  sheet: { run: shop.notify, queue: nobody, pool: press }
"""
NAPPING = """
name: napping
tasks:
  nap: { run: shop.nap }
"""
WORKFLOWS = (ORDERS, RELEASE, PAYOUT, LONELY, IMPORT, TRIP, JOB, PARCELS, REFUND, PRINT, NAPPING)


@headrace.task("shop.validate")
async def validate(order_id: str) -> dict[str, object]:
    await asyncio.sleep(0.02)
    return {"order_id": order_id, "lines": 3, "checks": {"address": True, "vat": "DE"}}


@headrace.task("shop.stock")
async def stock() -> dict[str, int]:
    await asyncio.sleep(0.12)
    return {"reserved": 3}


@headrace.task("shop.fraud")
async def fraud() -> dict[str, float]:
    await asyncio.sleep(0.2)
    return {"score": 0.07}


@headrace.task("shop.charge")
async def charge(order_id: str, amount: float | str) -> dict[str, object]:
    logging.getLogger("bank").warning(
        "asked for %s", amount, extra={"order": order_id, "markup": "<img src=x onerror=alert(1)>"}
    )
    await asyncio.sleep(0.08)
    if isinstance(amount, str):
        raise headrace.NonRetryable(f"amount {amount!r} of order {order_id} is no number")
    if amount > 5000:
        raise RuntimeError(f"the bank declined {amount} for {order_id}")
    return {"charged": amount, "order_id": order_id}


@headrace.task("shop.pack")
async def pack() -> dict[str, int]:
    await asyncio.sleep(0.1)
    return {"grams": 840}


@headrace.task("shop.gift")
async def gift() -> None:
    await asyncio.sleep(0.05)


@headrace.task("shop.ship")
async def ship(order_id: str) -> dict[str, str]:
    await asyncio.sleep(float(os.environ.get("SHIP_SECONDS", "0.15")))
    return {"parcel": f"P-{order_id}"}


@headrace.task("shop.notify")
async def notify() -> str:
    return "sent"


@headrace.task("shop.nap")
async def nap() -> None:
    await asyncio.sleep(120)


@headrace.task("shop.decline")
async def decline() -> None:
    raise headrace.NonRetryable("the card was declined")


@headrace.task("shop.round")
async def count_rounds(ctx: headrace.Context) -> int:
    return (ctx.round or 0) + 1


@headrace.task("shop.row")
async def row(number: int) -> int:
    if number % 10 == 7:
        raise ValueError(f"row {number} has no price")
    return number * 2


@headrace.task("ci.build")
async def build() -> dict[str, object]:
    await asyncio.sleep(0.3)
    return {"version": "2.4.0", "commit": "3cd8e32", "artifacts": ["greeter.whl", "greeter.sbom.json"]}


@headrace.task("ci.test")
async def test() -> dict[str, int]:
    await asyncio.sleep(0.25)
    return {"passed": 412, "failed": 0}


@headrace.task("ci.ship")
async def ship_build() -> str:
    await asyncio.sleep(0.1)
    return "shipped"


@headrace.task("ci.report")
async def report() -> None: ...


@headrace.task("bank.transfer")
async def transfer(ctx: headrace.Context) -> dict[str, str]:
    with ctx.effect():
        raise ConnectionError("the bank closed the connection before it answered")
