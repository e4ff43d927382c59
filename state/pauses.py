"""Pauses of workflows: all runs of one are paused, those of the future, too; and of queues: what is handed out to one
is kept back.

    pause, resume  -> a row of `workflow_pause`: what people want
    start          -> a run of a paused workflow begins paused, decided in the transaction that starts it
    sweep          -> open runs that are not in line with the row get a request each, until none is left

So a pause needs no list of runs: whichever run is found out of line is told, also one that a racing transaction had
started, or that somebody has rerun since.

A pause of a queue changes no run: a task is handed out as ever, and its command becomes a row of `held_command` instead
of a record. Once nobody pauses the queue, a sweep publishes what is still wanted.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import psycopg

from headrace.errors import ConflictError, NotFoundError
from headrace.machine.status import WORKFLOW_PAUSED
from state.outbox import Record, emit
from state.queries.rows import Connection, fetch, fetch_one
from state.requests import Wanted, request_all
from state.sql import load
from state.store import BegunPaused, Store

SQL: Final = load("pause")
STEP_MAX: Final = 1_000
"""Runs that one pass tells: what a run agent applies in a second or less."""
RELEASED_MAX: Final = 500
"""Commands that one pass lets go; some may carry a mebibyte."""
SETTLE_SECONDS: Final = 60.0
"""Longer than a transaction that starts runs may take."""


class PauseRow(NamedTuple):
    workflow: str
    reason: str
    paused_at: datetime
    paused_by: str
    runs: str | None
    """JSON: how many of its open runs are in each status."""


# == asked for by people ===============================================================================================
async def pause_workflow(connection: Connection, store: Store, workflow: str, *, reason: str, actor: str) -> None:
    """Pause a workflow, in the caller's open transaction. Raises NotFoundError, and ConflictError when it is paused."""
    given = {"namespace": store.settings.namespace, "workflow": workflow}
    if await fetch_one(connection, str, SQL.text("pause_workflow"), **given, reason=reason, actor=actor) is None:
        _, at, by = await _find(connection, **given)
        raise ConflictError(f"workflow {workflow} is paused already, by {by} since {at:%Y-%m-%d %H:%M} UTC")


async def resume_workflow(connection: Connection, store: Store, workflow: str, *, reason: str, actor: str) -> None:
    """End its pause. Raises NotFoundError, and ConflictError when nobody has paused it."""
    given = {"namespace": store.settings.namespace, "workflow": workflow}
    if await fetch_one(connection, str, SQL.text("resume_workflow"), **given, reason=reason, actor=actor) is None:
        await _find(connection, **given)
        raise ConflictError(f"workflow {workflow} is not paused")


async def _find(connection: Connection, namespace: str, workflow: str) -> tuple[Any, ...]:
    def row(*found: Any) -> tuple[Any, ...]:
        return found

    found = await fetch_one(connection, row, SQL.text("find_workflow"), namespace=namespace, workflow=workflow)
    if found is None:
        raise NotFoundError(f"there is no workflow {workflow}", workflow=workflow)
    return found


async def list_pauses(connection: Connection, namespace: str, *, after: str = "", limit: int) -> list[PauseRow]:
    """Paused workflows by name."""
    return await fetch(connection, PauseRow, SQL.text("list_pauses"), namespace=namespace, after=after, limit=limit)


# == queues ============================================================================================================
class QueuePauseRow(NamedTuple):
    queue: str
    reason: str
    paused_at: datetime
    paused_by: str
    held: int
    """Commands that are kept back."""


async def pause_queue(connection: Connection, store: Store, queue: str, *, reason: str, actor: str) -> None:
    """Keep commands to a queue back, in the caller's open transaction. Raises NotFoundError when nobody names the
    queue, and ConflictError when it is paused."""
    if not await fetch_one(connection, bool, SQL.text("is_queue"), queue=queue):
        raise NotFoundError(f"no workflow and no worker names queue {queue}", queue=queue)
    if await fetch_one(connection, str, SQL.text("pause_queue"), queue=queue, reason=reason, actor=actor) is None:
        raise ConflictError(f"queue {queue} is paused already", queue=queue)


