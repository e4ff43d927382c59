"""What the peer scripts share.

`benchmarks.peers.measurement` starts each script with its peer's own Python, a workload (w1 … w5) and KEY=VALUE
arguments, and sets PEERS_PG (URL of a fresh database), PEERS_TMP (a fresh folder), PEERS_PORTS (free ports) and
PEERS_HOME. The last line a script prints is its result: a JSON object. What a script leaves running is ended by
`measurement`, so the scripts have no clean-up of their own.
"""

import asyncio
import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from functools import partial
from itertools import pairwise

PG, TMP, HOME = (os.environ.get(k, "") for k in ("PEERS_PG", "PEERS_TMP", "PEERS_HOME"))
PORTS = [int(p) for p in os.environ.get("PEERS_PORTS", "").split(",") if p]
ARGS = dict(a.split("=", 1) for a in sys.argv[2:] if "=" in a)
mono = time.monotonic
TR = []  # trace of this process: (run, step, start, end), or the lateness of a timer in seconds
MARKS = f"{TMP}/marks.txt"


def arg(key, default):
    """The argument KEY=VALUE; a number where its default is one."""
    v = ARGS.get(key)
    return default if v is None else v if isinstance(default, str) else float(v) if "." in v else int(v)


def pct(xs, p):
    xs = sorted(xs)
    k = (len(xs) - 1) * p / 100
    lo = int(k)
    hi = min(lo + 1, len(xs) - 1)
    return xs[lo] + (xs[hi] - xs[lo]) * (k - lo)


def emit(**value):
    print(json.dumps(value), flush=True)


def emit_rate(runs, wall, steps=10):
    emit(steps_per_s=round(runs * steps / wall, 1), runs_per_s=round(runs / wall, 2), runs=runs, wall_s=round(wall, 2))


def emit_light(runs):
    """runs: (time of the trigger, the trace of that run)."""
    trig, gap = [], []
    for t, tr in runs:
        s = sorted(tr, key=lambda x: x[1])
        trig.append(s[0][2] - t)
        gap += [b[2] - a[3] for a, b in pairwise(s)]
    trig50, trig99, gap50, gap99 = (round(pct(xs, p) * 1000, 2) for xs in (trig, gap) for p in (50, 99))
    emit(p50_ms=trig50, p99_ms=trig99, gap_p50_ms=gap50, gap_p99_ms=gap99, n=len(trig), gap_n=len(gap))


def emit_late(late, setup_left):
    """late: seconds after the due time. setup_left: seconds that were left before it when the last timer had been
    set."""
    emit(
        late_p50_s=round(pct(late, 50), 3),
        late_p99_s=round(pct(late, 99), 3),
        wakeups_per_s=round(len(late) / max(late), 1),
        n=len(late),
        setup_left_s=round(setup_left, 1),
    )


# Postgres


def sql(q, *args, dsn=None):
    import psycopg

    with psycopg.connect(dsn or PG, autocommit=True) as c:
        cur = c.execute(q, args or None)
        return cur.fetchone()[0] if cur.description else None


def settle():
    sql("VACUUM ANALYZE")
    sql("CHECKPOINT")


def wait_sql(q, want, limit=240, every=0.05):
    """Poll a count on one connection until it reaches `want`."""
    import psycopg

    with psycopg.connect(PG, autocommit=True) as c:
        end = mono() + limit
        while (k := int(c.execute(q).fetchone()[0])) < want:
            if mono() > end:
                raise SystemExit(f"{k} of {want} after {limit} s")
            time.sleep(every)


# Worker processes: copies of the same script with another case


def spawn(n=1, case="child", **extra):
    ps = []
    for i in range(n):
        cmd = [sys.executable, sys.argv[0], case, *sys.argv[2:], *(f"{k}={v}" for k, v in {**extra, "idx": i}.items())]
        ps.append(subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for p in ps:
        while "READY" not in (line := p.stdout.readline()):
            if not line:
                raise SystemExit("a worker process died at its start")
    return ps


def stop(ps):
    """Let the workers end; what each printed."""
    for p in ps:
        p.stdin.write("\n")
        p.stdin.flush()
    return [json.loads(p.stdout.readline() or "null") for p in ps]


def serve():
    """A worker's main thread: say READY, wait for `stop`, hand the trace over."""
    print("READY", flush=True)
    sys.stdin.readline()
    print(json.dumps(TR if "dump" in ARGS else len(TR)), flush=True)
    os._exit(0)


async def aserve():
    await asyncio.sleep(0.7)
    await asyncio.to_thread(serve)


def traces(ps):
    return [x for tr in stop(ps) for x in tr]


# kill -9


def mark(i):
    with open(MARKS, "a") as f:
        f.write(f"{os.getpid()} {i} {mono()}\n")


def marks(after=0.0):
    """(process, step, start) of the steps that started later than `after`."""
    ms = [(int(a), int(b), float(c)) for a, b, c in (line.split() for line in open(MARKS) if line.endswith("\n"))]
    return [m for m in ms if m[2] > after]


def wait_for(fn, limit):
    end = mono() + limit
    while not (x := fn()) and mono() < end:
        time.sleep(0.01)
    return x


def kill9(pids):
    for x in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(x, signal.SIGKILL)


def elsewhere(pids, after):
    return [m for m in marks(after) if m[0] not in pids]


def failover(start, n, kick=lambda: None, reset=lambda: None, standby=True):
    """Kill n times with SIGKILL what start(True) has started: a process that runs a long flow which marks each step.
    Measured is the time until another process, started before the kill if standby, else right after it, starts a step.
    """
    out = []
    for _ in range(n):
        open(MARKS, "w").close()
        reset()
        ps = [start(True)]
        kick()
        if not wait_for(lambda: len(marks()) >= 5, 30):
            raise SystemExit("the flow did not start")
        if standby:
            ps.append(start(False))
            time.sleep(1.2)
        old = {m[0] for m in marks()} | {ps[0].pid}
        kill9(old)
        t = mono()
        if not standby:
            ps.append(start(False))
        new = wait_for(partial(elsewhere, old, t), 150)
        if new:
            out.append(round(new[0][2] - t, 3))
        kill9({p.pid for p in ps} | {m[0] for m in marks()})
        for p in ps:
            p.wait()
    emit_failover(out, n)


def emit_failover(out, n):
    emit(resume_p50_s=round(pct(out, 50), 2), resume_max_s=max(out), resume_s=out, n=n)


async def leave_after(coroutine):
    """Leave without the event loop's clean-up, in which a worker may wait for ever."""
    try:
        await coroutine
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(ns):
    r = ns[sys.argv[1]]()
    if inspect.iscoroutine(r):
        asyncio.run(leave_after(r))
    os._exit(0)
