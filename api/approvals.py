"""Approvals: questions to people."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import Answer, answer, raw, reply
from api.bodies import check_payload, read
from api.errors import FaultyRequest, faulty
from api.idempotency import perform
from api.identity import actor, parse_id, person, voter
from api.openapi import answers, body
from api.paging import ByInstant, Limit, PageToken, cut, parse
from api.schemas.approval import (
    Approval,
    ApprovalDetail,
    ApprovalEntry,
    ApprovalPage,
    ApprovalTimer,
    CommentBody,
    Vote,
    VoteBody,
)
from api.schemas.problem import Fault
from api.wiring import Wired, Wiring
from headrace.errors import DefinitionError, NotFoundError
from state.approvals import Voter, comment_approval, decide_approval
from state.queries.approval import (
    ApprovalRow,
    get_approval,
    list_approval_history,
    list_approval_timers,
    list_approvals,
    list_votes,
)
from state.queries.rows import AT_MAX, ID_MAX, Connection

FORM_BYTES_MAX: Final = 64 * 1024
"""It travels with the decision, and becomes the output of the task."""
router = APIRouter(tags=["approvals"])

Outcome = Literal["approved", "rejected"]


class ApprovalFilter(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    ALL = "all"


class For(StrEnum):
    ME = "me"


@router.get("/approvals", responses=answers({200: ApprovalPage}))
async def list_all(
    request: Request,
    wired: Wired,
    status: Annotated[ApprovalFilter, Query()] = ApprovalFilter.WAITING,
    for_: Annotated[For | None, Query(alias="for", description="Only those that wait for whoever asks")] = None,
    limit: Limit = 50,
    page: PageToken = None,
) -> Response:
    """Approvals, newest first; those that wait, unless `status` says otherwise. With `for=me` those that wait and that
    you may decide and have not: by your name, a role, or in place of somebody."""
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    wanted = None if status is ApprovalFilter.ALL else status.value
    who = None if for_ is None else person(request)
    if who is not None and status is not ApprovalFilter.WAITING:
        raise faulty("for", "goes with those that wait: leave `status` out")
    async with wired.database.reading() as connection:
        rows = await list_approvals(
            connection, wired.namespace, limit=limit + 1, before=before, status=wanted,
            person=who,
        )  # fmt: skip
        kept, after = cut(rows, limit, lambda row: (row.asked_at, row.approval_id))
        return reply(ApprovalPage(await _named(wired, connection, kept), after))


@router.get("/approvals/{approval_id}", responses=answers({200: ApprovalDetail}, 404))
async def get(approval_id: str, wired: Wired) -> Response:
    """One approval, with its record: who said what, by what right, when and from where; and all else that happened to
    it."""
    id_ = parse_id(approval_id, "approval")
    async with wired.database.reading() as connection:
        row = await get_approval(connection, wired.namespace, id_)
        if row is None:
            raise NotFoundError(f"there is no approval {id_}", approval_id=str(id_))
        (approval,) = await _named(wired, connection, [row])
        votes = await list_votes(connection, id_)
        timers = await list_approval_timers(connection, id_)
        history = await list_approval_history(connection, id_)
    return reply(
        ApprovalDetail(
            **msgspec.structs.asdict(approval),
            record=[
                Vote(
                    vote.actor, vote.voter, vote.role, vote.in_place_of, vote.decision, vote.comment, raw(vote.form),
                    vote.digest, vote.source, vote.address, vote.at,
                )
                for vote in votes
            ],
            timers=[
                ApprovalTimer(timer.kind, timer.position + 1, raw(timer.targets), timer.due_at, timer.fired_at)
                for timer in timers
            ],
            history=[ApprovalEntry(entry.at, entry.kind, entry.actor, raw(entry.detail)) for entry in history],
        )
    )  # fmt: skip


@router.post(
    "/approvals/{approval_id}/approve",
    responses=answers({200: Approval}, 404, 408, 409, 413, 415),
    openapi_extra=body(VoteBody, required=False),
)
async def approve(approval_id: str, request: Request, wired: Wired) -> Response:
    """Say yes. It is approved once as many as are needed have; then it stays so: a decision that comes later, or twice
    from one person, is refused with 409."""
    return await _decide(approval_id, request, wired, "approved")


@router.post(
    "/approvals/{approval_id}/reject",
    responses=answers({200: Approval}, 404, 408, 409, 413, 415),
    openapi_extra=body(VoteBody, required=False),
)
async def reject(approval_id: str, request: Request, wired: Wired) -> Response:
    """Say no, which decides. Then it stays so: a decision that comes later is refused with 409."""
    return await _decide(approval_id, request, wired, "rejected")


@router.post(
    "/approvals/{approval_id}/comments",
    responses=answers({200: Approval}, 404, 408, 409, 413, 415),
    openapi_extra=body(CommentBody),
)
async def comment(approval_id: str, request: Request, wired: Wired) -> Response:
    """Say something without deciding."""
    id_ = parse_id(approval_id, "approval")
    asked, content = await read(request, CommentBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        row = await comment_approval(connection, wired.store, id_, asked.comment, who)
        return answer((await _named(wired, connection, [row]))[0])

    return await perform(wired, request, content, act)


async def _decide(approval_id: str, request: Request, wiring: Wiring, outcome: Outcome) -> Response:
    id_ = parse_id(approval_id, "approval")
    asked, content = await read(request, VoteBody)
    who, form = voter(request), filled_in(asked.form)

    async def act(connection: Connection) -> Answer:
        return answer(await decide(wiring, connection, id_, outcome, asked.comment, form, who))

    return await perform(wiring, request, content, act)


def filled_in(form: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    """What came with a decision, as checked JSON. Raises FaultyRequest."""
    if form is msgspec.UNSET:
        return None
    given = check_payload(form, "form")
    if len(given) > FORM_BYTES_MAX:
        raise faulty("form", f"may have {FORM_BYTES_MAX} bytes")
    return given


async def decide(
    wiring: Wiring,
    connection: Connection,
    approval_id: UUID,
    outcome: Outcome,
    comment: str,
    form: bytes | None,
    who: Voter,
) -> Approval:
    """Decide in the open transaction. Raises NotFoundError, ConflictError, ForbiddenError; FaultyRequest with what is
    wrong with the form, by path."""
    try:
        row = await decide_approval(
            connection, wiring.store, approval_id, outcome, comment=comment, voter=who, form=form
        )
    except DefinitionError as error:
        faults = [Fault(fault.path, fault.message) for fault in error.faults]
        raise FaultyRequest(f"the form is filled in wrongly: {error.message}", faults) from None
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
        raw(row.context),
        raw(row.form),
        row.digest,
        row.needed,
        row.no_self_approval,
        row.on_expiry,
        raw(row.answer),
        raw(row.votes),
    )
