"""Clean-ups: tasks whose join is `finally`, which run behind a cancel, too."""

from typing import Any

import pytest

from headrace.expressions import compile_condition
from headrace.machine import (
    Abort,
    BuryTask,
    CancelChild,
    CloseLetter,
    Dispatch,
    Finish,
    Reran,
    RunState,
    RunStatus,
    SetDeadline,
    StartChild,
    Supplied,
    TaskStatus,
    begin,
    derive_status,
)
from headrace.machine.migration import find_obstacles
from headrace.machine.place import RUN
from headrace.machine.plan import ChildPlan, RepeatPlan
from headrace.machine.rerun import foresee
from headrace.machine.status import CANCELLING, OVERDUE, PAUSED, TERMINATED, CompensationCounts
from tests.unit.machine_model import HOPELESS, INPUT, KEY, SECOND, Spec, Trial, plan_of, task


def at_work(**options: object) -> Trial:
    """What was acquired has to be released, however the work that follows ends."""
    trial = Trial(
        task("acquire"),
        task("work", "acquire"),
        task("more", "work"),
        task("release", "more", join="finally", **options),  # type: ignore[arg-type]
    )
    assert trial.succeed("acquire", b'{"id":7}')
    return trial


def cancelled(**options: object) -> Trial:
    trial = at_work(**options)
    assert trial.cancel("enough")
    return trial


def not_begun(*specs: Spec) -> Trial:
    """A run whose workflow was paused when it was started."""
    trial = Trial(*specs)
    trial.run = RunState(KEY, trial.plan, INPUT, control=PAUSED)
    trial.run.apply(begin(trial.plan, trial.run, trial.at))
    assert trial.status is RunStatus.PAUSED
    return trial


# == in a run that nobody cancels ====================================================================================
@pytest.mark.parametrize("end", ["completed", "failed", "skipped"])
def test_a_clean_up_runs_however_what_it_needs_has_ended(end: str):
    trial = Trial(task("a"), task("b", "a", condition="false" if end == "skipped" else None),
                  task("tidy", "b", join="finally"))  # fmt: skip
    assert trial.succeed("a")
    if end == "completed":
        assert trial.succeed("b")
    elif end == "failed":
        assert trial.fail("b", HOPELESS)
    assert trial.states["tidy"] == "queued"
    assert trial.status is RunStatus.RUNNING
    assert trial.succeed("tidy")
    assert trial.status is (RunStatus.FAILED if end == "failed" else RunStatus.COMPLETED)
    assert not trial.run.control


def test_a_run_whose_clean_up_failed_has_failed():
    trial = Trial(task("a"), task("tidy", "a", join="finally"))
    assert trial.succeed("a")
    assert trial.fail("tidy", HOPELESS)
    assert trial.status is RunStatus.FAILED
    assert trial.replay("tidy")
    assert trial.status is RunStatus.RUNNING
    assert trial.succeed("tidy")
    assert trial.status is RunStatus.COMPLETED


# == a cancel ========================================================================================================
def test_a_cancel_ends_all_but_the_clean_up_which_begins_at_once():
    trial = cancelled()
    assert trial.states == {"acquire": "completed", "work": "cancelled", "more": "cancelled", "release": "queued"}
    assert trial.told == [Abort(1, 1, "cancelled"), Dispatch(3, 1, 1, INPUT)]
    assert trial.status is RunStatus.CANCELLING
    trial.restart()
    assert trial.succeed("release")
    assert trial.told[-1] == Finish(RunStatus.CANCELLED)
    assert trial.status is RunStatus.CANCELLED
    trial.restart()


def test_a_cancel_leaves_a_clean_up_that_has_begun_as_it_is():
    trial = Trial(task("a"), task("tidy", "a", join="finally"), task("other"))
    assert trial.succeed("a")
    assert trial.start("tidy")
    before = trial.state("tidy")
    assert trial.cancel()
    assert trial.told == [Abort(2, 1, "cancelled")]
    assert trial.state("tidy") is before
    assert trial.status is RunStatus.CANCELLING
    assert trial.succeed("tidy")
    assert trial.status is RunStatus.CANCELLED


def test_clean_ups_follow_each_other_by_the_graph():
    trial = Trial(
        task("a"),
        task("one", "a", join="finally"),
        task("two", "a", join="finally"),
        task("last", "one", "two", join="finally"),
    )
    assert trial.cancel()
    assert trial.states == {"a": "cancelled", "one": "queued", "two": "queued", "last": "pending"}
    trial.restart()
    assert trial.succeed("one")
    assert trial.fail("two", HOPELESS)
    assert trial.states["last"] == "queued"
    assert trial.succeed("last")
    assert trial.status is RunStatus.FAILED


