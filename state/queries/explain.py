"""The facts that `state.explain` explains from: of one run, or of one of its tasks and what it waits for."""

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from confluent_kafka import murmur2

from headrace.errors import NotFoundError
from headrace.machine import Plan, RunStatus, TaskStatus
from headrace.machine.place import ITEMS_MAX, compensation_of, is_compensation, task_of
from headrace.machine.status import MOVING, WORKFLOW_PAUSED
from state.explain import (
    Ballot,
    Child,
    Engine,
    Facts,
    Failure,
    Holder,
    InLine,
    Items,
    Letter,
    Listening,
    NextStep,
    Parked,
    Pause,
    PermitFacts,
    PoolFacts,
    Question,
    Queue,
    Relay,
    Request,
    Session,
    Stop,
    TaskFacts,
    Timer,
)
from state.plans import Plans
from state.queries.rows import Connection, fetch, fetch_one
from state.settings import EngineSettings
from state.sql import load

_SQL = load("explain")
TASKS_MAX: Final = 200
"""Open tasks that one answer looks at."""
REQUESTS_MAX: Final = 20
OLDER_RUNS_MAX: Final = 2_000
"""Open runs that are looked through for older commands: about 10 ms."""
Row = tuple[Any, ...]


async def read_facts(
    connection: Connection, settings: EngineSettings, plans: Plans, run_id: UUID, task: str | None = None
) -> tuple[Facts, int | None]:
    """Facts and the task's position, for `explain_task`; without a task: for `explain_run`. To be called within one
    snapshot; raises NotFoundError. A constant number of statements.
    """
    run = await fetch_one(connection, _Run, _SQL.text("read_run"), run_id=run_id, namespace=settings.namespace)
    if run is None:
        raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
    await plans.load(connection, [run.version_id])
    if (error := plans.unreadable(run.version_id)) is not None:
        raise error
    plan = plans.get(run.version_id)
    assert plan is not None
    index = None if task is None else plan.find(task)
    if task is not None and index is None:
        raise NotFoundError(f"workflow {plan.name} has no task {task}", run_id=str(run_id), task=task)
    ended = frozenset(run.ended)
    asked = _all_of(plan) if index is None else _what_it_waits_for(plan, index, ended)
    maps = [place for place in asked if place < ITEMS_MAX and plan.tasks[place].map is not None and place not in ended]
    rows = await _fetch(
        connection, "read_tasks", run_id=run_id, tasks=asked, maps=maps, by_status=index is None, limit=TASKS_MAX
    )
    tasks = {row[0]: _task(row) for row in rows}
    in_line, pools = await _read_pools(connection, settings, plans, run_id, tasks)
    facts = Facts(
        now=run.now,
        run_id=run_id,
        plan=plan,
        status=RunStatus(run.status),
        is_cancelled=run.is_cancelled,
        changed_at=run.changed_at,
        engine=await _read_engine(connection, settings, run_id),
        lease=timedelta(seconds=settings.lease_seconds),
        ended=ended,
        tasks=tasks,
        open_tasks=rows[0][9] if rows else 0,
        requests=await fetch(connection, Request, _SQL.text("list_requests"), run_id=run_id, limit=REQUESTS_MAX),
        queues={row[0]: Queue(*row[1:]) for row in await _fetch(connection, "count_workers")},
        ahead=await _count_ahead(connection, plans, run_id, tasks),
        in_line=in_line,
        pools=pools,
        held={row[0]: Pause(*row[1:]) for row in await _fetch(connection, "list_held", run_id=run_id)},
        stop=_stop(run),
        pauses=_pauses(run),
        deadline_at=run.deadline_at,
        permit=await _read_permit(connection, run_id) if run.awaits_permit else None,
    )
    return facts, index


class _Run(NamedTuple):
    version_id: int
    status: str
    is_cancelled: bool
    changed_at: datetime
    now: datetime
    deadline_at: datetime | None
    ended: list[int]
    stop: str | None
    letter: UUID | None
    pauses: str | None
    awaits_permit: bool


