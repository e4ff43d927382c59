"""Procrastinate: a job queue on Postgres, no workflows. A run of ten steps is a chain of ten jobs, each of which
defers the next."""

import asyncio
import datetime
import os
import time

import procrastinate

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
    settle,
    spawn,
    sql,
    traces,
    wait_sql,
)

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=PG, min_size=4, max_size=arg("pool", 20)))
DONE = "select count(*) from procrastinate_jobs where status = 'succeeded'"


@app.task(name="noop")
async def noop():
    pass


@app.task(name="chain")
async def chain(r, i):
    t = mono()
    if i < 9:
        await chain.defer_async(r=r, i=i + 1)
    TR.append((r, i, t, t))


@app.task(name="stamp")
async def stamp(due):
    TR.append(time.time() - due)


@app.task(name="slow")
async def slow():
    for i in range(600):
        mark(i)
        await asyncio.sleep(0.1)


def fresh():
    if not sql("select to_regclass('procrastinate_jobs') is not null"):
        with app.open():
            app.schema_manager.apply_schema()
    sql(
        "truncate procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers, procrastinate_workers"
        " cascade"
    )
    settle()


def worker():
    return asyncio.create_task(
        app.run_worker_async(
            concurrency=arg("conc", 20),
            fetch_job_polling_interval=arg("poll", 5),
            install_signal_handlers=False,
            update_heartbeat_interval=arg("hb", 10),
            stalled_worker_timeout=arg("stall", 30),
        )
    )


async def rescue():
    """What the documentation asks the user to schedule: nothing else returns the jobs of a dead worker to the queue"""
    while True:
        for j in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=arg("stall", 30)):
            await app.job_manager.retry_job(j)
        await asyncio.sleep(arg("every", 1))


async def child():
    async with app.open_async():
        _tasks = [worker(), *([asyncio.create_task(rescue())] if "every" in ARGS else [])]
        await aserve()


def defer(task, rows, **conf):
    async def go():
        async with app.open_async():
            for k in range(0, len(rows), 500):
                await app.configure_task(task, **conf).batch_defer_async(*rows[k : k + 500])

    asyncio.run(go())


def w1():
    n, ch = arg("n", 1500), arg("chain", 0)
    fresh()
    spawn(arg("procs", 1))
    t = mono()
    defer("chain" if ch else "noop", [{"r": i, "i": 0} if ch else {} for i in range(n)])
    wait_sql(DONE, n * 10 if ch else n)
    emit_rate(n, mono() - t, 10 if ch else 1)


async def w2():
    fresh()
    runs = []
    async with app.open_async():
        _task = worker()
        await asyncio.sleep(1)
        for r in range(-2, arg("n", 100)):
            TR.clear()
            t = mono()
            await chain.defer_async(r=r, i=0)
            while len(TR) < 10:
                await asyncio.sleep(0.002)
            if r >= 0:
                runs.append((t, list(TR)))
            await asyncio.sleep(0.01)
        emit_light(runs)
        os._exit(0)


def w3():
    """The wait for the last job stands in for a join; it is not a durable one"""
    n = arg("n", 1000)
    fresh()
    spawn(arg("procs", 1))
    t = mono()
    defer("noop", [{}] * n)
    wait_sql(DONE, n)
    emit(wall_s=round(mono() - t, 3))


def w4():
    n = arg("n", 2000)
    fresh()
    ps = spawn(arg("procs", 1), dump=1)
    due = time.time() + arg("due", 8)
    defer("stamp", [{"due": due}] * n, schedule_at=datetime.datetime.fromtimestamp(due, datetime.UTC))
    left = due - time.time()
    wait_sql(DONE, n)
    emit_late(traces(ps), left)


def w5():
    failover(lambda first: spawn()[0], arg("n", 4), kick=lambda: defer("slow", [{}]), reset=fresh)


main(globals())
