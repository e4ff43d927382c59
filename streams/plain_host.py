"""The host without Faust: a queue and a coroutine per topic."""

import asyncio
from collections.abc import Mapping

from streams.batch import Apply, Batch, Body


class PlainHost:
    """Applies the batches of each topic in order; topics do not wait for each other."""

    def __init__(self, bodies: Mapping[str, Body]) -> None:
        self._bodies = dict(bodies)
        self._inboxes: dict[str, asyncio.Queue[Batch]] = {topic: asyncio.Queue() for topic in bodies}

    def deliver(self, batch: Batch) -> None:
        self._inboxes[batch.topic].put_nowait(batch)

    async def serve(self, apply: Apply) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for topic, body in self._bodies.items():
                    group.create_task(self._serve_topic(self._inboxes[topic], body, apply))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first body that raised; the group cancelled the others

    async def _serve_topic(self, inbox: asyncio.Queue[Batch], body: Body, apply: Apply) -> None:
        while True:
            await apply(await inbox.get(), body)
