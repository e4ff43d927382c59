"""Where a record goes that Kafka refuses for ever: a row of `dead_letter`, for a person to look at."""

import hashlib
from typing import Final, LiteralString
from uuid import UUID

from connectors.connection import connect
from headrace.messages import TRACEPARENT, Error
from state.fingerprint import encode_headers, label_record
from state.outbox import Record

# It never had a place in Kafka: -1 says so. The id is made from the content, and from the letter whose replay this is:
# setting it aside again after a crash changes nothing, and a replay that is refused as well is a letter of its own.
_REPLAYED: Final[LiteralString] = """
SELECT dead_letter_id FROM dead_letter d
WHERE d.topic = %s AND d.replay_digest = sha256(%s) AND d."offset" = -1 AND coalesce(d.key, '') = %s
  AND NOT EXISTS (SELECT FROM dead_letter n WHERE n.replay_of = d.dead_letter_id)
ORDER BY d.closed_at LIMIT 1
"""
_INSERT: Final[LiteralString] = """
INSERT INTO dead_letter (dead_letter_id, kind, topic, partition, "offset", key, value, headers, reason, code, message, fingerprint, replay_of)
VALUES (%s, 'record', %s, %s, -1, %s, %s, %s::json, %s, %s, %s, %s, %s)
ON CONFLICT (dead_letter_id) DO NOTHING
"""  # noqa: E501


class DeadLetters:
    """Opens a connection per record: refusals are rare."""

    def __init__(self, postgres: str) -> None:
        self._postgres = postgres

    def set_aside(self, record: Record, reason: str) -> None:
        """Store one record with its reason, in a transaction of its own. Raises psycopg.Error."""
        trace = () if record.traceparent is None else ((TRACEPARENT, record.traceparent.encode()),)
        headers = encode_headers((*record.headers, *trace))
        text = None if headers is None else headers.decode()
        partition = -1 if record.partition is None else record.partition
        label = label_record(Error("REFUSED", reason, retryable=False), record.topic)
        with connect(self._postgres, "headrace-relay-dead-letter") as connection:
            found = connection.execute(_REPLAYED, (record.topic, record.value, record.key)).fetchone()
            replay_of = None if found is None else found[0]
            place = (_identify(record, replay_of), record.topic, partition, record.key, record.value, text, reason)
            connection.execute(_INSERT, (*place, *label, replay_of))


def _identify(record: Record, replay_of: UUID | None) -> UUID:
    digest = hashlib.blake2b(digest_size=16)
    of = b"" if replay_of is None else replay_of.bytes
    for part in (record.topic.encode(), record.key, record.value, *([of] if of else ())):
        digest.update(len(part).to_bytes(8) + part)
    return UUID(bytes=digest.digest(), version=5)
