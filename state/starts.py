"""Start runs: one transaction makes the run, decides its first step, and leaves the first commands in the outbox."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import psycopg
from uuid_utils import uuid7

from headrace.errors import ConflictError, KeyReusedError
from headrace.machine import Plan, begin
from headrace.machine.limit import Line, Verdict
from headrace.machine.status import AWAITS_PERMIT, WORKFLOW_PAUSED
from state.pauses import find_paused
from state.permits import SQL as _PERMIT
from state.permits import Asked, asked, lock_lines, lock_lines_sync
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
    labels: Mapping[str, str] | None = None
    """Checked; see `headrace.label`."""


class Started(NamedTuple):
    """What came of one of many starts."""

    run_id: str
    """Of a start that was rejected, or dropped: of the run that stands in its way."""
    how: Literal["started", "duplicate", "rejected", "dropped"]


def new_run_id() -> str:
    return str(uuid7())


class Permit(NamedTuple):
    """How a run begins under the limit of its workflow."""

    key: str
    is_granted: bool
    replaced: tuple[str, ...] = ()
    """Runs that have to end for it."""


def admit(start: Start, given: Asked, line: Line) -> tuple[Permit | None, Verdict]:
    """Decide about one start under a limit, whose key this transaction has locked; no permit: nothing is started."""
    assert start.plan.limit is not None
    verdict = line.admit(start.run_id, start.plan.limit.over)
    if verdict.how in ("rejected", "dropped"):
        return None, verdict
    return Permit(given[0].key, verdict.how == "begins", verdict.replaced), verdict


def why_rejected(workflow: str, key: str, holder: str | None) -> str:
    of_key = f" of key {key!r}" if key else ""
    return f"as many runs of workflow {workflow}{of_key} go as go at once; run {holder} is one of them"


def begin_run(
    rows: Rows, start: Start, namespace: str, at: int, pause: BegunPaused | None = None, permit: Permit | None = None
) -> StoredRun:
    """Add a run and its first advance to a transaction's rows. pause: of its workflow: then the run begins paused.
    permit: under a limit: that it has it, or waits for it."""
    control = 0 if pause is None else WORKFLOW_PAUSED
    if permit is not None and not permit.is_granted:
        control |= AWAITS_PERMIT
    run = StoredRun(
        start.run_id.encode(), start.plan, start.input, namespace=namespace, traceparent=start.traceparent,
        parent=start.parent, control=control,
    )  # fmt: skip
    if permit is not None:
        rows.await_permit(run, permit.key, is_granted=permit.is_granted)
        for replaced in permit.replaced:
            rows.replace_run(UUID(replaced), UUID(start.run_id))
    if start.priority:
        rows.set_priority(run, start.priority)
    if start.labels:
        rows.label_run(run, start.labels)
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
    labels: Mapping[str, str] | None = None,
) -> tuple[str, StoredRun | None]:
    """Start one run, in the caller's open transaction; answers (run id, the run when it is new).

    The same key gives the same run, also to a racing transaction: it waits for the one that came first. Under a limit
    with `over: drop` the answer may be a run that goes already. Raises KeyReusedError when the key belongs to a run of
    another workflow, input or labels, ConflictError when the limit rejects it, PayloadError when its input gives no key
    of the limit.
    """
    start = Start(
        plan, input, key, run_id or new_run_id(), traceparent, source, actor, detail, priority=priority, labels=labels
    )
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
                        f"key {key!r} was used for another workflow, input or labels", key=key, run_id=str(found)
                    )
                return str(found), None
        permit, given = None, asked(namespace, plan, input)
        if given is not None:
            lines = await lock_lines(connection, [given])
            permit, verdict = admit(start, given, lines[given[0]])
            if permit is None and verdict.how == "rejected":
                message = why_rejected(plan.name, given[0].key, verdict.holder)
                raise ConflictError(message, holder=verdict.holder, workflow=plan.name)
            if permit is None and verdict.holder is not None:
                if key is not None:
                    pointed = (namespace, [key], [UUID(verdict.holder)])
                    await cursor.execute(_PERMIT.text("point_trigger_keys"), pointed)
                return verdict.holder, None
        await cursor.execute(_PAUSE.text("read_start"), (namespace, plan.name))
        at, paused_by, why, queues = (await cursor.fetchall())[0]
    rows = Rows(store)
    rows.paused_queues = frozenset(queues)
    pause = None if paused_by is None else BegunPaused(paused_by, why)
    run = begin_run(rows, start, namespace, at, pause, permit)
    await execute(connection, rows.calls())
    return start.run_id, run


def start_runs(
    connection: psycopg.Connection[Any], store: Store, starts: Sequence[Start], namespace: str, at: int
) -> list[Started]:
    """Start many runs in the caller's open transaction with a constant number of statements; answers in the order
    given.

    Every start needs a key, unless none has one. A key that is known already, or twice in the list, gives the run that
    came first; its input is not compared (a record delivered twice is the same record). The key of a start that a limit
    rejects is free again; that of one that it drops gives the run that stands in its way. Raises PayloadError when an
    input gives no key of its limit.
    """
    given = [start if start.run_id else start._replace(run_id=new_run_id()) for start in starts]
    first: dict[str, Start] = {}
    for start in given:
        if start.key is not None:
            first.setdefault(start.key, start)
    runs = _claim(connection, namespace, list(first.values())) if first else {}
    paused = find_paused(connection, namespace, (start.plan.name for start in given)) if given else {}
    rows, answers, looked_at = Rows(store), list[Started](), dict[str, Started]()
    limited = _lock(connection, namespace, [start for start in given if start.run_id == _run_of(start, runs)])
    for start in given:
        run_id = _run_of(start, runs)
        if run_id != start.run_id or run_id in looked_at:
            known = looked_at.get(run_id)
            answers.append(
                known if known and known.how == "rejected" else Started(known.run_id if known else run_id, "duplicate")
            )
            continue
        permit, verdict = None, None
        if start.run_id in limited:
            permit, verdict = admit(start, *limited[start.run_id])
        if verdict is None or permit is not None:
            begin_run(rows, start, namespace, at, paused.get(start.plan.name), permit)
            answers.append(Started(run_id, "started"))
        else:
            answers.append(Started(verdict.holder or run_id, "rejected" if verdict.how == "rejected" else "dropped"))
        looked_at[run_id] = answers[-1]
    _free_keys(connection, namespace, given, looked_at)
    execute_sync(connection, rows.calls())
    return answers


def _run_of(start: Start, runs: dict[str, str]) -> str:
    return start.run_id if start.key is None else runs.get(start.key, start.run_id)


def _lock(
    connection: psycopg.Connection[Any], namespace: str, starts: Sequence[Start]
) -> dict[str, tuple[Asked, Line]]:
    """How the limits of those stand that have one, by run; the starts of one key have one line."""
    found = {start.run_id: what for start in starts if (what := asked(namespace, start.plan, start.input)) is not None}
    lines = lock_lines_sync(connection, list(found.values()))
    return {run_id: (what, lines[what[0]]) for run_id, what in found.items()}


def _free_keys(
    connection: psycopg.Connection[Any], namespace: str, starts: Sequence[Start], answers: dict[str, Started]
) -> None:
    """Of starts of which nothing was started."""
    rejected, dropped = list[str](), dict[str, UUID]()
    for start in starts:
        answer = answers.get(start.run_id)
        if start.key is None or answer is None:
            continue
        if answer.how == "rejected":
            rejected.append(start.key)
        elif answer.how == "dropped":
            dropped[start.key] = UUID(answer.run_id)
    if not rejected and not dropped:
        return
    with psycopg.RawCursor(connection) as cursor:
        if rejected:
            cursor.execute(_PERMIT.text("release_trigger_keys"), (namespace, rejected))
        if dropped:
            cursor.execute(_PERMIT.text("point_trigger_keys"), (namespace, list(dropped), list(dropped.values())))


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
    said = start.plan.name.encode() + b"\0" + start.input
    if start.labels:
        said += b"\0" + msgspec.json.encode(start.labels, order="sorted")
    return sha256(said).digest()
