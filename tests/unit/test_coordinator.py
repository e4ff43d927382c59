"""What a consumer's own statistics say of its group's coordinator."""

import pytest

import headrace.coordinator
from headrace.coordinator import LOST_SECONDS, CoordinatorWatch

UP, LOST = '{"cgrp":{"state":"up","join_state":"steady"}}', '{"cgrp":{"state":"wait-coord"}}'


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(headrace.coordinator, "time", clock)
    return clock


def test_a_coordinator_that_stays_away_is_lost_and_one_that_comes_back_is_not(clock: Clock):
    watch = CoordinatorWatch()
    for statistics, seconds, is_lost in (
        (LOST, LOST_SECONDS, False),
        (LOST, 1.0, True),
        (UP, 0.0, False),
        (LOST, LOST_SECONDS - 1, False),
        ("{}", LOST_SECONDS, False),
    ):
        watch.hear(statistics)
        clock.now += seconds
        assert watch.is_lost is is_lost


def test_a_consumer_that_was_never_heard_is_left_alone(clock: Clock):
    watch = CoordinatorWatch()
    clock.now += 10 * LOST_SECONDS
    assert not watch.is_lost
