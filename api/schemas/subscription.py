"""Subscriptions to topics."""

from typing import Annotated

import msgspec

from api.schemas.wire import Instant, Text, WorkflowName


class SignalOfRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The signal that every record says: to the run that `run` names, or else to whoever waits for its `key`."""

    name: WorkflowName
    key: Text | None = None
    """Text with expressions over the record; required without `run`."""
    run: Text | None = None
    """An expression that gives the id of a run."""
    keep: str | float = "1d"
    """How long it waits for somebody who waits for its key: text such as `12h`, or seconds; 30 days at most."""


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,99}$(?!\n)")]
    topic: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$(?!\n)")]
    workflow: WorkflowName | None = None
    """What every record starts; this or `signal`."""
    filter: Text | None = None
    """CEL over the record; those for which it is true start a run, or say the signal."""
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Template of the run's input, or of the signal's data; the record's value, when left out."""
    signal: SignalOfRecord | None = None
    labels: dict[str, Text] = {}
    """Of the runs: text with expressions over the record, such as `{"customer": "${{ input.data.customer }}"}`. A
    record that gives null gives no such label."""


class Subscription(msgspec.Struct):
    name: str
    topic: str
    workflow: str | None
    """null: its records say a signal."""
    filter: str | None
    input: msgspec.Raw
    enabled: bool
    created_at: Instant
    waits_since: Instant | None
    """Since when its records wait in Kafka because too many runs are under way."""
    signal: SignalOfRecord | None
    labels: dict[str, str]
    """Templates of the labels of its runs."""


class SubscriptionPage(msgspec.Struct):
    items: list[Subscription]
    next: str | None
