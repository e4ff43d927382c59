"""Signals that records of users' topics say: many in one transaction, with a constant number of statements.

As `state.signals` and `state.posted_signals` do it for one, and with the same identity: a sender's id says each once.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from uuid_utils import uuid7

from headrace.machine import RunStatus
from headrace.machine.status import RUN_TERMINAL
from headrace.messages import Requested, encode
from state.outbox import Record
from state.plans import Plans
from state.signals import KEPT_BYTES_MAX, KEPT_MAX
from state.sql import load
from state.store import Rows, Store, execute_sync

_SQL = load("record_signal")


class Saying(NamedTuple):
    """A signal that a record says."""

    name: str
    data: bytes
    """Strict JSON, checked."""
    sender_id: str
    actor: str
    key: str | None = None
    run_id: UUID | None = None
    """None: for whoever waits for its key."""
    keep_seconds: float = 0.0
    """How long it waits for somebody, when it is for no run."""


class Said(NamedTuple):
    """What became of it."""

    signal_id: UUID | None = None
    is_new: bool = False
    refused: str | None = None
    """Why it was not stored."""


def say_signals(
    connection: psycopg.Connection[Any], store: Store, plans: Plans, sayings: Sequence[Saying], namespace: str
) -> list[Said]:
    """Store them in the caller's open transaction, and wake the runs that they are for; answers in the order given.

    What is posted for a key is offered by the signals sweep, which is told of the key after the commit.
    """
    said: dict[int, Said] = {}
    posts = [(place, one) for place, one in enumerate(sayings) if one.run_id is None]
    sends = [(place, one) for place, one in enumerate(sayings) if one.run_id is not None]
    with psycopg.RawCursor(connection) as cursor:
        if posts:
            said.update(_post(cursor, posts, namespace))
        if sends:
            said.update(_send(connection, cursor, store, plans, sends, namespace))
    return [said[place] for place in range(len(sayings))]


Placed = list[tuple[int, Saying]]


def _post(cursor: "psycopg.RawCursor[Any]", posts: Placed, namespace: str) -> dict[int, Said]:
    ids = [UUID(str(uuid7())) for _ in posts]
    columns = [
        [one.name for _, one in posts], [one.key for _, one in posts], [one.data.decode() for _, one in posts],
        [one.sender_id for _, one in posts], [one.actor for _, one in posts], [one.keep_seconds for _, one in posts],
    ]  # fmt: skip
    cursor.execute(_SQL.text("post_signals"), (namespace, ids, *columns))
    return _answers(posts, dict(cursor.fetchall()), ids)


def _send(
    connection: psycopg.Connection[Any], cursor: "psycopg.RawCursor[Any]", store: Store, plans: Plans, sends: Placed,
    namespace: str,
) -> dict[int, Said]:  # fmt: skip
    runs = list({one.run_id for _, one in sends})
    senders = [one.sender_id for _, one in sends]
    cursor.execute(_SQL.text("find_signal_targets"), (namespace, runs, senders))
    targets: dict[UUID | None, tuple[Any, ...]] = {row[0]: row[1:] for row in cursor.fetchall()}
    if missing := plans.missing(target[1] for target in targets.values()):
        plans.load_sync(connection, missing)
    said: dict[int, Said] = {}
    taken: Placed = []
    for place, one in sends:
        why = _why_not(one, targets.get(one.run_id), plans)
        if why is None:
            taken.append((place, one))
        else:
            said[place] = Said(refused=why)
    if not taken:
        return said
    ids = [UUID(str(uuid7())) for _ in taken]
    columns = [
        [one.run_id for _, one in taken], [one.name for _, one in taken], [one.key for _, one in taken],
        [one.data.decode() for _, one in taken], [one.sender_id for _, one in taken], [one.actor for _, one in taken],
    ]  # fmt: skip
    cursor.execute(_SQL.text("send_signals"), (namespace, ids, *columns))
    rows, topic = Rows(store), store.settings.events_topic
    known, new = dict[tuple[UUID | None, str], UUID](), set(ids)
    for run_id, sender_id, signal_id in cursor.fetchall():
        known[run_id, sender_id] = signal_id
        if signal_id in new:
            rows.records.append(Record(topic, str(run_id).encode(), encode(Requested(str(signal_id)))))
    execute_sync(connection, rows.calls())
    for (place, one), id_ in zip(taken, ids, strict=True):
        signal_id = known[one.run_id, one.sender_id]
        said[place] = Said(signal_id, signal_id == id_)
    return said


def _why_not(one: Saying, target: tuple[Any, ...] | None, plans: Plans) -> str | None:
    if target is None:
        return f"there is no run {one.run_id}"
    status, version_id, signals, kept_bytes, known = target
    if one.sender_id in known:
        return None  # it was sent before, whatever became of the run
    plan = plans.get(version_id)
    if plan is not None and one.name not in plan.listeners:
        return plan.why_deaf(one.name)
    if RunStatus(status) in RUN_TERMINAL:
        return f"the run is {status} already"
    if signals >= KEPT_MAX or kept_bytes + len(one.data) > KEPT_BYTES_MAX:
        return f"the run keeps {signals} signals of {kept_bytes} bytes that no task has taken"
    return None


def _answers(given: Placed, known: dict[str, UUID], ids: list[UUID]) -> dict[int, Said]:
    """known: by sender's id. Of two that are the same, the first is the new one."""
    found = {}
    for (place, one), id_ in zip(given, ids, strict=True):
        signal_id = known[one.sender_id]
        found[place] = Said(signal_id, signal_id == id_)
    return found
