"""The host without Faust: a coroutine per topic."""

import asyncio
from collections.abc import Mapping

from streams.batch import Apply, Body


class PlainHost:
    """Applies the batches of each topic in order; topics do not wait for each other."""

    def __init__(self, bodies: Mapping[str, Body]) -> None:
        self._bodies = dict(bodies)
        self._told = {topic: asyncio.Event() for topic in bodies}

    def tell(self, topic: str) -> None:
        self._told[topic].set()

    async def serve(self, apply: Apply) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for topic, body in self._bodies.items():
                    group.create_task(self._serve_topic(topic, body, apply))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first body that raised; the group cancelled the others

    async def _serve_topic(self, topic: str, body: Body, apply: Apply) -> None:
        while True:
            await self._told[topic].wait()
            self._told[topic].clear()
            await apply(topic, body)
