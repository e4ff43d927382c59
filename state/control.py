"""Control of a run by people: pause, resume, terminate.

Each act runs in the caller's open transaction, looks whether it can be done as the run stands, and leaves a request:
the run agent applies it in the order of the run's partition, and `advance` decides. What the run has come to meanwhile
may make it stale; then nothing changes, and the run's history says what was first.
"""

from typing import Final, NamedTuple
from uuid import UUID

from headrace.errors import ConflictError, NotFoundError
from headrace.machine import RunStatus
from headrace.machine.status import PAUSED, PAUSES, RUN_TERMINAL, WORKFLOW_PAUSED
from state.queries.rows import Connection, fetch_one
from state.requests import request
from state.sql import load
from state.store import Store

_SQL = load("control")
PAUSERS: Final = {PAUSED: "a person", WORKFLOW_PAUSED: "its workflow"}


class Standing(NamedTuple):
    """How a run stands as a whole."""

    status: RunStatus
    control: int
    row_version: int


async def find_standing(connection: Connection, namespace: str, run_id: UUID) -> Standing:
    """Raises NotFoundError."""

    def standing(status: str, control: int, row_version: int) -> Standing:
        return Standing(RunStatus(status), control, row_version)

    found = await fetch_one(connection, standing, _SQL.text("find_run"), run_id=run_id, namespace=namespace)
    if found is None:
        raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
    return found


async def pause_run(connection: Connection, store: Store, run_id: UUID, *, reason: str, actor: str) -> None:
    """Ask that nothing new of a run begin. Raises NotFoundError, and ConflictError when it has ended, or is paused."""
    run = await find_standing(connection, store.settings.namespace, run_id)
    _check_open(run, run_id)
    if run.control & PAUSED:
        raise ConflictError("the run is paused already", run_id=str(run_id), status=run.status)
    await request(connection, store, str(run_id), "paused", {"scope": PAUSED, "reason": reason}, actor)


async def resume_run(connection: Connection, store: Store, run_id: UUID, *, reason: str, actor: str) -> None:
    """Ask that a pause of a run end. Raises NotFoundError, and ConflictError when nobody has paused it."""
    run = await find_standing(connection, store.settings.namespace, run_id)
    if not run.control & PAUSES:
        raise ConflictError(f"the run is {run.status}, and not paused", run_id=str(run_id), status=run.status)
    if not run.control & PAUSED:
        raise ConflictError("the run is paused with its workflow: resume that", run_id=str(run_id), status=run.status)
    await request(connection, store, str(run_id), "resumed", {"scope": PAUSED, "reason": reason}, actor)


async def terminate_run(connection: Connection, store: Store, run_id: UUID, *, reason: str, actor: str) -> None:
    """Ask that a run end by force. Raises NotFoundError, and ConflictError when it has ended."""
    _check_open(await find_standing(connection, store.settings.namespace, run_id), run_id)
    await request(connection, store, str(run_id), "terminated", {"reason": reason}, actor)


def _check_open(run: Standing, run_id: UUID) -> None:
    if run.status in RUN_TERMINAL:
        raise ConflictError(f"the run is {run.status} already", run_id=str(run_id), status=run.status)
