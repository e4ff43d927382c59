"""Where tasks, items and compensations stand: one number for each, see decisions 14 and 26.

    0 … 9,999                       tasks, by their positions in the graph
    (task + 1) * 10,000 + item      items of a map
    200,000,000 + task              compensations

So whatever is kept, sent or counted for a task by its number is so for the others, too. In words an item is `pages.17`,
and a compensation `charge.compensate`.
"""

from typing import Final

ITEMS_MAX: Final = 10_000
"""Items of one map; and tasks of one graph, since their numbers come first."""
RUN: Final = -1
"""The run itself, where a task is named."""
COMPENSATIONS_FROM: Final = 200_000_000
"""Above every item; stored, and said again in SQL."""
COMPENSATE: Final = "compensate"
"""The name of a compensation, behind that of its task."""


def place_of(task: int, item: int) -> int:
    return (task + 1) * ITEMS_MAX + item


def is_item(place: int) -> bool:
    return ITEMS_MAX <= place < COMPENSATIONS_FROM


def is_compensation(place: int) -> bool:
    return place >= COMPENSATIONS_FROM


def compensation_of(task: int) -> int:
    return COMPENSATIONS_FROM + task


def task_of(place: int) -> int:
    """The task itself, the map of an item, or the task that a compensation is of."""
    if place >= COMPENSATIONS_FROM:
        return place - COMPENSATIONS_FROM
    return place if place < ITEMS_MAX else place // ITEMS_MAX - 1


def item_of(place: int) -> int | None:
    return place % ITEMS_MAX if is_item(place) else None


def items_of(task: int, count: int = ITEMS_MAX) -> range:
    """The places of the first `count` items of a map."""
    return range(place_of(task, 0), place_of(task, count))
