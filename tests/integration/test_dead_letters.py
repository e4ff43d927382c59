"""Dead letters over the API, with a run agent that the test drives: grouped, shown with their context, replayed
once."""

import asyncio
import json
import subprocess
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from uuid_utils import uuid7

from headrace.filter import parse
from headrace.messages import (
    Requested,
    Succeeded,
    effect_key,
    make_nonce,
)
from state.bulk_steps import step
from state.decisions import replay_dead_letter
from state.filter_sql import conditions_of
from state.queries.rows import AT_MAX, ID_MAX
from state.store import Rows, execute_sync
from streams.backlog import Backlog
from streams.batch import Batch
from streams.bulk import Bulk
from streams.topics import Log
from streams.trigger_agent import TriggerAgent
from tests.integration.desk import EVENTS, ORDERS, Desk, Message, open_desk, sweeps


@pytest.fixture
async def desk(database: str) -> AsyncIterator[Desk]:
    async with open_desk(Desk, database, ORDERS) as made:
        yield made


# == groups and filters ================================================================================================
async def test_letters_of_one_cause_are_one_group(desk: Desk) -> None:
    await desk.bury(3, "order 17 has no total")
    ((_, newest),) = await desk.bury(1, "order 4711 has no total")
    await desk.bury(1, "the bank is away")
    desk.bury_record(b"{")
    groups = (await desk.read("/dead-letters/groups"))["items"]
    assert [(g["count"], g["kind"], g["task"] or g["topic"], g["code"]) for g in groups] == [
        (1, "record", "shop.orders", "BAD_RECORD"),
        (1, "task", "validate", "ERROR"),
        (4, "task", "validate", "ERROR"),
    ]
    group = groups[2]
    assert (group["sample"], group["message"]) == (newest, "order 4711 has no total")
    assert (group["workflow"], group["version"]) == ("orders", 1)
    assert group["first_at"] < group["last_at"]
    of_group = await desk.letters(filter=f"fingerprint:{group['fingerprint']}")
    assert len(of_group) == 4
    assert of_group[0]["dead_letter_id"] == newest


async def test_groups_are_paged_and_each_comes_once(desk: Desk) -> None:
    for message in ("a", "b", "c", "a"):
        await desk.bury(1, message)
    found, page = [], None
    while True:
        answer = await desk.read("/dead-letters/groups", limit=2, **({} if page is None else {"page": page}))
        found += [(group["message"], group["count"]) for group in answer["items"]]
        page = answer["next"]
        if page is None:
            break
    assert found == [("a", 2), ("c", 1), ("b", 1)]


FILTERS: list[tuple[str, int]] = [
    ("", 3),
    ("kind:task", 2),
    ("kind:record", 1),
    ("-kind:record", 2),
    ("workflow:orders", 2),
    ("workflow:ord*", 2),
    ("-workflow:orders", 1),
    ("workflow:other", 0),
    ("workflow:orders version:1", 2),
    ("version:2", 0),
    ("version:>=1", 2),
    ("task:charge", 1),
    ("topic:shop.orders", 1),
    ("code:BAD_RECORD", 1),
    ("error:CARD_100%", 1),
    ("error:card%", 0),
    ('error:"Not Json"', 1),
    ("at:>=2020-01-01T00:00:00Z", 3),
    ("at:>-1h", 3),
    ("at:<2020-01-01T00:00:00+02:00", 0),
    ("fingerprint:00", 0),
    ("status:replayed", 0),
    ("status:parked,replayed", 3),
    ("-status:parked", 0),
]


async def test_a_filter_finds_what_it_says(desk: Desk) -> None:
    await desk.bury(1)
    run_id = await desk.start({"id": 7})
    await desk.succeed(run_id, output=b'{"total": 3}')
    await desk.fail(run_id, 1, "no card_100% left\0")
    desk.bury_record(b"\xff")
    for text, count in FILTERS:
        assert len(await desk.letters(filter=text)) == count, text
        grouped = (await desk.read("/dead-letters/groups", filter=text))["items"]
        assert sum(group["count"] for group in grouped) == count, text
    assert [letter["task"] for letter in await desk.letters(filter=f"run:{run_id}")] == ["charge"]
    grouped = (await desk.read("/dead-letters/groups", filter=f"run:{run_id}"))["items"]
    assert [(group["task"], group["count"]) for group in grouped] == [("charge", 1)]


