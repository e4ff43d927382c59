"""Cases as a caller of the API meets them, on a real Postgres; the run agent is driven by the test."""

import asyncio
import unicodedata
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from uuid_utils import uuid7

from headrace.messages import PAYLOAD_BYTES_MAX, Lost, Started
from tests.conformance.world import World, new_session

ONE: dict[str, Any] = {"name": "one", "tasks": {"a": {"run": "t.a", "retry": 1}}}
ASK: dict[str, Any] = {
    "name": "ask",
    "tasks": {"build": {"run": "t.build"}, "ok": {"needs": ["build"], "approval": {"title": "ok?"}}},
}
MANUAL: dict[str, Any] = {"name": "manual", "tasks": {"a": {"run": "t.a", "effect": "manual"}}}
ZERO, HALF = '"a\\u0000b"', '"\\ud800"'
JSON = {"content-type": "application/json"}


@pytest.fixture
async def api(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with world.api() as client:
        for definition in (ONE, ASK, MANUAL):
            (await client.post("/workflows", json=definition)).raise_for_status()
        yield client


async def start(api: httpx.AsyncClient, workflow: str, **more: Any) -> str:
    response = await api.post(f"/workflows/{workflow}/runs", json={"input": 1, **more})
    return str(response.raise_for_status().json()["run_id"])


async def park(world: World, api: httpx.AsyncClient) -> str:
    """A run whose task waits for a person to say what became of its effect."""
    run_id = await start(api, "manual")
    await world.settle()
    world.say(run_id, Started(*world.current(run_id), session=new_session(), claim=True))
    world.say(run_id, Lost(*world.current(run_id), begun=True))
    await world.settle()
    return run_id


async def bury(world: World, api: httpx.AsyncClient) -> tuple[str, str]:
    """A failed run, and its dead letter."""
    run_id = await start(api, "one")
    await world.settle()
    await world.fail(run_id)
    ((letter,),) = world.query("SELECT dead_letter_id::text FROM dead_letter WHERE run_id = %s", run_id)
    return run_id, letter


# == starts ============================================================================================================
@pytest.mark.parametrize("how", ["a key in the body", "a key in the header"])
async def test_b73_two_api_processes_that_get_one_key_fifty_times_make_one_run(
    world: World, api: httpx.AsyncClient, how: str
) -> None:
    async with world.api() as other:

        def start_by(client: httpx.AsyncClient) -> Any:
            if how == "a key in the body":
                return client.post("/workflows/one/runs", json={"input": 1, "key": "k"})
            return client.post("/workflows/one/runs", json={"input": 1}, headers={"Idempotency-Key": "k"})

        answers = await asyncio.gather(*(start_by(client) for client in (api, other) * 25))
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert world.query("SELECT count(*) FROM run") == [(1,)]


async def test_b75_racing_starts_of_one_id_meet_no_unique_violation_in_either_of_two_processes(
    world: World, api: httpx.AsyncClient
) -> None:
    ids = [str(uuid7()) for _ in range(5)]
    async with world.api() as other:
        answers = await asyncio.gather(
            *(
                client.post("/workflows/one/runs", json={"input": 1, "run_id": run_id})
                for run_id in ids
                for client in (api, other) * 4
            )
        )
    assert sorted(answer.status_code for answer in answers) == [200] * 35 + [201] * 5
    assert world.query("SELECT run_id::text FROM run ORDER BY 1") == [(run_id,) for run_id in sorted(ids)]
    await world.settle()
    for run_id in ids:
        await world.succeed(run_id)
        assert world.has_gapless_history(run_id)


@pytest.mark.parametrize("ended", ["completed", "failed", "cancelled"])
async def test_b76_a_start_with_the_key_of_an_ended_run_says_so_and_starts_nothing(
    world: World, api: httpx.AsyncClient, ended: str
) -> None:
    run_id = await start(api, "one", key="k")
    await world.settle()
    if ended == "completed":
        await world.succeed(run_id)
    elif ended == "failed":
        await world.fail(run_id)
    else:
        await api.post(f"/runs/{run_id}/cancel", json={})
        await world.settle()
    before = world.query("SELECT run_id, row_version, kind FROM run_event ORDER BY 1, 2")
    again = await api.post("/workflows/one/runs", json={"input": 1, "key": "k"})
    assert (again.status_code, again.json()["run_id"], again.json()["status"]) == (200, run_id, ended)
    assert world.query("SELECT run_id, row_version, kind FROM run_event ORDER BY 1, 2") == before


# == decisions =========================================================================================================
async def test_b78_a_decision_before_its_time_is_refused_and_one_at_its_time_counts(
    world: World, api: httpx.AsyncClient
) -> None:
    asked, manual = await start(api, "ask"), await start(api, "manual")
    await world.settle()
    early = [
        (f"/tasks/{asked}.ok/approval", {"decision": "approve"}),
        (f"/tasks/{asked}.build/approval", {"decision": "approve"}),
        (f"/tasks/{asked}.ok/resolve", {"outcome": "happened"}),
        (f"/tasks/{manual}.a/resolve", {"outcome": "did_not_happen"}),
        (f"/runs/{asked}/release", {}),
    ]
    for path, body in early:
        assert (await api.post(path, json=body)).status_code == 409, path
    assert world.query("SELECT count(*) FROM inbox") == [(0,)]
    await world.succeed(asked)
    (approved,) = [await api.post(path, json=body) for path, body in early[:1]]
    assert approved.status_code == 200
    await world.settle()
    assert world.status(asked) == "completed"
    assert (await api.post(early[0][0], json=early[0][1])).status_code == 409


async def test_b78_an_approval_that_the_agent_has_not_read_yet_is_kept_over_its_death(
    world: World, api: httpx.AsyncClient
) -> None:
    run_id = await start(api, "ask")
    await world.settle()
    await world.succeed(run_id)
    answer = await api.post(f"/tasks/{run_id}.ok/approval", json={"decision": "approve"})
    assert answer.status_code == 200
    world.committed_records()  # its wake-up is lost, and so is the agent
    await world.streams("the next life")
    assert world.status(run_id) == "waiting"
    world.query("UPDATE inbox SET said_at = now() - interval '6 s'")
    assert await world.one.sweep("requests") == 1
    await world.settle()
    assert world.status(run_id) == "completed"


ROWS = """
    SELECT (SELECT count(*) FROM run), (SELECT count(*) FROM inbox), (SELECT count(*) FROM signal),
           (SELECT count(*) FROM posted_signal)
"""


# == odd data ==========================================================================================================
@pytest.mark.parametrize("odd", [ZERO, HALF], ids=["U+0000", "half a surrogate"])
@pytest.mark.parametrize("is_key", [False, True], ids=["value", "key"])
async def test_b83_what_postgres_cannot_keep_is_refused_at_every_door(
    world: World, api: httpx.AsyncClient, odd: str, is_key: bool
) -> None:
    asked, parked = await start(api, "ask"), await park(world, api)
    await world.settle()
    await world.succeed(asked)
    _, letter = await bury(world, api)
    data = f"{{{odd}: 1}}" if is_key else f"[{odd}]"
    doors = {
        "/workflows/one/runs": ["input"],
        f"/dead-letters/{letter}/replay": ["input"],
        f"/tasks/{parked}.a/resolve": ["output"],
        "/subscriptions": ["input"],
        "/signals": ["data"],
        f"/runs/{asked}/signals": ["data"],
    }
    words = {
        "/workflows/one/runs": ["key", "run_id"],
        f"/runs/{asked}/cancel": ["reason"],
        f"/tasks/{asked}.ok/approval": ["comment"],
        f"/tasks/{parked}.a/resolve": ["comment", "outcome"],
        f"/dead-letters/{letter}/discard": ["reason"],
        "/dead-letters/discard": ["reason"],
        "/subscriptions": ["name", "topic", "workflow", "filter"],
        "/workflows": ["name", "description"],
        "/signals": ["name", "key", "id"],
        f"/runs/{asked}/signals": ["name", "key", "id"],
    }
    needed = {
        "outcome": '"happened"', "decision": '"approve"', "name": '"s"', "topic": '"t"', "workflow": '"one"',
        "tasks": '{"a": {"run": "r"}}', "filter": "{}",
    }  # fmt: skip
    needs = {
        "signals": ["name"],
        "resolve": ["outcome"],
        "approval": ["decision"],
        "subscriptions": ["name", "topic", "workflow"],
    }
    before = world.query(ROWS)
    for table, value in ((doors, data), (words, data if is_key else odd)):
        for path, fields in table.items():
            for field in fields:
                last = path.rpartition("/")[2]
                others = [name for name in needs.get(last, []) if name != field]
                if path == "/workflows":
                    others = [name for name in ("name", "tasks") if name != field]
                body = ", ".join([f'"{field}": {value}', *(f'"{name}": {needed[name]}' for name in others)])
                response = await api.post(path, content=f"{{{body}}}".encode(), headers=JSON)
                assert response.status_code == 422, (path, field, response.text)
    assert world.query(ROWS) == before


@pytest.mark.parametrize("odd", ["a\0b", "\x01", "\x7f"])
async def test_b83_what_cannot_be_kept_is_refused_in_urls_and_headers(
    world: World, api: httpx.AsyncClient, odd: str
) -> None:
    name = quote(odd)
    paths = [
        f"/workflows/{name}", f"/runs/{name}", f"/tasks/{name}.a", f"/dead-letters/{name}", f"/approvals/{name}",
        f"/dead-letters?reason={name}", f"/dead-letters?workflow={name}", f"/runs?page={name}", f"/runs?status={name}",
        f"/workflows/{name}/runs", f"/dead-letters/groups?page={name}", f"/dead-letters/replays/{name}",
    ]  # fmt: skip
    for path in paths:
        assert (await api.get(path)).status_code in (200, 404, 422), path


@pytest.mark.parametrize(("more", "status"), [(-1, 2), (0, 2), (1, 4)])
async def test_b85_the_limit_of_a_payload_is_the_same_at_every_door(
    world: World, api: httpx.AsyncClient, more: int, status: int
) -> None:
    text = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2 + more) + b'"'
    _, letter = await bury(world, api)
    parked = await park(world, api)
    answers = [
        await api.post("/workflows/one/runs", content=b'{"input":' + text + b"}", headers=JSON),
        await api.post(f"/dead-letters/{letter}/replay", content=b'{"input":' + text + b"}", headers=JSON),
        await api.post(
            f"/tasks/{parked}.a/resolve", content=b'{"outcome":"happened","output":' + text + b"}", headers=JSON
        ),
    ]  # fmt: skip
    assert [answer.status_code // 100 for answer in answers] == [status] * 3, [a.text[:200] for a in answers]
    await world.settle()
    assert all(len(record.value() or b"") < 1_000_000 for log in world.logs.values() for record in log)
    if status == 2:
        assert world.status(parked) == "completed"


ODD_NAMES = [
    "a/b", "a#b", "a%2Fb", "../x", "é", unicodedata.normalize("NFD", "é"), "🚰", "a\u200fb", "a" * 300, "a ", "a|b",
    "'", "<b>",
]  # fmt: skip


async def test_b89_a_name_makes_the_round_trip_or_is_refused_at_creation(world: World, api: httpx.AsyncClient) -> None:
    for name in ("plain", *ODD_NAMES):
        made = await api.post("/subscriptions", json={"name": name, "topic": "shop.orders", "workflow": "one"})
        assert made.status_code == 201 or (made.status_code == 422 and name != "plain"), name
        listed = (await api.get("/subscriptions")).json()["items"]
        assert [item["name"] for item in listed] == ([name] if made.status_code == 201 else [])
        if listed:
            assert (await api.delete(f"/subscriptions/{quote(name, safe='')}")).status_code == 204, name


async def test_b89_a_workers_name_is_shown_as_it_is_wherever_it_stands(world: World, api: httpx.AsyncClient) -> None:
    for name in ODD_NAMES:
        run_id = await start(api, "one")
        await world.settle()
        world.beat(session := new_session(), 1, (run_id, 0, 1), worker=name)
        for event in (Started(*world.current(run_id), session=session, worker=name), Lost(*world.current(run_id))):
            world.say(run_id, event)
            await world.settle()
        assert name in [item["worker"] for item in (await api.get("/workers")).json()["items"]]
        attempts = (await api.get(f"/tasks/{run_id}.a/attempts")).json()["items"]
        assert [attempt["worker"] for attempt in attempts] == [name]
        assert name in [item["actor"] for item in (await api.get(f"/runs/{run_id}/history")).json()["items"]]


async def test_b89_two_spellings_of_one_letter_are_two_keys(world: World, api: httpx.AsyncClient) -> None:
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    first, second = [await start(api, "one", key=key) for key in (composed, decomposed)]
    assert first != second
    assert [await start(api, "one", key=key) for key in (composed, decomposed)] == [first, second]


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"A": ["A"]}, "A -> A"), ({"A": ["B"], "B": ["A"]}, "A -> B -> A"), ({"A": ["nobody"]}, "nobody"),
        ({"A": ["C"], "B": ["A"], "C": ["B"]}, "A -> C -> B -> A"),
    ],
)  # fmt: skip
async def test_b90_a_cycle_is_refused_over_http_and_named(
    world: World, api: httpx.AsyncClient, needs: dict[str, list[str]], said: str
) -> None:
    tasks = {name: {"run": "r", "needs": of} for name, of in needs.items()}
    response = await api.post("/workflows", json={"name": "knot", "tasks": tasks})
    assert response.status_code == 422
    assert said in response.text
    assert (await api.get("/workflows/knot")).status_code == 404


