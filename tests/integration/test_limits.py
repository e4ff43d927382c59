"""Limits of runs on a real Postgres: starts that race, ends that free, and the sweep that grants.

No broker is involved: what tells a run of its permit is what a test says, so it may come late, twice, or not at all.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from headrace.errors import ConflictError, KeyReusedError, PayloadError
from headrace.graph import from_data
from headrace.messages import Due, Requested
from state.children import Starter
from state.control import pause_run, rerun, resume_run
from state.decisions import cancel_run, replay_dead_letter
from state.doctor import examine
from state.permits import grant_permits, next_keys
from state.pipe import Pipe
from state.pools import prioritise_run
from state.starts import start_run
from state.store import Key
from state.workflows import publish
from streams.permits import Permits
from streams.sweeps import Sweeps
from tests.integration.test_run_agent import Engine
from tests.integration.test_triggers import Shop

NO_KEY = Key("", "", "")
CHECKS = (
    "permits", "statuses", "attempts", "tokens", "history", "waits", "pauses", "joins", "triggers", "children", "ended",
    "orphan_timers",
)  # fmt: skip


def sync(over: str = "queue", runs: int = 1, **more: Any) -> dict[str, Any]:
    limit = {"key": "${{ input.customer }}", "runs": runs, "over": over}
    return {"name": "sync", "limit": limit, "tasks": {"fetch": {"run": "t.fetch", "retry": 1}}, **more}


class Limits(Engine):
    """An engine, and the sweep that grants."""

    async def publish(self, definition: dict[str, Any]) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            workflow = from_data(definition)
            await publish(connection, "default", workflow.name, workflow.canonical().decode())

    async def begin(
        self, connection: psycopg.AsyncConnection[Any], customer: Any = "ada", *, workflow: str = "sync",
        version: int | None = None, **more: Any,
    ) -> tuple[str, bool]:  # fmt: skip
        """A start in a transaction that the caller ends; answers the run, and whether it is new."""
        plan = await self.plans.latest(connection, "default", workflow, version)
        given = json.dumps({"customer": customer}).encode()
        run_id, run = await start_run(connection, self.store, plan, given, namespace="default", **more)
        return run_id, run is not None

    async def starts(self, customer: Any = "ada", **more: Any) -> str:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            return (await self.begin(connection, customer, **more))[0]

    async def grant(self) -> int:
        """A pass of the sweep; what it has said is not applied."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            return await Permits(self.store).grant(connection)

    async def say_requests(self) -> None:
        rows = self.query("SELECT run_id, inbox_id FROM inbox WHERE applied_at IS NULL ORDER BY created_at, inbox_id")
        await self.apply(*((str(run_id), Requested(str(inbox_id))) for run_id, inbox_id in rows))

    async def go_on(self) -> None:
        """The sweep and the run agent, until neither has anything to do."""
        await self.say_requests()
        while await self.grant():
            await self.say_requests()

    async def ask(self, act: Any, run_id: str, *given: Any, **more: Any) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            await act(connection, self.store, UUID(run_id), *given, **{"reason": "", "actor": "ada", **more})
        await self.say_requests()

    def begun(self, *run_ids: str) -> list[bool]:
        return [
            bool(self.query("SELECT count(*) FROM task WHERE run_id = %s AND token > 0", one)[0][0]) for one in run_ids
        ]

    def permits(self) -> tuple[int, int]:
        """Held, waited for."""
        sql = "SELECT count(granted_at)::int, (count(*) - count(granted_at))::int FROM run_permit"
        held, waiting = self.query(sql)[0]
        return held, waiting

    async def wrong(self) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            checks = {check.name: check for check in await examine(connection)}
        return [checks[name].detail for name in CHECKS if not checks[name].ok]


@pytest.fixture
async def limits(database: str) -> AsyncIterator[Limits]:
    made = Limits(database)
    await made.lease()
    yield made
    made.close()


