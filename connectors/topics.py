"""See that a topic exists before records are sent to it: a broker would choose its partitions, or refuse."""

from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

ASK_SECONDS: Final = 1.0
CREATE_SECONDS: Final = 10.0
_DEFAULT_REPLICATION: Final = -1
_NAMES_REFUSED: Final = (KafkaError.TOPIC_EXCEPTION,)


class Topics:
    """The topics known to exist, until `forget`. Raises KafkaException while Kafka is away."""

    def __init__(self, kafka: str, prefix: str, partitions: int, can_create: bool = True) -> None:
        """can_create: False for the embedded broker, which creates topics on sight and knows no admin requests."""
        self._kafka, self._prefix, self._partitions, self._can_create = kafka, prefix, partitions, can_create
        self._known: set[str] = set()
        self.refused: dict[str, str] = {}
        """Names that Kafka will never take, with its reason."""

    def ensure(self, names: Iterable[str]) -> None:
        """Create what is missing; afterwards each name exists or is in `refused`.

        Costs nothing for names seen before.
        """
        new = set(names) - self._known
        if not new or not self._can_create:
            return
        admin = self._admin()
        missing = new - set(admin.list_topics(timeout=ASK_SECONDS).topics)
        if missing:
            self._create(admin, missing)
        self._known |= new

    def have_vanished(self, names: Iterable[str]) -> bool:
        """Whether Kafka answers and lacks a topic that it had: it was wiped, or the topic deleted."""
        if not self._can_create:
            return False
        wanted = set(names) & self._known - self.refused.keys()
        return not wanted <= set(self._admin().list_topics(timeout=ASK_SECONDS).topics)

    def forget(self) -> None:
        self._known.clear()
        self.refused.clear()

    def partitions_of(self, name: str) -> int:
        """How many partitions a new topic gets: those that carry runs as many as set, all others one."""
        carries_runs = name == f"{self._prefix}.events" or name.startswith(f"{self._prefix}.commands.")
        return self._partitions if carries_runs else 1

    def _create(self, admin: AdminClient, names: set[str]) -> None:
        wanted = [NewTopic(name, self.partitions_of(name), _DEFAULT_REPLICATION) for name in sorted(names)]
        for name, creation in admin.create_topics(
            wanted, operation_timeout=CREATE_SECONDS, request_timeout=CREATE_SECONDS
        ).items():
            try:
                creation.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code in _NAMES_REFUSED:
                    self.refused[name] = error.args[0].str()
                elif code != KafkaError.TOPIC_ALREADY_EXISTS:  # another relay, or the run agent, was faster
                    raise

    def _admin(self) -> AdminClient:
        """A new one each time: it is needed once per topic and would cost idle threads for ever."""
        return AdminClient({"bootstrap.servers": self._kafka, "log_level": 0})
