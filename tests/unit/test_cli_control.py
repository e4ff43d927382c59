"""Control of a run from the command line: what it asks of the API, and that effects are shown before they repeat."""

from typing import Any

import httpx
import pytest

from tests.unit.test_cli import RUN_ID, FakeApi, _elsewhere, api, headrace

__all__ = ["_elsewhere", "api"]

ACCEPTED = {"run_id": RUN_ID, "accepted": True}
FORESEEN: dict[str, Any] = {
    "run_id": RUN_ID, "dry_run": True, "workflow": "orders", "version": 3, "row_version": 12, "reused": ["check"],
    "again": [
        {"task": "charge", "status": "failed", "then": "begins", "effect": "repeats", "protected_by": "effect_key"},
        {"task": "ship", "status": "skipped", "then": "follows", "effect": "first", "protected_by": None},
    ],
}  # fmt: skip


@pytest.mark.parametrize("verb", ["pause", "resume", "terminate"])
def test_an_act_sends_its_reason(api: FakeApi, verb: str) -> None:
    api.answers[f"POST /runs/{RUN_ID}/{verb}"] = httpx.Response(202, json=ACCEPTED)
    assert headrace(verb, RUN_ID, "--reason", "to look").exit_code == 0
    assert api.body() == {"reason": "to look"}


def test_a_dry_run_shows_what_repeats_and_what_protects_it(api: FakeApi) -> None:
    api.answers[f"POST /runs/{RUN_ID}/rerun"] = httpx.Response(200, json=FORESEEN)
    shown = headrace("rerun", RUN_ID, "--from", "charge", "--dry-run")
    assert shown.exit_code == 0
    assert "repeats, under the same effect key" in shown.output
    assert "reused: check" in shown.output
    assert [api.body(place) for place in range(len(api.asked))] == [
        {"tasks": ["charge"], "reason": "", "dry_run": True}
    ]


def test_a_rerun_is_of_the_run_that_was_shown(api: FakeApi) -> None:
    api.answers[f"POST /runs/{RUN_ID}/rerun"] = [  # type: ignore[assignment]
        httpx.Response(200, json=FORESEEN), httpx.Response(202, json={**FORESEEN, "dry_run": False}),
    ]  # fmt: skip
    assert headrace("rerun", RUN_ID, "--input", '{"n": 2}', "--from", "charge", "--yes").exit_code == 0
    assert api.body() == {"tasks": ["charge"], "reason": "", "input": {"n": 2}, "row_version": 12}


def test_nothing_is_rerun_when_nobody_can_be_asked(api: FakeApi) -> None:
    api.answers[f"POST /runs/{RUN_ID}/rerun"] = httpx.Response(200, json=FORESEEN)
    refused = headrace("rerun", RUN_ID)
    assert refused.exit_code == 2
    assert len(api.asked) == 1


def test_a_skip_gives_the_output(api: FakeApi) -> None:
    api.answers[f"POST /tasks/{RUN_ID}.charge/skip"] = httpx.Response(202, json=ACCEPTED)
    assert headrace("skip", RUN_ID, "charge", "--output", '{"by": "hand"}').exit_code == 0
    assert api.body() == {"reason": "", "output": {"by": "hand"}}