# == in line ===========================================================================================================
async def test_one_more_waits_and_begins_behind_the_end_of_another(limits: Limits):
    await limits.publish(sync(runs=2))
    runs = [await limits.starts() for _ in range(4)]
    other = await limits.starts("grace")
    assert limits.begun(*runs, other) == [True, True, False, False, True]
    assert [limits.status(one) for one in runs] == ["running", "running", "waiting", "waiting"]
    assert (limits.permits(), await limits.wrong()) == ((3, 2), [])
    assert await limits.grant() == 0
    await limits.apply(limits.succeeded(runs[1]))
    assert (limits.permits(), await limits.wrong()) == ((2, 2), [])
    assert await limits.grant() == 1
    assert (limits.permits(), limits.begun(*runs)) == ((3, 1), [True, True, False, False])
    assert await limits.wrong() == []
    await limits.say_requests()
    assert limits.begun(*runs) == [True, True, True, False]
    sql = "SELECT kind FROM history WHERE run_id = %s ORDER BY row_version"
    assert [kind for (kind,) in limits.query(sql, runs[2])] == ["started", "permitted"]
    for run_id in (runs[0], runs[2]):
        await limits.apply(limits.succeeded(run_id))
    await limits.go_on()
    await limits.apply(limits.succeeded(runs[3]), limits.succeeded(other))
    assert (limits.permits(), await limits.wrong()) == ((0, 0), [])


async def test_a_permit_is_told_again_until_it_is_heard_and_counts_once(limits: Limits):
    await limits.publish(sync())
    first, second, third = [await limits.starts() for _ in range(3)]
    await limits.apply(limits.succeeded(first))
    assert [await limits.grant() for _ in range(3)] == [1, 0, 0]
    rows = limits.query("SELECT inbox_id FROM inbox WHERE run_id = %s", second)
    for _ in range(3):
        await limits.apply(*((second, Requested(str(inbox_id))) for (inbox_id,) in rows))
    assert (limits.tasks(second), limits.begun(third)) == ([("queued", 0, 1)], [False])
    assert await limits.wrong() == []


async def test_a_priority_and_waiting_order_the_line_and_who_is_paused_is_passed_over(limits: Limits):
    await limits.publish(sync())
    first = await limits.starts()
    paused, plain, urgent = [await limits.starts() for _ in range(3)]
    late = await limits.starts(priority=2)
    await limits.ask(prioritise_run, urgent, 1)
    await limits.ask(pause_run, paused)
    order = [late, urgent, plain]
    for ended, following in zip([first, *order], order, strict=False):
        await limits.apply(limits.succeeded(ended))
        await limits.go_on()
        assert limits.begun(following) == [True]
    assert (limits.begun(paused), limits.status(paused)) == ([False], "paused")
    await limits.apply(limits.succeeded(plain))
    await limits.go_on()
    assert limits.begun(paused) == [False]
    await limits.ask(resume_run, paused)
    await limits.go_on()
    assert (limits.begun(paused), await limits.wrong()) == ([True], [])


async def test_b46_a_cancel_of_a_run_in_line_frees_nothing_but_its_place(limits: Limits):
    await limits.publish(sync())
    first, second, third = [await limits.starts() for _ in range(3)]
    await limits.ask(cancel_run, second)
    await limits.go_on()
    assert (limits.begun(first, third), limits.permits()) == ([True, False], (1, 1))
    await limits.ask(cancel_run, first)
    await limits.go_on()
    assert (limits.begun(third), limits.permits(), await limits.wrong()) == ([True], (1, 0), [])


async def test_b19_a_run_keeps_its_permit_over_its_backoff_and_its_retry_meets_nobody(limits: Limits):
    patient = {"fetch": {"run": "t.fetch", "retry": {"attempts": 2, "delay": "1ms", "jitter": 0.0}}}
    await limits.publish({**sync(), "tasks": patient})
    first, second = await limits.starts(), await limits.starts()
    await limits.apply(limits.failed(first))
    await limits.go_on()
    assert (limits.tasks(first), limits.begun(second), limits.permits()) == ([("pending", 1, 1)], [False], (1, 1))
    await limits.apply((first, Due(0, 1, limits.nonce(first, 0, 1))))
    assert (limits.tasks(first), await limits.wrong()) == ([("queued", 1, 2)], [])
    await limits.apply(limits.succeeded(first, token=2))
    await limits.go_on()
    assert (limits.status(first), limits.begun(second), limits.permits()) == ("completed", [True], (1, 0))


