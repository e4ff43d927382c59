"""A batch: records of one topic to be applied together, and the two functions that the engine supplies for it."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message


def _ignore(why: str) -> None:
    """Stand in for `Batch.on_rebuild` where no transport is behind the batch, as in a unit test of a body."""


def _ignore_fence(topic: str, epoch: int, partition: int) -> None:
    """Likewise."""


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one topic, with the epochs under which they were fetched.

    It may be applied late, after its partitions went to another process or after its topic was re-created. Its epochs
    then no longer equal those in Postgres, so such a batch can only be fenced, never applied.
    """

    topic: str
    topic_id: str
    """The identity of the log that the offsets belong to: the topic id, or the setting LOG_ID."""
    records: dict[int, list[Message]]
    """Partition -> its records in the order of their offsets; no partition is empty, and each has an epoch."""
    epochs: dict[int, int]
    """Partition -> epoch granted by the lease; may name partitions that have no records here."""
    on_rebuild: Callable[[str], None] = field(default=_ignore, repr=False)
    on_fenced: Callable[[str, int, int], None] = field(default=_ignore_fence, repr=False)

    def __len__(self) -> int:
        return sum(map(len, self.records.values()))

    def absorb(self, later: "Batch") -> bool:
        """Take in what was read after it, if it was under the same leases; whether it was."""
        if later.epochs is not self.epochs or later.topic_id != self.topic_id:
            return False
        for partition, records in later.records.items():
            self.records.setdefault(partition, []).extend(records)
        return True

    def rebuild(self, why: str) -> None:
        """Ask the transport to throw its consumer away and lease again: a hole, or an offset that is lost.

        Does nothing when the consumer that fetched this batch is already gone. Safe to repeat.
        """
        self.on_rebuild(why)

    def fenced(self, partition: int) -> None:
        """Say that a partition of this batch is not ours any more by Postgres. Safe to repeat."""
        self.on_fenced(self.topic, self.epochs.get(partition, 0), partition)


Lease = Callable[[str, str, list[int]], Awaitable[dict[int, tuple[int, int | None]]]]
"""Take ownership: (topic, topic id, partitions) -> {partition: (epoch, next offset, or None for the log's beginning)}.

Every call raises the epoch of each partition named and answers for all of them. A topic id other than the stored one
means another log: the next offset becomes None. An exception is logged once and the call repeated.
"""

Body = Callable[[Batch], Awaitable[None]]
"""Apply a batch: effects and next offsets in one transaction, fenced by `Batch.epochs`. Raising ends the process."""

Apply = Callable[[str, Body], Coroutine[Any, Any, None]]
"""What a host calls when it was told of a topic (`Transport.apply`): it runs the body on all that waits for it."""
