"""The limit of a workflow: what a run does until it has its permit, over every event; and who begins at once."""

import itertools

import pytest

from headrace.errors import PayloadError
from headrace.expressions import compile_template
from headrace.machine import (
    Ask,
    AwaitPermit,
    Cancelled,
    Dispatch,
    Finish,
    Listen,
    Paused,
    Reran,
    Resumed,
    ReturnPermit,
    RunStatus,
    SetTimer,
    StartChild,
    Supplied,
    Terminated,
)
from headrace.machine.limit import Line
from headrace.machine.plan import ChildPlan, LimitPlan, Over, SignalPlan, WaitPlan
from headrace.machine.rerun import foresee
from headrace.machine.status import AWAITS_PERMIT, PAUSED, RUN_TERMINAL, WORKFLOW_PAUSED
from headrace.messages import Error
from tests.unit.machine_model import HOPELESS, INPUT, SECOND, Trial, task
from tests.unit.test_machine_pairs import EVENTS, current

LIMIT = LimitPlan(compile_template("${{ input.n }}"))
BEGINNINGS = Dispatch | Ask | Listen | StartChild | SetTimer | Finish


def limited(**options: object) -> Trial:
    """A run that waits for its permit."""
    return Trial(task("a", **options), task("b", "a"), limit=LIMIT, control=AWAITS_PERMIT)  # type: ignore[arg-type]


def ended(undo: str | None = None) -> Trial:
    """A run that had its permit, and has failed."""
    trial = Trial(task("a", undo=undo), task("b", "a"), limit=LIMIT)
    assert trial.succeed("a")
    assert trial.fail("b", HOPELESS)
    return trial


# == until it has its permit ===========================================================================================
@pytest.mark.parametrize(
    "options",
    [
        {}, {"asks": True}, {"run": None, "wait": WaitPlan(length=SECOND)}, {"run": None, "signal": SignalPlan("paid")},
        {"run": None, "child": ChildPlan("other")}, {"over": [1, 2]}, {"pool": "db"}, {"condition": "false"},
        {"deadline": SECOND}, {"effect": "manual"},
    ],
)  # fmt: skip
def test_nothing_of_a_run_begins_before_it_has_its_permit(options: dict[str, object]):
    trial, plain = limited(**options), Trial(task("a", **options), task("b", "a"))  # type: ignore[arg-type]
    assert (trial.status, trial.actions) == (RunStatus.WAITING, [])
    assert trial.states == {"a": "pending", "b": "pending"}
    trial.restart()
    assert trial.permit()
    told = [action for action in trial.told if action != ReturnPermit()]
    assert (trial.status, told, trial.states) == (plain.status, plain.told, plain.states)
    assert not trial.permit()


@pytest.mark.parametrize("event", EVENTS)
def test_whatever_comes_meanwhile_begins_nothing(event: str):
    trial = Trial(
        task("before"), task("subject", "before", timeout=10.0), task("after", "subject"), task("beside"),
        limit=LIMIT, control=AWAITS_PERMIT,
    )  # fmt: skip
    trial.tell(current(trial, event))
    assert not any(isinstance(action, Dispatch | Ask | Listen | StartChild) for action in trial.told)
    if trial.status in RUN_TERMINAL:
        assert isinstance(trial.told[-1], Finish)
        assert ReturnPermit() in trial.told
        assert not trial.permit()
    else:
        assert trial.status in (RunStatus.WAITING, RunStatus.PAUSED, RunStatus.NEEDS_ATTENTION)


@pytest.mark.parametrize("scope", [PAUSED, WORKFLOW_PAUSED])
@pytest.mark.parametrize("first", ["permit", "resume"])
def test_a_run_that_is_paused_too_begins_when_it_has_both(scope: int, first: str):
    trial = limited()
    assert trial.pause(scope)
    assert trial.status is RunStatus.PAUSED
    assert trial.permit() if first == "permit" else trial.resume(scope)
    assert (trial.told, trial.status) == ([], RunStatus.PAUSED if first == "permit" else RunStatus.WAITING)
    assert trial.resume(scope) if first == "permit" else trial.permit()
    assert trial.told == [Dispatch(0, 1, 1, INPUT)]


def test_nobody_pauses_a_run_by_taking_its_permit_away():
    trial = Trial(task("a"), limit=LIMIT)
    assert trial.tell(Paused(AWAITS_PERMIT)) in (True, False)
    assert (trial.run.control, trial.states) == (0, {"a": "queued"})
    assert not trial.tell(Resumed(AWAITS_PERMIT))