def test_where_nothing_ever_began_a_cancelled_run_ends_at_once():
    trial = not_begun(task("a"), task("tidy", "a", join="finally"), task("last", "tidy", join="finally"))
    assert trial.cancel()
    assert trial.states == {"a": "cancelled", "tidy": "cancelled", "last": "cancelled"}
    assert trial.told == [Finish(RunStatus.CANCELLED)]
    assert not trial.resume()


def test_it_counts_however_far_back_something_has_begun():
    trial = Trial(
        task("a"),
        task("no", "a", condition="false"),
        task("b", "no", join="always"),
        task("tidy", "b", join="finally"),
    )
    assert trial.cancel()
    assert trial.states["tidy"] == "queued"


def test_a_branch_that_never_began_has_nothing_to_clean_up():
    trial = not_begun(task("other"), task("own"), task("tidy", "own", join="finally"))
    assert trial.tell(Supplied(0, 0, b"1"))
    assert trial.cancel()
    assert trial.states == {"other": "completed", "own": "cancelled", "tidy": "cancelled"}
    assert trial.status is RunStatus.CANCELLED


def test_a_condition_is_looked_at_with_what_became_of_the_others():
    trial = cancelled(condition="tasks.acquire.output != null && tasks.more.output == null")
    assert trial.states["release"] == "queued"
    trial = Trial(task("a"), task("tidy", "a", join="finally", condition="tasks.a.output != null"))
    assert trial.cancel()
    assert trial.states == {"a": "cancelled", "tidy": "skipped"}
    assert trial.status is RunStatus.CANCELLED


def test_an_input_that_cannot_be_rendered_fails_it_and_the_walk_goes_on():
    trial = Trial(
        task("a"),
        task("tidy", "a", join="finally", template={"id": "${{ tasks.a.output.id }}"}),
        task("last", "tidy", join="finally"),
    )
    assert trial.cancel()
    assert trial.states == {"a": "cancelled", "tidy": "failed", "last": "queued"}
    assert [type(action) for action in trial.told] == [Abort, BuryTask, Dispatch]


def test_an_ordinary_task_behind_a_clean_up_is_cancelled_with_the_others():
    trial = Trial(task("a"), task("tidy", "a", join="finally"), task("report", "tidy"))
    assert trial.cancel()
    assert trial.succeed("tidy")
    assert (trial.states["report"], trial.status) == ("cancelled", RunStatus.CANCELLED)


def test_a_cancel_counts_that_comes_when_only_the_clean_up_is_left():
    trial = Trial(task("a"), task("tidy", "a", join="finally"))
    assert trial.succeed("a")
    assert trial.cancel()
    assert (trial.told, trial.changed, trial.status) == ([], set(), RunStatus.CANCELLING)
    assert trial.succeed("tidy")
    assert trial.told[-1] == Finish(RunStatus.CANCELLED)


def test_a_workflow_without_clean_ups_is_cancelled_as_ever():
    trial = Trial(task("a"), task("b", "a", join="always"))
    assert trial.cancel()
    assert (trial.run.control, trial.status) == (0, RunStatus.CANCELLED)


# == its own failures ================================================================================================
def test_a_clean_up_has_its_own_tries_and_its_own_dead_letter():
    trial = cancelled()
    assert trial.fail("release")
    assert (trial.states["release"], trial.status) == ("pending", RunStatus.CANCELLING)
    assert trial.wait_for("release")
    assert trial.lose("release", begun=True)
    assert trial.fail("release")
    assert trial.told[-2:] == [BuryTask(3, 3, 3, trial.state("release").error or HOPELESS), Finish(RunStatus.FAILED)]
    trial.restart()
    assert trial.replay("release")
    assert trial.status is RunStatus.CANCELLING
    trial.restart()
    assert trial.succeed("release")
    assert trial.status is RunStatus.CANCELLED


