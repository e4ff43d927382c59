"""The watchdog of a worker's intake: commands that are there and do not come."""

import pytest
from confluent_kafka import KafkaException, TopicPartition

from headrace.worker.broker import Rebuild
from headrace.worker.intake import Watchdog


class Consumer:
    """One partition that ends at `end` and is read up to `position`."""

    def __init__(self, position: int, end: int, committed: int = -1001) -> None:
        self.read, self.end, self.stored, self.is_away = position, end, committed, False

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("commands", 3)]

    def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
        return [TopicPartition(place.topic, place.partition, self.read) for place in places]

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(place.topic, place.partition, self.stored) for place in places]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        if self.is_away:
            raise KafkaException("away")
        return 0, self.end


def look(watchdog: Watchdog, consumer: Consumer, times: int) -> None:
    for _ in range(times):
        watchdog.look(consumer)  # type: ignore[arg-type]


@pytest.mark.parametrize("consumer", [Consumer(5, 9), Consumer(-1001, 9, committed=5), Consumer(-1001, 9)])
def test_a_consumer_that_stands_still_before_the_end_is_thrown_away_at_the_second_look(consumer: Consumer):
    watchdog = Watchdog()
    look(watchdog, consumer, 1)
    with pytest.raises(Rebuild, match=r"commands\[3\]"):
        look(watchdog, consumer, 1)


@pytest.mark.parametrize("consumer", [Consumer(9, 9), Consumer(-1001, 9, committed=9), Consumer(-1001, 0)])
def test_a_consumer_that_has_read_all_is_left_alone(consumer: Consumer):
    look(Watchdog(), consumer, 3)


def test_one_that_moves_or_receives_or_cannot_ask_is_left_alone():
    watchdog, consumer = Watchdog(), Consumer(5, 9)
    look(watchdog, consumer, 1)
    consumer.read = 6
    look(watchdog, consumer, 1)
    watchdog.fed()
    look(watchdog, consumer, 1)
    consumer.is_away = True
    look(watchdog, consumer, 1)
    consumer.is_away = False
    look(watchdog, consumer, 1)
