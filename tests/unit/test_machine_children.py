"""Children: what a task asks for, what it is told, and who needs whom no more."""

import itertools

import msgspec
import pytest

from headrace.errors import Fault
from headrace.expressions import compile_template
from headrace.machine import (
    BuryTask,
    CancelChild,
    ChildTold,
    ClearTimer,
    Finish,
    Reran,
    RunStatus,
    SetTimer,
    StartChild,
    Supplied,
)
from headrace.machine.child import refuse_input
from headrace.machine.plan import ChildPlan, Plan, TaskPlan
from headrace.machine.reason import UPSTREAM_FAILED
from headrace.messages import Due, Error
from tests.unit.machine_model import HOPELESS, NONCE, SECOND, Trial, task

OTHER = ChildPlan("other")
LOOSE = ChildPlan("other", is_cancelled_with_task=False)
FREE = ChildPlan("other", None, False, False)


def waiting(child: ChildPlan = OTHER, **options: object) -> Trial:
    trial = Trial(
        task("before"),
        task("kid", "before", run=None, child=child, **options),  # type: ignore[arg-type]
        task("after", "kid", template={"got": "${{ tasks.kid.output }}"}),
    )
    assert trial.succeed("before", b"7")
    return trial


def test_a_task_asks_for_its_child_and_takes_what_came_out_of_it():
    trial = waiting(template={"n": "${{ tasks.before.output }}"})
    assert trial.told[-1] == StartChild(1, 1, b'{"n":7}')
    assert (trial.states["kid"], trial.status) == ("waiting", RunStatus.WAITING)
    trial.restart()
    assert not trial.tell_child("kid", "started")
    assert trial.tell_child("kid", "completed", b'{"sum":3}')
    assert trial.states == {"before": "completed", "kid": "completed", "after": "queued"}
    assert msgspec.json.decode(trial.told[-1].input) == {"got": {"sum": 3}}  # type: ignore[union-attr]
    assert not trial.tell_child("kid", "completed"), "it is told twice"


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("failed", "failed"),
        ("compensated", "was compensated"),
        ("compensation_failed", "failed, and could not undo all that it did"),
    ],
)
def test_a_child_that_fails_fails_its_task_and_is_named(outcome: str, said: str):
    trial = waiting()
    assert trial.tell_child("kid", outcome)
    (buried,) = (action for action in trial.told if isinstance(action, BuryTask))
    assert (buried.error.code, buried.error.message) == ("CHILD_FAILED", f"run run-2 of workflow other {said}")
    assert trial.states["after"] == "skipped"


@pytest.mark.parametrize("outcome", ["cancelled", "terminated"])
def test_a_child_that_was_ended_by_hand_cancels_its_task_and_is_no_dead_letter(outcome: str):
    trial = waiting()
    assert trial.tell_child("kid", outcome)
    assert trial.state("kid").error == Error(
        "CHILD_CANCELLED", f"run run-2 of workflow other was {outcome}", retryable=False
    )
    assert not any(isinstance(action, BuryTask) for action in trial.told)
    assert trial.states == {"before": "completed", "kid": "cancelled", "after": "skipped"}
    assert trial.told[-1] == Finish(RunStatus.CANCELLED)
    trial.restart()
    assert trial.tell(Reran(trial.run.row_version))
    assert trial.told == [StartChild(1, 2, b'{"n":1}')], "another one"
    assert trial.tell_child("kid", "completed", b"1")
    assert trial.states["after"] == "queued"


@pytest.mark.parametrize("others", [*itertools.product(("completed", "failed", "cancelled"), repeat=2)])
def test_b52_a_run_is_failed_by_a_failure_and_cancelled_by_a_cancel_alone(others: tuple[str, str]):
    ends = (*others, "cancelled")
    for order in set(itertools.permutations(range(3))):
        trial = Trial(*(task(f"kid{index}", run=None, child=OTHER) for index in range(3)))
        for index in order:
            assert trial.tell_child(f"kid{index}", ends[index])
        assert trial.states == {f"kid{index}": end for index, end in enumerate(ends)}
        assert trial.status is (RunStatus.FAILED if "failed" in ends else RunStatus.CANCELLED)


def test_what_comes_behind_a_cancelled_child_is_what_comes_behind_a_failure():
    trial = Trial(
        task("kid", run=None, child=OTHER),
        task("goes", "kid"),
        task("always", "kid", join="always"),
        task("mend", "kid", join="on_failure"),
        task("lone"),
    )
    assert trial.tell_child("kid", "cancelled")
    assert trial.states == {
        "kid": "cancelled", "goes": "skipped", "always": "queued", "mend": "queued", "lone": "queued",
    }  # fmt: skip
    assert trial.state("goes").error == UPSTREAM_FAILED
    assert trial.status is RunStatus.RUNNING


