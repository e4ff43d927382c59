"""The database's clock as the streams carry it on."""

import time
from typing import Any

import pytest

import streams.clock
from streams.clock import REFRESH_SECONDS, SLOW_REFRESH_SECONDS, DatabaseClock


class Slow:
    """A database whose answers take `seconds`, half of it before the clock is read; counts the readings."""

    def __init__(self) -> None:
        self.now, self.seconds, self.readings = 1_000.0, 0.0, 0

    def fetch(self, sql: str) -> list[Any]:
        self.readings += 1
        self.now += self.seconds / 2
        at = round(self.now * 1e6)
        self.now += self.seconds / 2
        return [(at,)]

    def monotonic(self) -> float:
        return self.now - 900.0

    def monotonic_ns(self) -> int:
        return round((self.now - 900.0) * 1e9)


@pytest.mark.parametrize("seconds", [0.0, 0.002, 2.0])
def test_the_clock_is_never_behind_the_databases_and_ahead_by_no_more_than_the_question_took(
    seconds: float, monkeypatch: pytest.MonkeyPatch
):
    database = Slow()
    database.seconds = seconds
    monkeypatch.setattr(streams.clock, "time", database)
    clock = DatabaseClock(database)  # type: ignore[arg-type]
    ahead = clock.now() / 1e6 - database.now
    assert -1e-6 <= ahead <= seconds + 1e-6


def test_a_slow_reading_is_soon_replaced_and_a_quick_one_kept(monkeypatch: pytest.MonkeyPatch):
    database = Slow()
    monkeypatch.setattr(streams.clock, "time", database)
    clock = DatabaseClock(database)  # type: ignore[arg-type]
    clock.now()
    database.now += REFRESH_SECONDS / 2
    clock.now()
    assert database.readings == 1
    database.now, database.seconds = database.now + REFRESH_SECONDS, 1.0
    clock.now()
    database.now, database.seconds = database.now + 1.1 * SLOW_REFRESH_SECONDS, 0.0
    clock.now()
    assert database.readings == 3


def test_it_goes_on_by_the_monotonic_clock():
    class Now:
        def fetch(self, sql: str) -> list[Any]:
            return [(time.time_ns() // 1000,)]

    clock = DatabaseClock(Now())  # type: ignore[arg-type]
    first = clock.now()
    assert first <= clock.now() < first + 1_000_000
