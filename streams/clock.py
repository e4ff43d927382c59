"""The database's clock, without asking it every time. No decision uses this process's own wall clock."""

import time
from typing import Final

from state.sql import load
from streams.database import Database

_SQL = load("run")
REFRESH_SECONDS: Final = 1.0
"""How late a step of the database's clock is followed. Meanwhile monotonic clocks drift by some 50 ppm: 0.05 ms."""
SLOW_SECONDS: Final = 0.01
SLOW_REFRESH_SECONDS: Final = 0.5
STEP_SECONDS: Final = 0.1
"""Less is taken for drift between two readings, and is less than a healthy worker has left of its lease."""


class DatabaseClock:
    """Microseconds since 1970 UTC by Postgres: read every few seconds, carried on by the monotonic clock.

    Never behind it: a slow answer makes it run ahead by as much as the question took, so what is due in a while is due
    a little later, and never too early. Such a reading is soon replaced.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offset = 0
        self._read_at = float("-inf")

    def now(self) -> int:
        """Raises UnavailableError when it must be read and Postgres is away."""
        if time.monotonic() - self._read_at > REFRESH_SECONDS:
            asked = time.monotonic_ns() // 1000
            ((at,),) = self._database.fetch(_SQL.text("read_clock"))
            self._offset = at - asked
            self._read_at = time.monotonic()
            if self._read_at - asked / 1e6 > SLOW_SECONDS:
                self._read_at -= REFRESH_SECONDS - SLOW_REFRESH_SECONDS
        return self._offset + time.monotonic_ns() // 1000


class Steps:
    """Notices that the database's clock was stepped: that it moved by another amount than time did.

    A reading that took long bounds the clock less well, so that it is never taken for a step itself.
    """

    def __init__(self) -> None:
        self._bounds: tuple[int, int] | None = None
        self._noticed_at = float("-inf")

    def note(self, asked: int, at: int, answered: int) -> float:
        """Take in one reading; answers by how many seconds the clock was stepped since the last one, 0 for not.

        asked, answered: monotonic, around the reading; all in microseconds.
        """
        known, self._bounds = self._bounds, (at - answered, at - asked)
        if known is None:
            return 0.0
        step = max(self._bounds[0] - known[1], 0) + min(self._bounds[1] - known[0], 0)
        if abs(step) <= STEP_SECONDS * 1e6:
            return 0.0
        self._noticed_at = time.monotonic()
        return step / 1e6

    def seconds_ago(self) -> float:
        """How long ago the last step was noticed; infinite before the first."""
        return time.monotonic() - self._noticed_at
