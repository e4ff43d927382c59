"""A busy loop gathers; an idle one is not held up."""

from headrace.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now, self.slept = 100.0, 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_turns_that_move_much_and_come_too_soon_wait():
    clock = Clock()
    pace = Pace(0.004, clock.read, clock.sleep)
    for _ in range(5):
        pace.wait()
        pace.begun(100)
    assert abs(clock.slept - 4 * 0.004) < 1e-9


def test_a_turn_after_a_rest_does_not_wait():
    clock = Clock()
    pace = Pace(0.004, clock.read, clock.sleep)
    pace.begun(100)
    clock.now += 1.0
    pace.wait()
    assert clock.slept == 0.0


def test_a_turn_behind_a_single_record_does_not_wait_and_others_in_proportion():
    clock = Clock()
    pace = Pace(0.008, clock.read, clock.sleep)
    pace.begun(1)
    assert pace.left <= 0
    pace.begun(5)
    assert abs(pace.left - 0.004) < 1e-9
    pace.begun(0)
    assert pace.left <= 0
