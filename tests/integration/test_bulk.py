"""One act on many runs over the API, carried out by the sweep and applied by a run agent that the test drives."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from uuid_utils import uuid7

from state.bulk_steps import step
from state.doctor import examine
from tests.integration.desk import ORDERS, Desk, open_desk, sweeps

FAST = {"rate": 1000}


class Bulk(Desk):
    """The same, and bulks."""

    async def ask(self, act: str, *, status: int = 202, **body: Any) -> dict[str, Any]:
        return await self.post("/bulk", {"act": act, "filter": "workflow:orders", **FAST, **body}, status=status)

    async def over(self, bulk_id: str, seconds: float = 30) -> dict[str, Any]:
        """Carry it out to its end."""
        deadline = time.monotonic() + seconds
        while (progress := await self.read(f"/bulk/{bulk_id}"))["status"] == "running":
            assert time.monotonic() < deadline, progress
            if not await self.step():
                await asyncio.sleep(0.01)
        return dict(progress)

    async def until_something_waits(self, seconds: float = 30) -> None:
        """For a lock of Postgres."""
        deadline = time.monotonic() + seconds
        while not self.query("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert time.monotonic() < deadline, "nothing waits"
            await asyncio.sleep(0.01)

    async def items(self, bulk_id: str, **query: Any) -> list[dict[str, Any]]:
        return list((await self.read(f"/bulk/{bulk_id}/items", limit=200, **query))["items"])

    async def statuses(self, *run_ids: str) -> list[str]:
        return [(await self.read(f"/runs/{run_id}"))["status"] for run_id in run_ids]


@pytest.fixture
async def bulk(database: str) -> AsyncIterator[Bulk]:
    async with open_desk(Bulk, database, ORDERS, {**ORDERS, "name": "others"}) as made:
        yield made


# == what it acts on ===================================================================================================
async def test_a_dry_run_says_what_would_be_done_and_asks_nothing(bulk: Bulk) -> None:
    open_ = [await bulk.start() for _ in range(3)]
    await bulk.start(workflow="others")
    ((failed, _),) = await bulk.bury()
    shown = await bulk.ask("cancel", dry_run=True, status=200)
    assert (shown["count"], shown["done"], shown["refused"]) == (3, 3, [])
    assert (shown["run_ids"], shown["has_more"], shown["act"]) == (open_, False, "cancel")
    both = "workflow:orders status:running,failed"
    shown = await bulk.ask("cancel", filter=both, dry_run=True, status=200)
    assert (shown["count"], shown["done"], shown["run_ids"]) == (4, 3, [*open_, failed])
    assert shown["refused"] == [{"reason": "the run is failed already", "count": 1}]
    assert bulk.query("SELECT count(*) FROM bulk") == [(0,)]
    assert bulk.query("SELECT count(*) FROM inbox") == [(0,)]


async def test_a_dry_run_of_a_rerun_says_which_effects_repeat(bulk: Bulk) -> None:
    failed = [run_id for run_id, _ in await bulk.bury(3)]
    shown = await bulk.ask("rerun", dry_run=True, status=200)
    assert (shown["run_ids"], shown["foreseen"]) == (failed, 3)
    effects = {(each["effect"], each["protected_by"]): each["tasks"] for each in shown["effects"]}
    assert effects == {("repeats", "effect_key"): 3, ("first", None): 3}


async def test_a_filter_finds_what_it_says(bulk: Bulk) -> None:
    await bulk.start()
    middle = await bulk.start()
    ((at,),) = bulk.query("SELECT created_at FROM run WHERE run_id = %s", middle)
    last = await bulk.start()
    for filter, found in (
        (f"started:>={at.isoformat()}", [middle, last]),
        (f"started:>={at.isoformat()} started:<2020-01-01T00:00:00Z", []),
        ("workflow:others", []),
        ("workflow:orders version:2", []),
        (f"workflow:orders version:1 started:>={at.isoformat()}", [middle, last]),
        (f"run:{middle}", [middle]),
        ("status:completed", []),
    ):
        shown = await bulk.ask("terminate", filter=filter, dry_run=True, status=200)
        assert shown["run_ids"] == found, filter
    shown = await bulk.ask("terminate", filter="", run_ids=[middle], dry_run=True, status=200)
    assert shown["run_ids"] == [middle]


WRONG: list[dict[str, Any]] = [
    {},
    {"filter": ""},
    {"filter": {"workflow": "orders"}},
    {"run_ids": []},
    {"filter": "status:"},
    {"filter": "wrong:1"},
    {"filter": "status:lost"},
    {"filter": "workflow:orders", "rate": 0},
    {"filter": "workflow:orders", "act": "replay"},
]


async def test_nobody_ends_everything_by_leaving_something_out(bulk: Bulk) -> None:
    await bulk.start()
    for body in WRONG:
        await bulk.post("/bulk", {"act": "cancel", **body}, status=422)
    assert bulk.query("SELECT count(*) FROM bulk") == [(0,)]


async def test_a_bulk_of_nothing_is_refused_and_an_unknown_one_not_found(bulk: Bulk) -> None:
    await bulk.ask("cancel", status=409)
    for id_ in (str(uuid7()), "x"):
        assert (await bulk.api.get(f"/bulk/{id_}")).status_code == 404
        assert (await bulk.api.get(f"/bulk/{id_}/items")).status_code == 404
        await bulk.post(f"/bulk/{id_}/stop", status=404)


# == what becomes of it ================================================================================================
async def test_a_selection_is_frozen_and_every_run_of_it_is_asked_once(bulk: Bulk) -> None:
    frozen = [await bulk.start() for _ in range(3)]
    asked = await bulk.ask("cancel", reason="a bad deploy")
    assert (asked["selected"], asked["left"], asked["status"], asked["created_by"]) == (3, 3, "running", "ana")
    later = await bulk.start()
    done = await bulk.over(asked["bulk_id"])
    assert (done["status"], done["done"], done["refused"], done["left"]) == ("completed", 3, 0, 0)
    assert done["later"] == {"pending": 3}
    assert await bulk.apply_requests() == 3
    assert await bulk.statuses(*frozen, later) == ["cancelled"] * 3 + ["running"]
    assert (await bulk.read(f"/bulk/{asked['bulk_id']}"))["later"] == {"cancelled": 3}
    items = await bulk.items(asked["bulk_id"])
    assert [(item["run_id"], item["outcome"], item["later"]) for item in items] == [
        (run_id, "done", "cancelled") for run_id in frozen
    ]
    assert bulk.query("SELECT DISTINCT actor, detail->>'reason' FROM history WHERE kind = 'cancelled'") == [
        ("ana", "a bad deploy")
    ]
    assert [each["bulk_id"] for each in (await bulk.read("/bulk"))["items"]] == [asked["bulk_id"]]


async def test_a_run_that_ended_before_its_turn_is_refused_and_one_that_ends_before_it_is_applied_overtakes(
    bulk: Bulk,
) -> None:
    early, late, met = [await bulk.start() for _ in range(3)]
    asked = await bulk.ask("cancel")
    await bulk.fail(early)
    done = await bulk.over(asked["bulk_id"])
    assert (done["done"], done["refused"]) == (2, 1)
    assert done["refusals"] == [{"reason": "the run is failed already", "count": 1}]
    await bulk.fail(late)
    await bulk.apply_requests()
    assert await bulk.statuses(early, late, met) == ["failed", "failed", "cancelled"]
    items = {item["run_id"]: (item["outcome"], item["later"]) for item in await bulk.items(asked["bulk_id"])}
    assert items == {early: ("refused", None), late: ("done", "overtaken"), met: ("done", "cancelled")}
    assert [item["run_id"] for item in await bulk.items(asked["bulk_id"], outcome="refused")] == [early]


async def test_a_run_that_is_gone_at_its_turn_holds_nothing_up(bulk: Bulk) -> None:
    gone, there = [await bulk.start() for _ in range(2)]
    asked = await bulk.ask("terminate")
    bulk.query("DELETE FROM run WHERE run_id = %s", gone)
    done = await bulk.over(asked["bulk_id"])
    assert (done["done"], done["gone"]) == (1, 1)
    await bulk.apply_requests()
    assert await bulk.statuses(there) == ["terminated"]
    bulk.query("DELETE FROM run WHERE run_id = %s", there)  # as retention does, later
    assert (await bulk.read(f"/bulk/{asked['bulk_id']}"))["later"] == {"gone": 1}


async def test_failed_runs_are_rerun_and_what_became_of_them_is_told(bulk: Bulk) -> None:
    runs = [run_id for run_id, _ in await bulk.bury(3)]
    asked = await bulk.ask("rerun", reason="the bank is back")
    await bulk.over(asked["bulk_id"])
    assert await bulk.apply_requests() == 3
    assert await bulk.statuses(*runs) == ["running"] * 3
    await bulk.succeed(runs[0], output=b'{"total": 1}')
    await bulk.succeed(runs[0], 1)
    await bulk.fail(runs[1])
    later = (await bulk.read(f"/bulk/{asked['bulk_id']}"))["later"]
    assert later == {"completed": 1, "failed_again": 1, "running": 1}


async def test_a_rerun_of_a_run_of_which_something_else_was_asked_is_refused(bulk: Bulk) -> None:
    (one, _), (two, _) = await bulk.bury(2)
    await bulk.post(f"/runs/{one}/rerun")
    asked = await bulk.ask("rerun")
    done = await bulk.over(asked["bulk_id"])
    assert (done["done"], done["refused"]) == (1, 1)
    assert "reran" in done["refusals"][0]["reason"]
    assert await bulk.apply_requests() == 2
    assert await bulk.statuses(one, two) == ["running", "running"]


async def test_runs_are_moved_to_the_latest_version_each_by_its_own_verdict(bulk: Bulk) -> None:
    runs = [await bulk.start() for _ in range(3)]
    await bulk.over((await bulk.ask("pause"))["bulk_id"])
    await bulk.apply_requests()
    for run_id in runs[:2]:
        await bulk.succeed(run_id, output=b'{"total": 1}')
    assert await bulk.statuses(*runs) == ["paused", "paused", "pausing"]
    orders: dict[str, Any] = {**ORDERS}
    more = {**orders, "tasks": {**orders["tasks"], "tell": {"run": "t.tell", "needs": ["validate"]}}}
    await bulk.post("/workflows", more, status=201)
    filter = "workflow:orders status:paused,pausing"
    shown = await bulk.ask("migrate", filter=filter, dry_run=True, status=200)
    why = "the run is pausing: pause it, and wait until nothing of it runs"
    assert (shown["count"], shown["done"], shown["refused"]) == (3, 2, [{"reason": why, "count": 1}])
    asked = await bulk.ask("migrate", reason="tell them")
    assert (await bulk.over(asked["bulk_id"]))["done"] == 2
    assert await bulk.apply_requests() == 2
    assert [(await bulk.read(f"/runs/{run_id}"))["version"] for run_id in runs] == [2, 2, 1]
    assert (await bulk.read(f"/bulk/{asked['bulk_id']}"))["later"] == {"paused": 2}
    again = await bulk.over((await bulk.ask("migrate"))["bulk_id"])
    assert again["refusals"] == [{"reason": "the run is on version 2 already", "count": 2}]


async def test_a_task_that_was_renamed_is_handed_out_with_the_name_of_its_effects(bulk: Bulk) -> None:
    run_id = await bulk.start({"id": 1})
    await bulk.fail(run_id)
    orders: dict[str, Any] = {**ORDERS}
    approve = {**orders["tasks"]["validate"], "was": "validate"}
    charge = {"run": "payments.charge", "needs": ["approve"]}
    renamed = {**orders, "tasks": {"approve": approve, "charge": charge}}
    await bulk.post("/workflows", renamed, status=201)
    back = (await bulk.post("/workflows/check", {**ORDERS, "description": "as it was"}, status=200))["difference"]
    assert (back["renamed"], back["removed"]) == ([{"task": "validate", "was": "approve"}], [])
    bulk.commands()
    foreseen = await bulk.post(f"/runs/{run_id}/rerun", {"version": 2, "dry_run": True}, status=200)
    assert [(task["task"], task["effect_key"]) for task in foreseen["again"]][:1] == [("approve", f"{run_id}/validate")]
    await bulk.post(f"/runs/{run_id}/rerun", {"version": 2})
    await bulk.apply_requests()
    (command,) = bulk.commands()
    assert (command.name, command.effect_name, command.attempt) == ("approve", "validate", 2)


async def test_a_move_pauses_each_run_until_nothing_of_it_runs_moves_it_and_lets_it_go_on(bulk: Bulk) -> None:
    """One has begun only what both versions have, the other what the new one does not."""
    moves, stays = await bulk.start({"id": 1}), await bulk.start({"id": 2})
    await bulk.succeed(stays, output=b'{"total": 1}')
    orders: dict[str, Any] = {**ORDERS}
    validate = orders["tasks"]["validate"]
    other = {**orders, "tasks": {"validate": validate, "tell": {"run": "t.tell", "needs": ["validate"]}}}
    await bulk.post("/workflows", other, status=201)
    why = (
        "the run cannot be moved to version 2: task charge: it has begun, and version 2 has no such task: one that was "
        "only renamed says `was: charge`"
    )
    shown = await bulk.ask("move", dry_run=True, status=200)
    assert (shown["count"], shown["done"], shown["refused"]) == (2, 1, [{"reason": why, "count": 1}])
    asked = await bulk.ask("move", reason="tell them")
    assert await bulk.step() == 2
    assert bulk.query("SELECT kind, run_id::text FROM inbox WHERE applied_at IS NULL") == [("paused", moves)]
    await bulk.apply_requests()
    assert await bulk.statuses(moves, stays) == ["pausing", "running"]
    (cause, *_) = (await bulk.read(f"/runs/{moves}/explain"))["causes"]
    assert (cause["code"], "while it is moved to another version" in cause["text"]) == ("PAUSED", True)
    assert await wrong(bulk) == []
    assert (await bulk.read(f"/bulk/{asked['bulk_id']}"))["left"] == 1
    await bulk.succeed(moves, output=b'{"total": 1}')
    over = await bulk.over(asked["bulk_id"])
    assert (over["done"], over["refusals"]) == (1, [{"reason": why, "count": 1}])
    await bulk.apply_requests()
    run = await bulk.read(f"/runs/{moves}")
    assert (run["version"], run["status"]) == (2, "running")
    assert (await bulk.read(f"/bulk/{asked['bulk_id']}"))["later"] == {"running": 1}
    kinds = [item["kind"] for item in (await bulk.read(f"/runs/{moves}/history"))["items"]]
    assert kinds == ["started", "paused", "attempt_completed", "migrated"]
    assert await wrong(bulk) == []
    await bulk.succeed(moves, 1)
    assert await bulk.statuses(moves) == ["completed"]


async def wrong(bulk: Bulk) -> list[str]:
    """What the doctor says of runs."""
    async with bulk.connection() as connection:
        checks = await examine(connection)
    return [
        check.detail for check in checks if check.name in ("statuses", "pauses", "waits", "history") and not check.ok
    ]


async def test_the_doctor_finds_a_run_that_was_paused_for_a_move_and_that_nobody_moves(bulk: Bulk) -> None:
    await bulk.start()
    await bulk.post("/workflows", {**ORDERS, "description": "other"}, status=201)
    await bulk.ask("move")
    await bulk.step()
    await bulk.apply_requests()
    assert await wrong(bulk) == []
    bulk.query("UPDATE bulk SET finished_at = now()")
    (found,) = await wrong(bulk)
    assert "is paused to be moved, and no bulk has it in hand" in found
    bulk.query("DELETE FROM bulk_item")
    (found,) = await wrong(bulk)
    assert "is paused to be moved, and no bulk has it in hand" in found


async def test_a_move_that_is_stopped_or_takes_too_long_lets_go_what_it_paused(bulk: Bulk) -> None:
    slow = await bulk.start()
    await bulk.post("/workflows", {**ORDERS, "description": "other"}, status=201)
    asked = await bulk.ask("move")
    assert await bulk.step()
    stopped = await bulk.post(f"/bulk/{asked['bulk_id']}/stop", status=200)
    assert stopped["status"] == "running", "it has paused a run, or will have"
    await bulk.apply_requests()
    assert await bulk.statuses(slow) == ["pausing"]
    over = await bulk.over(asked["bulk_id"])
    assert (over["status"], over["stopped"]) == ("stopped", 1)
    await bulk.apply_requests()
    assert await bulk.statuses(slow) == ["running"]
    asked = await bulk.ask("move")
    assert await bulk.step()
    await bulk.apply_requests()
    bulk.query("UPDATE bulk_item SET asked_at = asked_at - interval '700 s' WHERE outcome IS NULL")
    over = await bulk.over(asked["bulk_id"])
    assert over["refusals"] == [{"reason": "something of it still ran after 600 s", "count": 1}]
    await bulk.apply_requests()
    run = await bulk.read(f"/runs/{slow}")
    assert (run["version"], run["status"]) == (1, "running")


async def test_a_move_that_is_stopped_in_the_middle_of_a_step_lets_go_what_that_step_paused(bulk: Bulk) -> None:
    run_id = await bulk.start()
    await bulk.post("/workflows", {**ORDERS, "description": "other"}, status=201)
    asked = await bulk.ask("move")
    async with bulk.connection() as connection, connection.transaction():
        assert await step(connection, bulk.store, bulk.plans) == 1
        stopping = asyncio.create_task(bulk.post(f"/bulk/{asked['bulk_id']}/stop", status=200))
        await bulk.until_something_waits()
    assert (await stopping)["status"] == "running", "it has paused a run"
    await bulk.apply_requests()
    assert (await bulk.over(asked["bulk_id"]))["stopped"] == 1
    await bulk.apply_requests()
    assert await bulk.statuses(run_id) == ["running"]


async def test_a_run_that_ends_or_is_paused_by_a_person_meanwhile_is_no_trouble_for_its_move(bulk: Bulk) -> None:
    ends, held = await bulk.start(), await bulk.start()
    await bulk.post("/workflows", {**ORDERS, "description": "other"}, status=201)
    asked = await bulk.ask("move")
    assert await bulk.step()
    await bulk.apply_requests()
    await bulk.post(f"/runs/{ends}/cancel")
    await bulk.post(f"/runs/{held}/pause")
    await bulk.post(f"/runs/{held}/resume", status=409)  # the pause is not applied yet
    await bulk.apply_requests()
    await bulk.succeed(held, output=b'{"total": 1}')
    over = await bulk.over(asked["bulk_id"])
    assert (over["done"], over["refusals"]) == (1, [{"reason": "the run is cancelled already", "count": 1}])
    await bulk.apply_requests()
    assert await bulk.statuses(ends, held) == ["cancelled", "paused"]
    assert (await bulk.read(f"/runs/{held}"))["version"] == 2


async def test_runs_are_paused_and_resumed(bulk: Bulk) -> None:
    runs = [await bulk.start() for _ in range(2)]
    for act, status in (("pause", "pausing"), ("resume", "running")):
        asked = await bulk.ask(act)
        assert (await bulk.over(asked["bulk_id"]))["done"] == 2
        await bulk.apply_requests()
        assert await bulk.statuses(*runs) == [status] * 2
        assert (await bulk.read(f"/bulk/{asked['bulk_id']}"))["later"] == {status: 2}
    await bulk.ask("resume", status=409)  # none is paused any more


async def test_of_two_bulks_that_ask_the_same_one_has_each_run_but_another_act_has_its_own(bulk: Bulk) -> None:
    runs = [await bulk.start() for _ in range(5)]
    body = {"act": "pause", "filter": "workflow:orders", **FAST}
    answers = await asyncio.gather(*(bulk.api.post("/bulk", json=body) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 3
    cancel = await bulk.ask("cancel")
    assert cancel["selected"] == 5
    for each in (await bulk.read("/bulk"))["items"]:
        await bulk.over(each["bulk_id"])
    assert bulk.query("SELECT kind, count(*) FROM inbox GROUP BY kind ORDER BY kind") == [
        ("cancelled", 5),
        ("paused", 5),
    ]
    await bulk.apply_requests()
    assert await bulk.statuses(*runs) == ["cancelled"] * 5


async def test_a_stopped_bulk_asks_nothing_more(bulk: Bulk) -> None:
    for _ in range(3):
        await bulk.start()
    asked = await bulk.ask("cancel", rate=0.5)
    assert await bulk.step() == 1
    stopped = await bulk.post(f"/bulk/{asked['bulk_id']}/stop", who="bob", status=200)
    assert [stopped[name] for name in ("status", "stopped_by", "done", "stopped")] == ["stopped", "bob", 1, 2]
    await bulk.post(f"/bulk/{asked['bulk_id']}/stop", status=409)
    bulk.query("UPDATE bulk SET next_at = now()")
    assert await bulk.step() == 0
    assert bulk.query("SELECT count(*) FROM inbox") == [(1,)]


async def test_a_bulk_with_one_idempotency_key_is_one(bulk: Bulk) -> None:
    await bulk.start()
    body, headers = {"act": "cancel", "filter": "workflow:orders"}, {"Idempotency-Key": "k"}
    answers = [await bulk.api.post("/bulk", json=body, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["bulk_id"] == answers[1].json()["bulk_id"]


async def test_items_are_paged_and_each_comes_once(bulk: Bulk) -> None:
    runs = [await bulk.start() for _ in range(5)]
    asked = await bulk.ask("cancel")
    found, page = [], None
    while True:
        query = {"limit": 2} | ({} if page is None else {"page": page})
        answer = await bulk.read(f"/bulk/{asked['bulk_id']}/items", **query)
        found += [item["run_id"] for item in answer["items"]]
        if (page := answer["next"]) is None:
            break
    assert found == runs


async def test_replays_of_letters_stand_with_the_other_bulks(bulk: Bulk) -> None:
    ((_, letter),) = await bulk.bury()
    replay = await bulk.post("/dead-letters/replay", {"filter": "workflow:orders", **FAST})
    (listed,) = (await bulk.read("/bulk"))["items"]
    assert (listed["bulk_id"], listed["act"]) == (replay["replay_id"], "replay")
    await bulk.over(replay["replay_id"])
    await bulk.apply_requests()
    (item,) = await bulk.items(replay["replay_id"])
    assert (item["dead_letter_id"], item["run_id"], item["later"]) == (letter, None, "pending")
    await bulk.start()
    cancel = await bulk.ask("cancel")
    assert (await bulk.api.get(f"/dead-letters/replays/{cancel['bulk_id']}")).status_code == 404


# == crashes and races =================================================================================================
async def test_a_step_takes_the_same_statements_for_one_run_as_for_many(bulk: Bulk) -> None:
    for _ in range(30):
        await bulk.start()
    counts = []
    for ids in (1, 29):
        chosen = bulk.query("SELECT run_id FROM run WHERE status = 'running' ORDER BY run_id LIMIT %s", ids)
        await bulk.ask("cancel", run_ids=[str(run_id) for (run_id,) in chosen])
        bulk.query("UPDATE bulk SET next_at = now() - interval '1 s' WHERE finished_at IS NULL")
        before = _statements(bulk)
        assert await bulk.step() == ids
        counts.append(_statements(bulk) - before)
        await bulk.apply_requests()
    assert counts[0] == counts[1]


def _statements(bulk: Bulk) -> int:
    """What the sweep's connections executed, as far as the test can tell: calls of psycopg's execute."""
    return len(EXECUTED)


EXECUTED: list[object] = []


@pytest.fixture(autouse=True)
def _count_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    EXECUTED.clear()
    of = psycopg.AsyncCursor.execute

    async def counted(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        EXECUTED.append(query)
        return await of(self, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counted)


async def test_a_step_that_dies_before_its_commit_asks_nothing(bulk: Bulk) -> None:
    for _ in range(3):
        await bulk.start()
    asked = await bulk.ask("cancel")
    bulk.query("UPDATE bulk SET next_at = now() - interval '1 s'")
    dying = await psycopg.AsyncConnection.connect(bulk.dsn)
    assert await step(dying, bulk.store, bulk.plans) == 3
    bulk.query("SELECT pg_terminate_backend(%s)", dying.info.backend_pid)
    await dying.close()
    assert bulk.query("SELECT count(*) FROM inbox") == [(0,)]
    assert (await bulk.over(asked["bulk_id"]))["done"] == 3
    assert bulk.query("SELECT count(*), count(DISTINCT run_id) FROM inbox") == [(3, 3)]


@pytest.fixture
def sweep(bulk: Bulk) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Start a process that carries bulks out."""
    with sweeps(bulk) as start:
        yield start


