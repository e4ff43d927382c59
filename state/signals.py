"""Signals: what is told to a run from outside.

Stored first, in the caller's open transaction; the run takes note of it in its own partition, and a task that waits for
it takes it, now or later.
"""

from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from uuid_utils import uuid7

from headrace.errors import ConflictError, InvariantError, KeyReusedError, NotFoundError
from headrace.machine import RunStatus
from headrace.machine.status import RUN_TERMINAL
from state.queries.rows import Connection, fetch_one
from state.queries.signal import SignalRow, get_signal
from state.requests import request
from state.sql import load
from state.store import Store

_SQL = load("signal")
KEPT_MAX: Final = 1_000
"""Signals that one run keeps: they are in memory with it, and whoever tells it more tells nobody."""
KEPT_BYTES_MAX: Final = 8 * 1024 * 1024


class Message(NamedTuple):
    """What is told."""

    name: str
    data: bytes
    """Strict JSON, checked."""
    key: str | None = None
    sender_id: str | None = None
    """The sender's own name for it: sent twice, it is one signal."""


class _Target(NamedTuple):
    status: str
    version_id: int
    signals: int
    bytes: int


class _Sent(NamedTuple):
    signal_id: UUID
    name: str
    key: str | None
    data: str


async def send_signal(
    connection: Connection, store: Store, run_id: UUID, message: Message, *, actor: str
) -> tuple[SignalRow, bool]:
    """Store a signal for one run and wake it; answers (the signal, whether it is new).

    Raises NotFoundError; ConflictError when the run has ended, or keeps as many signals as it may; KeyReusedError when
    its sender has used the id for another.
    """
    ids = {"run_id": str(run_id)}
    target = await fetch_one(
        connection, _Target, _SQL.text("find_signal_target"), run_id=run_id, namespace=store.settings.namespace
    )
    if target is None:
        raise NotFoundError(f"there is no run {run_id}", **ids)
    if (known := await _sent_before(connection, run_id, message)) is not None:
        return known, False
    if RunStatus(target.status) in RUN_TERMINAL:
        raise ConflictError(f"the run is {target.status} already", status=target.status, **ids)
    if target.signals >= KEPT_MAX or target.bytes + len(message.data) > KEPT_BYTES_MAX:
        kept = f"{target.signals} signals of {target.bytes} bytes that no task has taken"
        raise ConflictError(f"the run keeps {kept}; at most {KEPT_MAX} of {KEPT_BYTES_MAX} are kept", **ids)
    signal_id = UUID(str(uuid7()))
    given: dict[str, Any] = {**message._asdict(), "data": message.data.decode()}
    new = await fetch_one(
        connection, _same, _SQL.text("insert_signal"), signal_id=signal_id,
        namespace=store.settings.namespace, run_id=run_id, actor=actor, **given,
    )  # fmt: skip
    if new is None:
        known = await _sent_before(connection, run_id, message)
        if known is None:
            raise InvariantError("a signal that was sent before is not there", **ids)
        return known, False
    await request(connection, store, str(run_id), "signalled", {}, actor, str(signal_id))
    row = await get_signal(connection, signal_id)
    assert row is not None
    return row, True


def _same(signal_id: UUID) -> UUID:
    return signal_id


async def _sent_before(connection: Connection, run_id: UUID, message: Message) -> SignalRow | None:
    """What the sender sent under this id. Raises KeyReusedError when that was something else."""
    if message.sender_id is None:
        return None
    sent = await fetch_one(
        connection, _Sent, _SQL.text("find_signal_of_sender"), run_id=run_id, sender_id=message.sender_id
    )
    if sent is None:
        return None
    is_same = (sent.name, sent.key) == (message.name, message.key)
    if not is_same or msgspec.json.decode(sent.data) != msgspec.json.decode(message.data):
        raise KeyReusedError(f"id {message.sender_id!r} was used for another signal", signal_id=str(sent.signal_id))
    return await get_signal(connection, sent.signal_id)
