"""A question to people as a harness has it: what the rows of an approval are to the engine, without a database."""

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors import ConflictError, DefinitionError
from headrace.input_schema import check_answer
from headrace.instant import format_instant, from_microseconds
from headrace.machine import Ask, Decided
from headrace.machine.plan import ApprovalPlan
from headrace.standing import Delegated, Person, find_standing


class Question:
    """One question that is open. Whoever decides it takes it away."""

    def __init__(self, spec: ApprovalPlan, asked: Ask, at: int, requester: str) -> None:
        self._spec, self._asked = spec, asked
        self.token = asked.token
        self.title = spec.title if asked.title is None else asked.title
        self.context: Any = None if asked.context is None else msgspec.json.decode(asked.context)
        self.approvers = list(spec.approvers)
        self.expires_at = None if spec.expires is None else at + spec.expires
        self.votes: list[dict[str, Any]] = []
        self._voters: set[str] = set()
        self._requester = requester if spec.no_self_approval else None
        self._steps = dict(enumerate(spec.steps))
        """Those of the chain that have not been reached."""

    def vote(
        self, outcome: str, person: Person, delegated: Sequence[Delegated], comment: str, form: bytes | None, at: int
    ) -> Decided | None:
        """The decision, if this vote completes it. Raises ForbiddenError, ConflictError and DefinitionError, as the
        engine does."""
        standing = find_standing(self.approvers, person, delegated, requester=self._requester)
        self._check_form(outcome, form)
        if {person.name, standing.voter} & self._voters:
            raise ConflictError(f"{standing.voter} has voted already")
        self._voters |= {person.name, standing.voter}
        vote = {"by": person.name, "role": standing.role, "in_place_of": standing.in_place_of}
        vote |= {"decision": "approve" if outcome == "approved" else "reject", "comment": comment or None}
        self.votes.append({**vote, "at": format_instant(from_microseconds(at))})
        approved = sum(each["decision"] == "approve" for each in self.votes)
        if outcome == "approved" and approved < self._spec.needed:
            return None
        return self._decided(outcome, person.name, comment, b"null" if form is None else form)

    def expire(self, at: int) -> Decided | None:
        """Its time is over: the decision, or nothing when somebody else is asked then."""
        if self._spec.on_expiry == "escalate" and self._steps:
            self.escalate(min(self._steps))
            self.expires_at = at + (self._spec.expires or 0)
            return None
        outcome = {"approve": "approved", "reject": "rejected"}.get(self._spec.on_expiry, "expired")
        return self._decided(outcome, "expiry", "nobody answered in time", b"null")

    def escalate(self, step: int) -> bool:
        """Ask those of this step besides; once."""
        reached = self._steps.pop(step, None)
        if reached is not None:
            self.approvers += reached.to
        return reached is not None

    def _decided(self, outcome: str, by: str, comment: str, form: bytes) -> Decided:
        votes = msgspec.json.encode(self.votes)
        return Decided(self._asked.task, self.token, outcome, by, comment, votes, form)

    def _check_form(self, outcome: str, form: bytes | None) -> None:
        schema = self._spec.form
        if schema is None:
            if form is not None:
                raise ConflictError("this approval has no form to fill in")
        elif (form is not None or outcome == "approved") and (faults := check_answer(schema, form or b"{}")):
            raise DefinitionError(faults)
