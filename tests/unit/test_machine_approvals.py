"""Questions to people: asked once for a token, decided once, closed when nobody needs the answer."""

import msgspec
import pytest

from headrace.expressions import Template, compile_template
from headrace.machine import (
    Ask,
    BuryTask,
    CloseQuestion,
    Decided,
    Dispatch,
    Finish,
    KeepOutput,
    Replayed,
    Reran,
    RunStatus,
)
from headrace.machine.plan import CONTEXT_BYTES_MAX, ApprovalPlan
from tests.unit.machine_model import BRANCHING, HOPELESS, INPUT, QUESTION, SECOND, Trial, task


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
    answer = {"outcome": "approved", "by": "ada", "comment": "looks good", "form": None, "votes": []}
    assert msgspec.json.decode(action.input) == answer


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
    assert trial.told == [Ask(1, 2)]
    assert trial.decide("deploy", "approved")
    if run is not None:
        assert trial.told == [Dispatch(1, 1, 3, b'"edited"')]


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


# == a no that is an answer ===========================================================================================
def branching(run: str | None) -> Trial:
    """ask, whose no is an answer -> go, if it was approved; back, if not."""
    trial = Trial(
        task("ask", run=run, asks=BRANCHING),
        task("go", "ask", condition="tasks.ask.output.outcome != 'rejected'"),
        task("back", "ask", condition="tasks.ask.output.outcome == 'rejected'"),
    )
    assert trial.states["ask"] == "waiting"
    return trial


@pytest.mark.parametrize("run", ["body", None])
def test_a_rejection_that_completes_is_looked_at_by_a_branch(run: str | None):
    trial = branching(run)
    votes = b'[{"by":"ada","decision":"reject"}]'
    assert trial.tell(Decided(0, 1, "rejected", "ada", "not today", votes, b'{"why":"late"}'))
    assert trial.states == {"ask": "completed", "go": "skipped", "back": "queued"}
    output = msgspec.json.decode(trial.state("ask").output or b"")
    assert output == {
        "outcome": "rejected", "by": "ada", "comment": "not today", "form": {"why": "late"},
        "votes": [{"by": "ada", "decision": "reject"}],
    }  # fmt: skip
    assert trial.state("ask").attempt == 0
    kept = [action for action in trial.told if isinstance(action, KeepOutput)]
    assert len(kept) == (run is not None), "an output that no body gave is kept"
    assert not any(isinstance(action, BuryTask) for action in trial.actions)


@pytest.mark.parametrize("run", ["body", None])
def test_an_expiry_fails_also_where_a_rejection_completes(run: str | None):
    trial = branching(run)
    assert trial.decide("ask", "expired")
    assert trial.states == {"ask": "failed", "go": "skipped", "back": "skipped"}


def test_a_rejection_that_completed_is_asked_again_by_a_rerun():
    trial = Trial(task("ask", run=None, asks=BRANCHING))
    assert trial.decide("ask", "rejected")
    assert trial.status is RunStatus.COMPLETED
    assert trial.tell(Reran(trial.run.row_version, (0,)))
    assert trial.told == [Ask(0, 2)]
    assert not trial.tell(Decided(0, 1, "approved"))


# == what people are shown =============================================================================================
def shown(**more: object) -> ApprovalPlan:
    return msgspec.structs.replace(QUESTION, **more)


def test_title_and_context_are_written_when_the_question_is_asked():
    plan = shown(
        title_template=compile_template("Pay ${{ tasks.price.output.total }}?"),
        context=compile_template({"price": "${{ tasks.price.output }}", "of": "${{ input }}"}),
    )
    trial = Trial(task("price"), task("ask", "price", run=None, asks=plan))
    assert trial.succeed("price", b'{"total":12.5}')
    context = b'{"price":{"total":12.5},"of":%b}' % INPUT
    assert trial.told[-1] == Ask(1, 1, "Pay 12.5?", context)


def test_a_title_is_one_line_of_text_whatever_it_is_made_of():
    plan = shown(title_template=compile_template("${{ tasks.a.output }}"))
    trial = Trial(task("a"), task("ask", "a", run=None, asks=plan))
    assert trial.succeed("a", b'{"x": 1}')
    assert trial.told[-1] == Ask(1, 1, '{"x":1}')
    trial = Trial(task("a"), task("ask", "a", run=None, asks=plan))
    assert trial.succeed("a", b'"' + b"two\\nlines " * 100 + b'"')
    ask = trial.told[-1]
    assert isinstance(ask, Ask)
    assert ask.title is not None
    assert ask.title.startswith("two lines two")
    assert len(ask.title) == 200


@pytest.mark.parametrize(
    "context", [compile_template("${{ tasks.a.output.nope }}"), compile_template("${{ tasks.a.output }}")]
)
def test_a_question_that_cannot_be_written_is_buried_and_written_again_by_a_replay(context: Template):
    trial = Trial(task("a"), task("ask", "a", run=None, asks=shown(context=context)))
    assert trial.succeed("a", b'"' + b"x" * CONTEXT_BYTES_MAX + b'"')
    assert trial.states["ask"] == "failed"
    (buried,) = [action for action in trial.told if isinstance(action, BuryTask)]
    assert (buried.token, buried.error.code) == (1, "BAD_INPUT")
    assert trial.replay("ask")
    (again,) = [action for action in trial.told if isinstance(action, BuryTask)]
    assert again.token == 2, "every dead letter has a token of its own"
