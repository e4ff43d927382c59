"""Instants: what is read and refused, and what clocks show where they are set forward and back."""

from datetime import UTC, datetime, timedelta

import pytest

from headrace.errors import PayloadError
from headrace.expressions import ExpressionError, compile_condition, compile_template, compile_value
from headrace.instant import (
    ZONE_FUNCTIONS,
    call_zone_function,
    find_zone,
    format_instant,
    from_microseconds,
    parse_instant,
    resolve,
    to_microseconds,
)

FRIDAY = "2026-11-27T16:30:00+01:00"


def called(name: str, *arguments: object) -> str:
    return format_instant(call_zone_function(name, arguments))


# == text ==============================================================================================================
@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-03-29T09:00:00Z", "2026-03-29T09:00:00Z"),
        ("2026-03-29t09:00:00z", "2026-03-29T09:00:00Z"),
        ("2026-03-29 09:00+02:00", "2026-03-29T07:00:00Z"),
        ("2026-03-29T09:00:00.5-11:30", "2026-03-29T20:30:00.500000Z"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
    ],
)
def test_an_instant_is_read_as_utc(text: str, utc: str):
    assert format_instant(parse_instant(text)) == utc
    assert from_microseconds(to_microseconds(parse_instant(text))) == parse_instant(text)


@pytest.mark.parametrize("text", ["2026-03-29T09:00:00", "2026-03-29 09:00", "2026-03-29"])
def test_an_instant_without_an_offset_is_refused_and_told_what_to_write(text: str):
    with pytest.raises(ValueError, match="says no offset") as caught:
        parse_instant(text)
    assert "Europe/Berlin" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "now", "2026-13-01T00:00:00Z", "2026-02-30T00:00Z", "0001-01-01T00:00:00+14:00", "20260329T090000Z"]
)
def test_what_is_no_instant_is_refused(text: str):
    with pytest.raises(ValueError, match="is no instant"):
        parse_instant(text)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "Europe", "localtime", "europe berlin", "UTC\n"])
def test_an_unknown_zone_is_refused(name: str):
    with pytest.raises(ValueError, match="there is no time zone"):
        find_zone(name)


# == the rule ==========================================================================================================
@pytest.mark.parametrize(
    ("local", "zone", "utc"),
    [
        ("2026-03-29T01:59:59", "Europe/Berlin", "2026-03-29T00:59:59Z"),
        ("2026-03-29T02:00:00", "Europe/Berlin", "2026-03-29T01:00:00Z"),  # in the gap, which begins here
        ("2026-03-29T02:30:00", "Europe/Berlin", "2026-03-29T01:00:00Z"),
        ("2026-03-29T02:59:59.9", "Europe/Berlin", "2026-03-29T01:00:00Z"),
        ("2026-03-29T03:00:00", "Europe/Berlin", "2026-03-29T01:00:00Z"),  # the first instant after it
        ("2026-03-29T03:00:01", "Europe/Berlin", "2026-03-29T01:00:01Z"),
        ("2026-10-25T02:30:00", "Europe/Berlin", "2026-10-25T00:30:00Z"),  # comes twice: the first
        ("2026-10-25T01:59:59", "Europe/Berlin", "2026-10-24T23:59:59Z"),
        ("2026-10-25T03:00:00", "Europe/Berlin", "2026-10-25T02:00:00Z"),
        ("2026-03-08T02:15:00", "America/New_York", "2026-03-08T07:00:00Z"),
        ("2026-11-01T01:15:00", "America/New_York", "2026-11-01T05:15:00Z"),
        ("2026-10-04T02:10:00", "Australia/Lord_Howe", "2026-10-03T15:30:00Z"),  # half an hour
        ("2026-04-05T01:45:00", "Australia/Lord_Howe", "2026-04-04T14:45:00Z"),
        ("2011-12-30T12:00:00", "Pacific/Apia", "2011-12-30T10:00:00Z"),  # a whole day never came
        ("2026-09-06T00:00:00", "America/Santiago", "2026-09-06T04:00:00Z"),  # midnight never came
        ("2026-07-01T09:00:00", "Asia/Kathmandu", "2026-07-01T03:15:00Z"),
    ],
)
def test_b64_a_time_that_never_comes_is_the_first_after_and_one_that_comes_twice_the_first(
    local: str, zone: str, utc: str
):
    assert format_instant(resolve(datetime.fromisoformat(local), find_zone(zone))) == utc


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo"])
def test_every_minute_of_a_year_resolves_in_order(zone: str):
    place, last = find_zone(zone), datetime(1970, 1, 1, tzinfo=UTC)
    for minutes in range(0, 366 * 24 * 60, 15):
        local = datetime(2026, 1, 1) + timedelta(minutes=minutes)
        found = resolve(local, place)
        assert found >= last
        shown = found.astimezone(place).replace(tzinfo=None)
        assert shown == local or (shown > local and resolve(local - timedelta(days=1), place) < found)
        last = found


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe"])
@pytest.mark.parametrize("at", ["00:00", "01:30", "02:30", "23:30"])
def test_b64_a_time_of_day_comes_once_on_every_day_of_a_year_also_when_clocks_are_set(zone: str, at: str):
    found = [call_zone_function("nextDay", ("2026-01-01T12:00:00Z", at, zone))]
    for _ in range(365):
        found.append(call_zone_function("nextDay", (found[-1], at, zone)))
    days = [instant.astimezone(find_zone(zone)).date() for instant in found]
    assert [day - days[0] for day in days] == [timedelta(days=n) for n in range(366)]
    assert found == sorted(set(found))


