"""Pause, resume and terminate: over every state, and over every (state, event) pair of a run that is paused."""

import msgspec
import pytest

from headrace.machine import (
    Abort,
    Ask,
    Dispatch,
    EndAttempt,
    Finish,
    Grant,
    RunState,
    RunStatus,
    SetTimer,
    Supplied,
    TaskStatus,
    begin,
)
from headrace.machine.plan import WaitPlan
from headrace.machine.status import PAUSED, PAUSES, RUN_TERMINAL, TERMINATED, WORKFLOW_PAUSED, derive_status
from headrace.messages import Error
from tests.unit.machine_model import HOPELESS, INPUT, KEY, SECOND, SESSION, Trial, plan_of, task
from tests.unit.test_machine_pairs import EVENTS, OF_A_TASK, STATES, current, states_of

CLAIMS = ("claimed", "claimed_twice")
OPEN = [state for state in STATES if state not in ("cancelled", "late_failed")]
"""In which the run has not ended."""
HANDED_OUT = ("queued", "offered", "looked_up", "in_pool", "cleaning", "late_queued")
ENDED_WHOLE = [state for state in OPEN if state != "cleaning" and not state.startswith("late_")]
"""In which a cancel ends all there is: not what cleans up."""


# == pause and resume, over every state ================================================================================
@pytest.mark.parametrize("state", OPEN)
def test_a_pause_touches_no_task_and_says_what_still_runs(state: str):
    trial = STATES[state]()
    before, status = states_of(trial), trial.status
    assert trial.pause()
    assert (trial.told, trial.changed, states_of(trial)) == ([], set(), before)
    runs_still = {TaskStatus.QUEUED, TaskStatus.RUNNING} & {task.status for task in before}
    assert trial.status is (RunStatus.PAUSING if runs_still else RunStatus.PAUSED)
    assert not trial.pause()
    trial.restart()
    assert trial.resume()
    assert (trial.told, trial.changed, states_of(trial), trial.status) == ([], set(), before, status)
    assert not trial.resume()


@pytest.mark.parametrize("state", OPEN)
def test_what_would_begin_in_a_paused_run_begins_when_it_goes_on(state: str):
    """A pause around an event changes when something begins, and nothing else."""
    for event in OF_A_TASK:
        plain, paused = STATES[state](), STATES[state]()
        assert paused.pause()
        plain.told, paused.told = [], []
        assert paused.tell(current(paused, event)) is plain.tell(current(plain, event)), event
        assert not any(isinstance(action, Dispatch | Ask) for action in paused.told), event
        ended = [action for action in plain.told if isinstance(action, EndAttempt)]
        assert [action for action in paused.told if isinstance(action, EndAttempt)] == ended, event
        paused.restart()
        if plain.status in RUN_TERMINAL:
            assert not paused.resume()
            assert states_of(paused) == states_of(plain)
            continue
        assert paused.resume()
        assert not any(task.withheld for task in states_of(paused)), event
        is_claimed = event in CLAIMS and state in HANDED_OUT
        if is_claimed or (state, event) == ("in_line", "admitted"):  # withheld, so that it is claimed or admitted again
            assert paused.state("subject").token == plain.state("subject").token + 1
            continue
        assert states_of(paused) == states_of(plain), event
        assert paused.status is plain.status
        begun = [action for action in plain.told if isinstance(action, Dispatch | Ask)]
        assert [action for action in paused.told if isinstance(action, Dispatch | Ask)] == begun, event


def test_what_is_withheld_is_moved_by_nothing_but_its_run():
    """Whatever comes late of the hand-out before it is stale."""
    kinds = set()
    for state, event in ((state, event) for state in OPEN for event in OF_A_TASK):
        trial = STATES[state]()
        assert trial.pause()
        if not trial.tell(current(trial, event)) or not trial.state("subject").withheld:
            continue
        withheld = trial.state("subject")
        assert (withheld.status, withheld.due_at, withheld.session) == (TaskStatus.PENDING, None, "")
        kinds.add(withheld.withheld)
        for late in OF_A_TASK:
            assert not trial.tell(current(trial, late)), (state, event, late)
        assert trial.state("subject") is withheld
    assert kinds == {"again", "body", "turn"}  # its turn comes anew for one that was rejected: it is asked again


# == races =============================================================================================================
def test_a_result_on_its_way_counts_and_what_it_leads_to_waits():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.pause()
    assert trial.status is RunStatus.PAUSING
    assert trial.succeed("a", b"7")
    assert trial.states == {"a": "completed", "b": "pending"}
    assert (trial.state("b").withheld, trial.status) == ("turn", RunStatus.PAUSED)
    assert trial.resume()
    assert trial.told == [Dispatch(1, 1, 1, INPUT)]


