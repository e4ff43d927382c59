"""Pauses of a workflow: what is open is told, what is started meanwhile begins paused, and all of it goes on."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import httpx
import psycopg
import pytest

from headrace.graph import parse
from headrace.machine import compile_plan
from headrace.messages import decode_command
from state.doctor import examine
from state.pauses import STEP_MAX
from state.sql import load
from state.starts import Start, start_runs
from streams.pauses import Pauses, QueuePauses
from tests.integration.desk import ORDERS, Desk, open_desk

PAUSE, RESUME = "/workflows/orders/pause", "/workflows/orders/resume"


class Works(Desk):
    """The same, and workflows that are paused."""

    async def align(self) -> int:
        """A pass of the sweep, and what it has said applied."""
        async with self.connection() as connection:
            told = await Pauses(self.store).align(connection)
        await self.apply_requests()
        return told

    async def statuses(self, *run_ids: str) -> list[str]:
        return [(await self.read(f"/runs/{run_id}"))["status"] for run_id in run_ids]

    async def check(self) -> None:
        async with self.connection() as connection:
            found = await examine(connection)
        wrong = [one for one in found if not one.ok and one.name not in ("relay", "server", "sweeps", "ticks", "slot")]
        assert not wrong, wrong


@pytest.fixture
async def works(database: str) -> AsyncIterator[Works]:
    async with open_desk(Works, database, ORDERS, {**ORDERS, "name": "others"}) as made:
        yield made


async def test_open_runs_of_a_paused_workflow_are_told_and_others_are_not(works: Works) -> None:
    busy, other = await works.start({"id": 1}), await works.start({"id": 1}, workflow="others")
    answer = await works.post(PAUSE, {"reason": "the bank is away"})
    assert answer == {"workflow": "orders", "paused": True}
    (listed,) = (await works.read("/pauses"))["items"]
    assert (listed["runs"], listed["reason"], listed["paused_by"]) == ({"running": 1}, "the bank is away", "ana")
    assert await works.align() == 1
    assert await works.statuses(busy, other) == ["pausing", "running"]
    await works.succeed(busy, output=b'{"total": 1}')  # what was handed out counts, and what follows is withheld
    assert await works.statuses(busy) == ["paused"]
    assert (await works.read("/pauses"))["items"][0]["runs"] == {"paused": 1}
    assert await works.align() == 0  # nobody is told twice
    await works.check()
    await works.post(RESUME, {"reason": "it is back"})
    assert await works.align() == 1
    assert await works.statuses(busy) == ["running"]
    assert (await works.read("/pauses"))["items"] == []
    history = [
        (item["kind"], item["actor"], (item["detail"] or {}).get("reason"))
        for item in (await works.read(f"/runs/{busy}/history"))["items"]
        if item["kind"] in ("paused", "resumed")
    ]
    assert history == [("paused", "ana", "the bank is away"), ("resumed", "ana", "it is back")]
    await works.check()


async def test_a_run_that_undoes_what_it_did_is_paused_with_its_workflow(database: str) -> None:
    once = {"attempts": 1}
    tasks = {
        "pay": {"run": "payments.charge", "compensate": "payments.refund"},
        "ship": {"run": "shipping.ship", "needs": ["pay"], "retry": once},
    }
    async with open_desk(Works, database, {"name": "orders", "tasks": tasks}) as works:
        run_id = await works.start()
        await works.succeed(run_id)
        await works.fail(run_id, 1)
        assert await works.statuses(run_id) == ["compensating"]
        await works.post(PAUSE)
        assert (await works.read("/pauses"))["items"][0]["runs"] == {"compensating": 1}
        assert await works.align() == 1
        assert await works.statuses(run_id) == ["pausing"]
        await works.check()
        await works.post(RESUME)
        assert await works.align() == 1
        assert await works.statuses(run_id) == ["compensating"]


async def test_a_run_that_is_started_while_its_workflow_is_paused_begins_paused(works: Works) -> None:
    await works.post(PAUSE, {"reason": "to look"})
    works.published("headrace.commands.default")
    run_id = await works.start({"id": 1})
    assert await works.statuses(run_id) == ["paused"]
    assert works.commands() == []
    explained = await works.read(f"/runs/{run_id}/explain")
    (cause,) = [cause for cause in explained["causes"] if cause["code"] == "PAUSED"]
    assert "paused with its workflow orders" in cause["text"]
    assert "by ana: to look" in cause["text"]
    assert cause["acts"] == [{"cli": "headrace resume workflow orders", "api": "POST /workflows/orders/resume"}]
    assert await works.align() == 0  # it knows
    await works.check()
    await works.post(f"/runs/{run_id}/resume", status=409)
    await works.post(RESUME)
    assert await works.align() == 1
    assert [command.name for command in works.commands()] == ["validate"]
    assert await works.statuses(run_id) == ["running"]
    await works.check()


async def test_runs_that_records_start_begin_paused_too(works: Works) -> None:
    await works.post(PAUSE)
    ((version_id,),) = works.query("SELECT version_id FROM workflow_version WHERE name = 'orders'")
    ((other_id,),) = works.query("SELECT version_id FROM workflow_version WHERE name = 'others'")
    plans = [
        compile_plan(parse(httpx.Response(200, json={**ORDERS, "name": name}).text), version_id=id_)
        for name, id_ in (("orders", version_id), ("others", other_id))
    ]
    with psycopg.connect(works.dsn) as connection:
        starts = [Start(plan, b"{}", key=f"k{n}") for n, plan in enumerate(plans)]
        started = start_runs(connection, works.store, starts, "default", works.clock.now())
    assert await works.statuses(*[run_id for run_id, _ in started]) == ["paused", "running"]
    await works.check()


async def test_a_pause_that_is_applied_when_nobody_knows_of_it_any_more_is_ended(works: Works) -> None:
    """Its request lay in a backlog, longer than the pause lasted and is remembered."""
    run_id = await works.start({"id": 1})
    await works.post(PAUSE)
    async with works.connection() as connection:
        assert await Pauses(works.store).align(connection) == 1
    await works.post(RESUME)
    works.query("UPDATE workflow_pause SET resumed_at = now() - interval '2 min'")
    async with works.connection() as connection:
        assert await Pauses(works.store).align(connection) == 0
    assert works.query("SELECT count(*) FROM workflow_pause") == [(0,)]
    await works.apply_requests()
    assert await works.statuses(run_id) == ["pausing"]
    assert await works.align() == 1
    assert await works.statuses(run_id) == ["running"]
    await works.check()


async def test_a_run_that_is_rerun_or_started_past_the_pause_is_found(works: Works) -> None:
    ((failed, _),) = await works.bury()
    raced = await works.start()
    works.query("UPDATE run SET created_at = now() WHERE run_id = %s", raced)
    await works.post(PAUSE)
    assert await works.align() == 1
    await works.post(f"/runs/{failed}/rerun")
    await works.apply_requests()
    assert await works.statuses(failed) == ["running"]
    assert await works.align() == 1
    assert await works.statuses(failed, raced) == ["pausing", "pausing"]


async def test_a_run_that_is_paused_by_itself_goes_on_when_neither_pauses_it(works: Works) -> None:
    run_id = await works.start()
    await works.post(f"/runs/{run_id}/pause")
    await works.apply_requests()
    await works.post(PAUSE)
    await works.align()
    await works.post(RESUME)
    await works.align()
    assert await works.statuses(run_id) == ["pausing"]
    await works.post(f"/runs/{run_id}/resume")
    await works.apply_requests()
    assert await works.statuses(run_id) == ["running"]


async def test_a_workflow_is_paused_and_resumed_once(works: Works) -> None:
    await works.post("/workflows/nope/pause", status=404)
    await works.post("/workflows/nope/resume", status=404)
    await works.post(RESUME, status=409)
    await works.post(PAUSE)
    response = await works.api.post(PAUSE, json={})
    assert response.status_code == 409
    assert "by ana" in response.json()["detail"]
    await works.post(RESUME)
    await works.post(RESUME, status=409)
    await works.post(PAUSE)  # also while the row of the last pause is still there


async def test_a_pause_and_a_resume_at_once_leave_no_run_behind(works: Works) -> None:
    runs = [await works.start() for _ in range(5)]
    await works.post(PAUSE)
    async with works.connection() as connection:
        assert await Pauses(works.store).align(connection) == 5  # told, and not applied
    await works.post(RESUME)
    assert await works.align() == 0  # what was asked first comes first
    assert await works.align() == 5
    assert await works.statuses(*runs) == ["running"] * 5


async def test_the_row_is_forgotten_once_no_run_is_left_and_no_start_can_have_seen_it(works: Works) -> None:
    run_id = await works.start()
    await works.post(PAUSE)
    await works.align()
    await works.post(RESUME)
    works.query("UPDATE workflow_pause SET paused_at = now() - interval '9 min', resumed_at = now() - interval '5 min'")
    assert await works.align() == 1
    assert works.query("SELECT count(*) FROM workflow_pause") == [(1,)]
    assert await works.align() == 0
    assert works.query("SELECT count(*) FROM workflow_pause") == [(0,)]
    assert await works.statuses(run_id) == ["running"]


async def test_a_pass_tells_a_bounded_number_and_a_pass_without_a_pause_looks_at_no_run(works: Works) -> None:
    async with works.connection() as connection:
        assert await Pauses(works.store).align(connection) == 0
    first = await works.start()
    works.query(
        """INSERT INTO run (run_id, version_id, status, row_version, input)
           SELECT gen_random_uuid(), version_id, 'running', 1, '{}' FROM run, generate_series(1, %s)
           WHERE run_id = %s""",
        STEP_MAX + 5,
        first,
    )
    await works.post(PAUSE)
    async with works.connection() as connection:
        assert await Pauses(works.store).align(connection) == STEP_MAX
        assert await Pauses(works.store).align(connection) == 6


# == queues ============================================================================================================
COMMANDS = "headrace.commands.default"


async def learn(works: Works) -> int:
    """The sweep of a process that hands out: what it lets go."""
    async with works.connection() as connection:
        return await QueuePauses(works.store).release(connection)


async def test_what_is_handed_out_to_a_paused_queue_is_kept_back_and_let_go(works: Works) -> None:
    before = await works.start({"id": 1})
    assert len(works.published(COMMANDS)) == 1
    assert await works.post("/queues/default/pause", {"reason": "a bad image"}) == {"queue": "default", "paused": True}
    assert await learn(works) == 0
    started = await works.start({"id": 1})
    await works.succeed(before, output=b'{"total": 1}')  # what was handed out goes on, and its successor waits
    assert works.published(COMMANDS) == []
    assert await works.statuses(before, started) == ["running", "running"]
    (listed,) = (await works.read("/queues/pauses"))["items"]
    assert (listed["queue"], listed["held"], listed["reason"], listed["paused_by"]) == (
        "default",
        2,
        "a bad image",
        "ana",
    )
    explained = await works.read(f"/runs/{started}/explain")
    cause = explained["causes"][0]
    assert (cause["code"], cause["acts"][0]["cli"]) == ("QUEUE_PAUSED", "headrace resume queue default")
    assert "by ana: a bad image" in cause["text"]
    await works.check()
    await works.post("/queues/default/resume")
    assert await learn(works) == 2
    names = [decode_command(record.value).name for record in works.published(COMMANDS)]
    assert names == ["validate", "charge"]
    await works.succeed(started, output=b'{"total": 1}')
    assert await learn(works) == 0
    assert len(works.published(COMMANDS)) == 1
    assert works.query("SELECT run_id::text, task FROM held_command") == [(before, 1)]  # until its task has moved on
    await works.check()


async def test_what_has_moved_on_meanwhile_is_not_let_go(works: Works) -> None:
    await works.post("/queues/default/pause")
    cancelled, kept = await works.start(), await works.start()
    await works.post(f"/runs/{cancelled}/cancel")
    await works.apply_requests()
    works.published(COMMANDS)
    await works.post("/queues/default/resume")
    assert await learn(works) == 2
    assert [record.key.decode() for record in works.published(COMMANDS)] == [kept]


async def test_a_command_that_is_kept_back_is_not_called_lost(works: Works) -> None:
    await works.post("/queues/default/pause")
    run_id = await works.start()
    works.query("UPDATE task SET changed_at = now() - interval '1 hour'")
    assert await lost_before(works) == []
    await works.post("/queues/default/resume")
    await learn(works)
    assert await lost_before(works) == []
    works.query("UPDATE held_command SET released_at = now() - interval '30 min'")
    assert await lost_before(works) == [run_id]


async def lost_before(works: Works) -> list[str]:
    """What would be called lost when everything up to a minute ago is known to have been received."""
    async with works.connection() as connection:
        cursor = psycopg.AsyncRawCursor(connection)
        at = datetime.now(UTC) - timedelta(minutes=1)
        found = await (await cursor.execute(load("sweep").text("find_lost_queued"), (at, 10))).fetchall()
    return [str(row[0]) for row in found]


async def test_runs_that_records_start_are_kept_back_by_what_their_process_knows(works: Works) -> None:
    await works.post("/queues/default/pause")
    await learn(works)
    ((version_id,),) = works.query("SELECT version_id FROM workflow_version WHERE name = 'orders'")
    plan = compile_plan(parse(httpx.Response(200, json=ORDERS).text), version_id=version_id)
    with psycopg.connect(works.dsn) as connection:
        start_runs(connection, works.store, [Start(plan, b"{}", key="k")], "default", works.clock.now())
    assert works.published(COMMANDS) == []
    assert works.query("SELECT count(*) FROM held_command") == [(1,)]


async def test_a_queue_is_paused_and_resumed_once(works: Works) -> None:
    await works.post("/queues/nope/pause", status=404)
    await works.post("/queues/default/resume", status=409)
    await works.post("/queues/default/pause")
    await works.post("/queues/default/pause", status=409)
    await works.post("/queues/default/resume")
