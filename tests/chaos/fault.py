"""One fault: it begins, lasts, heals, and can prove that it fired."""

import random
from typing import ClassVar, Final

from tests.chaos.system import System

KINDS: Final[dict[str, type["Fault"]]] = {}
"""Name -> kind, in the order of definition."""


class Fault:
    """A kind of fault; one instance is one fault. `begin` and `heal` run in a thread and may block.

    Subclasses that name a `kind` are kinds of the matrix: RELIABILITY's id, then words.
    """

    kind: ClassVar[str] = ""
    uses: ClassVar[frozenset[str]] = frozenset()
    """What it breaks or needs unbroken: two faults overlap only when these are disjoint."""
    lasts: ClassVar[tuple[float, float]] = (0.5, 3.0)
    """Seconds between `begin` and `heal`, drawn."""
    share: ClassVar[float] = 1.0
    """How often it is drawn, compared to the others."""

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("kind"):
            KINDS[cls.kind] = cls

    def __init__(self, system: System, draw: random.Random) -> None:
        self.system, self.draw = system, draw
        self.fired = 0
        """How often it really did something; 0 when its target was not there."""
        self.facts: dict[str, object] = {}
        """For the client log: what it hit, and what the checker must know."""
        self.seconds = draw.uniform(*self.lasts)

    def begin(self) -> None:
        raise NotImplementedError

    def heal(self) -> None:
        """Undo it; also called when `begin` raised."""
