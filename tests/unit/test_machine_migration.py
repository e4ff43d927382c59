"""Moving a run in flight to another version: what stands, what is counted anew, and what stands in the way."""

import msgspec
import pytest

from headrace.expressions import OF_ITS_END, compile_condition
from headrace.machine import (
    ClearTimer,
    Dispatch,
    Finish,
    FreeSlot,
    Migrated,
    RefuseMove,
    RunState,
    RunStatus,
    TaskStatus,
    advance,
)
from headrace.machine.backoff import RetryPlan
from headrace.machine.migration import find_obstacles
from headrace.machine.plan import Effect, RepeatPlan, SignalPlan, WaitPlan
from headrace.machine.run_state import UNTOUCHED
from headrace.machine.status import MOVING, PAUSED, RUN_TERMINAL
from headrace.messages import Error
from tests.unit.machine_model import DOUBTFUL, INPUT, KEY, START, Spec, Trial, plan_of, task
from tests.unit.test_machine_pairs import STATES, states_of

HOUR = 3_600_000_000
OLD = (task("check"), task("pause", "check", run=None, wait=WaitPlan(length=HOUR)), task("charge", "pause"))

READS = task("more", "check", template="${{ tasks.check.output }}")
GONE = "it has begun, and version 2 has no such task: one that was only renamed says `was: {}`"
HAS_BEGUN = "it has begun as a task with {}, and is a task with {} now"


def waiting() -> Trial:
    """`check` is done, `pause` waits, `charge` is untouched; the run is paused, and nothing of it runs."""
    trial = Trial(*OLD)
    assert trial.succeed("check", b'{"total":1}')
    assert trial.pause()
    assert trial.status is RunStatus.PAUSED
    return trial


def obstacles(trial: Trial, *specs: Spec) -> list[tuple[str | None, str]]:
    return [(each.task, each.why) for each in find_obstacles(plan_of(*specs, version_id=1), trial.run)]


# == names =============================================================================================================
def test_a_task_that_was_renamed_is_the_same_task():
    trial = waiting()
    assert trial.migrate(
        task("verify", was="check"), task("rest", "verify", run=None, wait=OLD[1].options["wait"], was="pause")
    )
    assert trial.states == {"verify": "completed", "rest": "waiting"}
    assert trial.run.plan.effect_name_of(trial.place("verify")) == "check"


def test_a_name_is_that_of_the_effect_keys_over_any_number_of_versions():
    trial = waiting()
    wait = OLD[1].options["wait"]
    assert trial.migrate(task("verify", was="check"), task("pause", "verify", run=None, wait=wait))
    again = (task("prove", was="check"), task("pause", "prove", run=None, wait=wait))
    assert obstacles(trial, *again) == []
    lost = (task("prove", was="verify"), *again[1:])
    assert obstacles(trial, *lost) == [("verify", GONE.format("check"))]
    alike = (task("verify"), task("pause", "verify", run=None, wait=wait))
    assert obstacles(trial, *alike) == [("verify", GONE.format("check"))], "its effects would have another key"


def test_places_are_named_as_their_effects_are():
    plan = plan_of(task("many", over=[1], was="one"), task("pay", undo="refund", was="charge"))
    assert [plan.name_of(place) for place in (0, 10_002, 200_000_001)] == ["many", "many.2", "pay.compensate"]
    assert [plan.effect_name_of(place) for place in (0, 10_002, 200_000_001)] == ["one", "one.2", "charge.compensate"]


# == what a move does ==================================================================================================
def test_a_version_that_does_not_exist_is_refused_with_that_reason_and_ends_the_pause_made_for_it():
    trial = Trial(*OLD, control=MOVING)
    assert trial.tell(Migrated(None, "a better one", "ada", resumes=MOVING))
    assert trial.told[0] == RefuseMove(None, "the version that it was to be moved to does not exist")
    assert not trial.run.control & MOVING
    assert "queued" in trial.states.values()
    assert trial.tell(Migrated(None)), "it says so each time"


