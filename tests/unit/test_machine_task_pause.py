"""A pause of one task: what of it begins no more, what goes on, and what the rest of the run knows of it."""

import pytest

from headrace.expressions import OF_ITS_END, compile_condition
from headrace.machine import Abort, AwaitSlot, Dispatch, Finish, HoldTasks, Paused, Resumed, RunStatus, StartChild
from headrace.machine.migration import find_obstacles
from headrace.machine.plan import ChildPlan, RepeatPlan, WaitPlan
from headrace.machine.status import PAUSED, PAUSES, TASKS_PAUSED, WORKFLOW_PAUSED
from tests.unit.machine_model import HOPELESS, SECOND, Trial, plan_of, task
from tests.unit.test_machine_pairs import STATES, states_of

ITEMS = ["a", "b", "c"]


def dispatched(trial: Trial) -> list[str]:
    return [trial.plan.name_of(action.task) for action in trial.told if isinstance(action, Dispatch)]


def test_what_was_handed_out_goes_on_and_its_retry_waits_for_the_resume():
    trial = Trial(task("pay"), task("ship"), task("after", "pay", "ship"))
    assert trial.start("pay")
    assert trial.pause_task("pay")
    assert trial.told == [HoldTasks((0,))]
    assert (trial.states["pay"], trial.status) == ("running", RunStatus.RUNNING)
    trial.restart()
    assert trial.fail("pay")
    assert trial.state("pay").due_at is not None, "a backoff goes by"
    assert trial.wait_for("pay")
    assert (trial.states["pay"], trial.state("pay").withheld) == ("pending", "body")
    trial.restart()
    assert trial.succeed("ship")
    assert trial.resume_task("pay")
    assert dispatched(trial) == ["pay"]
    assert trial.succeed("pay")
    assert dispatched(trial) == ["after"]


def test_its_turn_comes_when_it_is_resumed_and_not_when_its_needs_end():
    trial = Trial(task("a"), task("b", "a", condition="false"), task("c", "a"))
    assert trial.pause_task("b")
    assert trial.state("b").is_untouched
    trial.restart()
    assert trial.succeed("a")
    assert (trial.state("b").withheld, dispatched(trial)) == ("turn", ["c"])
    assert trial.succeed("c")
    assert trial.status is RunStatus.RUNNING
    assert trial.resume_task("b")
    assert trial.states["b"] == "skipped", "its condition is looked at then"
    assert trial.told[-1] == Finish(RunStatus.COMPLETED)


def test_a_result_that_comes_in_the_pause_counts():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.pause_task("a")
    assert trial.succeed("a")
    assert dispatched(trial) == ["b"]
    assert not trial.pause_task("a"), "it has ended"
    assert trial.resume_task("a")


def test_a_claim_is_not_granted_and_goes_out_again():
    trial = Trial(task("a", exclusive=True), task("b", exclusive=True))
    assert trial.pause_task("a")
    assert trial.claim("a")
    assert trial.told == [Abort(0, 1, "paused")]
    assert trial.claim("b")
    assert trial.states == {"a": "pending", "b": "running"}
    assert trial.resume_task("a")
    assert (trial.states["a"], trial.token("a"), trial.state("a").attempt) == ("queued", 2, 0)


def test_no_other_item_of_a_map_begins_and_those_that_run_go_on():
    trial = Trial(task("pages", over=ITEMS, max_parallel=1), task("other"))
    assert trial.pause_task("pages")
    assert trial.fail("pages.0")
    assert trial.wait_for("pages.0")
    assert trial.state("pages.0").withheld == "body"
    trial.restart()
    assert trial.resume_task("pages")
    assert dispatched(trial) == ["pages.0"]
    assert trial.pause_task("pages")
    assert trial.succeed("pages.0")
    assert (trial.items("pages"), trial.state("pages.1").withheld) == (["completed", "pending"], "body")
    assert trial.resume_task("pages")
    for name in ("pages.1", "pages.2", "other"):
        assert trial.succeed(name)
    assert trial.status is RunStatus.COMPLETED


def test_the_next_round_and_the_next_slot_wait_too():
    again = RepeatPlan(compile_condition("false", OF_ITS_END), 3)
    trial = Trial(task("poll", repeat=again), task("load", pool="db"))
    assert trial.pause_task("poll")
    assert trial.pause_task("load")
    assert trial.succeed("poll")
    assert trial.state("poll").withheld == "body"
    assert trial.admit("load")
    assert (trial.state("load").withheld, trial.state("load").pool) == ("body", "")
    assert trial.resume_task("load")
    assert [type(action) for action in trial.told] == [HoldTasks, AwaitSlot]
    assert trial.run.paused == {0}


