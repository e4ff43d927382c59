"""Where a record goes that Kafka refuses for ever: a row of `dead_letter`, for a person to look at."""

import hashlib
import json
from typing import Any, Final, LiteralString
from uuid import UUID

from connectors.connection import connect
from headrace.messages import TRACEPARENT
from state.outbox import Record

# It never had a place in Kafka: -1 says so. The id is made from the content: setting it aside again after a crash
# changes nothing.
_INSERT: Final[LiteralString] = """
INSERT INTO dead_letter (dead_letter_id, kind, topic, partition, "offset", key, value, headers, reason)
VALUES (%s, 'record', %s, %s, -1, %s, %s, %s::json, %s)
ON CONFLICT (dead_letter_id) DO NOTHING
"""


class DeadLetters:
    """Opens a connection per record: refusals are rare."""

    def __init__(self, postgres: str) -> None:
        self._postgres = postgres

    def set_aside(self, record: Record, reason: str) -> None:
        """Store one record with its reason, in a transaction of its own. Raises psycopg.Error."""
        headers = None if record.traceparent is None else json.dumps({TRACEPARENT: record.traceparent})
        partition = -1 if record.partition is None else record.partition
        row: tuple[Any, ...] = (_identify(record), record.topic, partition, record.key, record.value, headers, reason)
        with connect(self._postgres, "headrace-relay-dead-letter") as connection:
            connection.execute(_INSERT, row)


def _identify(record: Record) -> UUID:
    digest = hashlib.blake2b(digest_size=16)
    for part in (record.topic.encode(), record.key, record.value):
        digest.update(len(part).to_bytes(8) + part)
    return UUID(bytes=digest.digest(), version=5)
