"""How fast this build of Python is, as pgbench says it of Postgres: builds of one version differ by half, and most of a
step's CPU is Python's."""

import time
from typing import Final

TURNS: Final = 60
OBJECTS: Final = 3_000


class _Thing:
    __slots__ = ("number", "seen")

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen: list[tuple[int, str]] = []


def loop_milliseconds() -> float:
    """The least CPU of a loop that makes objects, calls, and writes text, as the hot path does."""
    return round(min(_turn() for _ in range(TURNS)) * 1e3, 2)


def _turn() -> float:
    began, things = time.process_time(), dict[int, _Thing]()
    for number in range(OBJECTS):
        thing = things[number & 255] = _Thing(number)
        total = _add(thing, number)
        thing.seen.append((number, f"{number}/{total}"))
        if isinstance(thing, int | _Thing):
            total ^= len(things)
    return time.process_time() - began


def _add(thing: _Thing, more: int) -> int:
    return thing.number + more
