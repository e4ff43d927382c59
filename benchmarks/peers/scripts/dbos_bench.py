"""DBOS Transact for Python. Workflows are started in the process that runs them, or through a queue (w2 mode=queue)."""

import asyncio
import json
import os
import sys
import time

from dbos import DBOS

from common import (
    ARGS,
    PG,
    TR,
    arg,
    emit,
    emit_late,
    emit_light,
    emit_rate,
    failover,
    main,
    mark,
    mono,
    serve,
    settle,
    spawn,
    sql,
    stop,
)

URL = PG.replace("postgresql://", "postgresql+psycopg://")


@DBOS.step()
def step(i):
    t = mono()
    TR.append((DBOS.workflow_id, i, t, mono()))
    return i


@DBOS.step()
async def astep(i):
    return i


@DBOS.step()
def slow(i):
    mark(i)
    time.sleep(0.2)
    return i


@DBOS.workflow()
def flow(k):
    for i in range(10):
        step(i)
    return k


@DBOS.workflow()
async def fan(n):
    return sum(await asyncio.gather(*[astep(i) for i in range(n)]))


@DBOS.workflow()
async def sleeper(due):
    await DBOS.sleep_async(max(0.001, due - time.time()))
    TR.append(time.time() - due)


@DBOS.workflow()
def slowflow():
    for i in range(200):
        slow(i)


def launch(executor="local"):
    DBOS(
        config={
            "name": "peers",
            "system_database_url": URL,
            "sys_db_pool_size": arg("pool", 20),
            "max_executor_threads": arg("threads", 20),
            "application_version": "v1",
            "executor_id": executor,
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )
    DBOS.launch()


def wipe():
    for t in ("workflow_status", "operation_outputs", "workflow_events", "notifications"):
        sql(f"TRUNCATE dbos.{t} CASCADE")
    settle()


def many(n):
    for h in [DBOS.start_workflow(flow, i) for i in range(n)]:
        h.get_result()


def w1_child():
    launch(f"ex{ARGS['idx']}")
    many(8)
    print("READY", flush=True)
    sys.stdin.readline()
    t = mono()
    many(arg("n", 200) // arg("procs", 1))
    print(json.dumps([t, mono()]), flush=True)
    os._exit(0)


def w1():
    p = arg("procs", 1)
    launch()
    DBOS.destroy()
    settle()
    ts = stop(spawn(p, "w1_child"))
    emit_rate(arg("n", 200) // p * p, max(t[1] for t in ts) - min(t[0] for t in ts))


def w2():
    launch()
    settle()
    runs = []
    queue = arg("mode", "") == "queue"
    if queue:
        DBOS.register_queue("q", worker_concurrency=10, polling_interval_sec=arg("poll", 1.0))
        time.sleep(2)
    for r in range(-3, arg("n", 100)):
        TR.clear()
        t = mono()
        (DBOS.enqueue_workflow("q", flow, r) if queue else DBOS.start_workflow(flow, r)).get_result()
        if r >= 0:
            runs.append((t, list(TR)))
        time.sleep(0.005)
    emit_light(runs)


def w3():
    launch()
    settle()

    async def go(n):
        t = mono()
        h = await DBOS.start_workflow_async(fan, n)
        assert await h.get_result() == n * (n - 1) // 2
        return mono() - t

    async def both():
        await go(20)
        return await go(arg("n", 1000))

    emit(wall_s=round(asyncio.run(both()), 3))


async def w4():
    launch()
    settle()
    n = arg("n", 2000)
    due = time.time() + arg("due", 45)
    sem = asyncio.Semaphore(100)

    async def one():
        async with sem:
            await DBOS.start_workflow_async(sleeper, due)

    await asyncio.gather(*[one() for _ in range(n)])
    left = due - time.time()
    while len(TR) < n:
        await asyncio.sleep(0.1)
    emit_late(TR, left)


def w5_child():
    launch()
    if ARGS["first"] == "1":
        DBOS.start_workflow(slowflow)
    serve()


def w5():
    """The same executor id starts again: without the vendor's console no other worker takes a workflow over"""
    launch()
    DBOS.destroy()
    failover(lambda first: spawn(case="w5_child", first=int(first))[0], arg("n", 5), reset=wipe, standby=False)


main(globals())