async def test_a_filter_that_means_nothing_is_refused(desk: Desk) -> None:
    for wrong in (
        {"filter": "at:>yesterday"},
        {"filter": "at:>2020-01-01T00:00:00"},
        {"filter": "error:a\0"},
        {"filter": "version:none"},
        {"filter": "run:x"},
        {"run": "x"},
    ):
        for path in ("/dead-letters", "/dead-letters/groups"):
            assert (await desk.api.get(path, params=wrong)).status_code == 422, wrong


# == context ===========================================================================================================
async def test_a_letter_shows_all_that_led_to_it(desk: Desk) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    response = await desk.api.post("/workflows/orders/runs", json={"input": {"id": 7}}, headers={"traceparent": trace})
    run_id = response.json()["run_id"]
    await desk.succeed(run_id, output=b'{"total": 1.50}')
    await desk.fail(run_id, 1, "no card")
    (letter,) = await desk.letters()
    shown = await desk.read(f"/dead-letters/{letter['dead_letter_id']}")
    assert {name: shown[name] for name in letter} == letter
    assert [(a["attempt"], a["outcome"], a["error"]["message"]) for a in shown["attempts"]] == [
        (1, "failed", "no card"),
        (2, "failed", "no card"),
    ]
    assert (shown["input"], shown["input_missing"]) == ({"total": 1.5, "order": 7}, None)
    assert (shown["run_input"], shown["traceparent"]) == ({"id": 7}, trace)
    assert (await desk.read(shown["history"]))["items"]


async def test_a_letter_shows_the_input_of_its_own_try_and_not_of_a_later_one(desk: Desk) -> None:
    ((run_id, first),) = await desk.bury()
    await desk.post(f"/dead-letters/{first}/replay", {"input": {"id": 2}})
    await desk.apply_requests()
    await desk.fail(run_id)
    (second,) = await desk.letters()
    await desk.post(f"/dead-letters/{second['dead_letter_id']}/replay", {"input": {"id": 3}})
    await desk.apply_requests()
    inputs = [(await desk.read(f"/dead-letters/{id_}"))["input"] for id_ in (first, second["dead_letter_id"])]
    assert inputs == [{"id": 0}, {"id": 2}]


async def test_a_letter_without_an_input_says_why(desk: Desk) -> None:
    run_id = await desk.start({})
    await desk.succeed(run_id, output=b"{}")
    (letter,) = await desk.letters()
    shown = await desk.read(f"/dead-letters/{letter['dead_letter_id']}")
    assert "input" not in shown
    assert shown["input_missing"].startswith("it cannot be rendered: ")
    assert shown["attempts"] == []
    record = await desk.read(f"/dead-letters/{desk.bury_record(b'x')}")
    assert record["input_missing"] == "it is a record, and no task"


async def test_a_record_is_shown_with_its_headers_and_its_bytes(desk: Desk) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = [("traceparent", trace.encode()), ("ce_id", b"1"), ("odd", b"\xff"), ("none", None)]
    shown = await desk.read(f"/dead-letters/{desk.bury_record(b'{', headers=headers)}")
    assert [(h["name"], h["value"], h["encoding"]) for h in shown["headers"]] == [
        ("traceparent", trace, "text"),
        ("ce_id", "1", "text"),
        ("odd", "/w==", "base64"),
        ("none", None, "text"),
    ]
    assert (shown["value"], shown["value_encoding"], shown["value_base64"]) == ("{", "text", "ew==")
    assert (shown["key_base64"], shown["traceparent"]) == (b64encode(b"k").decode(), trace)
    binary = await desk.read(f"/dead-letters/{desk.bury_record(b'%c' % 255, offset=8)}")
    assert (binary["value"], binary["value_encoding"], binary["value_base64"]) == ("/w==", "base64", "/w==")