def test_of_a_cancelled_run_nothing_else_comes_back():
    trial = Trial(task("bad"), task("a"), task("tidy", "a", join="finally"), task("behind", "tidy"), task("open"))
    assert trial.fail("bad", HOPELESS)
    assert trial.succeed("a")
    assert trial.fail("tidy", HOPELESS)
    assert trial.states["behind"] == "skipped"
    assert trial.cancel()
    assert trial.status is RunStatus.FAILED
    assert not trial.replay("bad")
    assert not trial.tell(Supplied(0, trial.token("bad"), b"1"))
    assert trial.replay("tidy")
    assert trial.states["behind"] == "skipped", "it is no clean-up"
    assert trial.status is RunStatus.CANCELLING
    trial.restart()
    assert trial.succeed("tidy")
    assert trial.status is RunStatus.FAILED, "a task failed before the cancel"


def test_a_clean_up_that_waits_for_another_does_so_again_behind_a_replay():
    trial = Trial(
        task("a"),
        task("one", "a", join="finally"),
        task("two", "a", join="finally"),
        task("last", "one", "two", join="finally"),
    )
    assert trial.cancel()
    assert trial.fail("one", HOPELESS)
    assert trial.replay("one")
    assert trial.succeed("two")
    assert trial.states["last"] == "pending"
    trial.restart()
    assert trial.succeed("one")
    assert trial.states["last"] == "queued"


@pytest.mark.parametrize("is_open", [True, False])
def test_a_clean_up_of_a_cancelled_run_may_be_given_its_output(is_open: bool):
    trial = cancelled()
    if not is_open:
        assert trial.fail("release", HOPELESS)
    assert trial.tell(Supplied(3, trial.token("release"), b"1"))
    assert (trial.states["release"], trial.status) == ("completed", RunStatus.CANCELLED)
    assert (CloseLetter(3, 1, "discarded") in trial.told) is not is_open


# == what people do ==================================================================================================
def test_a_second_cancel_says_nothing_new():
    trial = cancelled()
    assert not trial.cancel()
    assert trial.isolate()
    assert not trial.cancel()
    assert trial.release()
    assert trial.status is RunStatus.CANCELLING


def test_a_termination_ends_clean_ups_at_once_and_for_good():
    trial = cancelled()
    assert trial.terminate("now")
    assert trial.states["release"] == "cancelled"
    assert (trial.status, trial.run.control) == (RunStatus.TERMINATED, TERMINATED)
    assert trial.told == [Abort(3, 1, "terminated"), Finish(RunStatus.TERMINATED)]
    trial = Trial(task("a"), task("one", "a", join="finally"), task("two", "one", join="finally"))
    assert trial.cancel()
    assert trial.fail("one", HOPELESS)
    assert trial.terminate()
    assert not trial.replay("one"), "a terminated run stays so"


def test_a_run_is_terminated_without_its_clean_ups():
    trial = at_work()
    assert trial.terminate()
    assert trial.states["release"] == "cancelled"
    assert trial.status is RunStatus.TERMINATED


def test_a_pause_withholds_clean_ups_before_and_after_the_cancel():
    trial = at_work()
    assert trial.pause()
    assert trial.cancel()
    assert (trial.states["release"], trial.state("release").withheld) == ("pending", "turn")
    assert (trial.status, trial.told) == (RunStatus.PAUSED, [Abort(1, 1, "cancelled")])
    assert not trial.cancel()
    trial.restart()
    assert trial.resume()
    assert (trial.states["release"], trial.status) == ("queued", RunStatus.CANCELLING)
    assert trial.pause()
    assert trial.status is RunStatus.PAUSING
    assert trial.fail("release")
    assert trial.wait_for("release")
    assert (trial.state("release").withheld, trial.status) == ("body", RunStatus.PAUSED)
    assert trial.resume()
    assert trial.succeed("release")
    assert trial.status is RunStatus.CANCELLED


def test_a_run_that_cleans_up_stays_on_its_version():
    trial = at_work()
    assert trial.pause()
    assert trial.cancel()
    more = [task("acquire"), task("work", "acquire"), task("more", "work"), task("release", "more", join="finally"),
            task("new")]  # fmt: skip
    obstacles = find_obstacles(plan_of(*more, version_id=1), trial.run)
    assert [(each.task, each.why) for each in obstacles] == [(None, "the run was cancelled, and only cleans up")]
    assert not trial.migrate(*more)