async def test_b90_a_task_named_twice_is_refused_over_http(world: World, api: httpx.AsyncClient) -> None:
    twice = b'{"name": "twice", "tasks": {"a": {"run": "r"}, "a": {"run": "s"}}}'
    response = await api.post("/workflows", content=twice, headers=JSON)
    assert response.status_code == 422
    assert "a" in msgspec.json.decode(response.content)["errors"][0]["path"]


# == dead letters ======================================================================================================
@pytest.mark.parametrize("acts", ["replay, replay", "replay, discard", "discard, replay", "discard, discard"])
async def test_b98_a_letter_leaves_its_place_once_whoever_acts_first(
    world: World, api: httpx.AsyncClient, acts: str
) -> None:
    run_id, letter = await bury(world, api)
    before = len(world.commands(run_id))
    paths = [f"/dead-letters/{letter}/{act}" for act in acts.split(", ")]
    bodies = [{"reason": "a test"} if path.endswith("discard") else {} for path in paths]
    async with world.api() as other:
        answers = await asyncio.gather(
            *(client.post(path, json=body) for client in (api, other) for path, body in zip(paths, bodies, strict=True))
        )
    assert sorted(answer.status_code // 100 for answer in answers) == [2, 4, 4, 4]
    assert {answer.status_code for answer in answers if answer.status_code >= 400} == {409}
    await world.settle()
    ((status,),) = world.query("SELECT status FROM dead_letter")
    assert len(world.commands(run_id)) == before + (status == "replayed")
