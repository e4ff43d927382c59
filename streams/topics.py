"""The engine's topics: their names, making them, and how far a log has come.

<prefix>.commands.<queue>   engine -> workers of that queue      PARTITIONS
<prefix>.events             workers, sweeps -> run agent         PARTITIONS
<prefix>.workers            heartbeats -> session agent          1
<prefix>.logs               what bodies log -> log agent         1
<prefix>.control            engine -> every worker               1
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.errors import UnavailableError
from state.settings import EngineSettings

log = structlog.get_logger(__name__)
_TIMEOUT: Final = 5.0
_RETENTION: Final = {"retention.ms": str(7 * 24 * 3600 * 1000)}
"""Of every topic of ours, so that a broker's shorter default does not overtake an agent that was down over a
weekend."""


class Log(NamedTuple):
    """One topic as it is now."""

    topic_id: str
    ends: dict[int, int]
    """Partition -> the next offset to be written."""


class Topics:
    """Asks the broker about topics. Blocking; call it in a thread."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        conf: dict[str, str | int | float | bool] = {"bootstrap.servers": settings.kafka, "log_level": 2}
        self._admin = AdminClient(conf)
        # Never subscribes: it only reads how far the workers' group has committed.
        self._group = Consumer({**conf, "group.id": self.workers_group, "enable.auto.commit": False})

    @property
    def workers_group(self) -> str:
        return f"{self._settings.prefix}.workers"

    def names(self, queues: Iterable[str]) -> dict[str, int]:
        """Topic -> partitions, of all that the engine needs."""
        settings = self._settings
        commands = {settings.commands_topic(queue): settings.partitions for queue in queues}
        return {
            **commands,
            settings.events_topic: settings.partitions,
            settings.workers_topic: 1,
            settings.logs_topic: 1,
            settings.control_topic: 1,
            settings.lifecycle_topic: settings.partitions,
        }

    def ensure(self, topics: dict[str, int]) -> list[str]:
        """Make those that are missing; answers which. Raises UnavailableError."""
        try:
            known = self._admin.list_topics(timeout=_TIMEOUT).topics
            missing = [name for name in topics if name not in known or known[name].error is not None]
            if not missing:
                return []
            if not self._settings.topic_ids:
                # The embedded log makes a topic when it is asked about it.
                for name in missing:
                    self._admin.list_topics(name, timeout=_TIMEOUT)
                return missing
            made = self._admin.create_topics([NewTopic(name, topics[name], -1, config=_RETENTION) for name in missing])
            for name, future in made.items():
                try:
                    future.result(_TIMEOUT)
                except KafkaException as e:
                    if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
                log.info("topic made", topic=name, partitions=topics[name])
            return missing
        except (KafkaException, TimeoutError) as e:
            raise UnavailableError(f"Kafka: {e}") from e

    def find(self, names: set[str]) -> set[str]:
        """Those of users' topics that exist; the embedded log makes them when it is asked about them. Raises
        UnavailableError."""
        try:
            if not self._settings.topic_ids:
                for name in names:
                    self._admin.list_topics(name, timeout=_TIMEOUT)
            known = self._admin.list_topics(timeout=_TIMEOUT).topics
        except KafkaException as e:
            raise UnavailableError(f"Kafka: {e}") from e
        return {name for name in names if name in known and known[name].partitions}

    def read(self, topics: Iterable[str]) -> dict[str, Log]:
        """Identity and ends of the topics that exist. Raises UnavailableError."""
        try:
            known = self._admin.list_topics(timeout=_TIMEOUT).topics
            names = [name for name in topics if name in known and known[name].partitions]
            ids = self._ids(names)
            return {name: Log(ids[name], self._ends(name, known[name].partitions)) for name in names if name in ids}
        except (KafkaException, TimeoutError) as e:
            raise UnavailableError(f"Kafka: {e}") from e

    def _ids(self, names: list[str]) -> dict[str, str]:
        if not self._settings.topic_ids or not names:
            return dict.fromkeys(names, self._settings.log_id)
        ids = {}
        for name, future in self._admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT).items():
            try:
                ids[name] = str(future.result(_TIMEOUT).topic_id)
            except KafkaException as e:
                if e.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return ids

    def _ends(self, name: str, partitions: Iterable[int]) -> dict[int, int]:
        return {p: self._group.get_watermark_offsets(TopicPartition(name, p), _TIMEOUT)[1] for p in partitions}

    def committed(self, logs: dict[str, Log]) -> dict[str, dict[int, int]]:
        """How far the workers' group has received, by topic and partition; -1 where it never committed, or where its
        position is one of a part that the log has lost: it tells nothing about what stands there now. Raises
        UnavailableError."""
        asked = [TopicPartition(name, p) for name, log_ in logs.items() for p in log_.ends]
        received: dict[str, dict[int, int]] = {}
        try:
            for answer in self._group.committed(asked, _TIMEOUT) if asked else []:
                topic, partition, offset = answer.topic, answer.partition, max(-1, answer.offset)
                if offset > logs[topic].ends[partition] and offset > self._ends(topic, [partition])[partition]:
                    offset = -1
                received.setdefault(topic, {})[partition] = offset
        except KafkaException as e:
            raise UnavailableError(f"Kafka: {e}") from e
        return received

    def close(self) -> None:
        self._group.close()