class _Stop(msgspec.Struct):
    """A row of history that ended or stopped the run."""

    kind: str
    at: datetime
    actor: str
    detail: dict[str, Any] | None


def _stop(run: _Run) -> Stop | None:
    if run.stop is None:
        return None
    row = msgspec.json.decode(run.stop, type=_Stop)
    detail = row.detail or {}
    error = detail.get("error")
    reason = error.get("message") if isinstance(error, dict) else detail.get("reason")
    return Stop(row.kind, row.at, row.actor, str(reason or ""), run.letter)


class _PauseDetail(msgspec.Struct):
    scope: int
    reason: str = ""


class _Pause(msgspec.Struct):
    """A row of history that paused the run."""

    at: datetime
    actor: str
    detail: _PauseDetail
    task: int | None = None


def _pauses(run: _Run) -> list[Pause]:
    rows = [] if run.pauses is None else msgspec.json.decode(run.pauses, type=list[_Pause])
    return [
        Pause(row.at, row.actor, row.detail.reason, scope == WORKFLOW_PAUSED, row.task, scope == MOVING)
        for row in rows
        for scope in (row.detail.scope,)
    ]


def _all_of(plan: Plan) -> list[int]:
    undone = [compensation_of(spec.index) for spec in plan.tasks if spec.compensation is not None]
    return [*range(len(plan.tasks)), *undone]


def _what_it_waits_for(plan: Plan, index: int, ended: frozenset[int]) -> list[int]:
    """The task, then all that it needs, nearest first; what has ended only when the task itself has: it may have been
    skipped because of it. A compensation waits for those of all that needs its task.
    """
    if is_compensation(index):
        behind = dict.fromkeys([task_of(index)])
        for task in (walk := list(behind)):
            new = [after for after in plan.tasks[task].dependants if after not in behind]
            behind |= dict.fromkeys(new)
            walk += new
        places = [compensation_of(task) for task in behind if plan.tasks[task].compensation is not None]
        return [index, *(place for place in places if place != index and place not in ended)]
    asked = {index: None}
    waiting = deque([index])
    while waiting:
        for need in plan.at(waiting.popleft()).needs:
            if need not in asked and (need not in ended or index in ended):
                asked[need] = None
                waiting.append(need)
    return list(asked)


# == rows ==============================================================================================================
def _task(row: Row) -> TaskFacts:
    status, timer, question = TaskStatus(row[1]), row[10:12], row[29:36]
    return TaskFacts(
        task=row[0],
        status=status,
        attempt=row[2],
        token=row[3],
        retries_from=row[4],
        changed_at=row[5],
        due_at=row[6],
        session_id=row[7],
        error=None if row[8] is None else _failure(row[8]),
        timer=None if timer[0] is None else Timer(*timer),
        owner=None if row[12] is None else Session(*row[12:20]),
        lister=None if row[20] is None else Session(*row[20:28]),
        progress=row[28],
        question=None if question[0] is None else _question(question),
        letter=None if row[36] is None else Letter(row[36], row[37]),
        lookups=row[38],
        parked=None if row[39] is None else Parked(*row[39:42]),
        last_error=row[42],
        withheld=row[43],
        listening=None if row[44] is None else Listening(*row[44:47]),
        items=None if row[47] is None else Items(*row[47:51]),
        pool=row[51],
        deadline_at=row[52],
        deadline_timer=None if row[53] is None else Timer(*row[53:55]),
        rounds=row[55],
        child=None if row[56] is None else Child(*row[56:61]),
    )


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""


def _failure(text: str) -> Failure:
    error = msgspec.json.decode(text, type=_Error)
    return Failure(error.code, error.message)


class _Shown(msgspec.Struct):
    approvers: list[str]
    needed: int
    on_expiry: str
    votes: list[Ballot]
    steps_left: int
    next: NextStep | None


def _question(columns: Sequence[Any]) -> Question:
    approval_id, status, text, asked_at, expires_at, decided_at, decided_by = columns
    shown = msgspec.json.decode(text, type=_Shown)
    return Question(
        approval_id, status, shown.approvers, asked_at, expires_at, decided_at, decided_by, shown.needed, shown.votes,
        shown.on_expiry, shown.steps_left, shown.next,
    )  # fmt: skip


