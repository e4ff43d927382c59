"""A run that is cancelled and cleans up, through the run agent on a real Postgres: also across restarts, in one batch
and in many."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from headrace.messages import Due, Lost
from state.doctor import examine
from tests.integration.test_control import ask, check, pause, resume
from tests.integration.test_run_agent import Engine

LEASED: dict[str, Any] = {
    "name": "leased",
    "tasks": {
        "acquire": {"run": "t.a"},
        "work": {"run": "t.b", "needs": "acquire"},
        "release": {
            "run": "t.c",
            "needs": "work",
            "join": "finally",
            "retry": {"attempts": 2, "delay": 0, "jitter": 0},
        },
        "tell": {"run": "t.d", "needs": ["release"], "join": "finally"},
    },
}
RELEASE, TELL = 2, 3


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    made = Engine(database)
    await made.lease()
    yield made
    made.close()


async def _cancelled(engine: Engine, definition: dict[str, Any] = LEASED) -> str:
    run_id = await engine.start(definition)
    await engine.apply(engine.succeeded(run_id))
    await engine.apply(await ask(engine, run_id, "cancelled", reason="enough"))
    return run_id


def _states(engine: Engine, run_id: str) -> list[str]:
    return [status for status, _, _ in engine.tasks(run_id)]


@pytest.mark.parametrize("restarts", [False, True], ids=["in memory", "from Postgres each time"])
async def test_a_cancelled_run_cleans_up_wherever_it_was_when_its_agent_went_away(engine: Engine, restarts: bool):
    run_id = await _cancelled(engine)
    assert engine.status(run_id) == "cancelling"
    assert _states(engine, run_id) == ["completed", "cancelled", "queued"]
    await check(engine)
    lost = Lost(RELEASE, 1, engine.nonce(run_id, RELEASE, 1), "gone", begun=True)
    late = engine.succeeded(run_id, 1)
    for said in (late, (run_id, lost), engine.succeeded(run_id, RELEASE, 2), engine.succeeded(run_id, TELL)):
        if restarts:
            engine.agent.close()
        await engine.apply(said)
        await check(engine)
    assert engine.tasks(run_id)[RELEASE:] == [("completed", 2, 2), ("completed", 1, 1)]
    assert engine.status(run_id) == "cancelled"
    ((finished, control),) = engine.query("SELECT finished_at IS NOT NULL, control FROM run")
    assert (finished, control) == (True, 64)


async def test_a_cancel_and_the_results_before_and_behind_it_may_come_together(engine: Engine):
    run_id = await engine.start(LEASED)
    await engine.apply(engine.succeeded(run_id))
    await engine.apply(
        engine.failed(run_id, 1), await ask(engine, run_id, "cancelled", reason=""), engine.succeeded(run_id, 1)
    )
    assert (engine.status(run_id), _states(engine, run_id)) == ("cancelling", ["completed", "cancelled", "queued"])
    await check(engine)
    await engine.apply(engine.succeeded(run_id, RELEASE), await ask(engine, run_id, "cancelled", reason="once more"))
    await engine.apply(engine.succeeded(run_id, TELL))
    assert engine.status(run_id) == "cancelled"
    await check(engine)


async def test_a_clean_up_that_failed_is_replayed_in_a_cancelled_run(engine: Engine):
    run_id = await _cancelled(engine)
    await engine.apply(engine.failed(run_id, RELEASE, retryable=False))
    await engine.apply(engine.succeeded(run_id, TELL))
    assert engine.status(run_id) == "failed"
    await check(engine)
    engine.agent.close()
    await engine.apply(await ask(engine, run_id, "replayed", task=RELEASE, token=1))
    engine.query("UPDATE dead_letter SET status = 'replayed', closed_at = now() WHERE task = 2 RETURNING 1")
    assert engine.status(run_id) == "cancelling"
    assert engine.query("SELECT finished_at FROM run") == [(None,)]
    await check(engine)
    await engine.apply(engine.succeeded(run_id, RELEASE, 2))
    assert engine.status(run_id) == "cancelled"
    await check(engine)


async def test_a_replay_that_a_cancel_overtakes_is_refused_and_nothing_is_wrong_with_its_letter(engine: Engine):
    run_id = await engine.start(LEASED)
    await engine.apply(engine.succeeded(run_id))
    await engine.apply(engine.failed(run_id, 1, retryable=False))
    cancel, replay = (
        await ask(engine, run_id, "cancelled", reason="enough"),
        await ask(engine, run_id, "replayed", task=1, token=1),
    )
    engine.query("UPDATE dead_letter SET status = 'replayed', closed_at = now() WHERE task = 1 RETURNING 1")
    await engine.apply(cancel, replay)
    assert (engine.status(run_id), _states(engine, run_id)) == ("cancelling", ["completed", "failed", "queued"])
    await check(engine)
    await engine.apply(engine.succeeded(run_id, RELEASE))
    await engine.apply(engine.succeeded(run_id, TELL))
    assert engine.status(run_id) == "failed"
    await check(engine)


async def test_a_termination_ends_what_cleans_up(engine: Engine):
    run_id = await _cancelled(engine)
    await engine.apply(await ask(engine, run_id, "terminated", reason="now"))
    assert (engine.status(run_id), _states(engine, run_id)[RELEASE]) == ("terminated", "cancelled")
    assert engine.query("SELECT control FROM run") == [(4,)]
    await check(engine)


async def test_a_pause_holds_clean_ups(engine: Engine):
    run_id = await engine.start(LEASED)
    await engine.apply(engine.succeeded(run_id), await pause(engine, run_id))
    await engine.apply(await ask(engine, run_id, "cancelled", reason="enough"))
    assert (engine.status(run_id), _states(engine, run_id)) == ("paused", ["completed", "cancelled", "pending"])
    await check(engine)
    engine.agent.close()
    await engine.apply(await resume(engine, run_id))
    assert (engine.status(run_id), _states(engine, run_id)[RELEASE]) == ("cancelling", "queued")
    await check(engine)


async def test_a_run_past_its_deadline_cleans_up_and_what_it_did_is_undone_then(engine: Engine):
    tasks = {**LEASED["tasks"], "acquire": {"run": "t.a", "compensate": "t.undo"}}
    run_id = await engine.start({"name": "late", "deadline": "1s", "tasks": tasks})
    await engine.apply(engine.succeeded(run_id))
    engine.query("UPDATE run SET deadline_at = now() RETURNING 1")
    engine.query("UPDATE timer SET due_at = r.deadline_at FROM run r WHERE is_deadline RETURNING 1")
    engine.agent.close()
    await engine.apply((run_id, Due(-1, 0, engine.nonce(run_id, -1, 0), "deadline")))
    assert engine.status(run_id) == "cancelling"
    assert engine.query("SELECT deadline_at, control FROM run") == [(None, 72)]
    await check(engine)
    await engine.apply(engine.succeeded(run_id, RELEASE))
    await engine.apply(engine.succeeded(run_id, TELL))
    assert engine.status(run_id) == "compensating"
    await check(engine)


async def test_a_rerun_behind_a_cancel_is_a_run_like_any_other(engine: Engine):
    run_id = await _cancelled(engine)
    await engine.apply(engine.succeeded(run_id, RELEASE))
    await engine.apply(engine.succeeded(run_id, TELL))
    ((row_version,),) = engine.query("SELECT row_version FROM run")
    await engine.apply(await ask(engine, run_id, "reran", row_version=row_version, tasks=[], reason="again"))
    assert (engine.status(run_id), _states(engine, run_id)) == (
        "running", ["completed", "queued", "pending", "pending"],
    )  # fmt: skip
    assert engine.query("SELECT control FROM run") == [(0,)]
    await check(engine)
    await engine.apply(engine.succeeded(run_id, 1, 2))
    await engine.apply(engine.succeeded(run_id, RELEASE, 2))
    await engine.apply(engine.succeeded(run_id, TELL, 2))
    assert engine.status(run_id) == "completed"
    await check(engine)


async def test_the_doctor_finds_what_a_cancel_left_open(engine: Engine):
    run_id = await _cancelled(engine)
    engine.query("UPDATE task SET status = 'queued', error = NULL WHERE task = 1 RETURNING 1")
    async with await psycopg.AsyncConnection.connect(engine.dsn, autocommit=True) as connection:
        found = {one.name: one for one in await examine(connection)}
    assert not found["cancels"].ok
    assert f"{run_id} task work: is queued, and the run was cancelled" in str(found["cancels"])


@pytest.mark.parametrize(("status", "control"), [("cancelling", 0), ("running", 64), ("completed", 64)])
async def test_postgres_refuses_a_status_that_the_cancel_contradicts(engine: Engine, status: str, control: int):
    await _cancelled(engine)
    with pytest.raises(psycopg.errors.CheckViolation, match="run_cancelling_is_its_status"):
        engine.query(
            "UPDATE run SET status = %s::run_status, control = %s, "
            "finished_at = CASE %s WHEN 'completed' THEN now() END RETURNING 1",
            status, control, status,
        )  # fmt: skip
