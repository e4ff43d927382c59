"""A run in flight moves to another version through the run agent, on a real Postgres."""

from typing import Any

import psycopg
import pytest

from headrace.graph import from_data
from state.workflows import publish
from tests.integration.test_control import ask, check, engine, pause, resume
from tests.integration.test_run_agent import Engine

__all__ = ["engine"]

ONE: dict[str, Any] = {
    "name": "moved",
    "tasks": {"a": {"run": "t.a"}, "news": {"needs": ["a"], "signal": "news"}, "b": {"run": "t.b", "needs": ["news"]}},
}
TWO: dict[str, Any] = {
    "name": "moved",
    "tasks": {**ONE["tasks"], "c": {"run": "t.c", "needs": ["a"], "with": {"a": "${{ tasks.a.output }}"}}},
}
GONE: dict[str, Any] = {"name": "moved", "tasks": {"news": {"signal": "news"}}}


async def publish_next(engine: Engine, definition: dict[str, Any]) -> int:
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        workflow = from_data(definition)
        done = await publish(connection, "default", workflow.name, workflow.canonical().decode())
    return done.version_id


async def paused(engine: Engine) -> str:
    """`a` is done, and nothing of version 1 reads its output; `news` waits."""
    run_id = await engine.start(ONE)
    await engine.apply(engine.succeeded(run_id, output=b'{"n": 7}'))
    await engine.apply(await pause(engine, run_id))
    assert engine.status(run_id) == "paused"
    return run_id


def version_of(engine: Engine, run_id: str) -> int:
    rows = engine.query(
        "SELECT v.version FROM run JOIN workflow_version v USING (version_id) WHERE run_id = %s", run_id
    )
    return int(rows[0][0])


@pytest.mark.parametrize("forgets", [True, False], ids=["another process", "the same process"])
async def test_a_moved_run_reads_what_no_task_read_before(engine: Engine, forgets: bool):
    run_id, version_id = await paused(engine), await publish_next(engine, TWO)
    await engine.apply(await ask(engine, run_id, "migrated", version_id=version_id, reason="more"))
    assert (version_of(engine, run_id), engine.status(run_id)) == (2, "paused")
    assert engine.query("SELECT withheld FROM task WHERE run_id = %s AND task = 3", run_id) == [("turn",)]
    await check(engine)
    if forgets:
        engine.agent.close()
    await engine.apply(await resume(engine, run_id))
    assert engine.tasks(run_id) == [("completed", 1, 1), ("waiting", 0, 1), ("queued", 0, 1)]
    (row,) = engine.query("SELECT detail FROM history WHERE run_id = %s AND kind = 'migrated'", run_id)
    assert row[0] == {"from": 1, "to": 2, "reason": "more"}
    await engine.apply(engine.succeeded(run_id, task=3))
    await check(engine)


async def test_a_move_in_one_batch_with_the_end_of_the_pause_begins_what_is_new(engine: Engine):
    run_id, version_id = await paused(engine), await publish_next(engine, TWO)
    move = await ask(engine, run_id, "migrated", version_id=version_id, reason="")
    await engine.apply(move, await resume(engine, run_id), move)
    assert version_of(engine, run_id) == 2
    assert engine.tasks(run_id)[2] == ("queued", 0, 1)
    await check(engine)


