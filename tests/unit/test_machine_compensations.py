"""What a run does to undo what it did: every (state, event) pair of a compensation, and its place in the run."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.expressions import OF_A_COMPENSATION, compile_template
from headrace.machine import (
    Abort,
    BuryTask,
    ClearTimer,
    Dispatch,
    EndAttempt,
    Finish,
    MachineEvent,
    Reran,
    RunStatus,
    SetTimer,
    Supplied,
    TaskStatus,
)
from headrace.machine.backoff import RetryPlan
from headrace.machine.place import compensation_of, is_compensation
from headrace.machine.plan import Effect
from headrace.machine.reason import LOST
from headrace.machine.status import PAUSED, TERMINAL
from headrace.messages import Error
from tests.unit.machine_model import BRANCHING, BROKEN, DOUBTFUL, HOPELESS, INPUT, SECOND, Spec, Trial, task
from tests.unit.test_machine_pairs import CLAIMS, OF_A_TASK

SUBJECT = compensation_of(1)
GIVEN = b'{"input":%b,"output":7}' % INPUT


# == every state of a compensation, and every event of one ============================================================
def _failed(**options: object) -> Trial:
    """`before` and `subject` have completed, and `after` has failed: the run undoes `subject`, then `before`."""
    trial = Trial(
        task("before", undo="undo"),
        task("subject", "before", undo="undo", timeout=10.0, **options),  # type: ignore[arg-type]
        task("after", "subject"),
    )
    assert trial.succeed("before", b"6")
    assert trial.succeed("subject", b"7")
    assert trial.fail("after", HOPELESS)
    return trial


def _waits() -> Trial:
    """That of `after` comes first."""
    trial = Trial(
        task("before"), task("subject", "before", undo="undo", timeout=10.0), task("after", "subject", undo="undo"),
        task("last", "after"),
    )  # fmt: skip
    for name in ("before", "subject", "after"):
        assert trial.succeed(name, b"7")
    assert trial.fail("last", HOPELESS)
    return trial


def _running() -> Trial:
    trial = _failed()
    assert trial.start("subject.compensate")
    return trial


def _backoff() -> Trial:
    trial = _failed()
    assert trial.fail("subject.compensate")
    return trial


def _completed() -> Trial:
    trial = _failed()
    assert trial.succeed("subject.compensate")
    return trial


def _buried() -> Trial:
    trial = _failed()
    assert trial.fail("subject.compensate", HOPELESS)
    return trial


def _withheld() -> Trial:
    trial = _backoff()
    assert trial.pause()
    assert trial.wait_for("subject.compensate")
    return trial


STATES: dict[str, Callable[[], Trial]] = {
    "waits": _waits, "queued": _failed, "running": _running, "backoff": _backoff, "withheld": _withheld,
    "completed": _completed, "failed": _buried,
}  # fmt: skip
TABLE = """
                 waits    queued     running    backoff  withheld  completed  failed