def test_what_waits_goes_on_to_wait_and_a_child_is_asked_for_after_the_resume():
    trial = Trial(
        task("nap", run=None, wait=WaitPlan(length=SECOND)), task("a"), task("kid", "a", run=None, child=ChildPlan("x"))
    )
    assert trial.pause_task("nap")
    assert trial.pause_task("kid")
    assert trial.wait_for("nap", "wait")
    assert trial.states["nap"] == "completed"
    assert trial.succeed("a")
    assert trial.state("kid").withheld == "turn"
    assert trial.resume_task("kid")
    assert trial.told[-1] == StartChild(2, 1, b'{"n":1}')


def test_what_undoes_a_task_is_not_paused_with_it():
    trial = Trial(task("pay", undo="refund"), task("ship", "pay"))
    assert trial.pause_task("pay")
    assert trial.succeed("pay")
    assert trial.fail("ship", HOPELESS)
    assert trial.status is RunStatus.COMPENSATING
    assert dispatched(trial) == ["pay.compensate"]


def test_it_goes_on_when_neither_its_run_nor_itself_is_paused():
    for first, second in (("run", "task"), ("task", "run")):
        trial = Trial(task("a"), task("b", "a"))
        assert trial.pause()
        assert trial.pause_task("b")
        assert trial.succeed("a")
        assert trial.status is RunStatus.PAUSED
        for end in (first, second):
            assert trial.state("b").withheld == "turn"
            trial.restart()
            assert trial.resume() if end == "run" else trial.resume_task("b")
        assert trial.states["b"] == "queued"


def test_a_replay_of_a_paused_task_waits_and_a_run_that_ends_is_paused_no_more():
    trial = Trial(task("a"), task("b"))
    assert trial.pause_task("a")
    assert trial.fail("a", HOPELESS)
    assert trial.replay("a")
    assert trial.state("a").withheld == "again"
    assert trial.cancel()
    assert HoldTasks(()) in trial.told
    assert (trial.run.paused, trial.run.control) == (frozenset(), 0)
    trial.restart()


def test_a_pause_is_begun_and_ended_once_and_only_of_a_task_that_is_there():
    trial = Trial(task("a"), task("pages", over=ITEMS))
    assert trial.pause_task("a")
    assert not trial.pause_task("a")
    assert not trial.resume_task("pages")
    for place in (-1, 2, 10_000, trial.place("pages.0")):
        assert not trial.tell(Paused(TASKS_PAUSED, task=place))
        assert not trial.tell(Resumed(TASKS_PAUSED, task=place))
    assert trial.resume_task("a")
    assert not trial.resume_task("a")
    assert trial.run.control == 0


@pytest.mark.parametrize("state", STATES)
def test_a_pause_of_a_task_changes_no_state_and_its_end_lets_it_go(state: str):
    trial = STATES[state]()
    before, status = states_of(trial), trial.status
    is_over = status in ("failed", "completed", "cancelled") or trial.states["subject"] in (
        "completed", "failed", "skipped", "cancelled",
    )  # fmt: skip
    assert trial.pause_task("subject") is not is_over
    assert (states_of(trial), trial.status) == (before, status)
    trial.restart()
    assert trial.resume_task("subject") is not is_over
    assert (states_of(trial), trial.status) == (before, status)


def test_a_move_keeps_the_pause_and_its_task():
    old = (task("check"), task("nap", "check", run=None, wait=WaitPlan(length=SECOND)), task("charge", "nap"))
    trial = Trial(*old)
    assert trial.succeed("check")
    assert trial.pause_task("charge")
    assert trial.pause()
    gone = plan_of(*old[:2], version_id=1)
    assert [each.task for each in find_obstacles(gone, trial.run)] == ["charge"]
    assert trial.migrate(*old, task("tell", "charge"))
    assert trial.resume()
    assert trial.wait_for("nap", "wait")
    assert trial.state("charge").withheld == "turn"
    trial.restart()


def test_the_bits_of_a_run_are_those_that_are_stored():
    assert (PAUSED, WORKFLOW_PAUSED, TASKS_PAUSED) == (1, 2, 16)
    assert not TASKS_PAUSED & PAUSES
