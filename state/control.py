"""Control of a run by people: pause, resume, terminate; run again what has ended, and give a task its output.

Each act runs in the caller's open transaction, looks whether it can be done as the run stands, and leaves a request:
the run agent applies it in the order of the run's partition, and `advance` decides. What the run has come to meanwhile
may make it stale; then nothing changes, and the run's history says what was first.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import psycopg

from headrace.errors import ConflictError, NotFoundError
from headrace.machine import Reran, RunStatus
from headrace.machine.advance import can_be_supplied
from headrace.machine.rerun import Foreseen, foresee
from headrace.machine.status import PAUSED, PAUSES, RUN_TERMINAL
from state.plans import Plans
from state.queries.rows import Connection, fetch_one
from state.requests import request
from state.sql import load
from state.store import RUN_COLUMNS, Store, StoredRun, read_task

_SQL = load("control")
_RUN = load("run")


class Standing(NamedTuple):
    """How a run stands as a whole."""

    status: RunStatus
    control: int
    row_version: int


class Prospect(NamedTuple):
    """What a rerun would do."""

    run: StoredRun
    tasks: list[Foreseen]


async def find_standing(connection: Connection, namespace: str, run_id: UUID) -> Standing:
    """Raises NotFoundError."""

    def standing(status: str, control: int, row_version: int) -> Standing:
        return Standing(RunStatus(status), control, row_version)

    found = await fetch_one(connection, standing, _SQL.text("find_run"), run_id=run_id, namespace=namespace)
    if found is None:
        raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
    return found


# == a run under way ===================================================================================================
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
    index, where = _find_task(run, task), {"run_id": str(run_id), "task": task}
    state = run.task(index)
    if any(each.status == "cancelled" for each in run.tasks.values()):
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
    connection: Connection, store: Store, plans: Plans, run_id: UUID, tasks: Sequence[str]
) -> Prospect:
    """What a rerun of these tasks and all that depends on them would do; without any, of what failed or was cancelled.

    Raises NotFoundError, and ConflictError when the run has not ended, or nothing of it would run again.
    """
    run = await _load_run(connection, store, plans, run_id)
    where = {"run_id": str(run_id)}
    if run.status not in RUN_TERMINAL:
        raise ConflictError(f"the run is {run.status}: only a run that has ended is rerun", **where, status=run.status)
    chosen = tuple(_find_task(run, task) for task in tasks)
    found = foresee(run.plan, run, Reran(run.row_version, chosen), 0)
    if not found and any(spec.map is not None for spec in run.plan.tasks):
        raise ConflictError("a map that has begun is not rerun: replay the items that failed", **where)
    if not found:
        raise ConflictError(f"nothing of the run failed: it is {run.status}", **where, status=run.status)
    for each in found:
        if each.task in chosen and each.then == "skipped":
            name = run.plan.tasks[each.task].name
            raise ConflictError(f"task {name} would be skipped again: rerun what it needs", **where, task=name)
    return Prospect(run, found)


async def rerun(
    connection: Connection, store: Store, plans: Plans, run_id: UUID, tasks: Sequence[str], *, input: bytes | None,
    row_version: int | None, reason: str, actor: str,
) -> Prospect:  # fmt: skip
    """Ask for that. input: checked JSON, in place of the rendered input of the only task named. row_version: of the run
    that was looked at before.

    Raises as `foresee_rerun`, and ConflictError when the run has moved since, or something else was asked of it.
    """
    await _have_alone(connection, store, run_id)
    prospect = await foresee_rerun(connection, store, plans, run_id, tasks)
    run = prospect.run
    if row_version not in (None, run.row_version):
        raise ConflictError(
            f"the run has moved since: it is at row_version {run.row_version}", run_id=str(run_id), status=run.status
        )
    body: dict[str, Any] = {
        "row_version": run.row_version,
        "tasks": [run.plan.index[task] for task in tasks],
        "reason": reason,
    }
    if input is not None:
        body["input"] = msgspec.Raw(input)
    await request(connection, store, str(run_id), "reran", body, actor)
    return prospect


def _as_it_is(value: Any) -> Any:
    return value


def _find_task(run: StoredRun, task: str) -> int:
    if task not in run.plan.index:
        raise NotFoundError(f"workflow {run.plan.name} has no task {task}", task=task)
    return run.plan.index[task]


async def _load_alone(connection: Connection, store: Store, plans: Plans, run_id: UUID) -> StoredRun:
    await _have_alone(connection, store, run_id)
    return await _load_run(connection, store, plans, run_id)


async def _have_alone(connection: Connection, store: Store, run_id: UUID) -> None:
    """Whoever else asks for something like this waits, and finds this request. Raises NotFoundError, and ConflictError
    when one is there already."""
    given = {"run_id": run_id, "namespace": store.settings.namespace}
    if await fetch_one(connection, _as_it_is, _SQL.text("touch_run"), **given) is None:
        raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
    kind = await fetch_one(connection, str, _SQL.text("find_unapplied"), run_id=run_id)
    if kind is not None:
        raise ConflictError(f"something else was asked of the run and is not applied yet: {kind}", run_id=str(run_id))


async def _load_run(connection: Connection, store: Store, plans: Plans, run_id: UUID) -> StoredRun:
    """Raises NotFoundError, and what `plans` says of a version that this release cannot read."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(_RUN.text("load_runs"), ([run_id],))
        rows = await cursor.fetchall()
    for _, of_run in groupby(rows, itemgetter(0)):
        first, *more = of_run
        _, version_id, row_version, attention, control, namespace, input, trace = first[:RUN_COLUMNS]
        if namespace != store.settings.namespace:
            break
        await plans.load(connection, [version_id])
        plan = plans.get(version_id)
        if plan is None:
            raise plans.unreadable(version_id) or NotFoundError(f"there is no version {version_id}")
        states = [row[RUN_COLUMNS:] for row in (first, *more)]
        tasks = {index: read_task(*state) for index, *state in states if index is not None}
        return StoredRun(
            str(run_id).encode(), plan, input.encode(), row_version=row_version, attention=attention, control=control,
            tasks=tasks, namespace=namespace, traceparent=trace,
        )  # fmt: skip
    raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
