"""The bits of a run's `control` as they are stored, for checkers that tell a run's status without the product's words.

Said again, so that a bit that changed its meaning is found; a test compares the two.
"""

from typing import Final

PAUSED: Final = 1
WORKFLOW_PAUSED: Final = 2
TERMINATED: Final = 4
OVERDUE: Final = 8
TASKS_PAUSED: Final = 16
MOVING: Final = 32
CANCELLING: Final = 64
AWAITS_PERMIT: Final = 128
PAUSES: Final = 35
WITHHOLDS: Final = 163