async def test_a_bulk_killed_half_way_while_runs_end_asks_each_run_once(
    bulk: Bulk, sweep: Callable[[], "subprocess.Popen[bytes]"]
) -> None:
    runs = [await bulk.start() for _ in range(40)]
    asked = await bulk.ask("cancel", rate=10)
    done, deadline = "SELECT count(*) FROM bulk_item WHERE outcome IS NOT NULL", time.monotonic() + 120
    ended = []
    for wanted in (13, 26, 40):
        process = sweep()
        while bulk.query(done)[0][0] < wanted:
            assert time.monotonic() < deadline
            assert process.poll() is None
            if len(ended) < 10:  # meanwhile some end by themselves, the last first
                ended.append(runs[-1 - len(ended)])
                await bulk.fail(ended[-1])
            await bulk.apply_requests()
        process.kill()
        process.wait()
    await bulk.apply_requests()
    assert bulk.query("SELECT max(asked) FROM (SELECT count(*) AS asked FROM inbox GROUP BY run_id) AS each") == [(1,)]
    statuses = dict(zip(runs, await bulk.statuses(*runs), strict=True))
    shown = {item["run_id"]: item for item in await bulk.items(asked["bulk_id"])}
    assert len(shown) == 40
    for run_id, status in statuses.items():
        item = shown[run_id]
        assert (status, item["outcome"], item["later"]) in {
            ("cancelled", "done", "cancelled"),
            ("failed", "refused", None),
            ("failed", "done", "overtaken"),
        }
    assert list(statuses.values()).count("failed") <= 10
