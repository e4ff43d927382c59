"""Rates as people write them."""

import pytest

from headrace.rate import Rate, format_rate, parse_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10/s", Rate(10, 1.0)), ("100/m", Rate(100, 60.0)), ("5/30s", Rate(5, 30.0)), ("1/1h30m", Rate(1, 5400.0)),
     ("3/500ms", Rate(3, 0.5)), ("1/d", Rate(1, 86_400.0))],
)  # fmt: skip
def test_a_rate_is_read_and_written(text: str, rate: Rate):
    assert parse_rate(text) == rate
    assert parse_rate(format_rate(rate)) == rate


WRONG = ["", "10", "/s", "10/", "x/s", "0/s", "-1/s", "1.5/s", "10/0s", "10/years", "1/90d", "999999999/s"]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_rate_is_refused_with_what_to_write(text: str):
    with pytest.raises(ValueError, match=r"rate|duration|longer"):
        parse_rate(text)