async def test_an_isolated_run_is_named_by_its_record(desk: Desk) -> None:
    run_id = await desk.start()
    rows = Rows(desk.store)
    rows.bury_record(
        "default", UUID(run_id).bytes, EVENTS, 0, 3, run_id.encode(), b"{}", "deciding this raised", "trace"
    )
    with psycopg.connect(desk.dsn) as connection:
        execute_sync(connection, rows.calls())
    (letter,) = await desk.letters(filter="workflow:orders")
    assert (letter["kind"], letter["run_id"], letter["version"], letter["task"]) == ("record", run_id, 1, None)
    assert (await desk.read(f"/dead-letters/{letter['dead_letter_id']}"))["run_input"] == {}


# == one replay ========================================================================================================
async def test_b98_a_replay_is_one_transaction_and_happens_once(desk: Desk) -> None:
    ((run_id, letter),) = await desk.bury()
    (first,) = desk.commands()
    dying = await psycopg.AsyncConnection.connect(desk.dsn)
    await replay_dead_letter(dying, desk.store, UUID(letter), actor="ana")
    desk.query("SELECT pg_terminate_backend(%s)", dying.info.backend_pid)  # before the commit
    await dying.close()
    assert (await desk.letters())[0]["dead_letter_id"] == letter
    assert desk.query("SELECT count(*) FROM inbox") == [(0,)]
    assert desk.published(EVENTS) == []
    path = f"/dead-letters/{letter}/replay"
    operators = await asyncio.gather(
        *(desk.api.post(path, headers={"Headrace-Actor": who}) for who in ("ana", "bob") for _ in range(5))
    )
    assert sorted(response.status_code for response in operators) == [202] + [409] * 9
    assert await desk.apply_requests() == 1
    await desk.post(path, status=409)
    (second,) = desk.commands()
    assert (second.token, second.attempt) == (first.token + 1, first.attempt + 1)
    assert effect_key(run_id, second.name) == effect_key(run_id, first.name)
    closed = await desk.read(f"/dead-letters/{letter}")
    assert closed["status"] == "replayed"
    assert closed["closed_by"] in ("ana", "bob")
    assert closed["replay_token"] == second.token


async def test_b99_a_replay_of_the_same_task_is_processed_whatever_was_seen_before(desk: Desk) -> None:
    ((run_id, letter),) = await desk.bury()
    await desk.post(f"/dead-letters/{letter}/replay")
    ((inbox_id,),) = desk.query("SELECT inbox_id FROM inbox")
    replayed = (run_id, Requested(str(inbox_id)))
    await desk.apply(replayed, replayed)
    await desk.apply(replayed)
    assert desk.query("SELECT status::text, token FROM task WHERE run_id = %s AND task = 0", run_id) == [("queued", 2)]
    stale = Succeeded(0, 1, make_nonce(desk.store.secret, run_id.encode(), 0, 1))
    await desk.apply((run_id, stale))
    await desk.succeed(run_id, output=b'{"total": 1}')
    assert desk.query("SELECT attempt, outcome FROM attempt ORDER BY token") == [(1, "failed"), (2, "completed")]


