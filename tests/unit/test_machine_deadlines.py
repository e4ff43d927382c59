"""Deadlines: of a task over all it does, of its time in the queue, of a run."""

from collections.abc import Callable

import pytest

from headrace.expressions import compile_value
from headrace.machine import (
    Abort,
    BuryTask,
    ClearTimer,
    CloseQuestion,
    Dispatch,
    EndAttempt,
    Finish,
    FreeSlot,
    Migrated,
    Park,
    Reran,
    RunStatus,
    SetDeadline,
    SetTimer,
    StopListening,
    Supplied,
    TaskStatus,
    Unpark,
)
from headrace.machine.deadline import START_GRACE
from headrace.machine.migration import find_obstacles
from headrace.machine.place import RUN
from headrace.machine.plan import SignalPlan, WaitPlan
from headrace.machine.reason import DEADLINE, HANDOUTS_LOST_MAX, RUN_DEADLINE, START_DEADLINE
from headrace.messages import Admitted, Due
from tests.unit.machine_model import HOPELESS, NONCE, SECOND, START, Spec, Trial, plan_of, task

HOUR = 3_600 * SECOND


def _failed_by_deadline(trial: Trial, name: str = "a") -> bool:
    state = trial.state(name)
    return (state.status, state.error, state.deadline_at, state.due_at) == (TaskStatus.FAILED, DEADLINE, None, None)


def _until(instant: int) -> Spec:
    spec = task("a")
    return spec._replace(options={**spec.options, "deadline": WaitPlan(until=instant)})


# == of a task =========================================================================================================
def test_a_deadline_counts_from_the_turn_of_its_task() -> None:
    trial = Trial(task("a"), task("b", "a", deadline=HOUR))
    assert trial.state("b").deadline_at is None
    trial.at += SECOND
    trial.succeed("a")
    assert trial.state("b").deadline_at == START + SECOND + HOUR
    assert SetDeadline(1, START + SECOND + HOUR) in trial.told


def test_a_deadline_outlives_attempts_and_backoffs() -> None:
    trial = Trial(task("a", deadline=HOUR))
    deadline_at = trial.state("a").deadline_at
    for step in (
        lambda: trial.start("a"), lambda: trial.fail("a"), lambda: trial.wait_for("a"),
        lambda: trial.give_back("a", begun=True), lambda: trial.lose("a"), trial.pause, lambda: trial.lose("a"),
        trial.resume,
    ):  # fmt: skip
        assert step()
        assert trial.state("a").deadline_at == deadline_at
        assert not any(isinstance(action, SetDeadline) for action in trial.told)
        trial.restart()


def test_the_end_of_a_task_takes_its_deadline_away() -> None:
    for end in (
        lambda trial: trial.succeed("a"),
        lambda trial: trial.fail("a", HOPELESS),
        lambda trial: trial.cancel(),
        lambda trial: trial.tell(Supplied(0, trial.token("a"))),
    ):
        trial = Trial(task("a", deadline=HOUR), task("b"))
        assert end(trial)
        assert SetDeadline(0, None) in trial.told
        assert trial.state("a").deadline_at is None
        assert not trial.pass_deadline("a")


def _queued() -> Trial:
    return Trial(task("a", deadline=HOUR))


def _running() -> Trial:
    trial = Trial(task("a", deadline=HOUR, timeout=9_999.0))
    assert trial.start("a")
    return trial


def _backing_off() -> Trial:
    trial = _queued()
    assert trial.fail("a")
    return trial


def _withheld() -> Trial:
    trial = _queued()
    assert trial.pause()
    assert trial.lose("a")
    return trial


def _asked() -> Trial:
    return Trial(task("a", deadline=HOUR, asks=True))


STATES: dict[str, tuple[Callable[[], Trial], list[type]]] = {
    "queued": (_queued, [Abort, BuryTask]),
    "running": (_running, [EndAttempt, Abort, ClearTimer, BuryTask]),
    "backing off": (_backing_off, [ClearTimer, BuryTask]),
    "withheld": (_withheld, [BuryTask]),
    "asked": (_asked, [CloseQuestion, BuryTask]),
}


