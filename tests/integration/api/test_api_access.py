"""Who may call what: the gate before every route, tokens, logins, and the audit."""

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import psycopg
import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import SecretStr

from api import access, approval_links, approvals, console, delegations, health, sessions, tasks, tokens, views
from api.app import create_app
from api.settings import ApiSettings
from headrace.errors import ConfigurationError
from state.tokens import Scope, create_token, digest
from tests.caller import HEADERS, TOKEN

OPEN = {
    health.health, health.metrics, sessions.follow_code, sessions.log_in, approval_links.show, approval_links.decide,
    console.root, console.without_slash, console.serve,
}  # fmt: skip
ADMIN = {tokens.create, tokens.list_all, tokens.revoke, tokens.list_acts, approval_links.make}
APPROVE = {
    approvals.approve, approvals.reject, approvals.comment, tasks.decide_task, delegations.make, delegations.end,
}  # fmt: skip
READ = {sessions.create_code, sessions.log_out, views.save, views.change, views.delete}
"""What writes only for whoever asks."""
IDS = {
    "run_id": "0198c2d4-0000-7000-8000-000000000000",
    "task_id": "0198c2d4-0000-7000-8000-000000000000.a",
    "version": "1",
    "sha256": "0" * 64,
}


SPELLINGS = [
    "//runs", "/runs/", "/RUNS", "/runs/health", "/runs;/health", "/runs%2f", "/health/../runs", "/health/%2e%2e/runs",
    "/console/../runs", "/runs?x=/health", "/runs#/health", "/docs/health", "/.//runs",
]  # fmt: skip
ODD_HEADERS = [
    {}, {"X-HTTP-Method-Override": "GET"}, {"X-Original-URL": "/health"}, {"X-Forwarded-For": "127.0.0.1"},
]  # fmt: skip


def routes(app):
    return [context.original_route for context in iter_route_contexts(app.routes)]


def known(route):
    """A route that has the dependency."""
    assert isinstance(route, APIRoute), f"{route} is a route without the dependency"
    return route


def calls(app):
    """Every (method, address, route) there is, with something for each parameter."""
    for context in iter_route_contexts(app.routes):
        path = context.path
        for part in [part for part in path.split("/") if part.startswith("{")]:
            name = part.strip("{}").partition(":")[0]
            path = path.replace(part, IDS.get(name, "0198c2d4-0000-7000-8000-000000000000"))
        for method in sorted(context.methods or ()):
            yield method, path, known(context.original_route)


async def make(database, *scopes, name="ci", roles=(), lifetime=timedelta(hours=1)):
    """A token at the database: its row and its secret."""
    async with await psycopg.AsyncConnection.connect(database) as connection:
        return await create_token(
            connection, "default", name, [Scope(scope) for scope in scopes], roles=roles, lifetime=lifetime,
            created_by="a test",
        )  # fmt: skip


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


@asynccontextmanager
async def caller(app, base_url="http://127.0.0.1:8400", **more):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url, timeout=20, **more) as client:
        yield client


@pytest.fixture
async def anybody(app):
    async with caller(app) as client:
        yield client


# == the gate ==========================================================================================================
def test_every_route_has_the_gate_before_it(app):
    found = routes(app)
    assert len(found) > 60
    assert {known(route).endpoint for route in found if app.state.wiring.gate.need(route) is None} == OPEN


async def test_nobody_gets_through_without_a_token_but_to_what_is_open(app, anybody):
    told = 0
    for method, path, route in calls(app):
        response = await anybody.request(method, path, follow_redirects=False)
        if route.endpoint in OPEN:
            assert response.status_code != 401 or route.endpoint is sessions.log_in, (method, path)
            continue
        assert response.status_code == 401, (method, path, response.text)
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert response.json()["code"] == "HR-1030"
        told += 1
    assert told > 55


async def test_no_spelling_of_an_address_leads_past_the_gate(anybody):
    for path in SPELLINGS:
        for headers in ODD_HEADERS:
            response = await anybody.request("GET", httpx.URL(f"http://127.0.0.1:8400{path}"), headers=headers)
            assert response.status_code in (401, 404) or "items" not in response.text, path


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer hr_nobody", "Basic aHI6aHI=", f"bearer{TOKEN}", f"Bearer {TOKEN}x", "Bearer é"],
)
async def test_what_is_no_token_is_refused(anybody, given):
    response = await anybody.get("/runs", headers={"Authorization": given.encode("latin-1")})
    assert response.status_code == 401


