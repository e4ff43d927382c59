"""Signals: whichever comes first, signal or wait, one signal completes one task; a time-out fails or is an outcome."""

import itertools

import msgspec
import pytest

from headrace.expressions import compile_template, compile_value
from headrace.machine import (
    BuryTask,
    ClearTimer,
    Decided,
    KeepSignal,
    Listen,
    RunStatus,
    SetTimer,
    Signalled,
    StopListening,
    Supplied,
    TakeSignal,
)
from headrace.machine.plan import SignalPlan, WaitPlan
from tests.unit.machine_model import HOPELESS, SECOND, START, Trial, task

PAID = SignalPlan("paid")
IN_TIME = SignalPlan("paid", timeout=WaitPlan(length=5 * SECOND))
OR_NOT = SignalPlan("paid", timeout=WaitPlan(length=5 * SECOND), on_timeout="complete")
KEYED = SignalPlan("paid", key=compile_template("order-${{ tasks.before.output.order }}"))
TAKEN = TakeSignal("signal-1", 1, 1)


def waiting(signal: SignalPlan, input: bytes = b"{}") -> Trial:
    trial = Trial(task("before"), task("wait", "before", run=None, signal=signal), task("after", "wait"), input=input)
    assert trial.succeed("before", b'{"order":7}')
    return trial


def output(trial: Trial, name: str = "wait") -> dict[str, object]:
    found = trial.state(name).output
    assert found is not None
    told: dict[str, object] = msgspec.json.decode(found)
    return told


def test_a_signal_completes_the_task_that_waits_for_it():
    trial = waiting(PAID)
    assert (trial.told[-1], trial.status) == (Listen(1, 1, "paid", None), RunStatus.WAITING)
    trial.restart()
    assert trial.signal("paid", data=b'{"sum":3}')
    assert trial.told[:2] == [StopListening(1), TAKEN]
    assert trial.states == {"before": "completed", "wait": "completed", "after": "queued"}
    assert output(trial) == {
        "outcome": "received", "data": {"sum": 3}, "by": "ada", "sent_at": "2027-01-15T08:00:00.000001Z",
        "signal_id": "signal-1",
    }  # fmt: skip
    assert not trial.signal("paid"), "it comes twice"


def test_a_signal_that_comes_before_the_wait_is_kept_for_it():
    trial = Trial(task("before"), task("wait", "before", run=None, signal=PAID), task("after", "wait"))
    assert trial.signal("paid")
    assert (trial.told, trial.changed, trial.run.row_version) == ([KeepSignal("signal-1")], set(), 2)
    assert not trial.signal("paid"), "it comes twice"
    trial.restart()
    assert trial.succeed("before")
    assert TAKEN in trial.told
    assert trial.states == {"before": "completed", "wait": "completed", "after": "queued"}
    assert not trial.run.signals
    assert not trial.signal("paid"), "it comes a third time"


@pytest.mark.parametrize("order", list(itertools.permutations(["before", 1, 2, 3])))
def test_of_several_signals_the_first_that_was_stored_is_taken_in_any_order_of_coming(order: tuple[object, ...]):
    trial = Trial(task("before"), task("wait", "before", run=None, signal=PAID), task("after", "wait"))
    for one in order:
        assert trial.succeed("before") if one == "before" else trial.signal("paid", one)  # type: ignore[arg-type]
        trial.restart()
    came_before = [one for one in order[: order.index("before")] if isinstance(one, int)]
    came_first = next(one for one in order if isinstance(one, int))
    assert output(trial)["signal_id"] == f"signal-{min(came_before, default=came_first)}"
    assert len(trial.run.signals) == 2


def test_each_of_several_tasks_takes_a_signal_of_its_own_in_the_order_of_the_graph():
    trial = Trial(*(task(name, run=None, signal=PAID) for name in ("a", "b")), task("c", "a", run=None, signal=PAID))
    assert [trial.signal("paid", number) for number in (1, 2, 3)] == [True] * 3
    assert [output(trial, name)["signal_id"] for name in ("a", "b", "c")] == ["signal-1", "signal-2", "signal-3"]
    assert trial.status is RunStatus.COMPLETED
    assert not trial.signal("paid", 4), "it has ended"


def test_two_tasks_that_become_ready_at_once_do_not_take_the_same_signal():
    trial = Trial(task("before"), *(task(name, "before", run=None, signal=PAID) for name in ("a", "b")))
    assert trial.signal("paid")
    assert trial.succeed("before")
    assert trial.states == {"before": "completed", "a": "completed", "b": "waiting"}


@pytest.mark.parametrize(("key", "is_meant"), [(None, True), ("order-7", True), ("order-8", False)])
def test_a_signal_with_a_key_is_for_the_task_that_waits_for_this_key(key: str | None, is_meant: bool):
    trial = waiting(KEYED)
    assert trial.told[-1] == Listen(1, 1, "paid", "order-7")
    trial.restart()
    assert trial.signal("paid", key=key)
    assert trial.states["wait"] == ("completed" if is_meant else "waiting")
    assert bool(trial.run.signals) is not is_meant


def test_a_whole_number_is_a_key():
    trial = waiting(SignalPlan("paid", key=compile_template("${{ tasks.before.output.order }}")))
    assert trial.signal("paid", key="7")
    assert trial.states["wait"] == "completed"


