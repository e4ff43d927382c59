"""Cases on a real Postgres: the agents and sweeps of the engine, with the test as relay, workers and clock."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any

import msgspec
import pytest

from connectors.ownership import Ownership as RelayOwnership
from headrace.messages import (
    Error,
    Event,
    Failed,
    Heartbeat,
    Lost,
    Renewed,
    Requested,
    Returned,
    Started,
    Succeeded,
    Tick,
    effect_key,
    encode,
)
from state.pipe import Pipe
from state.requests import Kind, request
from tests.conformance.world import EVENTS, LEASE_SECONDS, WORKERS, Streams, World, new_session

SHOP = "shop.orders"
AGAIN = {"attempts": 3, "delay": 0, "jitter": 0}
LINE: dict[str, Any] = {
    "name": "line",
    "tasks": {"a": {"run": "t.a", "retry": AGAIN}, "b": {"run": "t.b", "needs": ["a"]}},
}
ONE: dict[str, Any] = {"name": "one", "tasks": {"a": {"run": "t.a", "retry": AGAIN}}}
PAIR: dict[str, Any] = {"name": "pair", "tasks": {"a": {"run": "t.a"}, "b": {"run": "t.b"}}}
ASK: dict[str, Any] = {"name": "ask", "tasks": {"ok": {"approval": {"title": "ok?", "expires": "1h"}}}}


def alone(**options: Any) -> dict[str, Any]:
    return {"name": "alone", "tasks": {"a": {"run": "t.a", "retry": AGAIN, **options}}}


async def held(world: World, definition: dict[str, Any] = ONE) -> tuple[str, str]:
    """A run whose first task runs under a session that lists it: (run id, session id)."""
    run_id, session = await world.start(definition), new_session()
    await world.settle()
    await world.begin(run_id, session)
    world.beat(session, 1, (run_id, 0, 1))
    await world.settle()
    return run_id, session


def make_old(world: World) -> None:
    """Whatever is there was so an hour ago already."""
    world.query("UPDATE task SET changed_at = changed_at - interval '1 hour'")


async def ask(world: World, run_id: str, kind: Kind, body: dict[str, Any]) -> str:
    async with world.connection() as connection, connection.transaction():
        return await request(connection, world.store, run_id, kind, body, "ann")


TABLES = ("run", "task", "attempt", "history", "timer", "held_task", "approval", "parked_task", "dead_letter")


def picture(world: World) -> list[Any]:
    """All that a run consists of."""
    return [world.query(f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in TABLES]  # noqa: S608  # names above


# == two owners, one task ==============================================================================================
async def test_b01_a_stale_sweep_changes_nothing(world: World) -> None:
    run_id, session = await held(world)
    make_old(world)
    world.let_expire(session)
    one, two = world.one, await world.streams("two")
    assert await one.sweep("sessions") == 1
    first = world.committed_records()
    assert await two.sweep("lost") == 1, "it has found the same, and does not know of the other"
    for record in first:
        world.append(record.topic, record.key, record.value)
    await two.read(EVENTS)
    await world.begin(run_id, new_session())
    world.relay()
    await world.settle()
    lost = [record.value() for record in world.logs[EVENTS] if b'"lost"' in (record.value() or b"")]
    assert len(lost) == 2
    assert world.tasks(run_id) == [("running", 2, 2)]
    assert world.hand_outs(run_id) == [("a", 1, 1), ("a", 2, 2)]


async def test_b02_a_process_that_starts_adopts_nothing_that_has_just_begun(world: World) -> None:
    run_id, session = await world.start(ONE), new_session()
    await world.settle()
    world.received = len(world.logs["headrace.commands.default"])
    started = await world.streams("started a millisecond later")

    async def looks(*marks: str) -> int:
        found = 0
        for mark in marks:
            world.watermark(mark)
            found += await started.sweep("sessions") + await started.sweep("lost")
        return found

    assert await looks("0 s", "1 s", "5 s") == 0
    world.say(run_id, Started(*world.current(run_id), session=session, worker="w"))
    await world.settle()  # its first heartbeat is still on its way
    assert await looks("5 s", "6 s") == 0
    world.beat(session, 1, (run_id, 0, 1))
    await world.settle()
    make_old(world)
    assert await looks("7 s", "8 s") == 0
    await world.succeed(run_id)
    assert world.hand_outs(run_id) == [("a", 1, 1)]


async def test_b05_heartbeats_that_waited_in_the_log_keep_a_task_after_the_agents_were_away(world: World) -> None:
    run_id, session = await held(world)
    make_old(world)
    world.query("UPDATE worker_session SET expires_at = now() - interval '5 minutes'")
    world.watermark("-6 minutes")  # the agents were killed here; the worker is well
    for seq in range(2, 12):
        world.beat(session, seq, (run_id, 0, 1))
    world.tick()
    await world.streams("the next life")
    assert await world.one.sweep("sessions") + await world.one.sweep("lost") == 0, "before it has read the log"
    await world.settle()
    assert await world.one.sweep("sessions") + await world.one.sweep("lost") == 0
    await world.succeed(run_id)
    assert world.attempts(run_id) == [(1, "completed")]


async def test_b05_a_tick_from_the_future_ends_no_session(world: World) -> None:
    _, session = await held(world)
    ((now,),) = world.query("SELECT (extract(epoch FROM now()) * 1000000)::bigint")
    world.append(WORKERS, b"tick", encode(Tick(now + 3_600_000_000)))
    await world.settle()
    assert await world.one.sweep("sessions") == 0
    assert world.query("SELECT ended_at FROM worker_session WHERE session_id = %s", session) == [(None,)]


async def test_b07_a_delay_lives_in_the_timer_table_and_in_no_worker(world: World) -> None:
    run_id = await world.start(ONE)
    await world.settle()
    processes = [world.one, await world.streams("two"), await world.streams("three")]
    await world.fail(run_id, retry_after=0.6)
    ((due_at,),) = world.query("SELECT due_at FROM timer")
    assert sum(await asyncio.gather(*(process.sweep("timers") for process in processes))) == 0
    assert world.hand_outs(run_id) == [("a", 1, 1)], "no worker has it"
    while len(world.hand_outs(run_id)) == 1:
        await asyncio.gather(*(process.sweep("timers") for process in processes))
        await world.settle()
    assert world.query("SELECT changed_at >= %s FROM task", due_at) == [(True,)]
    make_old(world)
    assert sum([await process.sweep("timers") for process in processes]) == 0
    assert world.hand_outs(run_id) == [("a", 1, 1), ("a", 2, 2)]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_b42_what_a_fenced_worker_let_go_of_goes_to_another_at_once(world: World, has_begun: bool) -> None:
    run_id, session = await world.start(ONE), new_session()
    await world.settle()
    world.beat(session, 1)
    world.beat(session, 2, (run_id, 0, 1), ended=True)
    if has_begun:
        await world.begin(run_id, session)
    await world.settle()
    assert await world.one.sweep("sessions") == 1, "nobody waits until it was unlisted for a lease"
    await world.settle()
    assert world.hand_outs(run_id) == [("a", 1, 1), ("a", 2, 2) if has_begun else ("a", 1, 2)]
    assert world.query("SELECT held FROM worker_session") == [(0,)]


async def test_b08_nothing_that_a_frozen_worker_says_when_it_wakes_is_written(world: World) -> None:
    run_id, frozen = await held(world)
    world.let_expire(frozen)
    await world.one.sweep("sessions")
    await world.settle()
    await world.begin(run_id, other := new_session())
    world.beat(other, 1, (run_id, 0, 2))
    await world.settle()
    before, answered = picture(world), len(world.control())
    old = world.hand_out(run_id, 0, 1)
    late: list[Event] = [
        Failed(*old, Error("ERROR", "late"), frozen, "w"),
        Failed(*old, Error("ERROR", "late", retryable=False), frozen, "w"),
        Succeeded(*old, frozen, "w", output=msgspec.Raw(b'"late"')),
        Returned(*old, begun=True, session=frozen),
        Returned(*old, begun=False, session=frozen),
        Started(*old, frozen, "w", claim=True),
        Lost(*old, begun=True, session=frozen),
        Lost(*world.current(run_id), begun=True, session=frozen),  # its parent means the hand-out that it held
        Returned(*world.current(run_id), begun=False, session=frozen),
    ]
    world.say(run_id, *late)
    for seq, token in ((7, 1), (8, 2)):
        world.beat(frozen, seq, (run_id, 0, token), details=[(run_id, 0, token, msgspec.Raw(b'"half"'))])
    await world.settle()
    assert picture(world) == before
    assert not [said for said in world.control()[answered:] if isinstance(said, Renewed) and said.session == frozen]
    await world.succeed(run_id)
    assert world.attempts(run_id) == [(1, "lost"), (2, "completed")]


# == who owns, and under which name ====================================================================================
@pytest.mark.parametrize("topic", [EVENTS, WORKERS, SHOP])
async def test_b12_of_two_processes_that_think_they_own_a_topic_one_writes(world: World, topic: str) -> None:
    run_id = await world.start(ONE)
    await world.settle()
    subscribe(world)
    former = world.one
    former.triggers.look()
    await former.own(topic)
    successor = await world.streams("successor")
    successor.triggers.look()
    await successor.own(topic)
    world.say(run_id, Succeeded(*world.current(run_id), worker="w"))
    world.beat(session := new_session(), 1)
    world.append(SHOP, b"k", b"{}")
    before = picture(world)
    await former.read(topic)
    assert former.ownership.fenced == 1
    assert picture(world) == before
    assert world.query("SELECT count(*) FROM worker_session") == [(0,)]
    await successor.read(topic)
    written = {
        EVENTS: world.status(run_id) == "completed",
        WORKERS: world.query("SELECT replace(session_id::text, '-', '') FROM worker_session") == [(session,)],
        SHOP: world.query("SELECT count(*) FROM run") == [(2,)],
    }
    assert [name for name, is_written in written.items() if is_written] == [topic]


def test_b12_a_relay_whose_renewals_are_rolled_back_gives_up_by_its_own_clock(world: World) -> None:
    one, two = (RelayOwnership(world.dsn, "b12", name, 1.0) for name in ("one", "two"))
    world.query(
        "CREATE FUNCTION roll_back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'rolled back'; END $$"
    )
    try:
        assert one.claim()
        assert one.is_held()
        world.query(
            "CREATE TRIGGER roll_back BEFORE UPDATE ON relay_owner FOR EACH ROW "
            "WHEN (new.owner = 'one') EXECUTE FUNCTION roll_back()"
        )
        wait_for(lambda: not one.is_held())
        wait_for(two.claim)
        world.query("DROP TRIGGER roll_back ON relay_owner")
        wait_for(lambda: two.is_held())
        assert not one.is_held()
        one.release()
        assert world.query("SELECT owner, epoch, renewed_at > now() - interval '5 s' FROM relay_owner") == [
            ("two", 2, True)
        ]
    finally:
        for ownership in (one, two):
            ownership.release()
            ownership.close()
        world.query("DROP FUNCTION roll_back CASCADE")


def wait_for(fact: Callable[[], bool], seconds: float = 20.0) -> None:
    give_up_at = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


@pytest.mark.parametrize("gone", ["its session", "its session and the list", "the list"])
async def test_b17_a_holder_whose_rows_were_pruned_first_still_loses_its_task(world: World, gone: str) -> None:
    run_id, session = await held(world)
    make_old(world)
    if gone != "the list":
        world.query("DELETE FROM worker_session WHERE session_id = %s", session)
    if gone != "its session":
        world.query("DELETE FROM held_task")
    world.watermark()
    assert await world.one.sweep("lost") == 1
    await world.settle()
    assert world.tasks(run_id) == [("queued", 1, 2)]


@pytest.mark.parametrize("attempts", [3, 1])
async def test_b20_a_worker_that_comes_back_under_its_name_does_not_hide_what_its_former_life_held(
    world: World, attempts: int
) -> None:
    definition = alone(retry={"attempts": attempts, "delay": 0})
    run_id, former = await held(world, definition)
    again = new_session()
    world.let_expire(former)
    for seq in range(1, 4):
        world.beat(again, seq)  # the same worker name
    await world.settle()
    assert await world.one.sweep("sessions") == 1
    await world.settle()
    if attempts == 1:
        assert (world.status(run_id), world.reason(run_id)) == ("failed", "WORKER_LOST")
        assert world.query("SELECT reason FROM dead_letter") == [("WORKER_LOST",)]
    else:
        assert world.tasks(run_id) == [("queued", 1, 2)]
    assert world.query("SELECT count(*) FROM held_task") == [(0,)]


async def test_b20_a_run_that_failed_by_a_lost_worker_holds_up_no_other_and_keeps_its_key(world: World) -> None:
    once = alone(retry=1)
    run_id = await world.start(once, key="order-7")
    await world.settle()
    await world.begin(run_id, new_session())
    world.say(run_id, Lost(*world.current(run_id), begun=True))
    await world.settle()
    assert await world.start(once, key="order-7") == run_id, "one key, one run: it can be replayed"
    other = await world.start(once, key="order-7, again")
    await world.settle()
    await world.succeed(other)
    assert (world.status(run_id), world.status(other)) == ("failed", "completed")
    await ask(world, run_id, "replayed", {"task": 0, "token": 1})
    await world.settle()
    await world.succeed(run_id)
    assert world.status(run_id) == "completed"


# == stuck or lost =====================================================================================================
@pytest.mark.parametrize("moment", ["before its commit", "behind its commit"])
async def test_b22_an_agent_that_dies_between_two_tasks_leaves_no_run_stuck(
    world: World, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b", "c", "d"]
    tasks = {name: {"run": "t", "needs": names[:n][-1:]} for n, name in enumerate(names)}
    run_id = await world.start({"name": "four", "tasks": tasks})
    await world.settle()
    collect, where = Pipe._collect, "run" if moment == "before its commit" else "_collect"

    def die(pipe: Pipe, *calls: Any) -> None:
        if not calls:
            collect(pipe)
        raise SystemExit

    for number, _ in enumerate(names):
        world.say(run_id, Succeeded(*world.current(run_id, number), worker="w"))
        with monkeypatch.context() as patch:
            patch.setattr(Pipe, where, die)
            with pytest.raises(SystemExit):
                await world.one.read(EVENTS)
        await world.streams(f"life {number}")
        await world.settle()
    assert world.status(run_id) == "completed"
    assert world.hand_outs(run_id) == [(name, 1, 1) for name in names]
    assert world.attempts(run_id) == [(1, "completed")] * 4
    assert world.has_gapless_history(run_id)


async def in_backoff(world: World) -> str:
    run_id = await world.start(ONE)
    await world.settle()
    await world.fail(run_id, retry_after=3600.0)
    return run_id


async def out_of_time(world: World) -> str:
    run_id = await world.start(alone(timeout="1h"))
    await world.settle()
    await world.begin(run_id, new_session())
    return run_id


async def before_a_lookup(world: World) -> str:
    run_id = await world.start(
        alone(effect="reconcile", lookup="t.find", retry={"attempts": 3, "delay": "1m", "jitter": 0})
    )
    await world.settle()
    world.say(run_id, Started(*world.current(run_id), session=new_session(), claim=True))
    world.say(run_id, Lost(*world.current(run_id), begun=True))
    await world.settle()
    await world.fail(run_id)
    return run_id


async def in_a_wait(world: World) -> str:
    run_id = await world.start({"name": "wait", "tasks": {"a": {"wait": {"for": "1h"}}}})
    await world.settle()
    assert world.status(run_id) == "waiting"
    return run_id


SLEEPING: list[Callable[[World], Awaitable[str]]] = [in_backoff, out_of_time, before_a_lookup, in_a_wait]


async def next_life_later(world: World) -> None:
    """An hour later: every timer is due, and no process remembers anything."""
    world.query(
        "UPDATE task SET due_at = now() - interval '1 s', changed_at = now() - interval '1 h' WHERE due_at > now()"
    )
    world.query("UPDATE timer SET due_at = now() - interval '1 s'")
    await world.streams("an hour later")


@pytest.mark.parametrize("sleeping", SLEEPING)
@pytest.mark.parametrize("harm", ["its row is deleted", "its wake-up is lost"])
async def test_b27_a_timer_that_lost_its_row_or_its_wake_up_fires_late(
    world: World, sleeping: Callable[[World], Awaitable[str]], harm: str
) -> None:
    run_id = await sleeping(world)
    before = world.tasks(run_id)
    await next_life_later(world)
    if harm == "its row is deleted":
        world.query("DELETE FROM timer")
        assert await world.one.sweep("timers") == 0
        assert await world.one.sweep("vanished") == 1
    else:
        assert await world.one.sweep("timers") == 1
        world.committed_records()  # and nobody publishes them
        assert await world.one.sweep("timers") == 0
        world.query("UPDATE timer SET said_at = now() - interval '6 s'")
    assert await world.one.sweep("timers") == 1
    await world.settle()
    assert world.tasks(run_id) != before
    assert world.query("SELECT count(*) FROM timer WHERE due_at <= now()") == [(0,)]


@pytest.mark.parametrize("on_expiry", ["fail", "reject", "approve"])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_b82_an_approval_that_expired_while_no_agent_ran_settles_its_run(
    world: World, on_expiry: str, is_lost: bool
) -> None:
    asked = {"title": "ok?", "expires": "1h", "on_expiry": on_expiry}
    run_id = await world.start({"name": "ask", "tasks": {"ok": {"approval": asked}}})
    await world.settle()
    assert world.status(run_id) == "waiting"
    world.query("UPDATE approval SET expires_at = now() - interval '1 h'")
    await world.streams("an hour later")
    assert await world.one.sweep("approvals") == 1
    if is_lost:
        world.committed_records()
        world.query("UPDATE inbox SET said_at = now() - interval '6 s'")
        assert await world.one.sweep("requests") == 1
    await world.settle()
    outcome = {"fail": "expired", "reject": "rejected", "approve": "approved"}[on_expiry]
    ended = "completed" if outcome == "approved" else "failed"
    assert (world.status(run_id), world.tasks(run_id)[0][0]) == (ended, ended)
    if ended == "failed":
        assert world.reason(run_id) == outcome.upper()
    async with world.api() as api:
        shown = (await api.get(f"/runs/{run_id}")).json()["status"]
        listed = (await api.get("/runs")).json()["items"][0]["status"]
        assert (await api.get("/approvals")).json()["items"] == []
    assert shown == listed == ended


@pytest.mark.parametrize("order", list(permutations([0, 1])), ids=["in one batch", "in two agents"])
async def test_b29_whatever_the_last_results_are_the_run_ends(world: World, order: tuple[int, int]) -> None:
    for output in (b"null", b"[]", b"{}", b'""', b"0", b"false", b'"\\u0000"', b'{"\\u0000":[]}'):
        run_id = await world.start(PAIR)
        await world.settle()
        for task in order:
            world.say(run_id, Succeeded(*world.hand_out(run_id, task, 1), worker="w", output=msgspec.Raw(output)))
        if order == (1, 0):
            await world.one.read(EVENTS, 1)
            await world.streams("another agent")
        await world.settle()
        assert world.status(run_id) in ("completed", "failed"), output
        assert {status for status, *_ in world.tasks(run_id)} <= {"completed", "failed"}
        assert world.has_gapless_history(run_id)


async def test_b31_sweeps_and_agents_go_on_after_postgres_ended_all_connections(world: World) -> None:
    run_id = await world.start(ONE)
    await world.settle()
    timers = asyncio.ensure_future(world.one.sweeps.background()[0]())
    try:
        await eventually(lambda: world.query("SELECT count(*) FROM sweep_pass") == [(1,)])
        world.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await world.fail(run_id, retry_after=0.01)
        await eventually(lambda: world.relay() > 0)
        await world.settle()
    finally:
        timers.cancel()
    assert world.tasks(run_id) == [("queued", 1, 2)]


async def eventually(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not fact():  # noqa: ASYNC110  # Postgres has no event of ours to wait for
            await asyncio.sleep(0.02)


# == one bad row among good ones =======================================================================================
GONE = "01a2289f-ec84-73e0-907f-576654f809f9"
BAD_ROWS = {
    "a timer of no run": "INSERT INTO timer VALUES (GONE, 0, 1, 'backoff', '-infinity')",
    "a timer of no task": "INSERT INTO timer SELECT run_id, 77, 1, 'backoff', '-infinity' FROM run LIMIT 1",
    "a timer of no kind": "INSERT INTO timer SELECT run_id, 77, 1, 'odd', '-infinity' FROM run LIMIT 1",
    "a request of no run": "INSERT INTO inbox VALUES (GONE, GONE, 'cancelled', '{}', '', now(), '-infinity')",
    "a request of no sense": "INSERT INTO inbox VALUES (GONE, GONE, 'decided', '[1]', '', now(), '-infinity')",
    "an approval of no run": "INSERT INTO approval (approval_id, run_id, task, token, title, approvers, on_expiry, "
    "expires_at) VALUES (GONE, GONE, 0, 1, 't', '[]', 'odd', now())",
    "a session of no worker": "INSERT INTO worker_session (session_id, worker, queues, slots, seq, lease, renewed_at, "
    "expires_at) VALUES (GONE, '', '{}', -1, 0, '0', '-infinity', '-infinity')",
    "a parked task of no run": "INSERT INTO parked_task (run_id, task, token, error) VALUES (GONE, 0, 1, '[]')",
}


@pytest.mark.parametrize("bad", BAD_ROWS)
async def test_b35_one_bad_row_does_not_stop_the_sweep_of_the_others(world: World, bad: str) -> None:
    runs = [await world.start(ONE) for _ in range(8)]
    await world.settle()
    for run_id in runs:
        world.say(run_id, Failed(*world.current(run_id), Error("ERROR", "later", retry_after=0.01), worker="w"))
    await world.settle()
    world.query(BAD_ROWS[bad].replace("GONE", f"'{GONE}'"))
    world.watermark()
    cancelled = await ask(world, runs[0], "cancelled", {})
    world.committed_records()
    world.query("UPDATE inbox SET said_at = '-infinity' WHERE inbox_id = %s", cancelled)
    async with asyncio.timeout(20):
        while (
            len(world.query("SELECT 1 FROM task WHERE token = 2")) < len(runs) - 1
            or world.status(runs[0]) != "cancelled"
        ):
            for sweep in ("timers", "sessions", "lost", "vanished", "requests", "approvals"):
                await world.one.sweep(sweep)
            await world.settle()
    assert {world.status(run_id) for run_id in runs[1:]} == {"running"}


async def test_b35_attempts_after_losses_are_children_of_one_keyed_task(world: World) -> None:
    run_id = await world.start(ONE, key="k")
    await world.settle()
    for _ in range(2):
        await world.begin(run_id, new_session())
        world.say(run_id, Lost(*world.current(run_id)))
        await world.settle()
    await world.succeed(run_id)
    assert world.attempts(run_id) == [(1, "lost"), (2, "lost"), (3, "completed")]
    assert len({effect_key(run_id, command.name) for command in world.commands(run_id)}) == 1
    assert len(world.commands(run_id)) == 3


def subscribe(world: World, name: str = "s", **more: Any) -> None:
    columns = {"name": name, "topic": SHOP, "workflow": "one", **more}
    names, holes = ", ".join(columns), ", ".join(["%s"] * len(columns))
    statement = f"INSERT INTO subscription (subscription_id, {names}) VALUES (gen_random_uuid(), {holes})"  # noqa: S608
    world.query(statement, *columns.values())


@pytest.mark.parametrize("bad", [{"filter": "(("}, {"input": json.dumps("${{ (( }}")}])
async def test_b67_a_bad_row_disables_its_subscription_and_the_others_go_on(world: World, bad: dict[str, str]) -> None:
    await world.start(ONE)
    subscribe(world)
    subscribe(world, "bad", **bad)
    world.one.triggers.look()
    await world.one.own(SHOP)
    world.append(SHOP, b"k", b"{}")
    await world.one.read(SHOP)
    assert world.query("SELECT count(*) FROM run") == [(2,)]


@pytest.mark.parametrize("where", ["agent", "sweep"])
async def test_b67_a_version_that_this_process_cannot_read_holds_up_its_own_runs_only(world: World, where: str) -> None:
    """As when a newer process of a rolling update has published it."""
    good, bad = await world.start(ONE), await world.start(PAIR)
    await world.settle()
    newer = json.dumps({"name": "pair", "tasks": {"a": {"run": "x", "of a later release": 1}}})
    world.query("UPDATE workflow_version SET definition = %s WHERE name = 'pair'", newer)
    await world.streams("older")
    if where == "sweep":
        make_old(world)
        world.watermark()
        await world.one.sweep("lost")  # knows the first log
        world.topic_ids["headrace.commands.default"] = "the second log"
        for mark in ("0 s", "1 s", "8 s"):
            world.watermark(mark)
            await world.one.sweep("lost")
        await world.settle()
        assert world.tasks(good) == [("queued", 0, 2)]
    else:
        for run_id in (bad, good):
            world.say(run_id, Succeeded(*world.hand_out(run_id, 0, 1), worker="w"))
        await world.settle()
        assert world.status(good) == "completed"
        assert world.query("SELECT run_id::text, reason FROM dead_letter") == [
            (bad, "this process cannot read version 1 of workflow pair: a newer release published it")
        ], "what a worker says only once is kept"
        async with world.api() as api:
            for path in (f"/runs/{bad}", f"/runs/{bad}/explain"):
                answer = await api.get(path)
                assert (answer.status_code, answer.json()["code"]) == (503, "HR-1014"), path


# == cancel, attempts ==================================================================================================
async def test_b38_a_due_timer_behind_a_cancel_revives_nothing(world: World) -> None:
    run_id = await in_backoff(world)
    await ask(world, run_id, "cancelled", {"reason": "no longer wanted"})
    cancel = world.committed_records()
    await next_life_later(world)
    assert await world.one.sweep("timers") == 1
    for record in cancel:
        world.append(record.topic, record.key, record.value)
    await world.settle()  # the cancel, and behind it the timer
    assert world.tasks(run_id) == [("cancelled", 1, 1)]
    assert world.status(run_id) == "cancelled"
    assert world.query("SELECT count(*) FROM timer") == [(0,)]
    assert await world.one.sweep("timers") + await world.one.sweep("vanished") == 0
    assert world.hand_outs(run_id) == [("a", 1, 1)]


@pytest.mark.parametrize("agents", [1, 2])
async def test_b54_two_tasks_that_fail_at_once_are_both_retried(world: World, agents: int) -> None:
    run_id = await world.start(PAIR)
    await world.settle()
    for task in (0, 1):
        world.say(run_id, Failed(*world.current(run_id, task), Error("ERROR", "both"), worker="w"))
    if agents == 2:
        await world.one.read(EVENTS, 1)
        await world.streams("two")
    await world.settle()
    assert world.tasks(run_id) == [("pending", 1, 1), ("pending", 1, 1)]
    assert world.query("SELECT task, kind FROM timer ORDER BY 1") == [(0, "backoff"), (1, "backoff")]
    assert world.status(run_id) == "running"


async def test_b59_two_agents_that_hold_the_same_failure_hand_the_task_out_once(world: World) -> None:
    run_id = await world.start(ONE)
    await world.settle()
    failure = len(world.logs[EVENTS])
    world.say(run_id, Failed(*world.current(run_id), Error("ERROR", "no"), worker="w"))
    one, two = world.one, await world.streams("two")
    await two.read(EVENTS)
    await one.read(EVENTS)
    await two.read_again(EVENTS, failure)
    await one.own(EVENTS)
    await one.read_again(EVENTS, failure)
    world.relay()
    assert world.hand_outs(run_id) == [("a", 1, 1), ("a", 2, 2)]
    assert world.attempts(run_id) == [(1, "failed")]
    assert world.tasks(run_id) == [("queued", 1, 2)]
    ((ended, next_at),) = world.query("SELECT a.ended_at, t.changed_at FROM attempt a JOIN task t USING (run_id, task)")
    assert ended == next_at, "the end of one and the hand-out of the next are one transaction"


# == odd data ==========================================================================================================
Says = Callable[[World, str], "Event | bytes"]


def result(output: bytes, worker: str = "w") -> Says:
    return lambda world, run_id: Succeeded(*world.current(run_id), worker=worker, output=msgspec.Raw(output))


def broken(find: bytes, put: bytes) -> Says:
    """What no encoder of ours would write."""

    def say(world: World, run_id: str) -> bytes:
        return encode(
            Succeeded(*world.current(run_id), started=5, worker="here", output=msgspec.Raw(b'"here"'))
        ).replace(find, put)

    return say


BAD_RESULTS = {
    "a worker's name with U+0000": result(b"1", worker="\0"),
    "a result that is no UTF-8": broken(b'"output":"here"', b'"output":"\xff\xfe"'),
    "U+0000 in a result": result(b'{"a":["\\u0000"]}'),
    "U+0000 in a key": result(b'{"a\\u0000":1}'),
}


@pytest.mark.parametrize("bad", BAD_RESULTS)
async def test_b83_a_result_that_cannot_be_kept_fails_its_task_and_no_other(world: World, bad: str) -> None:
    one, other = await world.start(ONE), await world.start(ONE)
    await world.settle()
    world.say(one, BAD_RESULTS[bad](world, one))
    world.say(other, Succeeded(*world.current(other), worker="w"))
    await world.settle()
    assert (world.status(one), world.status(other)) == ("failed", "completed")
    assert world.reason(one) == "BAD_RESULT"


PAGES = [
    "/runs", "/runs/{}", "/runs/{}/history", "/runs/{}/tasks", "/tasks/{}.a", "/tasks/{}.a/attempts", "/dead-letters",
    "/dead-letters/groups", "/parked-tasks", "/doctor", "/metrics",
]  # fmt: skip


@pytest.mark.parametrize(
    "pages",
    [
        PAGES,
        ["/runs/{}/explain"],
        ["/tasks/{}.a/explain"],
    ],
    ids=["pages", "explain a run", "explain a task"],
)
async def test_b83_an_error_text_with_the_character_zero_breaks_no_page(world: World, pages: list[str]) -> None:
    retried, parked, failed = [
        await world.start(alone(**more)) for more in ({}, {"effect": "manual"}, {"retry": {"attempts": 1}})
    ]
    await world.settle()
    for run_id in (retried, parked, failed):
        error = Error("E\0", "a\0b", type="T\0", trace="t\0", ambiguous=True)
        world.say(run_id, Failed(*world.current(run_id), error, worker="w"))
    await world.settle()
    assert [world.status(run_id) for run_id in (retried, parked, failed)] == ["running", "waiting", "failed"]
    async with world.api() as api:
        for path in [page.format(run_id) for page in pages for run_id in (retried, parked, failed)]:
            assert (await api.get(path)).status_code == 200, path


async def test_b85_two_thousand_results_of_a_kibibyte_fit_one_history(world: World) -> None:
    count = 2_000
    tasks = {f"t{n}": {"run": "t"} for n in range(count)}
    run_id = await world.start({"name": "wide", "tasks": tasks})
    await world.settle()
    kibibyte = msgspec.Raw(b'"' + b"x" * 1022 + b'"')
    world.say(
        run_id, *(Succeeded(*world.hand_out(run_id, n, 1), worker="w", output=kibibyte) for n in range(count))
    )  # fmt: skip
    await world.settle()
    assert world.status(run_id) == "completed"
    assert world.has_gapless_history(run_id)
    async with world.api() as api:
        seen, page = 0, None
        while seen < count:
            given: dict[str, Any] = {"limit": 200} | ({} if page is None else {"page": page})
            content = (await api.get(f"/runs/{run_id}/tasks", params=given)).raise_for_status().json()
            seen, page = seen + len(content["items"]), content["next"]
        assert (seen, page) == (count, None)


# == what is fetched, and what is applied ==============================================================================
async def test_b92_a_position_never_passes_a_record_that_was_not_applied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [await world.start(ONE) for _ in range(3)]
    await world.settle()
    first = len(world.logs[EVENTS])
    for run_id in runs:
        world.say(run_id, Succeeded(*world.current(run_id), worker="w"))
    fold, seen = type(world.one.runs)._fold, list[bytes]()

    def raise_on_the_second(agent: Any, run: Any, *rest: Any) -> bool:
        seen.append(run.key)
        if len(seen) == 2:
            raise SystemExit
        return fold(agent, run, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(type(world.one.runs), "_fold", raise_on_the_second)
        with pytest.raises(SystemExit):
            await world.one.read(EVENTS)
    position = "SELECT coalesce(next_offset, 0) FROM partition_owner WHERE topic = %s"
    assert world.query(position, EVENTS) == [(first,)]
    assert {world.status(run_id) for run_id in runs} == {"running"}
    await world.streams("the next life")
    await world.settle()
    assert {world.status(run_id) for run_id in runs} == {"completed"}
    assert world.query(position, EVENTS) == [(first + 3,)]


def beat(**more: Any) -> bytes:
    given: dict[str, Any] = {
        "session": new_session(),
        "worker": "w",
        "seq": 1,
        "queues": ["default"],
        "held": [],
        "lease": 9.0,
        **more,
    }
    return encode(Heartbeat(**given))


EVENTS_OF_NO_USE: dict[str, tuple[Any, Says]] = {
    "no JSON": ((), lambda *_: b"\xff\0"),
    "a task that is not there": ((), lambda _, run_id: Succeeded(77, 1, "n")),
    "a task below zero": ((), lambda _, run_id: Lost(-1, 1, "n")),
    "numbers beyond all bounds": ((), lambda *_: b'{"kind":"lost","nonce":"n","token":1,"task":%d}' % 10**30),
    "a start by a worker of no name": (
        (),
        lambda world, run_id: Started(*world.current(run_id), worker="\0", session=new_session()),
    ),
    "a reason with U+0000": ((), lambda world, run_id: Returned(*world.current(run_id), reason="\0", worker="\0")),
    "a request of no id": ((), lambda *_: Requested("no id")),
    "a start in no session": ((), lambda world, run_id: Started(*world.current(run_id), session="no session")),
    "an instant beyond all calendars": ((), broken(b'"started":5', b'"started":%d' % 2**70)),
    "an instant before all calendars": ((), broken(b'"started":5', b'"started":%d' % -(2**62))),
}
BEATS_OF_NO_USE: dict[str, tuple[Any, Callable[[str], bytes | None]]] = {
    "nothing": ((), lambda _: None),
    "no JSON": ((), lambda _: b"\xff\0"),
    "no session": ((), lambda _: beat(session="x")),
    "a name with U+0000": ((), lambda _: beat(worker="\0")),
    "a task below zero": ((), lambda run_id: beat(held=[(run_id, -1, 1)])),
    "a run that is none": ((), lambda _: beat(held=[("x", 0, 1)])),
    "details with U+0000": ((), lambda r: beat(held=[(r, 0, 1)], details=[(r, 0, 1, msgspec.Raw(b'"\\u0000"'))])),
    "more slots than an integer holds": ((), lambda _: beat(slots=2**40)),
    "a seq beyond all counting": ((), lambda _: beat(seq=2**63)),
    "the same task twice": ((), lambda run_id: beat(held=[(run_id, 0, 1), (run_id, 0, 1)])),
    "the same task spelled twice": ((), lambda run_id: beat(held=[(run_id, 0, 1), (run_id.upper(), 0, 1)])),
    "a tick beyond all calendars": ((), lambda _: b'{"kind":"tick","at":%d}' % 2**70),
}
STRUCTURED = [("content-type", b"application/cloudevents+json")]


def cloud_event(**more: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "id": "a", "source": "/s", "type": "t", "data": {}, **more}).encode()


RECORDS_OF_NO_USE: dict[str, tuple[Any, tuple[bytes | None, bytes | None, Any]]] = {
    "nothing": ((), (None, None, [])),
    "no JSON": ((), (b"k", b"\xff\0", [])),
    "nested 100000 deep": ((), (b"k", b"[" * 100_000, [])),
    "U+0000 in its data": ((), (b"k", b'{"a":"\\u0000"}', [])),
    "U+0000 in its id": ((), (b"k", cloud_event(id="\0"), STRUCTURED)),
    "a trace of zeros": ((), (b"k", b"{}", [("traceparent", b"\0\0")])),
    "an id of ten kilobytes": (
        (),
        (b"k", cloud_event(id="".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(5_000))), STRUCTURED),
    ),
}


def cases_of(table: dict[str, tuple[Any, Any]]) -> list[Any]:
    return [pytest.param(name, marks=marks) for name, (marks, _) in table.items()]


@pytest.mark.parametrize("bad", cases_of(EVENTS_OF_NO_USE))
async def test_b92_no_event_stops_the_runs_behind_it(world: World, bad: str) -> None:
    one, other = await world.start(ONE), await world.start(ONE)
    await world.settle()
    world.say(one, EVENTS_OF_NO_USE[bad][1](world, one))
    world.say(other, Succeeded(*world.current(other), worker="w"))
    await world.settle()
    assert world.status(other) == "completed"


@pytest.mark.parametrize("bad", cases_of(BEATS_OF_NO_USE))
async def test_b92_no_heartbeat_stops_those_behind_it(world: World, bad: str) -> None:
    run_id, session = await world.start(ONE), new_session()
    await world.settle()
    world.append(WORKERS, b"k", BEATS_OF_NO_USE[bad][1](run_id))
    world.beat(session, 1)
    await world.settle()
    assert world.query("SELECT seq FROM worker_session WHERE session_id = %s", session) == [(1,)]


@pytest.mark.parametrize("bad", cases_of(RECORDS_OF_NO_USE))
async def test_b92_no_record_of_a_user_stops_those_behind_it(
    world: World, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.conformance.world.GIVE_UP_SECONDS", 3.0)
    await world.start(ONE)
    subscribe(world)
    world.one.triggers.look()
    await world.one.own(SHOP)
    world.append(SHOP, *RECORDS_OF_NO_USE[bad][1])
    world.append(SHOP, b"k", b'{"n":1}')
    await world.one.read(SHOP)
    assert world.query('SELECT fate FROM trigger_event WHERE "offset" = 1') == [("started",)]


async def recreate(world: World, topic: str) -> Streams:
    """The topic is deleted and made anew; the agent hears of it when it leases again."""
    world.logs[topic].clear()
    world.topic_ids[topic] = "the second log"
    await world.one.own(topic)
    return world.one


async def test_b95_heartbeats_in_a_topic_made_anew_are_all_handled(world: World) -> None:
    for seq in range(1, 60):
        world.beat("11" * 16, seq)
    await world.settle()
    agent = await recreate(world, WORKERS)
    sessions = [new_session() for _ in range(50)]
    for session in sessions:
        world.beat(session, 1)
    await agent.read(WORKERS)
    assert world.query("SELECT count(*) FROM worker_session") == [(51,)]
    assert agent.rebuilds == []


async def test_b95_records_in_a_users_topic_made_anew_all_start_their_runs(world: World) -> None:
    await world.start(ONE)
    subscribe(world)
    world.one.triggers.look()
    await world.one.own(SHOP)
    for _ in range(3):
        world.append(SHOP, b"k", b"{}")
    await world.one.read(SHOP)
    agent = await recreate(world, SHOP)
    for number in range(50):
        world.append(SHOP, b"k", cloud_event(id=f"new {number}"), STRUCTURED)
    await agent.read(SHOP)
    assert world.query("SELECT count(*) FROM run") == [(1 + 3 + 50,)]


async def test_b97_all_that_a_lost_slot_swallowed_is_published_again(world: World) -> None:
    runs = [await world.start(ONE) for _ in range(20)]
    assert len(world.committed_records()) == 20  # in a slot that is dropped before anybody reads it
    world.query("INSERT INTO relay_owner (slot, owner, epoch, renewed_at, gap_at) VALUES ('s', 'o', 1, now(), now())")
    found = 0
    for mark in ("1 s", f"{LEASE_SECONDS} s"):
        world.watermark(mark)
        found = await world.one.sweep("lost")
    assert found == 20
    await world.settle()
    for run_id in runs:
        assert world.hand_outs(run_id) == [("a", 1, 2)]
        await world.succeed(run_id)
    assert {world.status(run_id) for run_id in runs} == {"completed"}