async def test_a_scope_is_asked_for_each_route(app, anybody, database):
    """The whole matrix: every route with every scope alone."""
    secrets = {}
    for scope in Scope:
        _, secrets[scope] = await make(database, scope, name=scope)
    for method, path, route in calls(app):
        if route.endpoint in OPEN or path.endswith("events"):
            continue
        reads = method == "GET" or route.endpoint in READ
        usual = Scope.READ if reads else Scope.OPERATE
        needed = Scope.ADMIN if route.endpoint in ADMIN else Scope.APPROVE if route.endpoint in APPROVE else usual
        for scope, secret in secrets.items():
            response = await anybody.request(method, path, headers=bearer(secret))
            if scope is needed:
                assert response.status_code not in (401, 403), (method, path, scope, response.text)
            else:
                assert response.status_code == 403, (method, path, scope, response.text)
                assert repr(needed.value) in response.json()["detail"]


async def test_whoever_reads_keeps_views_and_shares_none(anybody, database):
    _, reader = await make(database, Scope.READ, name="reader")
    _, both = await make(database, Scope.READ, Scope.OPERATE, name="both")
    mine, shared = {"name": "mine", "filter": "is:open"}, {"name": "ours", "is_shared": True}
    made = await anybody.post("/views", json=mine, headers=bearer(reader))
    assert (made.status_code, made.json()["owner"]) == (201, "reader")
    assert (await anybody.post("/views", json=shared, headers=bearer(reader))).status_code == 403
    changed = await anybody.put(f"/views/{made.json()['view_id']}", json=shared, headers=bearer(reader))
    assert changed.status_code == 403
    assert (await anybody.post("/views", json=shared, headers=bearer(both))).status_code == 201
    names = [view["name"] for view in (await anybody.get("/views", headers=bearer(reader))).json()["items"]]
    assert names[-2:] == ["mine", "ours"]


async def test_the_parts_of_the_engine_are_told_to_those_who_are_known(anybody, engine):
    with engine.connection.cursor() as cursor:
        cursor.execute("INSERT INTO relay_owner (slot, owner, epoch, renewed_at) VALUES ('s', 'host/1', 1, now())")
    assert (await anybody.get("/health")).json()["relay"] is None
    assert (await anybody.get("/health", headers=bearer("hr_wrong"))).json()["relay"] is None
    assert (await anybody.get("/health", headers=HEADERS)).json()["relay"]["owner"] == "host/1"


# == tokens ============================================================================================================
async def test_a_token_is_made_used_noted_and_revoked(api, anybody, app, database, monkeypatch):
    made = await api.post("/tokens", json={"name": "ci", "scopes": ["read", "operate"], "expires": "90d"})
    assert made.status_code == 201
    token, secret = made.json()["token"], made.json()["secret"]
    assert secret.startswith("hr_")
    assert len(secret) > 40
    assert (await anybody.get("/runs", headers=bearer(secret))).status_code == 200
    listed = await api.get("/tokens")
    assert secret not in listed.text
    assert [(each["name"], each["scopes"], each["created_by"]) for each in listed.json()["items"]] == [
        ("ci", ["operate", "read"], "local")
    ]

    revoked = await api.post(f"/tokens/{token['token_id']}/revoke", json={"reason": "it leaked"})
    assert revoked.json()["revoked_by"] == "local"
    again = await api.post(f"/tokens/{token['token_id']}/revoke", json={})
    assert again.json()["revoked_at"] == revoked.json()["revoked_at"]
    assert (await anybody.get("/runs", headers=bearer(secret))).status_code == 401
    with psycopg.connect(database) as connection:
        ((kept, used),) = connection.execute("SELECT secret_hash, last_used_at FROM api_token").fetchall()
    assert bytes(kept) == digest(secret)
    assert used is not None