async def test_b99_a_record_that_is_replayed_with_its_id_starts_the_run_it_could_not_start(desk: Desk) -> None:
    topic = "shop.orders"
    backlog = Backlog("", 0, desk.metrics)
    agent = TriggerAgent(desk.store, desk.ownership, desk.database, desk.plans, desk.clock, desk.metrics, backlog)
    desk.query(
        "INSERT INTO subscription (subscription_id, name, topic, workflow) "
        "VALUES (gen_random_uuid(), 's', %s, 'later')",
        topic,
    )
    agent.look()
    epoch = (await desk.ownership.lease(topic, "log", [0]))[0][0]
    event = json.dumps({"specversion": "1.0", "id": "a", "source": "/shop", "type": "t", "data": {}}).encode()

    async def deliver(offset: int, value: bytes, headers: Any) -> None:
        batch = Batch(topic, "log", {0: [Message(topic, offset, b"k", value, headers)]}, {0: epoch})  # type: ignore[dict-item]
        await asyncio.wait_for(agent(batch), 15)

    await deliver(0, event, [("content-type", b"application/cloudevents+json"), ("odd", b"\xff"), ("none", None)])
    (letter,) = await desk.letters(filter="kind:record")
    assert (await desk.api.post("/workflows", json={**ORDERS, "name": "later"})).status_code == 201
    await desk.post(f"/dead-letters/{letter['dead_letter_id']}/replay")
    (record,) = desk.published(topic)
    assert (record.key, record.value) == (b"k", event)
    for offset in (1, 2):  # the relay may publish it twice
        await deliver(offset, record.value, record.headers)  # without its headers it would be no CloudEvent
    assert desk.query('SELECT fate FROM trigger_event ORDER BY "offset"') == [("failed",), ("started",), ("duplicate",)]
    assert len((await desk.read("/runs", workflow="later"))["items"]) == 1


async def test_a_discarded_letter_is_not_replayed_and_a_replayed_one_not_discarded(desk: Desk) -> None:
    (_, one), (_, other) = await desk.bury(2)
    await desk.post(f"/dead-letters/{one}/discard", {"reason": "a test order"}, status=200)
    await desk.post(f"/dead-letters/{one}/replay", status=409)
    await desk.post(f"/dead-letters/{other}/replay")
    await desk.post(f"/dead-letters/{other}/discard", {"reason": "too late"}, status=409)
    assert await desk.apply_requests() == 1


async def test_the_original_shows_what_became_of_its_replay(desk: Desk) -> None:
    ((run_id, first),) = await desk.bury()

    async def outcome(letter: str) -> str | None:
        found: str | None = (await desk.read(f"/dead-letters/{letter}"))["replay_outcome"]
        return found

    assert await outcome(first) is None
    await desk.post(f"/dead-letters/{first}/replay")
    assert await outcome(first) == "pending"
    await desk.apply_requests()
    assert await outcome(first) == "pending"
    await desk.fail(run_id)
    assert await outcome(first) == "failed_again"
    (second,) = await desk.letters()
    assert second["replay_of"] == first
    assert (await desk.read(f"/dead-letters/{first}"))["replayed_as"] == second["dead_letter_id"]
    await desk.post(f"/dead-letters/{second['dead_letter_id']}/replay")
    await desk.apply_requests()
    await desk.succeed(run_id, output=b'{"total": 1}')
    assert await outcome(second["dead_letter_id"]) == "completed"
    assert await outcome(first) == "failed_again"


async def test_a_replay_in_a_cancelled_run_says_so(desk: Desk) -> None:
    ((run_id, letter),) = await desk.bury()
    await desk.post(f"/dead-letters/{letter}/replay")
    await desk.apply_requests()
    await desk.post(f"/runs/{run_id}/cancel")
    await desk.apply_requests()
    assert (await desk.read(f"/dead-letters/{letter}"))["replay_outcome"] == "cancelled"


async def test_a_replay_that_a_cancel_overtook_says_so(desk: Desk) -> None:
    """Both are accepted before either is applied: the cancel is first, so the failed task stays as it is."""
    tasks = {"a": {"run": "x", "retry": {"attempts": 1}}, "b": {"run": "x"}}
    await desk.post("/workflows", {"name": "pair", "tasks": tasks}, status=201)
    run_id = await desk.start(workflow="pair")
    await desk.fail(run_id)
    (letter,) = await desk.letters()
    await desk.post(f"/runs/{run_id}/cancel")
    await desk.post(f"/dead-letters/{letter['dead_letter_id']}/replay")
    await desk.apply_requests()
    assert desk.query("SELECT status::text FROM task WHERE run_id = %s ORDER BY task", run_id) == [
        ("failed",),
        ("cancelled",),
    ]
    assert (await desk.read(f"/dead-letters/{letter['dead_letter_id']}"))["replay_outcome"] == "cancelled"


