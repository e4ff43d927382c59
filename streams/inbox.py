"""What was read and is not being applied yet, by topic: the transport's thread fills it, the event loop empties it.

So reading goes on while a batch is applied, and an agent that has finished one takes the next without waiting for a
thread. Records of the same leases grow into one batch.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Final

from streams.batch import Batch

RECORDS_MAX: Final = 2_000
"""Most records that wait, over all topics: a few milliseconds of work, and a transaction of a size Postgres likes. More
is only fenced when ownership moves."""


class Inbox:
    """Each topic has one reader on the loop, which takes until nothing is there and is then told of what comes."""

    def __init__(self, records_max: int = RECORDS_MAX) -> None:
        self._records_max = records_max
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Batch]] = defaultdict(deque)
        self._told: set[str] = set()
        """Topics whose reader knows that something came, until it has found nothing."""
        self._records = 0
        self._space = threading.Event()

    # -- on the thread

    @property
    def room(self) -> int:
        """How many records may come; not above zero when full."""
        return self._records_max - self._records

    def put(self, batches: Iterable[Batch]) -> list[str]:
        """Answers the topics whose readers have to be told."""
        untold = []
        with self._lock:
            for batch in batches:
                waiting = self._waiting[batch.topic]
                self._records += len(batch)
                if not (waiting and waiting[-1].absorb(batch)):
                    waiting.append(batch)
                if batch.topic not in self._told:
                    self._told.add(batch.topic)
                    untold.append(batch.topic)
        return untold

    def wait(self, seconds: float) -> bool:
        """Wait so long for room; whether there is some."""
        self._space.clear()
        if self.room <= 0:
            self._space.wait(seconds)
        return self.room > 0

    # -- on the loop

    def take(self, topic: str) -> Batch | None:
        """The oldest batch that waits; None: nothing does, and the reader will be told."""
        with self._lock:
            waiting = self._waiting[topic]
            if not waiting:
                self._told.discard(topic)
                return None
            batch = waiting.popleft()
            self._records -= len(batch)
        self._space.set()
        return batch
