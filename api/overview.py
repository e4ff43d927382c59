"""How everything stands, on one page."""

import time
from collections import defaultdict
from datetime import datetime
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from api.answers import reply
from api.feed import id_at
from api.metrics import Snapshot
from api.openapi import answers
from api.schemas.overview import MinuteOfRuns, Overview, QueueLoad
from api.wiring import Wired
from headrace import __version__
from headrace.errors import UnavailableError
from state.queries.console import (
    QueueRow,
    RecentRow,
    count_lost_workers,
    count_parked_tasks,
    count_recent_runs,
    count_workers_of_queues,
    read_clock,
)

RECENT_SECONDS: Final = 3600

router = APIRouter(tags=["overview"])


@router.get("/overview", responses=answers({200: Overview}))
async def overview(wired: Wired) -> Response:
    """How everything stands: open runs, queues and who serves them, what waits for people, what is late."""
    snapshot = await wired.metrics.look()
    if snapshot is None:
        raise UnavailableError("the database cannot be reached")
    async with wired.database.reading() as connection:
        at = await read_clock(connection)
        queues = await count_workers_of_queues(connection)
        lost = await count_lost_workers(connection)
        parked = await count_parked_tasks(connection, wired.namespace)
        since = id_at(time.time() - RECENT_SECONDS)
        recent = await count_recent_runs(connection, wired.namespace, since=since)
    relay, waiting = snapshot.relay, snapshot.waiting
    content = Overview(
        at=at,
        namespace=wired.namespace,
        version=__version__,
        runs=snapshot.runs,
        queues=_queues(snapshot, queues),
        approvals_waiting=waiting.approvals,
        parked_tasks=parked,
        dead_letters_parked=waiting.dead_letters,
        requests_unapplied=waiting.requests,
        timers_late=waiting.timers_late,
        timer_lateness_seconds=waiting.timer_lateness_seconds,
        workers_live=waiting.sessions,
        workers_lost=lost,
        outbox_lag_bytes=None if relay is None else relay.lag_bytes,
        relay_renewed_seconds=None if relay is None else relay.age_seconds,
        stuck_seconds=wired.settings.api_stuck_seconds,
        recent=_minutes(recent),
    )
    return reply(content)


def _queues(snapshot: Snapshot, serving: list[QueueRow]) -> list[QueueLoad]:
    """Queues that anything waits in or anybody serves, by name."""
    served = {row.queue: row for row in serving}
    names = sorted({queue for queue, _ in snapshot.depth} | served.keys())
    return [
        QueueLoad(
            queue=name,
            queued=snapshot.depth.get((name, "queued"), 0),
            running=snapshot.depth.get((name, "running"), 0),
            oldest_seconds=snapshot.oldest.get(name, 0.0),
            workers=served[name].workers if name in served else 0,
            slots=served[name].slots if name in served else 0,
            held=served[name].held if name in served else 0,
        )
        for name in names
    ]


def _minutes(rows: list[RecentRow]) -> list[MinuteOfRuns]:
    counts: dict[datetime, dict[str, int]] = defaultdict(dict)
    for row in rows:
        counts[row.at][row.status] = row.runs
    return [MinuteOfRuns(at, of_minute) for at, of_minute in counts.items()]
