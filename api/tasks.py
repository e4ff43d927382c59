"""Tasks and their attempts."""

from uuid import UUID

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import NULL, Answer, answer, raw, reply
from api.approvals import Outcome, decide
from api.bodies import read
from api.idempotency import perform
from api.identity import actor, parse_id, parse_task_id
from api.openapi import answers, body
from api.paging import ByInt, Limit, PageToken, parse, token
from api.runs import find_run
from api.schemas import Approval, Attempt, AttemptPage, DecisionBody, Task, TaskPage
from api.wiring import Wired, Wiring
from headrace.errors import ConflictError, NotFoundError, PayloadError
from headrace.machine import Plan, TaskPlan, TaskStatus
from state.queries.approval import find_approval_of_task
from state.queries.rows import Connection
from state.queries.run import RunRow, list_outputs
from state.queries.task import TaskRow, list_attempts, list_tasks

router = APIRouter(tags=["tasks"])


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
    items = [_task(run.run_id, plan, spec, by_index.get(spec.index)) for spec in specs]
    end = first + len(specs)
    return reply(TaskPage(items, token(end - 1) if specs and end < len(plan.tasks) else None))


@router.get("/tasks/{task_id}", responses=answers({200: Task}, 404))
async def get(task_id: str, wired: Wired) -> Response:
    """One task, with what its body is given."""
    async with wired.database.reading() as connection:
        run, plan, spec = await find_task(wired, connection, task_id)
        rows = await list_tasks(connection, run.run_id, first=spec.index, end=spec.index + 1)
        row = rows[0] if rows else None
        task = _task(run.run_id, plan, spec, row)
        if row is not None and row.token and spec.run is not None:
            task.input = await _input(connection, run, plan, spec, row)
    return reply(task)


@router.get("/tasks/{task_id}/attempts", responses=answers({200: AttemptPage}, 404))
async def attempts(task_id: str, wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Attempts that ended, in order. One that runs now is the task's `attempt`."""
    after = 0 if page is None else parse(page, ByInt).number
    async with wired.database.reading() as connection:
        run, _, spec = await find_task(wired, connection, task_id)
        rows = await list_attempts(connection, run.run_id, spec.index, after=after, limit=limit)
        more = rows and await list_attempts(connection, run.run_id, spec.index, after=rows[-1].token, limit=1)
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
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        run, _, spec = await find_task(wired, connection, task_id)
        if spec.approval is None:
            raise ConflictError(f"task {spec.name} asks nobody", task_id=task_id)
        approval_id = await find_approval_of_task(connection, wired.namespace, run.run_id, spec.index)
        if approval_id is None:
            raise ConflictError(f"task {spec.name} does not wait for a decision yet", task_id=task_id)
        outcome: Outcome = "approved" if asked.decision == "approve" else "rejected"
        return answer(await decide(wired, connection, approval_id, outcome, asked.comment, who))

    return await perform(wired, request, content, act)


async def find_task(wiring: Wiring, connection: Connection, task_id: str) -> tuple[RunRow, Plan, TaskPlan]:
    """Raises NotFoundError."""
    run_id, name = parse_task_id(task_id)
    run = await find_run(wiring, connection, run_id)
    plan = await wiring.plan(connection, run.version_id)
    index = plan.index.get(name)
    if index is None:
        raise NotFoundError(f"workflow {plan.name} has no task {name}", run_id=str(run_id), task=name)
    return run, plan, plan.tasks[index]


def _task(run_id: UUID, plan: Plan, spec: TaskPlan, row: TaskRow | None) -> Task:
    """row: None while the task was never touched."""
    return Task(
        task_id=f"{run_id}.{spec.name}",
        run_id=str(run_id),
        name=spec.name,
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
    )


async def _input(
    connection: Connection, run: RunRow, plan: Plan, spec: TaskPlan, row: TaskRow
) -> msgspec.Raw | msgspec.UnsetType:
    """Render what the command carried: the machine does the same, from what does not change any more."""
    if row.input is not None:
        return raw(row.input)
    if spec.template is None:
        return raw(run.input)
    asked = [(run.run_id, plan.index[name]) for name in spec.template.references]
    outputs = {
        plan.tasks[found.task].name: (found.output or "null").encode()
        for found in await list_outputs(connection, asked)
    }
    try:
        return msgspec.Raw(spec.template.render(run.input.encode(), outputs.get))
    except PayloadError:
        return msgspec.UNSET  # it could not be rendered then either; the task's error says why