async def test_a_replayed_record_is_linked_when_it_is_set_aside_again(desk: Desk) -> None:
    one, other = desk.bury_record(b"{", 3), desk.bury_record(b"{", 4)
    for letter in (one, other):
        await desk.post(f"/dead-letters/{letter}/replay")
    assert [record.value for record in desk.published("shop.orders")] == [b"{", b"{"]
    rows = Rows(desk.store)
    for offset in (5, 6):
        rows.bury_record("default", None, "shop.orders", 0, offset, b"k", b"{", "not JSON")
    rows.bury_record("default", None, "shop.orders", 0, 7, b"k", b"[", "not JSON")
    with psycopg.connect(desk.dsn) as connection:
        execute_sync(connection, rows.calls())
    linked = {letter["offset"]: letter["replay_of"] for letter in await desk.letters(filter="kind:record")}
    assert linked == {5: one, 6: other, 7: None}
    desk.bury_record(b"{", 8)
    assert (await desk.letters(filter="kind:record"))[0]["replay_of"] is None
    assert [letter["replay_outcome"] for letter in await desk.letters(status="replayed")] == ["failed_again"] * 2


async def test_a_record_may_be_replayed_with_other_bytes(desk: Desk) -> None:
    letter = desk.bury_record(b"{")
    body = {"value_base64": b64encode(b"\xff\x00").decode()}
    await desk.post(f"/dead-letters/{letter}/replay", {**body, "input": 1}, status=422)
    await desk.post(f"/dead-letters/{letter}/replay", {"value_base64": "a"}, status=422)
    await desk.post(f"/dead-letters/{letter}/replay", body)
    assert [record.value for record in desk.published("shop.orders")] == [b"\xff\x00"]
    assert (await desk.letters(status="replayed"))[0]["value"] == "{"
    again = desk.bury_record(b"\xff\x00", 9)
    assert (await desk.read(f"/dead-letters/{again}"))["replay_of"] == letter
    ((_, task),) = await desk.bury()
    await desk.post(f"/dead-letters/{task}/replay", body, status=409)
    assert (await desk.read(f"/dead-letters/{task}"))["status"] == "parked"


class Logs:
    """What the broker would answer about a topic."""

    def __init__(self, topic: str, end: int) -> None:
        self._topic, self._end = topic, end

    def read(self, topics: Any) -> dict[str, Log]:
        return {self._topic: Log("log", {0: self._end})}


async def test_a_replayed_record_is_completed_once_its_partition_was_read_behind_it(desk: Desk) -> None:
    letter, topic = desk.bury_record(b"{", 3), "shop.orders"
    await desk.ownership.lease(topic, "log", [0])
    await desk.post(f"/dead-letters/{letter}/replay")
    sweep = Bulk(desk.store, desk.plans, Logs(topic, 10))  # type: ignore[arg-type]
    async with desk.connection() as connection:
        assert await sweep.note_published(connection) == 0  # no tick came back yet: it may not be in the log
        desk.query("INSERT INTO watermark VALUES ('sessions', now() + interval '1 minute')")
        assert await sweep.note_published(connection) == 1
        assert await sweep.note_published(connection) == 0
    for next_offset, outcome in ((9, "pending"), (10, "completed")):
        desk.query("UPDATE partition_owner SET next_offset = %s WHERE topic = %s", next_offset, topic)
        assert (await desk.read(f"/dead-letters/{letter}"))["replay_outcome"] == outcome


# == many replays ======================================================================================================
async def test_a_dry_run_says_what_would_be_replayed_and_replays_nothing(desk: Desk) -> None:
    letters = [letter for _, letter in await desk.bury(12)]
    await desk.bury(1, "other")
    (group,) = [g for g in (await desk.read("/dead-letters/groups"))["items"] if g["count"] == 12]
    body = {"filter": f"fingerprint:{group['fingerprint']}", "dry_run": True}
    answer = await desk.post("/dead-letters/replay", body, status=200)
    assert (answer["count"], answer["has_more"], answer["dead_letter_ids"]) == (12, False, letters)
    assert [item["dead_letter_id"] for item in answer["sample"]] == letters[:10]
    assert len(await desk.letters()) == 13
    assert desk.query("SELECT count(*) FROM bulk") == [(0,)]


