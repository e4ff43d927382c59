"""Runs in memory, by the id in their Kafka key: loaded by set, kept while they are open, never trusted without their
row_version."""

import random
from collections.abc import Collection, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.errors import UnreadableError
from headrace.machine import Plan, Signalled, TaskState
from state.plans import Plans
from state.sql import load
from state.store import RUN_COLUMNS, StoredRun, microseconds_of, read_tasks
from streams.database import Database

_SQL = load("run")
RUNS_MAX: Final = 20_000
"""Some 5 KiB each with small payloads. A run that was put out is loaded again: one SELECT for a whole batch."""
TASKS_MAX: Final = 500_000
"""Over all runs in memory, so that a few wide runs cannot fill it either."""


class Unreadable(NamedTuple):
    run_id: UUID
    error: UnreadableError


class Keys:
    """Keys of what is in memory, of which one is drawn in constant time.

    By chance, and not the oldest: with a few more runs under way than there is room for, each comes again just after it
    would have been put out as the oldest, and every step would load its run.
    """

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._chance = random.Random(0)  # noqa: S311 - not a secret

    def add(self, key: bytes) -> None:
        self._places[key] = len(self._keys)
        self._keys.append(key)

    def remove(self, key: bytes) -> None:
        place, last = self._places.pop(key), self._keys.pop()
        if last != key:
            self._keys[place], self._places[last] = last, place

    def draw(self) -> bytes:
        """One of them; there must be some."""
        return self._keys[self._chance.randrange(len(self._keys))]

    def clear(self) -> None:
        self._keys.clear()
        self._places.clear()


class RunCache:
    def __init__(self, database: Database, plans: Plans) -> None:
        self._database, self._plans = database, plans
        self._runs: dict[bytes, StoredRun] = {}
        self._keys = Keys()
        self._tasks = 0
        self._sizes: dict[bytes, int] = {}
        """Tasks of each run, with the items of its maps."""
        self._unreadable: dict[bytes, Unreadable] = {}
        self.token_floor = 0
        """Of the runs that are loaded from here on."""

    def get(self, key: bytes) -> StoredRun | None:
        return self._runs.get(key)

    def unreadable(self, key: bytes) -> Unreadable | None:
        """A run that exists, and whose version this process cannot read."""
        return self._unreadable.get(key)

    def unknown(self, keys: Iterable[bytes]) -> set[bytes]:
        return {key for key in keys if key not in self._runs and key not in self._unreadable}

    def clear(self) -> None:
        """Forget everything: what was decided here may not be what Postgres has."""
        self._runs.clear()
        self._keys.clear()
        self._sizes.clear()
        self._unreadable.clear()
        self._tasks = 0

    def plan(self, version_id: int) -> Plan | None:
        """A version that a run is to be moved to; None when this process cannot read it, or it does not exist. Raises
        UnavailableError."""
        if self._plans.missing([version_id]):
            with self._database.connection() as connection:
                self._plans.load_sync(connection, [version_id])
        return self._plans.get(version_id)

    def is_unreadable(self, version_id: int) -> bool:
        """Of a version without a plan here: whether it exists all the same, for a newer release."""
        return self._plans.unreadable(version_id) is not None

    def drop(self, key: bytes) -> None:
        run = self._runs.pop(key, None)
        if run is not None:
            self._tasks -= self._sizes.pop(key)
            self._keys.remove(key)

    def weigh(self, key: bytes) -> None:
        """Count a run's tasks: when it comes, and when a map of it may have begun."""
        run = self._runs.get(key)
        if run is not None:
            size = len(run.plan.tasks) + sum(len(counts.items) for counts in run.maps.values())
            size = max(size, len(run.tasks))  # of a run that has ended, also the items of maps that have completed
            self._tasks += size - self._sizes[key]
            self._sizes[key] = size

    def trim(self) -> None:
        """Put out what is too much; between batches only."""
        while self._runs and (len(self._runs) > RUNS_MAX or self._tasks > TASKS_MAX):
            self.drop(self._keys.draw())
        if len(self._unreadable) > RUNS_MAX:
            self._unreadable.clear()

    def load(self, keys: Collection[bytes]) -> None:
        """Read runs into memory; one that Postgres does not show stays unknown. Raises UnavailableError."""
        ids = [UUID(key.decode()) for key in keys]
        rows = self._database.fetch(_SQL.text("load_runs"), (ids,))
        if not rows:
            return
        if missing := self._plans.missing(row[1] for row in rows):
            with self._database.connection() as connection:
                self._plans.load_sync(connection, missing)
        kept = self._kept_signals(rows)
        for run_id, of_run in groupby(rows, itemgetter(0)):
            found = list(of_run)
            self._add(found[0][:RUN_COLUMNS], *read_tasks(found), kept.get(run_id, ()))

    def _kept_signals(self, rows: Iterable[tuple[Any, ...]]) -> dict[UUID, list[Signalled]]:
        """What runs keep for a task to take, where one of their tasks may."""
        listening = {run_id for run_id, version_id, *_ in rows if (p := self._plans.get(version_id)) and p.listeners}
        kept: dict[UUID, list[Signalled]] = {}
        if listening:
            for run_id, *signal in self._database.fetch(_SQL.text("load_kept_signals"), (list(listening),)):
                kept.setdefault(run_id, []).append(signal_of(*signal))
        return kept

    def _add(
        self, row: tuple[Any, ...], tasks: dict[int, TaskState], undo: dict[int, bytes], signals: Iterable[Signalled]
    ) -> None:
        run_id, version_id, row_version, attention, control, namespace, input, traceparent, deadline_at = row[:9]
        parent, paused = row[9:]
        plan, key = self._plans.get(version_id), str(run_id).encode()
        if plan is None:
            if (error := self._plans.unreadable(version_id)) is not None:
                self._unreadable[key] = Unreadable(run_id, error)
            return  # or the version is not visible yet: like a run that is not
        self.drop(key)
        self._runs[key] = StoredRun(
            key,
            plan,
            input.encode(),
            row_version=row_version,
            attention=attention,
            control=control,
            tasks=tasks,
            token_floor=self.token_floor,
            namespace=namespace,
            traceparent=traceparent,
            signals=signals,
            deadline_at=microseconds_of(deadline_at),
            parent=None if parent is None else str(parent).encode(),
            paused=paused or (),
            undo=undo,
        )
        self._sizes[key] = 0
        self._keys.add(key)
        self.weigh(key)


def signal_of(
    signal_id: UUID, name: str, key: str | None, data: str, actor: str, sent_at: int, task: int | None = None,
    token: int = 0,
) -> Signalled:  # fmt: skip
    return Signalled(str(signal_id), name, data.encode(), key, actor, sent_at, task, token)
