"""Runs: start, read, cancel, release."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
import psycopg
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import Answer, answer, raw, reply
from api.bodies import check_labels, check_payload, read
from api.filters import FilterText, OnlyKnown, page_key, page_token
from api.idempotency import perform
from api.identity import actor, address, check_name, parse_id, parse_run_id_given, principal_of, traceparent
from api.openapi import answers, body
from api.paging import ByHistory, ById, Limit, PageToken, parse, token
from api.pinned import full_counts, last_tasks
from api.schemas.run import HistoryItem, HistoryPage, Run, RunPage, StartBody
from api.schemas.wire import Accepted, EmptyBody, ReasonBody
from api.wiring import Wired, Wiring
from headrace.errors import ConflictError, NotFoundError
from headrace.filter import Filter
from headrace.filter import parse as parse_filter
from headrace.machine import Plan, RunStatus, TaskStatus
from state.decisions import cancel_run, release_run
from state.queries.rows import ID_MAX, Connection
from state.queries.run import (
    HistoryRow,
    OutputRow,
    RunRow,
    count_tasks,
    get_run,
    list_acts,
    list_history,
    list_outputs,
    read_runs,
)
from state.queries.search import find_runs
from state.starts import start_run
from state.store import StoredRun
from state.workflows import list_versions

OUTPUTS_MAX: Final = 20_000
"""Outputs that a page of runs looks for; a page of wide runs ends early."""

router = APIRouter(tags=["runs"])

ByFilter = Annotated[Literal["people"] | None, Query(description="Only what somebody did")]
HistoryOrder = Annotated[Literal["oldest", "newest"], Query(description="Which comes first")]
StatusFilter = Annotated[RunStatus | None, Query(description="Short for `status:` in the filter")]
WorkflowFilter = Annotated[
    str | None, Query(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,99}$", description="Short for `workflow:` in the filter")
]


# == start =============================================================================================================
@router.post(
    "/workflows/{workflow}/runs",
    status_code=201,
    responses=answers({201: Run, 200: Run}, 404, 408, 409, 413, 415, 429),
    openapi_extra=body(StartBody, required=False),
)
async def start(workflow: str, request: Request, wired: Wired) -> Response:
    """Start a run.

    With `key` one key makes one run for ever, whoever sends it: 201 for the first, 200 with the same run afterwards,
    whatever its status is by then; 409 when the retention has removed it. An `Idempotency-Key` gives the first answer
    again. 429 when too much is under way.
    """
    check_name(workflow, "workflow")
    asked, content = await read(request, StartBody)
    given = b"{}" if isinstance(asked.input, msgspec.UnsetType) else check_payload(asked.input, "input")
    who, principal, trace = actor(request), principal_of(request), traceparent(request)
    run_id = None if asked.run_id is None else parse_run_id_given(asked.run_id)
    check_labels(asked.labels)

    async def act(connection: Connection) -> Answer:
        await wired.backlog.admit(connection)
        plan = await wired.plans.latest(connection, wired.namespace, workflow, asked.version)
        await wired.input_schemas.check(connection, plan.version_id, given)
        try:
            started, begun = await start_run(
                connection,
                wired.store,
                plan,
                given,
                namespace=wired.namespace,
                key=trigger_key(asked.key, run_id),
                run_id=run_id,
                traceparent=trace,
                actor=who,
                priority=asked.priority,
                labels=asked.labels,
                detail=None if principal.is_local else {"address": address(request)},
            )
        except psycopg.errors.UniqueViolation as error:
            raise ConflictError(f"there is a run {run_id} already", run_id=run_id) from error
        if begun is not None:
            wired.metrics.starts.labels(plan.name).inc()
            return answer(await _read_begun(wired, connection, begun), 201)
        row = await get_run(connection, wired.namespace, UUID(started))
        if row is None:
            raise ConflictError(f"the key started run {started}, which was removed after its end", run_id=started)
        return answer((await _complete(wired, connection, [row]))[0], 200)

    return await perform(wired, request, content, act, audited=False)


def trigger_key(key: str | None, run_id: str | None) -> str | None:
    """The trigger identity of a start by API. A run id that the caller chose is one, too: sent twice, it is the same
    start.
    """
    if key is not None:
        return f"api:{key}"
    return None if run_id is None else f"run:{run_id}"


# == read ==============================================================================================================
@router.get("/runs", responses=answers({200: RunPage}), dependencies=[OnlyKnown])
async def list_all(
    wired: Wired,
    filter: FilterText = "",
    status: StatusFilter = None,
    workflow: WorkflowFilter = None,
    limit: Limit = 50,
    page: PageToken = None,
) -> Response:
    """Runs of all workflows, newest first."""
    wanted = _wanted(filter, status, workflow)
    async with wired.database.reading() as connection:
        return reply(await _page(wired, connection, wanted, limit, page))


@router.get("/workflows/{workflow}/runs", responses=answers({200: RunPage}, 404), dependencies=[OnlyKnown])
async def list_of_workflow(
    workflow: str,
    wired: Wired,
    filter: FilterText = "",
    status: StatusFilter = None,
    limit: Limit = 50,
    page: PageToken = None,
) -> Response:
    """Runs of one workflow, newest first."""
    wanted = _wanted(filter, status, check_name(workflow, "workflow"))
    async with wired.database.reading() as connection:
        if not await list_versions(connection, wired.namespace, workflow):
            raise NotFoundError(f"there is no workflow {workflow}", workflow=workflow)
        return reply(await _page(wired, connection, wanted, limit, page))


def _wanted(filter: str, status: RunStatus | None, workflow: str | None) -> Filter:
    wanted = parse_filter("runs", filter)
    wanted = wanted if workflow is None else wanted.and_("workflow", workflow)
    return wanted if status is None else wanted.and_("status", status)


@router.get("/runs/{run_id}", responses=answers({200: Run}, 404))
async def get(run_id: str, wired: Wired) -> Response:
    """One run."""
    async with wired.database.reading() as connection:
        return reply(await read_run(wired, connection, parse_id(run_id, "run")))


@router.get("/runs/{run_id}/history", responses=answers({200: HistoryPage}, 404))
async def history(
    run_id: str,
    wired: Wired,
    by: ByFilter = None,
    order: HistoryOrder = "oldest",
    limit: Limit = 50,
    page: PageToken = None,
) -> Response:
    """All that ever moved the run, in order and without a gap in `row_version`; with `by=people` only what somebody
    did, the oldest first.
    """
    after = None if page is None else parse(page, ByHistory)
    async with wired.database.reading() as connection:
        row = await find_run(wired, connection, parse_id(run_id, "run"))
        plan = await wired.plan(connection, row.version_id)
        if by is None:
            is_newest_first = order == "newest"
            rows = await list_history(
                connection, row.run_id, after=after, is_newest_first=is_newest_first, limit=limit + 1
            )
        else:
            rows = await list_acts(connection, row.run_id, after=after[0] if after else 0, limit=limit + 1)
    items = [history_item(plan, item) for item in rows[:limit]]
    return reply(HistoryPage(items, token(*rows[limit - 1].key) if len(rows) > limit else None))


async def find_run(wiring: Wiring, connection: Connection, run_id: UUID) -> RunRow:
    """Raises NotFoundError."""
    row = await get_run(connection, wiring.namespace, run_id)
    if row is None:
        raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
    return row


async def read_run(wiring: Wiring, connection: Connection, run_id: UUID) -> Run:
    """Raises NotFoundError."""
    return (await _complete(wiring, connection, [await find_run(wiring, connection, run_id)]))[0]


async def _read_begun(wiring: Wiring, connection: Connection, run: StoredRun) -> Run:
    """A run that this transaction has begun: how its tasks stand is known, and there is no output yet."""
    row = await find_run(wiring, connection, UUID(bytes=run.run_id))
    if run.counts.get(TaskStatus.COMPLETED):
        return (await _complete(wiring, connection, [row]))[0]
    counts = {status.value: tasks for status, tasks in run.counts.items()}
    return _run(row, full_counts(run.plan, counts), {})


async def _page(wiring: Wiring, connection: Connection, wanted: Filter, limit: int, page: str | None) -> RunPage:
    before = ID_MAX if page is None else page_key(page, wanted, ById).id
    found = await find_runs(
        connection,
        wiring.namespace,
        wanted,
        before=before,
        limit=limit + 1,
        stuck_seconds=wiring.settings.api_stuck_seconds,
    )
    runs = await _complete(wiring, connection, await read_runs(connection, wiring.namespace, found.ids[:limit]))
    if len(runs) < len(found.ids):  # as many as fit on a page, or as large payloads left room for
        return RunPage(runs, page_token(wanted, runs[-1].run_id), None)
    if found.bound is not None:
        return RunPage(runs, page_token(wanted, found.bound.run_id), found.bound.at)
    return RunPage(runs, None, None)


async def _complete(wiring: Wiring, connection: Connection, rows: Sequence[RunRow]) -> list[Run]:
    """Add to rows what stands in other tables. As many as payloads of a reasonable size in all; at least one of any."""
    plans = await wiring.load_plans(connection, {row.version_id for row in rows})
    counted: dict[UUID, dict[str, int]] = defaultdict(dict)
    for count in await count_tasks(connection, [row.run_id for row in rows]):
        counted[count.run_id][count.status] = count.tasks
    rows, outputs = await _outputs(connection, rows, plans)
    return [
        _run(
            row,
            full_counts(plans[row.version_id], counted[row.run_id]),
            {plans[row.version_id].tasks[found.task].name: raw(found.output) for found in outputs[row.run_id]},
        )
        for row in rows
    ]


def _run(row: RunRow, tasks: dict[str, int], outputs: dict[str, msgspec.Raw]) -> Run:
    return Run(
        str(row.run_id),
        row.workflow,
        row.version,
        RunStatus(row.status),
        raw(row.input),
        outputs,
        row.trigger,
        row.row_version,
        row.created_at,
        row.updated_at,
        row.finished_at,
        tasks,
        row.namespace,
        raw(row.output),
        raw(row.output_error),
        row.deadline_at,
        row.priority,
        row.labels or {},
    )


async def _outputs(
    connection: Connection, rows: Sequence[RunRow], plans: dict[int, Plan]
) -> tuple[Sequence[RunRow], dict[UUID, list[OutputRow]]]:
    """Outputs by run, and the rows for which they are whole: at least the first."""
    asked: list[tuple[UUID, int]] = []
    whole = 0
    for row in rows:
        last = last_tasks(plans[row.version_id])
        if whole and len(asked) + len(last) > OUTPUTS_MAX:
            break
        asked += [(row.run_id, task) for task in last]
        whole += 1
    rows = rows[:whole]
    found = await list_outputs(connection, asked, bounded=len(rows) > 1)
    if found and found[0].total > len(found):  # cut within the run of the last one
        broken = next(index for index, row in enumerate(rows) if row.run_id == found[-1].run_id)
        rows = rows[: max(broken, 1)]
        if broken == 0:
            found = await list_outputs(connection, [pair for pair in asked if pair[0] == rows[0].run_id])
    outputs: dict[UUID, list[OutputRow]] = defaultdict(list)
    for output in found:
        outputs[output.run_id].append(output)
    return rows, outputs


def history_item(plan: Plan, row: HistoryRow) -> HistoryItem:
    name = None if row.task is None else plan.name_of(row.task)
    return HistoryItem(row.row_version, row.at, row.kind, name, row.token, row.actor, raw(row.detail))


# == cancel ============================================================================================================
@router.post(
    "/runs/{run_id}/cancel",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(ReasonBody, required=False),
)
async def cancel(run_id: str, request: Request, wired: Wired) -> Response:
    """Ask that a run end now. It survives any crash once answered; bodies that run are told to stop."""
    id_ = parse_id(run_id, "run")
    asked, content = await read(request, ReasonBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await cancel_run(connection, wired.store, id_, reason=asked.reason, actor=who)
        return answer(Accepted(str(id_), accepted=True), 202)

    return await perform(wired, request, content, act)


@router.post(
    "/runs/{run_id}/release",
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(EmptyBody, required=False),
)
async def release(run_id: str, request: Request, wired: Wired) -> Response:
    """Let a run go on that stands aside because one of its events could not be decided."""
    id_ = parse_id(run_id, "run")
    _, content = await read(request, EmptyBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await release_run(connection, wired.store, id_, actor=who)
        return answer(Accepted(str(id_), accepted=True), 202)

    return await perform(wired, request, content, act)
