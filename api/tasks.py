"""Tasks and their attempts."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import NULL, Answer, answer, raw, reply
from api.approvals import Outcome, decide, filled_in
from api.bodies import read
from api.idempotency import perform
from api.identity import parse_id, parse_task_id, voter
from api.openapi import answers, body
from api.paging import ByInt, Limit, PageToken, parse, token
from api.runs import find_run
from api.schemas.approval import Approval, DecisionBody
from api.schemas.task import Attempt, AttemptPage, ItemCounts, ItemPage, Task, TaskPage
from api.wiring import Wired, Wiring
from headrace.errors import ConflictError, NotFoundError, PayloadError
from headrace.machine import Plan, TaskStatus
from headrace.machine.place import ITEMS_MAX, is_compensation, is_item, item_of, task_of
from state.queries.approval import find_approval_of_task
from state.queries.rows import Connection
from state.queries.run import RunRow
from state.queries.task import TaskRow, list_attempts, list_items, list_tasks
from state.task_input import derive_input

router = APIRouter(tags=["tasks"])

StatusFilter = Annotated[TaskStatus | None, Query(description="Only items with this status")]


@router.get("/runs/{run_id}/tasks", responses=answers({200: TaskPage}, 404))
async def list_of_run(run_id: str, wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """All tasks of the graph in its order, also those that were never touched."""
    first = 0 if page is None else parse(page, ByInt).number + 1
    async with wired.database.reading() as connection:
        run = await find_run(wired, connection, parse_id(run_id, "run"))
        plan = await wired.plan(connection, run.version_id)
        rows = await list_tasks(connection, run.run_id, first=first, end=first + limit)
    specs = plan.tasks[first : first + limit]
    if rows and rows[0].total > len(rows):  # large outputs cut the page
        specs = plan.tasks[first : rows[-1].task + 1]
    by_index = {row.task: row for row in rows}
    items = [_task(run, plan, spec.index, by_index.get(spec.index)) for spec in specs]
    end = first + len(specs)
    return reply(TaskPage(items, token(end - 1) if specs and end < len(plan.tasks) else None))


@router.get("/tasks/{task_id}", responses=answers({200: Task}, 404))
async def get(task_id: str, wired: Wired) -> Response:
    """One task, with what its body is given."""
    async with wired.database.reading() as connection:
        run, plan, place = await find_task(wired, connection, task_id)
        rows = await list_tasks(connection, run.run_id, first=place, end=place + 1)
        row = rows[0] if rows else None
        if row is None and is_item(place):
            raise NotFoundError(f"item {plan.name_of(place)} has not begun, or does not exist", task_id=task_id)
        if row is None and is_compensation(place):
            name = plan.tasks[task_of(place)].name
            raise NotFoundError(
                f"task {name} is not undone: its run has not failed, or it did nothing", task_id=task_id
            )
        task = _task(run, plan, place, row)
        if row is not None and row.token and plan.at(place).run is not None:
            task.input = await _input(connection, run, plan, row)
    return reply(task)


@router.get("/runs/{run_id}/tasks/{task}/items", responses=answers({200: ItemPage}, 404, 409))
async def list_of_map(
    run_id: str, task: str, wired: Wired, status: StatusFilter = None, limit: Limit = 50, page: PageToken = None
) -> Response:
    """Items of a map that have begun, in the order of its list, as the tasks that they are."""
    after = -1 if page is None else parse(page, ByInt).number
    async with wired.database.reading() as connection:
        run, plan, place = await find_task(wired, connection, f"{run_id}.{task}")
        if place >= ITEMS_MAX or plan.tasks[place].map is None:
            raise ConflictError(f"task {task} is no map", run_id=run_id, task=task)
        of_map = await list_tasks(connection, run.run_id, first=place, end=place + 1)
        rows = await list_items(connection, run.run_id, place, after=after, status=status, limit=limit)
        last = item_of(rows[-1].task) if rows else None
        more = last is not None and await list_items(connection, run.run_id, place, after=last, status=status, limit=1)
    items = [_task(run, plan, row.task, row) for row in rows]
    return reply(ItemPage(items, token(last) if more else None, _counts(of_map[0]) if of_map else None))


@router.get("/tasks/{task_id}/attempts", responses=answers({200: AttemptPage}, 404))
async def attempts(task_id: str, wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Attempts that ended, in order. One that runs now is the task's `attempt`."""
    after = 0 if page is None else parse(page, ByInt).number
    async with wired.database.reading() as connection:
        run, _, place = await find_task(wired, connection, task_id)
        rows = await list_attempts(connection, run.run_id, place, after=after, limit=limit)
        more = rows and await list_attempts(connection, run.run_id, place, after=rows[-1].token, limit=1)
    items = [
        Attempt(
            row.attempt,
            row.token,
            row.outcome,
            row.worker,
            row.started_at,
            row.finished_at,
            row.ended_at,
            raw(row.output),
            raw(row.error),
            row.round,
        )
        for row in rows
    ]
    return reply(AttemptPage(items, token(rows[-1].token) if more else None))