def test_a_run_may_end_while_it_is_paused_and_a_replay_of_it_is_not():
    trial = Trial(task("a"))
    assert trial.pause()
    assert trial.fail("a", Error("ERROR", "never", retryable=False))
    assert (trial.status, trial.run.control) == (RunStatus.FAILED, 0)
    assert not trial.resume()
    assert not trial.pause()
    assert trial.replay("a")
    assert trial.status is RunStatus.RUNNING


def test_a_run_that_its_workflow_pauses_too_goes_on_when_both_have_ended():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.pause()
    assert trial.pause(WORKFLOW_PAUSED)
    assert trial.succeed("a")
    assert trial.resume()
    assert (trial.status, trial.told) == (RunStatus.PAUSED, [])
    trial.restart()
    assert trial.resume(WORKFLOW_PAUSED)
    assert trial.told == [Dispatch(1, 1, 1, INPUT)]


def test_a_claim_made_while_the_run_is_paused_is_not_granted():
    trial = Trial(task("a", exclusive=True))
    assert trial.pause()
    assert trial.claim("a")
    assert trial.told == [Abort(0, 1, "paused")]
    assert (trial.states, trial.status) == ({"a": "pending"}, RunStatus.PAUSED)
    assert trial.resume()
    assert trial.told == [Dispatch(0, 1, 2, INPUT)]
    assert trial.claim("a")
    assert trial.told == [Grant(0, 2, SESSION)]


def test_a_claim_that_was_granted_before_the_pause_is_answered_again():
    trial = Trial(task("a", exclusive=True))
    assert trial.claim("a")
    assert trial.pause()
    assert trial.claim("a")
    assert trial.told == [Grant(0, 1, SESSION)]


def test_a_backoff_that_ends_in_a_pause_leads_to_the_next_attempt_after_it():
    trial = Trial(task("a"))
    assert trial.pause()
    assert trial.fail("a")
    assert any(isinstance(action, SetTimer) for action in trial.told)
    assert trial.wait_for("a")
    assert (trial.state("a").withheld, trial.state("a").attempt) == ("body", 1)
    assert trial.resume()
    assert trial.told == [Dispatch(0, 2, 2, INPUT)]


def test_a_wait_goes_on_in_a_pause_and_one_behind_it_begins_after_it():
    wait = WaitPlan(length=SECOND)
    trial = Trial(task("a", run=None, wait=wait), task("b", "a", run=None, wait=wait))
    assert trial.pause()
    assert trial.status is RunStatus.PAUSED
    assert trial.wait_for("a", "wait")
    assert trial.states == {"a": "completed", "b": "pending"}
    trial.at += 60 * SECOND
    assert trial.resume()
    assert trial.told == [SetTimer(1, 1, "wait", trial.at + SECOND)]


def test_a_decision_in_a_pause_is_kept():
    trial = Trial(task("a", asks=True))
    assert trial.pause()
    assert trial.decide("a", "approved")
    assert (trial.state("a").withheld, trial.told) == ("body", [])
    assert trial.resume()
    assert trial.told == [Dispatch(0, 1, 2, INPUT)]


def test_a_condition_is_looked_at_when_the_run_goes_on():
    trial = Trial(task("a"), task("b", "a", condition="tasks.a.output == 1"))
    assert trial.pause()
    assert trial.succeed("a", b"2")
    assert trial.states["b"] == "pending"
    assert trial.resume()
    assert (trial.states["b"], trial.status) == ("skipped", RunStatus.COMPLETED)


def test_a_join_that_needs_one_of_two_is_withheld_once():
    trial = Trial(task("a"), task("b"), task("c", "a", "b", join="any"))
    assert trial.pause()
    assert trial.succeed("a")
    withheld = trial.state("c")
    assert trial.succeed("b")
    assert trial.state("c") is withheld
    trial.restart()
    assert trial.resume()
    assert trial.told == [Dispatch(2, 1, 1, INPUT)]


def test_a_run_that_begins_paused_hands_nothing_out():
    plan = plan_of(task("a"), task("b", asks=True))
    run = RunState(KEY, plan, INPUT, control=WORKFLOW_PAUSED)
    transition = begin(plan, run, 0)
    assert (transition.actions, transition.status) == ([], RunStatus.PAUSED)
    run.apply(transition)
    assert [run.task(index).withheld for index in range(2)] == ["turn", "turn"]


@pytest.mark.parametrize("end", ["cancel", "terminate"])
@pytest.mark.parametrize("state", ENDED_WHOLE)
def test_a_paused_run_is_ended_like_any_other(state: str, end: str):
    plain, paused = STATES[state](), STATES[state]()
    assert paused.pause()
    assert getattr(plain, end)()
    assert getattr(paused, end)()
    assert (paused.told, paused.states, paused.status) == (plain.told, plain.states, plain.status)
    assert not paused.run.control & PAUSES