async def test_a_name_is_taken_until_its_token_is_revoked(api):
    first = await api.post("/tokens", json={"name": "ci", "scopes": ["read"]})
    assert (await api.post("/tokens", json={"name": "ci", "scopes": ["read"]})).status_code == 409
    await api.post(f"/tokens/{first.json()['token']['token_id']}/revoke", json={})
    assert (await api.post("/tokens", json={"name": "ci", "scopes": ["read"]})).status_code == 201


@pytest.mark.parametrize(
    "given",
    [
        {"name": "ci", "scopes": []},
        {"name": "ci", "scopes": ["root"]},
        {"name": "", "scopes": ["read"]},
        {"name": "ci", "scopes": ["read"], "expires": "never"},
        {"name": "ci", "scopes": ["read"], "expires": "0s"},
        {"name": "ci", "scopes": ["read"], "expires": "9999d"},
    ],
)
async def test_a_token_that_makes_no_sense_is_refused(api, given):
    assert (await api.post("/tokens", json=given)).status_code == 422


async def test_the_secret_of_a_token_is_stored_with_no_idempotency_key(api, engine):
    response = await api.post("/tokens", json={"name": "ci", "scopes": ["read"]}, headers={"Idempotency-Key": "k"})
    assert response.status_code == 422
    assert (engine.count("api_token"), engine.count("request_key")) == (0, 0)


async def test_an_expired_token_is_refused(anybody, database):
    _, secret = await make(database, "read")
    with psycopg.connect(database) as connection:
        connection.execute(
            "UPDATE api_token SET created_at = now() - interval '2 d', expires_at = now() - interval '1 s'"
        )
    assert (await anybody.get("/runs", headers=bearer(secret))).status_code == 401


async def test_a_token_of_another_namespace_is_none(database, settings):
    _, secret = await make(database, "read")
    app = create_app(settings.model_copy(update={"namespace": "other"}))
    async with app.router.lifespan_context(app), caller(app) as client:
        assert (await client.get("/runs", headers=bearer(secret))).status_code == 401


async def test_a_known_token_costs_no_look_at_the_database(app, anybody, database, monkeypatch):
    _, secret = await make(database, "read")
    looked = []
    find = access.find_token

    async def counted(*arguments):
        looked.append(1)
        return await find(*arguments)

    monkeypatch.setattr(access, "find_token", counted)
    for _ in range(50):
        assert (await anybody.get("/runs", headers=bearer(secret))).status_code == 200
    assert len(looked) <= 2


async def test_a_start_by_token_asks_the_database_no_more_than_one_by_the_local_token(
    anybody, api, database, definitions, monkeypatch
):
    await api.publish(definitions["orders"])
    _, secret = await make(database, "operate")
    asked, execute = [], psycopg.AsyncCursor.execute

    async def counted(self, query, *arguments, **more):
        asked.append(query)
        return await execute(self, query, *arguments, **more)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counted)
    counts = {}
    for name, headers in (("local", HEADERS), ("token", bearer(secret))):
        for _ in range(3):  # the first one looks, and what the driver prepares is prepared
            asked.clear()
            started = await anybody.post("/workflows/orders/runs", json={"input": {"n": 1}}, headers=headers)
            assert started.status_code == 201
        counts[name] = len(asked)
    assert counts["token"] == counts["local"] > 0


async def test_a_token_revoked_elsewhere_is_refused_once_its_time_is_over(app, anybody, database, monkeypatch):
    _, secret = await make(database, "read")
    assert (await anybody.get("/runs", headers=bearer(secret))).status_code == 200
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE api_token SET revoked_at = now(), revoked_by = 'another process'")
    monkeypatch.setattr(access, "FORGOTTEN_SECONDS", 0.0)
    assert (await anybody.get("/runs", headers=bearer(secret))).status_code == 401


async def test_what_is_known_of_a_token_is_read_again_while_calls_go_on(app, anybody, database, monkeypatch):
    _, secret = await make(database, "read")
    assert (await anybody.get("/runs", headers=bearer(secret))).status_code == 200
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE api_token SET revoked_at = now(), revoked_by = 'another process'")
    monkeypatch.setattr(access, "FRESH_SECONDS", 0.0)
    async with asyncio.timeout(10):
        while (await anybody.get("/runs", headers=bearer(secret))).status_code != 401:
            await asyncio.gather(*app.state.wiring.gate._tasks)


