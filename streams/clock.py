"""The database's clock, without asking it every time. No decision uses this process's own wall clock."""

import time
from typing import Final

from state.sql import load
from streams.database import Database

_SQL = load("run")
REFRESH_SECONDS: Final = 5.0
"""Monotonic clocks drift by some 50 ppm against a disciplined one: 0.25 ms in this time."""


class DatabaseClock:
    """Microseconds since 1970 UTC by Postgres: read every few seconds, carried on by the monotonic clock."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offset = 0
        self._read_at = float("-inf")

    def now(self) -> int:
        """Raises UnavailableError when it must be read and Postgres is away."""
        if time.monotonic() - self._read_at > REFRESH_SECONDS:
            ((at,),) = self._database.fetch(_SQL.text("read_clock"))
            self._offset = at - time.monotonic_ns() // 1000
            self._read_at = time.monotonic()
        return self._offset + time.monotonic_ns() // 1000
