"""Numbers for people, and their spread."""

import statistics
from collections.abc import Sequence
from typing import Any


def spread(values: Sequence[float], digits: int) -> str:
    """min / median / max"""
    return " / ".join(f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))


def table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows), ""])


def percentile(values: Sequence[float], share: float) -> float:
    """Between the neighbours, as `percentile_cont` of Postgres does it. values: not empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """p50, p90, p99 and max; empty for none."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(values, share), digits) for name, share in shares.items()} if values else {}


def spreads(found: Sequence[Any]) -> Any:
    """The same tree with [min, median, max] at each number, over measurements of one shape; what is no number in all
    of them is left out."""
    if all(isinstance(one, int | float) for one in found):
        return [min(found), statistics.median(found), max(found)]
    if all(isinstance(one, dict) for one in found):
        names = {name: None for one in found for name in one}
        trees = {name: spreads([one[name] for one in found if name in one]) for name in names}
        return {name: tree for name, tree in trees.items() if tree is not None}
    return None