started          .        running    .          .        .         .          .
claimed          .        running    ?          .        .         .          .
claimed_twice    .        running    ?          .        .         .          .
succeeded        .        completed  completed  .        .         .          .
happened         .        completed  completed  .        .         .          .
not_happened     .        completed  completed  .        .         .          .
cannot_tell      .        completed  completed  .        .         .          .
failed           .        pending    pending    .        .         .          .
failed_for_good  .        failed     failed     .        .         .          .
failed_doubtful  .        pending    pending    .        .         .          .
out_of_time      .        pending    pending    .        .         .          .
returned         .        queued     queued     .        .         .          .
returned_begun   .        queued     queued     .        .         .          .
lost             .        queued     queued     .        .         .          .
lost_begun       .        queued     queued     .        .         .          .
lost_unbegun     .        queued     queued     .        .         .          .
backoff_due      .        .          .          queued   .         .          .
backoff_early    .        .          .          .        .         .          .
timeout_due      .        .          pending    .        .         .          .
timeout_early    .        .          .          .        .         .          .
wait_due         .        .          .          .        .         .          .
wait_early       .        .          .          .        .         .          .
other_timer      .        .          .          .        .         .          .
approved         .        .          .          .        .         .          .
rejected         .        .          .          .        .         .          .
expired          .        .          .          .        .         .          .
replayed         .        .          .          .        .         .          queued
replayed_edited  .        .          .          .        .         .          queued
it_happened      .        .          .          .        .         .          .
it_did_not       .        .          .          .        .         .          .
it_shall_fail    .        .          .          .        .         .          .
offered          .        .          .          .        .         .          .
admitted         .        .          .          .        .         .          .
repeat_due       .        .          .          queued   .         .          .
start_due        .        .          .          .        .         .          .
deadline_due     .        .          .          .        .         .          .
child_started    .        .          .          .        .         .          .
child_refused    .        .          .          .        .         .          .
child_completed  .        .          .          .        .         .          .
child_failed     .        .          .          .        .         .          .
child_cancelled  .        .          .          .        .         .          .
"""
_HEAD, *_LINES = TABLE.strip("\n").splitlines()
CELLS = {
    (state, line.split()[0]): cell
    for line in _LINES
    for state, cell in zip(_HEAD.split(), line.split()[1:], strict=True)
}
PAIRS = list(CELLS)


def _current(trial: Trial, event: str, distance: int = 0, place: int = SUBJECT) -> MachineEvent:
    state = trial.run.task(SUBJECT)
    due_at = state.due_at or trial.at
    trial.at = max(trial.at, due_at - 1 if event.endswith("early") else due_at)
    return OF_A_TASK[event](place, state.token + distance)


def test_the_table_has_every_event_of_a_task():
    assert {event for _, event in PAIRS} == set(OF_A_TASK)
    assert {state for state, _ in PAIRS} == set(STATES)


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_pair_of_a_compensation_is_as_the_table_says(state: str, event: str):
    trial = STATES[state]()
    before, cell = trial.run.task(SUBJECT), CELLS[state, event]
    told = _current(trial, event)
    assert trial.tell(told) is (cell != ".")
    after = trial.run.task(SUBJECT)
    if cell in ".?":
        assert after is before
        return
    assert after.status.value == cell
    assert after.token >= before.token
    assert all(task.status in TERMINAL for place, task in trial.run.tasks.items() if not is_compensation(place))
    trial.restart()
    assert trial.tell(told) is (event in CLAIMS)  # which is answered each time


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_another_token_or_place_changes_nothing(state: str, event: str):
    trial = STATES[state]()
    for distance in (-2, -1, 1, 1000):
        assert not trial.tell(_current(trial, event, distance))
    for place in (compensation_of(2), compensation_of(3), compensation_of(9_999), compensation_of(0) - 1, 2**31):
        if trial.run.task(place).token != trial.run.task(SUBJECT).token:
            assert not trial.tell(_current(trial, event, place=place))


# == what is asked for ================================================================================================
def test_the_end_of_a_failed_run_hands_out_what_was_done_last():
    trial = _failed()
    assert trial.status is RunStatus.COMPENSATING
    assert trial.told[-1] == Dispatch(SUBJECT, 1, 1, GIVEN)
    assert not any(isinstance(action, Finish) for action in trial.actions)
    assert trial.state("before.compensate").is_untouched


def test_what_came_before_is_undone_behind_it_and_then_the_run_ends():
    trial = _failed()
    assert trial.succeed("subject.compensate")
    first = b'{"input":%b,"output":6}' % INPUT
    assert trial.told == [EndAttempt(SUBJECT, 1, 1, "completed"), Dispatch(compensation_of(0), 1, 1, first)]
    assert trial.succeed("before.compensate")
    assert trial.told[-1] == Finish(RunStatus.COMPENSATED)
    trial.restart()
    assert trial.status is RunStatus.COMPENSATED


def test_a_compensation_that_fails_for_good_is_a_dead_letter_and_stops_no_other():
    trial = _failed()
    assert trial.fail("subject.compensate", HOPELESS)
    assert BuryTask(SUBJECT, 1, 1, HOPELESS) in trial.told
    assert trial.state("before.compensate").status is TaskStatus.QUEUED
    assert trial.succeed("before.compensate")
    assert trial.told[-1] == Finish(RunStatus.COMPENSATION_FAILED)


def test_a_compensation_is_retried_by_its_own_policy():
    trial = _failed()
    for attempt in (1, 2):
        assert trial.fail("subject.compensate")
        assert SetTimer(SUBJECT, attempt, "backoff", trial.at + SECOND) in trial.told
        assert trial.wait_for("subject.compensate")
        assert trial.told == [ClearTimer(SUBJECT), Dispatch(SUBJECT, attempt + 1, attempt + 1, GIVEN)]
    assert trial.fail("subject.compensate")
    assert BuryTask(SUBJECT, 3, 3, BROKEN) in trial.told


def test_a_replay_brings_the_run_back_and_ends_it_well():
    trial = _buried()
    assert trial.succeed("before.compensate")
    assert trial.status is RunStatus.COMPENSATION_FAILED
    assert trial.replay("subject.compensate")
    assert (trial.status, trial.told) == (RunStatus.COMPENSATING, [Dispatch(SUBJECT, 2, 2, GIVEN)])
    trial.restart()
    assert trial.succeed("subject.compensate")
    assert trial.told[-1] == Finish(RunStatus.COMPENSATED)


def test_what_has_not_begun_waits_for_a_replayed_compensation_again():
    trial = Trial(
        task("a", undo="undo"), task("b", "a", undo="undo"), task("c", "a", undo="undo"), task("d", "b", "c"),
    )  # fmt: skip
    for name in ("a", "b", "c"):
        assert trial.succeed(name)
    assert trial.fail("d", HOPELESS)
    assert trial.fail("b.compensate", HOPELESS)
    assert trial.replay("b.compensate")
    trial.restart()
    assert trial.succeed("c.compensate")
    assert trial.state("a.compensate").is_untouched
    assert trial.succeed("b.compensate")
    assert trial.state("a.compensate").status is TaskStatus.QUEUED


def test_a_replayed_compensation_waits_for_the_replayed_ones_of_what_came_after():
    trial = _undoes_two()
    assert trial.fail("b.compensate", HOPELESS)
    assert trial.fail("a.compensate", HOPELESS)
    assert trial.replay("b.compensate")
    assert trial.replay("a.compensate", b'{"n":2}')
    assert trial.state("a.compensate").is_untouched
    trial.restart()
    assert trial.succeed("b.compensate")
    assert trial.told[-1] == Dispatch(trial.place("a.compensate"), 2, 2, b'{"n":2}')
    assert trial.succeed("a.compensate")
    assert trial.status is RunStatus.COMPENSATED


def test_a_compensation_that_has_begun_is_tried_again_though_one_of_what_came_after_is_replayed():
    trial = _undoes_two()
    assert trial.fail("b.compensate", HOPELESS)
    assert trial.start("a.compensate")
    assert trial.replay("b.compensate")
    assert trial.lose("a.compensate", begun=True)
    assert trial.state("a.compensate").status is TaskStatus.QUEUED


def _undoes_two() -> Trial:
    trial = Trial(task("a", undo="undo"), task("b", "a", undo="undo"), task("c", "b"))
    assert trial.succeed("a")
    assert trial.succeed("b")
    assert trial.fail("c", HOPELESS)
    return trial


# == what is undone ===================================================================================================
def test_a_run_that_did_nothing_to_undo_fails_as_ever():
    trial = Trial(task("a", undo="undo"), task("b", "a"))
    assert trial.fail("a", HOPELESS)
    assert trial.status is RunStatus.FAILED
    assert trial.replay("a")
    assert trial.status is RunStatus.RUNNING


@pytest.mark.parametrize(
    ("error", "is_undone"), [(HOPELESS, False), (BROKEN, False), (DOUBTFUL, True), (Error("TIMEOUT", "late"), True)]
)
def test_a_failed_task_is_undone_when_its_end_leaves_its_effect_open(error: Error, is_undone: bool):
    trial = Trial(task("a", undo="undo", retry=RetryPlan(attempts=1)))
    assert trial.fail("a", error)
    assert trial.status is (RunStatus.COMPENSATING if is_undone else RunStatus.FAILED)


def test_a_task_whose_last_worker_was_lost_is_undone():
    trial = Trial(task("a", undo="undo", retry=RetryPlan(attempts=1)))
    assert trial.lose("a", begun=True)
    assert BuryTask(0, 1, 1, LOST) in trial.told
    assert trial.told[-1] == Dispatch(compensation_of(0), 1, 1, b'{"input":%b,"output":null}' % INPUT)


@pytest.mark.parametrize("has_started", [False, True])
def test_a_cancelled_task_is_undone_when_its_body_may_have_begun(has_started: bool):
    trial = Trial(task("a", undo="undo"), task("b", "a", undo="undo"))
    if has_started:
        assert trial.start("a")
    assert trial.cancel()
    assert (trial.status, Abort(0, 1, "cancelled") in trial.told) == (RunStatus.COMPENSATING, True)
    assert trial.place("b.compensate") not in trial.run.tasks
    trial.restart()


def test_a_claimed_task_that_was_not_granted_is_not_undone():
    trial = Trial(task("a", undo="undo", effect="manual"))
    assert trial.cancel()
    assert trial.status is RunStatus.CANCELLED


def test_a_task_in_its_backoff_is_undone_at_a_cancel():
    trial = Trial(task("a", undo="undo"))
    assert trial.fail("a")
    assert trial.cancel()
    assert trial.status is RunStatus.COMPENSATING


def test_a_skipped_task_is_not_undone_and_lets_the_others_pass():
    trial = Trial(task("a", undo="undo"), task("b", "a", undo="undo", condition="false"), task("c"))
    assert trial.succeed("a")
    assert trial.fail("c", HOPELESS)
    assert trial.state("a.compensate").status is TaskStatus.QUEUED
    assert trial.place("b.compensate") not in trial.run.tasks


@pytest.mark.parametrize("over", [None, [1, 2]], ids=["task", "map"])
def test_a_task_that_was_rejected_did_nothing_and_is_not_undone(over: list[int] | None):
    trial = Trial(task("a", undo="undo", asks=BRANCHING, over=over), task("b", "a"))
    assert trial.decide("a", "rejected")
    assert trial.fail("b", HOPELESS)
    assert trial.status is RunStatus.FAILED


def test_a_task_of_which_a_person_said_that_it_is_done_is_undone():
    trial = Trial(task("a", undo="undo"), task("b", "a"))
    assert trial.tell(Supplied(0, trial.token("a"), b'{"outcome":"rejected"}'))
    assert trial.fail("b", HOPELESS)
    assert trial.status is RunStatus.COMPENSATING


@pytest.mark.parametrize(("state", "is_undone"), [("asked", False), ("queued", True), ("claimed", False)])
def test_a_task_that_ends_by_its_deadline_is_undone_when_its_body_may_have_begun(state: str, is_undone: bool):
    effect: Effect = "manual" if state == "claimed" else "idempotent"
    trial = Trial(task("a", undo="undo", deadline=60 * SECOND, asks=state == "asked", effect=effect))
    assert trial.pass_deadline("a")
    assert trial.status is (RunStatus.COMPENSATING if is_undone else RunStatus.FAILED)


@pytest.mark.parametrize(("happened", "is_undone"), [(False, False), (None, True)])
def test_what_a_lookup_says_of_an_effect_says_whether_it_is_undone(happened: bool | None, is_undone: bool):
    """Of one that cannot tell a person lets the task fail, which says nothing either."""
    trial = Trial(task("a", undo="undo", effect="reconcile", retry=RetryPlan(attempts=1)))
    assert trial.claim("a")
    assert trial.fail("a", DOUBTFUL)
    assert trial.look_up("a", happened)
    if happened is None:
        assert trial.resolve("a", "fail")
    assert trial.status is (RunStatus.COMPENSATING if is_undone else RunStatus.FAILED)


def test_a_map_is_undone_as_one_task():
    trial = Trial(task("a", over=[1, 2], undo="undo"), task("b", "a"))
    assert trial.succeed("a.0", b"10")
    assert trial.succeed("a.1", b"20")
    assert trial.fail("b", HOPELESS)
    assert trial.told[-1] == Dispatch(compensation_of(0), 1, 1, b'{"input":[1,2],"output":[10,20]}')


def test_an_edited_input_is_what_its_compensation_is_given():
    trial = Trial(task("a", undo="undo"), task("b", "a"))
    assert trial.fail("a", HOPELESS)
    assert trial.replay("a", b'{"n":2}')
    assert trial.succeed("a", b"3")
    assert trial.fail("b", HOPELESS)
    assert trial.told[-1] == Dispatch(compensation_of(0), 1, 1, b'{"input":{"n":2},"output":3}')


# == what had completed, and was rerun ================================================================================
def _rerun(trial: Trial, *names: str) -> bool:
    return trial.tell(Reran(trial.run.row_version, tuple(trial.plan.index[name] for name in names)))


def _reject(trial: Trial) -> None:
    assert trial.decide("a", "rejected")


def _end_before(trial: Trial) -> None:
    assert trial.fail("before", HOPELESS)


def _end_badly(trial: Trial) -> None:
    assert trial.fail("a", HOPELESS)


def _end_badly_at_last(trial: Trial) -> None:
    for _ in range(2):
        assert trial.fail("a")
        assert trial.wait_for("a")
    assert trial.fail("a")


def _lose(trial: Trial) -> None:
    for _ in range(3):
        assert trial.lose("a", begun=True)


def _cancel(trial: Trial) -> None:
    assert trial.cancel()


def _be_late(trial: Trial) -> None:
    assert trial.pass_deadline("a")


@pytest.mark.parametrize(
    ("options", "named", "end"),
    [
        ({}, "a", _end_badly),
        ({}, "a", _end_badly_at_last),
        ({}, "a", _lose),
        ({}, "a", _cancel),
        ({}, "before", _end_before),
        ({}, "before", _cancel),
        ({"asks": True}, "a", _reject),
        ({"asks": BRANCHING}, "a", _reject),
        ({"asks": True, "deadline": 60 * SECOND}, "a", _be_late),
        ({"over": [1, 2]}, "before", _end_before),
    ],
    ids=[
        "failed", "no try left", "lost", "cancelled", "skipped behind a failure", "cancelled before its turn",
        "rejected", "rejected, and that is its end", "late", "a map",
    ],
)  # fmt: skip
@pytest.mark.parametrize("restarts", [False, True])
def test_what_completed_before_a_rerun_is_undone_as_of_then_however_it_ends(
    options: dict[str, Any], named: str, end: Callable[[Trial], None], restarts: bool
):
    told = {} if "over" in options else {"template": {"n": "${{ tasks.before.output }}"}}
    subject = task("a", "before", undo="undo", **told, **options)
    trial = Trial(task("before"), subject, task("b", "a", join="always"))
    assert trial.succeed("before", b"6")
    if "asks" in options:
        assert trial.decide("a", "approved")
    if "over" in options:
        assert trial.succeed("a.0", b"1")
        assert trial.succeed("a.1", b"2")
    else:
        assert trial.succeed("a", b"7")
    assert trial.succeed("b")
    assert trial.status is RunStatus.COMPLETED
    assert _rerun(trial, named)
    if restarts:
        trial.restart()
    end(trial)
    if trial.run.task(2).status is TaskStatus.QUEUED:
        assert trial.fail("b", HOPELESS)
    assert trial.status is RunStatus.COMPENSATING
    given = b'{"input":[1,2],"output":[1,2]}' if "over" in options else b'{"input":{"n":6},"output":7}'
    assert Dispatch(compensation_of(1), 1, 1, given) in trial.actions


def test_what_completed_again_is_undone_as_of_its_last_end():
    trial = Trial(task("a", undo="undo"), task("b", "a"))
    assert trial.succeed("a", b"7")
    assert trial.succeed("b")
    assert _rerun(trial, "a")
    assert trial.succeed("a", b"8")
    assert trial.fail("b", HOPELESS)
    assert trial.told[-1] == Dispatch(compensation_of(0), 1, 1, b'{"input":%b,"output":8}' % INPUT)


def test_a_termination_between_two_reruns_loses_nothing_of_what_is_to_be_undone():
    trial = Trial(task("a", undo="undo"))
    assert trial.succeed("a", b"7")
    for _ in range(2):
        assert _rerun(trial, "a")
        trial.restart()
        assert trial.terminate()
    assert _rerun(trial, "a")
    assert trial.fail("a", HOPELESS)
    assert trial.told[-1] == Dispatch(compensation_of(0), 1, 1, b'{"input":%b,"output":7}' % INPUT)


@pytest.mark.parametrize("effect", ["reconcile", "manual"])
@pytest.mark.parametrize("happened", [False, None])
def test_of_a_task_with_a_policy_what_is_said_of_its_effect_counts(effect: Effect, happened: bool | None):
    """It is asked what the first body did: where that had no effect, nothing is to be undone."""
    trial = Trial(task("a", undo="undo", effect=effect, retry=RetryPlan(attempts=1)))
    assert trial.claim("a")
    assert trial.succeed("a", b"7")
    assert _rerun(trial, "a")
    if effect == "reconcile":
        assert trial.look_up("a", happened)
    if effect == "manual" and happened is False:
        assert trial.resolve("a", "did_not_happen")
    if happened is None:
        assert trial.resolve("a", "fail")
    else:
        trial.restart()
        assert trial.claim("a")
        assert trial.fail("a", HOPELESS)
    assert trial.status is (RunStatus.FAILED if happened is False else RunStatus.COMPENSATING)
    if happened is None:
        assert trial.told[-1] == Dispatch(compensation_of(0), 1, 1, b'{"input":%b,"output":7}' % INPUT)


@pytest.mark.parametrize("is_map", [False, True], ids=["task", "map"])
def test_what_cannot_be_told_at_the_rerun_is_a_dead_letter_when_it_is_to_be_undone(is_map: bool):
    options: dict[str, Any] = {"over": [1], "template": "${{ item }}"} if is_map else {}
    undo_with = {"booking": "${{ task.output.id }}"}
    trial = Trial(task("before"), task("a", "before", undo="undo", undo_with=undo_with, **options))
    assert trial.succeed("before")
    assert trial.succeed("a.0" if is_map else "a", b"{}")
    assert _rerun(trial, "before")
    trial.restart()
    assert trial.fail("before", HOPELESS)
    assert trial.status is RunStatus.COMPENSATION_FAILED
    assert any(isinstance(action, BuryTask) and action.task == SUBJECT for action in trial.told)


# == what people do ===================================================================================================
def test_a_termination_undoes_nothing_and_stops_what_is_undone():
    trial = Trial(task("a", undo="undo"), task("b", "a"))
    assert trial.succeed("a")
    assert trial.terminate()
    assert (trial.status, trial.run.compensations) == (RunStatus.TERMINATED, None)
    trial = _failed()
    assert trial.terminate()
    assert trial.status is RunStatus.TERMINATED
    assert Abort(SUBJECT, 1, "terminated") in trial.told
    assert {trial.state(f"{name}.compensate").status for name in ("before", "subject")} == {TaskStatus.CANCELLED}
    trial.restart()
    assert not trial.replay("subject.compensate")


@pytest.mark.parametrize("state", list(STATES))
def test_a_run_that_undoes_what_it_did_takes_none_of_it_up_again(state: str):
    trial = STATES[state]()
    failed = next(name for name, status in trial.states.items() if status == "failed")
    assert not trial.cancel()
    assert not trial.replay(failed)
    assert not trial.tell(Reran(trial.run.row_version))
    assert not trial.tell(Supplied(trial.place(failed), trial.token(failed)))


def test_a_pause_holds_compensations_back():
    trial = Trial(task("a", undo="undo"), task("b", "a"))
    assert trial.succeed("a")
    assert trial.pause()
    assert trial.fail("b", HOPELESS)
    assert (trial.status, trial.state("a.compensate").withheld) == (RunStatus.PAUSED, "body")
    trial.restart()
    assert trial.resume()
    assert (trial.status, trial.run.control & PAUSED) == (RunStatus.COMPENSATING, 0)


def test_an_isolated_run_goes_on_undoing_once_it_is_released():
    trial = _failed()
    assert trial.isolate()
    assert not trial.cancel()
    assert not trial.succeed("subject.compensate")
    assert trial.release()
    assert trial.status is RunStatus.COMPENSATING
    assert trial.succeed("subject.compensate")


# == any graph ========================================================================================================
GRAPHS = st.lists(st.tuples(st.integers(0, 255), st.sampled_from(["undo", "undo", None])), min_size=1, max_size=8)
"""Of each task: which of those before it it needs, as bits, and its compensation."""


def _graph(drawn: list[tuple[int, str | None]]) -> list[Spec]:
    names = [f"t{index}" for index in range(len(drawn))]
    return [
        task(names[index], *(name for bit, name in enumerate(names[:index]) if needs >> bit & 1), undo=undo)
        for index, (needs, undo) in enumerate(drawn)
    ]


@settings(max_examples=300, deadline=None)
@given(GRAPHS, st.lists(st.integers(0, 2**16), max_size=60))
def test_b91_over_any_graph_what_depends_on_a_task_is_undone_before_it(
    drawn: list[tuple[int, str | None]], choices: list[int]
):
    """Whatever ends how and when: no compensation begins before those of its dependants have ended, each succeeds at
    most once, and the run is compensated exactly when all have completed."""
    trial, left = Trial(*_graph(drawn)), list(choices)
    behind = _dependants(trial)
    while open_ := [trial.plan.name_of(place) for place in sorted(trial.run.tasks) if _is_under_way(trial, place)]:
        choice = left.pop() if left else 0
        how, name = choice % 11, open_[choice // 11 % len(open_)]
        if how == 10:
            trial.cancel()
        elif how == 9:
            trial.restart()
        elif trial.state(name).status is TaskStatus.PENDING:
            assert trial.wait_for(name)
        elif how in (6, 7, 8):
            assert {6: trial.fail, 7: trial.lose, 8: lambda name: trial.fail(name, HOPELESS)}[how](name)
        else:
            assert trial.succeed(name)
        _check_order(trial, behind)
    undone = [place for place in trial.run.tasks if is_compensation(place)]
    failed = [place for place in undone if trial.run.task(place).status is TaskStatus.FAILED]
    if failed:
        assert trial.status is RunStatus.COMPENSATION_FAILED
        for place in failed:
            assert trial.replay(trial.plan.name_of(place))
        for place in failed:
            assert trial.status is RunStatus.COMPENSATING
            assert trial.succeed(trial.plan.name_of(place))
    assert (trial.status is RunStatus.COMPENSATED) is bool(undone)
    assert {trial.run.task(place).status for place in undone} <= {TaskStatus.COMPLETED}
    done = [action.task for action in trial.actions if isinstance(action, EndAttempt) and action.outcome == "completed"]
    assert sorted(place for place in done if is_compensation(place)) == sorted(undone)
    trial.restart()


def _is_under_way(trial: Trial, place: int) -> bool:
    state = trial.run.task(place)
    return state.status in (TaskStatus.QUEUED, TaskStatus.PENDING) and not state.is_untouched


def _dependants(trial: Trial) -> dict[int, set[int]]:
    """Of each compensation: those of all tasks behind its own."""
    behind: dict[int, set[int]] = {}
    for spec in reversed(trial.plan.tasks):
        own = {compensation_of(after) for after in spec.dependants}
        behind[compensation_of(spec.index)] = own.union(*(behind[place] for place in own))
    return behind


def _check_order(trial: Trial, behind: dict[int, set[int]]) -> None:
    for place, state in trial.run.tasks.items():
        if is_compensation(place) and state.token:
            late = [
                other
                for other in behind[place] & trial.run.tasks.keys()
                if trial.run.task(other).status not in TERMINAL
            ]
            assert not late, f"{trial.plan.name_of(place)} began before {late}"


def test_a_wide_and_deep_graph_is_undone_without_recursion():
    specs = [task("t0", undo="undo")] + [task(f"t{i}", f"t{i - 1}", undo="undo") for i in range(1, 2_000)]
    trial = Trial(*specs, task("last", "t1999"))
    for i in range(2_000):
        assert trial.succeed(f"t{i}")
    assert trial.fail("last", HOPELESS)
    for i in reversed(range(2_000)):
        assert trial.succeed(f"t{i}.compensate")
    assert trial.status is RunStatus.COMPENSATED


def test_an_input_that_cannot_be_rendered_fails_one_compensation_and_no_other():
    trial = Trial(task("a", undo="undo"), task("b", "a", undo="undo"), task("c", "b"))
    spec = trial.plan.tasks[1].compensation
    assert spec is not None
    spec.template = compile_template("${{ task.output.id }}", OF_A_COMPENSATION)
    assert trial.succeed("a")
    assert trial.succeed("b", b"7")
    assert trial.fail("c", HOPELESS)
    assert trial.state("b.compensate").status is TaskStatus.FAILED
    assert trial.state("a.compensate").status is TaskStatus.QUEUED
    assert trial.succeed("a.compensate")
    assert trial.status is RunStatus.COMPENSATION_FAILED