def test_a_move_keeps_what_has_ended_and_what_waits():
    trial = waiting()
    before = states_of(trial)[:2]
    assert trial.migrate(*OLD[:2], task("book", "pause"), task("tell", "book"))
    assert (states_of(trial)[:2], trial.told, trial.status) == (before, [], RunStatus.PAUSED)
    assert trial.states == {"check": "completed", "pause": "waiting", "book": "pending", "tell": "pending"}
    trial.restart()
    assert trial.resume()
    assert trial.wait_for("pause", "wait")
    assert trial.succeed("book")
    assert trial.succeed("tell")
    assert trial.status is RunStatus.COMPLETED


def test_what_newly_may_begin_is_withheld_until_the_run_goes_on():
    trial = waiting()
    assert trial.migrate(*OLD, task("root"), task("behind", "check"), task("both", "check", "root"))
    assert trial.told == []
    assert [trial.state(name).withheld for name in ("root", "behind", "both")] == ["turn", "turn", ""]
    trial.restart()
    assert trial.resume()
    assert [action.task for action in trial.told if isinstance(action, Dispatch)] == [3, 4]
    assert trial.succeed("root")
    assert trial.states["both"] == "queued"


@pytest.mark.parametrize(
    ("join", "state"), [("any", "pending"), ("all", "pending"), ("always", "pending"), (2, "pending")]
)
def test_joins_are_counted_anew(join: object, state: str):
    """Behind a task that has ended and one that has not: `any` may begin, the others wait."""
    trial = waiting()
    assert trial.migrate(*OLD, task("join", "check", "pause", join=join))  # type: ignore[arg-type]
    assert trial.states["join"] == state
    assert trial.state("join").withheld == ("turn" if join == "any" else "")
    trial.restart()
    assert trial.resume()
    assert trial.wait_for("pause", "wait")
    assert trial.states["join"] == "queued"


def test_a_task_behind_a_failure_is_skipped_by_the_move():
    trial = Trial(task("broken"), task("pause", run=None, wait=WaitPlan(length=HOUR)))
    for _ in range(3):
        trial.fail("broken")
        trial.wait_for("broken")
    assert trial.states["broken"] == "failed"
    assert trial.pause()
    old = (task("broken"), task("pause", run=None, wait=WaitPlan(length=HOUR)))
    assert trial.migrate(*old, task("after", "broken"), task("alarm", "broken", join="on_failure"))
    assert trial.states["after"] == "skipped"
    assert trial.state("alarm").withheld == "turn"
    trial.restart()


def test_a_move_to_a_version_with_nothing_left_to_do_ends_the_run():
    trial = Trial(task("check"), task("charge", "check"))
    assert trial.pause()
    assert trial.succeed("check")
    assert trial.state("charge").withheld == "turn"
    assert not trial.migrate(task("check")), "charge has begun, as far as it was its turn"
    trial = waiting()
    assert trial.migrate(*OLD[:2])
    assert trial.resume()
    assert trial.wait_for("pause", "wait")
    assert trial.told[-1] == Finish(RunStatus.COMPLETED)


@pytest.mark.parametrize("state", STATES)
def test_every_state_that_can_be_moved_stands_as_it_was(state: str):
    """A task behind the subject is added. Whatever cannot be moved is not changed."""
    trial = STATES[state]()
    trial.pause()
    before, names = states_of(trial), list(trial.states)
    options = [(spec.name, [trial.plan.tasks[need].name for need in spec.needs]) for spec in trial.plan.tasks]
    plan = plan_of(*(task(name, *needs) for name, needs in options), task("last", *names), version_id=1)
    for old, new in zip(trial.plan.tasks, plan.tasks, strict=False):
        for field in ("approval", "wait", "signal", "map", "each", "run", "effect", "lookup", "is_plain", "claims"):
            setattr(new, field, getattr(old, field))
    is_free = trial.status is RunStatus.PAUSED and not find_obstacles(plan, trial.run)
    row_version, has_ended = trial.run.row_version, trial.status in RUN_TERMINAL
    assert trial.tell(Migrated(plan)) is not has_ended
    assert trial.run.row_version == row_version + (not has_ended)
    refused = [action for action in trial.told if isinstance(action, RefuseMove)]
    assert has_ended or bool(refused) is not is_free
    assert states_of(trial)[: len(before)] == before
    assert len(trial.plan.tasks) == len(names) + is_free


