"""`headrace dead-letters`, `replay` and `discard`, against an API that is played by the test."""

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner, Result

from api.schemas.dead_letter import BulkDiscardBody, BulkReplayBody, ReplayBody
from headrace.cli import command, load_commands
from headrace.cli.api import Api
from headrace.cli.command import app
from headrace.client import Client

load_commands()

AT = "2026-11-29T10:00:00Z"
LETTER: dict[str, Any] = {
    "dead_letter_id": "7",
    "kind": "task",
    "status": "parked",
    "run_id": "r",
    "workflow": "greet",
    "task": "send",
    "reason": "ERROR",
    "error": {"code": "ERROR", "message": "no stamp"},
    "created_at": AT,
}
GROUP: dict[str, Any] = {
    "fingerprint": "00ff",
    "count": 41,
    "first_at": AT,
    "last_at": AT,
    "kind": "task",
    "workflow": "greet",
    "version": 3,
    "task": "send",
    "topic": None,
    "code": "ERROR",
    "message": "no stamp [bold]",
    "sample": "7",
}
BULK: dict[str, Any] = {
    "replay_id": "b1",
    "status": "running",
    "filter": "",
    "rate": 10.0,
    "selected": 41,
    "left": 30,
    "replayed": 10,
    "refused": 1,
    "stopped": 0,
    "created_at": AT,
    "created_by": "ana",
    "finished_at": None,
    "stopped_by": None,
}
PROGRESS = {
    **BULK,
    "outcomes": {"pending": 2, "completed": 7, "failed_again": 1, "cancelled": 0},
    "refusals": [{"dead_letter_id": "9", "reason": "discarded already by bob"}],
}


