"""Absurd: Postgres-native workflows (absurd-sdk). clients = worker loops in a process, each with its own connection."""

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from absurd_sdk import Absurd, AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from common import (
    ARGS,
    PG,
    TR,
    arg,
    aserve,
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
    traces,
    wait_for,
    wait_sql,
)

DONE, ASLEEP = (f"select count(*) from absurd.t_bench where state = '{s}'" for s in ("completed", "sleeping"))


def fresh(*queues):
    if not sql("select to_regclass('absurd.queues') is not null"):
        sql(BUNDLED_SCHEMA_SQL)
    for q in queues:
        sql("select absurd.drop_queue(%s)", q)
        sql("select absurd.create_queue(%s)", q)
    settle()


def worker(queue, tasks, **kw):
    app = Absurd(PG, queue_name=queue)
    for t in tasks:
        app.register_task(name=t.__name__, queue=queue)(t)
    kw = {
        "claim_timeout": arg("claim", 120),
        "concurrency": arg("conc", 1),
        "poll_interval": arg("poll", 0.25),
        **({"batch_size": arg("batch", 1)} if "batch" in ARGS else {}),
        **kw,
    }
    threading.Thread(target=app.start_worker, kwargs=kw, daemon=True).start()


def spawn_tasks(task, params):
    cl = [Absurd(PG, queue_name="bench") for _ in range(4)]
    with ThreadPoolExecutor(4) as ex:
        list(ex.map(lambda k: [cl[k].spawn(task, x, queue="bench") for x in params[k::4]], range(4)))


def flow(params, ctx):
    for i in range(10):

        def f(i=i):
            t = mono()
            TR.append((ctx.task_id, i, t, mono()))
            return i

        ctx.step(f"s{i}", f)


async def aflow(params, ctx):
    for i in range(10):

        async def f(i=i):
            return i

        await ctx.step(f"s{i}", f)


def sleeper(params, ctx):
    ctx.sleep_until("z", params["due"])
    TR.append(time.time() - params["due"])


def slow(params, ctx):
    for i in range(600):

        def f(i=i):
            mark(i)
            time.sleep(0.2)
            return i

        ctx.step(f"s{i}", f)


def child():
    for _ in range(arg("clients", 1)):
        worker("bench", [sleeper, slow])
    time.sleep(0.5)
    serve()


async def achild():
    async def one():
        app = AsyncAbsurd(PG, queue_name="bench")
        app.register_task(name="aflow", queue="bench")(aflow)
        await app.start_worker(concurrency=arg("conc", 10), poll_interval=arg("poll", 0.25))

    _tasks = [asyncio.create_task(one()) for _ in range(arg("clients", 1))]
    await aserve()


def w1():
    n, warm = arg("n", 700), 20
    fresh("bench")
    spawn(arg("procs", 1), "achild")
    spawn_tasks("aflow", [{}] * warm)
    wait_sql(DONE, warm)
    t = mono()
    spawn_tasks("aflow", [{}] * n)
    wait_sql(DONE, n + warm)
    emit_rate(n, mono() - t)


def w2():
    fresh("bench")
    worker("bench", [flow])
    time.sleep(0.5)
    cl = Absurd(PG, queue_name="bench")
    runs = []
    for r in range(-5, arg("n", 100)):
        TR.clear()
        t = mono()
        cl.spawn("flow", {}, queue="bench")
        wait_for(lambda: len(TR) == 10, 10)
        if r >= 0:
            runs.append((t, list(TR)))
        time.sleep(0.02 + random.random() * arg("poll", 0.25))  # the trigger falls anywhere in the poll interval
    emit_light(runs)


def w3():
    """A task has no parallel steps: as documented, the parent spawns child tasks in another queue and awaits each."""
    fresh("bench", "kids")
    done = []
    kids = Absurd(PG, queue_name="kids")

    def kid(params, ctx):
        return ctx.step("s", lambda: params["i"])

    def fan(params, ctx):
        ids = [
            ctx.step(f"sp{i}", lambda i=i: str(kids.spawn("kid", {"i": i}, queue="kids")["task_id"]))
            for i in range(params["n"])
        ]
        done.append((sum(ctx.await_task_result(t, queue_name="kids").result for t in ids), mono()))

    for _ in range(arg("clients", 4)):
        worker("kids", [kid])
    worker("bench", [fan], batch_size=1)
    time.sleep(0.5)
    cl = Absurd(PG, queue_name="bench")
    for n in (20, arg("n", 1000)):
        done.clear()
        t = mono()
        cl.spawn("fan", {"n": n}, queue="bench")
        wait_for(lambda: done, 200)
        assert done[0][0] == n * (n - 1) // 2
    emit(wall_s=round(done[0][1] - t, 3))


def w4():
    n = arg("n", 2000)
    fresh("bench")
    ps = spawn(arg("procs", 1), dump=1)
    due = time.time() + arg("due", 25)
    spawn_tasks("sleeper", [{"due": due}] * n)
    wait_sql(ASLEEP, n, due - time.time())
    left = due - time.time()
    wait_sql(DONE, n)
    emit_late(traces(ps), left)


def w5():
    failover(
        lambda first: spawn()[0], arg("n", 4), kick=lambda: spawn_tasks("slow", [{}]), reset=lambda: fresh("bench")
    )


main(globals())
