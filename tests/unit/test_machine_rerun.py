"""Runs that have ended and run again, and tasks that are given their output: what is reused, what runs and is asked."""

import msgspec
import pytest

from headrace.expressions import OF_ITS_END, compile_condition
from headrace.machine import (
    Abort,
    Ask,
    BuryTask,
    ClearTimer,
    CloseLetter,
    Dispatch,
    EndAttempt,
    Finish,
    KeepOutput,
    Park,
    Reran,
    RunStatus,
    SetTimer,
    Supplied,
    TaskStatus,
    Unpark,
)
from headrace.machine.backoff import RetryPlan
from headrace.machine.migration import find_lasting_obstacles
from headrace.machine.plan import Effect, LimitPlan, RepeatPlan, WaitPlan
from headrace.machine.reason import RERUN, SUPPLIED
from headrace.machine.rerun import Foreseen, foresee
from headrace.machine.run_state import UNTOUCHED
from headrace.messages import Error, Succeeded
from tests.unit.machine_model import DOUBTFUL, HOPELESS, INPUT, NONCE, SECOND, Spec, Trial, plan_of, task
from tests.unit.test_machine_pairs import STATES, SUBJECT, states_of


def rerun(trial: Trial, *names: str, input: bytes | None = None, row_version: int | None = None) -> bool:
    version = trial.run.row_version if row_version is None else row_version
    return trial.tell(Reran(version, tuple(trial.plan.index[name] for name in names), input, "again", "ada"))


def supply(trial: Trial, name: str, output: bytes = b"7", token: int | None = None) -> bool:
    at = trial.token(name) if token is None else token
    return trial.tell(Supplied(trial.plan.index[name], at, output, "I know", "ada"))


def done(*names: str, **options: object) -> Trial:
    """A chain of tasks that have all completed."""
    chain = [task(name, *names[place - 1 : place], **options) for place, name in enumerate(names)]  # type: ignore[arg-type]
    chain[0] = task(names[0])
    trial = Trial(*chain)
    for name in names:
        if trial.states[name] == "running" or options.get("effect", "idempotent") != "idempotent":
            trial.claim(name)
        assert trial.succeed(name, b'"%s"' % name.encode())
    assert trial.status is RunStatus.COMPLETED
    return trial


# == which run, and when ===============================================================================================
@pytest.mark.parametrize("state", [state for state in STATES if state not in ("cancelled", "late_failed")])
def test_a_run_that_has_not_ended_is_not_rerun(state: str):
    trial = STATES[state]()
    assert not rerun(trial, "subject")
    assert not rerun(trial)


def test_a_run_that_moved_since_it_was_looked_at_is_not_rerun():
    trial = done("a", "b")
    assert not rerun(trial, "a", row_version=trial.run.row_version - 1)
    looked_at = trial.run.row_version
    assert rerun(trial, "b", row_version=looked_at)
    assert not rerun(trial, "b", row_version=looked_at)  # the same record again, or another operator's


def test_a_run_of_which_nothing_failed_has_nothing_to_rerun_but_what_is_named():
    trial = done("a", "b")
    assert not rerun(trial)
    assert not trial.tell(Reran(trial.run.row_version, (17, -1)))


# == from a task =======================================================================================================
def test_a_task_and_all_behind_it_run_again_and_the_others_are_reused():
    trial = Trial(task("a"), task("b"), task("c", "a", template={"x": "${{ tasks.a.output }}"}), task("d", "b", "c"))
    for name in "abcd":
        assert trial.succeed(name, b'"%s"' % name.encode())
    assert rerun(trial, "c")
    assert trial.states == {"a": "completed", "b": "completed", "c": "queued", "d": "pending"}
    assert trial.told == [Dispatch(2, 2, 2, b'{"x":"a"}')]
    assert trial.status is RunStatus.RUNNING
    trial.restart()
    assert not trial.succeed("a")  # a late result of what stands
    assert trial.succeed("c")
    assert trial.told[-1] == Dispatch(3, 2, 2, INPUT)
    assert trial.succeed("d")
    assert trial.told[-1] == Finish(RunStatus.COMPLETED)
    assert [trial.state(name).attempt for name in "abcd"] == [1, 1, 2, 2]


