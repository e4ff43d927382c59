"""Pools on a real Postgres: slots granted by the sweep's own code, taken and freed by the run agent.

No broker is involved: what tells a run of its slot is what a test says, so it may come late, twice, or not at all.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from headrace.errors import ConflictError
from headrace.messages import Admitted, Due, Error, Failed, Lost, Requested, Returned
from headrace.rate import Rate
from state.control import pause_run, resume_run
from state.decisions import cancel_run
from state.doctor import examine
from state.pipe import Pipe
from state.pools import Granted, grant_slots, prioritise_run, remove_pool, say_granted, set_pool
from state.queries.pool import get_pool, list_holders, list_waiters
from state.queries.run import count_running
from streams.retention import Retention
from streams.sweeps import Sweeps
from tests.integration.test_run_agent import Engine

WORK: dict[str, Any] = {
    "name": "work",
    "tasks": {"load": {"run": "t.load", "pool": "db", "retry": {"attempts": 3, "delay": "1s", "jitter": 0.0}}},
}
MANY: dict[str, Any] = {
    "name": "many",
    "tasks": {"each": {"run": "t.load", "pool": "db", "map": [*range(6)]}, "last": {"run": "t.end", "needs": "each"}},
}


FAIR: dict[str, Any] = {
    "name": "fair",
    "tasks": {"load": {"run": "t.load", "pool": {"name": "db", "fairness_key": "${{ input.who }}"}}},
}


KEYED: dict[str, Any] = {
    "name": "keyed",
    "tasks": {
        "look": {"run": "t.look"},
        "load": {
            "run": "t.load", "needs": "look",
            "pool": {"name": "db", "fairness_key": "${{ input.who }}/${{ tasks.look.output.of }}"},
        },
        "each": {
            "run": "t.load", "needs": "look", "map": ["x", "y"],
            "pool": {"name": "db", "fairness_key": "${{ input.who }}-${{ item }}${{ index }}"},
        },
        "plain": {"run": "t.load", "needs": "look", "pool": "db"},
    },
}  # fmt: skip
DELETES = {
    "pool_waiter": "DELETE FROM pool_waiter RETURNING 1",
    "pool_slot": "DELETE FROM pool_slot RETURNING 1",
}


class Pools(Engine):
    """An engine, and the sweep that grants."""

    async def set(self, slots: int | None = None, rate: Rate | None = None, name: str = "db") -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            await set_pool(connection, self.store, name, slots=slots, rate=rate, actor="ada")

    async def grant(self, most: int = 100) -> list[Granted]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            return await grant_slots(connection, most)

    async def say_again(self, seconds: float = 0.0) -> list[Granted]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            return await say_granted(connection, seconds, 100)

    def admitted(self, run_id: str, task: int = 0, token: int = 1) -> tuple[str, Admitted]:
        return run_id, Admitted(task, token, self.nonce(run_id, task, token))

    async def admit(self) -> list[str]:
        """Grant what is free, and tell the runs; answers which."""
        granted = await self.grant()
        if granted:
            await self.apply(*(self.admitted(str(run_id), task, token) for run_id, task, token in granted))
        return [str(run_id) for run_id, _, _ in granted]

    async def ask(self, act: Any, run_id: str, *given: Any, **more: Any) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            await act(connection, self.store, UUID(run_id), *given, **{"reason": "", "actor": "ada", **more})
        await self.say_requests()

    async def say_requests(self) -> None:
        rows = self.query("SELECT run_id, inbox_id FROM inbox WHERE applied_at IS NULL ORDER BY created_at, inbox_id")
        await self.apply(*((str(run_id), Requested(str(inbox_id))) for run_id, inbox_id in rows))

    def held(self) -> int:
        return int(self.query("SELECT count(*) FROM pool_slot")[0][0])

    def waiting(self) -> int:
        return int(self.query("SELECT count(*) FROM pool_waiter WHERE granted_at IS NULL")[0][0])

    def state(self, run_id: str) -> str:
        return str(self.query("SELECT status::text FROM task WHERE run_id = %s", run_id)[0][0])

    async def wrong(self) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            checks = {check.name: check for check in await examine(connection)}
        names = (
            "pools", "statuses", "attempts", "tokens", "history", "waits", "maps", "orphan_timers", "approvals",
            "orphan_approvals", "parked", "unparked", "children", "joins", "pauses", "dead_letters",
        )  # fmt: skip
        return [checks[name].detail for name in names if not checks[name].ok]


@pytest.fixture
async def pools(database: str) -> AsyncIterator[Pools]:
    made = Pools(database)
    await made.lease()
    yield made
    made.close()


async def test_a_task_waits_for_a_slot_holds_it_while_it_works_and_gives_it_back(pools: Pools):
    await pools.set(1)
    first, second = await pools.start(WORK), await pools.start(WORK)
    assert [pools.tasks(run_id) for run_id in (first, second)] == [[("waiting", 0, 1)]] * 2
    assert (pools.status(first), await pools.wrong()) == ("waiting", [])
    assert await pools.admit() == [first]
    assert (pools.tasks(first), pools.state(second)) == ([("queued", 0, 1)], "waiting")
    assert (pools.held(), await pools.admit(), await pools.wrong()) == (1, [], [])
    await pools.apply(pools.succeeded(first))
    assert (pools.status(first), pools.held()) == ("completed", 0)
    assert await pools.admit() == [second]
    await pools.apply(pools.succeeded(second))
    assert (pools.held(), pools.waiting(), await pools.wrong()) == (0, 0, [])


async def test_a_namespace_with_many_waiters_does_not_keep_out_another(pools: Pools):
    """A pool belongs to a namespace: of two with one name each has its slots, and its line."""
    await pools.set(1)
    pools.query("INSERT INTO pool (namespace, name, slots_max) SELECT 'noisy', name, slots_max FROM pool RETURNING 1")
    noisy = [await pools.start(WORK, namespace="noisy") for _ in range(30)]
    quiet = await pools.start(WORK)
    assert sorted(await pools.admit()) == sorted([noisy[0], quiet])
    assert (pools.tasks(quiet), await pools.admit()) == ([("queued", 0, 1)], [])
    await pools.apply(pools.succeeded(quiet))
    after = await pools.start(WORK)
    assert await pools.admit() == [after], "what came last, and what its own namespace had free"
    assert await pools.wrong() == []


async def test_a_task_of_a_pool_that_nobody_has_set_waits(pools: Pools):
    run_id = await pools.start(WORK)
    assert await pools.admit() == []
    async with await psycopg.AsyncConnection.connect(pools.dsn) as connection:
        row = await get_pool(connection, "default", "db")
    assert row is not None
    assert (row.is_set, row.slots, row.held, row.waiting) == (False, None, 0, 1)
    await pools.set(1)
    assert await pools.admit() == [run_id]


async def test_many_who_grant_at_once_never_grant_more_than_the_limit(pools: Pools):
    await pools.set(3)
    run_ids = [await pools.start(WORK) for _ in range(12)]
    for round in range(4):
        grants = [asyncio.to_thread(lambda: asyncio.run(pools.grant())) for _ in range(6)]
        granted = [one for many in await asyncio.gather(*grants) for one in many]
        assert [str(run_id) for run_id, _, _ in granted] == run_ids[3 * round : 3 * round + 3]
        assert pools.held() == 3
        done = [str(run_id) for run_id, _, _ in granted]
        await pools.apply(*(pools.admitted(run_id) for run_id in done))
        await pools.apply(*(pools.succeeded(run_id) for run_id in done))
    assert (pools.held(), pools.waiting(), await pools.wrong()) == (0, 0, [])


async def test_who_grants_and_who_frees_at_once_neither_lose_a_slot_nor_leave_one(pools: Pools):
    """While some are granted by several sweeps, others are cancelled and completed; at the end all is as before."""
    await pools.set(2)
    run_ids = [await pools.start(WORK) for _ in range(16)]
    stop, seen = threading.Event(), list[int]()

    def sweep() -> None:
        while not stop.is_set():
            asyncio.run(pools.grant())
            seen.append(pools.held())

    is_granted = "SELECT FROM pool_waiter WHERE run_id = %s AND granted_at IS NOT NULL"
    sweeps = [asyncio.create_task(asyncio.to_thread(sweep)) for _ in range(3)]
    try:
        for number, run_id in enumerate(run_ids):
            while number % 3 and not pools.query(is_granted, run_id):  # noqa: ASYNC110  # Postgres tells nobody
                await asyncio.sleep(0.005)
            if number % 3 == 1:
                await pools.apply(pools.admitted(run_id))
                await pools.apply(pools.succeeded(run_id))
            else:
                await pools.ask(cancel_run, run_id)
    finally:
        stop.set()
        await asyncio.gather(*sweeps)
    assert {pools.status(run_id) for run_id in run_ids} == {"completed", "cancelled"}
    assert (max(seen), pools.held(), pools.query("SELECT count(*) FROM pool_waiter")) == (2, 0, [(0,)])
    assert await pools.wrong() == []


async def test_b21_what_is_lost_does_not_count_against_its_own_limit(pools: Pools):
    await pools.set(1)
    run_id = await pools.start(WORK)
    await pools.admit()
    await pools.apply((run_id, Lost(0, 1, pools.nonce(run_id, 0, 1), begun=True)))
    assert (pools.tasks(run_id), pools.held(), pools.waiting()) == ([("waiting", 1, 2)], 0, 1)
    assert await pools.admit() == [run_id]
    assert (pools.tasks(run_id), await pools.wrong()) == ([("queued", 1, 2)], [])


async def test_b32_a_slot_ends_with_its_hand_out_also_when_no_body_began(pools: Pools):
    await pools.set(1)
    first, second = await pools.start(WORK), await pools.start(WORK)
    await pools.admit()
    await pools.apply((first, Lost(0, 1, pools.nonce(first, 0, 1))))
    assert await pools.admit() == [second], "whoever waited before is next, and not who was lost"
    await pools.apply((second, Returned(0, 1, pools.nonce(second, 0, 1))))
    assert await pools.admit() == [first]
    assert (pools.held(), await pools.wrong()) == (1, [])


async def test_b38_a_cancel_in_the_backoff_finds_the_slot_freed_and_its_timer_moves_nothing(pools: Pools):
    await pools.set(1)
    first, second = await pools.start(WORK), await pools.start(WORK)
    await pools.admit()
    await pools.apply(pools.failed(first))
    assert (pools.state(first), pools.held()) == ("pending", 0)
    await pools.ask(cancel_run, first)
    assert pools.status(first) == "cancelled"
    await pools.apply((first, Due(0, 1, pools.nonce(first, 0, 1))))
    assert await pools.admit() == [second]
    assert (pools.status(first), pools.held(), await pools.wrong()) == ("cancelled", 1, [])


async def test_b43_a_purge_leaves_a_run_that_holds_a_slot_and_one_that_has_ended_holds_none(pools: Pools):
    millisecond = 1 / 86_400_000
    await pools.set(1)
    first, second = await pools.start(WORK), await pools.start(WORK)
    assert await pools.admit() == [first]
    async with await psycopg.AsyncConnection.connect(pools.dsn, autocommit=True) as connection:
        assert await Retention(millisecond).purge(connection) == 0
        assert (pools.held(), pools.waiting(), await pools.wrong()) == (1, 1, [])
        await pools.apply(pools.succeeded(first))
        assert await Retention(millisecond).purge(connection) == 1
    assert [str(run_id) for (run_id,) in pools.query("SELECT run_id FROM run")] == [second]
    assert await pools.admit() == [second]
    assert (pools.held(), await pools.wrong()) == (1, [])


async def test_b46_a_cancel_frees_what_was_held_and_nothing_else(pools: Pools):
    await pools.set(2)
    run_ids = [await pools.start(WORK) for _ in range(7)]
    assert await pools.admit() == run_ids[:2]
    await pools.ask(cancel_run, run_ids[5])
    assert (await pools.admit(), pools.held()) == ([], 2)
    await pools.ask(cancel_run, run_ids[0])
    assert (await pools.admit(), pools.held()) == ([run_ids[2]], 2)
    assert await pools.wrong() == []


async def test_b101_a_task_whose_body_no_worker_has_any_more_gives_its_slot_back(pools: Pools):
    """Workers of the next version only: the run stays on its own, and its slot is there for others meanwhile."""
    await pools.set(1)
    first, second = await pools.start(WORK), await pools.start(WORK)
    assert await pools.admit() == [first]
    unknown = Failed(0, 1, pools.nonce(first, 0, 1), Error("UNKNOWN_TASK", "no such body here"), worker="w")
    await pools.apply((first, unknown))
    assert (pools.state(first), pools.held()) == ("pending", 0)
    assert await pools.admit() == [second]
    assert await pools.wrong() == []


async def test_b47_a_replay_and_a_retry_wait_for_their_slot_like_anybody(pools: Pools):
    await pools.set(1)
    failed, running = await pools.start(WORK), await pools.start(WORK)
    await pools.admit()
    await pools.apply(pools.failed(failed, retryable=False))
    assert await pools.admit() == [running]
    body = "INSERT INTO inbox (inbox_id, run_id, kind, body) VALUES (gen_random_uuid(), %s, 'replayed', %s) RETURNING 1"
    pools.query(body, failed, '{"task": 0, "token": 1}')
    await pools.say_requests()
    assert (pools.tasks(failed), await pools.admit(), pools.held()) == ([("waiting", 1, 2)], [], 1)
    await pools.apply(pools.succeeded(running))
    assert await pools.admit() == [failed]


async def test_lowering_a_limit_stops_nothing_and_grants_nothing_until_so_many_are_free(pools: Pools):
    await pools.set(3)
    run_ids = [await pools.start(WORK) for _ in range(5)]
    await pools.admit()
    await pools.set(1)
    assert [pools.state(run_id) for run_id in run_ids] == ["queued"] * 3 + ["waiting"] * 2
    for run_id in run_ids[:2]:
        await pools.apply(pools.succeeded(run_id))
        assert await pools.admit() == []
    assert pools.held() == 1
    await pools.apply(pools.succeeded(run_ids[2]))
    assert await pools.admit() == [run_ids[3]]
    await pools.set(0)
    await pools.apply(pools.succeeded(run_ids[3]))
    assert (await pools.admit(), await pools.wrong()) == ([], [])


async def test_a_priority_is_worth_a_minute_a_point_and_can_be_changed_while_it_waits(pools: Pools):
    await pools.set(1)
    old, plain, urgent = [await pools.start(WORK) for _ in range(3)]
    await pools.ask(prioritise_run, urgent, 5)
    history = "SELECT kind, actor, detail ->> 'priority' FROM history WHERE run_id = %s AND row_version = 2"
    assert pools.query(history, urgent) == [("prioritised", "ada", "5")]
    ages = "UPDATE pool_waiter SET ranked_at = ranked_at - interval '6 minutes' WHERE run_id = %s RETURNING 1"
    pools.query(ages, old)
    order = []
    for _ in range(3):
        (run_id,) = await pools.admit()
        order.append(run_id)
        await pools.apply(pools.succeeded(run_id))
    assert order == [old, urgent, plain], "who has waited for six minutes goes before five points of priority"
    with pytest.raises(ConflictError):
        await pools.ask(prioritise_run, urgent, 1)


async def test_a_run_that_was_prioritised_keeps_that_for_its_later_waits(pools: Pools):
    await pools.set(1)
    first, other = await pools.start(WORK), await pools.start(WORK)
    await pools.ask(prioritise_run, first, 3)
    await pools.admit()
    await pools.apply((first, Lost(0, 1, pools.nonce(first, 0, 1))))
    assert await pools.admit() == [first]
    assert pools.state(other) == "waiting"


async def test_a_rate_is_kept_by_the_clock_of_the_database(pools: Pools):
    await pools.set(rate=Rate(2, 60.0))
    run_ids = [await pools.start(WORK) for _ in range(5)]
    assert await pools.admit() == run_ids[:2]
    assert await pools.admit() == []
    passes = "UPDATE pool SET allowed_at = allowed_at - interval '31 s' RETURNING 1"
    pools.query(passes)
    assert await pools.admit() == run_ids[2:3]
    await pools.apply(*(pools.succeeded(run_id) for run_id in run_ids[:3]))
    assert await pools.admit() == [], "a slot that is free is no allowance"
    pools.query("UPDATE pool SET allowed_at = allowed_at - interval '1 day' RETURNING 1")
    assert await pools.admit() == run_ids[3:]
    pools.query("UPDATE pool SET allowed_at = now() + interval '1 day' RETURNING 1")
    more = await pools.start(WORK)
    assert await pools.admit() == []
    pools.query(passes)
    assert await pools.admit() == [more], "a clock that was stepped back holds nobody up for a day"


async def test_a_pause_gives_the_slot_back_and_waits_again_behind_it(pools: Pools):
    await pools.set(1)
    first, second = await pools.start(WORK), await pools.start(WORK)
    granted = await pools.grant()
    await pools.ask(pause_run, first)
    await pools.apply(pools.admitted(first))
    assert (pools.state(first), pools.held(), len(granted)) == ("pending", 0, 1)
    assert await pools.admit() == [second]
    await pools.ask(resume_run, first)
    assert (pools.tasks(first), await pools.wrong()) == ([("waiting", 0, 2)], [])


async def test_who_was_not_told_is_told_again_and_twice_is_once(pools: Pools):
    await pools.set(1)
    run_id = await pools.start(WORK)
    granted = await pools.grant()
    assert (await pools.say_again(60.0), await pools.say_again()) == ([], granted)
    await pools.apply(pools.admitted(run_id), pools.admitted(run_id))
    assert (pools.tasks(run_id), await pools.say_again()) == ([("queued", 0, 1)], [])
    assert pools.query("SELECT kind FROM history WHERE run_id = %s ORDER BY row_version", run_id) == [
        ("started",),
        ("admitted",),
    ]


async def test_nobody_is_admitted_by_a_record_that_guesses(pools: Pools):
    run_id = await pools.start(WORK)
    await pools.apply((run_id, Admitted(0, 1, "0" * 24)))
    assert pools.state(run_id) == "waiting"


@pytest.mark.parametrize("table", ["pool_waiter", "pool_slot"])
@pytest.mark.parametrize("stage", ["waiting", "granted", "admitted"])
async def test_rows_that_somebody_took_away_come_back(pools: Pools, table: str, stage: str):
    await pools.set(1)
    run_id, other = await pools.start(WORK), await pools.start(WORK)
    if stage != "waiting":
        await pools.grant()
    if stage == "admitted":
        await pools.apply(pools.admitted(run_id))
    pools.query("UPDATE task SET changed_at = changed_at - interval '1 minute' RETURNING 1")
    pools.query(DELETES[table])
    await restore(pools)
    for one in (run_id, other):
        await pools.admit()
        await pools.apply(*(pools.admitted(str(each), task, token) for each, task, token in await pools.say_again()))
        assert pools.held() == 1
        await pools.apply(pools.succeeded(one))
    assert (pools.held(), pools.waiting(), await pools.wrong()) == (0, 0, [])


@pytest.mark.parametrize("tables", [["pool_waiter"], ["pool_slot"], ["pool_waiter", "pool_slot"]])
@pytest.mark.parametrize("stage", ["waiting", "granted", "admitted"])
async def test_a_row_that_comes_back_has_its_fairness_key_again(pools: Pools, tables: list[str], stage: str):
    """Also where the other row, which knows it, is gone, too: from the input and the outputs of the run."""
    await pools.set(5)
    run_id = await pools.start(KEYED, {"who": "acme"})
    await pools.apply(pools.succeeded(run_id, output=b'{"of":"north"}'))
    keys = {1: "acme/north", 30_000: "acme-x0", 30_001: "acme-y1", 3: ""}
    in_line, held = "SELECT task, fairness_key FROM pool_waiter", "SELECT task, fairness_key FROM pool_slot"
    assert dict(pools.query(in_line)) == keys
    granted = await pools.grant() if stage != "waiting" else []
    if stage == "admitted":
        await pools.apply(*(pools.admitted(str(each), task, token) for each, task, token in granted))
    pools.query("UPDATE task SET changed_at = changed_at - interval '1 minute' RETURNING 1")
    for table in tables:
        pools.query(DELETES[table])
    await restore(pools)
    assert dict(pools.query(in_line)) == ({} if stage == "admitted" else keys)
    # Where both are gone before anybody was told, nothing says any more that it had a slot.
    assert dict(pools.query(held)) == (keys if stage == "admitted" or (stage == "granted" and len(tables) == 1) else {})


async def restore(pools: Pools) -> None:
    """What the sweep does."""

    sweeps = Sweeps(pools.store, pools.plans, None, pools.metrics)  # type: ignore[arg-type]
    async with await psycopg.AsyncConnection.connect(pools.dsn, autocommit=True) as connection:
        await sweeps._vanished(connection)


async def test_the_doctor_finds_a_slot_without_its_holder_and_a_holder_without_its_slot(pools: Pools):
    await pools.set(2)
    first, second = await pools.start(WORK), await pools.start(WORK)
    await pools.admit()
    pools.query("UPDATE pool_slot SET token = 7 WHERE run_id = %s RETURNING 1", first)
    pools.query("DELETE FROM pool_slot WHERE run_id = %s RETURNING 1", second)
    (wrong,) = await pools.wrong()
    assert f"a slot of db is held for task {first}.0, which has no use for it" in wrong
    assert f"task {second}.0 works, and holds no slot of db" in wrong


async def test_every_item_of_a_map_holds_a_slot_of_its_own(pools: Pools):
    await pools.set(2)
    run_id = await pools.start(MANY)
    assert (pools.waiting(), pools.status(run_id)) == (6, "waiting")
    assert await pools.wrong() == [], "what waits for a slot waits for nobody's decision"
    places = []
    while granted := await pools.grant():
        assert len(granted) == 2
        places += [task for _, task, _ in granted]
        await pools.apply(*(pools.admitted(run_id, task, token) for _, task, token in granted))
        await pools.apply(*(pools.succeeded(run_id, task, token) for _, task, token in granted))
    assert places == [10_000 + item for item in range(6)]
    assert (pools.held(), pools.query("SELECT status::text FROM task WHERE task = 1")) == (0, [("queued",)])
    assert await pools.wrong() == []


async def test_a_pool_shows_its_holders_and_its_queue_in_order_and_goes_when_nobody_needs_it(pools: Pools):
    await pools.set(1)
    run_ids = [await pools.start(WORK) for _ in range(3)]
    await pools.ask(prioritise_run, run_ids[2], 1)
    await pools.admit()
    async with await psycopg.AsyncConnection.connect(pools.dsn) as connection:
        holders = await list_holders(connection, "default", "db", limit=10)
        waiters = await list_waiters(connection, "default", "db", limit=10)
        assert [str(row.run_id) for row in holders] == [run_ids[2]]
        assert [str(row.run_id) for row in waiters] == run_ids[:2]
        with pytest.raises(ConflictError):
            await remove_pool(connection, pools.store, "db")
    for run_id in run_ids:
        await pools.ask(cancel_run, run_id)
    async with await psycopg.AsyncConnection.connect(pools.dsn) as connection:
        await remove_pool(connection, pools.store, "db")
        assert await get_pool(connection, "default", "db") is None


async def test_runs_that_wait_for_slots_count_as_under_way(pools: Pools):
    """So that starts are answered with 429, and records wait in Kafka, before the queue of a pool fills the disk."""
    await pools.set(1)
    for _ in range(3):
        await pools.start(WORK)
    await pools.start(MANY)
    await pools.admit()
    async with await psycopg.AsyncConnection.connect(pools.dsn) as connection:
        assert [await count_running(connection, limit) for limit in (100, 4, 2)] == [4, 4, 2]


async def test_plain_tasks_send_no_statement_of_pools(pools: Pools, monkeypatch: pytest.MonkeyPatch):
    sent: list[str] = []
    run = Pipe.run

    def noting(pipe: Pipe, calls: Any) -> None:
        sent.extend(name for name, _ in calls)
        run(pipe, calls)

    monkeypatch.setattr(Pipe, "run", noting)
    run_id = await pools.start()
    await pools.apply(pools.succeeded(run_id))
    assert not {"await_slots", "leave_queues", "free_slots", "set_priorities"} & set(sent)
    assert "complete_tasks" in sent


# == fairness ==========================================================================================================
async def wait_in_line(pools: Pools, *who: str) -> list[str]:
    return [await pools.start(FAIR, {"who": one}) for one in who]


def fill_line(pools: Pools, count: int, key: str, began: str = "1 hour") -> None:
    """Waiters whose runs nobody asks for: only the queue."""
    pools.query(
        "INSERT INTO pool_waiter (run_id, task, token, pool, fairness_key, began_at, ranked_at)"
        " SELECT gen_random_uuid(), 0, 1, 'db', %s, now() - %s::interval + n * interval '1 ms',"
        " now() - %s::interval + n * interval '1 ms' FROM generate_series(1, %s) n RETURNING 1",
        key, began, began, count,
    )  # fmt: skip


def key_of(pools: Pools, run_id: Any) -> str:
    return str(pools.query("SELECT fairness_key FROM pool_waiter WHERE run_id = %s", run_id)[0][0])


async def grant_keys(pools: Pools, most: int = 100) -> list[str]:
    return [key_of(pools, run_id) for run_id, _, _ in await pools.grant(most)]


def end_all(pools: Pools) -> None:
    pools.query("WITH gone AS (DELETE FROM pool_waiter WHERE granted_at IS NOT NULL) DELETE FROM pool_slot RETURNING 1")


async def test_one_key_with_two_hundred_waiters_does_not_keep_out_another_with_three(pools: Pools):
    await pools.set(1)
    fill_line(pools, 200, "busy")
    quiet = await wait_in_line(pools, *["quiet"] * 3)
    granted = []
    for _ in range(6):
        ((run_id, *_),) = await pools.grant()
        granted.append(str(run_id))
        if str(run_id) in quiet:
            await pools.apply(pools.admitted(str(run_id)))
            await pools.apply(pools.succeeded(str(run_id)))
        else:
            end_all(pools)
    assert [run_id in quiet for run_id in granted] == [False, True] * 3
    assert [run_id for run_id in granted if run_id in quiet] == quiet, "within its key, who waited longest"
    assert await grant_keys(pools) == ["busy"]
    assert pools.query("SELECT fairness_key FROM pool_turn") == [("busy",)], "a key that nobody waits for is forgotten"


async def test_who_holds_fewest_slots_is_next_and_many_slots_are_granted_as_if_one_by_one(pools: Pools):
    await pools.set(4)
    fill_line(pools, 20, "busy")
    assert await grant_keys(pools) == ["busy"] * 4
    fill_line(pools, 3, "a", "2 hours")
    fill_line(pools, 9, "b", "3 hours")
    await pools.set(2)
    assert await grant_keys(pools) == [], "a limit that is lowered stops nothing"
    await pools.set(9)
    assert await grant_keys(pools) == ["b", "a", "b", "a", "b"]
    await pools.set(14)
    assert await grant_keys(pools) == ["a", "b", "busy", "b", "busy"]


async def test_a_rate_goes_in_turns_too(pools: Pools):
    await pools.set(rate=Rate(2, 60.0))
    fill_line(pools, 50, "busy")
    fill_line(pools, 2, "quiet", "1 minute")
    assert await grant_keys(pools) == ["busy", "quiet"]
    end_all(pools)
    pools.query("UPDATE pool SET allowed_at = allowed_at - interval '31 s' RETURNING 1")
    assert await grant_keys(pools) == ["busy"]
    end_all(pools)
    pools.query("UPDATE pool SET allowed_at = allowed_at - interval '31 s' RETURNING 1")
    assert await grant_keys(pools) == ["quiet"]


async def test_a_priority_counts_within_its_key_only(pools: Pools):
    await pools.set(1)
    first, urgent, other = await wait_in_line(pools, "a", "a", "b")
    await pools.ask(prioritise_run, urgent, 100)
    assert [await pools.admit(), await pools.admit()] == [[urgent], []]
    await pools.apply(pools.succeeded(urgent))
    assert await pools.admit() == [other]
    await pools.apply(pools.succeeded(other))
    assert await pools.admit() == [first]


async def test_newcomers_with_priority_do_not_put_off_the_turn_of_their_key(pools: Pools):
    await pools.set(1)
    fill_line(pools, 9, "b", "2 hours")
    fill_line(pools, 9, "a", "1 hour")
    assert await grant_keys(pools) == ["b"]
    for _ in range(3):
        end_all(pools)
        fill_line(pools, 1, "a", "-5 s")
        pools.query("UPDATE pool_waiter SET ranked_at = 'epoch' WHERE began_at > now() RETURNING 1")
        assert await grant_keys(pools) == ["a"]
        end_all(pools)
        assert await grant_keys(pools) == ["b"]


async def test_a_turn_that_a_clock_has_put_ahead_is_forgotten(pools: Pools):
    await pools.set(1)
    fill_line(pools, 9, "a")
    fill_line(pools, 9, "b", "30 minutes")
    assert await grant_keys(pools) == ["a"]
    pools.query("UPDATE pool_turn SET turned_at = now() + interval '1 day' WHERE fairness_key = 'a' RETURNING 1")
    end_all(pools)
    assert await grant_keys(pools) == ["a"]
    end_all(pools)
    assert await grant_keys(pools) == ["b"]


@pytest.mark.parametrize("seed", range(5))
async def test_grants_of_many_are_those_of_one_after_another(pools: Pools, seed: int):
    """Against a queue of the same keys in Python that grants one by one."""
    draw = random.Random(seed)
    await pools.set(0)
    waiting: dict[str, int] = {}
    turns: dict[str, float] = {}
    for place, key in enumerate(draw.sample("abcde", 5) * 2):
        count = draw.randint(0, 7)
        if count and key not in waiting:
            fill_line(pools, count, key, f"{100 - place} minutes")
            waiting[key], turns[key] = count, float(place)
    held: Counter[str] = Counter()
    clock = 1000.0
    while sum(waiting.values()):
        most, expected = draw.randint(1, 6), []
        await pools.set(sum(held.values()) + most)
        for _ in range(min(most, sum(waiting.values()))):
            key = min((key for key in waiting if waiting[key]), key=lambda key: (held[key], turns[key]))
            expected.append(key)
            held[key], turns[key], clock = held[key] + 1, clock, clock + 1
            waiting[key] -= 1
        assert await grant_keys(pools) == expected
        for key in [key for key in held if held[key] and draw.random() < 0.5]:
            held[key] -= 1
            pools.query(
                "DELETE FROM pool_slot WHERE run_id = (SELECT run_id FROM pool_slot WHERE fairness_key = %s"
                " LIMIT 1) RETURNING 1", key,
            )  # fmt: skip


def whom_next(
    waiters: list[tuple[str, datetime, UUID, datetime]], held: Counter[str], turns: dict[str, datetime],
    locked: set[UUID], slots: int, now: datetime,
) -> tuple[list[UUID], dict[str, datetime]]:  # fmt: skip
    """One slot after another: to the key that holds fewest, then to the one whose turn was longest ago; within it, by
    rank. waiters: key, rank, run, began. Answers who has one, and the turns that are remembered."""
    lines: dict[str, list[tuple[datetime, UUID, datetime]]] = {}
    for key, ranked_at, run_id, began_at in sorted(waiters):
        lines.setdefault(key, []).append((ranked_at, run_id, began_at))
    soon = now + timedelta(seconds=10)
    known = {key: at for key, at in turns.items() if key in lines and at <= soon}
    since = {key: known.get(key, min(line[0][2], now)) for key, line in lines.items()}
    order = {key: (0, since[key], line[0][0], key) for key, line in lines.items()}
    free = {key: [run_id for _, run_id, _ in line if run_id not in locked] for key, line in lines.items()}
    granted: list[UUID] = []
    held = held.copy()
    while len(granted) < slots and any(free.values()):
        key = min((key for key in free if free[key]), key=lambda key: (held[key], order[key]))
        granted.append(free[key].pop(0))
        held[key] += 1
        since[key] = now + len(granted) * timedelta(microseconds=1)
        order[key] = (len(granted), since[key], now, key)
    if set(lines) == {""}:  # alone it is no turn's business
        since = {key: at for key, at in turns.items() if not key}
    return granted, since


def write_line(
    connection: "psycopg.Connection[Any]", draw: random.Random, at: datetime
) -> tuple[list[tuple[str, datetime, UUID, datetime]], Counter[str], dict[str, datetime]]:
    """A queue as it may be: keys or none, ranks that are equal or far apart, slots that are held, turns that are
    remembered, forgotten, or ahead of the clock."""
    keys = [""] if draw.random() < 0.2 else draw.sample(["", "a", "b", "c", "d", "e"], draw.randint(1, 6))
    weights = [draw.choice([1, 1, 8]) for _ in keys]
    waiters = []
    for key in draw.choices(keys, weights, k=draw.randint(0, 30)):
        began_at = at - timedelta(seconds=draw.randint(0, 40) * draw.choice([1, 1, 60]))
        ranked_at = began_at - draw.choice([0, 0, 0, 1, 5, -3]) * timedelta(minutes=1)
        waiters.append((key, ranked_at, UUID(int=draw.getrandbits(128)), began_at))
    held = Counter(draw.choices(keys, k=draw.randint(0, 8)))
    moments = [-300, -60, -60, -1, 5, 3600]
    turns = {
        key: at + timedelta(seconds=draw.choice(moments), microseconds=number)
        for number, key in enumerate([*keys, "gone"])
        if draw.random() < 0.6
    }
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pool_waiter, pool_slot, pool_turn")
        cursor.executemany(
            "INSERT INTO pool_waiter (run_id, task, token, pool, fairness_key, began_at, ranked_at)"
            " VALUES (%s, 0, 1, 'db', %s, %s, %s)",
            [(run_id, key, began_at, ranked_at) for key, ranked_at, run_id, began_at in waiters],
        )
        cursor.executemany(
            "INSERT INTO pool_slot (run_id, task, token, pool, fairness_key)"
            " VALUES (gen_random_uuid(), 0, 1, 'db', %s)",
            [(key,) for key in held.elements()],
        )
        cursor.executemany(
            "INSERT INTO pool_turn (namespace, pool, fairness_key, turned_at) VALUES ('default', 'db', %s, %s)",
            list(turns.items()),
        )
    return waiters, held, turns


async def test_three_hundred_random_queues_are_granted_as_one_slot_after_another(pools: Pools):
    draw = random.Random(35)
    await pools.set(1)
    granting = await psycopg.AsyncConnection.connect(pools.dsn)
    with psycopg.connect(pools.dsn, autocommit=True) as writing, psycopg.connect(pools.dsn) as moving:
        for case in range(300):
            now = (await (await granting.execute("SELECT now()")).fetchall())[0][0]
            await granting.rollback()
            waiters, held, turns = write_line(writing, draw, now)
            free, most = draw.randint(0, 12), draw.choice([1, 3, 100])
            writing.execute("UPDATE pool SET slots_max = %s", (sum(held.values()) + free,))
            locked = {run_id for _, _, run_id, _ in waiters if draw.random() < draw.choice([0, 0, 0.4])}
            moving.execute("SELECT FROM pool_waiter WHERE run_id = ANY(%s) FOR UPDATE", (list(locked),))
            now = (await (await granting.execute("SELECT now()")).fetchall())[0][0]
            granted = [run_id for run_id, _, _ in await grant_slots(granting, most)]
            await granting.commit()
            moving.rollback()
            expected, remembered = whom_next(waiters, held, turns, locked, min(free, most), now)
            assert granted == expected, case
            if free and waiters:
                found = writing.execute("SELECT fairness_key, turned_at FROM pool_turn").fetchall()
                assert dict(found) == remembered, case
            slots = writing.execute("SELECT fairness_key FROM pool_slot").fetchall()
            by_run = {run_id: key for key, _, run_id, _ in waiters}
            assert Counter(key for (key,) in slots) == held + Counter(by_run[run_id] for run_id in expected), case
    await granting.close()


def analyze(pools: Pools) -> None:
    with psycopg.connect(pools.dsn, autocommit=True) as connection:
        connection.execute("ANALYZE pool, pool_waiter, pool_slot, pool_turn")


ROWS_READ = """
SELECT sum(pg_stat_get_xact_tuples_returned(c.oid)) FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
WHERE coalesce(i.indrelid, c.oid) = ANY(ARRAY['pool', 'pool_waiter', 'pool_slot', 'pool_turn']::regclass[])
"""
"""Rows of tables and entries of indexes that a transaction has read so far, as the server counts them."""


@pytest.mark.parametrize("keys", [[""], ["a", "b", "c"]], ids=["no key", "three keys"])
@pytest.mark.parametrize(("free", "most"), [(2, 100), (60, 5_000), (5_000, 40)])
async def test_a_grant_reads_no_more_rows_the_more_tasks_wait(pools: Pools, keys: list[str], free: int, most: int):
    """Whatever the planner knows: the statistics are those of an empty queue, then those of this one."""
    await pools.set(free)
    analyze(pools)
    for key in keys:
        fill_line(pools, 10_000 // len(keys), key)
    for knows in (False, True):
        if knows:
            analyze(pools)
        async with await psycopg.AsyncConnection.connect(pools.dsn) as connection:
            granted = await grant_slots(connection, most)
            ((read,),) = await (await connection.execute(ROWS_READ)).fetchall()
        assert len(granted) == min(free, most)
        assert read < 40 + 10 * (len(granted) + len(keys)), knows
        end_all(pools)


async def test_a_pool_without_keys_remembers_no_turns(pools: Pools):
    await pools.set(1)
    for _ in range(3):
        await pools.start(WORK)
    await pools.admit()
    assert pools.query("SELECT count(*) FROM pool_turn") == [(0,)]


async def test_a_pool_shows_the_keys_in_the_order_of_their_turns_and_rows_that_come_back_keep_theirs(pools: Pools):
    await pools.set(1)
    run_ids = await wait_in_line(pools, "a", "a", "a", "b")
    plain = await pools.start(WORK)
    await pools.admit()
    async with await psycopg.AsyncConnection.connect(pools.dsn) as connection:
        holders = await list_holders(connection, "default", "db", limit=10)
        waiters = await list_waiters(connection, "default", "db", limit=10)
    assert [(str(row.run_id), row.fairness_key) for row in holders] == [(run_ids[0], "a")]
    assert [(str(row.run_id), row.fairness_key) for row in waiters] == [
        (run_ids[3], "b"), (plain, None), (run_ids[1], "a"), (run_ids[2], "a"),
    ]  # fmt: skip
    assert await pools.wrong() == []