# == pools =============================================================================================================
HOLDERS_MAX: Final = 3


async def _read_pools(
    connection: Connection, settings: EngineSettings, plans: Plans, run_id: UUID, tasks: dict[int, TaskFacts]
) -> tuple[dict[int, InLine], dict[str, PoolFacts]]:
    """Where tasks stand in line, and for what; nothing is asked when none does."""
    waiting = {i: t.pool for i, t in tasks.items() if t.status is TaskStatus.WAITING and t.pool is not None}
    if not waiting:
        return {}, {}
    rows = await _fetch(connection, "read_places", run_id=run_id, tasks=list(waiting))
    names = sorted(set(waiting.values()))
    held = await _fetch(connection, "read_holders", namespace=settings.namespace, pools=names, limit=HOLDERS_MAX)
    await plans.load(connection, {version_id for _, _, _, version_id, _ in held})
    holders: dict[str, list[Holder]] = {}
    for pool, of_run, place, version_id, since in held:
        plan = plans.get(version_id)
        name = f"#{place}" if plan is None else plan.name_of(place)
        holders.setdefault(pool, []).append(Holder(of_run, name, since))
    found = {
        name: PoolFacts(slots, None if count is None else (count, seconds), taken, in_line, holders.get(name, []))
        for name, slots, count, seconds, taken, in_line in await _fetch(
            connection, "read_pools", namespace=settings.namespace, pools=names
        )
    }
    return {row[0]: InLine(*row[1:]) for row in rows}, found


async def _read_permit(connection: Connection, run_id: UUID) -> PermitFacts:
    rows = await fetch(connection, PermitFacts, _SQL.text("read_permit"), run_id=run_id, limit=HOLDERS_MAX)
    return rows[0] if rows else PermitFacts()


# == the engine ========================================================================================================
class _Owner(msgspec.Struct):
    owner: str
    at: datetime


async def _read_engine(connection: Connection, settings: EngineSettings, run_id: UUID) -> Engine:
    partition = murmur2(str(run_id).encode(), settings.partitions)
    (row,) = await _fetch(connection, "read_engine", topic=settings.events_topic, partition=partition)
    relay = None if row[0] is None else Relay(row[0], row[1], row[2], row[3], row[4], row[5] or 0, row[6])
    owner = _decoded(row[9], _Owner, None)
    prefix = settings.commands_topic("")
    logs: dict[str, datetime] = _decoded(row[10], dict[str, datetime], {})
    return Engine(
        partition=partition,
        relay=relay,
        ticked_at=row[7],
        passes=_decoded(row[8], dict[str, datetime], {}),
        owner=owner.owner if owner else None,
        taken_at=owner.at if owner else None,
        logs={topic.removeprefix(prefix): since for topic, since in logs.items() if topic.startswith(prefix)},
    )


def _decoded(text: str | None, kind: Any, default: Any) -> Any:
    return default if text is None else msgspec.json.decode(text, type=kind)


async def _count_ahead(
    connection: Connection, plans: Plans, run_id: UUID, tasks: dict[int, TaskFacts]
) -> dict[str, int]:
    """Queue -> commands of older runs in it; empty when no task here waits for a worker."""
    before = max((t.changed_at for t in tasks.values() if t.status is TaskStatus.QUEUED), default=None)
    if before is None:
        return {}
    rows = await _fetch(connection, "count_ahead", run_id=run_id, before=before, limit=OLDER_RUNS_MAX)
    await plans.load(connection, {version_id for version_id, _, _ in rows})
    ahead: dict[str, int] = {}
    for version_id, task, count in rows:
        if (plan := plans.get(version_id)) is not None:
            queue = plan.at(task).queue
            ahead[queue] = ahead.get(queue, 0) + count
    return ahead


async def _fetch(connection: Connection, statement: str, **parameters: Any) -> list[Row]:
    def row(*columns: Any) -> Row:
        return columns

    return await fetch(connection, row, _SQL.text(statement), **parameters)