@pytest.mark.parametrize("state", STATES)
def test_whatever_a_task_does_at_its_deadline_it_fails(state: str) -> None:
    reach, actions = STATES[state]
    trial = reach()
    before = trial.state("a")
    assert trial.pass_deadline("a")
    assert _failed_by_deadline(trial)
    assert [type(action) for action in trial.told[: len(actions)]] == actions
    token = before.token + 1 if before.withheld else before.token
    assert BuryTask(0, token, before.attempt, DEADLINE) in trial.told
    assert SetDeadline(0, None) in trial.told
    assert trial.status is RunStatus.FAILED
    assert not trial.pass_deadline("a")


def test_a_deadline_that_is_said_early_or_twice_changes_nothing() -> None:
    trial = _queued()
    trial.at = START + HOUR - 1
    assert not trial.tell(Due(0, 0, NONCE, "deadline"))
    assert trial.pass_deadline("a")
    assert not trial.tell(Due(0, 0, NONCE, "deadline"))


def test_a_deadline_is_not_retried() -> None:
    trial = _running()
    trial.pass_deadline("a")
    assert not any(isinstance(action, Dispatch) for action in trial.told)


def test_a_replay_has_a_deadline_anew() -> None:
    trial = _queued()
    trial.pass_deadline("a")
    trial.at += HOUR
    assert trial.replay("a")
    assert trial.state("a").deadline_at == trial.at + HOUR
    trial.restart()
    assert trial.pass_deadline("a")


def test_an_item_that_is_replayed_and_withheld_until_the_deadline_has_a_dead_letter_of_its_own() -> None:
    """Its first one is of the last token under which it was handed out; two of one hand-out are one too many."""
    trial = Trial(task("m", over=[1, 2], failures="finish", deadline=HOUR))
    assert trial.fail("m.0", HOPELESS)
    assert trial.pause()
    assert trial.replay("m.0")
    assert trial.pass_deadline("m")
    buried = [(action.task, action.token) for action in trial.actions if isinstance(action, BuryTask)]
    assert buried == [(trial.place("m.0"), 1), (trial.place("m.0"), 2)]


def test_a_rerun_has_a_deadline_anew() -> None:
    trial = _queued()
    trial.succeed("a")
    trial.at += 9 * HOUR
    assert trial.tell(Reran(trial.run.row_version, (0,)))
    assert trial.state("a").deadline_at == trial.at + HOUR


def test_an_instant_that_has_passed_fails_the_task_before_it_is_handed_out() -> None:
    trial = Trial(_until(START - 1))
    assert _failed_by_deadline(trial)
    assert not any(isinstance(action, Dispatch) for action in trial.actions)
    assert trial.replay("a")  # by an operator, for whom the instant is no deadline
    assert (trial.states["a"], trial.state("a").deadline_at) == ("queued", None)


def test_a_deadline_that_cannot_be_evaluated_fails_the_task() -> None:
    spec = task("a")
    plan = WaitPlan(value=compile_value("${{ input.nothing }}"), is_for=True)
    trial = Trial(spec._replace(options={**spec.options, "deadline": plan}))
    state = trial.state("a")
    assert state.error is not None
    assert (state.status, state.error.code, state.token) == ("failed", "BAD_INPUT", 1)


def test_a_false_condition_asks_no_deadline() -> None:
    trial = Trial(task("a", condition="false", deadline=HOUR))
    assert trial.states == {"a": "skipped"}
    assert not any(isinstance(action, SetDeadline) for action in trial.actions)


def test_a_turn_that_is_withheld_has_no_deadline_before_it_comes() -> None:
    trial = Trial(task("a"), task("b", "a", deadline=HOUR))
    trial.pause()
    trial.succeed("a")
    assert trial.state("b").deadline_at is None
    trial.at += HOUR
    trial.resume()
    assert trial.state("b").deadline_at == trial.at + HOUR