async def test_what_cannot_be_moved_stays_as_it_is(engine: Engine):
    run_id, version_id = await paused(engine), await publish_next(engine, GONE)
    for unknown in (version_id, 10_000):
        await engine.apply(await ask(engine, run_id, "migrated", version_id=unknown, reason=""))
    assert (version_of(engine, run_id), engine.status(run_id)) == (1, "paused")
    assert engine.query("SELECT count(*) FROM inbox WHERE applied_at IS NULL") == [(0,)]
    refused = engine.query("SELECT detail ->> 'why' FROM history WHERE kind = 'migration_refused' ORDER BY row_version")
    assert refused[1] == ("the version that it was to be moved to does not exist",)
    await engine.apply(await resume(engine, run_id))
    assert engine.tasks(run_id) == [("completed", 1, 1), ("waiting", 0, 1)]
    await check(engine)


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "one each"])
async def test_what_was_put_back_to_how_all_begin_may_be_gone_in_the_version_moved_to(engine: Engine, together: bool):
    """`b` was skipped, and a replay of `a` took that back: its row says nothing, and must not outlive its task."""
    retry = {"attempts": 2, "delay": "1h", "cap": "1h"}
    one: dict[str, Any] = {
        "name": "less",
        "tasks": {"a": {"run": "t.a", "retry": retry}, "b": {"run": "t.b", "needs": ["a"]}},
    }
    run_id = await engine.start(one)
    await engine.apply(engine.failed(run_id, retryable=False))
    assert engine.tasks(run_id) == [("failed", 1, 1), ("skipped", 0, 0)]
    version_id = await publish_next(engine, {"name": "less", "tasks": {"a": one["tasks"]["a"]}})
    engine.query("UPDATE dead_letter SET status = 'replayed', closed_at = now(), replay_token = 2 RETURNING 1")
    said = [
        await ask(engine, run_id, "replayed", task=0, token=1),
        engine.failed(run_id, token=2),
        await pause(engine, run_id),
        await ask(engine, run_id, "migrated", version_id=version_id, reason="less"),
    ]
    for batch in [said] if together else [[each] for each in said]:
        await engine.apply(*batch)
    assert (version_of(engine, run_id), engine.status(run_id)) == (2, "paused")
    assert engine.tasks(run_id) == [("pending", 2, 2)]
    await check(engine)
    engine.agent.close()
    await engine.apply(await ask(engine, run_id, "migrated", version_id=version_id - 1, reason="back"))
    assert version_of(engine, run_id) == 1, "a run that is read anew knows of no more than there is"
    await check(engine)


async def test_a_row_that_says_nothing_stands_in_the_way_of_no_move(engine: Engine):
    run_id = await paused(engine)
    less = {name: task for name, task in ONE["tasks"].items() if name != "b"}
    version_id = await publish_next(engine, {"name": "moved", "tasks": less})
    engine.agent.close()
    engine.query("INSERT INTO task (run_id, task, status) VALUES (%s, 2, 'pending') RETURNING 1", run_id)
    await engine.apply(await ask(engine, run_id, "migrated", version_id=version_id, reason=""))
    assert version_of(engine, run_id) == 2
    assert engine.tasks(run_id) == [("completed", 1, 1), ("waiting", 0, 1)]
    await check(engine)


async def test_a_version_that_only_a_newer_release_can_read_is_waited_for(engine: Engine):
    run_id, version_id = await paused(engine), await publish_next(engine, TWO)
    engine.query(
        "UPDATE workflow_version SET definition = '{\"name\": 7}' WHERE version_id = %s RETURNING 1", version_id
    )
    await engine.apply(await ask(engine, run_id, "migrated", version_id=version_id, reason=""))
    assert engine.query("SELECT count(*) FROM inbox WHERE applied_at IS NULL") == [(1,)]
    await engine.apply(await resume(engine, run_id))
    assert engine.status(run_id) != "paused", "what is behind it is applied"


async def test_a_rerun_on_a_version_that_does_not_exist_is_none_and_stays_in_no_inbox(engine: Engine):
    run_id = await engine.start({"name": "plain", "tasks": {"a": {"run": "t.a"}}})
    await engine.apply(engine.succeeded(run_id))
    ((version,),) = engine.query("SELECT row_version FROM run WHERE run_id = %s", run_id)
    wrong = await ask(engine, run_id, "reran", row_version=version, tasks=[0], version_id=10_000, reason="")
    await engine.apply(wrong)
    assert engine.status(run_id) == "completed"
    assert engine.query("SELECT count(*) FROM inbox WHERE applied_at IS NULL") == [(0,)]
    await engine.apply(await ask(engine, run_id, "reran", row_version=version, tasks=[0], reason=""))
    assert engine.tasks(run_id) == [("queued", 1, 2)]
    await check(engine)
