"""The final state, read in one snapshot after everything is healed and quiet."""

import asyncio
import uuid
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.rows import dict_row

from state.doctor import examine

TABLES: Final = (
    "workflow_version", "run", "task", "attempt", "history", "timer", "inbox", "approval", "dead_letter", "trigger_key",
    "worker_session", "held_task", "parked_task", "partition_owner", "signal", "signal_wait", "posted_signal",
    "approval_vote", "child_run", "pool", "pool_slot", "pool_waiter", "bulk", "bulk_item", "workflow_pause",
    "queue_pause", "held_command", "trigger_event", "run_permit",
)  # fmt: skip
KAFKA_SECONDS: Final = 10.0
Dump = dict[str, list[dict[str, Any]]]
"""Table -> its rows; a table that this version lacks has none. Ids are text, instants seconds since 1970."""


def read_dump(dsn: str, kafka: str, prefix: str) -> Dump:
    """All rows of the state store, and where the topics end (`log_end`)."""
    with psycopg.connect(dsn) as connection, connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        known = {row["tablename"] for row in cursor.fetchall()}
        dump: Dump = {table: [] for table in TABLES}
        for table in known & dump.keys():
            cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
            dump[table] = [{name: _plain(value) for name, value in row.items()} for row in cursor.fetchall()]
    dump["log_end"] = _read_ends(kafka, f"{prefix}.events")
    dump["doctor"] = asyncio.run(_examine(dsn))
    return dump


async def _examine(dsn: str) -> list[dict[str, Any]]:
    """What the product's own doctor says of the same rows."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        return [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in await examine(connection)]


def _read_ends(kafka: str, topic: str) -> list[dict[str, Any]]:
    """Read after the rows: a position that is ahead of them now was ahead of them then."""
    admin = AdminClient({"bootstrap.servers": kafka})
    known = admin.list_topics(topic, timeout=KAFKA_SECONDS).topics[topic]
    described = admin.describe_topics(TopicCollection([topic]), request_timeout=KAFKA_SECONDS)[topic]
    topic_id = str(described.result(KAFKA_SECONDS).topic_id)
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "chaos-dump"})
    try:
        return [
            {
                "topic": topic,
                "partition": partition,
                "topic_id": topic_id,
                "end": consumer.get_watermark_offsets(TopicPartition(topic, partition), KAFKA_SECONDS)[1],
            }
            for partition in known.partitions
        ]
    finally:
        consumer.close()


def _plain(value: Any) -> Any:
    match value:
        case uuid.UUID():
            return str(value)
        case datetime():
            return value.timestamp()
        case timedelta():
            return value.total_seconds()
        case memoryview() | bytes():
            return bytes(value).hex()
        case _:
            return value
