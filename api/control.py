"""Control of a run: pause, resume, terminate; run again what has ended, skip a task with a given output."""

from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer
from api.bodies import check_payload, read
from api.errors import faulty
from api.idempotency import perform
from api.identity import actor, parse_id, parse_task_id
from api.openapi import answers, body
from api.schemas.control import MigrateBody, Migration, Obstacle, Rerun, RerunBody, RerunTask, SkipBody
from api.schemas.wire import Accepted, ReasonBody
from api.wiring import Wired, Wiring
from headrace.machine import Plan
from headrace.machine.rerun import Foreseen
from headrace.messages import effect_key
from state.control import (
    Prospect,
    foresee_rerun,
    pause_run,
    pause_task,
    rerun,
    resume_run,
    resume_task,
    supply_output,
    terminate_run,
)
from state.migration import Move, foresee_move, move_run
from state.queries.rows import Connection
from state.store import StoredRun

router = APIRouter(tags=["runs"])


@router.post(
    "/runs/{run_id}/pause",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def pause(run_id: str, request: Request, wired: Wired) -> Response:
    """Let nothing new of a run begin. What was handed out goes on to its end, timers and signals are kept: the run is
    `pausing` for as long as something of it runs, then `paused`.
    """
    return await _ask(run_id, request, wired, pause_run)


@router.post(
    "/runs/{run_id}/resume",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def resume(run_id: str, request: Request, wired: Wired) -> Response:
    """End a pause: what it withheld begins."""
    return await _ask(run_id, request, wired, resume_run)


@router.post(
    "/runs/{run_id}/terminate",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def terminate(run_id: str, request: Request, wired: Wired) -> Response:
    """End a run by force, without any clean-up. It is `terminated`, and no answer of what still runs counts."""
    return await _ask(run_id, request, wired, terminate_run)


@router.post(
    "/runs/{run_id}/rerun",
    status_code=202,
    responses=answers({202: Rerun, 200: Rerun}, 404, 408, 409, 413, 415),
    openapi_extra=body(RerunBody, required=False),
)
async def rerun_run(run_id: str, request: Request, wired: Wired) -> Response:
    """Let part of a run that has ended run again: tasks and all that depends on them, or what failed. The results of
    the others stand. It stays on its version, or goes on with the `version` that is asked for. With `dry_run` nothing
    happens: the answer says what would run again, which effects repeat, what protects them, and what stands in the way
    of that version.
    """
    id_ = parse_id(run_id, "run")
    asked, content = await read(request, RerunBody)
    given = None if isinstance(asked.input, msgspec.UnsetType) else check_payload(asked.input, "input", may_refer=True)
    if given is not None and len(asked.tasks) != 1:
        raise faulty("input", "name the one task that it is for in `tasks`")
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        if asked.dry_run:
            prospect = await foresee_rerun(connection, wired.store, wired.plans, id_, asked.tasks, asked.version)
            return answer(_rerun(prospect, dry_run=True))
        prospect = await rerun(
            connection, wired.store, wired.plans, id_, asked.tasks, input=given, row_version=asked.row_version,
            reason=asked.reason, actor=who, version=asked.version,
        )  # fmt: skip
        return answer(_rerun(prospect, dry_run=False), 202)

    return await perform(wired, request, content, act)


@router.post(
    "/tasks/{task_id}/pause",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def pause_one(task_id: str, request: Request, wired: Wired) -> Response:
    """Let nothing new of a task begin, nor of the items of a map. What was handed out goes on to its end, and so do the
    rest of the run and what waits; its retries wait until somebody resumes it.
    """
    return await _ask_of_task(task_id, request, wired, pause_task)


@router.post(
    "/tasks/{task_id}/resume",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def resume_one(task_id: str, request: Request, wired: Wired) -> Response:
    """End the pause of a task: what it withheld begins."""
    return await _ask_of_task(task_id, request, wired, resume_task)


@router.post(
    "/tasks/{task_id}/skip",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(SkipBody, required=False),
)
async def skip(task_id: str, request: Request, wired: Wired) -> Response:
    """Give a task its output, so that it is done without its body. One that is open or has failed; an approval is not
    gone round.
    """
    id_, task = parse_task_id(task_id)
    asked, content = await read(request, SkipBody)
    output = b"null" if isinstance(asked.output, msgspec.UnsetType) else check_payload(asked.output, "output")
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await supply_output(connection, wired.store, wired.plans, id_, task, output, reason=asked.reason, actor=who)
        return answer(Accepted(str(id_), accepted=True), 202)

    return await perform(wired, request, content, act)


@router.post(
    "/runs/{run_id}/migrate",
    status_code=202,
    responses=answers({202: Migration, 200: Migration}, 404, 408, 409, 413, 415),
    openapi_extra=body(MigrateBody, required=False),
)
async def migrate(run_id: str, request: Request, wired: Wired) -> Response:
    """Move a paused run to another version of its workflow. What has ended stands; a task that has begun keeps its
    name, its kind and its position. With `dry_run` nothing happens: the answer says what stands in the way.
    """
    id_ = parse_id(run_id, "run")
    asked, content = await read(request, MigrateBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        if asked.dry_run:
            move = await foresee_move(connection, wired.store, wired.plans, id_, asked.version)
            return answer(_migration(move, dry_run=True))
        move = await move_run(connection, wired.store, wired.plans, id_, asked.version, reason=asked.reason, actor=who)
        return answer(_migration(move, dry_run=False), 202)

    return await perform(wired, request, content, act)


def _migration(move: Move, *, dry_run: bool) -> Migration:
    old, new = move.run.plan, move.to
    obstacles = [Obstacle(each.task, each.why) for each in move.obstacles]
    return Migration(move.run.key.decode(), dry_run, old.name, old.version, new.version, obstacles)


def _rerun(prospect: Prospect, *, dry_run: bool) -> Rerun:
    run, plan = prospect.run, prospect.plan
    again = {each.task for each in prospect.tasks}
    run_id = run.key.decode()
    return Rerun(
        run_id,
        dry_run,
        plan.name,
        run.plan.version,
        run.row_version,
        [_again(run, plan, each) for each in prospect.tasks],
        [] if prospect.obstacles else [spec.name for spec in plan.tasks if spec.index not in again],
        plan.version,
        [Obstacle(each.task, each.why) for each in prospect.obstacles],
    )


def _again(run: StoredRun, plan: Plan, each: Foreseen) -> RerunTask:
    spec, state = plan.tasks[each.task], run.task(each.task)
    key = None if spec.run is None else effect_key(run.key.decode(), spec.effect_name, each.round)
    key = None if spec.map is not None else key
    return RerunTask(spec.name, state.status, state.attempt, each.then, each.effect, each.protected_by, key, each.items)


async def _ask_of_task(
    task_id: str, request: Request, wired: Wiring, act_on: Callable[..., Awaitable[None]]
) -> Response:
    id_, task = parse_task_id(task_id)
    asked, content = await read(request, ReasonBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await act_on(connection, wired.store, wired.plans, id_, task, reason=asked.reason, actor=who)
        return answer(Accepted(str(id_), accepted=True), 202)

    return await perform(wired, request, content, act)


async def _ask(run_id: str, request: Request, wired: Wiring, act_on: Callable[..., Awaitable[None]]) -> Response:
    id_ = parse_id(run_id, "run")
    asked, content = await read(request, ReasonBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await act_on(connection, wired.store, id_, reason=asked.reason, actor=who)
        return answer(Accepted(str(id_), accepted=True), 202)

    return await perform(wired, request, content, act)
