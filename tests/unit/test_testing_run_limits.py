"""The limit of a workflow in a harness: who waits, who is refused, who is replaced, and whose turn it is."""

import pytest

from headrace.errors import ConflictError, PayloadError
from headrace.testing import Harness, HarnessRun

SYNC = """
name: sync
limit: {{ key: "${{{{ input.customer }}}}", runs: {runs}, over: {over} }}
tasks:
  news: {{ signal: news }}
  book: {{ run: book, needs: news }}
"""


def harness_of(over: str = "queue", runs: int = 1) -> Harness:
    return Harness(SYNC.format(over=over, runs=runs), {"book": lambda: "booked"})


def begun(*runs: HarnessRun) -> list[bool]:
    return [run.tasks["news"] == "waiting" for run in runs]


def test_one_more_waits_and_begins_when_another_has_ended() -> None:
    harness = harness_of(runs=2)
    runs = [harness.start({"customer": "ada"}) for _ in range(4)]
    other = harness.start({"customer": "grace"})
    assert begun(*runs, other) == [True, True, False, False, True]
    assert [run.status for run in runs] == ["waiting"] * 4
    runs[1].signal("news")
    assert begun(*runs) == [True, False, True, False]
    runs[0].cancel("not any more")
    assert begun(*runs) == [False, False, True, True]
    assert [item.kind for item in runs[3].history] == ["started", "permitted", "listens"]


def test_a_signal_that_comes_while_a_run_waits_is_kept() -> None:
    harness = harness_of()
    first, second = (harness.start({"customer": "ada"}) for _ in range(2))
    second.signal("news")
    assert second.tasks == {"news": "pending", "book": "pending"}
    first.signal("news")
    assert (first.status, second.status) == ("completed", "completed")


def test_a_start_too_many_is_refused_and_the_next_one_after_an_end_is_not() -> None:
    harness = harness_of("reject")
    first = harness.start({"customer": "ada"})
    with pytest.raises(ConflictError) as refused:
        harness.start({"customer": "ada"})
    assert refused.value.fields["holder"] == first.run_id
    first.signal("news")
    assert begun(harness.start({"customer": "ada"})) == [True]


def test_a_start_too_many_is_dropped_for_the_run_that_goes() -> None:
    harness = harness_of("drop")
    first = harness.start({"customer": "ada"})
    assert harness.start({"customer": "ada"}).run_id == first.run_id


def test_the_oldest_is_replaced_and_only_the_newest_stay() -> None:
    harness = harness_of("replace_oldest", runs=2)
    runs = [harness.start({"customer": "ada"}) for _ in range(5)]
    assert [run.status for run in runs] == ["cancelled"] * 3 + ["waiting"] * 2
    assert begun(*runs) == [False] * 3 + [True] * 2
    reason = next(item.detail for item in runs[0].history if item.kind == "cancelled")
    assert reason == f"run {runs[2].run_id} takes its place"


def test_a_run_that_runs_again_waits_behind_those_who_go() -> None:
    harness = harness_of()
    first = harness.start({"customer": "ada"})
    first.cancel()
    second = harness.start({"customer": "ada"})
    first.rerun()
    assert begun(first, second) == [False, True]
    second.signal("news")
    assert begun(first) == [True]


def test_a_point_of_priority_is_worth_a_minute_of_waiting() -> None:
    harness = harness_of()
    first, second = (harness.start({"customer": "ada"}) for _ in range(2))
    urgent = harness.start({"customer": "ada"}, priority=1)
    first.signal("news")
    assert begun(second, urgent) == [False, True]


def test_a_run_that_is_paused_is_passed_over() -> None:
    harness = harness_of()
    first, second, third = (harness.start({"customer": "ada"}) for _ in range(3))
    second.pause()
    first.signal("news")
    assert begun(second, third) == [False, True]
    second.resume()
    third.signal("news")
    assert begun(second) == [True]


def test_an_input_without_a_key_starts_nothing() -> None:
    with pytest.raises(PayloadError):
        harness_of().start({"customer": ""})


@pytest.mark.parametrize(("over", "status"), [("queue", "completed"), ("reject", "failed"), ("drop", "failed")])
def test_children_are_under_the_limit_of_their_workflow(over: str, status: str) -> None:
    parent = """
    name: parent
    tasks:
      one: { workflow: sync, with: { customer: ada } }
      two: { workflow: sync, with: { customer: ada }, needs: begun }
      begun: { run: book }
    """
    workflows = [SYNC.format(over=over, runs=1)]
    with Harness(parent, {"book": lambda: "booked"}, workflows=workflows) as harness:
        run = harness.start()
        run.child("one").signal("news")
        if over == "queue":
            run.child("two").signal("news")
        else:
            assert run.task("two").error is not None
            assert "LIMIT_REACHED" in str(run.task("two").error)
        assert run.status == status
