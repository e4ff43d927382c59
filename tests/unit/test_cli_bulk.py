"""One act on many runs from the command line: what it asks of the API, and that it is shown before it is asked."""

from typing import Any

import httpx
import msgspec
import pytest

from api.schemas.bulk import BulkBody
from headrace.client import Client
from tests.unit.test_cli import RUN_ID, FakeApi, _elsewhere, api, headrace

__all__ = ["_elsewhere", "api"]

BULK_ID = "019b0000-0000-7000-8000-00000000000b"
PREVIEW: dict[str, Any] = {
    "dry_run": True, "act": "rerun", "count": 2, "has_more": False, "done": 1, "foreseen": 1,
    "run_ids": [RUN_ID, BULK_ID], "filter": "workflow:orders started:>2026-11-30T10:00:00Z",
    "refused": [{"reason": "the run is running: only a run that has ended is rerun", "count": 1}],
    "effects": [{"effect": "repeats", "protected_by": "effect_key", "tasks": 3}],
}  # fmt: skip
BULK: dict[str, Any] = {
    "bulk_id": BULK_ID, "act": "cancel", "status": "running", "filter": "workflow:orders", "reason": "",
    "rate": 50.0, "selected": 9, "left": 5, "done": 3, "refused": 1, "gone": 0, "stopped": 0,
    "created_at": "2030-01-01T00:00:00Z", "created_by": "ana", "finished_at": None, "stopped_by": None,
}  # fmt: skip
PROGRESS = {**BULK, "later": {"cancelled": 2, "failed_again": 1}, "refusals": [{"reason": "it has ended", "count": 1}]}


def body_of(api: FakeApi) -> Any:
    """What was asked last; the API takes it."""
    found = api.body()
    msgspec.convert(found, BulkBody)
    return found


def test_a_dry_run_shows_what_would_be_asked_and_asks_nothing(api: FakeApi) -> None:
    api.answers["POST /bulk"] = httpx.Response(200, json=PREVIEW)
    shown = headrace("bulk", "rerun", "--workflow", "orders", "--status", "failed", "--dry-run", "--rate", "50/s")
    assert shown.exit_code == 0, shown.output
    assert "rerun would be asked of 1 of 2 runs that match" in shown.output
    assert "3 repeats, protected by effect key" in shown.output
    assert "1 refused: the run is running" in shown.output
    assert len(api.asked) == 1
    assert body_of(api) == {
        "act": "rerun", "filter": "workflow:orders status:failed", "reason": "", "rate": 50.0,
        "dry_run": True,
    }  # fmt: skip


def test_what_was_shown_is_what_is_asked(api: FakeApi) -> None:
    api.answers["POST /bulk"] = [  # type: ignore[assignment]
        httpx.Response(200, json=PREVIEW), httpx.Response(202, json=BULK),
    ]  # fmt: skip
    asked = headrace("bulk", "cancel", "-w", "orders", "--rate", "600/m", "--reason", "a bad deploy", "--yes")
    assert asked.exit_code == 0, asked.output
    assert "cancel, running: 3 done, 1 refused, 5 left of 9" in asked.output
    assert body_of(api) == {
        "act": "cancel", "filter": PREVIEW["filter"], "run_ids": [RUN_ID, BULK_ID], "reason": "a bad deploy",
        "rate": 10.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ["cancel"],
        ["cancel", "-w", "orders", "--rate", "fast"],
        ["stop"],
    ],
)
def test_a_bulk_that_means_nothing_asks_nothing(api: FakeApi, arguments: list[str]) -> None:
    assert headrace("bulk", *arguments).exit_code == 2
    assert api.asked == []