async def test_a_selection_is_frozen_when_it_is_asked_for(desk: Desk) -> None:
    made = await desk.bury(3)
    dry = await desk.post("/dead-letters/replay", {"filter": "task:validate", "dry_run": True}, status=200)
    await desk.bury(1)
    asked = {"filter": "task:validate", "dead_letter_ids": dry["dead_letter_ids"], "rate": 1000}
    bulk = await desk.post("/dead-letters/replay", asked)
    assert (bulk["selected"], bulk["left"], bulk["status"], bulk["created_by"]) == (3, 3, "running", "ana")
    assert bulk["filter"] == "task:validate"
    await desk.bury(1)
    done = await desk.step_until_over(bulk["replay_id"])
    assert (done["status"], done["replayed"], done["left"], done["refused"]) == ("completed", 3, 0, 0)
    assert await desk.apply_requests() == 3
    assert desk.query("SELECT count(*) FROM dead_letter WHERE status = 'parked'") == [(2,)]
    assert {letter["closed_by"] for letter in await desk.letters(status="replayed")} == {"ana"}
    run_id = made[0][0]
    await desk.succeed(run_id, output=b'{"total": 1}')
    await desk.fail(made[1][0])
    outcomes = (await desk.read(f"/dead-letters/replays/{bulk['replay_id']}"))["outcomes"]
    assert outcomes == {"pending": 1, "completed": 1, "failed_again": 1, "cancelled": 0}
    assert [each["replay_id"] for each in (await desk.read("/dead-letters/replays"))["items"]] == [bulk["replay_id"]]