# == a rerun =========================================================================================================
def test_a_rerun_takes_the_clean_ups_behind_what_it_takes():
    trial = cancelled()
    assert trial.succeed("release")
    event = Reran(trial.run.row_version)
    assert [each.task for each in foresee(trial.plan, trial.run, event, trial.at)] == [1, 2, 3]
    assert trial.tell(event)
    assert trial.states == {"acquire": "completed", "work": "queued", "more": "pending", "release": "pending"}
    assert (trial.status, trial.run.control) == (RunStatus.RUNNING, 0)
    trial.restart()
    for name in ("work", "more", "release"):
        assert trial.succeed(name)
    assert trial.status is RunStatus.COMPLETED


def test_a_rerun_of_what_failed_takes_its_clean_up_though_that_completed():
    trial = Trial(task("a"), task("b", "a"), task("tidy", "b", join="finally"), task("note", "b", join="always"))
    assert trial.fail("a", HOPELESS)
    assert trial.succeed("tidy")
    assert trial.succeed("note")
    assert trial.tell(Reran(trial.run.row_version))
    assert trial.states == {"a": "queued", "b": "pending", "tidy": "pending", "note": "completed"}
    assert trial.state("tidy").token == 1, "no token is used again"
    assert trial.succeed("a")
    assert trial.succeed("b")
    assert trial.states["tidy"] == "queued"


@pytest.mark.parametrize("how", ["given", "replayed"])
@pytest.mark.parametrize("join", ["all", 1])
def test_a_rerun_of_what_failed_takes_what_a_mended_clean_up_left_skipped(how: str, join: Any):
    trial = Trial(task("a"), task("tidy", "a", join="finally"), task("behind", "tidy", join=join), task("open"))
    assert trial.succeed("a")
    assert trial.fail("tidy", HOPELESS)
    assert trial.cancel()
    if how == "given":
        assert trial.tell(Supplied(1, trial.token("tidy"), b"1"))
    else:
        assert trial.replay("tidy")
        assert trial.succeed("tidy")
    assert (trial.states["behind"], trial.status) == ("skipped", RunStatus.CANCELLED)
    event = Reran(trial.run.row_version)
    assert [each.task for each in foresee(trial.plan, trial.run, event, trial.at)] == [2, 3]
    assert trial.tell(event)
    assert trial.states == {"a": "completed", "tidy": "completed", "behind": "queued", "open": "queued"}


def test_a_rerun_can_be_cancelled_again_and_a_replay_leaves_a_clean_up_that_has_ended():
    trial = Trial(task("a"), task("b", "a"), task("tidy", "b", join="finally"))
    assert trial.succeed("a")
    assert trial.fail("b", HOPELESS)
    assert trial.succeed("tidy")
    assert trial.replay("b")
    assert trial.states["tidy"] == "completed"
    assert trial.cancel()
    assert trial.status is RunStatus.CANCELLED
    assert trial.tell(Reran(trial.run.row_version))
    assert trial.states["tidy"] == "pending"
    assert trial.cancel()
    assert (trial.states["tidy"], trial.status) == ("queued", RunStatus.CANCELLING)


# == deadlines, compensations, maps, repeats, children ===============================================================
def test_a_run_past_its_deadline_cleans_up_and_has_failed():
    trial = Trial(task("a"), task("tidy", "a", join="finally", deadline=60 * SECOND), deadline=10 * SECOND)
    assert trial.pass_deadline()
    assert trial.states == {"a": "cancelled", "tidy": "queued"}
    assert (trial.status, trial.run.deadline_at) == (RunStatus.CANCELLING, None)
    assert SetDeadline(RUN, None) in trial.told
    assert trial.run.control == CANCELLING | OVERDUE
    trial.restart()
    assert not trial.cancel()
    assert trial.pass_deadline("tidy")
    assert trial.states["tidy"] == "failed"
    assert trial.replay("tidy")
    assert (trial.status, trial.run.deadline_at) == (RunStatus.CANCELLING, None)
    assert trial.state("tidy").deadline_at == trial.at + 60 * SECOND
    assert trial.succeed("tidy")
    assert trial.status is RunStatus.FAILED


def test_a_cancel_takes_the_deadline_of_the_run_away():
    trial = Trial(task("a"), task("tidy", "a", join="finally"), deadline=10 * SECOND)
    assert trial.cancel()
    assert trial.run.deadline_at is None
    trial.restart()
    assert trial.succeed("tidy")
    assert trial.status is RunStatus.CANCELLED


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_what_is_undone_comes_after_what_is_cleaned_up(end: str):
    trial = Trial(task("pay", undo="refund"), task("ship", "pay"), task("tidy", "ship", join="finally"))
    assert trial.succeed("pay", b"1")
    assert trial.cancel()
    assert trial.status is RunStatus.CANCELLING
    assert trial.run.compensations is None
    assert trial.succeed("tidy") if end == "completed" else trial.fail("tidy", HOPELESS)
    assert trial.status is RunStatus.COMPENSATING
    trial.restart()
    assert not trial.replay("tidy")
    assert trial.succeed("pay.compensate")
    assert trial.status is RunStatus.COMPENSATED


