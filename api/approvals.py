"""Approvals: questions to people."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import Answer, answer, raw, reply
from api.bodies import read
from api.idempotency import perform
from api.identity import actor, parse_id
from api.openapi import answers, body
from api.paging import ByInstant, Limit, PageToken, cut, parse
from api.schemas import Approval, ApprovalPage, CommentBody
from api.wiring import Wired, Wiring
from headrace.errors import NotFoundError
from state.decisions import decide_approval
from state.queries.approval import ApprovalRow, get_approval, list_approvals
from state.queries.rows import AT_MAX, ID_MAX, Connection

router = APIRouter(tags=["approvals"])

Outcome = Literal["approved", "rejected"]


class ApprovalFilter(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    ALL = "all"


@router.get("/approvals", responses=answers({200: ApprovalPage}))
async def list_all(
    wired: Wired,
    status: Annotated[ApprovalFilter, Query()] = ApprovalFilter.WAITING,
    limit: Limit = 50,
    page: PageToken = None,
) -> Response:
    """Approvals, newest first; those that wait, unless `status` says otherwise."""
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    wanted = None if status is ApprovalFilter.ALL else status.value
    async with wired.database.reading() as connection:
        rows = await list_approvals(connection, wired.namespace, limit=limit + 1, before=before, status=wanted)
        kept, after = cut(rows, limit, lambda row: (row.asked_at, row.approval_id))
        return reply(ApprovalPage(await _named(wired, connection, kept), after))


@router.get("/approvals/{approval_id}", responses=answers({200: Approval}, 404))
async def get(approval_id: str, wired: Wired) -> Response:
    """One approval."""
    id_ = parse_id(approval_id, "approval")
    async with wired.database.reading() as connection:
        row = await get_approval(connection, wired.namespace, id_)
        if row is None:
            raise NotFoundError(f"there is no approval {id_}", approval_id=str(id_))
        return reply((await _named(wired, connection, [row]))[0])


@router.post(
    "/approvals/{approval_id}/approve",
    responses=answers({200: Approval}, 404, 408, 409, 413, 415),
    openapi_extra=body(CommentBody, required=False),
)
async def approve(approval_id: str, request: Request, wired: Wired) -> Response:
    """Say yes. Once decided it stays so: a second decision is refused with 409."""
    return await _decide(approval_id, request, wired, "approved")


@router.post(
    "/approvals/{approval_id}/reject",
    responses=answers({200: Approval}, 404, 408, 409, 413, 415),
    openapi_extra=body(CommentBody, required=False),
)
async def reject(approval_id: str, request: Request, wired: Wired) -> Response:
    """Say no. Once decided it stays so: a second decision is refused with 409."""
    return await _decide(approval_id, request, wired, "rejected")


async def _decide(approval_id: str, request: Request, wiring: Wiring, outcome: Outcome) -> Response:
    id_ = parse_id(approval_id, "approval")
    asked, content = await read(request, CommentBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        return answer(await decide(wiring, connection, id_, outcome, asked.comment, who))

    return await perform(wiring, request, content, act)


async def decide(
    wiring: Wiring, connection: Connection, approval_id: UUID, outcome: Outcome, comment: str, who: str
) -> Approval:
    """Decide in the open transaction. Raises NotFoundError or ConflictError."""
    row = await decide_approval(connection, wiring.store, approval_id, outcome, comment=comment, actor=who)
    return (await _named(wiring, connection, [row]))[0]


async def _named(wiring: Wiring, connection: Connection, rows: Sequence[ApprovalRow]) -> list[Approval]:
    plans = await wiring.load_plans(connection, {row.version_id for row in rows})
    return [_approval(row, plans[row.version_id].tasks[row.task].name) for row in rows]


def _approval(row: ApprovalRow, task: str) -> Approval:
    return Approval(
        str(row.approval_id),
        str(row.run_id),
        row.workflow,
        task,
        f"{row.run_id}.{task}",
        row.title,
        raw(row.approvers),
        row.status,
        row.asked_at,
        row.expires_at,
        row.decided_at,
        row.decided_by,
        row.comment,
    )
