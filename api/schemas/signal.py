"""Signals, to a run and to whoever waits."""

from typing import Literal

import msgspec

from api.schemas.wire import Instant, Name, WorkflowName


class SignalBody(msgspec.Struct, forbid_unknown_fields=True):
    name: WorkflowName
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Any JSON."""
    key: Name | None = None
    """Only for a task that waits for this key; any that waits for the name, when left out."""
    id: Name | None = None
    """The sender's own name for it, such as the id of a CloudEvent: sent twice, it is one signal."""


class Signal(msgspec.Struct):
    signal_id: str
    run_id: str
    name: str
    key: str | None
    data: msgspec.Raw
    id: str | None
    """The sender's own name for it."""
    actor: str
    sent_at: Instant
    status: Literal["sent", "kept", "taken", "refused"]
    """sent: stored, and its run has not taken note of it yet; kept: no task waits for it; refused: the run had ended
    when it came."""
    task: str | None
    """Which task took it."""
    token: int | None
    row_version: int | None
    """The move of the run by which it was taken, see the history."""
    settled_at: Instant | None
    reason: str | None
    """Why it was refused."""


class SignalPage(msgspec.Struct):
    items: list[Signal]
    next: str | None


class PostBody(msgspec.Struct, forbid_unknown_fields=True):
    name: WorkflowName
    key: Name
    """Whoever waits for this key may have it."""
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Any JSON."""
    id: Name | None = None
    """The sender's own name for it, such as the id of a CloudEvent: posted twice, it is one signal."""
    keep: str | float = "1d"
    """How long it waits for somebody who waits for it: text such as `12h`, or seconds; 30 days at most."""


class Offer(msgspec.Struct):
    run_id: str
    task: str
    status: Literal["sent", "taken", "refused"]
    row_version: int | None
    """The move of the run by which it was taken."""
    settled_at: Instant | None
    reason: str | None
    """Why it was refused."""


class PostedSignal(msgspec.Struct):
    signal_id: str
    name: str
    key: str
    data: msgspec.Raw
    id: str | None
    """The sender's own name for it."""
    actor: str
    sent_at: Instant
    expires_at: Instant
    status: Literal["open", "taken", "expired"]
    """taken: by a task with `delivery: first`; it is still told to those with `all`, until it expires."""
    offers: list[Offer] | msgspec.UnsetType = msgspec.UNSET
    """Waits that it came to, a hundred at most; only for a single signal."""


class PostedSignalPage(msgspec.Struct):
    items: list[PostedSignal]
    next: str | None