async def test_b47_a_replay_and_a_rerun_of_a_failed_run_wait_like_anybody(limits: Limits):
    await limits.publish(sync())
    failed, other = await limits.starts(), await limits.starts()
    await limits.apply(limits.failed(failed))
    await limits.go_on()
    assert (limits.status(failed), limits.begun(other)) == ("failed", [True])
    ((letter,),) = limits.query("SELECT dead_letter_id FROM dead_letter WHERE run_id = %s", failed)
    async with await psycopg.AsyncConnection.connect(limits.dsn) as connection:
        await replay_dead_letter(connection, limits.store, letter, actor="ada")
    await limits.go_on()
    assert (limits.status(failed), limits.tasks(failed)[0][0], limits.permits()) == ("waiting", "pending", (1, 1))
    assert await limits.wrong() == []
    await limits.apply(limits.succeeded(other))
    await limits.go_on()
    await limits.apply(limits.failed(failed, token=2))
    async with await psycopg.AsyncConnection.connect(limits.dsn) as connection:
        given: dict[str, Any] = {"input": None, "row_version": None, "reason": "", "actor": "ada"}
        await rerun(connection, limits.store, limits.plans, UUID(failed), [], **given)
    third = await limits.starts()
    await limits.go_on()
    assert (limits.begun(third), limits.permits()) == ([True], (1, 1)), "whoever is first in line begins"
    await limits.apply(limits.succeeded(third))
    await limits.go_on()
    assert (limits.status(failed), await limits.wrong()) == ("running", [])


# == one more is refused, dropped, or replaces =========================================================================
async def test_a_start_too_many_is_refused_with_the_run_that_goes(limits: Limits):
    await limits.publish(sync("reject"))
    first = await limits.starts(key="one")
    with pytest.raises(ConflictError) as refused:
        await limits.starts(key="two")
    assert refused.value.fields == {"holder": first, "workflow": "sync"}
    assert await limits.starts(key="one") == first, "a start that was answered is answered again"
    await limits.apply(limits.succeeded(first))
    second = await limits.starts(key="two")
    assert (limits.begun(second), limits.permits(), await limits.wrong()) == ([True], (1, 0), [])


async def test_a_start_too_many_is_dropped_and_its_key_gives_the_run_that_goes(limits: Limits):
    await limits.publish(sync("drop"))
    first = await limits.starts(key="one")
    assert [await limits.starts(key="two") for _ in range(2)] == [first, first]
    assert await limits.starts() == first
    await limits.apply(limits.succeeded(first))
    assert await limits.starts(key="two") == first, "the same start has the same answer, also later"
    with pytest.raises(KeyReusedError):
        await limits.starts("grace", key="two")
    assert limits.query("SELECT count(*) FROM run") == [(1,)]
    assert (await limits.starts() != first, await limits.wrong()) == (True, [])


async def test_the_newest_replaces_the_oldest_and_begins_behind_its_end(limits: Limits):
    await limits.publish(sync("replace_oldest", runs=2))
    runs = [await limits.starts() for _ in range(5)]
    assert limits.begun(*runs) == [True, True, False, False, False], "nothing begins before what it replaces has ended"
    assert (limits.permits(), await limits.wrong()) == ((2, 3), [])
    asked = [str(run_id) for (run_id,) in limits.query("SELECT run_id FROM inbox ORDER BY created_at")]
    assert asked == runs[:3], "each is asked once"
    await limits.go_on()
    assert [limits.status(one) for one in runs] == ["cancelled"] * 3 + ["running"] * 2
    reason = "SELECT detail ->> 'reason', actor FROM history WHERE run_id = %s AND kind = 'cancelled'"
    assert limits.query(reason, runs[0]) == [(f"run {runs[2]} takes its place", "limit")]
    assert (limits.permits(), await limits.wrong()) == ((2, 0), [])


async def test_b36_the_backoff_of_a_run_whose_place_was_taken_starts_nothing(limits: Limits):
    patient = {"fetch": {"run": "t.fetch", "retry": {"attempts": 3, "delay": "1ms", "jitter": 0.0}}}
    await limits.publish({**sync("replace_oldest"), "tasks": patient})
    first = await limits.starts()
    await limits.apply(limits.failed(first))
    assert limits.tasks(first) == [("pending", 1, 1)]
    second = await limits.starts()
    assert limits.begun(second) == [False], "it begins behind the end of what it replaces"
    await limits.go_on()
    assert (limits.status(first), limits.begun(second)) == ("cancelled", [True])
    assert limits.query("SELECT count(*) FROM timer") == [(0,)]
    await limits.apply(limits.succeeded(second))
    await limits.apply((first, Due(0, 1, limits.nonce(first, 0, 1))))
    assert (limits.status(first), limits.tasks(first)) == ("cancelled", [("cancelled", 1, 1)])
    assert (limits.permits(), await limits.wrong()) == ((0, 0), [])