def test_a_pause_outlives_the_isolation_of_its_run():
    trial = Trial(task("a"))
    assert trial.pause()
    assert trial.isolate()
    assert not trial.resume()
    trial.restart()
    assert trial.release()
    assert trial.status is RunStatus.PAUSING


# == terminate =========================================================================================================
@pytest.mark.parametrize("state", ENDED_WHOLE)
def test_terminate_does_what_a_cancel_does_now_and_says_so_in_its_own_words(state: str):
    cancelled, terminated = STATES[state](), STATES[state]()
    assert cancelled.cancel()
    assert terminated.terminate()
    assert terminated.states == cancelled.states
    assert terminated.status is RunStatus.TERMINATED
    assert terminated.run.control & TERMINATED
    said = Error("TERMINATED", "the run was terminated", retryable=False)
    *stops, finish = terminated.told
    assert [_as_cancelled(action) for action in stops] == cancelled.told[:-1]
    assert finish == Finish(RunStatus.TERMINATED)
    assert {t.error for t in states_of(terminated) if t.status is TaskStatus.CANCELLED} == {said}
    for event in EVENTS:
        assert not terminated.tell(current(terminated, event)), event
    assert not terminated.terminate()
    terminated.restart()


def _as_cancelled(action: object) -> object:
    cancelled = Error("CANCELLED", "the run was cancelled", retryable=False)
    match action:
        case Abort():
            assert action.reason == "terminated"
            return msgspec.structs.replace(action, reason="cancelled")
        case EndAttempt():
            return msgspec.structs.replace(action, error=cancelled)
        case _:
            return action


def test_a_run_that_had_failed_in_part_is_terminated_all_the_same():
    trial = Trial(task("a"), task("b"))
    assert trial.fail("a", Error("ERROR", "never", retryable=False))
    assert trial.terminate()
    assert trial.status is RunStatus.TERMINATED


def test_completion_that_came_first_stands():
    trial = Trial(task("a"))
    assert trial.succeed("a")
    assert not trial.terminate()
    assert trial.status is RunStatus.COMPLETED


def test_a_result_behind_a_termination_is_stale():
    trial = Trial(task("a"))
    assert trial.start("a")
    assert trial.terminate("enough")
    assert not trial.succeed("a")
    assert trial.status is RunStatus.TERMINATED


def test_an_isolated_run_can_be_terminated():
    trial = Trial(task("a"))
    assert trial.isolate()
    assert trial.terminate()
    assert trial.status is RunStatus.TERMINATED


# == the status of a run ===============================================================================================
@pytest.mark.parametrize("busy", [TaskStatus.QUEUED, TaskStatus.RUNNING])
def test_a_pause_says_that_something_still_runs(busy: TaskStatus):
    for control in (PAUSED, WORKFLOW_PAUSED, PAUSES):
        assert derive_status(2, {busy: 1}, attention=False, control=control) is RunStatus.PAUSING
        assert derive_status(2, {TaskStatus.WAITING: 1}, attention=False, control=control) is RunStatus.PAUSED
        assert derive_status(2, {busy: 1}, attention=True, control=control) is RunStatus.NEEDS_ATTENTION
        assert derive_status(1, {TaskStatus.COMPLETED: 1}, attention=False, control=control) is RunStatus.COMPLETED


# == a run that ends otherwise than it had ended ======================================================================
def test_a_run_that_a_supplied_output_completes_tells_its_end_and_what_comes_out_of_it():
    trial = Trial(task("a"), output={"a": "${{ tasks.a.output }}"})
    assert trial.fail("a", HOPELESS)
    assert trial.told[-1] == Finish(RunStatus.FAILED)
    assert trial.tell(Supplied(0, trial.token("a"), b"7"))
    assert trial.told[-1] == Finish(RunStatus.COMPLETED, b'{"a":7}')


def test_a_run_that_stays_as_it_had_ended_tells_nothing():
    trial = Trial(task("a"), task("b"))
    assert trial.fail("a", HOPELESS)
    assert trial.fail("b", HOPELESS)
    assert trial.tell(Supplied(0, trial.token("a"), b"7"))
    assert not any(isinstance(action, Finish) for action in trial.told)


def test_b44_a_resume_passes_its_pause_and_repeats_nothing_that_was_done():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.pause()
    assert trial.succeed("a")
    for _ in range(2):
        trial.restart()
        assert (trial.states, trial.status) == ({"a": "completed", "b": "pending"}, RunStatus.PAUSED)
    assert trial.resume()
    assert not trial.resume()
    trial.restart()
    assert trial.succeed("b")
    assert trial.status is RunStatus.COMPLETED
    sent = [action.task for action in trial.actions if isinstance(action, Dispatch)]
    assert sent == [0, 1]
