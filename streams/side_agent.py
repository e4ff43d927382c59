"""What the agents beside the run agent do alike: a batch is applied however often it takes, and what cannot be read is
set aside."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from confluent_kafka import Message

from headrace.errors import UnavailableError
from state.pipe import Overtaken
from state.store import Rows
from streams.batch import Batch
from streams.ownership import Ownership

log = structlog.get_logger(__name__)
RETRY_SECONDS: Final = 0.1


async def apply(batch: Batch, ownership: Ownership, once: Callable[[Batch], None], what: str) -> None:
    """Call `once`, one transaction, until it neither is overtaken nor finds Postgres away. Returns when the batch is
    committed or no longer ours; raises what else `once` does. what: that waits meanwhile, for the log."""
    while True:
        try:
            return once(batch)
        except (Overtaken, UnavailableError) as e:
            log.debug(f"{what} wait", why=str(e))
        await asyncio.sleep(RETRY_SECONDS)
        try:
            ownership.refresh(batch.topic)
        except UnavailableError:
            continue


def set_aside(rows: Rows, record: Message, namespace: str, why: str) -> None:
    """Keep a record that cannot be read as a dead letter, with its bytes and where it stood."""
    place = (record.topic() or "", record.partition() or 0, record.offset() or 0)
    rows.bury_record(namespace, None, *place, record.key(), record.value(), why, headers=record.headers())
