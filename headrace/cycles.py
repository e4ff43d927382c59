"""Cycles in what tasks need: found in linear time and without recursion, and written so that people see them."""

from typing import Final

_CYCLE_NAMES_MAX: Final = 20


def find_knots(edges: dict[str, list[str]]) -> list[set[str]]:
    """Sets of tasks that all need each other, directly or not: Tarjan's algorithm, without its recursion.

    edges: the needs of each task; a need that is no key is left out.
    """
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    knots: list[set[str]] = []
    for root in edges:
        work = [] if root in number else [(root, iter(edges[root]))]
        while work:
            name, needs = work[-1]
            if name not in number:
                number[name] = low[name] = len(number)
                stack.append(name)
                on_stack.add(name)
            need = next(needs, None)
            if need is not None:
                if need not in number:
                    work.append((need, iter(edges.get(need, ()))))
                elif need in on_stack:
                    low[name] = min(low[name], number[need])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[name])
            if low[name] == number[name]:
                knot = _pop_through(name, stack)
                on_stack -= knot
                if len(knot) > 1:
                    knots.append(knot)
    return knots


def _pop_through(name: str, stack: list[str]) -> set[str]:
    knot = {name}
    while (popped := stack.pop()) != name:
        knot.add(popped)
    return knot


def shortest_cycle(start: str, edges: dict[str, list[str]], knot: set[str]) -> list[str]:
    """From a task of a knot along the needs and back to it; both ends are that task."""
    came_from: dict[str, str] = {}
    frontier = [start]
    for name in frontier:  # grows while it is read
        for need in edges[name]:
            if need == start:
                return _trace(start, name, came_from)
            if need in knot and need not in came_from:
                came_from[need] = name
                frontier.append(need)
    raise AssertionError(f"{start} is on no cycle of its knot")


def _trace(start: str, end: str, came_from: dict[str, str]) -> list[str]:
    cycle = [start, end]
    while cycle[-1] != start:
        cycle.append(came_from[cycle[-1]])
    return cycle[::-1]


def write_cycle(cycle: list[str]) -> str:
    """For people: `a -> b -> a`, the middle of a long one left out."""
    if len(cycle) > _CYCLE_NAMES_MAX:
        cycle = [*cycle[: _CYCLE_NAMES_MAX - 2], f"… {len(cycle) - _CYCLE_NAMES_MAX} more …", *cycle[-2:]]
    return " -> ".join(cycle)
