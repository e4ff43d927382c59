"""Repeats on a real Postgres: rounds, what came out of the last one, and which round an attempt was of."""

from typing import Any
from uuid import UUID

import psycopg

from headrace.messages import Due
from state.doctor import examine
from state.explain import explain_task
from state.plans import Plans
from state.queries.explain import read_facts
from state.queries.task import list_attempts, list_tasks
from tests.integration.test_run_agent import Engine, engine

__all__ = ["engine"]
POLL: dict[str, Any] = {
    "name": "poll",
    "tasks": {
        "ask": {
            "run": "t.ask",
            "with": {"last": "${{ last }}", "round": "${{ index }}"},
            "repeat": {"until": "output.done", "max": 3, "delay": "1h"},
        },
        "use": {"run": "t.use", "needs": "ask", "with": "${{ tasks.ask.output }}"},
    },
}
OF_A_RUN = {"statuses", "attempts", "tokens", "history", "ended", "waits", "joins", "orphan_timers", "dead_letters"}
NOW = (
    "UPDATE task SET due_at = now() - interval '1 s' WHERE run_id = %s AND due_at IS NOT NULL",
    "UPDATE timer SET due_at = now() - interval '1 s' WHERE run_id = %s",
)


async def wrong(engine: Engine) -> list[str]:
    async with await psycopg.AsyncConnection.connect(engine.dsn, autocommit=True) as connection:
        checks = await examine(connection)
    return [check.detail for check in checks if check.name in OF_A_RUN and not check.ok]


async def next_round(engine: Engine, run_id: str, token: int) -> None:
    """Its delay is over; whoever has the run in memory reads it anew."""
    with psycopg.connect(engine.dsn, autocommit=True) as connection:
        for statement in NOW:
            connection.execute(statement.encode(), (run_id,))
    engine.agent._forget()  # pyright: ignore[reportPrivateUsage]
    await engine.apply((run_id, Due(0, token, engine.nonce(run_id, 0, token), "repeat")))


async def test_rounds_go_on_until_the_condition_holds(engine: Engine):
    run_id = await engine.start(POLL)
    await engine.apply(engine.succeeded(run_id, output=b'{"done":false,"x":1}'))
    assert engine.query("SELECT status::text, token, rounds, output FROM task") == [
        ("pending", 1, 1, {"done": False, "x": 1})
    ]
    assert engine.query("SELECT kind FROM timer") == [("repeat",)]
    assert await wrong(engine) == []
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        facts, index = await read_facts(connection, engine.store.settings, Plans(), UUID(run_id), "ask")
    assert index is not None
    assert explain_task(facts, index)[0].code == "BETWEEN_ROUNDS"
    await next_round(engine, run_id, 1)
    await engine.apply(engine.failed(run_id, token=2, retry_after=0.0))  # the second round has two attempts
    engine.agent._forget()  # pyright: ignore[reportPrivateUsage]
    await engine.apply(engine.succeeded(run_id, token=3, output=b'{"done":true}'))
    assert engine.tasks(run_id) == [("completed", 3, 3), ("queued", 0, 1)]
    assert engine.query("SELECT token, outcome, round FROM attempt ORDER BY token") == [
        (1, "completed", 0), (2, "failed", 1), (3, "completed", 1),
    ]  # fmt: skip
    assert await wrong(engine) == []
    engine.agent._forget()  # pyright: ignore[reportPrivateUsage]
    await engine.apply(engine.succeeded(run_id, task=1))
    assert engine.status(run_id) == "completed"
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        (asked, _) = await list_tasks(connection, UUID(run_id), first=0, end=2)
        attempts = await list_attempts(connection, UUID(run_id), 0, limit=9)
    assert (asked.rounds, asked.output) == (2, '{"done":true}')
    assert [attempt.round for attempt in attempts] == [0, 1, 1]


async def test_a_repeat_that_is_never_done_ends_at_its_bound(engine: Engine):
    at_once = {**POLL["tasks"]["ask"], "repeat": {"until": "output.done", "max": 3}}
    run_id = await engine.start({**POLL, "tasks": {"ask": at_once}})
    not_yet = b'{"done":false}'
    await engine.apply(engine.succeeded(run_id, output=not_yet), engine.succeeded(run_id, token=2, output=not_yet))
    assert engine.query("SELECT status::text, token, rounds FROM task") == [("queued", 3, 2)]
    await engine.apply(engine.succeeded(run_id, token=3, output=b'{"done":false}'))
    assert engine.query("SELECT status::text, error ->> 'code', rounds FROM task") == [("failed", "ROUNDS_OVER", 3)]
    assert engine.query("SELECT code FROM dead_letter") == [("ROUNDS_OVER",)]
    assert await wrong(engine) == []


async def test_a_task_without_rounds_has_none(engine: Engine):
    run_id = await engine.start()
    await engine.apply(engine.succeeded(run_id))
    assert set(engine.query("SELECT rounds, output FROM task")) == {(0, None)}
    assert engine.query("SELECT round FROM attempt") == [(None,)]
