"""Requests from outside that move a run: a row of `inbox` and a wake-up on the run's partition, in one transaction.

The record only names the row. The run agent reads it from Postgres, so a decision or a cancel cannot be forged through
Kafka, and a lost record costs time only: a sweep says it again until the row is applied.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
import psycopg
from uuid_utils import uuid7

from headrace.messages import Requested, encode
from state.outbox import Record, emit
from state.sql import load
from state.store import Store

Kind = Literal[
    "cancelled", "decided", "replayed", "resolved", "released", "signalled", "terminated", "paused", "resumed",
    "prioritised", "supplied", "reran", "migrated", "child_told", "permitted",
]  # fmt: skip
HEARD_IN_ISOLATION: Final = ("cancelled", "terminated", "released")
"""What a run takes while it stands aside; all else stays in the inbox until somebody has let it go on."""

_SQL = load("run")


class Wanted(NamedTuple):
    """One of many requests of a kind."""

    run_id: str
    body: dict[str, Any]


async def request(
    connection: psycopg.AsyncConnection[Any], store: Store, run_id: str, kind: Kind, body: dict[str, Any], actor: str,
    inbox_id: str | None = None,
) -> str:  # fmt: skip
    """Store a request and wake the run agent, in the caller's open transaction; answers the inbox id.

    Bodies: cancelled {"reason"}; decided {"task", "token", "outcome", "comment", "votes"?, "form"?}; replayed {"task",
    "token", "input"?}; resolved {"task", "token", "outcome", "comment", "output"?}; released {}; terminated {"reason"};
    paused and resumed {"scope", "task"?, "reason"}; prioritised {"priority", "reason"}; supplied {"task", "token",
    "output", "reason"}; reran {"row_version", "tasks", "input"?, "version_id"?, "reason"}; migrated {"version_id",
    "resumes"?, "reason"}; child_told {"task", "token", "child", "outcome", "output"?, "error"?}; permitted {};
    signalled {}, which has its content in `signal` under the same id. A body may hold `msgspec.Raw` for user data that
    must keep its bytes.
    """
    inbox_id = inbox_id or str(uuid7())
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(
            _SQL.text("insert_inbox"), (UUID(inbox_id), UUID(run_id), kind, msgspec.json.encode(body).decode(), actor)
        )
    record = Record(store.settings.events_topic, run_id.encode(), encode(Requested(inbox_id)))
    await emit(connection, [record], store.mode)
    return inbox_id


async def request_all(
    connection: psycopg.AsyncConnection[Any], store: Store, kind: Kind, wanted: Sequence[Wanted], actor: str
) -> list[UUID]:
    """The same of many runs, in two statements, none for none; answers the inbox ids in their order."""
    if not wanted:
        return []
    ids = [UUID(str(uuid7())) for _ in wanted]
    bodies = [msgspec.json.encode(each.body).decode() for each in wanted]
    async with psycopg.AsyncRawCursor(connection) as cursor:
        runs = [UUID(each.run_id) for each in wanted]
        await cursor.execute(_SQL.text("insert_inbox_rows"), (ids, runs, kind, bodies, actor))
    topic = store.settings.events_topic
    wakes = zip(wanted, ids, strict=True)
    records = [Record(topic, each.run_id.encode(), encode(Requested(str(id_)))) for each, id_ in wakes]
    await emit(connection, records, store.mode)
    return ids