async def test_a_run_that_undoes_what_it_did_keeps_its_permit_until_it_has(limits: Limits):
    tasks = {
        "pay": {"run": "t.pay", "compensate": {"run": "t.refund", "retry": 1}},
        "ship": {"run": "t.ship", "needs": "pay"},
    }
    await limits.publish(sync("replace_oldest", tasks=tasks))
    first = await limits.starts()
    await limits.apply(limits.succeeded(first))
    second = await limits.starts()
    await limits.go_on()
    assert (limits.status(first), limits.begun(second)) == ("compensating", [False])
    await limits.apply(limits.succeeded(first, task=200_000_000))
    await limits.go_on()
    assert (limits.status(first), limits.begun(second), await limits.wrong()) == ("compensated", [True], [])


async def test_a_run_that_is_cancelled_in_line_cleans_up_when_it_has_its_turn(limits: Limits):
    tasks = {"fetch": {"run": "t.fetch", "retry": 1}, "tidy": {"run": "t.tidy", "needs": "fetch", "join": "finally"}}
    await limits.publish(sync(tasks=tasks))
    first, second = await limits.starts(), await limits.starts()
    await limits.apply(limits.failed(first))
    await limits.apply(limits.succeeded(first, task=1))
    await limits.go_on()
    async with await psycopg.AsyncConnection.connect(limits.dsn) as connection:
        given: dict[str, Any] = {"input": None, "row_version": None, "reason": "", "actor": "ada"}
        await rerun(connection, limits.store, limits.plans, UUID(first), ["fetch"], **given)
    await limits.go_on()
    await limits.ask(cancel_run, first)
    assert (limits.status(first), limits.permits(), await limits.wrong()) == ("cancelling", (1, 1), [])
    await limits.apply(limits.succeeded(second))
    await limits.apply(limits.succeeded(second, task=1))
    await limits.go_on()
    await limits.apply(limits.succeeded(first, task=1, token=2))
    assert (limits.status(first), limits.permits(), await limits.wrong()) == ("cancelled", (0, 0), [])


async def test_an_input_without_a_key_starts_nothing(limits: Limits):
    await limits.publish(sync())
    for customer in ("", {"name": "ada"}, "x" * 201):
        with pytest.raises(PayloadError):
            await limits.starts(customer)
    assert limits.query("SELECT count(*) FROM run") == [(0,)]


# == races =============================================================================================================
async def test_of_two_that_start_at_once_one_begins(limits: Limits):
    await limits.publish(sync())
    async with (
        await psycopg.AsyncConnection.connect(limits.dsn) as one,
        await psycopg.AsyncConnection.connect(limits.dsn) as two,
    ):
        first, _ = await limits.begin(one)
        racing = asyncio.create_task(limits.begin(two))
        await until_somebody_waits(limits)
        await one.commit()
        second, _ = await racing
        await two.commit()
    assert (limits.begun(first, second), await limits.wrong()) == ([True, False], [])


async def test_b32_a_start_that_dies_frees_what_it_had_counted(limits: Limits):
    await limits.publish(sync("reject"))
    async with await psycopg.AsyncConnection.connect(limits.dsn) as one:
        await limits.begin(one, key="k")
        racing = asyncio.create_task(limits.starts())
        await until_somebody_waits(limits)
        one.pgconn.finish()  # its process is killed
    second = await racing
    assert (limits.begun(second), limits.permits(), await limits.wrong()) == ([True], (1, 0), [])


@pytest.mark.parametrize("over", ["queue", "reject", "replace_oldest", "drop"])
async def test_many_that_start_at_once_are_never_more_than_the_limit(limits: Limits, over: str):
    await limits.publish(sync(over, runs=3))

    async def one() -> str | None:
        try:
            return await limits.starts(key=str(uuid4()))
        except ConflictError:
            return None

    await asyncio.gather(*(one() for _ in range(20)))
    assert limits.permits()[0] == 3
    assert limits.query("SELECT count(*) FROM task WHERE token > 0") == [(3,)]
    ended = 0
    while running := limits.query("SELECT run_id FROM run WHERE status = 'running'"):
        assert len(running) <= 3
        assert await limits.wrong() == []
        await limits.apply(*(limits.succeeded(str(run_id)) for (run_id,) in running))
        ended += len(running)
        await limits.go_on()
    runs = {"queue": 20, "reject": 3, "drop": 3}
    assert (ended, limits.permits()) == (runs.get(over, ended), (0, 0))
    assert await limits.wrong() == []


