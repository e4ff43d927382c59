"""Who calls, from the command line and the clients: which token goes where, and what the commands ask."""

import json
import os
from pathlib import Path

import httpx
import pytest

from headrace.cli import address
from headrace.client import Client
from tests.unit.test_cli import FakeApi, _elsewhere, api, headrace, items, problem

__all__ = ["_elsewhere", "api"]

TOKEN_ID = "0199c3f4-5a6b-7c8d-9e0f-a1b2c3d40001"


def token(**changes: object) -> dict[str, object]:
    return {
        "token_id": TOKEN_ID, "name": "ci", "scopes": ["operate", "read"], "roles": [],
        "created_at": "2026-11-29T10:00:00Z", "created_by": "ada", "expires_at": "2027-02-27T10:00:00Z",
        "revoked_at": None, "revoked_by": None, "last_used_at": None, **changes,
    }  # fmt: skip


# == which token =======================================================================================================
def test_the_token_of_a_running_dev_goes_to_its_api_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".headrace").mkdir()
    address.write_addresses(Path(".headrace"), {"api": "http://127.0.0.1:8401", "token": "hr_local"})
    assert Path(".headrace/dev.json").stat().st_mode & 0o777 == 0o600
    assert address.find_token(None, "http://127.0.0.1:8401") == "hr_local"
    assert address.find_token(None, "http://elsewhere.example") is None
    assert address.find_token("hr_given", "http://127.0.0.1:8401") == "hr_given"
    monkeypatch.setenv("HEADRACE_API_TOKEN", "hr_environment")
    assert address.find_token(None, "http://elsewhere.example") == "hr_environment"


def test_addresses_that_anybody_could_read_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".headrace").mkdir()
    Path(".headrace/dev.json.new").write_text("left behind")
    Path(".headrace/dev.json.new").chmod(0o644)
    address.write_addresses(Path(".headrace"), {"token": "hr_local"})
    assert Path(".headrace/dev.json").stat().st_mode & 0o777 == 0o600
    assert json.loads(Path(".headrace/dev.json").read_text()) == {"token": "hr_local", "pid": str(os.getpid())}


@pytest.mark.parametrize(("given", "sent"), [("hr_given", "Bearer hr_given"), (None, "Bearer hr_environment")])
def test_a_client_without_a_token_takes_the_environments(
    monkeypatch: pytest.MonkeyPatch, given: str | None, sent: str
) -> None:
    monkeypatch.setenv("HEADRACE_API_TOKEN", "hr_environment")
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"items": [], "next": None})

    with Client("http://api.test", given, transport=httpx.MockTransport(answer)) as client:
        client.workers()
    assert seen[0].headers["authorization"] == sent


@pytest.mark.parametrize(("status", "code"), [(401, "HR-1030"), (403, "HR-1030")])
def test_who_is_not_known_or_may_not_gets_an_exit_code_of_their_own(api: FakeApi, status: int, code: str) -> None:
    api.answers["GET /runs"] = problem(status, code, "this token is none, has expired or was revoked")
    refused = headrace("runs")
    assert refused.exit_code == 6
    assert "HR-1030" in headrace("runs", "--json").stderr


# == commands ==========================================================================================================
def test_a_token_is_made_and_its_secret_shown(api: FakeApi) -> None:
    api.answers["POST /tokens"] = httpx.Response(201, json={"token": token(), "secret": "hr_secret"})
    made = headrace("tokens", "create", "ci", "--scope", "read", "--role", "lead", "--expires", "7d")
    assert made.exit_code == 0
    assert made.stdout.strip().endswith("hr_secret")
    assert api.body() == {"name": "ci", "scopes": ["read"], "roles": ["lead"], "expires": "7d"}


def test_a_token_is_revoked_by_its_name(api: FakeApi) -> None:
    old = token(token_id="0199c3f4-5a6b-7c8d-9e0f-a1b2c3d40000", revoked_at="2026-11-29T10:00:00Z", revoked_by="ada")
    api.answers["GET /tokens"] = items(old, token())
    api.answers[f"POST /tokens/{TOKEN_ID}/revoke"] = httpx.Response(200, json=token(revoked_by="ada"))
    assert headrace("tokens", "revoke", "ci", "--reason", "lost").exit_code == 0
    assert api.body() == {"reason": "lost"}
    assert headrace("tokens", "revoke", "nobody").exit_code == 3


def test_tokens_and_acts_are_listed(api: FakeApi) -> None:
    api.answers["GET /tokens"] = items(token())
    assert "operate read" in headrace("tokens").output
    act = {
        "audit_id": TOKEN_ID, "at": "2026-11-29T10:00:00Z", "actor": "ada", "token_id": None, "act": "runs.cancel",
        "target": "/runs/1/cancel", "reason": "wrong order", "address": "127.0.0.1", "request_id": "r",
    }  # fmt: skip
    api.answers["GET /audit"] = items(act)
    shown = headrace("audit").output
    assert "runs.cancel" in shown
    assert "wrong order" in shown


@pytest.mark.parametrize("wrong", [("create",), ("revoke",), ("forget", "ci")])
def test_tokens_used_wrongly_says_how(api: FakeApi, wrong: tuple[str, ...]) -> None:
    refused = headrace("tokens", *wrong)
    assert refused.exit_code == 2
    assert "tokens list | create NAME | revoke NAME" in refused.stderr


def test_login_prints_a_link(api: FakeApi) -> None:
    made = {"path": "/login?code=abc", "expires_at": "2026-11-29T10:10:00Z"}
    api.answers["POST /login-codes"] = httpx.Response(201, json=made)
    assert headrace("login").output.strip().endswith("/login?code=abc")
