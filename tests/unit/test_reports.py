"""Answers of a worker survive a producer that broke: its client raises a fatal error where it is served, and tells it
nowhere else."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

import headrace.worker.reports
from headrace.worker.broker import Broker, Link
from headrace.worker.reports import Reports
from headrace.worker.stats import Stats

FATAL = KafkaError(KafkaError._FATAL, "sequence desynchronization", fatal=True)


class Told:
    """What a delivery report says of a record."""

    def __init__(self, record: dict[str, bytes]) -> None:
        self._record = record

    def key(self) -> bytes:
        return self._record["key"]

    def value(self) -> bytes:
        return self._record["value"]


class Producer:
    """Holds what it is given; the first raises once served, and hands everything back when purged."""

    made: ClassVar[list["Producer"]] = []

    def __init__(self, settings: dict[str, Any]) -> None:
        self._on_delivery: Callable[[KafkaError, Told], None] = settings["on_delivery"]
        self.is_broken, self.is_purged = not Producer.made, False
        self.held: list[dict[str, bytes]] = []
        Producer.made.append(self)

    def __len__(self) -> int:
        return len(self.held)

    def produce_batch(self, topic: str, records: list[dict[str, bytes]]) -> int:
        self.held += records
        return len(records)

    def produce(self, topic: str, value: bytes, key: bytes, headers: Any) -> None:
        if self.is_broken:
            raise KafkaException(FATAL)
        self.held.append({"key": key, "value": value})

    def purge(self) -> None:
        self.is_purged = True

    def poll(self, seconds: float) -> int:
        if self.is_broken and not self.is_purged:
            raise KafkaException(FATAL)
        if self.is_broken:
            self.is_broken = False
            raise KafkaException(FATAL)  # once more, before it hands out what it held
        if self.is_purged:
            held, self.held = self.held, []
            for record in held:
                self._on_delivery(KafkaError(KafkaError._PURGE_QUEUE), Told(record))
        return 0

    def flush(self, seconds: float) -> int:
        return len(self.held)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    monkeypatch.setattr(Producer, "made", [])
    monkeypatch.setattr(headrace.worker.reports, "Producer", Producer)
    return Reports(Broker("nowhere:1"), Link("nowhere:1"), Stats())


def test_what_a_broken_producer_held_is_sent_through_the_next(reports: Reports):
    reports.add(b"run", b"answer", None)
    reports.flush()  # the fatal error comes here
    reports.add(b"run", b"another", None)
    for _ in range(3):
        reports.flush()
    broken, following = Producer.made
    assert (broken.held, [record["value"] for record in following.held]) == ([], [b"another", b"answer"])


def test_a_close_sends_what_a_producer_held_that_broke_at_the_last_moment(reports: Reports):
    reports.add(b"run", b"answer", None)
    reports.close(0.1)
    assert [record["value"] for record in Producer.made[-1].held] == [b"answer"]
    assert len(Producer.made) == 2
