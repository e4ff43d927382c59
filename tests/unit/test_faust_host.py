"""Faust as a host may lose what travels through it; a batch does not travel through it."""

import asyncio
import time
from collections.abc import Callable

import pytest

from streams.batch import Batch, Body
from streams.faust_host import FaustHost, Inbox

TOPIC = "events"


async def _until(fact: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 10
    while not fact():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.01)


async def test_a_batch_whose_word_got_lost_in_faust_is_applied_all_the_same(monkeypatch: pytest.MonkeyPatch):
    applied: list[Batch] = []
    lost: list[str] = []
    hear = Inbox.word

    async def word(inbox: Inbox) -> str:
        """The first word vanishes, as it does when Faust clears its queues at the end of its start."""
        topic = await hear(inbox)
        if not lost:
            lost.append(topic)
            return await hear(inbox)
        return topic

    async def body(batch: Batch) -> None:
        applied.append(batch)

    async def apply(batch: Batch, body: Body) -> None:
        await body(batch)

    monkeypatch.setattr(Inbox, "word", word)
    host = FaustHost("test", {TOPIC: body})
    serving = asyncio.create_task(host.serve(apply))
    try:
        host.deliver(batch := Batch(TOPIC, "id", {}, {}))
        await _until(lambda: len(applied) > 0)
        assert (applied, lost) == ([batch], [TOPIC])
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_batches_of_a_topic_are_applied_in_the_order_of_their_coming_and_once():
    applied: list[Batch] = []

    async def body(batch: Batch) -> None:
        await asyncio.sleep(0)
        applied.append(batch)

    async def apply(batch: Batch, body: Body) -> None:
        await body(batch)

    host = FaustHost("test", {TOPIC: body})
    serving = asyncio.create_task(host.serve(apply))
    batches = [Batch(TOPIC, str(n), {}, {}) for n in range(20)]
    try:
        for batch in batches:
            host.deliver(batch)
        await _until(lambda: len(applied) == len(batches))
        await asyncio.sleep(0.3)  # longer than word is given again
        assert applied == batches
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
