"""Carries bulks out, and finds out when replayed records have been read.

Both are sweeps: they look at Postgres, act in one transaction, and may be killed at any instant; any number of
processes may run them.
"""

import asyncio
from typing import Any, Final

import psycopg

from state.bulk import seconds_to_next
from state.bulk_replays import list_unread_records, note_ends
from state.bulk_steps import step
from state.plans import Plans
from state.store import Store
from streams.topics import Topics

LOOK_SECONDS: Final = 0.5
"""How soon a bulk begins once it was asked for."""

Connection = psycopg.AsyncConnection[Any]


class Bulk:
    def __init__(self, store: Store, plans: Plans, topics: Topics) -> None:
        self._store, self._plans, self._topics = store, plans, topics
        self._seconds: float | None = 0.0
        """Until the rate of some bulk allows another step; None: none is open."""

    async def act(self, connection: Connection) -> int:
        """One step of one open bulk, in a transaction of its own."""
        done = 0
        if self._seconds is not None:
            async with connection.transaction():
                done = await step(connection, self._store, self._plans)
        self._seconds = await seconds_to_next(connection, self._store.settings.namespace)
        return done

    async def until_due(self) -> None:
        await asyncio.sleep(LOOK_SECONDS if self._seconds is None else min(LOOK_SECONDS, max(0.0, self._seconds)))

    async def note_published(self, connection: Connection) -> int:
        """Note how far the topics of replayed records reach: a partition read so far has met them. One that is gone
        reaches nowhere."""
        unread = await list_unread_records(connection)
        if not unread:
            return 0
        logs = await asyncio.to_thread(self._topics.read, sorted({record.topic for record in unread}))
        ends = {topic: log.ends for topic, log in logs.items()}
        found = [(record.dead_letter_id, ends.get(record.topic, {}).get(record.partition, 0)) for record in unread]
        await note_ends(connection, found)
        return len(found)
