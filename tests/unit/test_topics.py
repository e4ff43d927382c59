"""What the engine asks Kafka about its topics."""

from typing import Any

import pytest
from confluent_kafka import TopicPartition

from state.settings import EngineSettings
from streams import topics
from streams.topics import Log, Topics

TOPIC = "headrace.commands.default"


class Group:
    """A consumer whose group stands at `positions`, in a log that ends at `ends`."""

    def __init__(self, positions: list[int], ends: list[int]) -> None:
        self.positions, self.ends = positions, ends

    def committed(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(each.topic, each.partition, self.positions[each.partition]) for each in asked]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.ends[place.partition]


@pytest.mark.parametrize(
    ("position", "end_then", "end_now", "received"),
    [
        (7, 9, 9, 7),
        (9, 9, 9, 9),
        (-1001, 9, 9, -1),  # never committed
        (11, 9, 12, 11),  # the log grew between the two questions
        (11, 9, 9, -1),  # the log lost its tail
    ],
)
def test_f17_a_position_in_a_part_that_the_log_has_lost_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, position: int, end_then: int, end_now: int, received: int
) -> None:
    def make_group(conf: dict[str, Any]) -> Group:
        return Group([position], [end_now])

    monkeypatch.setattr(topics, "Consumer", make_group)
    asked = Topics(EngineSettings(secret="s" * 32))  # pyright: ignore[reportArgumentType]
    assert asked.committed({TOPIC: Log("id", {0: end_then})}) == {TOPIC: {0: received}}
