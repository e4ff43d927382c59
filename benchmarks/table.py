"""Tables for people."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], digits: int) -> str:
    """min / median / max"""
    return " / ".join(f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))


def table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows), ""])
