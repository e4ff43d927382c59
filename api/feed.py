"""Changes of all runs, found by looking at Postgres: one look serves every stream of this process."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

import structlog

from api.database import Database
from api.pinned import full_counts, load_plans
from api.schemas.run import RunSummary
from headrace.errors import UnavailableError
from headrace.machine import RunStatus
from headrace.machine.status import RUN_TERMINAL
from state.plans import Plans
from state.queries.run import PositionRow, count_tasks, list_positions

LOOK_SECONDS: Final = 0.5
RUNS_MAX: Final = 1_000
"""Open runs that are watched, newest first, and new ones in one look. More than a person can follow."""
WINDOW_SECONDS: Final = 10
"""Runs that began this recently are looked at also when they are over: a short one is never seen open."""
BACKLOG_MAX: Final = 2_000
"""Changes waiting for a slow reader; more are dropped, and it is told to read again."""

_log = structlog.get_logger("api.feed")


class Gap:
    """Stands in a subscription for changes that were dropped."""


class RunFeed:
    """Looks only while somebody listens."""

    def __init__(self, database: Database, plans: Plans, namespace: str) -> None:
        self._database, self._plans, self._namespace = database, plans, namespace
        self._listeners: set[asyncio.Queue[RunSummary | Gap]] = set()
        self._known: dict[UUID, int] = {}
        self._looking: asyncio.Task[None] | None = None

    async def listen(self) -> AsyncIterator[RunSummary | Gap | None]:
        """Changes from now on; None after a while without any, so that the caller can do something else. Ends when it
        is closed.
        """
        queue: asyncio.Queue[RunSummary | Gap] = asyncio.Queue(BACKLOG_MAX)
        self._listeners.add(queue)
        if self._looking is None:
            self._known.clear()
            self._looking = asyncio.create_task(self._look_on())
        try:
            while True:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        change: RunSummary | Gap | None = await queue.get()
                except TimeoutError:
                    change = None
                yield change
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look_on(self) -> None:
        is_first = True
        while True:
            try:
                changes = await self.look()
                if not is_first:
                    self._tell(changes)
                is_first = False
            except UnavailableError:
                pass  # said by the database; the next look finds what changed meanwhile
            except Exception as error:
                _log.error("looking for changes failed", exc_info=error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> list[RunSummary]:
        """What changed since the last look."""
        since = id_at(time.time() - WINDOW_SECONDS)
        async with self._database.reading() as connection:
            positions = await list_positions(
                connection, self._namespace, since=since, run_ids=self._known, limit=RUNS_MAX
            )
            changed = [position for position in positions if self._known.get(position.run_id) != position.row_version]
            plans = await load_plans(self._plans, connection, {position.version_id for position in changed})
            counts: dict[UUID, dict[str, int]] = defaultdict(dict)
            for row in await count_tasks(connection, [position.run_id for position in changed]):
                counts[row.run_id][row.status] = row.tasks
        self._remember(positions, since)
        changed.sort(key=lambda position: position.run_id)
        return [
            summary(position, full_counts(plans[position.version_id], counts[position.run_id])) for position in changed
        ]

    def _remember(self, positions: list[PositionRow], since: UUID) -> None:
        watched = [
            position
            for position in positions
            if RunStatus(position.status) not in RUN_TERMINAL or position.run_id > since
        ]
        watched.sort(key=lambda position: position.run_id, reverse=True)
        self._known = {position.run_id: position.row_version for position in watched[: 2 * RUNS_MAX]}

    def _tell(self, changes: list[RunSummary]) -> None:
        for queue in self._listeners:
            if queue.qsize() + len(changes) < BACKLOG_MAX:
                for change in changes:
                    queue.put_nowait(change)
                continue
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(Gap())


def summary(position: PositionRow, counts: dict[str, int]) -> RunSummary:
    return RunSummary(str(position.run_id), position.workflow, RunStatus(position.status), position.row_version, counts)


def id_at(seconds: float) -> UUID:
    """The lowest UUIDv7 of an instant."""
    return UUID(int=(int(seconds * 1000) << 80) | (7 << 76) | (2 << 62))
