"""PgQueuer: a job queue on Postgres, no workflows. A run of ten steps is a chain of ten jobs, each of which enqueues
the next."""

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

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

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
DONE = "select count(*) from pgqueuer_log where status = 'successful'"


def fresh():
    if not sql("select to_regclass('pgqueuer') is not null"):
        from psycopg.conninfo import conninfo_to_dict

        c = conninfo_to_dict(PG)
        env = {"PGHOST": c["host"], "PGPORT": str(c["port"]), "PGUSER": c["user"], "PGDATABASE": c["dbname"]}
        subprocess.run(
            [os.path.dirname(sys.executable) + "/pgq", "install"],
            env={**os.environ, **env},
            check=True,
            stdout=subprocess.DEVNULL,
        )
    sql("truncate pgqueuer, pgqueuer_log, pgqueuer_statistics")
    settle()


async def worker():
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(PG)))

    @pgq.entrypoint("noop")
    async def noop(job):
        pass

    @pgq.entrypoint("chain")
    async def chain(job):
        t = mono()
        r, i = json.loads(job.payload)
        if i < 9:
            await pgq.qm.queries.enqueue("chain", json.dumps([r, i + 1]).encode())
        TR.append((r, i, t, t))

    @pgq.entrypoint("stamp")
    async def stamp(job):
        TR.append(time.time() - float(job.payload))

    @pgq.entrypoint("slow")
    async def slow(job):
        for i in range(600):
            mark(i)
            await asyncio.sleep(0.1)

    kw = {"heartbeat_timeout": timedelta(seconds=arg("hb", 30))} if "hb" in ARGS else {}
    return asyncio.create_task(
        pgq.qm.run(batch_size=arg("batch", 10), dequeue_timeout=timedelta(seconds=arg("poll", 30)), **kw)
    )


async def child():
    _task = await worker()
    await aserve()


async def aenqueue(entry, payloads, after=None):
    q = Queries(AsyncpgDriver(await asyncpg.connect(PG)))
    for k in range(0, len(payloads), 1000):
        pl = payloads[k : k + 1000]
        await q.enqueue([entry] * len(pl), pl, [0] * len(pl), [after() if after else None] * len(pl))


def enqueue(*a, **kw):
    asyncio.run(aenqueue(*a, **kw))


def w1():
    n, ch = arg("n", 5000), arg("chain", 0)
    fresh()
    spawn(arg("procs", 1))
    t = mono()
    enqueue("chain" if ch else "noop", [json.dumps([i, 0]).encode() for i in range(n)])
    wait_sql(DONE, n * 10 if ch else n, every=0.02)
    emit_rate(n, mono() - t, 10 if ch else 1)


async def w2():
    fresh()
    _task = await worker()
    await asyncio.sleep(1)
    q = Queries(AsyncpgDriver(await asyncpg.connect(PG)))
    runs = []
    for r in range(-5, arg("n", 100)):
        TR.clear()
        t = mono()
        await q.enqueue("chain", json.dumps([r, 0]).encode())
        while len(TR) < 10:
            await asyncio.sleep(0.002)
        if r >= 0:
            runs.append((t, list(TR)))
        await asyncio.sleep(0.01)
    emit_light(runs)


def w3():
    """The wait for the last job stands in for a join; it is not a durable one"""
    n = arg("n", 1000)
    fresh()
    spawn(arg("procs", 1))
    enqueue("noop", [b"x"] * 20)
    wait_sql(DONE, 20)
    t = mono()
    enqueue("noop", [b"x"] * n)
    wait_sql(DONE, n + 20, every=0.01)
    emit(wall_s=round(mono() - t, 3))


def w4():
    n = arg("n", 10000)
    fresh()
    ps = spawn(arg("procs", 1), dump=1)
    due = time.time() + arg("due", 8)
    enqueue("stamp", [str(due).encode()] * n, after=lambda: timedelta(seconds=due - time.time()))
    left = due - time.time()
    wait_sql(DONE, n)
    emit_late(traces(ps), left)


def w5():
    """The whole job runs again: a queue keeps no step results"""
    failover(lambda first: spawn()[0], arg("n", 4), kick=lambda: enqueue("slow", [b"x"]), reset=fresh)


main(globals())
