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


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_one_task_is_paused_by_its_name(api: FakeApi, verb: str) -> None:
    api.answers[f"POST /tasks/{RUN_ID}.charge/{verb}"] = httpx.Response(202, json=ACCEPTED)
    shown = headrace(verb, RUN_ID, "--task", "charge", "--reason", "to look")
    assert (shown.exit_code, f"task charge of run {RUN_ID}" in shown.output) == (0, True)
    assert api.body() == {"reason": "to look"}
    assert headrace(verb, "workflow", "orders", "--task", "charge").exit_code == 2


def test_a_rerun_on_another_version_says_so_and_stops_at_what_stands_in_the_way(api: FakeApi) -> None:
    path = f"POST /runs/{RUN_ID}/rerun"
    api.answers[path] = httpx.Response(200, json={**FORESEEN, "to_version": 4, "obstacles": []})
    shown = headrace("rerun", RUN_ID, "--version", "4", "--dry-run")
    assert (shown.exit_code, "orders v3, from here on v4" in shown.output) == (0, True)
    assert api.body() == {"tasks": [], "reason": "", "version": 4, "dry_run": True}
    why = [{"task": "charge", "why": "it has begun, and version 4 has no such task"}]
    api.answers[path] = httpx.Response(200, json={**FORESEEN, "to_version": 4, "obstacles": why, "again": []})
    refused = headrace("rerun", RUN_ID, "--version", "4", "--yes")
    assert (refused.exit_code, "task charge: it has begun" in refused.output) == (4, True)
    assert len(api.asked) == 2, "nothing was asked for"


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


POOL: dict[str, Any] = {
    "name": "db", "is_set": True, "limit": 2, "rate": "10/s", "held": 1, "waiting": 1, "created_at": None,
    "updated_at": None, "updated_by": "ada",
    "holders": [{"run_id": RUN_ID, "task": "load", "workflow": "w", "token": 1, "since": "2026-01-01T00:00:00Z",
                 "priority": 0, "fairness_key": None}],
    "waiters": [{"run_id": RUN_ID, "task": "each.7", "workflow": "w", "token": 1, "since": "2026-01-01T00:00:00Z",
                 "priority": 5, "fairness_key": "ada-ltd"}],
}  # fmt: skip


def test_a_pool_is_set_with_what_was_given_and_nothing_else(api: FakeApi) -> None:
    api.answers["PUT /pools/db"] = httpx.Response(200, json=POOL)
    assert headrace("set-pool", "db", "--limit", "0", "--rate", "10/s").exit_code == 0
    assert api.body() == {"limit": 0, "rate": "10/s"}
    assert headrace("set-pool", "db").exit_code == 2


def test_a_pool_shows_its_holders_and_its_queue(api: FakeApi) -> None:
    api.answers["GET /pools/db"] = httpx.Response(200, json=POOL)
    shown = headrace("pools", "db")
    assert shown.exit_code == 0
    assert [word in shown.output for word in ("holds", "load", "each.7", "10/s", "ada-ltd")] == [True] * 5


def test_pools_are_listed_also_those_that_nobody_has_set(api: FakeApi) -> None:
    unset = {**POOL, "name": "mail", "is_set": False, "limit": None, "rate": None}
    api.answers["GET /pools"] = httpx.Response(200, json={"items": [POOL, unset], "next": None})
    shown = headrace("pools")
    assert (shown.exit_code, "not set" in shown.output) == (0, True)


def test_a_pool_is_removed(api: FakeApi) -> None:
    api.answers["DELETE /pools/db"] = httpx.Response(204)
    assert headrace("remove-pool", "db").exit_code == 0


def test_a_run_is_prioritised(api: FakeApi) -> None:
    api.answers[f"POST /runs/{RUN_ID}/priority"] = httpx.Response(202, json=ACCEPTED)
    assert headrace("prioritise", RUN_ID, "5", "--reason", "urgent").exit_code == 0
    assert api.body() == {"priority": 5, "reason": "urgent"}
    assert headrace("prioritise", RUN_ID, "--", "-5").exit_code == 0
    assert api.body()["priority"] == -5
    assert headrace("prioritise", RUN_ID, "101").exit_code == 2


# == pauses of many ====================================================================================================
@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("what", ["workflow", "queue"])
def test_a_workflow_or_a_queue_is_paused_by_its_name(api: FakeApi, verb: str, what: str) -> None:
    api.answers[f"POST /{what}s/orders/{verb}"] = httpx.Response(202, json={what: "orders", "paused": True})
    assert headrace(verb, what, "orders", "--reason", "to look").exit_code == 0
    assert api.body() == {"reason": "to look"}
    assert headrace(verb, what).exit_code == 2
    assert headrace(verb, RUN_ID, "orders").exit_code == 2
    assert len(api.asked) == 1


def test_pauses_say_what_still_runs(api: FakeApi) -> None:
    pause = {"workflow": "orders", "reason": "to look", "paused_at": "2030-01-01T00:00:00Z", "paused_by": "ana"}
    answer = {"items": [{**pause, "runs": {"paused": 2, "pausing": 1}}], "next": None}
    api.answers["GET /pauses"] = httpx.Response(200, json=answer)
    queue = {"queue": "gpu", "reason": "", "paused_at": "2030-01-01T00:00:00Z", "paused_by": "bob", "held": 7}
    api.answers["GET /queues/pauses"] = httpx.Response(200, json={"items": [queue]})
    shown = headrace("pauses").output
    assert "2 paused, 1 pausing" in shown
    assert "7 commands" in shown
