"""What a workflow does that undoes what it did, told with the harness."""

from typing import Any

import pytest

from headrace.errors import ConflictError, NonRetryable
from headrace.testing import Harness

TRIP = """
name: trip
tasks:
  flight: { run: book, with: { what: flight }, compensate: { run: undo, retry: { attempts: 2, jitter: 0.0 } } }
  hotel: { run: book, with: { what: hotel }, compensate: undo }
  pay: { run: pay, needs: [flight, hotel], retry: 1, compensate: undo }
  wait: { needs: pay, wait: { for: 1h } }
  tell: { run: tell, needs: wait }
"""


class Agency:
    """The world outside: what was booked, and what of it was undone, in order."""

    def __init__(self, *, broken: tuple[str, ...] = (), stubborn: tuple[str, ...] = ()) -> None:
        self.told: list[Any] = []
        self.undone: list[Any] = []
        self.broken, self.stubborn = broken, list(stubborn)

    def book(self, what: str) -> dict[str, str]:
        self.told.append(what)
        return {"what": what}

    def pay(self) -> dict[str, str]:
        if "pay" in self.broken:
            raise NonRetryable("no money")
        return {"what": "pay"}

    def undo(self, output: Any) -> None:
        what = output["what"] if output else None
        if what in self.stubborn:
            self.stubborn.remove(what)
            raise NonRetryable(f"{what} stays")
        self.undone.append(what)

    def tell(self) -> None:
        if "tell" in self.broken:
            raise NonRetryable("nobody listens")

    def harness(self) -> Harness:
        return Harness(TRIP, {"book": self.book, "pay": self.pay, "undo": self.undo, "tell": self.tell})


def test_a_failed_run_undoes_what_completed_and_nothing_else():
    agency = Agency(broken=("pay",))
    run = agency.harness().start()
    assert run.status == "compensated"
    assert sorted(agency.undone) == ["flight", "hotel"]
    assert run.compensations == {"flight": "completed", "hotel": "completed"}
    assert run.tasks["pay"] == "failed"


def test_what_came_last_is_undone_first():
    agency = Agency(broken=("tell",))
    harness = agency.harness()
    run = harness.start()
    harness.run_until_idle()
    assert (run.status, agency.undone[0], sorted(agency.undone[1:])) == ("compensated", "pay", ["flight", "hotel"])


def test_a_compensation_is_given_input_and_output_of_its_task():
    given = []
    text = "name: t\ntasks: { a: { run: a, with: { n: 1 }, compensate: b }, c: { run: c, needs: a } }"

    def fail() -> None:
        raise NonRetryable("no")

    Harness(text, {"a": lambda n: n + 1, "b": lambda input: given.append(input), "c": fail}).start()
    assert given == [{"input": {"n": 1}, "output": 2}]


def test_a_run_that_completes_undoes_nothing():
    agency = Agency()
    harness = agency.harness()
    run = harness.start()
    harness.run_until_idle()
    assert (run.status, agency.undone, run.compensations) == ("completed", [], {})


def test_a_cancelled_run_undoes_what_it_did():
    agency = Agency()
    run = agency.harness().start()
    run.cancel("no time")
    assert (run.status, agency.undone[0]) == ("compensated", "pay")
    assert run.tasks["tell"] == "cancelled"


def test_a_terminated_run_undoes_nothing():
    agency = Agency()
    run = agency.harness().start()
    run.terminate()
    assert (run.status, agency.undone) == ("terminated", [])


def test_a_compensation_that_fails_stops_no_other_and_its_replay_ends_the_run_well():
    agency = Agency(broken=("pay",), stubborn=("flight",))
    run = agency.harness().start()
    assert run.status == "compensation_failed"
    assert agency.undone == ["hotel"]
    assert run.task("flight.compensate").error == "ERROR: flight stays"
    run.replay("flight.compensate")
    assert (run.status, agency.undone) == ("compensated", ["hotel", "flight"])


def test_a_task_is_not_taken_up_again_once_its_run_undoes_what_it_did():
    agency = Agency(broken=("pay",))
    run = agency.harness().start()
    with pytest.raises(ConflictError, match="only compensations are replayed"):
        run.replay("pay")
    with pytest.raises(ConflictError, match="nothing of it runs again"):
        run.rerun("pay")
    with pytest.raises(ConflictError):
        run.skip("pay")
    with pytest.raises(ConflictError):
        run.cancel()


def test_a_compensation_whose_worker_dies_is_tried_again():
    agency = Agency(broken=("pay",))
    harness = agency.harness()
    harness.crash_next("flight.compensate", after_its_effect=True)
    run = harness.start()
    assert run.status == "compensated"
    assert run.task("flight.compensate").attempt == 2
    assert sorted(agency.undone) == ["flight", "flight", "hotel"]


def test_a_task_whose_last_attempt_may_have_had_its_effect_is_undone():
    agency = Agency()
    harness = agency.harness()
    harness.crash_next("pay", after_its_effect=True)
    run = harness.start()
    assert (run.status, run.task("pay").error) == (
        "compensated",
        "WORKER_LOST: the worker that ran this attempt is gone",
    )
    assert agency.undone[0] is None


def test_a_pause_holds_a_compensation_back():
    agency = Agency()
    harness = agency.harness()
    run = harness.start()
    run.pause()
    run.cancel()
    assert (run.status, agency.undone) == ("paused", [])
    run.resume()
    assert (run.status, len(agency.undone)) == ("compensated", 3)


SLOW = """
name: slow
tasks:
  a: { run: a, compensate: { run: b, retry: { attempts: 2, delay: 10s, jitter: 0.0 } } }
  c: { run: c, needs: a }
"""


def test_a_compensation_waits_out_its_backoff():
    tries: list[Any] = []

    def fail() -> None:
        raise NonRetryable("no")

    def undo(output: Any) -> None:
        tries.append(output)
        if len(tries) == 1:
            raise ValueError("not now")

    harness = Harness(SLOW, {"a": lambda: 1, "b": undo, "c": fail})
    run = harness.start()
    assert (run.status, len(tries)) == ("compensating", 1)
    harness.advance(seconds=10)
    assert (run.status, len(tries)) == ("compensated", 2)