class Played:
    """Gives the answers set by the test, and keeps what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return httpx.Response(200, json=self.answers[f"{request.method} {request.url.path}"])

    @property
    def query(self) -> dict[str, str]:
        return dict(self.asked[-1].url.params)

    def body(self, kind: type[msgspec.Struct]) -> dict[str, Any]:
        """What was sent, which the API must be able to read."""
        msgspec.json.decode(self.asked[-1].content, type=kind)
        return dict(json.loads(self.asked[-1].content))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()

    def connect(url: str | None, token: str | None) -> Api:
        return Api("http://api.test", token, transport=httpx.MockTransport(played))

    monkeypatch.setattr(command, "connect", connect)
    return played


def headrace(*arguments: str, code: int = 0) -> Result:
    # Wide: how long an age is in words depends on the day.
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result


def test_groups_are_listed_with_their_counts(api: Played) -> None:
    api.answers["GET /dead-letters/groups"] = {"items": [GROUP], "next": None}
    shown = headrace("dead-letters", "--group", "-w", "greet").stdout
    assert "00ff" in shown
    assert "41" in shown
    assert "send of greet version 3" in shown
    assert "no stamp [bold]" in shown
    assert api.query == {"limit": "50", "filter": "workflow:greet"}


def test_a_run_is_named_by_its_id(api: Played) -> None:
    api.answers["GET /dead-letters"] = {"items": [], "next": None}
    run_id = "019b0000-0000-7000-8000-0000000000aa"
    headrace("dead-letters", "--filter", "at:>-2h", "--run", run_id, "--status", "replayed")
    assert api.query == {"limit": "50", "filter": f"at:>-2h run:{run_id}", "status": "replayed"}


def test_one_letter_is_shown_with_its_context_and_what_became_of_it(api: Played) -> None:
    attempt = {"attempt": 1, "outcome": "failed", "error": LETTER["error"], "ended_at": AT, "worker": "host/1"}
    api.answers["GET /dead-letters/7"] = {
        **LETTER,
        "status": "replayed",
        "closed_by": "ana",
        "closed_at": AT,
        "replay_outcome": "failed_again",
        "replayed_as": "8",
        "attempts": [attempt],
        "input": {"to": "bob"},
        "headers": [{"name": "ce_id", "value": "1", "encoding": "text"}],
    }
    shown = headrace("dead-letters", "7").stdout
    for fact in ('input  {"to": "bob"}', "attempt 1  failed", "header  ce_id: 1", "failed again", "ended in 8"):
        assert fact in shown


def test_a_filter_replays_many_at_a_rate(api: Played) -> None:
    api.answers["POST /dead-letters/replay"] = BULK
    shown = headrace("replay", "--filter", "fingerprint:00ff kind:task", "--rate", "5").stdout
    assert api.body(BulkReplayBody) == {"filter": "fingerprint:00ff kind:task", "rate": 5, "dry_run": False}
    assert "10 replayed, 1 refused, 30 left of 41" in shown
    assert "headrace replay --progress b1" in shown


def test_a_dry_run_lists_what_would_be_taken(api: Played) -> None:
    answer = {"dry_run": True, "count": 41, "has_more": True, "sample": [LETTER], "dead_letter_ids": ["7"]}
    api.answers["POST /dead-letters/replay"] = api.answers["POST /dead-letters/discard"] = answer
    shown = headrace("replay", "-f", "fingerprint:00ff", "--dry-run").stdout
    assert api.body(BulkReplayBody)["dry_run"] is True
    assert "41 would be replayed, and older ones beyond" in shown
    shown = headrace("discard", "-f", "fingerprint:00ff", "--dry-run", "--reason", "x").stdout
    assert api.body(BulkDiscardBody)["dry_run"] is True
    assert "41 would be discarded" in shown


def test_progress_shows_what_became_of_the_replayed(api: Played) -> None:
    api.answers["GET /dead-letters/replays/b1"] = PROGRESS
    shown = headrace("replay", "--progress", "b1").stdout
    assert "of those replayed: 2 pending, 7 completed, 1 failed again" in shown
    assert "9  discarded already by bob" in shown
    api.answers["GET /dead-letters/replays"] = {"items": [BULK], "next": None}
    assert "10/s" in headrace("dead-letters", "--replays").stdout
    api.answers["POST /dead-letters/replays/b1/stop"] = {**PROGRESS, "status": "stopped"}
    assert "stopped: 10 replayed" in headrace("replay", "--stop", "b1").stdout


def test_many_are_discarded_by_a_filter(api: Played) -> None:
    api.answers["POST /dead-letters/discard"] = {"discarded": 41, "has_more": False}
    assert (
        "discarded: 41 dead letters"
        in headrace("discard", "--filter", "error:stamp", "-w", "a b", "--reason", "old").stdout
    )
    assert api.body(BulkDiscardBody) == {
        "filter": 'error:stamp workflow:"a b"',
        "reason": "old",
        "dry_run": False,
    }


def test_a_record_is_replayed_with_the_bytes_of_a_file(api: Played, tmp_path: Path) -> None:
    (tmp_path / "record").write_bytes(b"\xff\x00")
    api.answers["POST /dead-letters/7/replay"] = {"dead_letter_id": "7", "status": "replayed"}
    headrace("replay", "7", "--bytes", str(tmp_path / "record"))
    assert api.body(ReplayBody) == {"value_base64": "/wA="}
    headrace("replay", "7", "--bytes", str(tmp_path / "nothing"), code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay"],
        ["replay", "7", "--filter", "task:send"],
        ["replay", "--filter", "task:send", "--input", "{}"],
        ["replay", "7", "--input", "{}", "--bytes", "x"],
        ["discard", "--reason", "x"],
        ["discard", "7", "--filter", "task:send", "--reason", "x"],
    ],
    ids=" ".join,
)
def test_what_is_neither_one_nor_a_filter_is_refused_before_it_is_sent(api: Played, arguments: list[str]) -> None:
    headrace(*arguments, code=2)
    assert api.asked == []


def test_the_client_asks_the_same(api: Played) -> None:
    api.answers["GET /dead-letters/groups"] = {"items": [GROUP], "next": None}
    api.answers["GET /dead-letters"] = {"items": [LETTER], "next": None, "searched_until": None}
    api.answers["GET /dead-letters/replays/b1"] = PROGRESS
    with Client("http://api.test", transport=httpx.MockTransport(api)) as client:
        assert client.dead_letter_groups("version:3")[0].count == 41
        assert client.dead_letters("at:>-2h error:a", status="parked")[0].dead_letter_id == "7"
        assert api.query == {"filter": "at:>-2h error:a", "status": "parked", "limit": "200"}
        api.answers["POST /dead-letters/replay"] = BULK
        assert client.replay_many("fingerprint:00ff", rate=1).replay_id == "b1"
        assert api.body(BulkReplayBody) == {"filter": "fingerprint:00ff", "rate": 1}
        answer = {"dry_run": True, "count": 1, "has_more": False, "sample": [LETTER], "dead_letter_ids": ["7"]}
        api.answers["POST /dead-letters/replay"] = answer
        assert client.select_dead_letters("task:send").dead_letter_ids == ["7"]
        api.answers["POST /dead-letters/discard"] = {"discarded": 2, "has_more": False}
        assert client.discard_many("old", "task:send") == 2
        assert client.bulk_replay("b1").outcomes["completed"] == 7
