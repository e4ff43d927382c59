"""Start runs: one transaction makes the run, decides its first step, and leaves the first commands in the outbox."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from uuid_utils import uuid7

from headrace.errors import KeyReusedError
from headrace.machine import Plan, begin
from headrace.machine.status import WORKFLOW_PAUSED
from state.pauses import find_paused
from state.sql import load
from state.store import BegunPaused, Rows, Store, StoredRun, execute, execute_sync

_SQL, _PAUSE = load("run"), load("pause")


class Start(NamedTuple):
    """One run to start."""

    plan: Plan
    input: bytes
    """Strict JSON, checked."""
    key: str | None = None
    """Trigger identity, unique in the namespace for ever; None: always a new run."""
    run_id: str = ""
    """A UUIDv7 in text; empty: made here."""
    traceparent: str | None = None
    source: str = "api"
    actor: str = ""
    detail: dict[str, Any] | None = None
    priority: int = 0
    """In the queues of pools."""
    parent: bytes | None = None
    """The key of the run of which a task waits for it."""


def new_run_id() -> str:
    return str(uuid7())


def begin_run(rows: Rows, start: Start, namespace: str, at: int, pause: BegunPaused | None = None) -> StoredRun:
    """Add a run and its first advance to a transaction's rows. pause: of its workflow: then the run begins paused."""
    run = StoredRun(
        start.run_id.encode(), start.plan, start.input, namespace=namespace, traceparent=start.traceparent,
        parent=start.parent, control=0 if pause is None else WORKFLOW_PAUSED,
    )  # fmt: skip
    if start.priority:
        rows.set_priority(run, start.priority)
    first = begin(start.plan, run, at)
    rows.begin(run, first, source=start.source, actor=start.actor, detail=start.detail, pause=pause)
    return run


async def start_run(
    connection: psycopg.AsyncConnection[Any],
    store: Store,
    plan: Plan,
    input: bytes,
    *,
    namespace: str,
    key: str | None = None,
    run_id: str | None = None,
    traceparent: str | None = None,
    source: str = "api",
    actor: str = "",
    priority: int = 0,
    detail: dict[str, Any] | None = None,
) -> tuple[str, StoredRun | None]:
    """Start one run, in the caller's open transaction; answers (run id, the run when it is new).

    The same key gives the same run, also to a racing transaction: it waits for the one that came first. Raises
    KeyReusedError when the key belongs to a run of another workflow or input.
    """
    start = Start(plan, input, key, run_id or new_run_id(), traceparent, source, actor, detail, priority=priority)
    async with psycopg.AsyncRawCursor(connection) as cursor:
        if key is not None:
            digest = start_digest(start)
            parameters = (namespace, [key], [UUID(start.run_id)], [digest])
            await cursor.execute(_SQL.text("claim_trigger_keys"), parameters)
            if await cursor.fetchone() is None:
                await cursor.execute(_SQL.text("find_trigger_keys"), (namespace, [key]))
                _, found, known = (await cursor.fetchall())[0]
                if bytes(known) != digest:
                    raise KeyReusedError(
                        f"key {key!r} was used for another workflow or input", key=key, run_id=str(found)
                    )
                return str(found), None
        await cursor.execute(_PAUSE.text("read_start"), (namespace, plan.name))
        at, paused_by, why, queues = (await cursor.fetchall())[0]
    rows = Rows(store)
    rows.paused_queues = frozenset(queues)
    run = begin_run(rows, start, namespace, at, None if paused_by is None else BegunPaused(paused_by, why))
    await execute(connection, rows.calls())
    return start.run_id, run


def start_runs(
    connection: psycopg.Connection[Any], store: Store, starts: Sequence[Start], namespace: str, at: int
) -> list[tuple[str, bool]]:
    """Start many runs in the caller's open transaction with a constant number of statements; answers in the order
    given.

    Every start needs a key, unless none has one. A key that is known already, or twice in the list, gives the run that
    came first; its input is not compared (a record delivered twice is the same record).
    """
    given = [start if start.run_id else start._replace(run_id=new_run_id()) for start in starts]
    first: dict[str, Start] = {}
    for start in given:
        if start.key is not None:
            first.setdefault(start.key, start)
    runs = _claim(connection, namespace, list(first.values())) if first else {}
    paused = find_paused(connection, namespace, (start.plan.name for start in given)) if given else {}
    rows, answers, begun = Rows(store), list[tuple[str, bool]](), set[str]()
    for start in given:
        run_id = runs.get(start.key, start.run_id) if start.key is not None else start.run_id
        is_new = run_id == start.run_id and run_id not in begun
        if is_new:
            begun.add(run_id)
            begin_run(rows, start, namespace, at, paused.get(start.plan.name))
        answers.append((run_id, is_new))
    execute_sync(connection, rows.calls())
    return answers


def _claim(connection: psycopg.Connection[Any], namespace: str, starts: list[Start]) -> dict[str, str]:
    """Take the keys that are free; answers the run of every key."""
    keys = [start.key for start in starts]
    with psycopg.RawCursor(connection) as cursor:
        cursor.execute(
            _SQL.text("claim_trigger_keys"),
            (namespace, keys, [UUID(start.run_id) for start in starts], [start_digest(start) for start in starts]),
        )
        new = {key for (key,) in cursor.fetchall()}
        runs = {start.key: start.run_id for start in starts if start.key in new and start.key is not None}
        if old := [key for key in keys if key not in new]:
            cursor.execute(_SQL.text("find_trigger_keys"), (namespace, old))
            runs.update({key: str(run_id) for key, run_id, _ in cursor.fetchall()})
    return runs


def start_digest(start: Start) -> bytes:
    """What a repetition of the same start has in common with the first. The version is left out: a retry after a
    publish is the same start."""
    return sha256(start.plan.name.encode() + b"\0" + start.input).digest()
