"""Control of a run by people: pause, resume, terminate; run again what has ended, and give a task its output.

Each act runs in the caller's open transaction, looks whether it can be done as the run stands, and leaves a request:
the run agent applies it in the order of the run's partition, and `advance` decides. What the run has come to meanwhile
may make it stale; then nothing changes, and the run's history says what was first.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
import psycopg

from headrace.errors import ConflictError, NotFoundError
from headrace.machine import Plan, Reran, RunStatus
from headrace.machine.advance import can_be_supplied
from headrace.machine.cleanup import is_ended_by_cancel
from headrace.machine.migration import Obstacle, find_lasting_obstacles, why_not_moved, why_not_paused
from headrace.machine.place import is_item
from headrace.machine.rerun import Foreseen
from headrace.machine.rerun import foresee as foresee_tasks
from headrace.machine.status import CANCELLING, PAUSED, PAUSES, RUN_TERMINAL, TASKS_PAUSED, TERMINAL, WORKFLOW_PAUSED
from state.plans import Plans
from state.queries.rows import Connection, fetch, fetch_one
from state.requests import request
from state.sql import load
from state.store import RUN_COLUMNS, Store, StoredRun, microseconds_of, read_tasks

_SQL = load("control")
_RUN = load("run")


Act = Literal["cancel", "terminate", "pause", "resume", "release", "rerun", "migrate", "move"]
_UNDONE: Final = "the run undoes what it did, or has: its results do not stand any more; start another run"


class Standing(NamedTuple):
    """How a run stands as a whole."""

    status: RunStatus
    control: int
    row_version: int
    unapplied: str | None = None
    """What was asked of it and is not applied yet; only looked for where many are asked."""


class Prospect(NamedTuple):
    """What a rerun would do."""

    run: StoredRun
    tasks: list[Foreseen]
    to: Plan | None = None
    """The version that it would go on with; None: its own."""
    obstacles: Sequence[Obstacle] = ()
    """What stands in the way of that; then nothing is foreseen."""

    @property
    def plan(self) -> Plan:
        return self.to or self.run.plan


async def find_standing(connection: Connection, namespace: str, run_id: UUID) -> Standing:
    """Raises NotFoundError."""

    def standing(status: str, control: int, row_version: int) -> Standing:
        return Standing(RunStatus(status), control, row_version)

    found = await fetch_one(connection, standing, _SQL.text("find_run"), run_id=run_id, namespace=namespace)
    if found is None:
        raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
    return found


async def stand(connection: Connection, namespace: str, run_ids: Sequence[UUID]) -> dict[UUID, Standing]:
    """Of many; one that is missing from the answer is not there."""

    def standing(run_id: UUID, status: str, control: int, row_version: int, kind: str | None) -> tuple[UUID, Standing]:
        return run_id, Standing(RunStatus(status), control, row_version, kind)

    return dict(await fetch(connection, standing, _SQL.text("find_runs"), run_ids=list(run_ids), namespace=namespace))


async def touch_runs(connection: Connection, namespace: str, run_ids: Sequence[UUID]) -> None:
    """Keep runs that have ended from the retention, and others who ask for something like this waiting."""
    await connection.execute(_SQL.text("touch_runs"), {"run_ids": list(run_ids), "namespace": namespace})


def why_not(act: Act, run: Standing) -> str | None:
    """Why that cannot be asked of a run as it stands; None when it can."""
    if act == "rerun":
        ended = run.status in RUN_TERMINAL
        if run.status in (RunStatus.COMPENSATED, RunStatus.COMPENSATION_FAILED):
            return _UNDONE
        return None if ended else f"the run is {run.status}: only a run that has ended is rerun"
    if act == "release":
        return None if run.status is RunStatus.NEEDS_ATTENTION else f"the run is {run.status}: it needs no release"
    if act == "resume":
        if not run.control & PAUSES:
            return f"the run is {run.status}, and not paused"
        if run.control & PAUSED:
            return None
        if run.control & WORKFLOW_PAUSED:
            return "the run is paused with its workflow: resume that"
        return "the run is paused to be moved to another version, and goes on by itself"
    if run.status in RUN_TERMINAL:
        return f"the run is {run.status} already"
    if act == "move":
        is_aside = run.status is RunStatus.NEEDS_ATTENTION
        return "the run stands aside until a person has looked: release it first" if is_aside else None
    if act == "migrate":
        return None if run.status is RunStatus.PAUSED else why_not_paused(run.status)
    if act == "cancel" and run.status is RunStatus.COMPENSATING:
        return "the run is compensating: what it did is undone already; terminate it to leave that"
    if act == "cancel" and run.control & CANCELLING:
        return "the run is cancelled already, and cleans up; terminate it to leave that"
    return "the run is paused already" if act == "pause" and run.control & PAUSED else None


# == a run under way ===================================================================================================
async def pause_run(connection: Connection, store: Store, run_id: UUID, *, reason: str, actor: str) -> None:
    """Ask that nothing new of a run begin. Raises NotFoundError, and ConflictError when it has ended, or is paused."""
    await _check(connection, store, "pause", run_id)
    await request(connection, store, str(run_id), "paused", {"scope": PAUSED, "reason": reason}, actor)


async def resume_run(connection: Connection, store: Store, run_id: UUID, *, reason: str, actor: str) -> None:
    """Ask that a pause of a run end. Raises NotFoundError, and ConflictError when nobody has paused it."""
    await _check(connection, store, "resume", run_id)
    await request(connection, store, str(run_id), "resumed", {"scope": PAUSED, "reason": reason}, actor)


async def terminate_run(connection: Connection, store: Store, run_id: UUID, *, reason: str, actor: str) -> None:
    """Ask that a run end by force. Raises NotFoundError, and ConflictError when it has ended."""
    await _check(connection, store, "terminate", run_id)
    await request(connection, store, str(run_id), "terminated", {"reason": reason}, actor)


async def _check(connection: Connection, store: Store, act: Act, run_id: UUID) -> None:
    run = await find_standing(connection, store.settings.namespace, run_id)
    why = why_not(act, run)
    if why is not None:
        raise ConflictError(why, run_id=str(run_id), status=run.status)


# == one task ==========================================================================================================
async def pause_task(
    connection: Connection, store: Store, plans: Plans, run_id: UUID, task: str, *, reason: str, actor: str
) -> None:
    """Ask that nothing new of a task begin; what was handed out of it goes on. Raises NotFoundError, and ConflictError
    when it has ended, or is paused."""
    run, index = await _find_task(connection, store, plans, run_id, task)
    status, where = run.task(index).status, {"run_id": str(run_id), "task": task}
    if run.status in RUN_TERMINAL:
        raise ConflictError(f"the run is {run.status} already", **where)
    if status in TERMINAL:
        raise ConflictError(f"task {task} is {status} already", **where)
    if index in run.paused:
        raise ConflictError(f"task {task} is paused already", **where)
    body = {"scope": TASKS_PAUSED, "task": index, "reason": reason}
    await request(connection, store, str(run_id), "paused", body, actor)


async def resume_task(
    connection: Connection, store: Store, plans: Plans, run_id: UUID, task: str, *, reason: str, actor: str
) -> None:
    """Ask that the pause of a task end. Raises NotFoundError, and ConflictError when it is not paused by itself."""
    run, index = await _find_task(connection, store, plans, run_id, task)
    if index not in run.paused:
        why = f"task {task} is not paused by itself"
        why += ": its run is, or its workflow" if run.control & PAUSES else ""
        raise ConflictError(why, run_id=str(run_id), task=task)
    body = {"scope": TASKS_PAUSED, "task": index, "reason": reason}
    await request(connection, store, str(run_id), "resumed", body, actor)


async def _find_task(
    connection: Connection, store: Store, plans: Plans, run_id: UUID, task: str
) -> tuple[StoredRun, int]:
    """Of the graph: an item is paused with its map, and what undoes a task with its run."""
    run = await load_run(connection, store, plans, run_id)
    index = run.plan.index.get(task)
    if index is None and run.plan.find(task) is not None:
        raise ConflictError(
            f"{task} is paused with its map or its run, and not by itself", run_id=str(run_id), task=task
        )
    if index is None:
        raise NotFoundError(f"workflow {run.plan.name} has no task {task}", run_id=str(run_id), task=task)
    return run, index


# == results ===========================================================================================================
async def supply_output(
    connection: Connection,
    store: Store,
    plans: Plans,
    run_id: UUID,
    task: str,
    output: bytes,
    *,
    reason: str,
    actor: str,
) -> None:
    """Ask that a task be done with this output, without its body. output: checked JSON.

    Raises NotFoundError, and ConflictError when the task has ended otherwise than by a failure, when its approval would
    be gone round, or when its run was cancelled.
    """
    run = await _load_alone(connection, store, plans, run_id)
    index, where = _find_place(run, task), {"run_id": str(run_id), "task": task}
    state = run.task(index)
    if run.compensations is not None:
        raise ConflictError(_UNDONE, **where)
    if is_ended_by_cancel(run, index):
        raise ConflictError(f"the run is {run.status}: rerun it first", **where)
    if not can_be_supplied(run.plan, run, index):
        why = f"task {task} is {state.status}"
        if state.status == "skipped":
            why += f" ({state.error.message if state.error else ''}): skip or replay what it needs"
        elif state.status not in ("completed", "cancelled"):
            why += ", and its approval cannot be skipped"
        raise ConflictError(why, **where)
    body = {"task": index, "token": state.token, "output": msgspec.Raw(output), "reason": reason}
    await request(connection, store, str(run_id), "supplied", body, actor)


async def foresee_rerun(
    connection: Connection, store: Store, plans: Plans, run_id: UUID, tasks: Sequence[str], version: int | None = None
) -> Prospect:
    """What a rerun of these tasks and all that depends on them would do; without any, of what failed or was cancelled.
    version: of its workflow, to go on with; None: its own.

    Raises NotFoundError, and ConflictError when the run has not ended, or nothing of it would run again.
    """
    run = await load_run(connection, store, plans, run_id)
    if version in (None, run.plan.version):
        return Prospect(run, foresee(run, tasks))
    to = await plans.latest(connection, store.settings.namespace, run.plan.name, version)
    _check_ended(run)
    obstacles = find_lasting_obstacles(to, run)
    return Prospect(run, [] if obstacles else foresee(run, tasks, to), to, obstacles)


def _check_ended(run: StoredRun) -> None:
    where = {"run_id": run.key.decode()}
    if run.compensations is not None:
        raise ConflictError(_UNDONE, **where, status=run.status)
    if run.status not in RUN_TERMINAL:
        raise ConflictError(f"the run is {run.status}: only a run that has ended is rerun", **where, status=run.status)


def foresee(run: StoredRun, tasks: Sequence[str], to: Plan | None = None) -> list[Foreseen]:
    """What would run again of a run that was loaded; raises as `foresee_rerun`. to: the version it would go on with."""
    plan = to or run.plan
    _check_ended(run)
    where = {"run_id": run.key.decode()}
    chosen = tuple(_find_place(run, task, plan) for task in tasks)
    found = foresee_tasks(run.plan, run, Reran(run.row_version, chosen, plan=to), 0)
    if not found:
        raise ConflictError(f"nothing of the run failed: it is {run.status}", **where, status=run.status)
    for each in found:
        if each.task in chosen and each.then == "skipped":
            name = plan.tasks[each.task].name
            raise ConflictError(f"task {name} would be skipped again: rerun what it needs", **where, task=name)
    return found


async def rerun(
    connection: Connection, store: Store, plans: Plans, run_id: UUID, tasks: Sequence[str], *, input: bytes | None,
    row_version: int | None, reason: str, actor: str, version: int | None = None,
) -> Prospect:  # fmt: skip
    """Ask for that. input: checked JSON, in place of the rendered input of the only task named. row_version: of the run
    that was looked at before.

    Raises as `foresee_rerun`, and ConflictError when the run has moved since, or something else was asked of it.
    """
    await have_alone(connection, store, run_id)
    prospect = await foresee_rerun(connection, store, plans, run_id, tasks, version)
    run = prospect.run
    if prospect.to is not None and (why := why_not_moved(prospect.to, prospect.obstacles)) is not None:
        raise ConflictError(why, run_id=str(run_id), status=run.status)
    if row_version not in (None, run.row_version):
        raise ConflictError(
            f"the run has moved since: it is at row_version {run.row_version}", run_id=str(run_id), status=run.status
        )
    body: dict[str, Any] = {
        "row_version": run.row_version,
        "tasks": [_find_place(run, task, prospect.plan) for task in tasks],
        "reason": reason,
    }
    if prospect.to is not None:
        body["version_id"] = prospect.to.version_id
    if input is not None:
        body["input"] = msgspec.Raw(input)
    await request(connection, store, str(run_id), "reran", body, actor)
    return prospect


def _as_it_is(value: Any) -> Any:
    return value


def _find_place(run: StoredRun, task: str, plan: Plan | None = None) -> int:
    """Of a task, or of an item that has begun, such as `pages.17`. plan: of the version that is meant."""
    place = (plan or run.plan).find(task)
    if place is None:
        raise NotFoundError(f"workflow {run.plan.name} has no task {task}", task=task)
    if is_item(place) and run.task(place).is_untouched:
        raise NotFoundError(f"item {task} has not begun", task=task)
    return place


async def _load_alone(connection: Connection, store: Store, plans: Plans, run_id: UUID) -> StoredRun:
    await have_alone(connection, store, run_id)
    return await load_run(connection, store, plans, run_id)


async def have_alone(connection: Connection, store: Store, run_id: UUID) -> None:
    """Whoever else asks for something like this waits, and finds this request. Raises NotFoundError, and ConflictError
    when one is there already."""
    given = {"run_id": run_id, "namespace": store.settings.namespace}
    if await fetch_one(connection, _as_it_is, _SQL.text("touch_run"), **given) is None:
        raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
    kind = await fetch_one(connection, str, _SQL.text("find_unapplied"), run_id=run_id)
    if kind is not None:
        raise ConflictError(f"something else was asked of the run and is not applied yet: {kind}", run_id=str(run_id))


async def load_run(connection: Connection, store: Store, plans: Plans, run_id: UUID) -> StoredRun:
    """Raises NotFoundError, and what `plans` says of a version that this release cannot read."""
    found = (await load_runs(connection, store, plans, [run_id])).get(run_id)
    if found is None:
        raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
    return found


async def load_runs(
    connection: Connection, store: Store, plans: Plans, run_ids: Sequence[UUID]
) -> dict[UUID, StoredRun]:
    """Runs with their tasks; one that is missing from the answer is not there. Raises what `plans` says of a version
    that this release cannot read."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_RUN.text("load_runs"), (list(run_ids),))
        rows = await cursor.fetchall()
    await plans.load(connection, list({row[1] for row in rows}))
    found = {}
    for run_id, of_run in groupby(rows, itemgetter(0)):
        first, *more = of_run
        _, version_id, row_version, attention, control, namespace, input, trace, deadline_at = first[:9]
        if namespace != store.settings.namespace:
            continue
        plan = plans.get(version_id)
        if plan is None:
            raise plans.unreadable(version_id) or NotFoundError(f"there is no version {version_id}")
        tasks, undo = read_tasks((first, *more))
        found[run_id] = StoredRun(
            str(run_id).encode(), plan, input.encode(), row_version=row_version, attention=attention, control=control,
            tasks=tasks, namespace=namespace, traceparent=trace, deadline_at=microseconds_of(deadline_at),
            paused=first[RUN_COLUMNS - 1] or (), undo=undo,
        )  # fmt: skip
    return found
