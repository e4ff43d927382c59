"""Who may answer a question, and as what. Pure: the engine and the harness ask the same.

An approver is a name, or a role written `role:finance`. A delegate stands in for an approver, and never for another
delegate. Everybody has one vote, and so has everybody who is stood in for: a vote in place of Ada is Ada's.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.approval import ROLE
from headrace.errors import ForbiddenError


class Person(NamedTuple):
    """Who acts, as far as anybody knows."""

    name: str
    roles: frozenset[str] = frozenset()


class Standing(NamedTuple):
    """By what right somebody votes."""

    voter: str
    """Whose vote it is."""
    role: str | None = None
    in_place_of: str | None = None
    """The approver, a name or a role, that a delegate stands in for."""


class Delegated(NamedTuple):
    """A right to decide in another's place."""

    approver: str
    """A name, or a role as `role:finance`."""
    made_by: str
    """Who gave it: of a role, somebody who has it."""


def find_standing(
    approvers: Sequence[str],
    person: Person,
    delegated: Sequence[Delegated] = (),
    *,
    requester: str | None = None,
    **ids: Any,
) -> Standing:
    """By what right they vote: their own name first, then a role, then a delegation.

    approvers: empty: anybody may. delegated: what has been to them, now. requester: who started the run, when that
    person may not approve: then nobody may in their place either, nor by a role that they gave. Raises ForbiddenError.
    """
    check_requester(person, requester, **ids)
    if not approvers or person.name in approvers:
        return Standing(person.name)
    for approver in approvers:
        if approver.startswith(ROLE) and approver.removeprefix(ROLE) in person.roles:
            return Standing(person.name, role=approver.removeprefix(ROLE))
    delegators = {each.approver for each in delegated if requester is None or each.made_by != requester}
    for approver in approvers:
        if approver in delegators:
            is_role = approver.startswith(ROLE)
            return Standing(person.name if is_role else approver, approver.removeprefix(ROLE) if is_role else None,
                            approver)  # fmt: skip
    if requester is not None and any(each.made_by == requester and each.approver in approvers for each in delegated):
        why = f"{requester} started the run, and nobody may decide this question in place of {requester}"
        raise ForbiddenError(why, **ids)
    raise ForbiddenError(f"{person.name} is not among those who may decide: {', '.join(approvers)}", **ids)


def check_requester(person: Person, requester: str | None, **ids: Any) -> None:
    """Nobody approves what they asked for. Raises ForbiddenError."""
    if requester and person.name == requester:
        raise ForbiddenError(f"{person.name} started the run, and may not decide this question of it", **ids)
