"""A run that undoes what it did, through the run agent on a real Postgres: also across restarts, in one batch and in
many."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from headrace.machine.place import compensation_of
from headrace.messages import Lost
from state.doctor import examine
from tests.integration.test_control import ask, check, pause, resume
from tests.integration.test_run_agent import Engine

A, B = compensation_of(0), compensation_of(1)
SAGA: dict[str, Any] = {
    "name": "saga",
    "tasks": {
        "a": {"run": "t.a", "compensate": {"run": "t.undo", "retry": {"attempts": 2, "delay": 0, "jitter": 0}}},
        "b": {"run": "t.b", "needs": "a", "compensate": "t.undo"},
        "c": {"run": "t.c", "needs": "b", "retry": 1},
    },
}


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    made = Engine(database)
    await made.lease()
    yield made
    made.close()


async def _failed(engine: Engine) -> str:
    """`a` and `b` have completed, and `c` has failed."""
    run_id = await engine.start(SAGA)
    for said in (engine.succeeded(run_id), engine.succeeded(run_id, 1), engine.failed(run_id, 2)):
        await engine.apply(said)
    return run_id


def _undone(engine: Engine, run_id: str) -> list[tuple[int, str, int, int]]:
    sql = "SELECT task, status::text, attempt, token FROM task WHERE run_id = %s AND task >= 200000000 ORDER BY task"
    return engine.query(sql, run_id)


async def test_b91_a_failed_run_undoes_what_it_did_last_first(engine: Engine):
    run_id = await _failed(engine)
    assert engine.status(run_id) == "compensating"
    assert _undone(engine, run_id) == [(A, "pending", 0, 0), (B, "queued", 0, 1)]
    await check(engine)
    await engine.apply(engine.succeeded(run_id, B))
    assert _undone(engine, run_id) == [(A, "queued", 0, 1), (B, "completed", 1, 1)]
    await check(engine)
    await engine.apply(engine.succeeded(run_id, A))
    assert engine.status(run_id) == "compensated"
    ((finished_at, letters),) = engine.query(
        "SELECT finished_at IS NOT NULL, (SELECT count(*) FROM dead_letter d WHERE d.run_id = r.run_id) FROM run r"
    )
    assert (finished_at, letters) == (True, 1)
    await check(engine)


@pytest.mark.parametrize("restarts", [False, True], ids=["in memory", "from Postgres each time"])
async def test_a_run_goes_on_undoing_wherever_it_was_when_its_agent_went_away(engine: Engine, restarts: bool):
    run_id = await engine.start(SAGA)
    lost = Lost(A, 1, engine.nonce(run_id, A, 1), "gone", begun=True)
    for said in (
        engine.succeeded(run_id), engine.succeeded(run_id, 1), engine.failed(run_id, 2), engine.succeeded(run_id, B),
        (run_id, lost), engine.succeeded(run_id, A), engine.succeeded(run_id, A, 2),
    ):  # fmt: skip
        if restarts:
            engine.agent.close()
        await engine.apply(said)
        await check(engine)
    assert _undone(engine, run_id) == [(A, "completed", 2, 2), (B, "completed", 1, 1)]
    assert engine.status(run_id) == "compensated"


@pytest.mark.parametrize("restarts", [False, True], ids=["in memory", "from Postgres each time"])
async def test_what_completed_before_a_rerun_is_undone_as_of_then(engine: Engine, restarts: bool):
    run_id = await engine.start(SAGA)
    for said in (engine.succeeded(run_id), engine.succeeded(run_id, 1), engine.succeeded(run_id, 2)):
        await engine.apply(said)
    assert engine.status(run_id) == "completed"
    version = engine.query("SELECT row_version FROM run WHERE run_id = %s", run_id)[0][0]
    for said in (
        await ask(engine, run_id, "reran", row_version=version, tasks=[0], reason="again"),
        engine.failed(run_id, 0, 2, retryable=False),
    ):
        if restarts:
            engine.agent.close()
        await engine.apply(said)
        await check(engine)
    assert (engine.status(run_id), _undone(engine, run_id)) == (
        "compensating", [(A, "pending", 0, 0), (B, "queued", 0, 1)]
    )  # fmt: skip
    given = engine.query(
        "SELECT t.undo::text, u.input::text FROM task t JOIN task u ON u.run_id = t.run_id AND u.task = "
        "t.task + 200000000 WHERE t.run_id = %s ORDER BY t.task",
        run_id,
    )
    assert all(undo is not None and undo == input for undo, input in given), given
    if restarts:
        engine.agent.close()
    await engine.apply(engine.succeeded(run_id, B))
    await engine.apply(engine.succeeded(run_id, A))
    assert engine.status(run_id) == "compensated"
    await check(engine)


async def test_branches_are_undone_side_by_side_and_their_ends_may_come_together(engine: Engine):
    undo = {"run": "t.undo", "retry": 1}
    body = {"run": "t.a", "compensate": undo}
    last = {"run": "t.c", "needs": ["b", "c"], "retry": 1}
    run_id = await engine.start(
        {"name": "wide", "tasks": {"a": body, "b": {**body, "needs": "a"}, "c": {**body, "needs": "a"}, "d": last}}
    )
    await engine.apply(engine.succeeded(run_id))
    await engine.apply(engine.succeeded(run_id, 1), engine.succeeded(run_id, 2))
    await engine.apply(engine.failed(run_id, 3))
    assert [row[1] for row in _undone(engine, run_id)] == ["pending", "queued", "queued"]
    await engine.apply(engine.failed(run_id, B), engine.succeeded(run_id, B + 1))
    assert [row[1] for row in _undone(engine, run_id)] == ["queued", "failed", "completed"]
    await check(engine)
    await engine.apply(engine.succeeded(run_id, A))
    assert engine.status(run_id) == "compensation_failed"
    await check(engine)


async def test_a_failed_compensation_is_a_dead_letter_and_its_replay_ends_the_run_well(engine: Engine):
    run_id = await _failed(engine)
    await engine.apply(engine.failed(run_id, B, retryable=False))
    await engine.apply(engine.succeeded(run_id, A))
    assert engine.status(run_id) == "compensation_failed"
    assert engine.query("SELECT status FROM dead_letter WHERE run_id = %s AND task = %s", run_id, B) == [("parked",)]
    await check(engine)
    engine.agent.close()
    await engine.apply(await ask(engine, run_id, "replayed", task=B, token=1))
    engine.query("UPDATE dead_letter SET status = 'replayed', closed_at = now() WHERE task = %s RETURNING 1", B)
    assert engine.status(run_id) == "compensating"
    assert engine.query("SELECT finished_at FROM run") == [(None,)]
    await engine.apply(engine.succeeded(run_id, B, 2))
    assert engine.status(run_id) == "compensated"
    await check(engine)


async def test_a_cancelled_run_undoes_what_it_did_and_a_terminated_one_does_not(engine: Engine):
    cancelled, terminated = await engine.start(SAGA), await engine.start(SAGA)
    for run_id, kind in ((cancelled, "cancelled"), (terminated, "terminated")):
        await engine.apply(engine.succeeded(run_id), await ask(engine, run_id, kind, reason="enough"))  # type: ignore[arg-type]
    assert (engine.status(cancelled), engine.status(terminated)) == ("compensating", "terminated")
    assert _undone(engine, cancelled) == [(A, "pending", 0, 0), (B, "queued", 0, 1)]  # b may have begun
    assert _undone(engine, terminated) == []
    await check(engine)
    await engine.apply(await ask(engine, cancelled, "terminated", reason="enough of that, too"))
    assert engine.status(cancelled) == "terminated"
    assert [row[1] for row in _undone(engine, cancelled)] == ["cancelled", "cancelled"]
    await check(engine)


async def test_a_pause_holds_what_is_to_be_undone(engine: Engine):
    run_id = await engine.start(SAGA)
    await engine.apply(engine.succeeded(run_id))
    await engine.apply(engine.succeeded(run_id, 1), await pause(engine, run_id), await resume(engine, run_id))
    await engine.apply(await pause(engine, run_id), engine.failed(run_id, 2))
    assert (engine.status(run_id), _undone(engine, run_id)[1]) == ("paused", (B, "pending", 0, 0))
    await check(engine)
    engine.agent.close()
    await engine.apply(await resume(engine, run_id))
    assert (engine.status(run_id), _undone(engine, run_id)[1]) == ("compensating", (B, "queued", 0, 1))
    await check(engine)


async def test_the_doctor_finds_a_run_that_says_it_is_undone_and_is_not(engine: Engine):
    run_id = await _failed(engine)
    engine.query("UPDATE run SET status = 'compensated', finished_at = now() WHERE run_id = %s RETURNING 1", run_id)
    async with await psycopg.AsyncConnection.connect(engine.dsn, autocommit=True) as connection:
        found = await examine(connection)
    assert any("derived compensating" in str(one) for one in found if not one.ok)
