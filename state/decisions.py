"""What people decide: cancels, replays, discards; approvals have a module of their own.

Each function runs in the caller's open transaction. The row that is decided about is the arbiter: one UPDATE takes it
out of its open state, so of two racing callers one finds nothing and is told so. What moves a run goes through
`request` in the same transaction.
"""

from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from headrace.errors import ConflictError, NotFoundError
from headrace.machine import RunStatus, TaskStatus
from headrace.messages import TRACEPARENT
from state.control import find_standing, why_not
from state.fingerprint import decode_headers
from state.outbox import Record, emit
from state.queries.dead_letter import DeadLetterRow, get_dead_letter
from state.queries.rows import Connection, fetch_one
from state.queries.run import read_position
from state.requests import request
from state.sql import load
from state.store import Store

_PARKED = load("parked_task_queries")
_DEAD_LETTERS = load("dead_letter_queries")


class _Closed(NamedTuple):
    kind: str
    run_id: UUID | None
    task: int | None
    token: int | None
    topic: str | None
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: str | None


class _TaskState(NamedTuple):
    attention: bool
    is_cancelled: bool
    status: str | None
    token: int | None
    is_collected: bool
    """It is an item of a map that has completed."""
    is_undone: bool
    """Its run has begun to undo what it did."""


async def resolve_task(
    connection: Connection,
    store: Store,
    run_id: UUID,
    task: int,
    outcome: Literal["happened", "did_not_happen", "fail"],
    *,
    output: bytes | None = None,
    comment: str,
    actor: str,
) -> None:
    """Say once what became of the effect of a parked task. output: checked JSON, only when it happened.

    Raises ConflictError when the task is not parked, or somebody has said it.
    """
    namespace = store.settings.namespace
    token = await fetch_one(
        connection, int, _PARKED.text("resolve_parked_task"), run_id=run_id, task=task, namespace=namespace, actor=actor
    )
    if token is None:
        by = await fetch_one(
            connection, str, _PARKED.text("find_resolver"), run_id=run_id, task=task, namespace=namespace
        )
        why = "the task is not parked" if by is None else f"the task was resolved already by {by}"
        raise ConflictError(why, run_id=str(run_id), task=task)
    body: dict[str, Any] = {"task": task, "token": token, "outcome": outcome, "comment": comment}
    if output is not None:
        body["output"] = msgspec.Raw(output)
    await request(connection, store, str(run_id), "resolved", body, actor)


async def cancel_run(connection: Connection, store: Store, run_id: UUID, *, reason: str, actor: str) -> None:
    """Ask that a run end now. Raises NotFoundError, and ConflictError when it has ended, or
    only cleans up or undoes what it did."""
    run = await find_standing(connection, store.settings.namespace, run_id)
    if (why := why_not("cancel", run)) is not None:
        raise ConflictError(why, run_id=str(run_id), status=run.status)
    await request(connection, store, str(run_id), "cancelled", {"reason": reason}, actor)


async def release_run(connection: Connection, store: Store, run_id: UUID, *, actor: str) -> None:
    """Let a run go on that stands aside. Raises NotFoundError, and ConflictError when it does not stand aside."""
    position = await read_position(connection, store.settings.namespace, run_id)
    if position is None:
        raise NotFoundError(f"there is no run {run_id}", run_id=str(run_id))
    if RunStatus(position.status) is not RunStatus.NEEDS_ATTENTION:
        raise ConflictError(f"the run is {position.status}: it needs no release", run_id=str(run_id))
    await request(connection, store, str(run_id), "released", {}, actor)