def test_a_late_result_of_the_attempt_before_is_stale():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.succeed("a")
    assert trial.lose("b", begun=True)
    assert trial.succeed("b")
    old = trial.token("b")
    assert rerun(trial, "a")
    assert trial.state("b").token == old  # untouched, but for what it has counted
    assert trial.succeed("a")
    assert trial.token("b") == old + 1
    assert not trial.tell(Succeeded(1, old, NONCE))
    assert trial.succeed("b")


def test_an_input_given_by_hand_is_of_the_task_named_and_kept_for_its_retries():
    trial = done("a", "b")
    assert rerun(trial, "a", input=b'{"n":2}')
    assert trial.told == [Dispatch(0, 2, 2, b'{"n":2}')]
    assert trial.fail("a")
    assert trial.wait_for("a")
    assert trial.told[-1] == Dispatch(0, 3, 3, b'{"n":2}')
    assert trial.succeed("a")
    assert trial.told[-1] == Dispatch(1, 2, 2, INPUT)


def test_a_rerun_has_all_its_tries_again():
    trial = done("a")
    assert rerun(trial, "a")
    for _ in range(2):
        assert trial.fail("a")
        assert trial.wait_for("a")
    assert trial.fail("a")
    assert (trial.status, trial.state("a").attempt) == (RunStatus.FAILED, 4)


def test_a_question_is_asked_again_and_a_wait_begins_again():
    wait = WaitPlan(length=SECOND)
    trial = Trial(task("a"), task("b", "a", run=None, asks=True), task("c", "b", run=None, wait=wait))
    assert trial.succeed("a")
    assert trial.decide("b", "approved")
    assert trial.wait_for("c", "wait")
    assert rerun(trial, "b")
    assert (trial.told, trial.status) == ([Ask(1, 2)], RunStatus.WAITING)
    trial.restart()
    assert trial.decide("b", "approved")
    assert trial.told == [SetTimer(2, 2, "wait", trial.at + SECOND)]


def test_a_condition_is_looked_at_again():
    trial = Trial(task("a"), task("b", "a", condition="tasks.a.output == 1"), task("c", "b"))
    assert trial.succeed("a", b"1")
    assert trial.succeed("b")
    assert trial.succeed("c")
    assert rerun(trial, "a")
    assert trial.succeed("a", b"2")
    assert trial.states == {"a": "completed", "b": "skipped", "c": "skipped"}
    assert (trial.state("b").token, trial.state("b").attempt) == (1, 1)
    assert trial.told[-1] == Finish(RunStatus.COMPLETED)
    trial.restart()
    assert rerun(trial, "a")
    assert trial.succeed("a", b"1")
    assert trial.told[-1] == Dispatch(1, 2, 2, INPUT)


def test_a_condition_that_cannot_be_evaluated_in_a_rerun_has_a_letter_of_its_own():
    trial = Trial(task("a"), task("b", "a", condition="tasks.a.output.ok"))
    assert trial.succeed("a", b'{"ok":true}')
    assert trial.fail("b", HOPELESS)
    assert rerun(trial, "a")
    assert CloseLetter(1, 1, "replayed") in trial.told
    assert trial.succeed("a", b"null")
    assert [(action.token, action.attempt) for action in trial.told if isinstance(action, BuryTask)] == [(2, 1)]


@pytest.mark.parametrize(("join", "behind"), [("any", "queued"), (2, "pending"), ("always", "pending")])
def test_a_join_counts_what_stands_and_waits_for_what_runs_again(join: object, behind: str):
    trial = Trial(task("a"), task("b"), task("c", "a", "b", join=join))  # type: ignore[arg-type]
    for name in "abc":
        assert trial.succeed(name)
    assert rerun(trial, "b")
    assert trial.states == {"a": "completed", "b": "queued", "c": behind}
    trial.restart()
    assert trial.succeed("b")
    assert trial.succeed("c")
    assert trial.status is RunStatus.COMPLETED