# == what stands in the way ============================================================================================
def test_a_run_that_is_not_paused_is_not_moved():
    trial = Trial(*OLD)
    assert obstacles(trial, *OLD)[0] == (None, "the run is running: pause it, and wait until nothing of it runs")
    assert not trial.migrate(*OLD, task("more"))
    assert trial.pause()
    assert trial.status is RunStatus.PAUSING
    assert not trial.migrate(*OLD, task("more"))
    assert trial.succeed("check")
    assert trial.migrate(*OLD, task("more"))


def test_a_move_that_meets_an_obstacle_says_what_it_was_and_changes_nothing_else():
    trial = waiting()
    assert trial.resume()
    before, plan = states_of(trial), plan_of(*OLD, task("more"), version_id=1)
    assert trial.tell(Migrated(plan, "a better one", "ada"))
    why = "the run cannot be moved to version 2: the run is waiting: pause it, and wait until nothing of it runs"
    assert trial.told == [RefuseMove(2, why)]
    assert (states_of(trial), trial.changed, trial.status) == (before, set(), RunStatus.WAITING)
    trial.restart()
    assert trial.pause()
    assert trial.tell(Migrated(plan_of(*OLD[1:], task("check"), version_id=1)))
    (refused,) = trial.told
    assert "task check: it has begun as task 1, and is task 3 now" in refused.why  # type: ignore[union-attr]
    assert refused.why.endswith("; and 1 more, which a dry run names")  # type: ignore[union-attr]


def test_a_run_that_has_ended_hears_of_no_move():
    trial = waiting()
    assert trial.cancel()
    assert not trial.tell(Migrated(plan_of(*OLD, task("more"), version_id=1)))


def test_a_move_happens_once_and_not_to_its_own_version():
    trial = waiting()
    assert not trial.migrate(*OLD, version_id=0)
    assert trial.migrate(*OLD, task("more"))
    assert not trial.migrate(*OLD, task("more"))


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ([task("verify"), task("charge"), task("pause")], ("check", GONE.format("check"))),
        ([task("first"), *OLD], ("check", "it has begun as task 1, and is task 2 now: add new tasks behind it")),
        ([task("check", asks=True), *OLD[1:]], ("check", HAS_BEGUN.format("run", "approval and run"))),
        ([OLD[0], task("pause", "check"), OLD[2]], ("pause", HAS_BEGUN.format("wait", "run"))),
        ([*OLD, READS], ("check", "its output was not kept, and would be read now")),
    ],
    ids=["gone", "moved", "another kind", "no wait any more", "output that nobody kept"],
)
def test_what_stands_in_the_way_is_told_and_nothing_is_changed(new: list[Spec], told: tuple[str, str]):
    trial = waiting()
    assert told in obstacles(trial, *new)
    assert not trial.migrate(*new)
    assert trial.plan.version_id == 0


def test_what_is_untouched_may_be_anything():
    trial = waiting()
    assert obstacles(trial, OLD[0], OLD[1], task("book", "check"), task("charge", "book", asks=True)) == []