async def test_without_postgres_a_known_token_is_told_that_and_an_unknown_one_too(wire, database, settings):
    app = create_app(settings.model_copy(update={"postgres": await wire.open(database)}))
    _, secret = await make(database, "read")
    async with app.router.lifespan_context(app), caller(app) as client:
        assert (await client.get("/runs", headers=bearer(secret))).status_code == 200
        wire.cut()
        for each in (secret, "hr_nobody"):
            assert (await client.get("/runs", headers=bearer(each))).status_code == 503


# == logins ============================================================================================================
async def test_a_link_logs_a_browser_in_once(anybody, api, engine):
    made = (await api.post("/login-codes")).json()
    first = await anybody.get(made["path"])
    assert (first.status_code, first.headers["location"]) == (303, "/console/")
    cookie = first.headers["set-cookie"]
    assert cookie.startswith("headrace-8400=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert (await anybody.get("/runs")).status_code == 200
    async with caller(anybody._transport.app) as other:
        again = await other.get(made["path"])
        assert "set-cookie" not in again.headers
        assert (await other.get("/runs")).status_code == 401
    assert made["path"].partition("=")[2] not in str(engine.connection.execute("SELECT * FROM api_session").fetchall())


async def test_a_write_by_cookie_needs_the_token_of_its_page_and_its_origin(anybody, api, definitions):
    await api.publish(definitions["orders"])
    await anybody.get((await api.post("/login-codes")).json()["path"])
    session = (await anybody.get("/session")).json()
    assert (session["name"], session["local"]) == ("local", True)
    write = {"url": "/workflows/orders/runs", "json": {}}
    assert (await anybody.post(**write)).status_code == 403
    assert (await anybody.post(**write, headers={"X-CSRF-Token": "0" * 64})).status_code == 403
    right = {"X-CSRF-Token": session["csrf_token"]}
    assert (await anybody.post(**write, headers={**right, "Origin": "http://evil.example"})).status_code == 403
    assert (await anybody.post(**write, headers={**right, "Origin": "http://127.0.0.1:8400"})).status_code == 201
    assert (await anybody.post(**write, headers=right)).status_code == 201


async def test_a_token_logs_a_browser_in_and_its_end_ends_the_session(anybody, api, database):
    row, secret = await make(database, "read", name="ada", roles=["lead"])
    assert (await anybody.post("/login", json={"token": "hr_nobody"})).status_code == 401
    assert (await anybody.post("/login", json={"token": secret})).status_code == 204
    session = (await anybody.get("/session")).json()
    assert (session["name"], session["scopes"], session["roles"], session["local"]) == (
        "ada",
        ["read"],
        ["lead"],
        False,
    )
    assert (await anybody.post("/workflows", headers={"X-CSRF-Token": session["csrf_token"]})).status_code == 403
    await api.post(f"/tokens/{row.token_id}/revoke", json={})
    assert (await anybody.get("/session")).status_code == 401


async def test_a_login_ends_when_asked_and_when_its_time_is_over(app, anybody, api, engine):
    for end in ("logout", "time"):
        await anybody.get((await api.post("/login-codes")).json()["path"])
        session = (await anybody.get("/session")).json()
        if end == "logout":
            cookie = dict(anybody.cookies)
            left = await anybody.post("/logout", headers={"X-CSRF-Token": session["csrf_token"]})
            assert left.status_code == 204
            anybody.cookies = httpx.Cookies(cookie)  # somebody kept it
        else:
            engine.connection.execute("UPDATE api_session SET expires_at = now() - interval '1 s'")
            app.state.wiring.gate.forget()
        assert (await anybody.get("/runs")).status_code == 401
        anybody.cookies.clear()


async def test_a_login_of_the_local_token_is_none_where_there_is_no_such_token(api, database, settings):
    path = (await api.post("/login-codes")).json()["path"]
    app = create_app(settings.model_copy(update={"api_local_token": None}))
    async with app.router.lifespan_context(app), caller(app) as client:
        await client.get(path)
        assert (await client.get("/runs")).status_code == 401
        assert (await client.get("/runs", headers=HEADERS)).status_code == 401


async def test_away_from_the_loopback_the_cookie_travels_encrypted_alone(database, settings):
    await make(database, "read", name="ada")
    _, secret = await make(database, "read")
    app = create_app(exposed(settings, api_names=("engine.test",)))
    async with app.router.lifespan_context(app), caller(app, "https://engine.test") as client:
        given = (await client.post("/login", json={"token": secret})).headers["set-cookie"]
        assert given.startswith("__Host-headrace=")
        assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in given.split(";")}
        assert (await client.get("/runs")).status_code == 200


