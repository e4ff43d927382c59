"""`headrace publish --check` and `headrace drain`: what a publish would lead to, and what older versions still have."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.test_cli import RUN_ID, FakeApi, _elsewhere, api, headrace, problem

__all__ = ["_elsewhere", "api"]

IN_FLIGHT = {
    "version": 1, "status": "waiting", "runs": 2, "oldest_run_id": RUN_ID, "oldest_at": "2026-11-29T10:00:00Z",
    "then": "stays",
}  # fmt: skip
CHECK: dict[str, Any] = {
    "name": "pay", "verdict": "new", "version": 3, "latest_version": 2, "digest": "d", "runs": [IN_FLIGHT],
    "moves": {"looked_at": 2, "movable": 1, "obstacles": [{"task": "mail", "why": "it has begun", "runs": 1}]},
    "difference": {
        "fields": ["output"], "added": ["tell"], "removed": [], "changed": [{"task": "charge", "fields": ["retry"]}],
        "moved": [], "renamed": [{"task": "notify", "was": "mail"}],
    },
}  # fmt: skip


@pytest.fixture
def file() -> Path:
    path = Path("pay.yaml")
    path.write_text("name: pay\ntasks: { charge: { run: pay.charge } }\n")
    return path


def test_a_check_shows_the_difference_and_the_runs_and_publishes_nothing(api: FakeApi, file: Path) -> None:
    api.answers["POST /workflows/check"] = httpx.Response(200, json=CHECK)
    shown = headrace("publish", "--check", str(file))
    assert shown.exit_code == 0
    assert "pay v3 (pay.yaml) would be published" in shown.stdout
    assert (
        "against v2: added tell; renamed mail to notify; changed charge (retry); of the workflow output" in shown.stdout
    )
    assert "stays on v1 to its end" in shown.stdout
    assert "1 of the oldest 2 could be moved to it, once paused" in shown.stdout
    assert "not 1: task mail: it has begun" in shown.stdout
    assert [request.url.path for request in api.asked] == ["/workflows/check"]
    assert api.asked[0].content == file.read_bytes()


def test_a_publish_that_moves_runs_shows_the_verdict_of_each_first_and_the_bulk_afterwards(
    api: FakeApi, file: Path
) -> None:
    runs = [
        {"run_id": RUN_ID, "version": 1, "status": "waiting", "why_not": None},
        {"run_id": RUN_ID, "version": 2, "status": "running", "why_not": "task mail: it has begun"},
    ]
    moving = {**CHECK, "moves": {**CHECK["moves"], "runs": runs}, "runs": [{**IN_FLIGHT, "then": "moves"}]}
    api.answers["POST /workflows/check"] = httpx.Response(200, json=moving)
    shown = headrace("publish", "--check", "--migrate", str(file))
    assert (shown.exit_code, api.asked[0].url.params["migrate"]) == (0, "true")
    assert "moves, where nothing stands in the way" in shown.stdout
    assert "stay: task mail: it has begun" in " ".join(shown.stdout.split())
    answer = {"name": "pay", "version": 3, "created": True, "bulk_id": "b-1"}
    api.answers["POST /workflows"] = httpx.Response(201, json=answer)
    done = headrace("publish", "--migrate", str(file))
    assert (done.exit_code, api.asked[1].url.params["migrate"]) == (0, "true")
    assert "headrace bulk --progress b-1" in done.stdout


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("first", "would be published as its first version"),
        ("latest", "nothing would change"),
        ("older", "would not make it the latest again"),
    ],
)
def test_each_verdict_is_said(api: FakeApi, file: Path, verdict: str, said: str) -> None:
    first = {"latest_version": None, "difference": None} if verdict == "first" else {}
    api.answers["POST /workflows/check"] = httpx.Response(200, json={**CHECK, **first, "verdict": verdict, "runs": []})
    shown = headrace("publish", "--check", str(file))
    assert said in shown.stdout
    assert ("no run is in flight" in shown.stdout) == (verdict != "first")


def test_what_is_wrong_fails_a_check_as_it_would_a_publish(api: FakeApi, file: Path) -> None:
    faults = [{"path": "tasks.charge.needs", "message": "there is no task b", "line": 2}]
    api.answers["POST /workflows/check"] = problem(422, "HR-1002", "refused", faults)
    shown = headrace("publish", "--check", str(file), "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout) == {"checked": [], "refused": [{"file": "pay.yaml", "errors": faults}]}


def versions(*in_flight: dict[str, Any]) -> httpx.Response:
    published = {"digest": "d", "published_at": "2026-11-01T10:00:00Z", "published_by": "ada"}
    latest = {**published, "version": 2, "is_latest": True, "in_flight": 4, "runs": [], "bodies": []}
    older = {
        **published, "version": 1, "is_latest": False, "in_flight": sum(each["runs"] for each in in_flight),
        "runs": list(in_flight), "bodies": ["pay.charge_by_hand"],
    }  # fmt: skip
    return httpx.Response(200, json={"name": "pay", "items": [latest, older] if in_flight else [latest]})


def test_drain_fails_while_older_versions_have_runs_and_names_the_bodies_to_keep(api: FakeApi) -> None:
    api.answers["GET /workflows/pay/versions"] = versions(IN_FLIGHT)
    shown = headrace("drain", "pay")
    assert shown.exit_code == 1
    assert "pay.charge_by_hand" in shown.stdout
    assert "2 runs are in flight on older versions" in shown.stdout


def test_drain_is_done_when_only_the_latest_version_has_runs(api: FakeApi) -> None:
    api.answers["GET /workflows/pay/versions"] = versions()
    shown = headrace("drain", "pay")
    assert (shown.exit_code, "no run is in flight on an older version" in shown.stdout) == (0, True)


MOVE: dict[str, Any] = {
    "run_id": RUN_ID, "dry_run": True, "workflow": "pay", "from_version": 1, "to_version": 2, "obstacles": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("obstacles", "code", "said"),
    [
        ([], 0, "nothing stands in the way"),
        ([{"task": "charge", "why": "it has begun, and version 2 has no such task"}], 1, "no such task"),
        ([{"task": None, "why": "the run is running: pause it"}], 1, "(the run)"),
    ],
)
def test_a_dry_run_of_a_move_says_what_stands_in_the_way(
    api: FakeApi, obstacles: list[dict[str, Any]], code: int, said: str
) -> None:
    api.answers[f"POST /runs/{RUN_ID}/migrate"] = httpx.Response(200, json={**MOVE, "obstacles": obstacles})
    shown = headrace("migrate", RUN_ID, "--to", "2", "--dry-run")
    assert (shown.exit_code, said in shown.stdout) == (code, True)
    assert api.body() == {"reason": "", "dry_run": True, "version": 2}


def test_a_move_is_to_the_latest_version_unless_one_is_named(api: FakeApi) -> None:
    api.answers[f"POST /runs/{RUN_ID}/migrate"] = httpx.Response(202, json={**MOVE, "dry_run": False})
    assert headrace("migrate", RUN_ID, "--reason", "the fix").exit_code == 0
    assert api.body() == {"reason": "the fix", "dry_run": False}


def test_drain_of_what_was_never_published_is_not_found(api: FakeApi) -> None:
    assert headrace("drain", "nope").exit_code == 3
