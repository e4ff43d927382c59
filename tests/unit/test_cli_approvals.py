"""Decisions on the command line: what is sent, and what people read."""

from typing import Any

import httpx
import pytest
from typer import BadParameter

from headrace.cli.approval import read_form
from tests.unit.test_cli import (
    RUN_ID,
    FakeApi,
    _elsewhere,
    api,
    headrace,
    items,
    problem,
    task_document,
)

__all__ = ["_elsewhere", "api"]
ID = "0199c3f4-5a6b-7c8d-9e0f-a1b2c3d40001"


def approval(status: str = "waiting", **changes: Any) -> dict[str, Any]:
    return {
        "approval_id": ID, "run_id": RUN_ID, "workflow": "greet", "task": "ask", "title": "Ship it?", "status": status,
        "approvers": ["ada", "role:finance"], "asked_at": "2026-11-29T10:00:00Z", "expires_at": None, "needed": 1,
        "on_expiry": "fail", "context": None, "form": None, "answer": None, "digest": "d1", "votes": [],
    } | changes  # fmt: skip


@pytest.fixture
def asking(api: FakeApi) -> FakeApi:
    """A run that waits for one decision."""
    waits = task_document("ask", status="waiting", approval_id=ID)
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(waits)
    api.answers[f"POST /approvals/{ID}/approve"] = httpx.Response(200, json=approval("approved"))
    return api


def test_an_approval_carries_form_comment_and_roles(asking: FakeApi) -> None:
    result = headrace("approve", RUN_ID, "--task", "ask", "--form", "amount=7", "--form", "why=late", "-c", "fine",
                      "--role", "finance", "--role", "legal")  # fmt: skip
    assert (result.exit_code, "approved: Ship it?" in result.output) == (0, True)
    assert asking.body() == {"comment": "fine", "form": {"amount": 7, "why": "late"}}
    sent = asking.asked[-1].headers
    assert (sent["headrace-roles"], sent["headrace-actor"], sent["headrace-source"]) == (
        "finance,legal",
        "tester",
        "cli",
    )


def test_a_vote_that_does_not_decide_says_how_many_are_missing(asking: FakeApi) -> None:
    answer = approval(needed=3, votes=[{"by": "ada"}])
    asking.answers[f"POST /approvals/{ID}/approve"] = httpx.Response(200, json=answer)
    assert "your vote is kept: 1 of 3 have approved Ship it?" in headrace("approve", RUN_ID, "-t", "ask").output


def test_what_is_for_others_is_said(asking: FakeApi) -> None:
    refused = problem(403, "HR-1017", "tester is not among those who may decide: ada")
    asking.answers[f"POST /approvals/{ID}/approve"] = refused
    result = headrace("approve", RUN_ID, "-t", "ask")
    assert (result.exit_code, "not among those who may decide: ada" in result.stderr) == (1, True)


def test_mine_asks_for_what_waits_for_me(api: FakeApi) -> None:
    api.answers["GET /approvals"] = items(approval())
    result = headrace("approvals", "--mine", "--role", "finance")
    assert (result.exit_code, "0 of 1" in result.output) == (0, True)
    assert api.asked[-1].url.params["for"] == "me"
    assert "status" not in api.asked[-1].url.params


def test_one_is_shown_with_all_that_happened_to_it(asking: FakeApi) -> None:
    vote = {"at": "2026-11-29T11:00:00Z", "decision": "approve", "by": "grace", "in_place_of": "ada", "comment": "ok",
            "source": "link", "address": "10.0.0.7"}  # fmt: skip
    entry = {"at": "2026-11-29T10:30:00Z", "kind": "reminded", "actor": "", "detail": {"reminder": 1}}
    whole = approval(context={"sum": 7}, record=[vote], history=[entry], timers=[])
    asking.answers[f"GET /approvals/{ID}"] = httpx.Response(200, json=whole)
    shown = headrace("approvals", RUN_ID, "--task", "ask").output
    for words in ("Ship it?", "ada, role:finance", '{"sum": 7}', "digest of what is shown: d1", "grace in place of ada",
                  "ok (by link from 10.0.0.7)"):  # fmt: skip
        assert words in shown
    assert shown.index("reminded") < shown.index("grace")


def test_a_comment_and_a_delegation_are_sent(asking: FakeApi) -> None:
    asking.answers[f"POST /approvals/{ID}/comments"] = httpx.Response(200, json=approval())
    assert headrace("comment", RUN_ID, "why so dear?", "--task", "ask").exit_code == 0
    assert asking.body() == {"comment": "why so dear?"}
    made = {"from": "role:finance", "to": "grace", "ends_at": "2099-01-01T00:00:00Z"}
    asking.answers["POST /delegations"] = httpx.Response(201, json=made)
    result = headrace("delegate", "grace", "--until", "2099-01-01T00:00:00Z", "--role", "finance")
    assert (result.exit_code, "grace decides in place of role:finance" in result.output) == (0, True)
    assert asking.body() == {**made, "reason": ""}


@pytest.mark.parametrize(
    ("given", "form"),
    [
        (None, None),
        (["a=1", "b=x=y", 'c={"d": true}', "e="], {"a": 1, "b": "x=y", "c": {"d": True}, "e": ""}),
        (['{"a": [1]}'], {"a": [1]}),
    ],
)
def test_a_form_is_given_by_its_keys_or_as_json(given: list[str] | None, form: Any) -> None:
    assert read_form(given) == form


@pytest.mark.parametrize("given", [["a"], ["=1"], ["a=1", "a=2"], ["{"]])
def test_what_is_no_form_is_refused(given: list[str]) -> None:
    with pytest.raises(BadParameter):
        read_form(given)


def test_who_is_refused_for_a_role_is_told_how_to_say_that_they_have_it(asking: FakeApi) -> None:
    refused = problem(403, "HR-1017", "tester is not among those who may decide: role:sales, ada")
    asking.answers[f"POST /approvals/{ID}/approve"] = refused
    result = headrace("approve", RUN_ID, "-t", "ask")
    assert (result.exit_code, "--role sales" in result.stderr) == (1, True)