async def test_b98_of_two_bulk_replays_of_the_same_letters_one_gets_them(desk: Desk) -> None:
    await desk.bury(5)
    body = {"filter": "workflow:orders", "rate": 1000}
    answers = await asyncio.gather(*(desk.api.post("/dead-letters/replay", json=body) for _ in range(6)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 5
    assert desk.query("SELECT count(*) FROM bulk") == [(1,)]
    (bulk,) = (await desk.read("/dead-letters/replays"))["items"]
    await desk.step_until_over(bulk["replay_id"])
    assert await desk.apply_requests() == 5


async def test_a_letter_that_was_closed_before_its_turn_is_refused_and_the_others_go_on(desk: Desk) -> None:
    made = await desk.bury(4)
    bulk = await desk.post("/dead-letters/replay", {"filter": "workflow:orders", "rate": 1000})
    await desk.post(f"/dead-letters/{made[1][1]}/replay", who="bob")
    await desk.post(f"/dead-letters/{made[2][1]}/discard", {"reason": "x"}, who="bob", status=200)
    desk.query("UPDATE task SET token = token + 1 WHERE run_id = %s", made[3][0])
    done = await desk.step_until_over(bulk["replay_id"])
    assert (done["replayed"], done["refused"]) == (1, 3)
    reasons = {refusal["dead_letter_id"]: refusal["reason"] for refusal in done["refusals"]}
    assert "replayed already by bob" in reasons[made[1][1]]
    assert "discarded already by bob" in reasons[made[2][1]]
    assert "not where it failed" in reasons[made[3][1]]
    assert (await desk.letters())[0]["dead_letter_id"] == made[3][1]


async def test_a_letter_that_postgres_refuses_holds_nothing_up(desk: Desk) -> None:
    """Only text fits the outbox table."""
    desk.store.mode = type(desk.store.mode).TABLE
    bad, good = desk.bury_record(b"\xff"), desk.bury_record(b"{", 8)
    bulk = await desk.post("/dead-letters/replay", {"filter": "kind:record", "rate": 1000})
    done = await desk.step_until_over(bulk["replay_id"])
    assert [refusal["dead_letter_id"] for refusal in done["refusals"]] == [bad]
    assert [letter["dead_letter_id"] for letter in await desk.letters(status="replayed")] == [good]


async def test_the_rate_is_kept_also_after_the_engine_was_away(desk: Desk) -> None:
    await desk.bury(6)
    bulk = await desk.post("/dead-letters/replay", {"filter": "workflow:orders", "rate": 0.5})
    assert await desk.step() == 1
    assert await desk.step() == 0
    desk.query("UPDATE bulk SET rate = 2")
    desk.query("UPDATE bulk SET next_at = now() - interval '1 hour'")
    assert await desk.step() == 3  # the one that is due, and one second's worth
    assert await desk.step() == 0
    progress = await desk.read(f"/dead-letters/replays/{bulk['replay_id']}")
    assert (progress["left"], progress["replayed"], progress["status"]) == (2, 4, "running")


async def test_two_processes_share_the_work_without_a_letter_twice(desk: Desk) -> None:
    await desk.bury(8)
    await desk.post("/dead-letters/replay", {"filter": "workflow:orders", "rate": 1000})
    deadline = time.monotonic() + 30
    while desk.query("SELECT 1 FROM bulk WHERE finished_at IS NULL"):
        assert time.monotonic() < deadline
        await asyncio.gather(desk.step(), desk.step(), desk.step())
    assert desk.query("SELECT count(*), count(DISTINCT run_id) FROM inbox") == [(8, 8)]


async def test_a_stopped_bulk_replay_leaves_the_rest_parked(desk: Desk) -> None:
    await desk.bury(3)
    bulk = await desk.post("/dead-letters/replay", {"filter": "workflow:orders", "rate": 0.5})
    assert await desk.step() == 1
    path = f"/dead-letters/replays/{bulk['replay_id']}/stop"
    stopped = await desk.post(path, who="bob", status=200)
    assert (stopped["status"], stopped["stopped_by"], stopped["replayed"], stopped["stopped"]) == (
        "stopped",
        "bob",
        1,
        2,
    )
    await desk.post(path, status=409)
    desk.query("UPDATE bulk SET next_at = now()")
    assert await desk.step() == 0
    again = await desk.post("/dead-letters/replay", {"filter": "workflow:orders"})
    assert again["selected"] == 2


async def test_letters_are_discarded_by_filter_with_a_reason(desk: Desk) -> None:
    await desk.bury(3)
    await desk.bury(1, "other")
    body = {"filter": 'error:"it broke"', "reason": "a bad deploy"}
    dry = await desk.post("/dead-letters/discard", {**body, "dry_run": True}, status=200)
    assert (dry["count"], len(await desk.letters())) == (3, 4)
    assert await desk.post("/dead-letters/discard", body, status=200) == {"discarded": 3, "has_more": False}
    closed = {(letter["closed_by"], letter["close_reason"]) for letter in await desk.letters(status="discarded")}
    assert closed == {("ana", "a bad deploy")}
    assert len(await desk.letters()) == 1


WRONG: list[dict[str, Any]] = [
    {},
    {"filter": ""},
    {"filter": {"kind": "task"}},
    {"dead_letter_ids": []},
    {"dead_letter_ids": ["x"]},
    {"filter": "wrong:1"},
    {"filter": "error:a\0"},
    {"filter": "task:a", "rate": 0},
    {"filter": "task:a", "rate": 1e9},
    {"filter": "at:>2020-01-01T00:00:00"},
]


async def test_nobody_replays_everything_by_leaving_something_out(desk: Desk) -> None:
    await desk.bury(1)
    for body in WRONG:
        await desk.post("/dead-letters/replay", body, status=422)
        await desk.post("/dead-letters/discard", {**body, "reason": "x"}, status=422)
    assert len(await desk.letters()) == 1


async def test_a_replay_of_nothing_is_refused_and_an_unknown_one_not_found(desk: Desk) -> None:
    await desk.post("/dead-letters/replay", {"filter": "task:nope"}, status=409)
    assert desk.query("SELECT count(*) FROM bulk") == [(0,)]
    for id_ in (str(uuid7()), "x"):
        assert (await desk.api.get(f"/dead-letters/replays/{id_}")).status_code == 404
        await desk.post(f"/dead-letters/replays/{id_}/stop", status=404)


async def test_a_bulk_replay_with_one_idempotency_key_is_one(desk: Desk) -> None:
    await desk.bury(2)
    headers = {"Idempotency-Key": "k"}
    body = {"filter": "workflow:orders"}
    answers = [await desk.api.post("/dead-letters/replay", json=body, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["replay_id"] == answers[1].json()["replay_id"]
    assert desk.query("SELECT count(*) FROM bulk") == [(1,)]


# == kill -9 ===========================================================================================================
@pytest.fixture
def sweep(desk: Desk) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Start a process that carries bulk replays out."""
    with sweeps(desk) as start:
        yield start


async def test_cp19_a_bulk_replay_killed_half_way_goes_on_and_replays_each_letter_once(
    desk: Desk, sweep: Callable[[], "subprocess.Popen[bytes]"]
) -> None:
    count, kills = 60, 2  # at 10 a second, and never more than 11 at once
    for n in range(count):
        desk.bury_record(b"{%d" % n, n)
    desk.published("shop.orders")
    bulk = await desk.post("/dead-letters/replay", {"filter": "kind:record", "rate": 10})
    done = "SELECT count(*) FROM bulk_item WHERE outcome IS NOT NULL"
    deadline = time.monotonic() + 120
    for part in range(1, kills + 2):
        process = sweep()
        wanted = count if part > kills else part * count // (kills + 2)
        while desk.query(done)[0][0] < wanted:
            assert time.monotonic() < deadline
            assert process.poll() is None
            await asyncio.sleep(0.002)
        if part <= kills:
            process.kill()
            process.wait()
            assert desk.query(done)[0][0] < count, "killed too late to show anything"
    finished = await desk.read(f"/dead-letters/replays/{bulk['replay_id']}")
    assert (finished["status"], finished["replayed"], finished["refused"]) == ("completed", count, 0)
    values = [record.value for record in desk.published("shop.orders")]
    assert values == [b"{%d" % n for n in range(count)]


async def test_a_step_that_dies_before_its_commit_changes_nothing(desk: Desk) -> None:
    letters = [desk.bury_record(b"{%d" % n, n) for n in range(3)]
    bulk = await desk.post("/dead-letters/replay", {"filter": "kind:record", "rate": 1000})
    desk.query("UPDATE bulk SET next_at = now() - interval '1 s'")
    dying = await psycopg.AsyncConnection.connect(desk.dsn)
    assert await step(dying, desk.store, desk.plans) == 3
    desk.query("SELECT pg_terminate_backend(%s)", dying.info.backend_pid)
    await dying.close()
    assert desk.published("shop.orders") == []
    assert [letter["dead_letter_id"] for letter in await desk.letters()] == letters[::-1]
    assert (await desk.step_until_over(bulk["replay_id"]))["replayed"] == 3


# == plans =============================================================================================================
async def test_lists_of_letters_walk_an_index_and_never_the_table(desk: Desk) -> None:
    desk.query(
        """
        INSERT INTO dead_letter (dead_letter_id, kind, topic, partition, "offset", reason, fingerprint, created_at)
        SELECT gen_random_uuid(), 'record', 't', 0, n, 'r', to_hex(mod(n, 1000)), now() - n * interval '1 s'
        FROM generate_series(1, 20000) AS n
        """
    )
    desk.query("ANALYZE dead_letter")
    cases = {"": "dead_letter_newest", "kind:record error:r": "dead_letter_newest", "fingerprint:ff": "of_a_group"}
    async with await psycopg.AsyncConnection.connect(desk.dsn, autocommit=True) as connection:
        for text, index in cases.items():
            made = await conditions_of(connection, "default", parse("dead_letters", text))
            given = made.given(namespace="default", before_at=AT_MAX, before=ID_MAX, scanned=51, limit=51)
            explained = sql.SQL("EXPLAIN ") + made.statement("find_letters")
            cursor = await connection.execute(explained, given)
            plan = "\n".join(line for (line,) in await cursor.fetchall())
            assert index in plan, plan
            assert "Seq Scan on dead_letter" not in plan, plan