async def test_a_grant_and_a_cancel_that_meet_leave_no_permit_behind(limits: Limits):
    await limits.publish(sync())
    first, second, third = [await limits.starts() for _ in range(3)]
    await limits.apply(limits.succeeded(first))
    async with await psycopg.AsyncConnection.connect(limits.dsn) as connection:
        assert await grant_permits(connection, limits.store, await next_keys(connection, NO_KEY, 10)) == 1
        ((inbox_id,),) = await cancel_unheard(limits, second)
        done = threading.Event()

        def apply() -> None:
            asyncio.run(limits.apply((second, Requested(str(inbox_id)))))
            done.set()

        thread = threading.Thread(target=apply)
        thread.start()
        await until_somebody_waits(limits)
        assert not done.is_set()
        await connection.commit()
        await asyncio.to_thread(thread.join)
    assert (limits.status(second), limits.permits()) == ("cancelled", (0, 1))
    await limits.go_on()
    assert (limits.begun(third), await limits.wrong()) == ([True], [])


async def test_no_more_are_granted_than_are_free_whatever_the_statistics_say(limits: Limits):
    await limits.publish(sync())
    first = await limits.starts()
    with psycopg.connect(limits.dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE run_permit")  # one row: a join may look for who is next once for each of p
    others = [await limits.starts() for _ in range(4)]
    await limits.apply(limits.succeeded(first))
    async with await psycopg.AsyncConnection.connect(limits.dsn) as connection:
        assert await grant_permits(connection, limits.store, await next_keys(connection, NO_KEY, 10)) == 1
    await limits.go_on()
    assert limits.begun(*others) == [True, False, False, False]


async def cancel_unheard(limits: Limits, run_id: str) -> list[Any]:
    async with await psycopg.AsyncConnection.connect(limits.dsn) as connection:
        await cancel_run(connection, limits.store, UUID(run_id), reason="", actor="ada")
    return limits.query("SELECT inbox_id FROM inbox WHERE run_id = %s AND kind = 'cancelled'", run_id)


async def test_a_sweep_that_dies_has_granted_nothing(limits: Limits):
    await limits.publish(sync())
    first, second = await limits.starts(), await limits.starts()
    await limits.apply(limits.succeeded(first))
    async with await psycopg.AsyncConnection.connect(limits.dsn) as connection:
        assert await grant_permits(connection, limits.store, await next_keys(connection, NO_KEY, 10)) == 1
        await connection.rollback()
    assert (limits.permits(), limits.begun(second)) == ((0, 1), [False])
    await limits.go_on()
    assert (limits.begun(second), await limits.wrong()) == ([True], [])


async def until_somebody_waits(limits: Limits) -> None:
    """For a lock that another transaction has."""
    async with asyncio.timeout(15):
        while not limits.query("SELECT 1 FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110  # nothing tells us
            await asyncio.sleep(0.01)


# == versions ==========================================================================================================
async def test_the_latest_version_says_how_many_go_at_once(limits: Limits):
    await limits.publish(sync(runs=3))
    runs = [await limits.starts() for _ in range(5)]
    await limits.publish(sync(runs=1))
    await limits.apply(limits.succeeded(runs[0]))
    await limits.go_on()
    assert limits.begun(*runs) == [True, True, True, False, False], "lowered: nothing is stopped, and nothing begins"
    await limits.apply(limits.succeeded(runs[1]), limits.succeeded(runs[2]))
    await limits.go_on()
    assert limits.begun(*runs) == [True, True, True, True, False]
    await limits.publish(sync(runs=2))
    await limits.go_on()
    assert limits.begun(*runs) == [True] * 5, "raised: it counts for those who wait already"
    waiting = [await limits.starts() for _ in range(3)]
    unlimited = sync()
    del unlimited["limit"]
    await limits.publish(unlimited)
    await limits.go_on()
    assert (limits.begun(*waiting), await limits.wrong()) == ([True] * 3, [])
    assert limits.begun(await limits.starts(), await limits.starts(version=1)) == [True, True]


async def test_a_workflow_without_a_limit_sends_no_statement_of_limits(limits: Limits, monkeypatch: pytest.MonkeyPatch):
    sent: list[str] = []
    run = Pipe.run

    def noting(pipe: Pipe, calls: Any) -> None:
        sent.extend(name for name, _ in calls)
        run(pipe, calls)

    monkeypatch.setattr(Pipe, "run", noting)
    monkeypatch.setattr("state.starts.lock_lines", lambda *_: pytest.fail("a start without a limit locked its key"))
    run_id = await limits.start()
    await limits.apply(limits.succeeded(run_id))
    await limits.apply(limits.succeeded(run_id, task=1))
    assert limits.status(run_id) == "completed"
    assert not {"return_permits", "await_permits", "replace_runs"} & set(sent)
    assert "complete_tasks" in sent


# == children and records ==============================================================================================
@pytest.mark.parametrize(("over", "status"), [("queue", "waiting"), ("reject", "failed"), ("drop", "failed")])
async def test_children_are_under_the_limit_of_their_workflow(limits: Limits, over: str, status: str):
    await limits.publish(sync(over))
    with_ = {"customer": "ada"}
    parent = {"name": "parent", "tasks": {name: {"workflow": "sync", "with": with_} for name in ("one", "two")}}
    run_id = await limits.start(parent)
    async with await psycopg.AsyncConnection.connect(limits.dsn) as connection:
        assert await Starter(limits.store, limits.plans).start(connection) == 2
    await limits.go_on()
    assert [state for state, _, _ in limits.tasks(run_id)].count("waiting") == (2 if over == "queue" else 1)
    assert limits.permits() == (1, 1 if over == "queue" else 0)
    if over != "queue":
        sql = "SELECT error ->> 'code' FROM task WHERE run_id = %s AND status = 'failed'"
        assert limits.query(sql, run_id) == [("LIMIT_REACHED",)]
    for (child,) in limits.query("SELECT run_id FROM run_permit ORDER BY granted_at NULLS LAST"):
        await limits.apply(limits.succeeded(str(child)))
        await limits.go_on()
    assert limits.status(run_id) == ("completed" if status == "waiting" else "failed")
    assert (limits.permits(), await limits.wrong()) == ((0, 0), [])


@pytest.fixture
async def shop(database: str) -> AsyncIterator[Shop]:
    made = Shop(database)
    made.epoch = (await made.ownership.lease("shop.orders", "log", [0]))[0][0]
    yield made
    await made.backlog.close()
    made.database.close()


@pytest.mark.parametrize(
    ("over", "fates"),
    [
        ("queue", ["started", "started", "started", "failed"]),
        ("reject", ["started", "rejected", "started", "failed"]),
        ("drop", ["started", "dropped", "started", "failed"]),
        ("replace_oldest", ["started", "started", "started", "failed"]),
    ],
)
async def test_the_fate_of_a_record_says_what_the_limit_made_of_it(
    shop: Shop, limits: Limits, over: str, fates: list[str]
):
    await limits.publish({**sync(over), "name": "order"})
    shop.subscribe()
    await shop.apply(b'{"customer": "ada"}', b'{"customer": "ada"}', b'{"customer": "grace"}', b'{"customer": null}')
    assert shop.fates() == fates
    ((first, *_), *_) = shop.query('SELECT run_id FROM trigger_event ORDER BY "offset"')
    if fates[1] != "started":
        ((holder, reason),) = shop.query(
            "SELECT run_id, reason FROM trigger_event WHERE fate IN ('rejected', 'dropped')"
        )
        assert holder == first
        assert f"run {first} is one of them" in reason
    keys = {"reject": (2, 2), "drop": (3, 2)}.get(over, (3, 3))
    assert shop.query("SELECT count(*), count(DISTINCT run_id) FROM trigger_key") == [keys]
    assert len(shop.query("SELECT 1 FROM dead_letter")) == 1, "one without a key is set aside"
    assert await limits.wrong() == []
    await limits.go_on()
    assert limits.permits()[0] == 2
    if over == "replace_oldest":
        assert limits.status(str(first)) == "cancelled"


async def test_a_record_that_was_rejected_may_come_again(shop: Shop, limits: Limits):
    await limits.publish({**sync("reject"), "name": "order"})
    shop.subscribe(input={"customer": "${{ input.data.customer }}"})
    headers = [("content-type", b"application/cloudevents+json")]

    def event(id_: str) -> bytes:
        data = {"specversion": "1.0", "id": id_, "source": "/shop", "type": "t", "data": {"customer": "ada"}}
        return json.dumps(data).encode()

    await shop.apply(event("a"), event("b"), event("b"), event("a"), headers=headers)
    assert shop.fates() == ["started", "rejected", "rejected", "duplicate"]
    ((first,),) = limits.query("SELECT run_id FROM run")
    await limits.apply(limits.succeeded(str(first)))
    await shop.apply(event("b"), headers=headers, at=4)
    assert shop.fates()[-1] == "started"
    assert (limits.permits(), await limits.wrong()) == ((1, 0), [])


@pytest.mark.parametrize("stage", ["waiting", "granted"])
async def test_a_place_in_line_that_somebody_took_away_comes_back(limits: Limits, stage: str):
    await limits.publish(sync())
    first, second, third = [await limits.starts() for _ in range(3)]
    if stage == "granted":
        await limits.apply(limits.succeeded(first))
        assert await limits.grant() == 1
    limits.query("UPDATE run SET updated_at = updated_at - interval '1 minute' RETURNING 1")
    limits.query("DELETE FROM run_permit WHERE run_id = %s RETURNING 1", second)
    sweeps = Sweeps(limits.store, limits.plans, None, limits.metrics)  # type: ignore[arg-type]
    async with await psycopg.AsyncConnection.connect(limits.dsn, autocommit=True) as connection:
        assert [await sweeps._vanished(connection) for _ in range(2)] == [1, 0]
    assert limits.permits() == (1, 2 if stage == "waiting" else 1)
    assert await limits.wrong() == []
    for ended in (first, second, third):
        await limits.go_on()
        if limits.status(ended) == "running":
            await limits.apply(limits.succeeded(ended))
    await limits.go_on()
    assert (limits.permits(), await limits.wrong()) == ((0, 0), [])


@pytest.mark.parametrize("over", ["queue", "replace_oldest"])
async def test_a_permit_that_somebody_took_away_comes_back_and_counts_again(limits: Limits, over: str):
    await limits.publish(sync(runs=2, over=over))
    first, second, third = [await limits.starts() for _ in range(3)]
    await limits.go_on()
    before = limits.permits()
    limits.query("UPDATE run SET updated_at = updated_at - interval '1 minute' RETURNING 1")
    limits.query("DELETE FROM run_permit WHERE granted_at IS NOT NULL RETURNING 1")
    sweeps = Sweeps(limits.store, limits.plans, None, limits.metrics)  # type: ignore[arg-type]
    async with await psycopg.AsyncConnection.connect(limits.dsn, autocommit=True) as connection:
        assert [await sweeps._vanished(connection) for _ in range(2)] == [before[0], 0]
    assert (limits.permits(), await limits.grant(), await limits.wrong()) == (before, 0, [])
    for ended in (first, second, third):
        if limits.status(ended) == "running":
            await limits.apply(limits.succeeded(ended))
        await limits.go_on()
    assert (limits.permits(), await limits.wrong()) == ((0, 0), [])


# == the doctor ========================================================================================================
async def test_the_doctor_finds_a_permit_too_many_one_too_few_and_one_that_nobody_is_told_of(limits: Limits):
    await limits.publish(sync())
    first, second, third = await limits.starts("a"), await limits.starts("b"), await limits.starts("b")
    await limits.apply(limits.succeeded(first))
    limits.query(
        "INSERT INTO run_permit (run_id, workflow, key, asked_at, ranked_at) "
        "VALUES (%s, 'sync', 'a', now(), now()) RETURNING 1", first,
    )  # fmt: skip
    limits.query("DELETE FROM run_permit WHERE run_id = %s RETURNING 1", second)
    limits.query("UPDATE run_permit SET granted_at = now() WHERE run_id = %s RETURNING 1", third)
    (wrong,) = [one for one in await limits.wrong() if "permit of" in one]
    assert f"run {first} is completed, and has a permit of sync a" in wrong
    assert f"run {second} is open under the limit of sync, and neither has a permit nor is in line for one" in wrong
    assert f"run {third} was given a permit of sync, and nothing tells it" in wrong