def test_a_task_that_waits_for_a_slot_fails_by_its_deadline_and_leaves_its_queue() -> None:
    trial = Trial(task("a", deadline=HOUR, start_within=SECOND, pool="p"))
    assert (trial.states["a"], trial.state("a").due_at) == ("waiting", None)
    assert trial.pass_deadline("a")
    assert _failed_by_deadline(trial)
    assert FreeSlot(0, "p") in trial.told


def test_the_time_in_the_queue_counts_from_the_slot() -> None:
    trial = Trial(task("a", start_within=SECOND, pool="p"))
    trial.at += HOUR
    assert trial.tell(Admitted(0, 1, NONCE))
    assert trial.state("a").due_at == trial.at + SECOND + START_GRACE
    assert trial.wait_for("a", "start")
    assert FreeSlot(0, "p") in trial.told


# -- whose effect is in doubt
def test_a_running_manual_task_is_parked_at_its_deadline() -> None:
    trial = Trial(task("a", deadline=HOUR, effect="manual"))
    trial.claim("a")
    assert trial.pass_deadline("a")
    assert trial.state("a").is_parked
    assert any(isinstance(action, Park) for action in trial.told)
    assert SetDeadline(0, None) in trial.told
    trial.restart()
    assert trial.resolve("a", "fail")
    assert trial.states == {"a": "failed"}


def test_a_person_who_lets_it_run_again_sets_no_deadline() -> None:
    trial = Trial(task("a", deadline=HOUR, effect="manual"))
    trial.claim("a")
    trial.pass_deadline("a")
    assert trial.resolve("a", "did_not_happen")
    assert (trial.states["a"], trial.state("a").deadline_at) == ("queued", None)


@pytest.mark.parametrize(("happened", "end"), [(True, "completed"), (False, "failed"), (None, "waiting")])
def test_an_effect_in_doubt_at_the_deadline_is_looked_up(happened: bool | None, end: str) -> None:
    trial = Trial(task("a", deadline=HOUR, effect="reconcile"))
    trial.claim("a")
    assert trial.pass_deadline("a")
    assert trial.state("a").lookups == 1
    assert trial.look_up("a", happened)
    assert trial.states == {"a": end}


def test_a_lookup_goes_on_past_the_deadline_and_nothing_is_handed_out_after_it() -> None:
    trial = Trial(task("a", deadline=HOUR, effect="reconcile"))
    trial.claim("a")
    trial.lose("a")
    assert trial.pass_deadline("a")
    state = trial.state("a")
    assert (state.status, state.lookups, state.deadline_at) == ("queued", 1, None)
    assert not trial.tell(Due(0, 0, NONCE, "deadline"))
    trial.look_up("a", False)
    error = trial.state("a").error
    assert error is not None
    assert (trial.states["a"], error.code) == ("failed", "DEADLINE")


def test_a_task_that_is_parked_stays_so() -> None:
    trial = Trial(task("a", deadline=HOUR, effect="manual"))
    trial.claim("a")
    trial.lose("a")
    assert trial.pass_deadline("a")
    assert trial.state("a").is_parked
    assert not any(isinstance(action, Unpark) for action in trial.told)
    assert not trial.pass_deadline("a")


# -- maps
def test_a_map_that_fails_by_its_deadline_leaves_one_dead_letter() -> None:
    trial = Trial(task("m", over=[1, 2, 3], deadline=HOUR))
    trial.succeed("m.0", b"1")
    assert trial.pass_deadline("m")
    assert trial.items("m") == ["completed", "failed", "cancelled"]
    assert [action.task for action in trial.told if isinstance(action, BuryTask)] == [trial.place("m.1")]
    assert _failed_by_deadline(trial, "m")


def test_a_replay_of_that_item_takes_the_map_up_again_with_a_deadline_anew() -> None:
    trial = Trial(task("m", over=[1, 2, 3], deadline=HOUR))
    trial.pass_deadline("m")
    trial.at += HOUR
    assert trial.replay("m.0")
    assert trial.items("m") == ["queued", "queued", "queued"]
    assert trial.state("m").deadline_at == trial.at + HOUR
    for place in ("m.0", "m.1", "m.2"):
        trial.succeed(place)
    assert trial.states == {"m": "completed"}
    assert trial.state("m").deadline_at is None