def test_in_a_run_with_a_cancelled_child_a_failure_is_replayed_and_an_output_given_as_ever():
    trial = Trial(task("kid", run=None, child=OTHER), task("a"), task("b"))
    assert trial.tell_child("kid", "cancelled")
    assert trial.fail("a", HOPELESS)
    assert trial.replay("a")
    assert trial.tell(Supplied(2, 1, b"1"))
    assert trial.succeed("a")
    assert trial.status is RunStatus.CANCELLED
    trial = Trial(task("kid", run=None, child=OTHER), task("a"), task("b"))
    assert trial.tell_child("kid", "cancelled")
    assert trial.fail("a", HOPELESS)
    assert trial.cancel()
    assert not trial.replay("a"), "a cancelled run stays cancelled"


def test_a_child_that_completes_without_its_output_fails_its_task():
    trial = waiting()
    assert trial.tell_child("kid", "completed", error=Error("BAD_INPUT", "no such field"))
    assert trial.state("kid").error is not None
    assert trial.state("kid").error.message.endswith("completed without an output: BAD_INPUT: no such field")  # type: ignore[union-attr]


def test_a_replay_asks_for_another_child_and_the_first_counts_no_more():
    trial = waiting()
    assert trial.tell_child("kid", "failed")
    assert not trial.tell_child("kid", "completed", b"1"), "repaired, after its task has failed"
    assert trial.replay("kid", b'{"n":2}')
    assert trial.told == [StartChild(1, 2, b'{"n":2}')]
    assert trial.states["after"] == "pending"
    assert not trial.tell(ChildTold(1, 1, "run-2", "completed", b"1")), "the first one"
    assert trial.tell_child("kid", "completed", b"2")
    assert trial.states["kid"] == "completed"


@pytest.mark.parametrize(("child", "asks"), [(OTHER, [CancelChild(1, 1)]), (LOOSE, []), (FREE, [])])
@pytest.mark.parametrize("end", ["cancel", "terminate", "supply", "timeout"])
def test_a_task_that_ends_first_asks_its_child_to_end_or_leaves_it_alone(
    child: ChildPlan, asks: list[CancelChild], end: str
):
    trial = waiting(child, timeout=10.0)
    if end == "supply":
        assert trial.tell(Supplied(1, 1, b"1"))
    elif end == "timeout":
        assert trial.wait_for("kid", "wait")
        assert trial.states["kid"] == "failed"
    else:
        assert trial.cancel() if end == "cancel" else trial.terminate()
    assert [action for action in trial.told if isinstance(action, CancelChild)] == asks
    assert not trial.tell_child("kid", "cancelled"), "nobody waits"


def test_a_time_out_is_a_timer_that_the_end_of_the_child_takes_away():
    trial = waiting(timeout=2.0)
    assert trial.told[-1] == SetTimer(1, 1, "wait", trial.at + 2 * SECOND)
    trial.restart()
    assert not trial.tell(Due(1, 1, NONCE, "wait")), "early"
    assert trial.tell_child("kid", "completed")
    assert ClearTimer(1) in trial.told


def test_a_task_that_does_not_wait_completes_once_its_child_has_begun():
    trial = waiting(FREE)
    assert trial.tell_child("kid", "started")
    assert trial.state("kid").output == b'{"run_id":"run-2"}'
    assert trial.states["after"] == "queued"


def test_a_pause_holds_back_what_asks_for_a_child_and_not_what_a_child_ended_with():
    trial = Trial(task("a"), task("kid", "a", run=None, child=OTHER), task("b", "kid"))
    assert trial.pause()
    assert trial.succeed("a")
    assert trial.status is RunStatus.PAUSED
    assert not any(isinstance(action, StartChild) for action in trial.actions)
    assert trial.resume()
    assert trial.told == [StartChild(1, 1, b'{"n":1}')]
    assert trial.pause()
    assert trial.tell_child("kid", "completed")
    assert trial.states == {"a": "completed", "kid": "completed", "b": "pending"}


def test_an_input_that_cannot_be_made_fails_the_task_and_asks_for_nothing():
    trial = waiting(template={"n": "${{ tasks.before.output.missing }}"})
    assert trial.states["kid"] == "failed"
    assert trial.token("kid") == 1
    assert not any(isinstance(action, StartChild) for action in trial.actions)


def test_what_a_child_is_given_is_no_reference_to_a_large_result_of_this_run():
    """Those can be followed in their own run only, so the body that makes it answers with the value itself."""
    handed_on = compile_template("${{ tasks.a.output }}")
    plan = Plan(
        "w", [TaskPlan(0, "a", run="b"), TaskPlan(1, "kid", run=None, needs=(0,), child=OTHER, template=handed_on)]
    )
    assert plan.tasks[0].is_read
    alike = Plan("w", [TaskPlan(0, "a", run="b"), TaskPlan(1, "c", run="c", needs=(0,), template=handed_on)])
    assert not alike.tasks[0].is_read


def test_of_an_input_that_is_refused_the_first_faults_are_told():
    error = refuse_input("other", [Fault(f"n[{i}]", "is wrong") for i in range(5)])
    assert error.code == "BAD_INPUT"
    assert error.message.endswith("n[0]: is wrong; n[1]: is wrong; n[2]: is wrong; and 2 more")
