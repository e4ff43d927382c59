"""Prefect 3: its server on Postgres; flows are called in process, without a worker. Task states reach the server as
events."""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request

from common import PG, PORTS, TMP, TR, arg, emit, emit_light, emit_rate, main, mono, spawn, stop, wait_for

API = f"http://127.0.0.1:{PORTS[0]}/api"
os.environ.update(
    {
        "PREFECT_HOME": f"{TMP}/prefect",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "PREFECT_API_URL": API,
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_API_DATABASE_CONNECTION_URL": PG.replace("postgresql://", "postgresql+asyncpg://"),
    }
)
from prefect import flow, task  # noqa: E402 - it reads the environment when it is imported


@task(persist_result=True)
async def astep(i):
    t = mono()
    TR.append((0, i, t, mono()))
    return i


@task(persist_result=True)
def step(i):
    return i


@flow(persist_result=True)
async def aflow(k):
    for i in range(10):
        await astep(i)
    return k


@flow(persist_result=True)
def fan(n):
    return sum(f.result() for f in step.map(range(n)))


def server():
    subprocess.Popen(
        [
            os.path.dirname(sys.executable) + "/prefect",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(PORTS[0]),
        ],
        stdout=sys.stderr,
    )

    def up():
        try:
            return urllib.request.urlopen(API + "/health", timeout=5).status == 200
        except OSError:
            time.sleep(0.2)

    if not wait_for(up, 120):
        raise SystemExit("the server did not start")


async def many(n, inflight):
    sem = asyncio.Semaphore(inflight)

    async def one(i):
        async with sem:
            await aflow(i)

    t = mono()
    await asyncio.gather(*[one(i) for i in range(n)])
    return [t, mono()]


def w1_child():
    print("READY", flush=True)
    sys.stdin.readline()
    ts = asyncio.run(many(arg("n", 24) // arg("procs", 2), arg("inflight", 10)))
    print(json.dumps(ts), flush=True)
    os._exit(0)


def w1():
    server()
    p = arg("procs", 2)
    ts = stop(spawn(p, "w1_child"))
    emit_rate(arg("n", 24) // p * p, max(t[1] for t in ts) - min(t[0] for t in ts))


async def w2():
    server()
    runs = []
    for r in range(-3, arg("n", 15)):
        TR.clear()
        t = mono()
        await aflow(r)
        if r >= 0:
            runs.append((t, list(TR)))
    emit_light(runs)


def w3():
    server()
    n = arg("n", 1000)
    fan(20)
    t = mono()
    assert fan(n) == n * (n - 1) // 2
    emit(wall_s=round(mono() - t, 2))


main(globals())
