"""Keeps loops that move batches from moving many small ones."""

import time
from collections.abc import Callable
from typing import Final

BUSY: Final = 8
"""Records in a turn behind which a loop keeps its whole pace; behind fewer it waits in proportion, behind one not."""


class Pace:
    """At most one turn in `seconds` while turns move much: a busy loop gathers more per turn, an idle one is not held
    up.

    Every turn has a price that does not depend on how much it moves (a request, a transaction, a wake-up of everybody
    behind it). At half load those prices were most of the CPU of a step; under a light load there is CPU for them, and
    waiting would only be latency (docs/performance.md).
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._seconds, self._clock, self._sleep = seconds, clock, sleep
        self._next = 0.0

    @property
    def left(self) -> float:
        """Seconds until a turn may begin; not above zero: at once. For a loop that waits by other means."""
        return self._next - self._clock()

    def wait(self) -> None:
        """Wait until a turn may begin."""
        if (left := self.left) > 0:
            self._sleep(left)

    def begun(self, records: int) -> None:
        """A turn has begun, with so many records."""
        self._next = self._clock() + self._seconds * min(max(records - 1, 0), BUSY) / BUSY
