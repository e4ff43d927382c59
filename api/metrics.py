"""What Prometheus scrapes: how the engine is, read from Postgres, and what this process has done.

Statements are cheap at any size of the database, and their answer serves several scrapes.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.database import Database
from api.pinned import load_plans
from headrace.errors import UnavailableError
from headrace.machine import RunStatus
from headrace.machine.status import RUN_TERMINAL
from state.counters import CounterRow, read_counters
from state.plans import Plans
from state.queries import health

CACHE_SECONDS: Final = 5.0


class Snapshot(NamedTuple):
    """How the engine was at one instant."""

    relay: health.RelayRow | None
    runs: dict[str, int]
    depth: dict[tuple[str, str], int]
    """Open tasks by (queue, status)."""
    oldest: dict[str, float]
    """Seconds since the oldest QUEUED task of a queue was handed out."""
    waiting: health.WaitingRow
    counters: list[CounterRow]
    """What the streams processes have counted."""


class Metrics:
    def __init__(self, database: Database, plans: Plans, namespace: str) -> None:
        self._database, self._plans, self._namespace = database, plans, namespace
        self._snapshot: Snapshot | None = None
        self._read_at = -CACHE_SECONDS
        self._lock = asyncio.Lock()
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "headrace_http_request_seconds",
            "Seconds until a request was answered, or its stream had ended.",
            ("method", "route", "status"),
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
        )
        self._up = Gauge("headrace_postgres_up", "1 when the database answers.", registry=self.registry)
        self.starts = Counter(
            "headrace_runs_started", "Runs started through this process.", ("workflow",), registry=self.registry
        )
        self.refused = Counter(
            "headrace_starts_refused", "Starts refused because too much is under way.", registry=self.registry
        )
        self.streams = Gauge("headrace_http_streams", "Event streams that are open.", registry=self.registry)
        self.registry.register(_EngineCollector(self))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        known = method if method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH") else "other"
        self._seconds.labels(known, route, str(status)).observe(seconds)

    @property
    def snapshot(self) -> Snapshot | None:
        return self._snapshot

    async def look(self) -> Snapshot | None:
        """How the engine is, CACHE_SECONDS old at most; None while Postgres is away."""
        async with self._lock:
            if time.monotonic() - self._read_at >= CACHE_SECONDS:
                await self._refresh()
        return self._snapshot

    async def scrape(self) -> bytes:
        """The text for Prometheus; without what Postgres knows while it is away."""
        await self.look()
        return generate_latest(self.registry)

    async def _refresh(self) -> None:
        try:
            self._snapshot = await self._read()
            self._read_at = time.monotonic()
            self._up.set(1)
        except UnavailableError:
            self._snapshot = None
            self._up.set(0)

    async def _read(self) -> Snapshot:
        async with self._database.reading() as connection:
            relay = await health.read_relay(connection)
            runs = {row.status: row.runs for row in await health.count_open_runs(connection)}
            tasks = await health.count_open_tasks(connection)
            waiting = await health.count_waiting(connection, self._namespace)
            counters = await read_counters(connection)
            plans = await load_plans(self._plans, connection, {row.version_id for row in tasks})
        depth, oldest = defaultdict[tuple[str, str], int](int), defaultdict[str, float](float)
        for row in tasks:
            queue = plans[row.version_id].at(row.task).queue
            depth[queue, row.status] += row.tasks
            if row.status == "queued":
                oldest[queue] = max(oldest[queue], row.oldest_seconds)
        return Snapshot(relay, runs, dict(depth), dict(oldest), waiting, counters)


class _EngineCollector(Collector):
    """Gives the snapshot as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        snapshot = self._metrics.snapshot
        if snapshot is None:
            return
        yield from _of_runs_and_tasks(snapshot)
        yield from _of_what_waits(snapshot)
        yield from _of_counters(snapshot.counters)

    def describe(self) -> Iterator[Metric]:
        return iter(())


def _of_runs_and_tasks(snapshot: Snapshot) -> Iterator[Metric]:
    runs = GaugeMetricFamily("headrace_runs_open", "Open runs, of the oldest 10,000.", labels=["status"])
    for status in RunStatus:
        if status not in RUN_TERMINAL:
            runs.add_metric([status.value], snapshot.runs.get(status.value, 0))
    yield runs
    tasks = GaugeMetricFamily("headrace_queue_tasks", "Open tasks of those runs.", labels=["queue", "status"])
    for (queue, status_of_task), count in snapshot.depth.items():
        tasks.add_metric([queue, status_of_task], count)
    yield tasks
    oldest = GaugeMetricFamily(
        "headrace_queue_oldest_seconds", "Since the oldest waiting task was handed out.", labels=["queue"]
    )
    for queue, seconds in snapshot.oldest.items():
        oldest.add_metric([queue], seconds)
    yield oldest


def _of_counters(rows: list[CounterRow]) -> Iterator[Metric]:
    for (name, kind, what), samples in groupby(rows, key=lambda row: row[:3]):
        metric = Metric(name, what, kind)
        for row in samples:
            metric.add_sample(row.sample, row.labels, row.value)
        yield metric


def _of_what_waits(snapshot: Snapshot) -> Iterator[Metric]:
    waiting, relay = snapshot.waiting, snapshot.relay
    values = {
        "timers_late": ("Timers due for more than a second.", waiting.timers_late),
        "timer_lateness_seconds": ("Of the timer that is due longest.", waiting.timer_lateness_seconds),
        "worker_sessions_live": ("Worker sessions with a lease.", waiting.sessions),
        "dead_letters_parked": ("Dead letters to be looked at, up to 10,000.", waiting.dead_letters),
        "requests_unapplied": ("Requests that no run has taken yet, up to 10,000.", waiting.requests),
        "approvals_waiting": ("Questions to people, up to 10,000.", waiting.approvals),
    }
    if relay is not None:
        values["outbox_lag_bytes"] = ("WAL that the relay has not acknowledged.", relay.lag_bytes or 0)
        values["relay_renewed_seconds"] = ("Since the relay renewed its ownership.", relay.age_seconds)
    for name, (what, value) in values.items():
        yield GaugeMetricFamily(f"headrace_{name}", what, value=value)
