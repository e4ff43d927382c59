"""Questions to people in a harness: who may answer, how many, what they fill in, and what time does to them."""

from typing import Any

import pytest

from headrace.errors import ConflictError, DefinitionError, ForbiddenError
from headrace.testing import Harness, HarnessRun


def asking(approval: str, **start: Any) -> tuple[Harness, HarnessRun]:
    harness = Harness(f"name: w\ntasks:\n  ask: {{ approval: {{ {approval} }} }}\n  done: {{ run: body, needs: ask }}",
                      {"body": lambda: None})  # fmt: skip
    return harness, harness.start(**start)


def kinds(run: HarnessRun) -> list[str]:
    return [item.kind for item in run.history if item.task == "ask"]


def test_it_takes_as_many_yeses_as_are_needed():
    _, run = asking("approvers: [ada, grace, alan], needed: 2")
    run.approve("ask", by="ada", comment="fine")
    assert run.status == "waiting"
    assert [vote["by"] for vote in run.question("ask").votes] == ["ada"]
    run.approve("ask", by="alan")
    assert run.status == "completed"
    output = run.outputs["ask"]
    assert (output["outcome"], output["by"]) == ("approved", "alan")
    assert [(vote["by"], vote["decision"], vote["comment"]) for vote in output["votes"]] == [
        ("ada", "approve", "fine"), ("alan", "approve", None)
    ]  # fmt: skip


def test_the_first_no_decides():
    _, run = asking("approvers: [ada, grace, alan], needed: 2")
    run.approve("ask", by="ada")
    run.reject("ask", by="grace", comment="too dear")
    assert run.status == "failed"
    assert run.task("ask").error == "REJECTED: rejected by grace: too dear"


def test_everybody_has_one_vote():
    _, run = asking("approvers: [ada, grace], needed: 2")
    run.approve("ask", by="ada")
    with pytest.raises(ConflictError, match="ada has voted already"):
        run.approve("ask", by="ada")
    assert run.status == "waiting"


def test_only_those_who_are_named_may_answer():
    _, run = asking("approvers: [ada, 'role:finance']")
    with pytest.raises(ForbiddenError, match="eve is not among those who may decide: ada, role:finance"):
        run.approve("ask", by="eve", roles=["sales"])
    with pytest.raises(ForbiddenError):
        run.approve("ask", by="finance")
    run.approve("ask", by="eve", roles=["finance"])
    (vote,) = run.outputs["ask"]["votes"]
    assert (vote["by"], vote["role"], vote["in_place_of"]) == ("eve", "finance", None)


def test_who_started_the_run_may_not_approve():
    _, run = asking("no_self_approval: true", by="ada")
    for act in (run.approve, run.reject):
        with pytest.raises(ForbiddenError, match="ada started the run"):
            act("ask", by="ada")
    run.approve("ask", by="grace")
    assert run.status == "completed"


def test_nobody_approves_in_place_of_who_started_the_run():
    harness, run = asking("approvers: [ada], no_self_approval: true", by="ada")
    harness.delegate("ada", "grace")
    with pytest.raises(ForbiddenError, match="in place of ada"):
        run.approve("ask", by="grace")


def test_who_started_the_run_does_not_approve_in_place_of_another_either():
    harness, run = asking("approvers: [ada, grace], no_self_approval: true", by="grace")
    harness.delegate("ada", "grace")
    with pytest.raises(ForbiddenError, match="grace started the run"):
        run.approve("ask", by="grace")
    harness.delegate("grace", "eve")
    with pytest.raises(ForbiddenError, match="in place of grace"):
        run.approve("ask", by="eve")
    run.approve("ask", by="ada")
    assert run.status == "completed"


def test_a_role_given_by_who_started_the_run_is_no_right_to_approve_it():
    harness, run = asking("approvers: ['role:finance'], no_self_approval: true", by="grace")
    harness.delegate("role:finance", "eve", by="grace")
    with pytest.raises(ForbiddenError, match="in place of grace"):
        run.approve("ask", by="eve")
    harness.delegate("role:finance", "eve", by="ada")
    run.approve("ask", by="eve")
    assert run.status == "completed"


def test_who_started_the_parent_may_not_approve_in_the_child():
    child = "name: inner\ntasks:\n  ask: { approval: { no_self_approval: true } }"
    middle = "name: middle\ntasks:\n  deeper: { workflow: inner }"
    harness = Harness("name: outer\ntasks:\n  deep: { workflow: middle }", {}, workflows=[child, middle])
    asked = harness.start(by="ada").child("deep").child("deeper")
    with pytest.raises(ForbiddenError, match="ada started the run"):
        asked.approve("ask", by="ada")
    asked.approve("ask", by="grace")
    assert asked.status == "completed"