# == beyond the loopback ===============================================================================================
def exposed(settings, **more):
    return settings.model_copy(update={"api_host": "0.0.0.0", "api_local_token": None, **more})  # noqa: S104  # the subject


async def test_others_are_served_only_once_somebody_can_say_who_they_are(database, settings):
    app = create_app(exposed(settings))
    with pytest.raises(ConfigurationError, match=r"state\.tokens create"):
        async with app.router.lifespan_context(app):
            pass
    _, secret = await make(database, "read")
    app = create_app(exposed(settings))
    async with app.router.lifespan_context(app), caller(app, "http://10.0.0.5:8400") as client:
        assert (await client.get("/runs")).status_code == 401
        assert (await client.get("/runs", headers=bearer(secret))).status_code == 200
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=bearer(secret))).status_code == 200


def test_the_local_token_is_for_the_loopback(settings):
    with pytest.raises(ConfigurationError, match="HEADRACE_API_LOCAL_TOKEN"):
        create_app(settings.model_copy(update={"api_host": "0.0.0.0"}))  # noqa: S104  # to be refused
    with pytest.raises(ValueError, match="32 characters"):
        ApiSettings(api_local_token=SecretStr("short"))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("engine.test", 401), ("ENGINE.TEST:8400", 401), ("10.1.2.3", 401), ("127.0.0.1", 401), ("evil.example", 403),
        ("engine.test.evil.example", 403),
    ],
)  # fmt: skip
async def test_only_names_that_are_ours_are_answered(database, settings, host, status):
    await make(database, "read")
    app = create_app(exposed(settings, api_names=("engine.test",)))
    async with app.router.lifespan_context(app), caller(app) as client:
        assert (await client.get("/runs", headers={"Host": host})).status_code == status


def test_names_are_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("HEADRACE_API_NAMES", "engine.test, Other.Test")
    assert ApiSettings().api_names == ("engine.test", "other.test")


# == the record ========================================================================================================
async def test_who_acts_is_who_holds_the_token_whatever_they_say(anybody, api, definitions, database, engine):
    await api.publish(definitions["orders"])
    row, secret = await make(database, "read", "operate", "admin", name="ci")
    said = {**bearer(secret), "Headrace-Actor": "the boss"}
    run_id = (await anybody.post("/workflows/orders/runs", json={}, headers=said)).json()["run_id"]
    started = (await anybody.get(f"/runs/{run_id}/history", headers=said)).json()["items"][0]
    assert (started["actor"], started["detail"]["address"]) == ("ci", "127.0.0.1")
    await anybody.post(f"/runs/{run_id}/cancel", json={"reason": "wrong order"}, headers={**said, "X-Request-ID": "r1"})
    first = (await anybody.get("/audit", headers=said)).json()["items"][0]
    assert first.pop("audit_id")
    assert first.pop("at")
    assert first == {
        "actor": "ci", "token_id": str(row.token_id), "act": "runs.cancel", "target": f"/runs/{run_id}/cancel",
        "reason": "wrong order", "address": "127.0.0.1", "request_id": "r1",
    }  # fmt: skip


