"""Move a run in flight to another version of its workflow, asked for by an operator.

As in `state.control`, each act runs in the caller's open transaction and leaves a request; the run agent applies it,
and `headrace.machine.migration` decides, with the run as it stands then.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from headrace.errors import ConflictError
from headrace.machine import Plan
from headrace.machine.migration import Obstacle, find_obstacles, why_not_moved
from headrace.machine.status import RUN_TERMINAL
from state.control import have_alone, load_run, load_runs
from state.plans import Plans
from state.queries.rows import Connection
from state.requests import request
from state.store import Store, StoredRun


class Move(NamedTuple):
    """What moving a run would meet."""

    run: StoredRun
    to: Plan
    obstacles: list[Obstacle]
    """None: it can be moved as it stands."""


async def foresee_move(connection: Connection, store: Store, plans: Plans, run_id: UUID, version: int | None) -> Move:
    """version: the latest, when left out. Raises NotFoundError, and ConflictError when the run has ended or is on that
    version."""
    run = await load_run(connection, store, plans, run_id)
    where = {"run_id": str(run_id)}
    if run.status in RUN_TERMINAL:
        raise ConflictError(f"the run is {run.status}: only a run in flight is moved", **where, status=run.status)
    to = await plans.latest(connection, store.settings.namespace, run.plan.name, version)
    if to.version_id == run.plan.version_id:
        raise ConflictError(f"the run is on version {to.version} already", **where)
    return Move(run, to, find_obstacles(to, run))


async def move_run(
    connection: Connection, store: Store, plans: Plans, run_id: UUID, version: int | None, *, reason: str, actor: str
) -> Move:
    """Ask for that. Raises as `foresee_move`, and ConflictError when something stands in the way, or something else was
    asked of the run and is not applied yet."""
    await have_alone(connection, store, run_id)
    move = await foresee_move(connection, store, plans, run_id, version)
    if (why := why_not_moved(move.to, move.obstacles)) is not None:
        raise ConflictError(why, run_id=str(run_id))
    body = {"version_id": move.to.version_id, "reason": reason}
    await request(connection, store, str(run_id), "migrated", body, actor)
    return move


async def look_at_moves(
    connection: Connection, store: Store, plans: Plans, run_ids: Sequence[UUID]
) -> dict[UUID, tuple[str | None, int]]:
    """Of each run: why it cannot be moved to the latest version of its workflow, or None; and the id of that version.
    One that is not there any more is not in the answer. Raises what `plans` says of a version that it cannot read."""
    found: dict[UUID, tuple[str | None, int]] = {}
    latest: dict[str, Plan] = {}
    for run_id, run in (await load_runs(connection, store, plans, run_ids)).items():
        name = run.plan.name
        if name not in latest:
            latest[name] = await plans.latest(connection, store.settings.namespace, name)
        to = latest[name]
        is_there = to.version_id == run.plan.version_id
        why = f"the run is on version {to.version} already" if is_there else why_not_moved(to, find_obstacles(to, run))
        found[run_id] = why, to.version_id
    return found