# == functions =========================================================================================================
@pytest.mark.parametrize(
    ("name", "arguments", "utc"),
    [
        ("nextWeekday", (FRIDAY, "09:00", "Europe/Berlin"), "2026-11-30T08:00:00Z"),
        ("nextWeekday", ("2026-11-27T08:59:59+01:00", "09:00", "Europe/Berlin"), "2026-11-27T08:00:00Z"),
        ("nextWeekday", ("2026-11-27T09:00:00+01:00", "09:00", "Europe/Berlin"), "2026-11-30T08:00:00Z"),
        ("nextWeekday", (FRIDAY, "09:00", "Pacific/Auckland"), "2026-11-29T20:00:00Z"),  # it is Saturday there
        ("nextDay", ("2026-03-28T12:00:00Z", "02:30", "Europe/Berlin"), "2026-03-29T01:00:00Z"),
        ("nextDay", ("2026-03-29T01:00:00Z", "02:30", "Europe/Berlin"), "2026-03-30T00:30:00Z"),
        ("nextDay", ("2026-10-25T00:45:00Z", "02:30", "Europe/Berlin"), "2026-10-26T01:30:00Z"),  # not the second one
        ("nextDayOfWeek", (FRIDAY, "fri", "17:00", "Europe/Berlin"), "2026-11-27T16:00:00Z"),
        ("nextDayOfWeek", (FRIDAY, "Friday", "16:00", "Europe/Berlin"), "2026-12-04T15:00:00Z"),
        ("nextMonthEnd", (FRIDAY, "17:00", "Europe/Berlin"), "2026-11-30T16:00:00Z"),
        ("nextMonthEnd", ("2028-02-01T00:00:00Z", "17:00:30", "UTC"), "2028-02-29T17:00:30Z"),
        ("nextMonthEnd", ("2026-12-31T17:00:00Z", "17:00", "UTC"), "2027-01-31T17:00:00Z"),
        ("atTime", (FRIDAY, "09:00", "Europe/Berlin"), "2026-11-27T08:00:00Z"),
        ("addDays", ("2026-03-28T12:00:00+01:00", 1, "Europe/Berlin"), "2026-03-29T10:00:00Z"),  # 23 hours later
        ("addDays", ("2026-10-24T12:00:00+02:00", 1, "Europe/Berlin"), "2026-10-25T11:00:00Z"),  # 25 hours later
        ("addDays", ("2026-03-28T02:30:00+01:00", 1, "Europe/Berlin"), "2026-03-29T01:00:00Z"),
        ("addDays", (FRIDAY, -1, "Europe/Berlin"), "2026-11-26T15:30:00Z"),
        ("addMonths", ("2026-01-31T12:00:00Z", 1, "UTC"), "2026-02-28T12:00:00Z"),
        ("addMonths", ("2026-01-31T12:00:00Z", 13, "UTC"), "2027-02-28T12:00:00Z"),
        ("addMonths", ("2026-01-31T12:00:00Z", -2, "UTC"), "2025-11-30T12:00:00Z"),
    ],
)
def test_a_function_follows_the_calendar_of_the_zone(name: str, arguments: tuple[object, ...], utc: str):
    assert called(name, *arguments) == utc
    assert called(name, parse_instant(str(arguments[0])), *arguments[1:]) == utc


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("nextDay", ("2026-03-29T09:00:00", "09:00", "UTC"), "says no offset"),
        ("nextDay", (datetime(2026, 3, 29), "09:00", "UTC"), "an instant first"),
        ("nextDay", (7, "09:00", "UTC"), "an instant first"),
        ("nextDay", (FRIDAY, "25:00", "UTC"), "no time of day"),
        ("nextDay", (FRIDAY, "09:00", 1), "the zone must be text"),
        ("nextDay", (FRIDAY, "09:00"), "takes an instant, and time, zone"),
        ("nextDayOfWeek", (FRIDAY, "someday", "09:00", "UTC"), "no day of the week"),
        ("addDays", (FRIDAY, 1.0, "UTC"), "the number must be a whole number"),
        ("addDays", (FRIDAY, 10**6, "UTC"), "at most 40000 days"),
        ("addMonths", ("9999-12-31T00:00:00Z", 1, "UTC"), "year 10000 is out of range|out of range"),
        ("nextDay", ("9999-12-31T23:00:00Z", "09:00", "UTC"), "beyond the calendar|out of range"),
    ],
)
def test_a_function_says_what_is_wrong_with_what_it_was_given(name: str, arguments: tuple[object, ...], why: str):
    with pytest.raises(ValueError, match=why):
        call_zone_function(name, arguments)


