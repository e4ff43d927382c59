"""What a publish would do, before it is done, and which runs still hold to older versions."""

from collections import Counter
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from headrace.difference import Difference, compare
from headrace.graph import Workflow
from headrace.machine import Plan, compile_plan
from headrace.machine.migration import find_lasting_obstacles, why_not_moved
from state.control import load_runs
from state.plans import Plans
from state.queries.rows import Connection, fetch
from state.sql import load
from state.store import Store
from state.workflows import VersionRow, get_version, list_versions

_SQL = load("version_queries")
MOVES_MAX: Final = 200
"""Runs that a check loads, with all their tasks."""
BLOCKED_MAX: Final = 20
"""Obstacles that it names."""


class InFlight(NamedTuple):
    """Runs of one version that have not ended, by their status."""

    version: int
    status: str
    runs: int
    oldest_run_id: UUID
    oldest_at: datetime


class Standing(NamedTuple):
    """A version, and the runs that still hold to it."""

    version: int
    digest: str
    published_at: datetime
    published_by: str
    in_flight: list[InFlight]
    bodies: list[str]
    """Registered names that it needs and the latest version does not."""


class Blocked(NamedTuple):
    """What stands in the way of moving runs."""

    task: str
    why: str
    runs: int


class RunVerdict(NamedTuple):
    run_id: str
    version: int
    status: str
    why_not: str | None
    """None: nothing stands in the way, once nothing of it runs."""


class Moves(NamedTuple):
    """Which runs in flight could be moved to a version, once they are paused."""

    looked_at: int
    """The oldest so many."""
    movable: int
    obstacles: list[Blocked]
    """Of the others, the most frequent first."""
    runs: list[RunVerdict]
    """Each that was looked at, oldest first."""


class Check(NamedTuple):
    """What a publish of this content would lead to."""

    version: int
    """That it would have, or has."""
    digest: str
    is_new: bool
    latest: VersionRow | None
    """None: there is no such workflow yet."""
    difference: Difference | None
    """From the latest version; None without one."""
    in_flight: list[InFlight]
    moves: Moves


async def check_publish(connection: Connection, store: Store, plans: Plans, workflow: Workflow) -> Check:
    """Nothing is written and nothing is locked: who publishes meanwhile makes this answer an older one."""
    namespace, name, definition = store.settings.namespace, workflow.name, workflow.canonical().decode()
    digest = sha256(definition.encode()).hexdigest()
    latest = await get_version(connection, namespace, name)
    in_flight = await count_in_flight(connection, namespace, name)
    if latest is None:
        return Check(1, digest, True, None, None, in_flight, Moves(0, 0, [], []))
    known = {row.digest: row.version for row in await list_versions(connection, namespace, name)}
    version = known.get(digest, latest.version + 1)
    difference = compare(_read(latest.definition), _read(definition))
    moves = await _foresee_moves(connection, store, plans, compile_plan(workflow, version=version))
    return Check(version, digest, digest not in known, latest, difference, in_flight, moves)


async def _foresee_moves(connection: Connection, store: Store, plans: Plans, to: Plan) -> Moves:
    """That they are not paused is no obstacle here. Raises what `plans` says of a version that it cannot read."""
    ids = await fetch(
        connection, _as_it_is, _SQL.text("list_in_flight"), namespace=store.settings.namespace, name=to.name,
        limit=MOVES_MAX,
    )  # fmt: skip
    runs = (await load_runs(connection, store, plans, ids)).values() if ids else ()
    verdicts, found = list[RunVerdict](), Counter[tuple[str, str]]()
    for run in runs:
        obstacles = find_lasting_obstacles(to, run)
        found.update((each.task, each.why) for each in obstacles if each.task is not None)
        why = why_not_moved(to, obstacles)
        verdicts.append(RunVerdict(run.key.decode(), run.plan.version, run.status, why))
    movable = sum(verdict.why_not is None for verdict in verdicts)
    told = [Blocked(*what, count) for what, count in found.most_common(BLOCKED_MAX)]
    return Moves(len(verdicts), movable, told, verdicts)


def _as_it_is(value: UUID) -> UUID:
    return value


async def list_standing(connection: Connection, namespace: str, name: str) -> list[Standing]:
    """The latest version, and the older ones that have runs in flight, newest first; none: no such workflow."""
    latest = await get_version(connection, namespace, name)
    if latest is None:
        return []
    in_flight = await count_in_flight(connection, namespace, name)
    kept = _bodies(latest.definition)
    by_version: dict[int, list[InFlight]] = {latest.version: []}
    for each in in_flight:
        by_version.setdefault(each.version, []).append(each)
    found = []
    for version in sorted(by_version, reverse=True):
        row = latest if version == latest.version else await get_version(connection, namespace, name, version)
        if row is not None:
            bodies = sorted(_bodies(row.definition) - kept)
            found.append(Standing(version, row.digest, row.published_at, row.published_by, by_version[version], bodies))
    return found


async def count_in_flight(connection: Connection, namespace: str, name: str) -> list[InFlight]:
    """Newest version first; versions without such runs are not among them."""
    return await fetch(connection, InFlight, _SQL.text("count_in_flight"), namespace=namespace, name=name)


def _read(definition: str) -> dict[str, Any]:
    return msgspec.json.decode(definition, type=dict[str, Any])


def _bodies(definition: str) -> set[str]:
    """Registered names of all that workers run for it."""
    tasks: list[dict[str, Any]] = list((_read(definition).get("tasks") or {}).values())
    undone = [task["compensate"] for task in tasks if "compensate" in task]
    return {part[what] for part in (*tasks, *undone) for what in ("run", "lookup") if part.get(what)}
