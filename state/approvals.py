"""What people do to approvals: they vote, and comment.

Each function runs in the caller's open transaction. It locks the row of the question first, so that votes, the expiry
and an escalation come one after another: the vote that completes the question takes the row out of `waiting`, and only
that one tells the run. The check who may vote is here, and nowhere else.
"""

from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec

from headrace.errors import ConflictError, DefinitionError, NotFoundError
from headrace.input_schema import check_answer
from headrace.standing import Delegated, Person, Standing, check_requester, find_standing
from state.queries.approval import ApprovalRow, get_approval
from state.queries.rows import Connection, fetch_one
from state.requests import request
from state.sql import load
from state.store import Store

_SQL: Final = load("approval")
Source = Literal["api", "cli", "console", "link"]


class Voter(NamedTuple):
    """Who votes, and from where."""

    person: Person
    source: Source = "api"
    address: str = ""


class _Locked(NamedTuple):
    run_id: UUID
    task: int
    token: int
    status: str
    approvers: str
    needed: int
    no_self_approval: bool
    form: str | None
    digest: str
    is_over: bool
    decided_by: str | None


class _Count(NamedTuple):
    approved: int
    votes: str


async def decide_approval(
    connection: Connection,
    store: Store,
    approval_id: UUID,
    outcome: Literal["approved", "rejected"],
    *,
    comment: str,
    voter: Voter,
    form: bytes | None = None,
) -> ApprovalRow:
    """Vote. The first no decides, and so does the yes that completes the number needed.

    form: checked JSON, what was filled in. Raises NotFoundError; ConflictError when it was decided, has expired, nobody
    waits for it any more, or this person has voted; ForbiddenError when it is for others; DefinitionError with what is
    wrong with the form, by path.
    """
    name, ids = voter.person.name, {"approval_id": str(approval_id)}
    locked = await _lock(connection, store, approval_id)
    standing = await _stand(connection, store, approval_id, locked, voter.person)
    if outcome == "approved" or form is not None:
        _check_form(locked, form, is_needed=outcome == "approved")
    filled_in = None if form is None else form.decode()
    voted = await fetch_one(
        connection,
        _first,
        _SQL.text("insert_vote"),
        approval_id=approval_id,
        actor=name,
        voter=standing.voter,
        role=standing.role,
        in_place_of=standing.in_place_of,
        decision="approve" if outcome == "approved" else "reject",
        comment=comment or None,
        form=filled_in,
        digest=locked.digest,
        source=voter.source,
        address=voter.address,
    )
    if voted is None:
        whose = name if standing.voter == name else f"{standing.voter}, or {name} for somebody else,"
        raise ConflictError(f"{whose} has voted already", **ids)
    count = await fetch_one(connection, _Count, _SQL.text("count_votes"), approval_id=approval_id)
    assert count is not None
    if outcome == "rejected" or count.approved >= locked.needed:
        await fetch_one(
            connection,
            _first,
            _SQL.text("settle_approval"),
            approval_id=approval_id,
            status=outcome,
            actor=name,
            comment=comment or None,
            form=filled_in,
        )
        body: dict[str, Any] = {"task": locked.task, "token": locked.token, "outcome": outcome, "comment": comment}
        body["votes"] = msgspec.Raw(count.votes.encode())
        if form is not None:
            body["form"] = msgspec.Raw(form)
        await request(connection, store, str(locked.run_id), "decided", body, name)
    approval = await get_approval(connection, store.settings.namespace, approval_id)
    assert approval is not None
    return approval


async def check_standing(connection: Connection, store: Store, approval_id: UUID, person: Person) -> Standing:
    """By what right they could vote now. Raises as `decide_approval`."""
    return await _stand(connection, store, approval_id, await _lock(connection, store, approval_id), person)


async def comment_approval(
    connection: Connection, store: Store, approval_id: UUID, comment: str, actor: str
) -> ApprovalRow:
    """Say something without deciding. Raises NotFoundError, and ConflictError when it is not open."""
    await _lock(connection, store, approval_id)
    await note(connection, approval_id, "commented", actor, {"comment": comment})
    approval = await get_approval(connection, store.settings.namespace, approval_id)
    assert approval is not None
    return approval


async def note(connection: Connection, approval_id: UUID, kind: str, actor: str, detail: dict[str, Any]) -> None:
    """Add a line to the history of a question."""
    given = {"approval_id": approval_id, "kind": kind, "actor": actor, "detail": msgspec.json.encode(detail).decode()}
    await connection.execute(_SQL.text("insert_approval_history"), given)


async def _lock(connection: Connection, store: Store, approval_id: UUID) -> _Locked:
    ids = {"approval_id": str(approval_id)}
    locked = await fetch_one(
        connection,
        _Locked,
        _SQL.text("lock_approval"),
        approval_id=approval_id,
        namespace=store.settings.namespace,
    )
    if locked is None:
        raise NotFoundError(f"there is no approval {approval_id}", **ids)
    if locked.status != "waiting" or locked.is_over:
        raise ConflictError(_why_undecidable(locked), status=locked.status, **ids)
    return locked


async def check_maker(connection: Connection, store: Store, approval_id: UUID, person: Person) -> None:
    """Whether they may hand out addresses to decide by: not for a question that they may not decide because they
    started the run. Raises as `decide_approval`."""
    locked = await _lock(connection, store, approval_id)
    if locked.no_self_approval:
        electorate = await _read_electorate(connection, store, locked, person)
        check_requester(person, electorate.requester, approval_id=str(approval_id))


async def _stand(connection: Connection, store: Store, approval_id: UUID, locked: _Locked, person: Person) -> Standing:
    found = await _read_electorate(connection, store, locked, person)
    approvers: list[str] = msgspec.json.decode(locked.approvers)
    requester = found.requester if locked.no_self_approval else None
    delegated = [Delegated(*each) for each in zip(found.delegated, found.made_by, strict=True)]
    return find_standing(approvers, person, delegated, requester=requester, approval_id=str(approval_id))


async def _read_electorate(connection: Connection, store: Store, locked: _Locked, person: Person) -> "_Electorate":
    found = await fetch_one(
        connection,
        _Electorate,
        _SQL.text("read_electorate"),
        run_id=locked.run_id,
        namespace=store.settings.namespace,
        actor=person.name,
    )
    assert found is not None
    return found


class _Electorate(NamedTuple):
    requester: str | None
    delegated: list[str]
    made_by: list[str]


def _first(value: Any) -> Any:
    return value


def _check_form(locked: _Locked, form: bytes | None, *, is_needed: bool) -> None:
    if locked.form is None:
        if form is not None:
            raise ConflictError("this approval has no form to fill in")
        return
    if form is None and not is_needed:
        return
    if faults := check_answer(locked.form, b"{}" if form is None else form):
        raise DefinitionError(faults)


def _why_undecidable(locked: _Locked) -> str:
    match locked.status:
        case "waiting":
            return "the approval has expired"
        case "cancelled":
            return "nobody waits for this approval any more"
        case status:
            return f"the approval was {status} already" + (f" by {locked.decided_by}" if locked.decided_by else "")
