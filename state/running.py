"""How many runs are running, told often and counted seldom: what the limits on starts look at."""

import time
from typing import Final

from state.queries.rows import Connection
from state.queries.run import count_running

READ_SECONDS: Final = 1.0
"""A count is as old as this at most, or as SHARE times what it took; this process adds what it starts meanwhile."""
SHARE: Final = 20


class Running:
    """Over all namespaces; those that wait for people do not count."""

    def __init__(self, limit: int) -> None:
        """limit: no more than so many are counted."""
        self._limit = limit
        self.count = 0
        self._read_next = 0.0

    async def refresh(self, connection: Connection) -> None:
        """Count again if it is time; one caller does while others go on with what is known."""
        began = time.monotonic()
        if began < self._read_next:
            return
        self._read_next = began + READ_SECONDS
        try:
            self.count = await count_running(connection, self._limit)
        except BaseException:
            self._read_next = 0.0  # nothing was learned
            raise
        ended = time.monotonic()
        self._read_next = ended + max(READ_SECONDS, SHARE * (ended - began))