def test_a_map_that_cleans_up_goes_on_with_all_its_items():
    trial = Trial(
        task("a"),
        task("tidy", "a", join="finally", over=[1, 2, 3], max_parallel=2, failures="finish"),
        task("other", "a", over=[1, 2]),
    )
    assert trial.succeed("a")
    assert trial.cancel()
    assert trial.items("tidy") == ["queued", "queued"]
    assert trial.items("other") == ["cancelled", "cancelled"]
    trial.restart()
    assert trial.succeed("tidy.0")
    assert trial.items("tidy") == ["completed", "queued", "queued"]
    assert trial.fail("tidy.1", HOPELESS)
    assert trial.succeed("tidy.2")
    assert trial.status is RunStatus.FAILED
    assert trial.replay("tidy.1")
    assert trial.status is RunStatus.CANCELLING
    trial.restart()
    assert trial.succeed("tidy.1")
    assert trial.status is RunStatus.CANCELLED


def test_a_repeat_that_cleans_up_has_its_rounds():
    rounds = RepeatPlan(compile_condition("false"), 2, on_max="complete")
    trial = cancelled(repeat=rounds)
    assert trial.succeed("release")
    assert (trial.states["release"], trial.status) == ("queued", RunStatus.CANCELLING)
    assert trial.succeed("release")
    assert trial.status is RunStatus.CANCELLED


def test_the_child_of_a_clean_up_is_left_and_that_of_another_task_is_cancelled():
    trial = Trial(
        task("a"),
        task("kid", "a", run=None, child=ChildPlan("other")),
        task("tidy", "a", run=None, child=ChildPlan("cleaner"), join="finally"),
        task("last", "kid", run=None, child=ChildPlan("cleaner"), join="finally"),
    )
    assert trial.succeed("a")
    assert trial.cancel()
    assert [type(action) for action in trial.told] == [CancelChild, StartChild]
    assert trial.states == {"a": "completed", "kid": "cancelled", "tidy": "waiting", "last": "waiting"}
    assert trial.tell_child("tidy", "completed")
    assert trial.tell_child("last", "failed")
    assert trial.status is RunStatus.FAILED


def test_a_clean_up_of_a_pool_waits_for_its_slot():
    trial = cancelled(pool="pool")
    assert (trial.states["release"], trial.status) == ("waiting", RunStatus.CANCELLING)
    assert trial.admit("release")
    assert trial.succeed("release")
    assert trial.status is RunStatus.CANCELLED


def test_an_effect_in_doubt_is_cleared_up_behind_the_cancel():
    trial = cancelled(effect="manual")
    assert trial.claim("release")
    assert trial.lose("release")
    assert trial.state("release").is_parked
    assert trial.status is RunStatus.CANCELLING
    assert trial.resolve("release", "happened")
    assert trial.status is RunStatus.CANCELLED


# == the status ======================================================================================================
def test_the_status_of_a_cancelled_run_is_a_function_of_its_tasks_and_its_flags():
    every = [None, *TaskStatus]
    for one in every:
        for other in every:
            counts: dict[TaskStatus, int] = {}
            for status in (one, other):
                if status is not None:
                    counts[status] = counts.get(status, 0) + 1
            ended = sum(counts.get(s, 0) for s in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.SKIPPED,
                                                   TaskStatus.CANCELLED))  # fmt: skip
            found = derive_status(2, counts, attention=False, control=CANCELLING)
            if ended < 2:
                assert found is RunStatus.CANCELLING
                assert derive_status(2, counts, attention=True, control=CANCELLING) is RunStatus.NEEDS_ATTENTION
                held = derive_status(2, counts, attention=False, control=CANCELLING | PAUSED)
                assert held in (RunStatus.PAUSED, RunStatus.PAUSING)
            else:
                assert found is (RunStatus.FAILED if TaskStatus.FAILED in counts else RunStatus.CANCELLED)
                undone = CompensationCounts(1)
                status = derive_status(2, counts, attention=False, control=CANCELLING, compensations=undone)
                assert status is RunStatus.COMPENSATING
