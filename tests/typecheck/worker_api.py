"""How users write bodies, workers and clients; mypy and pyright check that the types come out as written here."""

from typing import Any, assert_type

from headrace.client import AsyncClient, Client
from headrace.context import Context, current
from headrace.errors import AmbiguousError
from headrace.graph import Workflow, build
from headrace.lookup import did_not_happen, happened, unknown
from headrace.registry import Registry, task
from headrace.views import Approval, Page, ParkedTask, Published, Run, Task
from headrace.worker import Worker

registry = Registry()


@task("payments.charge", queue="io")
async def charge(ctx: Context, order_id: str, total: int = 0) -> dict[str, str]:
    ctx.heartbeat({"done": 0.5})
    return {"receipt": f"{ctx.effect_key}:{order_id}:{total}"}


@task
def ship(input: dict[str, Any]) -> str:
    return f"{current().task} {input}"


@registry.task("notify")
def notify(ctx: Context) -> None:
    if not ctx.cancelled:
        ctx.log.info("told", remaining=ctx.remaining())


@task("bank.transfer", queue="io")
def transfer(ctx: Context, amount: int) -> str:
    with ctx.effect() as key:
        assert_type(key, str)
        if amount > 1_000_000:
            raise AmbiguousError("the bank did not answer")
        return key


@task("bank.find_transfer", queue="io")
async def find_transfer(ctx: Context, amount: int) -> dict[str, Any]:
    if amount == 0:
        return did_not_happen()
    return happened({"receipt": ctx.effect_key}) if amount < 10 else unknown()


def a_workflow() -> None:
    orders = build("orders").task("pay", run="bank.transfer", effect="reconcile", lookup="bank.find_transfer")
    assert_type(orders.task("ship", run="ship", needs="pay", exclusive=True, effect="manual").publishable(), Workflow)
    orders.task("bad", run="ship", effect="hope")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def bodies_keep_their_types(ctx: Context) -> None:
    assert_type(await charge(ctx, "o-1", total=3), dict[str, str])
    assert_type(ship({}), str)
    await charge(ctx, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ship()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def a_worker() -> None:
    Worker(registry, kafka="127.0.0.1:9092", queues=("default", "io"), slots=4).run_forever()


def a_blocking_client() -> None:
    with Client("http://127.0.0.1:8400", token="t") as client:
        assert_type(client.publish("name: orders"), Published)
        assert_type(client.start("orders", {"order": 1}, key="order-1"), Run)
        assert_type(client.wait("id", timeout=3), Run)
        assert_type(client.tasks("id"), list[Task])
        assert_type(client.runs(status="failed"), Page[Run])
        assert_type(client.parked_tasks(), list[ParkedTask])
        assert_type(client.resolve("id", "pay", "happened", output={"receipt": "r-1"}), None)
        client.resolve("id", "pay", "perhaps")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        client.start(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        client.start("orders", unknown=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def an_async_client() -> None:
    async with AsyncClient() as client:
        assert_type(await client.start("orders"), Run)
        assert_type(await client.approvals(), list[Approval])
        await client.replay("id", input={"fixed": True})