async def resume_queue(connection: Connection, store: Store, queue: str, *, reason: str, actor: str) -> None:
    """Let its commands go. Raises ConflictError when nobody has paused it."""
    if await fetch_one(connection, str, SQL.text("resume_queue"), queue=queue) is None:
        raise ConflictError(f"queue {queue} is not paused", queue=queue)


async def list_queue_pauses(connection: Connection) -> list[QueuePauseRow]:
    return await fetch(connection, QueuePauseRow, SQL.text("list_queue_pauses"))


async def read_paused_queues(connection: Connection) -> frozenset[str]:
    return frozenset(await fetch(connection, str, SQL.text("read_paused_queues")))


async def has_held(connection: Connection) -> bool:
    """Whether any command is kept back, or was."""
    cursor = await psycopg.AsyncRawCursor(connection).execute(SQL.text("has_held_commands"))
    return bool((await cursor.fetchall())[0][0])


async def release_commands(connection: Connection, store: Store) -> int:
    """Publish commands of queues that are not paused any more, in the caller's open transaction; answers how many were
    looked at."""
    raw = psycopg.AsyncRawCursor(connection)
    rows = await (await raw.execute(SQL.text("release_commands"), (RELEASED_MAX,))).fetchall()
    records = [
        Record(store.commands_topic(queue), str(run_id).encode(), value.encode(), partition, traceparent)
        for run_id, queue, partition, value, traceparent, is_wanted in rows
        if is_wanted
    ]
    await emit(connection, records, store.mode)
    if not rows:
        await raw.execute(SQL.text("forget_commands"))
    return len(rows)


# == at a start ========================================================================================================
def find_paused(
    connection: "psycopg.Connection[Any]", namespace: str, workflows: Iterable[str]
) -> dict[str, BegunPaused]:
    """Which of these are paused."""
    cursor = psycopg.RawCursor(connection).execute(SQL.text("find_paused"), (namespace, sorted(set(workflows))))
    return {workflow: BegunPaused(by, reason) for workflow, by, reason in cursor.fetchall()}


async def find_pauses(
    connection: Connection, workflows: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], BegunPaused]:
    """The same, of namespaces and workflows."""
    by_namespace: dict[str, list[str]] = {}
    for namespace, workflow in sorted(set(workflows)):
        by_namespace.setdefault(namespace, []).append(workflow)
    found: dict[tuple[str, str], BegunPaused] = {}
    for namespace, names in by_namespace.items():
        cursor = await psycopg.AsyncRawCursor(connection).execute(SQL.text("find_paused"), (namespace, names))
        found.update({(namespace, row[0]): BegunPaused(*row[1:]) for row in await cursor.fetchall()})
    return found


# == carried out by the sweep ==========================================================================================
async def last_change(connection: Connection) -> datetime | None:
    """When somebody last paused or resumed a workflow; None while none is paused."""
    return await fetch_one(connection, lambda at: at, SQL.text("last_change"))


async def align_runs(connection: Connection, store: Store) -> int:
    """Tell open runs that are out of line, in the caller's open transaction; answers how many."""
    told = 0
    for kind, statement in (("paused", "find_unpaused"), ("resumed", "find_unresumed")):
        cursor = await psycopg.AsyncRawCursor(connection).execute(SQL.text(statement), (STEP_MAX,))
        found: Sequence[tuple[UUID, str, str]] = await cursor.fetchall()
        by_actor: dict[str, list[Wanted]] = {}
        for run_id, reason, actor in found:
            body = {"scope": WORKFLOW_PAUSED, "reason": reason}
            by_actor.setdefault(actor, []).append(Wanted(str(run_id), body))
        for actor, wanted in by_actor.items():
            await request_all(connection, store, "paused" if kind == "paused" else "resumed", wanted, actor)
        told += len(found)
    if not told:
        await psycopg.AsyncRawCursor(connection).execute(SQL.text("forget_pauses"), (SETTLE_SECONDS,))
    return told