@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_an_item_whose_effect_is_in_doubt_is_not_the_dead_letter_while_there_is_another(effect: str) -> None:
    trial = Trial(task("m", over=[1, 2], deadline=HOUR, effect=effect))  # type: ignore[arg-type]
    trial.claim("m.0")
    assert trial.pass_deadline("m")
    assert trial.items("m") == ["cancelled", "failed"]
    error = trial.state("m.0").error
    assert error is not None
    assert error.ambiguous


# == of the time in the queue ==========================================================================================
def test_a_hand_out_that_nobody_begins_in_time_fails() -> None:
    trial = Trial(task("a", start_within=SECOND))
    assert SetTimer(0, 1, "start", START + SECOND + START_GRACE) in trial.told
    assert trial.wait_for("a", "start")
    assert trial.state("a").error == START_DEADLINE
    assert [type(action) for action in trial.told[:3]] == [ClearTimer, Abort, BuryTask]
    assert trial.state("a").attempt == 0


def test_a_body_that_begins_in_time_is_not_limited_any_more() -> None:
    trial = Trial(task("a", start_within=SECOND))
    assert trial.start("a")
    assert ClearTimer(0) in trial.told
    assert trial.state("a").due_at is None
    assert not trial.wait_for("a", "start")


def test_a_time_out_takes_the_place_of_the_time_in_the_queue() -> None:
    trial = Trial(task("a", start_within=SECOND, timeout=10.0))
    assert trial.start("a")
    assert [action.kind for action in trial.told if isinstance(action, SetTimer)] == ["timeout"]
    assert trial.wait_for("a", "timeout")


def test_a_short_body_that_only_answers_takes_its_timer_away() -> None:
    trial = Trial(task("a", start_within=SECOND))
    assert trial.succeed("a")
    assert ClearTimer(0) in trial.told


def test_a_lost_command_has_no_time_of_its_own() -> None:
    trial = Trial(task("a", start_within=SECOND))
    due_at = trial.state("a").due_at
    trial.at += SECOND // 2
    assert trial.lose("a")
    assert (trial.state("a").due_at, trial.token("a")) == (due_at, 2)
    assert SetTimer(0, 2, "start", due_at or 0) in trial.told


def test_each_attempt_has_its_time_in_the_queue() -> None:
    trial = Trial(task("a", start_within=SECOND))
    trial.fail("a")
    assert trial.wait_for("a")
    assert trial.state("a").due_at == trial.at + SECOND + START_GRACE
    assert trial.give_back("a", begun=True)
    assert trial.state("a").due_at == trial.at + SECOND + START_GRACE


def test_a_claim_that_a_pause_refuses_takes_its_timer_away() -> None:
    trial = Trial(task("a", start_within=SECOND, exclusive=True))
    trial.pause()
    assert trial.claim("a")
    assert ClearTimer(0) in trial.told
    assert trial.state("a").due_at is None
    trial.resume()
    assert trial.state("a").due_at == trial.at + SECOND + START_GRACE


def test_a_task_given_up_after_many_lost_commands_has_no_timer_left() -> None:
    trial = Trial(task("a", start_within=HOUR))
    for _ in range(HANDOUTS_LOST_MAX):
        assert trial.lose("a")
    assert trial.states == {"a": "failed"}
    assert trial.told[0] == ClearTimer(0)
    assert not any(isinstance(action, SetTimer) for action in trial.told)


def test_a_lookup_has_all_the_time_it_needs() -> None:
    trial = Trial(task("a", start_within=SECOND, effect="reconcile"))
    trial.claim("a")
    trial.lose("a")
    assert (trial.state("a").lookups, trial.state("a").due_at) == (1, None)


def test_items_have_their_time_in_the_queue() -> None:
    trial = Trial(task("m", over=[1, 2], start_within=SECOND))
    assert trial.wait_for("m.0", "start")
    assert trial.items("m") == ["failed", "cancelled"]