@pytest.mark.parametrize("end", [Cancelled("no"), Terminated("no")])
def test_a_run_that_is_ended_before_its_turn_leaves_the_line(end: Cancelled | Terminated):
    trial = limited()
    assert trial.tell(end)
    assert trial.status in RUN_TERMINAL
    assert (trial.run.control & AWAITS_PERMIT, ReturnPermit() in trial.told) == (0, True)
    assert not trial.permit()


def test_the_deadline_of_a_run_counts_while_it_waits():
    trial = Trial(task("a"), limit=LIMIT, control=AWAITS_PERMIT, deadline=SECOND)
    assert trial.pass_deadline()
    assert (trial.status, ReturnPermit() in trial.told) == (RunStatus.FAILED, True)


# == its end, and after ================================================================================================
@pytest.mark.parametrize("end", ["succeed", "fail", "cancel", "terminate"])
def test_every_end_gives_the_permit_back(end: str):
    trial = Trial(task("a"), limit=LIMIT)
    if end == "fail":
        assert trial.fail("a", HOPELESS)
    elif end == "succeed":
        assert trial.succeed("a")
    else:
        assert trial.tell(Cancelled() if end == "cancel" else Terminated())
    assert trial.status in RUN_TERMINAL
    assert trial.told.count(ReturnPermit()) == 1


def test_a_run_keeps_its_permit_while_it_undoes_what_it_did():
    trial = ended(undo="undo")
    assert (trial.status, ReturnPermit() in trial.actions) == (RunStatus.COMPENSATING, False)
    assert trial.succeed("a.compensate")
    assert (trial.status, trial.told.count(ReturnPermit())) == (RunStatus.COMPENSATED, 1)


def test_a_replay_a_rerun_and_an_output_given_by_hand_wait_for_another_permit():
    acts = {
        "replay": lambda trial: trial.replay("b"),
        "rerun": lambda trial: trial.tell(Reran(trial.run.row_version)),
        "rerun all": lambda trial: trial.tell(Reran(trial.run.row_version, (0,))),
    }
    for name, act in acts.items():
        trial = ended()
        assert act(trial), name
        assert AwaitPermit("1") in trial.told, name
        assert not any(isinstance(action, BEGINNINGS) for action in trial.told), name
        assert (trial.status, trial.run.control) == (RunStatus.WAITING, AWAITS_PERMIT), name
        trial.restart()
        assert trial.permit(), name
        assert [type(action) for action in trial.told] == [Dispatch], name


def test_what_a_rerun_would_do_is_told_as_of_when_it_has_its_permit():
    trial, plain = ended(), Trial(task("a"), task("b", "a"))
    assert plain.succeed("a")
    assert plain.fail("b", HOPELESS)
    for tasks in ((), (0,), (1,)):
        told = [foresee(one.plan, one.run, Reran(one.run.row_version, tasks), one.at) for one in (trial, plain)]
        assert told[0] == told[1]
        assert told[0][0].then == "begins"
    assert trial.plan.limit is LIMIT


def test_an_output_that_ends_the_run_at_once_leaves_no_permit_behind():
    trial = ended()
    assert trial.tell(Supplied(1, trial.token("b"), b"7"))
    assert (trial.status, trial.run.control) == (RunStatus.COMPLETED, 0)
    of_permits = [action for action in trial.told if isinstance(action, AwaitPermit | ReturnPermit)]
    assert of_permits == [AwaitPermit("1"), ReturnPermit()]


def test_a_replay_of_a_compensation_waits_for_another_permit():
    trial = ended(undo="undo")
    assert trial.fail("a.compensate", HOPELESS)
    assert trial.status is RunStatus.COMPENSATION_FAILED
    assert trial.replay("a.compensate")
    assert (trial.status, AwaitPermit("1") in trial.told) == (RunStatus.WAITING, True)
    trial.restart()
    assert trial.permit()
    assert trial.status is RunStatus.COMPENSATING
    assert trial.succeed("a.compensate")
    assert (trial.status, ReturnPermit() in trial.told) == (RunStatus.COMPENSATED, True)


def test_a_cancel_of_a_run_that_waits_to_run_again_undoes_once_it_has_its_permit():
    trial = Trial(task("a", undo="undo"), task("b", "a"), limit=LIMIT)
    assert trial.succeed("a")
    assert trial.succeed("b")
    assert trial.tell(Reran(trial.run.row_version, (1,)))
    assert trial.cancel()
    assert (trial.status, trial.told.count(ReturnPermit())) == (RunStatus.WAITING, 0)
    trial.restart()
    assert trial.permit()
    assert trial.status is RunStatus.COMPENSATING


