"""Questions to people: asked once for a token, decided once, closed when nobody needs the answer."""

import msgspec
import pytest

from headrace.machine import Ask, BuryTask, CloseQuestion, Decided, Dispatch, Finish, Replayed, RunStatus
from tests.unit.machine_model import HOPELESS, INPUT, SECOND, Trial, task


def gated() -> Trial:
    """build -> deploy, which is asked about first -> smoke."""
    trial = Trial(task("build"), task("deploy", "build", asks=True), task("smoke", "deploy"))
    assert trial.succeed("build")
    return trial


def question(*, keeps: bool = False) -> Trial:
    """build -> sign_off, which is nothing but a question -> deploy."""
    template = "${{ tasks.sign_off.output }}" if keeps else None
    trial = Trial(
        task("build"), task("sign_off", "build", run=None, asks=True), task("deploy", "sign_off", template=template)
    )
    assert trial.succeed("build")
    return trial


@pytest.mark.parametrize("trial", [gated(), question()], ids=["gated", "question"])
def test_a_task_with_an_approval_asks_when_all_it_needs_is_there(trial: Trial):
    name = trial.plan.tasks[1].name
    assert trial.told[-1] == Ask(1, 1)
    assert trial.states[name] == "waiting"
    assert trial.status is RunStatus.WAITING


def test_an_approved_task_is_handed_out_under_the_next_token():
    trial = gated()
    assert trial.decide("deploy", "approved", by="ada")
    assert trial.told == [Dispatch(1, 1, 2, INPUT)]
    assert trial.status is RunStatus.RUNNING
    assert trial.succeed("deploy")
    assert trial.succeed("smoke")
    assert trial.status is RunStatus.COMPLETED


def test_an_approved_question_is_completed_with_the_decision_as_its_output():
    trial = question(keeps=True)
    assert trial.decide("sign_off", "approved", by="ada", comment="looks good")
    assert trial.states["sign_off"] == "completed"
    assert trial.state("sign_off").attempt == 0
    action = trial.told[-1]
    assert isinstance(action, Dispatch)
    assert msgspec.json.decode(action.input) == {"outcome": "approved", "by": "ada", "comment": "looks good"}


@pytest.mark.parametrize("outcome", ["rejected", "expired"])
@pytest.mark.parametrize("make", [gated, question])
def test_a_refused_task_fails_without_a_dead_letter(make, outcome: str):
    trial = make()
    name, after = trial.plan.tasks[1].name, trial.plan.tasks[2].name
    assert trial.decide(name, outcome, by="ada", comment="not today")
    assert (trial.states[name], trial.states[after]) == ("failed", "skipped")
    assert trial.told == [Finish(RunStatus.FAILED)]
    error = trial.state(name).error
    assert error is not None
    assert (error.code, error.message, error.retryable) == (outcome.upper(), f"{outcome} by ada: not today", False)


def test_an_expiry_names_nobody():
    trial = gated()
    assert trial.decide("deploy", "expired")
    error = trial.state("deploy").error
    assert error is not None
    assert error.message == "expired"


@pytest.mark.parametrize("make", [gated, question])
@pytest.mark.parametrize("first", ["approved", "rejected", "expired"])
@pytest.mark.parametrize("second", ["approved", "rejected", "expired"])
def test_a_question_is_decided_once(make, first: str, second: str):
    trial = make()
    name = trial.plan.tasks[1].name
    assert trial.decide(name, first)
    assert not trial.tell(Decided(1, 1, second))
    assert not trial.decide(name, second)


def test_a_decision_before_the_question_is_stale():
    trial = Trial(task("build"), task("deploy", "build", asks=True))
    for token in (0, 1, 2):
        assert not trial.tell(Decided(1, token, "approved"))
    assert trial.states == {"build": "queued", "deploy": "pending"}


def test_a_task_that_never_asks_cannot_be_decided():
    trial = Trial(task("build"))
    assert not trial.decide("build", "approved")
    assert not trial.decide("build", "rejected")


def test_a_false_condition_asks_nobody():
    trial = Trial(task("build"), task("deploy", "build", asks=True, condition="false"))
    assert trial.succeed("build")
    assert trial.states["deploy"] == "skipped"
    assert not any(isinstance(action, Ask) for action in trial.actions)


@pytest.mark.parametrize("make", [gated, question])
def test_a_cancel_closes_the_question(make):
    trial = make()
    name = trial.plan.tasks[1].name
    assert trial.cancel()
    assert trial.told == [CloseQuestion(1, 1), Finish(RunStatus.CANCELLED)]
    assert not trial.decide(name, "approved")
    assert trial.status is RunStatus.CANCELLED


def test_an_approved_task_is_retried_without_asking_again():
    trial = gated()
    assert trial.decide("deploy", "approved")
    assert trial.lose("deploy")
    assert trial.fail("deploy")
    assert trial.wait_for("deploy")
    assert trial.fail("deploy", HOPELESS)
    assert trial.replay("deploy")
    assert trial.states["deploy"] == "queued"
    assert [action for action in trial.actions if isinstance(action, Ask)] == [Ask(1, 1)]


@pytest.mark.parametrize("make", [gated, question])
def test_a_replay_of_a_refused_task_asks_again(make):
    trial = make()
    name = trial.plan.tasks[1].name
    assert trial.decide(name, "rejected")
    assert trial.replay(name)
    assert trial.told == [Ask(1, 2)]
    assert trial.status is RunStatus.WAITING
    assert not trial.tell(Decided(1, 1, "approved"))
    assert trial.decide(name, "approved")
    assert trial.states[name] == ("queued" if make is gated else "completed")


@pytest.mark.parametrize("run", ["body", None])
def test_a_replay_does_not_go_round_an_approval_that_was_never_asked_for(run: str | None):
    trial = Trial(task("a"), task("deploy", "a", run=run, asks=True, condition="tasks.a.output.ok"))
    assert trial.succeed("a", b"{}")
    assert trial.states["deploy"] == "failed"
    assert any(isinstance(action, BuryTask) for action in trial.told)
    assert trial.tell(Replayed(1, 1, input=b'"edited"'))
    assert trial.told == [Ask(1, 1)]
    assert trial.decide("deploy", "approved")
    if run is not None:
        assert trial.told == [Dispatch(1, 1, 2, b'"edited"')]


def test_a_run_waits_only_while_nothing_else_goes_on():
    trial = Trial(task("ask", run=None, asks=True), task("work"), task("behind", "ask"))
    assert trial.status is RunStatus.RUNNING
    assert trial.fail("work")
    assert trial.status is RunStatus.RUNNING, "a backoff is work that goes on"
    assert trial.wait_for("work")
    assert trial.succeed("work")
    assert trial.status is RunStatus.WAITING
    trial.at += 1000 * SECOND
    assert trial.decide("ask", "approved")
    assert trial.status is RunStatus.RUNNING