# == of a run ==========================================================================================================
def test_a_run_that_has_not_ended_by_its_deadline_has_failed() -> None:
    trial = Trial(
        task("a"), task("b"), task("c", "a"), task("q", asks=True), task("s", run=None, signal=SignalPlan("news")),
        deadline=HOUR,
    )  # fmt: skip
    assert trial.run.deadline_at == START + HOUR
    assert SetDeadline(RUN, START + HOUR) in trial.told
    trial.succeed("b")
    assert trial.pass_deadline()
    assert trial.states == {"a": "cancelled", "b": "completed", "c": "cancelled", "q": "cancelled", "s": "cancelled"}
    assert trial.state("a").error == RUN_DEADLINE
    assert trial.status is RunStatus.FAILED
    assert Finish(RunStatus.FAILED) in trial.told
    assert {type(action) for action in trial.told} >= {Abort, CloseQuestion, StopListening, SetDeadline}
    assert trial.run.deadline_at is None
    trial.restart()
    assert trial.status is RunStatus.FAILED
    assert not trial.pass_deadline()


def test_a_run_that_ends_in_time_has_no_deadline_left() -> None:
    trial = Trial(task("a"), deadline=HOUR)
    trial.succeed("a")
    assert trial.told[-1] == SetDeadline(RUN, None)
    assert not trial.pass_deadline()


def test_a_deadline_of_the_run_that_is_said_early_changes_nothing() -> None:
    trial = Trial(task("a"), deadline=HOUR)
    trial.at = START + HOUR - 1
    assert not trial.tell(Due(RUN, 0, NONCE, "deadline"))


def test_a_rerun_counts_from_its_own_beginning() -> None:
    trial = Trial(task("a"), task("b"), deadline=HOUR)
    trial.succeed("b")
    trial.pass_deadline()
    trial.at += HOUR
    assert trial.tell(Reran(trial.run.row_version))
    assert (trial.status, trial.run.deadline_at) == (RunStatus.RUNNING, trial.at + HOUR)
    assert trial.states == {"a": "queued", "b": "completed"}
    trial.succeed("a")
    assert trial.status is RunStatus.COMPLETED


def test_a_run_that_is_taken_up_by_a_replay_counts_anew() -> None:
    trial = Trial(task("a"), deadline=HOUR)
    trial.fail("a", HOPELESS)
    trial.at += 2 * HOUR
    assert trial.replay("a")
    assert trial.run.deadline_at == trial.at + HOUR


# == in another version ================================================================================================
def test_a_run_that_moves_keeps_what_its_tasks_have() -> None:
    trial = Trial(task("a", deadline=HOUR), deadline=HOUR)
    trial.fail("a")
    trial.pause()
    before = trial.state("a")
    new = plan_of(task("a", deadline=9 * HOUR), task("b", "a"), deadline=9 * HOUR, version_id=1)
    assert trial.tell(Migrated(new))
    assert (trial.state("a"), trial.run.deadline_at) == (before, START + HOUR)
    trial.plan = new
    trial.resume()
    assert trial.pass_deadline("a")
    assert trial.states == {"a": "failed", "b": "skipped"}


def test_a_task_that_is_open_with_a_deadline_does_not_move_to_where_it_has_none() -> None:
    trial = Trial(task("a", deadline=HOUR))
    trial.fail("a")
    trial.pause()
    (obstacle,) = find_obstacles(plan_of(task("a"), version_id=1), trial.run)
    assert obstacle.why == "it is open with deadline, and has no deadline and no repeat now"


def test_a_run_that_moves_to_a_version_without_a_deadline_has_none() -> None:
    trial = Trial(task("a"), deadline=HOUR)
    trial.fail("a")
    trial.pause()
    assert trial.tell(Migrated(plan_of(task("a"), version_id=1)))
    assert SetDeadline(RUN, None) in trial.told
    assert trial.run.deadline_at is None


def test_a_run_without_deadlines_asks_for_none() -> None:
    trial = Trial(task("a"), task("b", "a"))
    trial.succeed("a")
    trial.succeed("b")
    assert not any(isinstance(action, SetDeadline) for action in trial.actions)
    assert not trial.plan.has_deadlines