@pytest.mark.parametrize(
    "key", ["${{ input }}", "${{ input.nothing }}", "${{ tasks.before.output.order > 3 }}", "${{ '' }}", "${{ 1.5 }}"]
)
def test_a_key_that_is_none_fails_the_task_and_a_replay_may_say_what_it_is(key: str):
    trial = waiting(SignalPlan("paid", key=compile_template(key)), b'{"nothing":null}')
    assert trial.states == {"before": "completed", "wait": "failed", "after": "skipped"}
    (letter,) = [action for action in trial.told if isinstance(action, BuryTask)]
    assert (letter.token, letter.error.code) == (1, "BAD_INPUT")
    assert trial.replay("wait", b'"order-9"')
    assert trial.told[-1] == Listen(1, 2, "paid", "order-9")
    assert trial.signal("paid", key="order-9")
    assert trial.succeed("after")
    assert trial.status is RunStatus.COMPLETED


def test_a_time_out_fails_the_task_and_a_replay_waits_again():
    trial = waiting(IN_TIME)
    assert trial.told[-1] == SetTimer(1, 1, "wait", START + 5 * SECOND)
    trial.restart()
    assert trial.wait_for("wait", "wait")
    assert trial.told[:2] == [ClearTimer(1), StopListening(1)]
    assert trial.states == {"before": "completed", "wait": "failed", "after": "skipped"}
    error = trial.state("wait").error
    assert error is not None
    assert (error.code, trial.status) == ("SIGNAL_TIMEOUT", RunStatus.FAILED)
    assert not trial.signal("paid"), "the run has ended"
    assert trial.replay("wait")
    assert trial.told[-1] == SetTimer(1, 2, "wait", START + 10 * SECOND)
    assert trial.signal("paid", 2)
    assert trial.states["after"] == "queued"


def test_a_time_out_may_be_an_outcome_that_a_branch_looks_at():
    trial = Trial(
        task("wait", run=None, signal=OR_NOT),
        task("in_time", "wait", condition='tasks.wait.output.outcome == "received"'),
        task("too_late", "wait", condition='tasks.wait.output.outcome == "timed_out"'),
    )
    assert trial.wait_for("wait", "wait")
    assert trial.states == {"wait": "completed", "in_time": "skipped", "too_late": "queued"}
    assert output(trial) == {"outcome": "timed_out", "data": None, "by": None, "sent_at": None, "signal_id": None}


@pytest.mark.parametrize("first", ["signal", "time-out"])
def test_of_signal_and_time_out_at_the_same_instant_one_wins_and_the_other_is_kept_or_stale(first: str):
    trial = waiting(OR_NOT)
    trial.at = trial.state("wait").due_at or 0
    if first == "signal":
        assert trial.signal("paid")
        assert ClearTimer(1) in trial.told
        assert not trial.wait_for("wait", "wait")
    else:
        assert trial.wait_for("wait", "wait")
        assert trial.signal("paid")
        assert trial.told == [KeepSignal("signal-1")]
    assert output(trial)["outcome"] == ("received" if first == "signal" else "timed_out")


def test_a_time_out_of_no_length_looks_at_what_is_kept_and_waits_for_nothing():
    at_once = msgspec.structs.replace(OR_NOT, timeout=WaitPlan(value=compile_value("${{ 0 }}"), is_for=True))
    trial = waiting(at_once)
    assert output(trial)["outcome"] == "timed_out"
    trial = Trial(task("before"), task("wait", "before", run=None, signal=at_once))
    assert trial.signal("paid")
    assert trial.succeed("before")
    assert output(trial)["outcome"] == "received"


def test_what_a_failed_run_has_kept_is_there_for_its_replay():
    trial = Trial(task("before"), task("wait", "before", run=None, signal=PAID))
    assert trial.signal("paid")
    assert trial.fail("before", HOPELESS)
    assert trial.status is RunStatus.FAILED
    trial.restart()
    assert trial.replay("before")
    assert trial.succeed("before")
    assert trial.status is RunStatus.COMPLETED


def test_a_cancel_ends_the_wait_and_a_signal_behind_it_changes_nothing():
    trial = waiting(IN_TIME)
    assert trial.cancel()
    assert trial.told[:2] == [StopListening(1), ClearTimer(1)]
    assert not trial.signal("paid")
    assert not trial.wait_for("wait", "wait")


def test_nobody_decides_about_a_task_that_waits_for_a_signal():
    trial = waiting(PAID)
    assert not trial.tell(Decided(1, 1, "approved", "ada"))
    assert not trial.wait_for("wait", "wait")


def test_a_task_behind_a_false_condition_takes_no_signal():
    trial = Trial(task("before"), task("wait", "before", run=None, signal=PAID, condition="false"))
    assert trial.signal("paid")
    assert trial.succeed("before")
    assert trial.states["wait"] == "skipped"
    assert len(trial.run.signals) == 1


def test_an_offer_is_for_one_wait_and_is_not_kept_for_another():
    trial = Trial(*(task(name, run=None, signal=OR_NOT) for name in ("a", "b")))
    assert not trial.tell(Signalled("signal-1", "paid", task=1, token=2))
    assert trial.tell(Signalled("signal-2", "paid", task=1, token=1))
    assert trial.states == {"a": "waiting", "b": "completed"}
    assert not trial.tell(Signalled("signal-2", "paid", task=1, token=1))
    assert not trial.tell(Signalled("signal-3", "paid", task=1, token=1)), "that wait is over"
    assert trial.wait_for("a", "wait")
    assert not trial.run.signals


def test_a_run_that_stands_aside_takes_no_note_of_a_signal():
    trial = waiting(PAID)
    assert trial.isolate()
    assert not trial.signal("paid")
    assert trial.release()
    assert trial.signal("paid")


@pytest.mark.parametrize("given", [b"7", b'"text"', b'{"outcome":3}', b"null"])
def test_a_signal_for_a_task_that_a_person_gave_an_output_is_kept(given: bytes):
    trial = waiting(PAID)
    assert trial.tell(Supplied(1, 1, given, "they called", "ada"))
    assert trial.states["wait"] == "completed"
    assert trial.signal("paid")
    assert KeepSignal("signal-1") in trial.told