@router.post(
    "/tasks/{task_id}/approval",
    responses=answers({200: Approval}, 404, 408, 409, 413, 415),
    openapi_extra=body(DecisionBody),
)
async def decide_task(task_id: str, request: Request, wired: Wired) -> Response:
    """Decide what the task asks now."""
    asked, content = await read(request, DecisionBody)
    who, form = voter(request), filled_in(asked.form)

    async def act(connection: Connection) -> Answer:
        run, plan, place = await find_task(wired, connection, task_id)
        if plan.at(place).approval is None:
            raise ConflictError(f"task {plan.name_of(place)} asks nobody", task_id=task_id)
        approval_id = await find_approval_of_task(connection, wired.namespace, run.run_id, place)
        if approval_id is None:
            raise ConflictError(f"task {plan.name_of(place)} does not wait for a decision yet", task_id=task_id)
        outcome: Outcome = "approved" if asked.decision == "approve" else "rejected"
        return answer(await decide(wired, connection, approval_id, outcome, asked.comment, form, who))

    return await perform(wired, request, content, act)


async def find_task(wiring: Wiring, connection: Connection, task_id: str) -> tuple[RunRow, Plan, int]:
    """Its run, that run's plan, and its place there. Raises NotFoundError."""
    run_id, name = parse_task_id(task_id)
    run = await find_run(wiring, connection, run_id)
    plan = await wiring.plan(connection, run.version_id)
    place = plan.find(name)
    if place is None:
        raise NotFoundError(f"workflow {plan.name} has no task {name}", run_id=str(run_id), task=name)
    return run, plan, place


def _task(run: RunRow, plan: Plan, place: int, row: TaskRow | None) -> Task:
    """row: None while the task was never touched."""
    spec, name = plan.at(place), plan.name_of(place)
    return Task(
        task_id=f"{run.run_id}.{name}",
        run_id=str(run.run_id),
        name=name,
        index=spec.index,
        run=spec.run,
        queue=spec.queue,
        needs=[plan.tasks[need].name for need in spec.needs],
        status=TaskStatus(row.status) if row else TaskStatus.PENDING,
        attempt=row.attempt if row else 0,
        token=row.token if row else 0,
        attempts_max=spec.retry.attempts + (row.retries_from if row else 0),
        due_at=row.due_at if row else None,
        session_id=str(row.session_id) if row and row.session_id else None,
        changed_at=row.changed_at if row else None,
        output=raw(row.output) if row else NULL,
        error=raw(row.error) if row else NULL,
        approval_id=str(row.approval_id) if row and row.approval_id else None,
        progress=raw(row.progress) if row else NULL,
        items=_counts(row) if row else None,
        signal=None if spec.signal is None else spec.signal.name,
        deadline_at=row.deadline_at if row else None,
        rounds=row.rounds if row else 0,
        workflow=None if spec.child is None else spec.child.workflow,
        compensation=TaskStatus(row.compensation) if row and row.compensation else None,
        is_paused=not is_compensation(place) and task_of(place) in (run.paused_tasks or ()),
    )


def _counts(row: TaskRow) -> ItemCounts | None:
    if row.items is None:
        return None
    return ItemCounts(row.items, row.items_begun or 0, row.items_completed or 0, row.items_failed or 0)


async def _input(connection: Connection, run: RunRow, plan: Plan, row: TaskRow) -> msgspec.Raw | msgspec.UnsetType:
    """What the command carried; a map carries none, and has its list."""
    if row.input is not None:
        return raw(row.input)
    if plan.at(row.task).map is not None:
        return msgspec.UNSET
    try:
        return msgspec.Raw(await derive_input(connection, plan, run.run_id, run.input.encode(), row.task))
    except PayloadError:
        return msgspec.UNSET  # it could not be rendered then either; the task's error says why
