"""A length of time as people write it: `500ms`, `30s`, `1m30s`, `2d`, a number of seconds, or a timedelta."""

import re
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

DURATION_MAX: Final = timedelta(days=3_650)
"""Ten years: far beyond any wait that makes sense, far below what overflows a timestamp."""

_UNITS: Final = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_NUMBER: Final = r"[0-9]{1,15}(?:\.[0-9]{1,6})?"
_PART: Final = rf"({_NUMBER})(us|ms|d|h|m|s)"
_PATTERN: Final = rf"^(?:{_NUMBER}(?:us|ms|d|h|m|s))+$"
_WANTED: Final = "write a duration such as 500ms, 30s, 1m30s or 2d, or a number of seconds"


def parse_duration(value: object) -> timedelta:
    """Read a duration. Raises ValueError, saying what to write, unless it is 0 to ten years in whole microseconds.

    >>> parse_duration("1m30s"), parse_duration(0.5)
    (datetime.timedelta(seconds=90), datetime.timedelta(microseconds=500000))
    """
    if isinstance(value, str):
        duration = _from_text(value)
    elif isinstance(value, timedelta):
        duration = value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        duration = _from_seconds(value)
    else:
        raise ValueError(_WANTED)
    if not timedelta(0) <= duration <= DURATION_MAX:
        raise ValueError(f"a duration lies between 0 and {DURATION_MAX.days} days")
    return duration


def parse_positive_duration(value: object) -> timedelta:
    """As `parse_duration`, and zero is refused too: for limits, where zero would mean "at once"."""
    duration = parse_duration(value)
    if not duration:
        raise ValueError("must be longer than 0s")
    return duration


def format_duration(duration: timedelta) -> str:
    """Write a duration so that `parse_duration` gives it back: one text for one length.

    >>> format_duration(timedelta(seconds=90)), format_duration(timedelta(0))
    ('1m30s', '0s')
    """
    rest = duration // timedelta(microseconds=1)
    parts = []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _from_text(text: str) -> timedelta:
    if len(text) > 100 or not re.fullmatch(_PATTERN, text, re.ASCII):
        raise ValueError(f"{text[:50]!r} is no duration: {_WANTED}")
    total = sum((Decimal(number) * _UNITS[unit] for number, unit in re.findall(_PART, text)), Decimal(0))
    if total != int(total):
        raise ValueError(f"{text!r} is finer than a microsecond")
    return _from_microseconds(int(total))


def _from_seconds(seconds: float) -> timedelta:
    if not abs(seconds) < 1e12:  # false for NaN and the infinities too
        raise ValueError(_WANTED)
    return _from_microseconds(round(seconds * 1_000_000))


def _from_microseconds(count: int) -> timedelta:
    try:
        return timedelta(microseconds=count)
    except OverflowError:
        raise ValueError(f"a duration lies between 0 and {DURATION_MAX.days} days") from None


_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [{"type": "string", "pattern": _PATTERN}, {"type": "number", "minimum": 0}],
    "description": "500ms, 30s, 1m30s, 2d, or a number of seconds",
}

Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(_SCHEMA),
]
"""A pydantic field: any spelling in, a timedelta in Python, one spelling out."""
PositiveDuration = Annotated[
    timedelta,
    BeforeValidator(parse_positive_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(_SCHEMA),
]
