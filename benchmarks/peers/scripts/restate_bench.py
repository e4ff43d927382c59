"""Restate: single-node server (its own log and store on disk, default configuration) and a service under hypercorn."""

import asyncio
import glob
import json
import os
import subprocess
import sys
import time
import urllib.request
from datetime import timedelta

import restate

from common import HOME, PORTS, TMP, arg, emit, emit_late, emit_light, emit_rate, failover, main, mark, mono, wait_for

FILE = f"{TMP}/trace-%d.txt"
TRACE = open(FILE % os.getpid(), "a", buffering=1) if "TRACE" in os.environ else None
INGRESS, ADMIN, FABRIC, SERVICE = PORTS

# the service, imported by hypercorn

svc = restate.Service("bench")


def note(*a):
    if TRACE:
        TRACE.write(json.dumps(a) + "\n")


@svc.handler()
async def flow(ctx: restate.Context, r: int) -> int:
    for i in range(10):

        def s(i=i):
            t = mono()
            note(r, i, t, mono())
            return i

        await ctx.run_typed(f"s{i}", s)
    return r


@svc.handler()
async def fan(ctx: restate.Context, n: int) -> int:
    fs = [ctx.run_typed(f"s{i}", (lambda i=i: i)) for i in range(n)]
    await restate.gather(*fs)
    return sum([await f for f in fs])


@svc.handler()
async def kid(ctx: restate.Context, i: int) -> int:
    return await ctx.run_typed("s", lambda: i)


@svc.handler()
async def fan_calls(ctx: restate.Context, n: int) -> int:
    return sum([await f for f in [ctx.service_call(kid, arg=i) for i in range(n)]])


@svc.handler()
async def sleeper(ctx: restate.Context, due: float) -> float:
    await ctx.sleep(timedelta(seconds=await ctx.run_typed("d", lambda: max(0.0, due - time.time()))))
    note(due, time.time())
    return due


@svc.handler()
async def stamp(ctx: restate.Context, due: float) -> float:
    note(due, time.time())
    return due


@svc.handler()
async def slow(ctx: restate.Context, r: int) -> int:
    for i in range(300):

        async def s(i=i):
            mark(i)
            await asyncio.sleep(0.2)
            return i

        await ctx.run_typed(f"s{i}", s)
    return r


app = restate.app([svc])

# the bench


def admin(path, body=None, method="POST"):
    h = {"content-type": "application/json", "accept": "application/json"}
    data = json.dumps(body).encode() if body else None
    req = urllib.request.Request(f"http://127.0.0.1:{ADMIN}{path}", data, h, method=method)
    return urllib.request.urlopen(req, timeout=30).read()


def ok(fn):
    try:
        fn()
        return True
    except OSError:
        return False


def start_server():
    exe = glob.glob(f"{HOME}/npm/restate/node_modules/@restatedev/restate-server-*/bin/restate-server")[0]
    env = {
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_PORT": str(FABRIC),
        "RESTATE_INGRESS__BIND_PORT": str(INGRESS),
        "RESTATE_ADMIN__BIND_PORT": str(ADMIN),
        "RESTATE_DISABLE_TELEMETRY": "true",
    }
    subprocess.Popen(
        [exe, "--base-dir", f"{TMP}/data", "--node-name", "n1", "--no-logo", "--log-filter", "warn"],
        env={**os.environ, **env},
        cwd=TMP,
        stdout=sys.stderr,
    )
    if not wait_for(lambda: ok(lambda: admin("/health", method="GET")), 60):
        raise SystemExit("the server did not start")


def start_service(workers=1, trace=False):
    env = {**os.environ, **({"TRACE": "1"} if trace else {})}
    opts = f"--bind 127.0.0.1:{SERVICE} --workers {workers} --worker-class uvloop --log-level ERROR --backlog 1000"
    cmd = [os.path.dirname(sys.executable) + "/hypercorn", *opts.split(), "restate_bench:app"]
    p = subprocess.Popen(cmd, cwd=os.path.dirname(os.path.abspath(__file__)), env=env, stdout=sys.stderr)
    time.sleep(1.5)
    return p


def start(**kw):
    start_server()
    start_service(**kw)
    if not wait_for(
        lambda: ok(lambda: admin("/deployments", {"uri": f"http://127.0.0.1:{SERVICE}", "force": True})), 20
    ):
        raise SystemExit("the service did not register")


async def call(path, args, inflight=1, after=None):
    """A minimal keep-alive HTTP/1.1 client: a full one costs a core with hundreds of connections"""
    out, todo = [None] * len(args), iter(range(len(args)))

    async def conn():
        r, w = await asyncio.open_connection("127.0.0.1", INGRESS)
        for k in todo:
            b = json.dumps(args[k]).encode()
            u = path() if callable(path) else path
            t = mono()
            h = f"POST /bench/{u} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            h += f"Content-Length: {len(b)}\r\n\r\n"
            w.write(h.encode() + b)
            head = (await r.readuntil(b"\r\n\r\n")).decode().lower()
            if "content-length:" in head:
                body = await r.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
            else:
                body = b""
                while n := int((await r.readline()).strip(), 16):
                    body += (await r.readexactly(n + 2))[:-2]
                await r.readexactly(2)
            assert int(head.split()[1]) < 300, (head, body)
            out[k] = (t, json.loads(body))
            if after:
                await asyncio.sleep(after)
        w.close()

    await asyncio.gather(*[conn() for _ in range(min(inflight, len(args)))])
    return out


def lines():
    return [line for f in glob.glob(f"{TMP}/trace-*.txt") for line in open(f) if line.endswith("\n")]


def trace():
    return [json.loads(line) for line in lines()]


async def w1():
    n = arg("n", 1000)
    start(workers=arg("procs", 1))
    await call("flow", range(100), 20)
    t = mono()
    await call("flow", range(n), arg("inflight", 100))
    emit_rate(n, mono() - t)


async def w2():
    start(trace=True)
    await call("flow", [-1] * 20)
    out = await call("flow", range(arg("n", 100)), after=0.01)
    time.sleep(0.3)
    tr = trace()
    emit_light([(t, [x for x in tr if x[0] == r]) for t, r in out])


async def w3():
    start(workers=arg("procs", 1))
    n = arg("n", 1000)
    path = "fan" if arg("mode", "run") == "run" else "fan_calls"
    await call(path, [20])
    t = mono()
    assert (await call(path, [n]))[0][1] == n * (n - 1) // 2
    emit(wall_s=round(mono() - t, 3))


async def w4():
    n = arg("n", 10000)
    start(workers=arg("procs", 1), trace=True)
    due = time.time() + arg("due", 40)
    sleep = arg("mode", "") == "sleep"
    await call(
        "sleeper/send" if sleep else lambda: f"stamp/send?delay={int((due - time.time()) * 1000)}ms", [due] * n, 50
    )
    left = due - time.time()
    wait_for(lambda: (time.time() > due and len(lines()) >= n) or time.sleep(0.5), arg("due", 40) + 120)
    emit_late([b - a for a, b in trace()], left)


def w5():
    """The service's process is killed and started again at once"""

    def reset():
        for r in json.loads(admin("/query", {"query": "select id from sys_invocation where status != 'completed'"}))[
            "rows"
        ]:
            admin(f"/invocations/{r['id']}/kill", method="PATCH")

    start()
    failover(
        lambda first: start_service(),
        arg("n", 5),
        kick=lambda: asyncio.run(call("slow/send", [1])),
        reset=reset,
        standby=False,
    )


if __name__ == "__main__":
    main(globals())
