"""How far the engine has read Kafka's logs: what a fault takes away behind that was lost before anybody read it."""

from typing import Final

import psycopg
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from tests.chaos.system import System

ANSWER_SECONDS: Final = 3.0
_POSITIONS: Final = "SELECT topic, partition, topic_id, next_offset FROM partition_owner"


def read_up_to(system: System, *topics: str) -> dict[str, int]:
    """Next offset by `topic[partition]`, of the logs as they are now: 0 of one that nobody has begun to read. Topics of
    which nobody can tell are left out."""
    admin = AdminClient({"bootstrap.servers": system.kafka.bootstrap, "log_level": 0})
    asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=ANSWER_SECONDS)
    found: dict[str, int] = {}
    try:
        known = {(topic, p, id_): position or 0 for topic, p, id_, position in system.query(_POSITIONS)}
    except psycopg.Error:
        return found
    for topic, answer in asked.items():
        try:
            description = answer.result(ANSWER_SECONDS + 1)
        except (KafkaException, TimeoutError):
            continue
        id_ = str(description.topic_id)
        found |= {f"{topic}[{one.id}]": known.get((topic, one.id, id_), 0) for one in description.partitions}
    return found
