"""Approvals, their votes, links and delegations."""

from typing import Annotated, Literal

import msgspec

from api.schemas.wire import Instant, Name, Text


class DecisionBody(msgspec.Struct, forbid_unknown_fields=True):
    decision: Literal["approve", "reject"]
    comment: Text = ""
    form: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What was filled in, where the approval has a form."""


class VoteBody(msgspec.Struct, forbid_unknown_fields=True):
    comment: Text = ""
    form: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What was filled in, where the approval has a form."""


class CommentBody(msgspec.Struct, forbid_unknown_fields=True):
    comment: Annotated[Text, msgspec.Meta(min_length=1)]


class LinkBody(msgspec.Struct, forbid_unknown_fields=True, rename={"name": "for"}):
    name: Name
    """Who decides by it."""
    role: Name | None = None
    """By which role, where they may not by their name."""
    expires_in: Annotated[float, msgspec.Meta(gt=0, le=30 * 86_400)] = 3 * 86_400.0
    """Seconds."""


class Link(msgspec.Struct):
    url: str
    """GET shows the question, POST decides it, once."""
    expires_at: Instant


class DelegationBody(msgspec.Struct, forbid_unknown_fields=True, rename={"from_name": "from"}):
    from_name: Name
    """Your name, or a role of yours as `role:finance`."""
    to: Name
    ends_at: Instant
    starts_at: Instant | None = None
    """null: from now on."""
    reason: Text = ""


class Delegation(msgspec.Struct, rename={"from_name": "from"}):
    delegation_id: str
    from_name: str
    to: str
    starts_at: Instant
    ends_at: Instant
    reason: str
    made_by: str
    made_at: Instant
    ended_by: str | None
    """Who ended it before its time."""


class DelegationList(msgspec.Struct):
    items: list[Delegation]


class Approval(msgspec.Struct):
    approval_id: str
    run_id: str
    workflow: str
    task: str
    task_id: str
    title: str
    approvers: msgspec.Raw
    """List of names, and of roles as `role:finance`; empty: whoever may approve at all."""
    status: str
    """waiting, approved, rejected, expired or cancelled"""
    asked_at: Instant
    expires_at: Instant | None
    decided_at: Instant | None
    decided_by: str | None
    comment: str | None
    context: msgspec.Raw
    """What people are shown besides the title, or null."""
    form: msgspec.Raw
    """JSON Schema of the answer that comes with a yes, or null."""
    digest: str
    """SHA-256 of what is shown: of the JSON `{"title":…,"context":…,"form":…}` without spaces."""
    needed: int
    """Yeses that it takes; the first no is enough."""
    no_self_approval: bool
    on_expiry: str
    """fail, approve, reject or escalate"""
    answer: msgspec.Raw
    """What the last vote filled in, or null."""
    votes: msgspec.Raw
    """List of {by, role, in_place_of, decision, comment, at}, in their order."""


class Vote(msgspec.Struct):
    """One decision, as it is on record."""

    by: str
    voter: str
    """Whose vote it is: of whoever gave it, or of the person in whose place."""
    role: str | None
    in_place_of: str | None
    decision: str
    """approve or reject"""
    comment: str | None
    form: msgspec.Raw
    digest: str
    """Of what was shown."""
    source: str
    """api, cli, console or link"""
    address: str
    at: Instant


class ApprovalTimer(msgspec.Struct):
    """A reminder, or a step of the escalation."""

    kind: str
    """remind or escalate"""
    number: int
    to: msgspec.Raw
    """Who is asked besides, or null."""
    due_at: Instant | None
    """null: when the question expires."""
    fired_at: Instant | None


class ApprovalEntry(msgspec.Struct):
    """Something else that happened to it."""

    at: Instant
    kind: str
    """commented, reminded, escalated or linked"""
    actor: str
    detail: msgspec.Raw


class ApprovalDetail(Approval):
    record: list[Vote]
    timers: list[ApprovalTimer]
    history: list[ApprovalEntry]


class ApprovalPage(msgspec.Struct):
    items: list[Approval]
    next: str | None
