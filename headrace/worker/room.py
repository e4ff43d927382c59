"""How much more a worker may take: what binds the intake's thread to what the event loop gets done."""

import threading
from typing import Final

BYTES_MAX: Final = 64 << 20
"""Most bytes of commands held at once: a thousand commands of the largest size would be 900 MB."""


class Room:
    """A bound on commands handed over and not yet released. Each counter has one writer, so nothing is locked:
    the intake's thread writes what was handed over, the event loop what was released and the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._handed, self._handed_bytes = 0, 0
        self._released, self._released_bytes = 0, 0
        self._space = threading.Event()
        self._is_awaited = False

    # -- the intake's thread -------------------------------------------------------------------------------------------
    def take(self, count: int, size: int) -> None:
        self._handed += count
        self._handed_bytes += size

    @property
    def free(self) -> int:
        """How many commands may come now; not above zero when full."""
        if self._handed_bytes - self._released_bytes >= BYTES_MAX:
            return 0
        return self.limit - (self._handed - self._released)

    @property
    def is_half_free(self) -> bool:
        return self.free * 2 >= self.limit

    def wait(self, seconds: float) -> None:
        """Until half is free, or so long."""
        self._is_awaited = True
        if not self.is_half_free:
            self._space.wait(seconds)
        self._is_awaited = False
        self._space.clear()

    # -- the event loop ------------------------------------------------------------------------------------------------
    def release(self, size: int) -> None:
        self._released += 1
        self._released_bytes += size

    def offer(self) -> None:
        """Wake a waiting intake once half is free; cheap enough for every turn of the loop."""
        if self._is_awaited and self.is_half_free:
            self._space.set()

    def wake(self) -> None:
        """End a wait in any case. Safe from any thread."""
        self._space.set()