@pytest.mark.parametrize("over", [None, [1]], ids=["task", "map"])
def test_what_is_being_looked_up_is_not_moved_to_where_it_has_no_lookup(over: list[int] | None):
    trial, name = Trial(task("a", effect="reconcile", over=over)), "a" if over is None else "a.0"
    assert trial.claim(name)
    assert trial.pause()
    assert trial.fail(name, DOUBTFUL)
    assert (trial.status, trial.state(name).lookups) == (RunStatus.PAUSED, 1)
    assert not trial.migrate(task("a", over=over))
    assert trial.migrate(task("a", effect="reconcile", over=over), task("b"))


def test_what_waits_for_a_signal_is_not_moved_to_where_it_has_another_name():
    """It listens under the name that it waits for, wherever the run stands."""
    trial = Trial(task("a", run=None, signal=SignalPlan("paid")))
    assert trial.pause()
    why = "it waits for signal paid, and would wait for settled"
    assert obstacles(trial, task("a", run=None, signal=SignalPlan("settled"))) == [("a", why)]
    assert not trial.migrate(task("a", run=None, signal=SignalPlan("settled")))
    assert trial.migrate(task("a", run=None, signal=SignalPlan("paid")), task("b"))
    assert trial.signal("paid")
    assert trial.state("a").status is TaskStatus.COMPLETED


# == paused for the move only ==========================================================================================
def being_moved() -> Trial:
    trial = Trial(*OLD)
    assert trial.succeed("check", b'{"total":1}')
    assert trial.pause(MOVING)
    return trial


def test_a_run_that_was_paused_for_its_move_goes_on_with_it():
    trial = being_moved()
    plan = plan_of(*OLD, task("root"), task("behind", "check"), version_id=1)
    assert trial.tell(Migrated(plan, resumes=MOVING))
    assert [action.task for action in trial.told if isinstance(action, Dispatch)] == [3, 4]
    assert (trial.plan.version_id, trial.run.control, trial.status) == (1, 0, RunStatus.RUNNING)
    trial.restart()


def test_what_the_pause_withheld_begins_on_the_new_version():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.pause(MOVING)
    assert trial.succeed("a")
    assert trial.state("b").withheld == "turn"
    assert trial.tell(Migrated(plan_of(task("a"), task("b", "a", run="other"), version_id=1), resumes=MOVING))
    assert trial.plan.tasks[1].run == "other"
    assert trial.states["b"] == "queued"
    trial.restart()


def test_what_had_its_turn_in_the_pause_has_not_begun_and_may_be_anything():
    trial = Trial(task("a"), task("b", "a"), task("c", "b"))
    assert trial.pause(MOVING)
    assert trial.succeed("a")
    assert trial.state("b").withheld == "turn"
    other = plan_of(task("a"), task("x"), task("b", "x"), version_id=1)
    assert find_obstacles(other, trial.run) == []
    assert trial.tell(Migrated(other, resumes=MOVING))
    assert trial.states == {"a": "completed", "x": "queued", "b": "pending"}
    trial.restart()
    assert trial.succeed("x")
    assert trial.succeed("b")
    assert trial.status is RunStatus.COMPLETED


def test_an_input_that_was_given_to_what_had_its_turn_keeps_its_task():
    held = msgspec.structs.replace(UNTOUCHED, withheld="turn", input=b'{"n":9}')
    run = RunState(KEY, plan_of(task("a")), INPUT, control=PAUSED, tasks={0: held})
    assert [each.task for each in find_obstacles(plan_of(task("x"), version_id=1), run)] == ["a"]
    moved = advance(run.plan, run, Migrated(plan_of(task("a"), task("x"), version_id=1)), START)
    assert moved is not None
    run.apply(moved)
    assert (run.task(0), run.task(1).withheld) == (held, "turn")


def test_what_had_its_turn_stays_withheld_while_somebody_else_pauses_the_run():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.pause()
    assert trial.succeed("a")
    assert trial.migrate(task("a"), task("x", "a"))
    assert (trial.state("x").withheld, trial.told) == ("turn", [])
    trial.restart()
    assert trial.resume()
    assert trial.states == {"a": "completed", "x": "queued"}


