"""Deadlines on a real Postgres: kept beside the timers of hand-outs, said by the sweep, made again when they vanish."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from headrace.machine.place import RUN
from headrace.messages import Due, Started
from state.doctor import examine
from state.explain import explain_run, explain_task
from state.plans import Plans
from state.queries.explain import read_facts
from streams.metrics import Metrics
from streams.sweeps import Sweeps
from tests.integration.test_run_agent import Engine

LIMITED: dict[str, Any] = {
    "name": "limited",
    "deadline": "1d",
    "tasks": {"a": {"run": "t.a", "deadline": "2h", "start_within": "5m"}, "b": {"run": "t.b", "needs": "a"}},
}
OF_A_RUN = {"statuses", "attempts", "tokens", "history", "ended", "waits", "joins", "orphan_timers"}
TIMERS = "SELECT task, token, kind, is_deadline FROM timer ORDER BY task, token DESC"

OF_TASKS = (
    "UPDATE task SET deadline_at = now() - interval '1 s' WHERE run_id = %s AND deadline_at IS NOT NULL",
    "UPDATE timer SET due_at = now() - interval '1 s' WHERE run_id = %s AND is_deadline AND task >= 0",
)
OF_THE_RUN = (
    "UPDATE run SET deadline_at = now() - interval '1 s' WHERE run_id = %s",
    "UPDATE timer SET due_at = now() - interval '1 s' WHERE run_id = %s AND task = -1",
)
OF_THE_QUEUE = (
    "UPDATE task SET due_at = now() - interval '1 s' WHERE run_id = %s",
    "UPDATE timer SET due_at = now() - interval '1 s' WHERE run_id = %s AND kind = 'start'",
)
VANISHING = {
    "of a task": "DELETE FROM timer WHERE is_deadline AND task >= 0",
    "of a run": "DELETE FROM timer WHERE is_deadline AND task = -1",
    "of the queue": "DELETE FROM timer WHERE NOT is_deadline",
}


class Clock(Engine):
    """An engine whose deadlines a test brings near."""

    async def pass_(self, run_id: str, *statements: str) -> None:
        """Let deadlines be a second ago; whoever has the run in memory reads it anew."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode(), (run_id,))
        self.agent._forget()  # pyright: ignore[reportPrivateUsage]

    def deadline(self, run_id: str, task: int = 0) -> tuple[str, Due]:
        return run_id, Due(task, 0, self.nonce(run_id, task, 0), "deadline")

    @property
    def sweeps(self) -> Sweeps:
        return Sweeps(self.store, Plans(), None, Metrics(CollectorRegistry()))  # type: ignore[arg-type]

    async def sweep(self, name: str) -> int:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            found: int = await getattr(self.sweeps, f"_{name}")(connection)
        return found

    async def wrong(self) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            checks = await examine(connection)
        assert {check.name for check in checks} >= OF_A_RUN
        return [check.detail for check in checks if check.name in OF_A_RUN and not check.ok]

    async def codes(self, run_id: str, task: str | None = None) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            facts, index = await read_facts(connection, self.store.settings, Plans(), UUID(run_id), task)
        causes = explain_run(facts) if index is None else explain_task(facts, index)
        return [cause.code.value for cause in causes]


@pytest.fixture
async def clock(database: str) -> AsyncIterator[Clock]:
    made = Clock(database)
    await made.lease()
    yield made
    made.close()


async def test_deadlines_stand_beside_the_timer_of_the_hand_out_and_leave_with_the_end(clock: Clock):
    run_id = await clock.start(LIMITED)
    assert clock.query(TIMERS) == [(-1, 0, "deadline", True), (0, 1, "start", False), (0, 0, "deadline", True)]
    assert await clock.wrong() == []
    codes = await clock.codes(run_id, "a")
    assert {"START_DEADLINE", "DEADLINE"} <= set(codes)
    assert "RUN_DEADLINE" in await clock.codes(run_id)
    started = Started(0, 1, clock.nonce(run_id, 0, 1), "0" * 32, "w")
    await clock.apply((run_id, started))
    assert clock.query(TIMERS) == [(-1, 0, "deadline", True), (0, 0, "deadline", True)]
    await clock.apply(clock.succeeded(run_id))
    assert clock.query(TIMERS) == [(-1, 0, "deadline", True)]
    await clock.apply(clock.succeeded(run_id, task=1))
    assert (clock.status(run_id), clock.query(TIMERS)) == ("completed", [])
    assert clock.query("SELECT deadline_at FROM run") + clock.query("SELECT deadline_at FROM task") == [(None,)] * 3
    assert await clock.wrong() == []


