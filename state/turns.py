"""Whose turn it is: how the free slots of a pool go round between the fairness keys that are waited for. Nothing here
asks the database.

    one slot    -> the key that holds fewest; of those, the one whose turn was longest ago
    many slots  -> as if each was granted by itself

Decision 35 has the reasons. So nobody has to look at more waiters than there are slots to give.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID


class Waiter(NamedTuple):
    """A task that is next in its line."""

    run_id: UUID
    task: int
    token: int
    ranked_at: datetime


@dataclass(slots=True, kw_only=True)
class Line:
    """Those who wait for one fairness key of a pool, while its slots are given away."""

    namespace: str
    pool: str
    key: str
    held: int
    """Slots that the key held before."""
    turned_at: datetime
    """Since when it had no turn."""
    is_known: bool
    """That is written down."""
    is_shared: bool
    """There are others, or it has a name: its turns are remembered."""
    claimed: list[Waiter] = field(default_factory=list)
    is_spent: bool = False
    """Nobody else waits there."""


class Turns:
    """The free slots of one pool. lines: in the order of their turns as it was before."""

    def __init__(self, slots: int, lines: list[Line]) -> None:
        self._slots, self.lines = slots, lines

    def next_lines(self) -> list[tuple[Line, int]]:
        """How many more of which lines are next, if so many wait in each; empty: all is given, or nobody waits."""
        left = self._slots - sum(len(line.claimed) for line in self.lines)
        open_lines = [line for line in self.lines if not line.is_spent]
        if left <= 0 or not open_lines:
            return []
        counts = share([(line.held + len(line.claimed), len(line.claimed)) for line in open_lines], left)
        return [(line, count) for line, count in zip(open_lines, counts, strict=True) if count]

    def in_turn(self) -> list[tuple[Line, Waiter]]:
        """All who were claimed, in the order in which one slot after another would have gone to them."""
        turns = [
            (line.held + nth, nth, place, line, waiter)
            for place, line in enumerate(self.lines)
            for nth, waiter in enumerate(line.claimed)
        ]
        return [(line, waiter) for *_, line, waiter in sorted(turns, key=lambda turn: turn[:3])]


def share(lines: Sequence[tuple[int, int]], slots: int) -> list[int]:
    """How many of so many slots go to each line: to who holds fewest; of those that hold as many, to who has had fewest
    of these slots, and then to the first. lines: what each holds, and how many of that are of this grant; one at
    least. Costs by the lines, whatever the slots."""
    heights = sorted(held for held, _ in lines)
    below, level = 0, 0
    for count, height in enumerate(heights, 1):  # so many of them can be raised to one level
        below += height
        level = (slots + below) // count
        if count == len(heights) or level <= heights[count]:
            break
    counts = [max(0, level - held) for held, _ in lines]
    rest = slots - sum(counts)
    turns = sorted((had + counts[place], place) for place, (held, had) in enumerate(lines) if held <= level)
    for _, place in turns[:rest]:
        counts[place] += 1
    return counts
