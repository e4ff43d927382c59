"""Changes of all runs, found by looking at Postgres: one look serves every stream of this process.

Every change has an id, `<feed>-<number>`, and the newest are remembered: whoever was cut off and says the id of the
last one that came gets what it missed. Where that is not known any more, or is of another process, it is told that
there is a gap, and reads again.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final, NamedTuple
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
"""Between two looks, and PATIENCE times as long as the last one took, at most LOOK_SECONDS_MAX: so being looked at
takes no more than so much of what a busy engine has."""
PATIENCE: Final = 20
LOOK_SECONDS_MAX: Final = 2.0
RUNS_MAX: Final = 1_000
"""Open runs that are watched, newest first, and new ones in one look. More than a person can follow."""
CHANGES_MAX: Final = 100
"""Told by one look, of the newest runs, and as many as a list shows; the others wait for the next one, and are told as
they stand then. So being looked at costs a flood of runs no more than this, however many are under way."""
WINDOW_SECONDS: Final = 10
"""Runs that began this recently are looked at also when they are over: a short one is never seen open."""
BACKLOG_MAX: Final = 20
"""Looks waiting for a slow reader; more are dropped, and it is told to read again."""
REMEMBERED: Final = 2_000
"""Changes that can be told again to whoever was cut off."""
LINGER_SECONDS: Final = 30.0
"""So long it goes on looking when nobody listens: a reload of the only page, a proxy that closes."""

UNTOLD: Final = -1

_log = structlog.get_logger("api.feed")


class Gap(NamedTuple):
    """Stands in a subscription for changes that were dropped, or are not known."""

    id: str


class Change(NamedTuple):
    id: str
    run: RunSummary


class Here(NamedTuple):
    """Where a subscription begins."""

    id: str


Heard = list[Change] | Gap | Here
"""The changes of one look, together."""


class RunFeed:
    """Looks only while somebody listens, and a while longer."""

    def __init__(self, database: Database, plans: Plans, namespace: str) -> None:
        self._database, self._plans, self._namespace = database, plans, namespace
        self._listeners: set[asyncio.Queue[Heard]] = set()
        self._known: dict[UUID, int] = {}
        """Row version of each run that is watched, as it was told last; UNTOLD for one that is new."""
        self._is_first = True
        self._looking: asyncio.Task[None] | None = None
        self._name, self._number = "", 0
        self._told: deque[Change] = deque(maxlen=REMEMBERED)
        self._left_at = 0.0

    async def listen(self, after: str = "") -> AsyncGenerator[Heard | None]:
        """Changes from now on, or behind the one with this id; None after a while without any, so that the caller can
        do something else. Ends when it is closed.
        """
        queue: asyncio.Queue[Heard] = asyncio.Queue()
        if self._looking is None or self._looking.done():
            self._begin()
        for missed in self._since(after):
            queue.put_nowait(missed)
        self._listeners.add(queue)
        try:
            while True:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        heard: Heard | None = await queue.get()
                except TimeoutError:
                    heard = None
                yield heard
        finally:
            self._listeners.discard(queue)
            self._left_at = time.monotonic()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    def _begin(self) -> None:
        """What happened while nobody looked is not known: ids of another name begin."""
        self._known.clear()
        self._is_first = True
        self._told.clear()
        self._name, self._number = f"{time.time_ns() // 1_000_000:x}", 0
        self._looking = asyncio.create_task(self._look_on())

    def _since(self, after: str) -> list[Heard]:
        """What came behind the change with this id, oldest first."""
        name, _, number = after.rpartition("-")
        if not after:
            return [Here(self._id)]
        is_known = name == self._name and number.isascii() and number.isdigit() and len(number) < 19
        missed = self._number - int(number) if is_known else -1
        if not 0 <= missed <= len(self._told):
            return [Gap(self._id)]
        return [Here(after), list(self._told)[len(self._told) - missed :]]

    @property
    def _id(self) -> str:
        return f"{self._name}-{self._number}"

    async def _look_on(self) -> None:
        while self._listeners or time.monotonic() - self._left_at < LINGER_SECONDS:
            begun = time.monotonic()
            try:
                self._tell(await self.look())
            except UnavailableError:
                pass  # said by the database; the next look finds what changed meanwhile
            except Exception as error:
                _log.error("looking for changes failed", exc_info=error)
            took = time.monotonic() - begun
            await asyncio.sleep(min(max(LOOK_SECONDS, PATIENCE * took), LOOK_SECONDS_MAX))

    async def look(self) -> list[RunSummary]:
        """What changed since the last look, and is told now; the first one only learns how all stand."""
        since = id_at(time.time() - WINDOW_SECONDS)
        async with self._database.reading() as connection:
            positions = await list_positions(
                connection, self._namespace, since=since, run_ids=self._known, limit=RUNS_MAX
            )
            changed = [position for position in positions if self._known.get(position.run_id) != position.row_version]
            changed.sort(key=lambda position: position.run_id)
            left, changed = ([], []) if self._is_first else (changed[:-CHANGES_MAX], changed[-CHANGES_MAX:])
            plans = await load_plans(self._plans, connection, {position.version_id for position in changed})
            counts: dict[UUID, dict[str, int]] = defaultdict(dict)
            for row in await count_tasks(connection, [position.run_id for position in changed]):
                counts[row.run_id][row.status] = row.tasks
        self._remember(positions, since, {position.run_id for position in left})
        return [
            summary(position, full_counts(plans[position.version_id], counts[position.run_id])) for position in changed
        ]

    def _remember(self, positions: list[PositionRow], since: UUID, left: set[UUID]) -> None:
        """left: what is still to be told is watched until then, also when it is over."""
        watched = [
            position
            for position in positions
            if RunStatus(position.status) not in RUN_TERMINAL or position.run_id > since or position.run_id in left
        ]
        watched.sort(key=lambda position: position.run_id, reverse=True)
        self._known = {
            position.run_id: self._known.get(position.run_id, UNTOLD)
            if position.run_id in left
            else position.row_version
            for position in watched[: 2 * RUNS_MAX]
        }
        self._is_first = False

    def _tell(self, runs: list[RunSummary]) -> None:
        changes = []
        for run in runs:
            self._number += 1
            changes.append(Change(self._id, run))
        if not changes:
            return
        self._told.extend(changes)
        for queue in self._listeners:
            if queue.qsize() < BACKLOG_MAX:
                queue.put_nowait(changes)
                continue
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(Gap(self._id))


def summary(position: PositionRow, counts: dict[str, int]) -> RunSummary:
    return RunSummary(str(position.run_id), position.workflow, RunStatus(position.status), position.row_version, counts)


def id_at(seconds: float) -> UUID:
    """The lowest UUIDv7 of an instant."""
    return UUID(int=(int(seconds * 1000) << 80) | (7 << 76) | (2 << 62))