# == in expressions ====================================================================================================
def test_every_function_can_be_called_in_an_expression_and_is_refused_in_one_voice():
    now = parse_instant(FRIDAY)
    given = {"time": '"09:00"', "day": '"mon"', "number": "2", "zone": "input.zone"}
    for name, function in ZONE_FUNCTIONS.items():
        text = f"${{{{ {name}(now, {', '.join(given[kind] for kind in function.parameters)}) }}}}"
        assert isinstance(compile_value(text).evaluate(b'{"zone":"Asia/Tokyo"}', {}.get, now), datetime)
        with pytest.raises(PayloadError, match="there is no time zone 'Mars'"):
            compile_value(text).evaluate(b'{"zone":"Mars"}', {}.get, now)


def test_templates_and_conditions_have_the_functions_and_not_the_time():
    template = compile_template({"at": '${{ string(nextDay(input.at, "09:00", "UTC")) }}'})
    assert template.render(b'{"at":"2026-11-27T16:30:00+01:00"}', {}.get) == b'{"at":"2026-11-28T09:00:00+00:00"}'
    assert compile_condition('nextDay(input.at, "09:00", "UTC") > timestamp(input.at)').evaluate(
        b'{"at":"2026-11-27T16:30:00+01:00"}', {}.get
    )
    for compile_it in (compile_template, compile_condition):
        with pytest.raises(ExpressionError, match="only a wait knows what time it is"):
            compile_it("${{ now }}")
    assert compile_value("${{ now }}").evaluate(b"{}", {}.get, parse_instant(FRIDAY)) == parse_instant(FRIDAY)


def test_a_refused_call_prints_nothing(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(PayloadError):
        compile_value('${{ nextDay(now, "09:00", input) }}').evaluate(b'"Mars"', {}.get, parse_instant(FRIDAY))
    assert capfd.readouterr() == ("", "")
