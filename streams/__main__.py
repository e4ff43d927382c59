"""`python -m streams`: the agents of runs, sessions, logs and triggers, and the sweeps, in one process.

Any number may run, and any may be killed at any instant. SIGTERM and SIGINT drain: the batch being applied commits,
then the groups are left. Exit code 1 with a traceback for a bug; a supervisor starts it again, and nothing uncommitted
is lost.
"""

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any
from uuid import uuid4

import structlog
import uvloop
from prometheus_client import CollectorRegistry, start_http_server

from headrace.errors import UnavailableError
from headrace.object_store import ObjectStore
from state.pipe import Pipe
from state.plans import Plans
from state.store import Store
from state.timeline import FIRST, Timeline
from streams.backlog import Backlog
from streams.batch import Body
from streams.clock import DatabaseClock
from streams.database import Database
from streams.log_agent import LogAgent
from streams.metrics import Metrics
from streams.ownership import Ownership
from streams.run_agent import RunAgent
from streams.run_cache import RunCache
from streams.session_agent import SessionAgent
from streams.settings import StreamsSettings
from streams.sweeps import Sweeps
from streams.topics import Topics
from streams.transport import run
from streams.trigger_agent import TriggerAgent, follow

log = structlog.get_logger(__name__)


def consumer_conf(settings: StreamsSettings) -> dict[str, Any]:
    conf: dict[str, Any] = {
        "headrace.watchdog.seconds": settings.watchdog_seconds,
        "fetch.min.bytes": settings.fetch_min_bytes,
        "fetch.wait.max.ms": settings.fetch_wait_ms if settings.topic_ids else 10,
        "check.crcs": False,
    }
    return conf


def wait_for_topics(settings: StreamsSettings, topics: Topics) -> None:
    """Make the engine's own topics before anything subscribes to them; says once that it waits for Kafka."""
    said = False
    while True:
        try:
            topics.ensure(topics.names(["default"]))
            return
        except UnavailableError as e:
            if not said:
                log.warning("waiting for Kafka", bootstrap=settings.kafka, why=e.message)
            said = True
            time.sleep(0.5)


async def serve(settings: StreamsSettings, *, fails_over: bool = False) -> None:
    """fails_over: whether the database may be another one after a connection was lost; no real one never is."""
    store, plans, metrics = Store(settings), Plans(), Metrics(registry := CollectorRegistry())
    if settings.metrics_port is not None:
        start_http_server(settings.metrics_port, addr="127.0.0.1", registry=registry)
    topics = Topics(settings)
    wait_for_topics(settings, topics)
    database = Database(settings.postgres)
    owner = f"{os.uname().nodename}/{os.getpid()}/{uuid4().hex[:8]}"
    ownership, clock = Ownership(database, owner), DatabaseClock(database)
    objects = ObjectStore(settings.objects) if settings.objects else None
    sweeps = Sweeps(
        store, plans, topics, metrics, retention_days=settings.retention_days, fails_over=fails_over, objects=objects,
        hand_over_seconds=settings.hand_over_seconds,
    )  # fmt: skip
    timeline_of: Callable[[Pipe], Timeline] = attrgetter("timeline") if fails_over else lambda _: FIRST
    runs = RunAgent(
        store, ownership, database, RunCache(database, plans), clock, metrics, sweeps.expect_timer, timeline_of,
        sweeps.expect_signals, sweeps.expect_slot, sweeps.children.expect, sweeps.permits.expect,
    )  # fmt: skip
    backlog = Backlog(settings.postgres, settings.trigger_backlog_max, metrics)
    triggers = TriggerAgent(
        store, ownership, database, plans, clock, metrics, backlog, sweeps.expect_signals
    )  # fmt: skip
    agents: dict[str, Body] = {
        settings.events_topic: runs,
        settings.workers_topic: SessionAgent(store, ownership, database, metrics),
        settings.logs_topic: LogAgent(store, ownership, database, metrics, settings.log_lines_max),
    }
    kafka: dict[str, Any] = {
        "bootstrap": settings.kafka,
        "lease": ownership.lease,
        "conf": consumer_conf(settings),
        "topic_ids": settings.topic_ids,
        "log_id": settings.log_id,
    }

    async def serve_triggers(wanted: set[str], stop: asyncio.Event) -> None:
        # A user's topic may end with offsets that have no record, which a watchdog would take for a stall.
        patient: dict[str, Any] = {**kafka, "conf": {**consumer_conf(settings), "headrace.watchdog.seconds": 3600.0}}
        bodies: dict[str, Body] = dict.fromkeys(wanted, triggers)
        group = f"{settings.prefix}.triggers"
        await run("plain", group=group, bodies=bodies, stop=stop, handle_signals=False, **patient)

    gc.collect()
    gc.freeze()  # what start-up made stays; without it every full collection walks it again
    gc.set_threshold(50_000, 50, 100)
    log.info("streams started", owner=owner, host=settings.host)
    background = [*sweeps.background(), lambda: follow(triggers, serve_triggers, topics.find)]
    await run(settings.host, group=f"{settings.prefix}.streams", bodies=agents, background=background, **kafka)
    log.info("streams stopped")


def main() -> None:
    settings = StreamsSettings()
    settings.nonce_key()
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    uvloop.install()
    asyncio.run(serve(settings, fails_over=True))


if __name__ == "__main__":
    main()
