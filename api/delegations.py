"""Delegations: who decides in whose place, and until when."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer, reply
from api.bodies import read, read_body
from api.idempotency import perform
from api.identity import parse_id, person
from api.openapi import answers, body
from api.schemas.approval import Delegation, DelegationBody, DelegationList
from api.wiring import Wired
from state.delegations import DelegationRow, delegate, end_delegation, list_delegations
from state.queries.rows import Connection

router = APIRouter(tags=["delegations"])
_LISTED_MAX = 500


@router.get("/delegations", responses=answers({200: DelegationList}))
async def list_all(wired: Wired) -> Response:
    """Those that are not over, newest first."""
    async with wired.database.reading() as connection:
        rows = await list_delegations(connection, wired.namespace, limit=_LISTED_MAX)
    return reply(DelegationList([_delegation(row) for row in rows]))


@router.post(
    "/delegations",
    responses=answers({201: Delegation}, 408, 409, 413, 415),
    openapi_extra=body(DelegationBody),
)
async def make(request: Request, wired: Wired) -> Response:
    """Let another decide in your place, or by a role of yours, for a while. They cannot pass it on."""
    asked, content = await read(request, DelegationBody)
    who = person(request)

    async def act(connection: Connection) -> Answer:
        row = await delegate(
            connection,
            wired.namespace,
            from_name=asked.from_name,
            to_name=asked.to,
            starts_at=asked.starts_at,
            ends_at=asked.ends_at,
            reason=asked.reason,
            by=who,
        )
        return answer(_delegation(row), 201)

    return await perform(wired, request, content, act)


@router.post(
    "/delegations/{delegation_id}/end",
    responses=answers({200: Delegation}, 404, 408, 409, 413),
    openapi_extra=body(None, required=False),
)
async def end(delegation_id: str, request: Request, wired: Wired) -> Response:
    """End it before its time. What was decided by it stands."""
    id_, who = parse_id(delegation_id, "delegation"), person(request)
    content = await read_body(request)

    async def act(connection: Connection) -> Answer:
        return answer(_delegation(await end_delegation(connection, wired.namespace, id_, who)))

    return await perform(wired, request, content, act)


def _delegation(row: DelegationRow) -> Delegation:
    return Delegation(
        str(row.delegation_id), row.from_name, row.to_name, row.starts_at, row.ends_at, row.reason, row.made_by,
        row.made_at, row.ended_by,
    )  # fmt: skip