def test_the_output_of_a_run_is_made_again():
    trial = Trial(task("a"), output="${{ tasks.a.output }}")
    assert trial.succeed("a", b"1")
    assert rerun(trial, "a")
    assert trial.succeed("a", b"2")
    assert trial.told[-1] == Finish(RunStatus.COMPLETED, b"2")


# == what failed =======================================================================================================
def test_what_failed_runs_again_with_what_was_skipped_because_of_it():
    trial = Trial(task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c"), task("alarm", "c", join="on_failure"))
    assert trial.succeed("a")
    assert trial.succeed("b")
    assert trial.fail("c", HOPELESS)
    assert trial.succeed("alarm")
    assert trial.states == {"a": "completed", "b": "completed", "c": "failed", "d": "skipped", "alarm": "completed"}
    assert rerun(trial)
    assert trial.told == [CloseLetter(2, 1, "replayed"), Dispatch(2, 2, 2, INPUT)]
    assert trial.states == {"a": "completed", "b": "completed", "c": "queued", "d": "pending", "alarm": "completed"}
    trial.restart()
    assert trial.succeed("c")
    assert trial.succeed("d")
    assert trial.status is RunStatus.COMPLETED


def test_of_two_that_failed_one_behind_the_other_the_second_waits_for_the_first():
    trial = Trial(task("a"), task("rescue", "a", join="on_failure"))
    assert trial.fail("a", HOPELESS)
    assert trial.fail("rescue", HOPELESS)
    assert rerun(trial)
    assert trial.states == {"a": "queued", "rescue": "pending"}
    assert trial.succeed("a")
    assert (trial.states["rescue"], trial.status) == ("skipped", RunStatus.COMPLETED)


@pytest.mark.parametrize("end", ["cancel", "terminate"])
def test_a_run_that_was_ended_goes_on_from_where_it_stood(end: str):
    trial = Trial(task("a"), task("b", "a"), task("c", "b"), task("ask", run=None, asks=True))
    assert trial.succeed("a")
    assert trial.start("b")
    assert getattr(trial, end)()
    late = trial.token("b")
    trial.restart()
    assert rerun(trial)
    assert trial.told == [Dispatch(1, 2, late + 1, INPUT), Ask(3, 2)]
    assert trial.states == {"a": "completed", "b": "queued", "c": "pending", "ask": "waiting"}
    assert trial.status is RunStatus.RUNNING


def test_a_rejection_is_asked_about_again():
    trial = Trial(task("a", asks=True))
    assert trial.decide("a", "rejected")
    assert rerun(trial)
    assert trial.told == [CloseLetter(0, 1, "replayed"), Ask(0, 2)]


def test_a_rerun_that_ends_at_once_ends_the_run_again():
    trial = Trial(task("a", "b", condition="false"), task("b"))
    assert trial.succeed("b")
    assert trial.status is RunStatus.COMPLETED
    assert rerun(trial, "a")
    assert trial.told == [Finish(RunStatus.COMPLETED)]


def test_a_rerun_can_be_paused():
    trial = done("a", "b", "c")
    assert rerun(trial, "b")
    assert trial.pause()
    assert trial.succeed("b")
    assert (trial.status, trial.state("c").withheld) == (RunStatus.PAUSED, "turn")
    trial.restart()
    assert trial.resume()
    assert trial.told == [Dispatch(2, 2, 2, INPUT)]


# == effects ===========================================================================================================
def test_an_effect_that_may_have_happened_goes_by_its_policy():
    looked_up, asked = done("a", "b", effect="reconcile"), done("a", "b", effect="manual")
    assert rerun(looked_up, "a")
    assert looked_up.succeed("a")
    assert looked_up.told[-1] == Dispatch(1, 1, 2, INPUT, lookup=True)
    assert looked_up.look_up("b", happened=True, output=1)
    assert looked_up.status is RunStatus.COMPLETED

    assert rerun(asked, "b")
    (park,) = asked.told
    assert isinstance(park, Park)
    assert park.error.message == f"attempt 1 may have had its effect: {RERUN.message}"
    asked.restart()
    assert asked.resolve("b", "did_not_happen")
    assert asked.told[-1] == Dispatch(1, 2, 3, INPUT)


def test_a_person_who_fails_it_again_makes_a_dead_letter_of_its_own():
    trial = done("a", "b", effect="manual")
    letters = []
    for _ in range(2):
        assert rerun(trial, "a")
        assert trial.succeed("a")
        assert trial.resolve("b", "fail")
        letters += [(action.task, action.token) for action in trial.told if isinstance(action, BuryTask)]
    assert letters == [(1, 2), (1, 3)]


def test_an_effect_that_did_not_happen_is_made_again_at_once():
    trial = done("a", "b", effect="reconcile")
    assert rerun(trial, "b")
    assert trial.look_up("b", happened=False)
    assert trial.told[-1] == Dispatch(1, 2, 3, INPUT)


@pytest.mark.parametrize("effect", ["reconcile", "manual"])
def test_a_failure_that_was_not_ambiguous_had_no_effect(effect: str):
    trial = Trial(task("a", effect=effect))  # type: ignore[arg-type]
    assert trial.claim("a")
    assert trial.fail("a", HOPELESS)
    assert rerun(trial)
    assert trial.told == [CloseLetter(0, 1, "replayed"), Dispatch(0, 2, 2, INPUT)]


def test_an_approval_before_an_effect_is_asked_for_before_its_policy():
    trial = Trial(task("a", asks=True, effect="reconcile"))
    assert trial.decide("a", "approved")
    assert trial.claim("a")
    assert trial.succeed("a")
    assert rerun(trial, "a")
    assert trial.told == [Ask(0, 3)]
    trial.restart()
    assert not trial.state("a").is_parked
    assert trial.decide("a", "approved")
    assert trial.told == [Dispatch(0, 1, 4, INPUT, lookup=True)]


def test_a_rejected_task_is_asked_again_also_when_its_body_began_before():
    trial = Trial(task("a", asks=True))
    assert trial.decide("a", "approved")
    assert trial.succeed("a")
    assert rerun(trial, "a")
    assert trial.decide("a", "rejected")
    assert rerun(trial)
    assert [type(action) for action in trial.told if isinstance(action, Ask | Dispatch)] == [Ask]


def test_a_lookup_that_answered_in_a_pause_is_not_asked_again():
    trial = done("a", "b", effect="reconcile")
    assert rerun(trial, "b")
    assert trial.pause()
    assert trial.look_up("b", happened=False)
    trial.restart()
    assert trial.resume()
    assert trial.told == [Dispatch(1, 2, 3, INPUT)]


def test_what_is_foreseen_is_what_happens():
    trial = Trial(
        task("plain"), task("looked", "plain", effect="reconcile"), task("asked", "looked", effect="manual"),
        task("yes", "asked", run=None, asks=True), task("never", "yes", condition="false"), task("beside"),
    )  # fmt: skip
    assert trial.succeed("plain")
    for name in ("looked", "asked"):
        assert trial.claim(name)
        assert trial.succeed(name)
    assert trial.decide("yes", "approved")
    assert trial.succeed("beside")
    event = Reran(trial.run.row_version, (0,))
    assert foresee(trial.plan, trial.run, event, trial.at) == [
        Foreseen(0, "begins", "repeats", "effect_key"),
        Foreseen(1, "follows", "repeats", "lookup"),
        Foreseen(2, "follows", "repeats", "person"),
        Foreseen(3, "follows", "none", None),
        Foreseen(4, "follows", "first", None),
    ]
    assert trial.tell(event)
    assert foresee(trial.plan, trial.run, event, trial.at) == []


# == a given output ====================================================================================================
CANNOT = {
    "waiting", "asked", "or_branches", "asked_either", "unaskable", "rejected", "completed", "skipped", "cancelled"
}  # fmt: skip
"""It has ended otherwise than by a failure, or is to be approved first."""


@pytest.mark.parametrize("state", STATES)
def test_a_task_that_is_open_or_failed_is_done_with_the_output_given(state: str):
    trial = STATES[state]()
    before = trial.state("subject")
    assert not supply(trial, "subject", token=before.token + 1)
    assert not supply(trial, "subject", token=before.token - 1)
    assert supply(trial, "subject") is (state not in CANNOT)
    if state in CANNOT:
        assert trial.state("subject") is before
        return
    after = trial.state("subject")
    assert (after.status, after.token, after.attempt) == (TaskStatus.COMPLETED, before.token, before.attempt)
    assert KeepOutput(SUBJECT, b"7") in trial.told
    is_open = before.status in (TaskStatus.QUEUED, TaskStatus.RUNNING)
    assert (Abort(SUBJECT, before.token, "supplied") in trial.told) is is_open
    is_attempt = before.status is TaskStatus.RUNNING and not before.lookups
    ended = EndAttempt(SUBJECT, before.attempt, before.token, "cancelled", SUPPLIED)
    assert (ended in trial.told) is is_attempt
    assert (ClearTimer(SUBJECT) in trial.told) is (before.due_at is not None)
    assert (Unpark(SUBJECT) in trial.told) is before.is_parked
    assert (CloseLetter(SUBJECT, before.token, "discarded") in trial.told) is (before.status is TaskStatus.FAILED)
    assert trial.states["after"] == ("cancelled" if state.startswith("late_") else "queued")
    assert not supply(trial, "subject")
    trial.restart()
    if state == "untouched":
        assert trial.succeed("before")
        assert trial.state("subject") is states_of(trial)[SUBJECT]
        assert trial.states["subject"] == "completed"
    else:
        assert not trial.succeed("subject")  # a late answer


def test_a_failed_run_goes_on_behind_a_task_that_was_given_its_output():
    trial = Trial(task("a"), task("b", "a", template={"x": "${{ tasks.a.output }}"}))
    assert trial.fail("a", HOPELESS)
    assert (trial.status, trial.states["b"]) == (RunStatus.FAILED, "skipped")
    assert supply(trial, "a", b'"mended"')
    assert trial.told[-1] == Dispatch(1, 1, 1, b'{"x":"mended"}')
    assert trial.succeed("b")
    assert trial.status is RunStatus.COMPLETED


def test_an_output_given_while_the_run_is_paused_is_kept():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.pause()
    assert supply(trial, "a")
    assert (trial.states["a"], trial.state("b").withheld) == ("completed", "turn")


def test_a_task_that_was_given_its_output_runs_in_a_rerun():
    trial = Trial(task("a"), task("b", "a"))
    assert supply(trial, "b")
    assert trial.state("b").token == 0
    assert trial.succeed("a")
    assert trial.status is RunStatus.COMPLETED
    assert rerun(trial, "b")
    assert trial.told == [Dispatch(1, 1, 1, INPUT)]
    assert trial.state("b") is not UNTOUCHED
    assert msgspec.structs.asdict(trial.state("b"))["retries_from"] == 0


# == on another version =========================================================================================

OLD = (task("a"), task("b", "a", template="${{ tasks.a.output }}"), task("c", "b"))


def on_another(trial: Trial, *specs: Spec, tasks: tuple[str, ...] = ()) -> bool:
    plan = plan_of(*specs, version_id=1)
    chosen = tuple(place for name in tasks if (place := plan.find(name)) is not None)
    return trial.tell(Reran(trial.run.row_version, chosen, plan=plan))


def failed_at_b() -> Trial:
    trial = Trial(*OLD)
    assert trial.succeed("a", b'{"sum":3}')
    assert trial.fail("b", HOPELESS)
    assert trial.status is RunStatus.FAILED
    return trial


def test_a_rerun_goes_on_with_another_version_in_one_step():
    trial = failed_at_b()
    assert on_another(trial, OLD[0], task("b", "a", template="${{ tasks.a.output.sum }}"), OLD[2], task("tell", "b"))
    assert trial.told == [CloseLetter(1, 1, "replayed"), Dispatch(1, 2, 2, b"3")]
    assert trial.plan.version_id == 1
    assert trial.states == {"a": "completed", "b": "queued", "c": "pending", "tell": "pending"}
    trial.restart()
    for name in ("b", "c", "tell"):
        assert trial.succeed(name)
    assert trial.status is RunStatus.COMPLETED


def test_what_the_other_version_adds_runs_too_and_what_stands_stands():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.succeed("a")
    assert trial.succeed("b")
    assert not trial.tell(Reran(trial.run.row_version)), "nothing failed"
    assert on_another(trial, task("a"), task("b", "a"), task("tell", "b"), task("root"))
    assert trial.states == {"a": "completed", "b": "completed", "tell": "queued", "root": "queued"}
    trial.restart()
    assert trial.succeed("tell")
    assert trial.succeed("root")
    assert trial.status is RunStatus.COMPLETED


def test_a_task_of_a_rerun_takes_those_behind_it_by_the_new_graph():
    trial = Trial(task("a"), task("b"), task("c"))
    for name in ("a", "b", "c"):
        assert trial.succeed(name)
    assert on_another(trial, task("a"), task("b", "a"), task("c"), tasks=("a",))
    assert trial.states == {"a": "queued", "b": "pending", "c": "completed"}
    trial.restart()
    assert trial.succeed("a")
    assert trial.token("b") == 2, "no token is used again"


@pytest.mark.parametrize(
    "new",
    [
        (OLD[0], OLD[2], OLD[1]),
        (task("a"), task("x", "a"), task("c", "x")),
        (task("a"), task("b", "a", asks=True), task("c", "b")),
        (task("a"), task("b", "a", repeat=RepeatPlan(compile_condition("true", OF_ITS_END), 3)), task("c", "b")),
    ],
    ids=["moved", "renamed", "of another kind", "a repeat"],
)
def test_what_stands_in_the_way_of_a_version_stands_in_the_way_of_a_rerun_on_it(new: tuple[Spec, ...]):
    trial = failed_at_b()
    assert find_lasting_obstacles(plan_of(*new, version_id=1), trial.run)
    assert not on_another(trial, *new)
    assert trial.plan.version_id == 0


def test_a_rerun_on_another_version_is_foreseen_as_it_happens():
    trial = failed_at_b()
    plan = plan_of(*OLD, task("tell", "a"), version_id=1)
    found = foresee(trial.plan, trial.run, Reran(trial.run.row_version, plan=plan), trial.at)
    assert [(plan.tasks[each.task].name, each.then, each.effect) for each in found] == [
        ("b", "begins", "repeats"), ("c", "follows", "first"), ("tell", "begins", "first"),
    ]  # fmt: skip
    assert on_another(trial, *OLD, task("tell", "a"))
    assert trial.states == {"a": "completed", "b": "queued", "c": "pending", "tell": "queued"}


def test_a_rerun_that_fails_at_once_and_undoes_what_was_done_is_foreseen_so():
    trial = Trial(task("a", undo="undo"), task("b", "a", condition="tasks.a.output.ok"))
    assert trial.pause()
    assert trial.succeed("a", b"null")
    assert trial.terminate()
    assert trial.states == {"a": "completed", "b": "cancelled"}
    (foreseen,) = foresee(trial.plan, trial.run, Reran(trial.run.row_version), trial.at)
    assert foreseen == Foreseen(1, "failed", "first", None)
    assert rerun(trial)
    assert (trial.status, trial.states["b"]) == (RunStatus.COMPENSATING, "failed")


def test_a_map_goes_on_with_its_items_on_another_version():
    trial = Trial(task("pages", over=["a", "b"], failures="finish"))
    assert trial.succeed("pages.0")
    assert trial.fail("pages.1", HOPELESS)
    assert trial.status is RunStatus.FAILED
    assert on_another(trial, task("pages", over=["a", "b"], failures="finish"), task("after", "pages"))
    assert trial.items("pages") == ["completed", "queued"]
    trial.restart()
    assert trial.succeed("pages.1")
    assert trial.states["after"] == "queued"


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_task_that_failed_before_it_was_approved_anew_is_asked_about_by_a_replay(is_paused: bool):
    """Its body ran once, by an earlier approval; nobody has agreed to this run of it."""
    trial = Trial(task("a", asks=True, deadline=60 * SECOND), task("b"))
    assert trial.decide("a", "approved")
    assert trial.succeed("a")
    assert trial.succeed("b")
    assert trial.tell(Reran(trial.run.row_version, (0, 1)))
    assert trial.pass_deadline("a")
    if is_paused:
        assert trial.pause()
    assert trial.replay("a")
    if is_paused:
        trial.restart()
        assert trial.resume()
    assert trial.states["a"] == "waiting"
    assert not any(isinstance(action, Dispatch) for action in trial.told)


# == an effect in doubt that nobody was asked about ==============================================================

POLICIES = ["reconcile", "manual"]


def asks_its_policy(trial: Trial, name: str) -> bool:
    """Whether the last act on the run had the task's lookup, or a person, asked, and no body handed out."""
    asked = [a for a in trial.told if isinstance(a, Park) or (isinstance(a, Dispatch) and a.lookup)]
    bodies = [a for a in trial.told if isinstance(a, Dispatch) and not a.lookup]
    return [action.task for action in asked] == [trial.place(name)] and not bodies


def sent_out(trial: Trial, name: str, act: str) -> bool:
    return rerun(trial) if act == "rerun" else trial.replay(name)


@pytest.mark.parametrize("act", ["rerun", "replay"])
@pytest.mark.parametrize("effect", POLICIES)
def test_a_task_that_failed_before_its_policy_was_asked_is_still_in_doubt(effect: Effect, act: str):
    """It completed once. In a rerun it fails before anybody has said what became of its effect."""
    trial = Trial(task("a"), task("b", "a", effect=effect, condition="tasks.a.output.ok"))
    assert trial.succeed("a", b'{"ok":true}')
    assert trial.claim("b")
    assert trial.succeed("b")
    assert rerun(trial, "a")
    assert trial.succeed("a", b"null")
    error = trial.state("b").error
    assert error is not None
    assert (error.code, error.ambiguous) == ("BAD_INPUT", True)
    trial.restart()
    (foreseen,) = foresee(trial.plan, trial.run, Reran(trial.run.row_version), trial.at)
    assert (foreseen.effect, foreseen.protected_by) == ("repeats", "lookup" if effect == "reconcile" else "person")
    assert sent_out(trial, "b", act)
    assert asks_its_policy(trial, "b")


@pytest.mark.parametrize("act", ["rerun", "replay"])
@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("effect", POLICIES)
def test_what_a_person_let_fail_without_knowing_is_asked_about_again(effect: Effect, act: str, is_paused: bool):
    trial = Trial(task("a", effect=effect), task("b"))
    assert trial.claim("a")
    assert trial.fail("a", DOUBTFUL)
    if effect == "reconcile":
        assert trial.look_up("a", None)
    assert trial.resolve("a", "fail")
    if act == "rerun":
        assert trial.succeed("b")
        (foreseen,) = foresee(trial.plan, trial.run, Reran(trial.run.row_version), trial.at)
        assert foreseen.effect == "repeats"
    letter = trial.token("a")
    if is_paused and act == "replay":
        assert trial.pause()
    assert sent_out(trial, "a", act)
    if is_paused and act == "replay":
        assert trial.state("a").withheld == "again"
        trial.restart()
        assert trial.resume()
    assert asks_its_policy(trial, "a")
    assert trial.token("a") == letter + 1
    trial.restart()
    assert trial.look_up("a", happened=False) if effect == "reconcile" else trial.resolve("a", "did_not_happen")
    assert trial.told[-1] == Dispatch(0, 2, letter + 2, INPUT)


@pytest.mark.parametrize("effect", POLICIES)
def test_what_a_person_let_fail_waits_for_a_permit_and_is_asked_about_then(effect: Effect):
    trial = Trial(task("a", effect=effect), limit=LimitPlan())
    assert trial.claim("a")
    assert trial.fail("a", DOUBTFUL)
    if effect == "reconcile":
        assert trial.look_up("a", None)
    assert trial.resolve("a", "fail")
    assert rerun(trial)
    trial.restart()
    assert trial.permit()
    assert asks_its_policy(trial, "a")


@pytest.mark.parametrize("effect", POLICIES)
def test_of_a_task_of_a_pool_that_had_no_effect_it_is_foreseen_so(effect: Effect):
    trial = Trial(task("a", effect=effect, pool="pool"))
    assert trial.admit("a")
    assert trial.claim("a")
    assert trial.fail("a", HOPELESS)
    (foreseen,) = foresee(trial.plan, trial.run, Reran(trial.run.row_version), trial.at)
    assert foreseen.effect == "did_not_happen"


@pytest.mark.parametrize("tasks", [(), ("a",)])
@pytest.mark.parametrize("effect", POLICIES)
@pytest.mark.parametrize("end", ["lost", "late", "failed plainly behind one that was lost"])
def test_what_began_as_idempotent_is_asked_about_by_a_version_in_which_it_is_not(
    end: str, effect: Effect, tasks: tuple[str, ...]
):
    trial = Trial(task("a", retry=RetryPlan(2, "fixed", 0), timeout=10.0))
    assert trial.start("a")
    assert trial.lose("a")
    assert trial.start("a")
    if end == "lost":
        assert trial.lose("a")
    elif end == "late":
        assert trial.fail("a", Error("TIMEOUT", "too slow"))
    else:
        assert trial.fail("a", HOPELESS)
    assert trial.status is RunStatus.FAILED
    plan = plan_of(task("a", effect=effect), version_id=1)
    (foreseen,) = foresee(trial.plan, trial.run, Reran(trial.run.row_version, plan=plan), trial.at)
    assert foreseen == Foreseen(0, "begins", "repeats", "lookup" if effect == "reconcile" else "person")
    assert on_another(trial, task("a", effect=effect), tasks=tasks)
    assert asks_its_policy(trial, "a")


@pytest.mark.parametrize("act", ["replay", "rerun"])
def test_what_began_as_idempotent_and_is_left_alone_by_that_rerun_is_asked_about_later(act: str):
    trial = Trial(task("a", retry=RetryPlan(1)), task("b"))
    assert trial.start("a")
    assert trial.lose("a")
    assert trial.succeed("b")
    new = (task("a", effect="manual"), task("b"))
    again = Reran(trial.run.row_version, (1,), plan=plan_of(*new, version_id=1))
    assert [each.task for each in foresee(trial.plan, trial.run, again, trial.at)] == [1]
    assert on_another(trial, *new, tasks=("b",))
    assert trial.states == {"a": "failed", "b": "queued"}
    assert trial.succeed("b")
    trial.restart()
    assert sent_out(trial, "a", act)
    assert asks_its_policy(trial, "a")


@pytest.mark.parametrize("named", [(), ("pages.1",)])
def test_items_that_began_as_idempotent_are_asked_about_by_a_version_in_which_they_are_not(named: tuple[str, ...]):
    trial = Trial(task("pages", over=["a", "b", "c"], failures="finish", retry=RetryPlan(1)))
    assert trial.succeed("pages.0")
    for name in ("pages.1", "pages.2"):
        assert trial.start(name)
        assert trial.lose(name)
    assert trial.status is RunStatus.FAILED
    plan = plan_of(task("pages", over=["a", "b", "c"], failures="finish", effect="manual"), version_id=1)
    again = Reran(trial.run.row_version, tuple(trial.place(name) for name in named), plan=plan)
    (foreseen,) = foresee(trial.plan, trial.run, again, trial.at)
    assert foreseen == Foreseen(0, "begins", "repeats", "person", len(named) or 2)
    assert trial.tell(again)
    trial.restart()
    parked = {action.task for action in trial.told if isinstance(action, Park)}
    assert parked == {trial.place(name) for name in named or ("pages.1", "pages.2")}
    assert not any(isinstance(action, Dispatch) for action in trial.told)
