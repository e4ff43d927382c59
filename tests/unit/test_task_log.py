"""What a worker does with the lines of its bodies: bounded, never in the way, and only those of bodies."""

import asyncio
import logging
from typing import Any

import pytest

from headrace.attempt import Attempt
from headrace.context import Context, running
from headrace.messages import Command, decode_logged
from headrace.worker import task_log
from headrace.worker.broker import Broker
from headrace.worker.task_log import LINES_MAX, WAITING_MAX, TaskLog

KEY = b"0190a0b0-0000-7000-8000-000000000001"


class Producer:
    """Stands where Kafka would be."""

    def __init__(self, *_: Any) -> None:
        self.sent: list[tuple[str, bytes, bytes]] = []
        self.unsent = 0
        self.has_some = asyncio.Event()

    def start(self) -> None: ...

    def add(self, topic: str, key: bytes, value: bytes) -> None:
        self.sent.append((topic, key, value))

    def flush(self) -> None:
        self.has_some.set()

    def __len__(self) -> int:
        return self.unsent

    async def empty(self, _: float) -> bool:
        return True

    async def close(self) -> None: ...


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    made = Producer()
    monkeypatch.setattr(task_log, "BatchProducer", lambda *_: made)
    monkeypatch.setattr(task_log, "FLUSH_SECONDS", 0.001)
    return made


def attempt(log: TaskLog | None, task: int = 0) -> Attempt:
    made = Attempt(KEY, Command(task, "task", "body", 1, 3, "nonce"))
    made.log = log
    return made


def logger() -> TaskLog:
    return TaskLog(Broker("127.0.0.1:1"), "worker", asyncio.get_running_loop())


def said(producer: Producer) -> list[tuple[int, str]]:
    return [(line.seq, line.message) for *_, value in producer.sent for line in decode_logged(value).lines]


async def sent(producer: Producer) -> list[tuple[int, str]]:
    async with asyncio.timeout(5):
        await producer.has_some.wait()
    return said(producer)


async def test_lines_of_one_hand_out_are_numbered_and_go_together(producer: Producer):
    log = logger()
    one, other = attempt(log), attempt(log, task=1)
    for number in range(3):
        log.add(one, 20, "", f"line {number}", {})
    log.add(other, 20, "", "of another", {"a": 1})
    assert await sent(producer) == [(0, "line 0"), (1, "line 1"), (2, "line 2"), (0, "of another")]
    topic, key, value = producer.sent[0]
    record = decode_logged(value)
    assert (topic, key) == ("headrace.logs", KEY)
    assert (record.task, record.attempt, record.token, record.nonce, record.worker) == (0, 1, 3, "nonce", "worker")


async def test_no_more_lines_are_kept_than_there_is_room_for_and_the_log_says_so(producer: Producer):
    log, one = logger(), attempt(None)
    for number in range(WAITING_MAX + 7):
        log.add(one, 20, "", f"line {number}", {})
    lines = await sent(producer)
    assert len(lines) == WAITING_MAX + 1
    assert lines[-1] == (WAITING_MAX + 7, lines[-1][1])
    assert lines[-1][1].startswith("7 lines were dropped")


async def test_a_hand_out_may_log_so_much_and_then_only_that_there_was_more(producer: Producer):
    log, one = logger(), attempt(None)
    one.lines = LINES_MAX
    log.add(one, 20, "", "one too many", {})
    assert [text.split(":")[0] for _, text in await sent(producer)] == ["1 lines were dropped"]


async def test_while_kafka_takes_nothing_lines_are_dropped_and_bodies_go_on(producer: Producer):
    log, one = logger(), attempt(None)
    log.add(one, 20, "", "first", {})
    await sent(producer)
    producer.sent.clear()
    producer.has_some.clear()
    producer.unsent = task_log.UNSENT_MAX + 1
    log.add(one, 20, "", "second", {})
    assert [text.split(":")[0] for _, text in await sent(producer)] == ["1 lines were dropped"]


async def test_the_standard_library_is_heard_inside_of_a_body_only(producer: Producer):
    log = logger()
    log.install()
    try:
        logging.getLogger("bank").error("outside")
        running.set(Context(attempt(log)))
        logging.getLogger("bank").error("inside: %s", "slow", extra={"waited": 3})
        logging.getLogger("headrace.task").error("said by ctx.log, which was heard already")
        assert await sent(producer) == [(0, "inside: slow")]
    finally:
        await log.close_within(0.1)
    logging.getLogger("bank").error("behind the end")
    assert said(producer) == [(0, "inside: slow")]


async def test_a_worker_whose_bodies_say_nothing_has_no_producer_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_log, "BatchProducer", lambda *_: pytest.fail("a producer was made"))
    log = logger()
    log.install()
    await log.close_within(0.1)
    assert log not in logging.getLogger().handlers
