"""Temporal: the CLI's development server with an SQLite file (not a production set-up) and Python workers."""

import asyncio
import os
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from itertools import pairwise

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from common import (
    ARGS,
    MARKS,
    PORTS,
    TMP,
    TR,
    arg,
    aserve,
    emit,
    emit_failover,
    emit_late,
    emit_light,
    emit_rate,
    main,
    mark,
    marks,
    mono,
    spawn,
    traces,
    wait_for,
)

STC = timedelta(seconds=arg("stc", 30))


@activity.defn
async def step(r: int, i: int) -> int:
    t = mono()
    TR.append((r, i, t, mono()))
    return i


@activity.defn
async def slow(i: int) -> int:
    mark(i)
    await asyncio.sleep(0.2)
    return i


def ex(r, i):
    f = workflow.execute_local_activity if arg("mode", "") == "local" else workflow.execute_activity
    return f(step, args=[r, i], start_to_close_timeout=STC)


@workflow.defn
class Flow:
    @workflow.run
    async def run(self, r: int) -> int:
        for i in range(10):
            await ex(r, i)
        return r


@workflow.defn
class Fan:
    @workflow.run
    async def run(self, n: int) -> int:
        return sum(await asyncio.gather(*[ex(0, i) for i in range(n)]))


@workflow.defn
class Sleeper:
    @workflow.run
    async def run(self, due: float) -> float:
        await asyncio.sleep(max(0.001, due - workflow.time()))
        TR.append(time.time() - due)
        return due


@workflow.defn
class Slow:
    @workflow.run
    async def run(self) -> int:
        for i in range(200):
            await workflow.execute_activity(slow, i, start_to_close_timeout=STC)
        return 1


async def server():
    opts = f"server start-dev --headless --ip 127.0.0.1 --port {PORTS[0]} --log-level error --db-filename"
    subprocess.Popen(
        [os.path.dirname(sys.executable) + "/temporal", *opts.split(), f"{TMP}/temporal.db"], stdout=sys.stderr
    )
    return await connect()


async def connect():
    for _ in range(200):
        try:
            return await Client.connect(f"127.0.0.1:{PORTS[0]}")
        except Exception:
            await asyncio.sleep(0.2)
    raise SystemExit("Temporal's dev server does not answer")


def worker(c):
    kw = {"sticky_queue_schedule_to_start_timeout": timedelta(seconds=arg("sticky", 10))} if "sticky" in ARGS else {}
    task = asyncio.create_task(
        Worker(
            c,
            task_queue="q",
            workflows=[Flow, Fan, Sleeper, Slow],
            activities=[step, slow],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_activities=200,
            max_concurrent_workflow_tasks=200,
            max_cached_workflows=5000,
            **kw,
        ).run()
    )
    task.add_done_callback(ended)
    return task


def ended(task):
    print("the worker ended:", repr(task.exception()), file=sys.stderr, flush=True)
    os._exit(1)


async def child():
    _task = worker(await connect())
    await aserve()


async def w1():
    c = await server()
    spawn(arg("procs", 1))
    n = arg("n", 60)
    sem = asyncio.Semaphore(arg("inflight", 60))

    async def go(i):
        async with sem:
            await c.execute_workflow(Flow.run, i, id=f"f{i}", task_queue="q")

    await asyncio.gather(*[go(-1 - i) for i in range(10)])
    t = mono()
    await asyncio.gather(*[go(i) for i in range(n)])
    emit_rate(n, mono() - t)


async def w2():
    c = await server()
    _task = worker(c)
    await asyncio.sleep(1)
    runs = []
    for r in range(-10, arg("n", 25)):
        TR.clear()
        t = mono()
        await c.execute_workflow(Flow.run, r, id=f"f{r}", task_queue="q")
        if r >= 0:
            runs.append((t, list(TR)))
        await asyncio.sleep(0.01)
    emit_light(runs)


async def w3():
    c = await server()
    spawn(arg("procs", 1))
    for n in (20, arg("n", 1000)):
        t = mono()
        assert await c.execute_workflow(Fan.run, n, id=f"fan{n}", task_queue="q") == n * (n - 1) // 2
    emit(wall_s=round(mono() - t, 3))


async def w4():
    c = await server()
    ps = spawn(arg("procs", 1), dump=1)
    n = arg("n", 100)
    due = time.time() + arg("due", 5)
    sem = asyncio.Semaphore(50)

    async def go(i):
        async with sem:
            return await c.start_workflow(Sleeper.run, due, id=f"s{i}", task_queue="q")

    hs = await asyncio.gather(*[go(i) for i in range(n)])
    left = due - time.time()
    await asyncio.gather(*[h.result() for h in hs])
    emit_late(traces(ps), left)


def later(t, n):
    return len(marks(t)) >= n


async def w5():
    """Activities go to either worker, so the time until the next step is the longest stall after the kill"""
    c = await server()
    out = []
    for k in range(arg("n", 3)):
        open(MARKS, "w").close()
        p = spawn()[0]
        h = await c.start_workflow(Slow.run, id=f"slow{k}", task_queue="q")
        wait_for(lambda: len(marks()) >= 5, 30)
        q = spawn()[0]
        await asyncio.sleep(1.5)
        p.kill()
        t = mono()
        p.wait()
        wait_for(partial(later, t, 12), 120)
        ts = [t, *(m[2] for m in marks(t))]
        out.append(round(max(b - a for a, b in pairwise(ts)), 3))
        await h.terminate()
        q.kill()
        q.wait()
    emit_failover(out, len(out))


if __name__ == "__main__":
    main(globals())