def test_a_delegation_holds_between_its_dates():
    harness, run = asking("approvers: [ada]")
    harness.delegate("ada", "grace", starts="2026-01-02T00:00:00Z", ends="2026-01-03T00:00:00Z")
    with pytest.raises(ForbiddenError):
        run.approve("ask", by="grace")
    harness.advance_to("2026-01-03T00:00:00Z")
    with pytest.raises(ForbiddenError):
        run.approve("ask", by="grace")
    _, run = (harness, harness.start())
    harness.delegate("ada", "grace", ends="2026-01-04T00:00:00Z")
    run.approve("ask", by="grace")
    (vote,) = run.outputs["ask"]["votes"]
    assert (vote["by"], vote["in_place_of"]) == ("grace", "ada")


def test_a_vote_in_place_of_somebody_is_theirs():
    harness, run = asking("approvers: [ada, alan], needed: 2")
    harness.delegate("ada", "grace")
    run.approve("ask", by="grace")
    with pytest.raises(ConflictError, match="ada has voted already"):
        run.approve("ask", by="ada")
    run.approve("ask", by="alan")
    assert run.status == "completed"


def test_who_decides_for_two_has_one_vote():
    harness, run = asking("approvers: [ada, alan], needed: 2")
    for name in ("ada", "alan"):
        harness.delegate(name, "grace")
    run.approve("ask", by="grace")
    with pytest.raises(ConflictError):
        run.approve("ask", by="grace")
    assert run.status == "waiting"


FORM = "form: { type: object, required: [amount], properties: { amount: { type: number, maximum: 100 } } }"


def test_a_yes_brings_what_the_form_asks_for():
    _, run = asking(FORM)
    for wrong in (None, {}, {"amount": 101}, {"amount": "7"}):
        with pytest.raises(DefinitionError) as refused:
            run.approve("ask", form=wrong)
        assert refused.value.faults[0].path in ("form", "form.amount")
    run.approve("ask", by="ada", form={"amount": 7})
    assert run.outputs["ask"]["form"] == {"amount": 7}


def test_a_no_needs_no_form():
    _, run = asking(f"{FORM}, on_reject: complete")
    run.reject("ask", by="ada", comment="no")
    assert run.status == "completed"
    output = run.outputs["ask"]
    assert (output["outcome"], output["comment"], output["form"]) == ("rejected", "no", None)


def test_what_has_no_form_takes_none():
    _, run = asking("title: ok?")
    with pytest.raises(ConflictError, match="no form"):
        run.approve("ask", form={"amount": 7})


def test_people_see_a_title_and_a_context_made_of_the_run():
    _, run = asking("title: 'Pay ${{ input.sum }}?', context: { sum: '${{ input.sum }}' }", input={"sum": 7})
    assert (run.question("ask").title, run.question("ask").context) == ("Pay 7?", {"sum": 7})


def test_reminders_come_once_each_while_nobody_has_decided():
    harness, run = asking("approvers: ada, remind: [1h, 2h, 4h]")
    harness.advance(hours=3)
    assert kinds(run) == ["asked", "reminded", "reminded"]
    run.approve("ask", by="ada")
    harness.advance(hours=3)
    assert kinds(run) == ["asked", "reminded", "reminded", "decided"]


def test_the_chain_asks_more_people_as_time_passes():
    harness, run = asking("approvers: ada, escalate: [{ after: 1h, to: grace }, { after: 2h, to: ['role:board'] }]")
    with pytest.raises(ForbiddenError):
        run.approve("ask", by="grace")
    harness.advance(hours=1)
    assert run.question("ask").approvers == ["ada", "grace"]
    harness.advance(hours=1)
    run.approve("ask", by="eve", roles=["board"])
    assert run.status == "completed"


def test_an_expiry_that_escalates_asks_the_next_and_begins_again():
    chain = "escalate: [{ to: grace }, { to: alan }]"
    harness, run = asking(f"approvers: ada, expires: 1h, on_expiry: escalate, {chain}")
    harness.advance(hours=1.5)
    assert (run.status, run.question("ask").approvers) == ("waiting", ["ada", "grace"])
    harness.advance(hours=1)
    assert run.question("ask").approvers == ["ada", "grace", "alan"]
    harness.advance(hours=1)
    assert run.task("ask").error == "EXPIRED: expired by expiry: nobody answered in time"
    assert kinds(run) == ["asked", "escalated", "escalated", "decided"]


def test_a_step_that_time_has_reached_is_not_reached_by_the_expiry_again():
    chain = "escalate: [{ after: 30m, to: grace }, { to: alan }]"
    harness, run = asking(f"approvers: ada, expires: 1h, on_expiry: escalate, {chain}")
    harness.advance(hours=1)
    assert run.question("ask").approvers == ["ada", "grace", "alan"]


def test_an_expiry_that_rejects_is_an_answer_where_a_no_is():
    harness, run = asking("approvers: [ada, grace], needed: 2, expires: 1h, on_expiry: reject, on_reject: complete")
    run.approve("ask", by="ada")
    harness.advance(hours=1)
    output = run.outputs["ask"]
    assert (output["outcome"], output["by"]) == ("rejected", "expiry")
    assert [vote["by"] for vote in output["votes"]] == ["ada"], "who had voted is not forgotten"
