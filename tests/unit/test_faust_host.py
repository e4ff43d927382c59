"""Faust as a host may lose what travels through it; batches do not travel through it."""

import asyncio
import time
from collections.abc import Callable

import pytest

from streams.batch import Body
from streams.faust_host import FaustHost, Words

TOPIC = "events"


async def _until(fact: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 10
    while not fact():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.01)


async def _body(_: object) -> None:
    raise AssertionError("the transport calls it")


async def test_a_word_that_got_lost_in_faust_is_given_again(monkeypatch: pytest.MonkeyPatch):
    applied: list[str] = []
    lost: list[str] = []
    hear = Words.next

    async def hear_but_the_first(words: Words) -> str:
        """The first word vanishes, as it does when Faust clears its queues at the end of its start."""
        topic = await hear(words)
        if not lost:
            lost.append(topic)
            return await hear(words)
        return topic

    async def apply(topic: str, body: Body) -> None:
        applied.append(topic)

    monkeypatch.setattr(Words, "next", hear_but_the_first)
    host = FaustHost("test", {TOPIC: _body})
    serving = asyncio.create_task(host.serve(apply))
    try:
        host.tell(TOPIC)
        await _until(lambda: len(applied) > 0)
        assert lost == [TOPIC]
        heard = len(applied)
        await asyncio.sleep(0.5)  # longer than words are given again
        assert len(applied) == heard
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_topic_that_is_told_of_again_is_applied_again():
    applied: asyncio.Queue[str] = asyncio.Queue()

    async def apply(topic: str, body: Body) -> None:
        await asyncio.sleep(0)
        applied.put_nowait(topic)

    host = FaustHost("test", {TOPIC: _body})
    serving = asyncio.create_task(host.serve(apply))
    try:
        for _ in range(5):
            host.tell(TOPIC)
            assert await asyncio.wait_for(applied.get(), 10) == TOPIC
        assert applied.empty()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
