"""Pause and termination through the run agent, on a real Postgres: races of one partition, in one batch and in many."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from headrace.messages import Event, Lost, Requested, Started
from state.doctor import examine
from state.requests import Kind, request
from tests.integration.test_run_agent import CHAIN, Engine

GUARDED: dict[str, Any] = {"name": "guarded", "tasks": {"a": {"run": "t.a", "exclusive": True}}}


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    made = Engine(database)
    await made.lease()
    yield made
    made.close()


async def ask(engine: Engine, run_id: str, kind: Kind, **body: Any) -> tuple[str, Event]:
    """A request, and the record that wakes the run agent."""
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        return run_id, Requested(await request(connection, engine.store, run_id, kind, body, "ana"))


async def pause(engine: Engine, run_id: str, scope: int = 1) -> tuple[str, Event]:
    return await ask(engine, run_id, "paused", scope=scope, reason="to look")


async def resume(engine: Engine, run_id: str, scope: int = 1) -> tuple[str, Event]:
    return await ask(engine, run_id, "resumed", scope=scope, reason="looked")


async def check(engine: Engine) -> None:
    async with await psycopg.AsyncConnection.connect(engine.dsn, autocommit=True) as connection:
        found = await examine(connection)
    of_runs = [one for one in found if not one.ok and one.name not in ("relay", "server", "sweeps", "ticks", "slot")]
    assert not of_runs, of_runs


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "one each"])
async def test_a_result_behind_a_pause_counts_and_its_successor_waits_for_the_resume(engine: Engine, together: bool):
    run_id = await engine.start()
    said = [await pause(engine, run_id), engine.succeeded(run_id)]
    for batch in [said] if together else [[one] for one in said]:
        await engine.apply(*batch)
    assert engine.status(run_id) == "paused"
    assert engine.tasks(run_id) == [("completed", 1, 1), ("pending", 0, 0)]
    assert engine.query("SELECT withheld FROM task WHERE run_id = %s AND task = 1", run_id) == [("turn",)]
    await check(engine)
    engine.agent.close()  # what is withheld is known to a process that has only Postgres
    await engine.apply(await resume(engine, run_id))
    assert engine.tasks(run_id) == [("completed", 1, 1), ("queued", 0, 1)]
    assert engine.query("SELECT withheld FROM task WHERE run_id = %s AND task = 1", run_id) == [(None,)]
    await engine.apply(engine.succeeded(run_id, task=1))
    assert engine.status(run_id) == "completed"
    await check(engine)


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "one each"])
async def test_a_pause_that_is_over_at_once_costs_nothing(engine: Engine, together: bool):
    run_id = await engine.start()
    said = [await pause(engine, run_id), engine.succeeded(run_id), await resume(engine, run_id)]
    for batch in [said] if together else [[one] for one in said]:
        await engine.apply(*batch)
    assert engine.tasks(run_id) == [("completed", 1, 1), ("queued", 0, 1)]
    assert engine.query("SELECT kind FROM history WHERE run_id = %s ORDER BY row_version", run_id) == [
        ("started",), ("paused",), ("resumed",),
    ]  # fmt: skip
    await check(engine)


async def test_a_command_that_was_lost_in_a_pause_is_handed_out_after_it(engine: Engine):
    run_id = await engine.start()
    await engine.apply(await pause(engine, run_id), (run_id, Lost(0, 1, engine.nonce(run_id, 0, 1))))
    assert (engine.status(run_id), engine.tasks(run_id)) == ("paused", [("pending", 0, 1)])
    await check(engine)
    await engine.apply(engine.succeeded(run_id))  # it was not lost after all, and comes too late
    assert engine.tasks(run_id) == [("pending", 0, 1)]
    await engine.apply(await resume(engine, run_id))
    assert engine.tasks(run_id) == [("queued", 0, 2)]


async def test_a_claim_in_a_pause_is_answered_with_stop(engine: Engine):
    run_id = await engine.start(GUARDED)
    nonce = engine.nonce(run_id, 0, 1)
    await engine.apply(await pause(engine, run_id))
    await engine.apply((run_id, Started(0, 1, nonce, session="a" * 32, worker="w", claim=True)))
    assert engine.tasks(run_id) == [("pending", 0, 1)]
    assert engine.query("SELECT kind, actor FROM history WHERE run_id = %s AND row_version = 3", run_id) == [
        ("claim_withheld", "w")
    ]
    await check(engine)
    await engine.apply(await resume(engine, run_id))
    assert engine.tasks(run_id) == [("queued", 0, 2)]


async def test_two_pauses_of_two_scopes_end_one_by_one(engine: Engine):
    run_id = await engine.start()
    await engine.apply(await pause(engine, run_id), await pause(engine, run_id, 2), engine.succeeded(run_id))
    await check(engine)
    await engine.apply(await resume(engine, run_id))
    assert engine.status(run_id) == "paused"
    await check(engine)
    await engine.apply(await resume(engine, run_id, 2))
    assert engine.status(run_id) == "running"
    await check(engine)


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "one each"])
async def test_a_pause_is_kept_while_its_run_stands_aside(engine: Engine, together: bool):
    run_id = await engine.start()
    broken = await ask(engine, run_id, "decided", task="no number")
    said = [await pause(engine, run_id), broken]
    for batch in [said] if together else [[one] for one in said]:
        await engine.apply(*batch)
    assert engine.status(run_id) == "needs_attention"
    await engine.apply(await ask(engine, run_id, "released"))
    assert engine.status(run_id) == "pausing"
    await check(engine)


async def test_the_first_of_a_termination_and_the_last_result_counts(engine: Engine):
    one = {"name": "one", "tasks": {"a": {"run": "t.a"}}}
    ended, stopped = await engine.start(one), await engine.start(one)
    await engine.apply(engine.succeeded(ended), await ask(engine, ended, "terminated", reason="enough"))
    await engine.apply(await ask(engine, stopped, "terminated", reason="enough"), engine.succeeded(stopped))
    assert (engine.status(ended), engine.status(stopped)) == ("completed", "terminated")
    assert engine.tasks(stopped) == [("cancelled", 0, 1)]
    await check(engine)


async def test_an_attempt_of_a_terminated_run_says_how_it_ended(engine: Engine):
    run_id = await engine.start(CHAIN)
    await engine.apply((run_id, Started(0, 1, engine.nonce(run_id, 0, 1), session="a" * 32, worker="w")))
    await engine.apply(await ask(engine, run_id, "terminated", reason="enough"))
    assert engine.query("SELECT outcome, worker, error ->> 'code' FROM attempt WHERE run_id = %s", run_id) == [
        ("cancelled", "w", "TERMINATED")
    ]
    await check(engine)