async def replay_dead_letter(
    connection: Connection,
    store: Store,
    dead_letter_id: UUID,
    *,
    input: bytes | None = None,
    value: bytes | None = None,
    actor: str,
) -> None:
    """Send a parked dead letter out again, once: a failed task as a new hand-out, a record to the topic that it came
    from.

    input: checked JSON that takes the place of the task's input, or of the record's value; it keeps its bytes.
    value: any bytes, in place of a record's value.
    Raises NotFoundError, and ConflictError when it was closed already, its task does not stand where it failed any
    more, or a task is given bytes.
    """
    published = input if value is None else value
    closed = await _close(connection, store, dead_letter_id, "replayed", actor, value=published)
    if closed.kind == "record":
        await _publish_again(connection, store, closed, published)
        return
    if value is not None:
        raise ConflictError("only a record is replayed with other bytes", dead_letter_id=str(dead_letter_id))
    if closed.run_id is None or closed.task is None or closed.token is None:
        raise ConflictError("the dead letter names no task", dead_letter_id=str(dead_letter_id))
    await _check_still_failed(connection, store, closed.run_id, closed.task, closed.token)
    body = {"task": closed.task, "token": closed.token}
    if input is not None:
        await request(connection, store, str(closed.run_id), "replayed", {**body, "input": msgspec.Raw(input)}, actor)
    else:
        await request(connection, store, str(closed.run_id), "replayed", body, actor)


async def discard_dead_letter(
    connection: Connection, store: Store, dead_letter_id: UUID, *, reason: str, actor: str
) -> None:
    """Close a parked dead letter without repairing it. Raises NotFoundError or ConflictError."""
    await _close(connection, store, dead_letter_id, "discarded", actor, reason)


async def _close(
    connection: Connection,
    store: Store,
    dead_letter_id: UUID,
    status: str,
    actor: str,
    reason: str = "",
    value: bytes | None = None,
) -> _Closed:
    closed = await fetch_one(
        connection,
        _Closed,
        _DEAD_LETTERS.text("close_dead_letter"),
        dead_letter_id=dead_letter_id,
        namespace=store.settings.namespace,
        status=status,
        closed_by=actor,
        reason=reason or None,
        value=value,
    )
    if closed is not None:
        return closed
    found: DeadLetterRow | None = await get_dead_letter(connection, store.settings.namespace, dead_letter_id)
    if found is None:
        raise NotFoundError(f"there is no dead letter {dead_letter_id}", dead_letter_id=str(dead_letter_id))
    message = f"the dead letter was {found.status} already by {found.closed_by}"
    raise ConflictError(message, dead_letter_id=str(dead_letter_id), status=found.status)


async def _publish_again(connection: Connection, store: Store, closed: _Closed, value: bytes | None) -> None:
    """Under its own key, with its own headers and to its own partition, so that it meets the same reader as the same
    record."""
    if closed.topic is None:
        raise ConflictError("the dead letter names no topic")
    original = bytes(closed.value or b"")
    partition = None if closed.partition is None or closed.partition < 0 else closed.partition
    content = original if value is None else value
    pairs = [(header.name, header.content) for header in decode_headers(closed.headers)]
    trace = next((given.decode("ascii", "ignore") for name, given in pairs if name == TRACEPARENT and given), None)
    headers = tuple((name, given) for name, given in pairs if name != TRACEPARENT)
    record = Record(closed.topic, bytes(closed.key or b""), content, partition, trace, headers)
    await emit(connection, [record], store.mode)


async def _check_still_failed(connection: Connection, store: Store, run_id: UUID, task: int, token: int) -> None:
    """The machine would ignore a replay that meets anything else, and nobody would be told."""
    state = await fetch_one(
        connection,
        _TaskState,
        _DEAD_LETTERS.text("find_task_state"),
        run_id=run_id,
        namespace=store.settings.namespace,
        task=task,
    )
    ids = {"run_id": str(run_id), "task": task}
    if state is None:
        raise ConflictError("the run of this dead letter is gone", **ids)
    if state.is_cancelled or state.attention:
        why = "was cancelled" if state.is_cancelled else "needs attention first"
        raise ConflictError(f"the run {why}; its tasks cannot be replayed", **ids)
    if state.status != TaskStatus.FAILED or state.token != token:
        raise ConflictError(f"the task is {state.status or 'pending'} and not where it failed any more", **ids)
    if state.is_undone:
        why = "the run undoes what it did, or has: its tasks cannot be replayed; start another run"
        raise ConflictError(why, **ids)
    if state.is_collected:
        raise ConflictError("its map has completed with this failure in its output; rerun the item", **ids)