def test_a_run_that_cannot_be_moved_goes_on_as_it_was_and_says_why():
    trial = being_moved()
    assert trial.tell(Migrated(plan_of(task("other"), version_id=1), resumes=MOVING))
    (refused,) = trial.told
    assert isinstance(refused, RefuseMove)
    assert (trial.plan.version_id, trial.run.control, trial.status) == (0, 0, RunStatus.WAITING)
    trial = being_moved()
    assert trial.tell(Migrated(plan_of(*OLD, version_id=0), resumes=MOVING)), "it is there already, and paused"
    assert trial.run.control == 0
    trial.restart()


def test_a_pause_of_people_outlasts_a_move():
    trial = being_moved()
    assert trial.pause(PAUSED)
    assert trial.tell(Migrated(plan_of(*OLD, task("root"), version_id=1), resumes=MOVING))
    assert (trial.status, trial.state("root").withheld) == (RunStatus.PAUSED, "turn")
    trial.restart()
    assert trial.resume(PAUSED)
    assert trial.states["root"] == "queued"


# == what began as idempotent, and is so no more =======================================================================
def asked(trial: Trial, name: str) -> bool:
    """Whether a person is, and nothing was handed out."""
    return trial.state(name).is_parked and not any(isinstance(action, Dispatch) for action in trial.told)


@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_an_attempt_that_was_late_is_asked_about_before_its_backoff_ends_in_another(effect: Effect):
    trial = Trial(task("a", timeout=10.0))
    assert trial.fail("a", Error("TIMEOUT", "too slow"))
    assert trial.pause()
    assert trial.migrate(task("a", effect=effect))
    assert any(isinstance(action, ClearTimer) for action in trial.told)
    trial.restart()
    if effect == "manual":
        assert asked(trial, "a")
        assert trial.resolve("a", "did_not_happen")
        assert trial.state("a").withheld == "body"
    assert trial.resume()
    (sent,) = [action for action in trial.told if isinstance(action, Dispatch)]
    assert sent.lookup is (effect == "reconcile")


def test_what_was_withheld_or_waits_for_a_slot_is_asked_about():
    trial = Trial(task("a"), task("b", pool="p"))
    assert trial.admit("b")
    for name in ("a", "b"):
        assert trial.start(name)
    assert trial.lose("b")
    assert trial.state("b").awaits_slot
    assert trial.pause()
    assert trial.lose("a")
    assert trial.state("a").withheld == "body"
    assert trial.migrate(task("a", effect="manual"), task("b", pool="p", effect="manual"))
    assert asked(trial, "a")
    assert asked(trial, "b")
    assert FreeSlot(1, "p") in trial.told
    trial.restart()


def test_a_replay_that_was_withheld_is_asked_about_and_so_is_what_has_failed():
    trial = Trial(task("a", retry=RetryPlan(1)), task("b", retry=RetryPlan(1)), task("c"))
    for name in ("a", "b"):
        assert trial.start(name)
        assert trial.lose(name)
    assert trial.pause()
    assert trial.replay("a")
    assert trial.state("a").withheld == "again"
    assert trial.succeed("c")
    assert trial.migrate(task("a", effect="manual"), task("b", effect="manual"), task("c"))
    assert (trial.states["a"], trial.states["b"]) == ("pending", "failed")
    trial.restart()
    assert trial.resume()
    assert asked(trial, "a")
    assert trial.replay("b")
    assert asked(trial, "b")


def test_between_two_rounds_nothing_is_in_doubt():
    rounds = RepeatPlan(compile_condition("output.done", OF_ITS_END), 3, delay=1_000_000)
    trial = Trial(task("a", repeat=rounds))
    assert trial.succeed("a", b'{"done":false}')
    assert trial.pause()
    before = trial.state("a")
    assert trial.migrate(task("a", repeat=rounds, effect="manual"))
    assert trial.state("a") == before
