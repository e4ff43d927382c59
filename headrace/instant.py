"""Instants: RFC 3339 text, microseconds since 1970, and what clocks in a time zone show.

A clock in a zone is set forward and back. So a time of day may come never on a day, or twice. The rule, everywhere:

    never (a gap)        the first instant after it: at 02:30 of a night in which 02:00 becomes 03:00, that is 03:00
    twice (an overlap)   the first of the two

An instant without an offset is nobody's: it is refused. Zones are those of the IANA database, by their names.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)
_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
_INSTANT: Final = re.compile(rf"{_DATE}[Tt ]{_CLOCK}(?:[Zz]|[+-][0-9]{{2}}:[0-9]{{2}})")
_NAIVE: Final = re.compile(rf"{_DATE}(?:[Tt ]{_CLOCK})?")
_TIME_OF_DAY: Final = re.compile(r"[0-2][0-9]:[0-5][0-9](?::[0-5][0-9])?")
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}")
_WEEK: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAYS_MAX: Final = 40_000
"""More would leave every calendar; a century is 36,525."""
_LOOK_AHEAD: Final = 70
"""Days within which every kind of day comes: two month ends lie at most 62 apart."""


# == text and numbers ==================================================================================================
def parse_instant(text: str) -> datetime:
    """Read RFC 3339 text, as UTC. Raises ValueError, saying what to write; also for what has no offset.

    >>> parse_instant("2026-03-29T09:00:00+02:00")
    datetime.datetime(2026, 3, 29, 7, 0, tzinfo=datetime.timezone.utc)
    """
    if len(text) <= 40 and _INSTANT.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{text!r} is no instant: {error}") from None
    if len(text) <= 40 and _NAIVE.fullmatch(text):
        raise ValueError(
            f"{text!r} says no offset, so it is another instant in every time zone: write 2026-03-29T09:00:00Z or "
            '…+02:00, or name the zone, such as ${{ nextDay(now, "09:00", "Europe/Berlin") }}'
        )
    raise ValueError(f"{text[:50]!r} is no instant: write 2026-03-29T09:00:00Z or 2026-03-29T09:00:00+02:00")


def format_instant(at: datetime) -> str:
    """One text for one instant: UTC, with a `Z`.

    >>> format_instant(parse_instant("2026-03-29T09:00+02:00"))
    '2026-03-29T07:00:00Z'
    """
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def from_microseconds(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at)


def to_microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


# == zones =============================================================================================================
@lru_cache(maxsize=1_000)
def find_zone(name: str) -> ZoneInfo:
    """The zone of that name. Raises ValueError when there is none."""
    try:
        if _ZONE.fullmatch(name) and name not in ("localtime", "Factory"):
            return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # a folder of zones is an OSError, an unknown one a KeyError
        pass
    raise ValueError(f"there is no time zone {name[:60]!r}: write one of the IANA database, such as Europe/Berlin")


def parse_time_of_day(text: str) -> time:
    """Read `09:00` or `09:00:30`. Raises ValueError."""
    try:
        if _TIME_OF_DAY.fullmatch(text):
            return time.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(f"{text[:30]!r} is no time of day: write 09:00 or 17:30:15")


def parse_day_of_week(text: str) -> int:
    """Read `mon` or `Monday`: 0 for Monday. Raises ValueError."""
    day = text.lower()
    for number, short in enumerate(_WEEK):
        if day == short or (day.startswith(short) and day == date(2024, 1, 1 + number).strftime("%A").lower()):
            return number
    raise ValueError(f"{text[:30]!r} is no day of the week: write mon, tue, wed, thu, fri, sat or sun")


def resolve(local: datetime, zone: ZoneInfo) -> datetime:
    """The instant at which clocks in the zone show that, by the rule at the top of the page. local: naive."""
    first = local.replace(tzinfo=zone, fold=0)
    before, after = first.utcoffset(), first.replace(fold=1).utcoffset()
    if before is None or after is None:
        raise ValueError(f"time zone {zone.key} says no offset")
    if after <= before:  # it comes once, or twice
        return first.astimezone(UTC)
    # It never comes. Clocks change between these two; both are whole seconds away from it.
    early, late = (local - after).replace(tzinfo=UTC), (local - before).replace(tzinfo=UTC)
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) // 2
        if middle.astimezone(zone).utcoffset() == before:
            early = middle
        else:
            late = middle
    return late.replace(microsecond=0)


def _next(after: datetime, at: str, zone: str, is_wanted: Callable[[date], bool]) -> datetime:
    """The first instant after that one at which clocks in the zone show this time, on a day that is wanted."""
    place, clock = find_zone(zone), parse_time_of_day(at)
    day = after.astimezone(place).date() - _DAY
    for _ in range(_LOOK_AHEAD):
        if is_wanted(day):
            found = resolve(datetime.combine(day, clock), place)
            if found > after:
                return found
        day += _DAY
    raise AssertionError("every kind of day comes within two months")


def next_day(after: datetime, at: str, zone: str) -> datetime:
    return _next(after, at, zone, lambda day: True)


def next_weekday(after: datetime, at: str, zone: str) -> datetime:
    """Monday to Friday; nobody's holidays are known here.

    >>> friday = parse_instant("2026-11-27T16:00:00+01:00")
    >>> format_instant(next_weekday(friday, "09:00", "Europe/Berlin"))
    '2026-11-30T08:00:00Z'
    """
    return _next(after, at, zone, lambda day: day.weekday() < 5)


def next_day_of_week(after: datetime, day_of_week: str, at: str, zone: str) -> datetime:
    number = parse_day_of_week(day_of_week)
    return _next(after, at, zone, lambda day: day.weekday() == number)


def next_month_end(after: datetime, at: str, zone: str) -> datetime:
    """On the last day of a month."""
    return _next(after, at, zone, lambda day: (day + _DAY).day == 1)


def at_time(on: datetime, at: str, zone: str) -> datetime:
    """On the same day in the zone, which may be before."""
    place = find_zone(zone)
    return resolve(datetime.combine(on.astimezone(place).date(), parse_time_of_day(at)), place)


def add_days(to: datetime, days: int, zone: str) -> datetime:
    """Days of a calendar: clocks show the same time, however long the nights between were."""
    if not -_DAYS_MAX <= days <= _DAYS_MAX:
        raise ValueError(f"at most {_DAYS_MAX} days can be added")
    place = find_zone(zone)
    return resolve(to.astimezone(place).replace(tzinfo=None) + days * _DAY, place)


def add_months(to: datetime, months: int, zone: str) -> datetime:
    """The same day of a later month, or its last day where there is none such.

    >>> format_instant(add_months(parse_instant("2026-01-31T12:00:00Z"), 1, "UTC"))
    '2026-02-28T12:00:00Z'
    """
    if not -_DAYS_MAX <= 30 * months <= _DAYS_MAX:
        raise ValueError(f"at most {_DAYS_MAX // 30} months can be added")
    place = find_zone(zone)
    local = to.astimezone(place).replace(tzinfo=None)
    years, month = divmod(local.year * 12 + local.month - 1 + months, 12)
    day = min(local.day, monthrange(years, month + 1)[1])
    return resolve(local.replace(year=years, month=month + 1, day=day), place)


# == functions of expressions ==========================================================================================
class ZoneFunction(NamedTuple):
    """What an expression can call. parameters: besides the instant, as kinds that can be checked where they are
    written down: time, day, number, zone.
    """

    call: Callable[..., datetime]
    parameters: tuple[str, ...]


ZONE_FUNCTIONS: Final[Mapping[str, ZoneFunction]] = {
    "addDays": ZoneFunction(add_days, ("number", "zone")),
    "addMonths": ZoneFunction(add_months, ("number", "zone")),
    "atTime": ZoneFunction(at_time, ("time", "zone")),
    "nextDay": ZoneFunction(next_day, ("time", "zone")),
    "nextDayOfWeek": ZoneFunction(next_day_of_week, ("day", "time", "zone")),
    "nextMonthEnd": ZoneFunction(next_month_end, ("time", "zone")),
    "nextWeekday": ZoneFunction(next_weekday, ("time", "zone")),
}
_CHECKS: Final[Mapping[str, Callable[[str], object]]] = {
    "time": parse_time_of_day,
    "day": parse_day_of_week,
    "zone": find_zone,
}


def check_argument(kind: str, text: str) -> None:
    """Refuse a text that no call would take. Raises ValueError."""
    if kind in _CHECKS:
        _CHECKS[kind](text)


def call_zone_function(name: str, arguments: tuple[Any, ...]) -> datetime:
    """Call one from an expression, with whatever it was given. Raises ValueError, saying what is wrong with it."""
    function = ZONE_FUNCTIONS[name]
    if len(arguments) != 1 + len(function.parameters):
        raise ValueError(f"{name} takes an instant, and {', '.join(function.parameters)}")
    instant, *rest = arguments
    if isinstance(instant, str):
        instant = parse_instant(instant)
    if not isinstance(instant, datetime) or instant.tzinfo is None:
        raise ValueError(f"{name} takes an instant first, such as now or an RFC 3339 text")
    for kind, given in zip(function.parameters, rest, strict=True):
        if not isinstance(given, int if kind == "number" else str) or isinstance(given, bool):
            raise ValueError(f"{name}: the {kind} must be {'a whole number' if kind == 'number' else 'text'}")
    try:
        return function.call(instant, *rest)
    except OverflowError:
        raise ValueError(f"{name} leads beyond the calendar") from None