def test_a_cancel_of_a_run_that_waits_to_run_again_cleans_up_once_it_has_its_permit():
    trial = Trial(task("a"), task("tidy", "a", join="finally"), limit=LIMIT)
    assert trial.fail("a", HOPELESS)
    assert trial.succeed("tidy")
    assert trial.tell(Reran(trial.run.row_version, (0,)))
    assert trial.cancel()
    assert (trial.status, trial.states) == (RunStatus.CANCELLING, {"a": "cancelled", "tidy": "pending"})
    assert trial.run.control & AWAITS_PERMIT
    trial.restart()
    assert trial.permit()
    assert trial.states["tidy"] == "queued"
    assert trial.succeed("tidy")
    assert (trial.status, trial.told.count(ReturnPermit())) == (RunStatus.CANCELLED, 1)


def test_a_workflow_without_a_limit_asks_for_nothing():
    trial = Trial(task("a"))
    assert trial.fail("a", Error("ERROR", "never", retryable=False))
    assert trial.replay("a")
    assert not any(isinstance(action, AwaitPermit | ReturnPermit) for action in trial.actions)


# == another version ===================================================================================================
def test_a_run_that_comes_under_a_limit_has_its_permit_at_once():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.pause()
    assert trial.succeed("a")
    assert trial.migrate(task("a"), task("b", "a"), limit=LIMIT)
    assert trial.told == [AwaitPermit("1", is_granted=True)]
    assert trial.resume()
    assert trial.succeed("b")
    assert ReturnPermit() in trial.told


def test_a_run_that_gets_out_of_its_limit_waits_for_nobody():
    trial = limited()
    assert trial.pause()
    assert trial.migrate(task("a"), task("b", "a"))
    assert (trial.told, trial.run.control) == ([ReturnPermit()], PAUSED)
    assert trial.resume()
    assert trial.told == [Dispatch(0, 1, 1, INPUT)]


def test_a_run_that_is_moved_between_two_limits_keeps_its_place():
    trial = limited()
    assert trial.pause()
    assert trial.migrate(task("a"), task("b", "a"), limit=LimitPlan())
    assert (trial.told, trial.run.control) == ([], PAUSED | AWAITS_PERMIT)


# == keys ==============================================================================================================
@pytest.mark.parametrize(
    ("key", "found"),
    [(None, ""), ("${{ input.n }}", "1"), ("n-${{ input.n }}", "n-1"), ("${{ 'ü' }}", "ü")],
)
def test_the_key_of_a_run_is_text_or_a_whole_number(key: str | None, found: str):
    assert LimitPlan(None if key is None else compile_template(key)).key_of(INPUT) == found


@pytest.mark.parametrize("key", ["${{ input }}", "${{ input.other }}", "${{ '' }}", "${{ input.n > 0 }}", "${{ 1.5 }}"])
def test_an_input_that_gives_no_key_is_refused(key: str):
    with pytest.raises(PayloadError):
        LimitPlan(compile_template(key)).key_of(INPUT)


# == who begins ========================================================================================================
def test_so_many_begin_and_one_more_is_what_the_limit_says():
    hows = {"queue": "waits", "reject": "rejected", "drop": "dropped", "replace_oldest": "waits"}
    for over, how in hows.items():
        line = Line(2)
        verdicts = [line.admit(f"run-{number}", over) for number in range(3)]  # type: ignore[arg-type]
        assert [verdict.how for verdict in verdicts] == ["begins", "begins", how]
        assert (verdicts[2].holder, verdicts[2].replaced) == ("run-0", ("run-0",) if over == "replace_oldest" else ())


def test_nobody_begins_before_those_who_wait():
    line = Line(2, 1, is_waited=True, holder="one")
    assert line.admit("two", "queue").how == "waits"
    assert Line(2, 1, is_waited=True, holder="one").admit("two", "reject").how == "rejected"


def test_only_the_newest_stay_when_the_oldest_are_replaced():
    line = Line(1)
    verdicts = [line.admit(f"run-{number}", "replace_oldest") for number in range(4)]
    assert [verdict.replaced for verdict in verdicts] == [(), ("run-0",), ("run-1",), ("run-2",)]
    lowered = Line(1, 3, holder="a", staying=["a", "b", "c"])
    assert lowered.admit("d", "replace_oldest").replaced == ("a", "b", "c")


def test_without_a_limit_in_the_latest_version_everybody_begins():
    line = Line(None, 7, is_waited=True)
    assert line.admit("run", "reject").how == "begins"


@pytest.mark.parametrize("over", ["queue", "reject", "replace_oldest", "drop"])
def test_no_order_of_starts_lets_more_begin_than_the_limit(over: Over):
    for runs, granted, is_waited in itertools.product((1, 2, 3), range(5), (False, True)):
        line = Line(runs, granted, is_waited=is_waited, holder="h", staying=[str(n) for n in range(granted)])
        begun = sum(line.admit(f"run-{number}", over).how == "begins" for number in range(5))
        assert begun == (0 if is_waited else max(0, runs - granted))
