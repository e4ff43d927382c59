"""The highest token of every task that this worker has met lately: what makes a repeated command harmless here."""

import time
from typing import Final

from headrace.attempt import Name

NAMES_MAX: Final = 50_000
"""Names in one generation, about 10 MB."""
GENERATION_SECONDS: Final = 600.0
"""A duplicate that comes later than this is refused by the engine instead, by its token."""


class Seen:
    """Two generations, so that forgetting costs nothing: the younger takes new names, the older goes as a whole."""

    def __init__(self) -> None:
        self._young: dict[Name, int] = {}
        self._old: dict[Name, int] = {}
        self._turned_at = time.monotonic()

    def admit(self, name: Name, token: int) -> bool:
        """Whether this token is higher than every one met for that task; remembers it if so."""
        known = self._young.get(name)
        if known is None:
            known = self._old.get(name, -1)
            if len(self._young) >= NAMES_MAX:
                self._turn(time.monotonic())
        if token <= known:
            return False
        self._young[name] = token
        return True

    def forget_old(self, now: float) -> None:
        """Call it now and then; turns the generations when the younger is old enough."""
        if now - self._turned_at >= GENERATION_SECONDS:
            self._turn(now)

    def _turn(self, now: float) -> None:
        self._old, self._young, self._turned_at = self._young, {}, now
