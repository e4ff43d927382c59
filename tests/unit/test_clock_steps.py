"""That the database's clock was stepped is told from a slow answer, and from drift."""

import pytest

import streams.clock
from streams.clock import STEP_SECONDS, Steps

SECOND = 1_000_000


def readings(*readings: tuple[float, float, float]) -> list[float]:
    """What each reading (asked, what the clock said, answered; in seconds) tells after those before it."""
    steps = Steps()
    return [steps.note(*(round(instant * SECOND) for instant in reading)) for reading in readings]


@pytest.mark.parametrize("step", [30.0, -30.0, 0.2, -0.2])
def test_a_step_is_noticed_at_the_next_reading_and_told_once(step: float):
    told = readings((10, 1_000, 10), (11, 1_001 + step, 11), (12, 1_002 + step, 12))
    assert told == [0.0, pytest.approx(step), 0.0]


@pytest.mark.parametrize(("asked", "answered"), [(11.0, 17.0), (5.0, 11.0), (8.0, 14.0)])
def test_an_answer_that_took_long_is_no_step(asked: float, answered: float):
    assert readings((10, 1_000, 10), (asked, 1_001, answered), (20, 1_010, 20)) == [0.0, 0.0, 0.0]


def test_drift_is_no_step_however_long_it_goes_on():
    assert set(readings(*((n, 1_000 + n * (1 + STEP_SECONDS / 2), n) for n in range(100)))) == {0.0}


def test_a_step_during_a_slow_answer_is_told_as_far_as_it_is_certain():
    assert readings((10, 1_000, 10), (11, 1_031, 16)) == [0.0, pytest.approx(25.0)]


def test_how_long_ago_a_step_was_noticed_is_told(monkeypatch: pytest.MonkeyPatch):
    class Now:
        at = 100.0

        def monotonic(self) -> float:
            return self.at

    now = Now()
    monkeypatch.setattr(streams.clock, "time", now)
    steps = Steps()
    assert steps.seconds_ago() == float("inf")
    steps.note(10 * SECOND, 1_000 * SECOND, 10 * SECOND)
    assert steps.seconds_ago() == float("inf")
    steps.note(11 * SECOND, 1_031 * SECOND, 11 * SECOND)
    now.at += 3.0
    assert steps.seconds_ago() == 3.0
