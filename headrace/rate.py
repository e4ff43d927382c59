"""How many in how long, as people write it: `10/s`, `100/m`, `5/30s`."""

import re
from datetime import timedelta
from typing import Final, NamedTuple

from headrace.duration import format_duration, parse_positive_duration

COUNT_MAX: Final = 1_000_000
SECONDS_MAX: Final = 86_400.0 * 31


class Rate(NamedTuple):
    """So many hand-outs in so many seconds."""

    hand_outs: int
    seconds: float


def parse_rate(text: str) -> Rate:
    """Read a rate. Raises ValueError, saying what to write.

    >>> parse_rate("10/s"), parse_rate("5/1m30s")
    (Rate(hand_outs=10, seconds=1.0), Rate(hand_outs=5, seconds=90.0))
    """
    count, slash, length = text.partition("/")
    if not slash or not re.fullmatch("[0-9]{1,7}", count, re.ASCII):
        raise ValueError(f"{text[:50]!r} is no rate: write how many in how long, such as 10/s, 100/m or 5/30s")
    if not 1 <= int(count) <= COUNT_MAX:
        raise ValueError(f"a rate lets 1 to {COUNT_MAX:,} begin")
    seconds = parse_positive_duration(length if length[:1].isdigit() else f"1{length}").total_seconds()
    if seconds > SECONDS_MAX:
        raise ValueError("a rate counts over a month at most")
    return Rate(int(count), seconds)


def format_rate(rate: Rate) -> str:
    """Write a rate so that `parse_rate` gives it back.

    >>> format_rate(Rate(10, 1.0)), format_rate(Rate(5, 90.0))
    ('10/s', '5/1m30s')
    """
    length = format_duration(timedelta(seconds=rate.seconds))
    return f"{rate.hand_outs}/{length.removeprefix('1') if length in ('1s', '1m', '1h', '1d') else length}"