async def test_the_roles_are_those_of_the_token_whatever_is_said(anybody, api, definitions, database, engine):
    """Whoever may approve at all may not approve everything."""
    await api.publish(definitions["release"])
    run_id = await api.start("release")
    engine.complete(run_id, "build")
    (asked,) = (await api.read("/approvals"))["items"]
    answers = {}
    for name, roles in (("bob", []), ("eve", ["intern"]), ("ada", ["lead"])):
        _, secret = await make(database, "approve", name=name, roles=roles)
        said = {**bearer(secret), "Headrace-Actor": "lead", "Headrace-Roles": "lead"}
        response = await anybody.post(f"/approvals/{asked['approval_id']}/approve", json={}, headers=said)
        answers[name] = response.status_code
    assert answers == {"bob": 403, "eve": 403, "ada": 200}
    assert (await api.read(f"/approvals/{asked['approval_id']}"))["decided_by"] == "ada"


async def test_the_owner_of_the_machine_says_who_acts(api, definitions):
    await api.publish(definitions["release"])
    run_id = (await api.post("/workflows/release/runs", json={}, headers={"Headrace-Actor": "ada"})).json()["run_id"]
    assert (await api.read(f"/runs/{run_id}/history"))["items"][0]["actor"] == "ada"


async def test_what_was_refused_or_only_foreseen_is_no_act(api, definitions, engine):
    await api.publish(definitions["release"])
    run_id = await api.start("release")
    before = engine.count("audit")
    assert (await api.post(f"/runs/{run_id}/resume", json={})).status_code == 409
    engine.fail(run_id, "build")
    assert (await api.post(f"/runs/{run_id}/rerun", json={"dry_run": True})).status_code == 200
    assert engine.count("audit") == before == 1  # the publish


async def test_a_repeated_request_is_one_act(api, definitions, engine):
    await api.publish(definitions["release"])
    run_id = await api.start("release")
    for _ in range(2):
        await api.post(f"/runs/{run_id}/pause", json={}, headers={"Idempotency-Key": "once"})
    assert [each["act"] for each in (await api.read("/audit"))["items"]] == ["runs.pause", "workflows.publish_workflow"]


async def test_the_record_is_searched_by_who_what_and_on_what(api, definitions):
    await api.publish(definitions["release"])
    runs = [await api.start("release") for _ in range(2)]
    for run_id, who in zip(runs, ("ada", "eve"), strict=True):
        await api.post(f"/runs/{run_id}/pause", json={}, headers={"Headrace-Actor": who})
    assert [each["actor"] for each in (await api.read("/audit", actor="eve"))["items"]] == ["eve"]
    assert [each["target"] for each in (await api.read("/audit", target=runs[0]))["items"]] == [
        f"/runs/{runs[0]}/pause"
    ]
    pages = await api.pages("/audit", act="runs.pause", limit=1)
    assert [[each["actor"] for each in page] for page in pages] == [["eve"], ["ada"]]
    assert (await api.read("/audit", actor="ad"))["items"] == []


# == what a browser is told ============================================================================================
async def test_answers_run_nothing_and_stand_in_no_frame(api):
    for path in ("/runs", "/docs", "/openapi.json", "/nope"):
        policy = (await api.get(path)).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src" not in policy


async def test_the_page_of_routes_loads_nothing(api):
    page = (await api.get("/docs")).text
    assert "/runs/{run_id}/cancel" in page
    assert "<script" not in page
    assert "src=" not in page
    assert "//" not in page.replace("/openapi.json", "")


# == the first one =====================================================================================================
def test_the_first_token_is_made_at_the_database(database, settings, tmp_path):
    root = Path(create_app.__code__.co_filename).parents[1]
    command = [sys.executable, "-m", "state.tokens", "create", "root", "--scope", "admin", "--expires", "1d"]
    environment = {"HEADRACE_POSTGRES": database, "PATH": ""}

    def run(*more):
        return subprocess.run([*command, *more], capture_output=True, text=True, env=environment, cwd=root, check=False)

    done = run("--file", str(tmp_path / "token"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    secret = (tmp_path / "token").read_text()
    assert secret not in done.stdout
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT name, scopes, secret_hash FROM api_token").fetchall()
        acts = connection.execute("SELECT actor, act FROM audit").fetchall()
    assert [(name, scopes, bytes(kept)) for name, scopes, kept in rows] == [("root", ["admin"], digest(secret))]
    assert acts == [("database", "create_token")]
    taken = run()
    assert taken.returncode == 1
    assert taken.stderr.startswith("HR-1005")
