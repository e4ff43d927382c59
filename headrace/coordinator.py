"""Notices a consumer that has lost its group's coordinator for good.

librdkafka can drop a broker that was silent for longer than its session, and then never asks for the coordinator again
(its issue 5511): the consumer lives, is no member of its group any more, and says nothing. Its own statistics tell.
"""

import time
from typing import Any, Final

import msgspec

INTERVAL_MS: Final = 5_000
LOST_SECONDS: Final = 15.0
"""Longer than a broker takes to come back to its clients; a consumer made anew meanwhile does no harm."""


class _Group(msgspec.Struct, frozen=True):
    state: str = "up"


class _Statistics(msgspec.Struct, frozen=True):
    cgrp: _Group = _Group()


_decode: Final = msgspec.json.Decoder(_Statistics).decode


class CoordinatorWatch:
    """Of one consumer, which calls it while it is polled."""

    def __init__(self) -> None:
        self._without_since: float | None = None

    def settings(self) -> dict[str, Any]:
        """What the consumer needs to be told."""
        return {"statistics.interval.ms": INTERVAL_MS, "stats_cb": self.hear}

    def hear(self, statistics: str) -> None:
        if _decode(statistics).cgrp.state == "up":
            self._without_since = None
        elif self._without_since is None:
            self._without_since = time.monotonic()

    @property
    def is_lost(self) -> bool:
        return self._without_since is not None and time.monotonic() - self._without_since > LOST_SECONDS
