"""Where tasks and items stand: one number for each, see decision 14.

    0 … 9,999                       tasks, by their positions in the graph
    (task + 1) * 10,000 + item      items of a map

So whatever is kept, sent or counted for a task by its number is so for an item, too. In words an item is `pages.17`.
"""

from typing import Final

ITEMS_MAX: Final = 10_000
"""Items of one map; and tasks of one graph, since their numbers come first."""


def place_of(task: int, item: int) -> int:
    return (task + 1) * ITEMS_MAX + item


def is_item(place: int) -> bool:
    return place >= ITEMS_MAX


def task_of(place: int) -> int:
    """The task itself, or the map of an item."""
    return place if place < ITEMS_MAX else place // ITEMS_MAX - 1


def item_of(place: int) -> int | None:
    return None if place < ITEMS_MAX else place % ITEMS_MAX


def items_of(task: int, count: int = ITEMS_MAX) -> range:
    """The places of the first `count` items of a map."""
    return range(place_of(task, 0), place_of(task, count))