async def test_a_deadline_that_passed_while_a_task_backs_off_fails_it_for_a_dead_letter(clock: Clock):
    run_id = await clock.start(LIMITED)
    await clock.apply(clock.failed(run_id, retry_after=3600.0))
    assert clock.query(TIMERS)[-2:] == [(0, 1, "backoff", False), (0, 0, "deadline", True)]
    assert await clock.wrong() == []
    await clock.apply(clock.deadline(run_id))  # said before its time
    assert clock.tasks(run_id) == [("pending", 1, 1)]
    await clock.pass_(run_id, *OF_TASKS)
    assert await clock.sweep("timers") == 1
    await clock.apply(clock.deadline(run_id), clock.deadline(run_id))
    assert clock.tasks(run_id) == [("failed", 1, 1), ("skipped", 0, 0)]
    assert clock.query("SELECT code, token FROM dead_letter") == [("DEADLINE", 1)]
    assert (clock.status(run_id), clock.query(TIMERS)) == ("failed", [])
    assert clock.query("SELECT task, token, detail ->> 'timer' FROM history WHERE kind = 'due'") == [(0, 0, "deadline")]
    assert await clock.wrong() == []


async def test_nobody_can_forge_a_deadline(clock: Clock):
    run_id = await clock.start(LIMITED)
    await clock.pass_(run_id, *OF_TASKS)
    forged = Due(0, 0, clock.nonce(run_id, 0, 1), "deadline")  # with what a worker is given
    await clock.apply((run_id, forged))
    assert clock.tasks(run_id) == [("queued", 0, 1)]


async def test_a_run_past_its_deadline_has_failed_and_says_why(clock: Clock):
    run_id = await clock.start(LIMITED)
    await clock.pass_(run_id, *OF_THE_RUN)
    assert await clock.sweep("timers") == 1
    await clock.apply(clock.deadline(run_id, RUN))
    assert (clock.status(run_id), clock.query(TIMERS)) == ("failed", [])
    assert clock.query("SELECT status::text, error ->> 'code' FROM task ORDER BY task") == [
        ("cancelled", "RUN_DEADLINE"), ("cancelled", "RUN_DEADLINE"),
    ]  # fmt: skip
    assert clock.query("SELECT control FROM run") == [(8,)]
    assert await clock.codes(run_id) == ["RUN_FAILED"]
    assert await clock.wrong() == []


@pytest.mark.parametrize("lost", VANISHING)
async def test_a_row_that_vanished_is_made_again(clock: Clock, lost: str):
    await clock.start(LIMITED)
    before = clock.query("SELECT task, token, kind, due_at FROM timer ORDER BY task, kind")
    with psycopg.connect(clock.dsn, autocommit=True) as connection:
        connection.execute(b"UPDATE task SET changed_at = now() - interval '1 minute'")
        connection.execute(b"UPDATE run SET updated_at = now() - interval '1 minute'")
        connection.execute(VANISHING[lost].encode())
    assert await clock.wrong() != []
    assert await clock.sweep("vanished") == 1
    assert clock.query("SELECT task, token, kind, due_at FROM timer ORDER BY task, kind") == before
    assert await clock.sweep("vanished") == 0
    assert await clock.wrong() == []


async def test_the_time_in_the_queue_ends_a_hand_out_that_nobody_began(clock: Clock):
    run_id = await clock.start(LIMITED)
    await clock.pass_(run_id, *OF_THE_QUEUE)
    assert await clock.sweep("timers") == 1
    await clock.apply((run_id, Due(0, 1, clock.nonce(run_id, 0, 1), "start")))
    assert clock.tasks(run_id) == [("failed", 0, 1), ("skipped", 0, 0)]
    assert clock.query("SELECT code FROM dead_letter") == [("START_DEADLINE",)]
    assert (clock.query(TIMERS), await clock.wrong()) == ([], [])