def test_the_rest_of_a_bulk_is_another_one_of_exactly_what_had_no_turn(api: FakeApi) -> None:
    api.answers[f"GET /bulk/{BULK_ID}"] = httpx.Response(200, json={**BULK, "reason": "a bad deploy", "rate": 2.5})
    api.answers[f"GET /bulk/{BULK_ID}/items"] = httpx.Response(
        200, json={"items": [{"run_id": RUN_ID}, {"run_id": BULK_ID}], "next": None}
    )
    api.answers["POST /bulk"] = [  # type: ignore[assignment]
        httpx.Response(200, json={**PREVIEW, "filter": ""}), httpx.Response(202, json=BULK),
    ]  # fmt: skip
    asked = headrace("bulk", "--rest", BULK_ID, "--yes")
    assert asked.exit_code == 0, asked.output
    assert body_of(api) == {
        "act": "cancel", "filter": "", "run_ids": [RUN_ID, BULK_ID], "reason": "a bad deploy", "rate": 2.5,
    }  # fmt: skip


@pytest.mark.parametrize(("act", "items"), [("cancel", []), ("replay", [{"run_id": None}])])
def test_a_bulk_without_a_rest_of_runs_asks_nothing(api: FakeApi, act: str, items: list[Any]) -> None:
    api.answers[f"GET /bulk/{BULK_ID}"] = httpx.Response(200, json={**BULK, "act": act})
    api.answers[f"GET /bulk/{BULK_ID}/items"] = httpx.Response(200, json={"items": items, "next": None})
    assert headrace("bulk", "--rest", BULK_ID, "--yes").exit_code == 2
    assert len(api.asked) == 2


def test_nothing_is_asked_when_nobody_can_be_asked(api: FakeApi) -> None:
    api.answers["POST /bulk"] = httpx.Response(200, json=PREVIEW)
    assert headrace("bulk", "cancel", "-w", "orders").exit_code == 2
    assert len(api.asked) == 1


def test_an_age_is_the_instant_that_was_shown(api: FakeApi) -> None:
    api.answers["POST /bulk"] = [  # type: ignore[assignment]
        httpx.Response(200, json=PREVIEW), httpx.Response(202, json=BULK),
    ]  # fmt: skip
    assert headrace("bulk", "cancel", "-f", "workflow:orders started:>-2h", "--yes").exit_code == 0
    assert body_of(api)["filter"] == "workflow:orders started:>2026-11-30T10:00:00Z"


def test_progress_items_stop_and_list(api: FakeApi) -> None:
    api.answers[f"GET /bulk/{BULK_ID}"] = httpx.Response(200, json=PROGRESS)
    shown = headrace("bulk", "--progress", BULK_ID)
    assert "of those done: 2 cancelled, 1 failed again" in shown.output
    assert "1 refused: it has ended" in shown.output
    item = {"run_id": RUN_ID, "dead_letter_id": None, "outcome": "done", "reason": None, "done_at": None}
    answer = {"items": [{**item, "later": "failed_again"}], "next": None}
    api.answers[f"GET /bulk/{BULK_ID}/items"] = httpx.Response(200, json=answer)
    assert "failed again" in headrace("bulk", "--items", BULK_ID).output
    api.answers[f"POST /bulk/{BULK_ID}/stop"] = httpx.Response(200, json={**PROGRESS, "status": "stopped"})
    assert "cancel, stopped" in headrace("bulk", "--stop", BULK_ID).output
    api.answers["GET /bulk"] = httpx.Response(200, json={"items": [BULK], "next": None})
    assert BULK_ID in headrace("bulk").output


def test_the_client_asks_the_same(api: FakeApi) -> None:
    api.answers["POST /bulk"] = [  # type: ignore[assignment]
        httpx.Response(200, json=PREVIEW), httpx.Response(202, json=BULK),
    ]  # fmt: skip
    api.answers[f"GET /bulk/{BULK_ID}"] = httpx.Response(200, json=PROGRESS)
    with Client("http://api.test", transport=httpx.MockTransport(api)) as client:
        assert client.foresee_bulk("rerun", "workflow:orders").effects[0].tasks == 3
        assert client.bulk("cancel", "workflow:orders", run_ids=[RUN_ID], rate=50.0).left == 5
        assert body_of(api)["filter"] == "workflow:orders"
        assert body_of(api)["run_ids"] == [RUN_ID]
        assert client.bulk_progress(BULK_ID).later == {"cancelled": 2, "failed_again": 1}
