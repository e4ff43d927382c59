"""The clock of a harness: it moves only when it is told to."""

from datetime import datetime

from headrace.instant import from_microseconds


class Clock:
    def __init__(self, at: int) -> None:
        self.at = at
        """In microseconds."""

    @property
    def now(self) -> datetime:
        return from_microseconds(self.at)
