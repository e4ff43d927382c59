"""Why a run or a task does not move."""

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from api.answers import reply
from api.identity import parse_id, parse_task_id
from api.openapi import answers
from api.schemas.explain import Cause, CauseAct, CauseObject, Explanation
from api.wiring import Wired, Wiring
from headrace.machine import TaskStatus
from state import explain
from state.explain import Facts, explain_run, explain_task
from state.queries.explain import read_facts

router = APIRouter(tags=["explain"])


@router.get("/runs/{run_id}/explain", responses=answers({200: Explanation}, 404))
async def of_run(run_id: str, wired: Wired) -> Response:
    """Why the run does not move: causes, nearest first; for one that has ended, how and why."""
    return reply(await _explain(wired, parse_id(run_id, "run")))


@router.get("/tasks/{task_id}/explain", responses=answers({200: Explanation}, 404))
async def of_task(task_id: str, wired: Wired) -> Response:
    """Why the task does not move: causes, nearest first; for one that has ended, how and why."""
    run_id, task = parse_task_id(task_id)
    return reply(await _explain(wired, run_id, task))


async def _explain(wiring: Wiring, run_id: UUID, task: str | None = None) -> Explanation:
    async with wiring.database.reading() as connection:
        facts, index = await read_facts(connection, wiring.settings, wiring.plans, run_id, task)
    causes = explain_run(facts) if index is None else explain_task(facts, index)
    return Explanation(
        run_id=str(run_id),
        task=task,
        status=str(facts.status) if index is None else _status(facts, index),
        at=facts.now,
        causes=[_cause(cause) for cause in causes],
        open_tasks=facts.open_tasks,
        looked_at=len(facts.tasks),
    )


def _status(facts: Facts, index: int) -> str:
    task = facts.tasks.get(index)
    return str(task.status if task else TaskStatus.PENDING)


def _cause(cause: explain.Cause) -> Cause:
    return Cause(
        code=cause.code,
        text=cause.text,
        points_to=CauseObject(*cause.points_to),
        moves=cause.moves,
        since=cause.since,
        until=cause.until,
        acts=[CauseAct(*act) for act in cause.acts],
        tasks=list(cause.tasks),
        tasks_total=cause.tasks_total,
    )
