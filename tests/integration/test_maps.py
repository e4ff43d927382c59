"""Maps on a real Postgres: items are rows of `task`, counted once a batch; what another process finds of them."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from headrace.errors import ConflictError, NotFoundError
from headrace.machine.place import ITEMS_MAX, place_of
from headrace.messages import Event, Requested, Started
from state.control import rerun, supply_output
from state.decisions import cancel_run, replay_dead_letter
from state.doctor import examine
from state.plans import Plans
from tests.integration.test_run_agent import Engine

PAGES: Final = 1
AFTER: Final = 2


def pages(**map_: Any) -> dict[str, Any]:
    """`list` gives the pages, `pages` reads each, `after` gets what was read."""
    return {
        "name": "pages",
        "output": {"read": "${{ tasks.after.output }}"},
        "tasks": {
            "list": {"run": "t.list"},
            "pages": {
                "run": "t.page",
                "needs": "list",
                "map": {"over": "${{ tasks.list.output }}", **map_},
                "with": {"page": "${{ item }}", "number": "${{ index }}"},
                "retry": 1,
            },
            "after": {"run": "t.after", "needs": "pages", "with": "${{ tasks.pages.output }}"},
        },
    }


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    made = Engine(database)
    await made.lease()
    yield made
    made.close()


def counters(engine: Engine, run_id: str) -> tuple[Any, ...]:
    sql = """SELECT status::text, items, items_begun, items_completed, items_failed FROM task
      WHERE run_id = %s AND task = 1"""
    return tuple(engine.query(sql, run_id)[0])


def items(engine: Engine, run_id: str) -> list[str]:
    sql = "SELECT status::text FROM task WHERE run_id = %s AND task >= 10000 ORDER BY task"
    return [status for (status,) in engine.query(sql, run_id)]


async def begin(engine: Engine, count: int, **map_: Any) -> str:
    run_id = await engine.start(pages(**map_))
    await engine.apply(engine.succeeded(run_id, output=json.dumps([f"p{n}" for n in range(count)]).encode()))
    return run_id


def done(engine: Engine, run_id: str, item: int, token: int = 1) -> tuple[str, Event]:
    return engine.succeeded(run_id, place_of(PAGES, item), token, output=b"%d" % item)


def failed(engine: Engine, run_id: str, item: int, token: int = 1) -> tuple[str, Event]:
    return engine.failed(run_id, place_of(PAGES, item), token)


async def all_is_well(engine: Engine) -> None:
    async with await psycopg.AsyncConnection.connect(engine.dsn, autocommit=True) as connection:
        wrong = [c for c in await examine(connection) if not c.ok and c.name not in ("relay", "sweeps", "slot")]
    assert not wrong


async def replay_letter(engine: Engine) -> str:
    """Replay the one parked letter; answers the request that carries it."""
    ((letter,),) = engine.query("SELECT dead_letter_id FROM dead_letter WHERE status = 'parked'")
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        await replay_dead_letter(connection, engine.store, letter, actor="ada")
    ((inbox,),) = engine.query("SELECT inbox_id FROM inbox WHERE applied_at IS NULL")
    return str(inbox)


async def test_a_map_from_its_list_to_the_list_of_its_outputs(engine: Engine, database: str):
    run_id = await begin(engine, 5, max_parallel=2)
    assert counters(engine, run_id) == ("waiting", 5, 2, 0, 0)
    await engine.apply(done(engine, run_id, 1), done(engine, run_id, 0))
    assert counters(engine, run_id) == ("waiting", 5, 4, 2, 0)
    assert items(engine, run_id) == ["completed", "completed", "queued", "queued"]
    await all_is_well(engine)
    other = Engine(database, "two")  # knows only what Postgres holds
    try:
        await other.lease()
        await other.apply(done(other, run_id, 1), done(other, run_id, 3), done(other, run_id, 2))
        await other.apply(done(other, run_id, 4))
        assert counters(other, run_id) == ("completed", 5, 5, 5, 0)
        assert other.query("SELECT output::text FROM task WHERE task = 1") == [("[0,1,2,3,4]",)]
        await all_is_well(other)
        other.close()
        other = Engine(database, "three")  # finds no items, and needs none
        await other.lease()
        await other.apply(done(other, run_id, 2), other.succeeded(run_id, AFTER, output=b'"read"'))
        assert other.query("SELECT status::text, output::text FROM run") == [("completed", '{"read":"read"}')]
        await all_is_well(other)
    finally:
        other.close()


async def test_b30_a_join_fires_once_behind_thirty_items_in_any_order_some_twice_over_a_restart(
    engine: Engine, database: str
):
    run_id = await begin(engine, 30)
    order = random.Random(30).sample(range(30), 30)
    first, rest = order[:17], order[17:]
    await engine.apply(*(done(engine, run_id, item) for item in (*first, *first[:5])))
    other = Engine(database, "two")
    try:
        await other.lease()
        await other.apply(*(done(other, run_id, item) for item in (*first[3:9], *rest[:-1], *rest[:4])))
        assert counters(other, run_id) == ("waiting", 30, 30, 29, 0)
        await other.apply(done(other, run_id, rest[-1]), done(other, run_id, rest[-1]), done(other, run_id, first[0]))
        assert counters(other, run_id) == ("completed", 30, 30, 30, 0)
        after = "SELECT status::text, token FROM task WHERE run_id = %s AND task = 2"
        assert other.query(after, run_id) == [("queued", 1)]
        assert other.query("SELECT count(*) FROM attempt WHERE run_id = %s", run_id) == [(31,)]
        await all_is_well(other)
    finally:
        other.close()


async def test_a_failed_page_is_replayed_alone(engine: Engine, database: str):
    run_id = await begin(engine, 3, failures="finish")
    await engine.apply(done(engine, run_id, 0), failed(engine, run_id, 1), done(engine, run_id, 2))
    assert counters(engine, run_id) == ("failed", 3, 3, 2, 1)
    assert engine.status(run_id) == "failed"
    assert engine.query("SELECT task, token, task_name FROM dead_letter") == [(place_of(PAGES, 1), 1, "pages")]
    await all_is_well(engine)
    inbox = await replay_letter(engine)
    other = Engine(database, "two")
    try:
        await other.lease()
        await other.apply((run_id, Requested(inbox)))
        assert counters(other, run_id) == ("waiting", 3, 3, 2, 0)
        assert items(other, run_id) == ["completed", "queued", "completed"]
        await other.apply(done(other, run_id, 1, token=2))
        assert counters(other, run_id) == ("completed", 3, 3, 3, 0)
        assert other.query("SELECT output::text FROM task WHERE task = 1") == [("[0,1,2]",)]
        assert other.query("SELECT outcome FROM replay_outcome") == [("completed",)]
        await all_is_well(other)
    finally:
        other.close()


async def test_fail_fast_cancels_and_a_replay_brings_back_what_it_cancelled(engine: Engine):
    run_id = await begin(engine, 4, max_parallel=3)
    started = Started(place := place_of(PAGES, 0), 1, engine.nonce(run_id, place, 1), session="0" * 32, worker="w")
    await engine.apply((run_id, started))
    await engine.apply(failed(engine, run_id, 2))
    assert counters(engine, run_id) == ("failed", 4, 3, 0, 1)
    kinds = "SELECT kind, task FROM run_event WHERE run_id = %s ORDER BY row_version, task"
    assert engine.query(kinds, run_id)[2:] == [
        ("attempt_started", place),
        ("attempt_cancelled", place),
        ("attempt_failed", place_of(PAGES, 2)),
    ]
    assert items(engine, run_id) == ["cancelled", "cancelled", "failed"]
    await all_is_well(engine)
    inbox = await replay_letter(engine)
    await engine.apply((run_id, Requested(inbox)))
    assert items(engine, run_id) == ["queued", "queued", "queued"]
    for item in (0, 1, 2):
        await engine.apply(done(engine, run_id, item, token=2))
    await engine.apply(done(engine, run_id, 3))
    assert counters(engine, run_id) == ("completed", 4, 4, 4, 0)
    await engine.apply(engine.succeeded(run_id, AFTER))
    assert engine.status(run_id) == "completed"
    await all_is_well(engine)


async def test_an_item_that_was_collected_is_not_replayed(engine: Engine):
    run_id = await begin(engine, 2, failures="collect")
    await engine.apply(failed(engine, run_id, 0), done(engine, run_id, 1))
    assert counters(engine, run_id) == ("completed", 2, 2, 1, 1)
    ((output,),) = engine.query("SELECT output::text FROM task WHERE task = 1")
    assert json.loads(output) == {"results": [None, 1], "failures": [{"index": 0, "code": "ERROR", "message": "no"}]}
    with pytest.raises(ConflictError, match="its map has completed with this failure in its output"):
        await replay_letter(engine)
    await all_is_well(engine)


async def test_a_cancel_ends_a_map(engine: Engine):
    run_id = await begin(engine, 10, max_parallel=3)
    await engine.apply(done(engine, run_id, 0))
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        await cancel_run(connection, engine.store, UUID(run_id), reason="enough", actor="ada")
    ((inbox,),) = engine.query("SELECT inbox_id FROM inbox WHERE applied_at IS NULL")
    await engine.apply((run_id, Requested(str(inbox))))
    assert counters(engine, run_id) == ("cancelled", 10, 4, 1, 0)
    assert items(engine, run_id) == ["completed", "cancelled", "cancelled", "cancelled"]
    assert engine.status(run_id) == "cancelled"
    await all_is_well(engine)


async def test_ten_thousand_items(engine: Engine):
    run_id = await begin(engine, ITEMS_MAX)
    assert counters(engine, run_id) == ("waiting", ITEMS_MAX, 1_000, 0, 0)
    for first in range(0, ITEMS_MAX, 500):
        batch = engine.batch(*(done(engine, run_id, item) for item in range(first, first + 500)))
        await asyncio.wait_for(engine.agent(batch), 60)
    assert counters(engine, run_id) == ("completed", ITEMS_MAX, ITEMS_MAX, ITEMS_MAX, 0)
    await engine.apply(engine.succeeded(run_id, AFTER))
    assert engine.status(run_id) == "completed"
    ((history, attempts),) = engine.query(
        "SELECT (SELECT count(*) FROM history), (SELECT count(*) FROM attempt WHERE run_id = %s)", run_id
    )
    assert (history, attempts) == (1, ITEMS_MAX + 2), "one row for each item that ended, and no more"
    await all_is_well(engine)


FAULTS: Final = [
    "UPDATE task SET items_completed = items_completed - 1 WHERE task = 1 RETURNING 1",
    "UPDATE task SET items_failed = 1 WHERE task = 1 RETURNING 1",
    "UPDATE task SET items_begun = 4 WHERE task = 1 RETURNING 1",
    "UPDATE task SET status = 'completed' WHERE task = 1 RETURNING 1",
    "UPDATE task SET status = 'completed' WHERE task = 20002 RETURNING 1",
    "UPDATE task SET task = task + 1 WHERE task = 20002 RETURNING 1",
    "UPDATE task SET items = NULL WHERE task = 1 RETURNING 1",
    "DELETE FROM task WHERE task = 20002 RETURNING 1",
]


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_doctor_finds_a_map_that_does_not_agree_with_its_items(engine: Engine, fault: str):
    run_id = await begin(engine, 5, max_parallel=2)
    await engine.apply(done(engine, run_id, 0))
    await all_is_well(engine)
    assert engine.query(fault)
    async with await psycopg.AsyncConnection.connect(engine.dsn, autocommit=True) as connection:
        checks = {check.name: check for check in await examine(connection)}
    assert not checks["maps"].ok
    assert run_id in checks["maps"].detail


# == run again =========================================================================================================
async def rerun_(engine: Engine, run_id: str, *names: str, foreseen: int | None = None) -> None:
    """As a person asks for it, and applied by a process that has only Postgres."""
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        prospect = await rerun(
            connection, engine.store, Plans(), UUID(run_id), names, input=None, row_version=None, reason="", actor="ada"
        )
    of_map = next(each for each in prospect.tasks if each.task == PAGES)
    assert of_map.items == foreseen
    ((inbox,),) = engine.query("SELECT inbox_id FROM inbox WHERE applied_at IS NULL")
    engine.agent.close()
    await engine.apply((run_id, Requested(str(inbox))))


async def test_a_rerun_takes_only_the_items_that_failed(engine: Engine):
    run_id = await begin(engine, 6, failures="finish", max_parallel=2)
    for item in range(6):
        await engine.apply(failed(engine, run_id, item) if item % 2 else done(engine, run_id, item))
    assert engine.status(run_id) == "failed"
    await rerun_(engine, run_id, foreseen=3)
    assert counters(engine, run_id) == ("waiting", 6, 6, 3, 0)
    assert items(engine, run_id) == ["completed", "queued", "completed", "queued", "completed", "pending"]
    assert engine.query("SELECT task, withheld FROM task WHERE withheld IS NOT NULL") == [(place_of(PAGES, 5), "room")]
    assert engine.query("SELECT status, count(*) FROM dead_letter GROUP BY status") == [("replayed", 3)]
    await all_is_well(engine)
    engine.agent.close()
    await engine.apply(done(engine, run_id, 1, 2))
    await engine.apply(done(engine, run_id, 3, 2), done(engine, run_id, 5, 2))
    assert counters(engine, run_id) == ("completed", 6, 6, 6, 0)
    assert engine.query("SELECT output::text FROM task WHERE task = 1") == [("[0,1,2,3,4,5]",)]
    await all_is_well(engine)


async def test_one_item_of_a_map_that_has_completed_runs_again(engine: Engine):
    run_id = await begin(engine, 3)
    await engine.apply(*(done(engine, run_id, item) for item in range(3)))
    await engine.apply(engine.succeeded(run_id, AFTER))
    assert engine.status(run_id) == "completed"
    await rerun_(engine, run_id, "pages.1", foreseen=1)
    assert counters(engine, run_id) == ("waiting", 3, 3, 2, 0)
    await all_is_well(engine)
    await engine.apply(engine.succeeded(run_id, place_of(PAGES, 1), 2, output=b'"new"'))
    assert engine.query("SELECT output::text FROM task WHERE task = 1") == [('[0,"new",2]',)]
    await engine.apply(engine.succeeded(run_id, AFTER, 2))
    assert engine.status(run_id) == "completed"
    await all_is_well(engine)


@pytest.mark.parametrize("count", [2, 3, 5])
async def test_a_map_starts_over_with_a_list_of_another_length(engine: Engine, count: int):
    run_id = await begin(engine, 3)
    await engine.apply(*(done(engine, run_id, item) for item in range(3)))
    await engine.apply(engine.succeeded(run_id, AFTER))
    await rerun_(engine, run_id, "list", foreseen=3)
    assert counters(engine, run_id) == ("pending", None, None, None, None)
    await all_is_well(engine)
    engine.agent.close()
    await engine.apply(engine.succeeded(run_id, 0, 2, output=json.dumps(list(range(count))).encode()))
    assert counters(engine, run_id) == ("waiting", count, count, 0, 0)
    await all_is_well(engine)
    for item in range(count):
        await engine.apply(done(engine, run_id, item, 2 if item < 3 else 1))
        engine.agent.close()
    assert counters(engine, run_id) == ("completed", count, count, count, 0)
    await all_is_well(engine)
    await engine.apply(engine.succeeded(run_id, AFTER, 2))
    assert engine.status(run_id) == "completed"
    assert engine.query("SELECT max(n) FROM (SELECT count(*) AS n FROM attempt GROUP BY task) AS t") == [(2,)]


async def test_an_item_is_given_its_output(engine: Engine):
    run_id = await begin(engine, 2, failures="finish")
    await engine.apply(done(engine, run_id, 0), failed(engine, run_id, 1))
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        where, what = (engine.store, Plans(), UUID(run_id)), {"reason": "known", "actor": "ada"}
        with pytest.raises(NotFoundError):
            await supply_output(connection, *where, "pages.7", b"7", **what)
        await supply_output(connection, *where, "pages.1", b'"by hand"', **what)
    ((inbox,),) = engine.query("SELECT inbox_id FROM inbox WHERE applied_at IS NULL")
    await engine.apply((run_id, Requested(str(inbox))))
    assert counters(engine, run_id) == ("completed", 2, 2, 2, 0)
    assert engine.query("SELECT output::text FROM task WHERE task = 1") == [('[0,"by hand"]',)]
    await all_is_well(engine)
