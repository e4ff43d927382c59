"""Faults of the network between one group of processes and one server, made by the fault proxy."""

import time
from typing import ClassVar

from tests.chaos.fault import Fault
from tests.chaos.proxy import Weather


class _Network(Fault):
    """Weather over some links for a while."""

    links: ClassVar[tuple[str, ...]] = ()
    """`<group>-<server>`; one of them is drawn, unless `all_links`."""
    all_links: ClassVar[bool] = False

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._links = self.links if self.all_links else (self.draw.choice(self.links),)

    def weather(self) -> Weather:
        raise NotImplementedError

    def begin(self) -> None:
        self.facts["links"] = self._links
        self._carried = self._bytes()
        for link in self._links:
            self.system.proxies.set(link, self.weather())

    def heal(self) -> None:
        """Bytes that met the weather, or open connections that it held up, prove that it fired."""
        proxies = self.system.proxies
        open_pipes = sum(len(proxies.by_group[link].pipes) for link in self._links)
        self.fired += bool(open_pipes or self._bytes() > self._carried)
        for link in self._links:
            proxies.clear(link)

    def _bytes(self) -> int:
        return sum(self.system.proxies.by_group[link].bytes_carried for link in self._links)


_KAFKA = ("workers-kafka", "streams-kafka", "relay-kafka")
_POSTGRES = ("streams-postgres", "relay-postgres", "api-postgres")


class KafkaSlow(_Network):
    kind = "F27 latency to Kafka"
    uses = frozenset({"kafka"})
    links, all_links = _KAFKA, True
    lasts = (2.0, 6.0)

    def weather(self) -> Weather:
        return Weather(latency_seconds=self.draw.uniform(0.02, 0.15))


class PostgresSlow(_Network):
    kind = "F27 latency to Postgres"
    uses = frozenset({"postgres"})
    links, all_links = _POSTGRES, True
    lasts = (2.0, 6.0)

    def weather(self) -> Weather:
        return Weather(latency_seconds=self.draw.uniform(0.02, 0.3))


class NarrowKafka(_Network):
    kind = "F27 narrow link to Kafka"
    uses = frozenset({"kafka"})
    links = _KAFKA
    lasts = (2.0, 6.0)

    def weather(self) -> Weather:
        return Weather(bytes_per_second=64_000)


class NarrowPostgres(_Network):
    kind = "F27 narrow link to Postgres"
    uses = frozenset({"postgres"})
    links = _POSTGRES
    lasts = (2.0, 6.0)

    def weather(self) -> Weather:
        return Weather(bytes_per_second=64_000)


class _OneWay(_Network):
    """Bytes of one direction wait; the other goes on."""

    lasts = (1.0, 7.0)

    def weather(self) -> Weather:
        up = self.facts["direction"] = self.draw.choice(("up", "down", "both"))
        return Weather(is_cut_up=up != "down", is_cut_down=up != "up")


class WorkersCutFromKafka(_OneWay):
    kind = "F28 partition: workers, Kafka"
    uses = frozenset({"kafka", "worker"})
    links = ("workers-kafka",)


class StreamsCutFromKafka(_OneWay):
    kind = "F28 partition: streams, Kafka"
    uses = frozenset({"kafka", "streams"})
    links = ("streams-kafka",)


class RelayCutFromKafka(_OneWay):
    kind = "F28 partition: relay, Kafka"
    uses = frozenset({"kafka", "relay"})
    links = ("relay-kafka",)


class StreamsCutFromPostgres(_OneWay):
    kind = "F28 partition: streams, Postgres"
    uses = frozenset({"postgres", "streams"})
    links = ("streams-postgres",)


class RelayCutFromPostgres(_OneWay):
    kind = "F28 partition: relay, Postgres"
    uses = frozenset({"postgres", "relay"})
    links = ("relay-postgres",)


class ApiCutFromPostgres(_OneWay):
    kind = "F28 partition: api, Postgres"
    uses = frozenset({"postgres", "api"})
    links = ("api-postgres",)


class _Reset(Fault):
    """RST on every connection of some links, once a second for a while."""

    links: ClassVar[tuple[str, ...]] = ()
    lasts = (0.0, 0.0)

    def begin(self) -> None:
        for _ in range(self.draw.choice((1, 4))):
            self.fired += sum(self.system.proxies.drop(link) for link in self.links)
            time.sleep(1.0)


class KafkaReset(_Reset):
    kind = "F26 connections to Kafka reset"
    uses = frozenset({"kafka"})
    links = _KAFKA


class PostgresReset(_Reset):
    kind = "F26 connections to Postgres reset"
    uses = frozenset({"postgres"})
    links = _POSTGRES


class KafkaRefuses(_Network):
    kind = "F26 Kafka refuses new connections"
    uses = frozenset({"kafka"})
    links = _KAFKA
    lasts = (1.0, 4.0)

    def weather(self) -> Weather:
        return Weather(refuses=True)

    def begin(self) -> None:
        super().begin()
        self.fired += self.system.proxies.drop(self._links[0])


class _CutAtCommit(Fault):
    """Some connections of every link to Postgres are cut at a COMMIT."""

    how: ClassVar[str] = ""
    uses = frozenset({"postgres"})
    lasts = (2.0, 3.0)

    def begin(self) -> None:
        proxies = self.system.proxies
        before = {link: proxies.by_group[link].cuts_made for link in _POSTGRES}
        for _ in range(4):
            for link in _POSTGRES:
                proxies.set(link, Weather(cut_at_commit="unknown" if self.how == "unknown" else "committed"))
            time.sleep(0.5)
        self.fired += sum(proxies.by_group[link].cuts_made - before[link] for link in _POSTGRES)

    def heal(self) -> None:
        for link in _POSTGRES:
            self.system.proxies.clear(link)


class CutAtCommit(_CutAtCommit):
    kind = "F21 cut when COMMIT was sent"
    how = "unknown"
    share = 2.0


class CommitAnswerLost(_CutAtCommit):
    kind = "F06 committed, and the answer lost"
    how = "committed"
    share = 2.0
