"""The database's clock, without asking it every time. No decision uses this process's own wall clock."""

import time
from typing import Final

from state.sql import load
from streams.database import Database

_SQL = load("run")
REFRESH_SECONDS: Final = 5.0
"""Monotonic clocks drift by some 50 ppm against a disciplined one: 0.25 ms in this time."""
SLOW_SECONDS: Final = 0.01
SLOW_REFRESH_SECONDS: Final = 0.5


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
