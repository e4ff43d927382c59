"""Children on a real Postgres: asked for and told by the run agent, started by the sweep.

No broker is involved: a wake-up is what a test says, so it may come late, twice, or not at all.
"""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from headrace.errors import DefinitionError
from headrace.graph import from_data
from headrace.machine.status import WORKFLOW_PAUSED
from headrace.messages import Due, Event, Requested
from state.children import Starter
from state.control import rerun
from state.decisions import cancel_run
from state.doctor import examine
from state.pauses import pause_workflow
from state.requests import request
from state.starts import start_run
from state.workflows import publish
from streams.sweeps import Sweeps
from tests.integration.test_run_agent import Engine

CHILD: dict[str, Any] = {
    "name": "invoice",
    "input": {"type": "object", "properties": {"sum": {"type": "integer"}}},
    "output": {"id": "${{ tasks.write.output }}"},
    "tasks": {"write": {"run": "t.write", "retry": 1}},
}
PARENT: dict[str, Any] = {
    "name": "order",
    "tasks": {
        "price": {"run": "t.price"},
        "bill": {"needs": "price", "workflow": "invoice", "with": {"sum": "${{ tasks.price.output }}"}},
        "mail": {"needs": "bill", "run": "t.mail", "with": "${{ tasks.bill.output }}"},
    },
}
OF_A_RUN = {
    "statuses", "attempts", "tokens", "history", "ended", "waits", "joins", "children", "approvals", "dead_letters",
    "orphan_timers", "orphan_approvals",
}  # fmt: skip


def order(**child: Any) -> dict[str, Any]:
    bill = {**PARENT["tasks"]["bill"], "workflow": {"name": "invoice", **child}}
    return {**PARENT, "tasks": {**PARENT["tasks"], "bill": bill}}


class Family(Engine):
    """An engine, and the sweep that starts children."""

    async def publish(self, definition: dict[str, Any]) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            workflow = from_data(definition)
            await publish(connection, "default", workflow.name, workflow.canonical().decode())

    async def sweep(self) -> int:
        """What the sweep of children does."""
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            return await Starter(self.store, self.plans).start(connection)

    async def waits(self, parent: dict[str, Any] = PARENT, price: bytes = b"7", child: dict[str, Any] = CHILD) -> str:
        """A parent that has asked for its child."""
        await self.publish(child)
        run_id = await self.start(parent)
        await self.apply(self.succeeded(run_id, output=price))
        return run_id

    def child(self, run_id: str, token: int = 1) -> str:
        sql = "SELECT run_id FROM child_run WHERE parent_run_id = %s AND token = %s"
        return str(self.query(sql, run_id, token)[0][0])

    def row(self) -> Any:
        return self.query("SELECT status, input IS NULL, ended_at IS NULL, cancel_asked_at IS NULL FROM child_run")[0]

    async def say_all(self) -> None:
        """What the sweep of requests does, once all that was said before is lost."""
        rows = self.query("SELECT run_id, inbox_id FROM inbox WHERE applied_at IS NULL ORDER BY created_at, inbox_id")
        await self.apply(*((str(run_id), Requested(str(inbox_id))) for run_id, inbox_id in rows))

    async def wrong(self) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            checks = await examine(connection)
        assert {check.name for check in checks} >= OF_A_RUN
        return [check.detail for check in checks if check.name in OF_A_RUN and not check.ok]

    def error(self, run_id: str, task: int = 1) -> tuple[str, str]:
        sql = "SELECT error ->> 'code', error ->> 'message' FROM task WHERE run_id = %s AND task = %s"
        code, message = self.query(sql, run_id, task)[0]
        return code, message


@pytest.fixture
async def family(database: str) -> AsyncIterator[Family]:
    made = Family(database)
    await made.lease()
    yield made
    made.close()


def states(family: Family, run_id: str) -> list[str]:
    return [status for status, _, _ in family.tasks(run_id)]


async def test_a_child_runs_and_its_task_goes_on_with_what_came_out_of_it(family: Family):
    run_id = await family.waits()
    child = family.child(run_id)
    assert (states(family, run_id), family.status(run_id), family.row()[0]) == (
        ["completed", "waiting"], "waiting", "asked",
    )  # fmt: skip
    assert await family.wrong() == []
    assert await family.sweep() == 1
    assert await family.sweep() == 0, "it is started once"
    assert family.row() == ("started", True, True, True)
    assert family.query("SELECT input, trigger_source FROM run WHERE run_id = %s", child) == [({"sum": 7}, "child")]
    starter = "SELECT actor, detail ->> 'parent' FROM history WHERE run_id = %s AND kind = 'started'"
    assert family.query(starter, child) == [("ada", run_id)], "who started the parent has asked for this run, too"
    assert await family.wrong() == []
    await family.apply(family.succeeded(child, output=b'"no. 7"'))
    assert family.row()[0] == "completed"
    assert family.query("SELECT run_id::text, kind FROM inbox WHERE applied_at IS NULL") == [(run_id, "child_told")]
    assert await family.wrong() == []
    await family.say_all()
    assert states(family, run_id) == ["completed", "completed", "queued"]
    assert family.query("SELECT output FROM task WHERE run_id = %s AND task = 1", run_id) == [({"id": "no. 7"},)]
    history = "SELECT kind, task, token, detail ->> 'child' FROM history WHERE run_id = %s AND kind = 'child_told'"
    assert family.query(history, run_id) == [("child_told", 1, 1, child)]
    assert await family.wrong() == []


async def test_the_end_of_a_child_wakes_the_partition_of_its_parent_in_the_same_transaction(family: Family):
    run_id = await family.waits()
    await family.sweep()
    with psycopg.connect(family.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('spy', 'test_decoding')")
    await family.apply(family.succeeded(family.child(run_id)))
    sql = "SELECT xid::text, data FROM pg_logical_slot_get_binary_changes('spy', NULL, NULL)"
    changes = family.query(sql)
    ended = {xid for xid, data in changes if b"table public.child_run: UPDATE" in data}
    woken = {xid for xid, data in changes if data.startswith(b"message:") and run_id.encode() in data}
    assert ended
    assert ended <= woken
    family.query("SELECT pg_drop_replication_slot('spy')")


async def test_a_lost_wake_up_of_the_parent_is_said_again_from_postgres_alone(family: Family, database: str):
    run_id = await family.waits()
    await family.sweep()
    await family.apply(family.succeeded(family.child(run_id)))  # and what it said is lost
    family.close()
    other = Family(database, "two")
    await other.lease()
    other.query("UPDATE inbox SET said_at = now() - interval '6 s' RETURNING 1")
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        sweeps = Sweeps(other.store, other.plans, None, other.metrics)  # type: ignore[arg-type]
        assert await sweeps._requests(connection) == 1
    await other.say_all()
    assert states(other, run_id) == ["completed", "completed", "queued"]
    assert await other.wrong() == []
    other.close()


async def test_a_wake_up_that_comes_twice_counts_once(family: Family):
    run_id = await family.waits()
    await family.sweep()
    await family.apply(family.succeeded(family.child(run_id)))
    ((inbox_id,),) = family.query("SELECT inbox_id::text FROM inbox")
    said: tuple[str, Event] = (run_id, Requested(inbox_id))
    await family.apply(said, said)
    await family.apply(said)
    assert family.query("SELECT count(*) FROM history WHERE kind = 'child_told'") == [(1,)]


async def test_b76_a_failure_is_a_dead_letter_that_names_the_child_and_a_replay_starts_another(family: Family):
    run_id = await family.waits()
    await family.sweep()
    child = family.child(run_id)
    await family.apply(family.failed(child, retryable=False))
    await family.say_all()
    assert (family.status(child), family.status(run_id)) == ("failed", "failed")
    letters = "SELECT run_id::text, task, code, message FROM dead_letter ORDER BY created_at"
    told = f"run {child} of workflow invoice failed"
    assert family.query(letters)[1] == (run_id, 1, "CHILD_FAILED", told)
    assert await family.wrong() == []
    async with await psycopg.AsyncConnection.connect(family.dsn) as connection:
        body = {"task": 1, "token": 1}
        await request(connection, family.store, run_id, "replayed", body, "ada")
        await connection.execute("UPDATE dead_letter SET status = 'replayed', closed_at = now(), replay_token = 2 "
                                 "WHERE run_id = %s", (run_id,))  # fmt: skip
    await family.say_all()
    await family.sweep()
    second = family.child(run_id, 2)
    assert second != child
    async with await psycopg.AsyncConnection.connect(family.dsn) as connection:  # the first is repaired meanwhile
        await rerun(connection, family.store, family.plans, UUID(child), [], input=None, row_version=None,
                    reason="", actor="ada")  # fmt: skip
    await family.say_all()
    await family.apply(family.succeeded(child, token=2, output=b'"first"'))
    await family.say_all()
    assert (family.status(child), states(family, run_id)) == ("completed", ["completed", "waiting", "pending"])
    await family.apply(family.succeeded(second, output=b'"second"'))
    await family.say_all()
    assert family.query("SELECT output FROM task WHERE run_id = %s AND task = 1", run_id) == [({"id": "second"},)]
    assert await family.wrong() == []


@pytest.mark.parametrize("started", [False, True], ids=["not started yet", "under way"])
async def test_a_cancel_of_the_parent_reaches_its_child(family: Family, started: bool):
    run_id = await family.waits()
    child = family.child(run_id)
    if started:
        await family.sweep()
    async with await psycopg.AsyncConnection.connect(family.dsn) as connection:
        await cancel_run(connection, family.store, UUID(run_id), reason="no", actor="ada")
    await family.say_all()
    assert family.status(run_id) == "cancelled"
    if started:
        asked = "SELECT run_id::text, kind, said_at < now() - interval '1 h' FROM inbox WHERE applied_at IS NULL"
        assert family.query(asked) == [(child, "cancelled", True)], "the next pass of the sweep says it"
        await family.say_all()
        assert family.status(child) == "cancelled"
    else:
        assert await family.sweep() == 0
        assert family.query("SELECT count(*) FROM run") == [(1,)]
    assert family.row() == ("cancelled", started, False, False)
    await family.say_all()
    assert await family.wrong() == []


async def test_an_abandoned_child_goes_on(family: Family):
    run_id = await family.waits(order(on_cancel="abandon"))
    await family.sweep()
    async with await psycopg.AsyncConnection.connect(family.dsn) as connection:
        await cancel_run(connection, family.store, UUID(run_id), reason="no", actor="ada")
    await family.say_all()
    child = family.child(run_id)
    assert (family.status(run_id), family.status(child)) == ("cancelled", "running")
    await family.apply(family.succeeded(child))
    await family.say_all()
    assert (family.status(run_id), family.status(child)) == ("cancelled", "completed")
    assert await family.wrong() == []


async def test_a_child_that_nobody_waits_for_completes_its_task_as_it_begins(family: Family):
    run_id = await family.waits(order(wait=False))
    child = family.child(run_id)
    assert states(family, run_id) == ["completed", "waiting"]
    await family.sweep()
    assert await family.wrong() == []
    await family.say_all()
    assert states(family, run_id) == ["completed", "completed", "queued"]
    assert family.query("SELECT output FROM task WHERE run_id = %s AND task = 1", run_id) == [({"run_id": child},)]
    await family.apply(family.succeeded(child))
    assert (family.status(child), family.row()[0]) == ("completed", "started")
    assert family.query("SELECT count(*) FROM inbox WHERE applied_at IS NULL") == [(0,)]
    assert await family.wrong() == []


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ({"parent": order(version=3)}, "CHILD_NOT_FOUND", "there is no version 3 of workflow invoice"),
        ({"price": b'"seven"'}, "BAD_INPUT", "workflow invoice does not take this input: sum: 'seven' is not of type"),
        ({"child": {**CHILD, "name": "receipt"}}, "CHILD_NOT_FOUND", "there is no workflow invoice"),
    ],
    ids=["version", "input", "workflow"],
)
@pytest.mark.parametrize("wait", [True, False])
async def test_what_cannot_start_is_a_dead_letter_of_its_task(
    family: Family, given: dict[str, Any], code: str, says: str, wait: bool
):
    parent = given.get("parent", PARENT)
    if not wait:
        parent = order(wait=False, **({"version": 3} if "parent" in given else {}))
    asked: dict[str, Any] = {**given, "parent": parent}
    run_id = await family.waits(**asked)
    await family.sweep()
    await family.say_all()
    assert family.status(run_id) == "failed"
    assert family.error(run_id)[0] == code
    assert family.error(run_id)[1].startswith(says)
    assert family.query("SELECT code FROM dead_letter") == [(code,)]
    assert family.row() == ("refused", True, False, True)
    assert await family.wrong() == []


async def test_b90_a_cycle_of_workflows_is_refused_where_it_is_closed(family: Family):
    await family.publish({"name": "invoice", "tasks": {"a": {"workflow": "dunning"}}})
    await family.publish({"name": "dunning", "tasks": {"a": {"run": "t.a"}, "b": {"workflow": {"name": "order"}}}})
    with pytest.raises(DefinitionError) as caught:
        await family.publish(PARENT)
    (fault,) = caught.value.faults
    told = "workflows that start each other in a cycle: order -> invoice -> dunning -> order"
    assert (fault.path, fault.message) == ("tasks.bill.workflow", told)
    assert family.query("SELECT count(*) FROM workflow_version") == [(2,)]
    await family.publish({"name": "dunning", "tasks": {"a": {"run": "t.a"}}})
    await family.publish(PARENT)
    with pytest.raises(DefinitionError, match="cycle: dunning -> order -> invoice -> dunning"):
        await family.publish({"name": "dunning", "tasks": {"b": {"workflow": {"name": "order"}}}})


async def test_b90_a_chain_of_children_ends_at_the_depth_limit(family: Family):
    await family.publish({"name": "invoice", "tasks": {"a": {"workflow": "order"}}})
    await family.publish({"name": "order", "tasks": {"b": {"run": "t.b"}}})
    round_ = '{"name":"order","tasks":{"b":{"workflow":{"name":"invoice"}}}}'  # as no publish would let it be
    family.query("UPDATE workflow_version SET definition = %s::json WHERE name = 'order' RETURNING 1", round_)
    async with await psycopg.AsyncConnection.connect(family.dsn) as connection:
        plan = await family.plans.latest(connection, "default", "order")
        await start_run(connection, family.store, plan, b"{}", namespace="default")
    for _ in range(11):
        assert await family.sweep() == 1
    await family.say_all()
    assert family.query("SELECT count(*), max(depth) FROM child_run") == [(11, 11)]
    for _ in range(11):
        await family.say_all()
    assert family.query("SELECT DISTINCT status::text FROM run") == [("failed",)]
    codes = "SELECT code, count(*) FROM dead_letter GROUP BY code ORDER BY code"
    assert family.query(codes) == [("CHILD_FAILED", 10), ("CHILD_TOO_DEEP", 1)]
    assert await family.wrong() == []


async def test_b52_a_parent_whose_child_was_cancelled_is_cancelled_and_sound(family: Family):
    run_id = await family.waits()
    await family.sweep()
    child = family.child(run_id)
    async with await psycopg.AsyncConnection.connect(family.dsn) as connection:
        await cancel_run(connection, family.store, UUID(child), reason="", actor="ada")
    await family.say_all()
    await family.say_all()
    assert (family.status(child), family.status(run_id)) == ("cancelled", "cancelled")
    assert family.error(run_id) == ("CHILD_CANCELLED", f"run {child} of workflow invoice was cancelled")
    assert family.query("SELECT count(*) FROM dead_letter") == [(0,)]
    assert await family.wrong() == []
    async with await psycopg.AsyncConnection.connect(family.dsn) as connection:
        await rerun(connection, family.store, family.plans, UUID(run_id), [], input=None, row_version=None,
                    reason="", actor="ada")  # fmt: skip
    await family.say_all()
    await family.sweep()
    await family.apply(family.succeeded(family.child(run_id, 2)))
    await family.say_all()
    assert states(family, run_id) == ["completed", "completed", "queued"]
    assert await family.wrong() == []


async def test_a_child_that_is_started_while_its_workflow_is_paused_begins_paused(family: Family):
    run_id = await family.waits()
    async with await psycopg.AsyncConnection.connect(family.dsn) as connection:
        await pause_workflow(connection, family.store, "invoice", reason="to look", actor="ben")
    assert await family.sweep() == 1
    child = family.child(run_id)
    assert family.query("SELECT status::text, control FROM run WHERE run_id = %s", child) == [
        ("paused", WORKFLOW_PAUSED)
    ]
    assert family.query("SELECT status::text, token, withheld FROM task WHERE run_id = %s", child) == [
        ("pending", 0, "turn")
    ]
    assert family.query("SELECT kind, actor FROM history WHERE run_id = %s ORDER BY row_version", child) == [
        ("started", "ada"), ("paused", "ben")  # as who started its parent
    ]  # fmt: skip


async def test_a_child_stays_on_the_version_it_began_with(family: Family):
    run_id = await family.waits(order(version=1))
    await family.publish({**CHILD, "tasks": {"other": {"run": "t.other"}}, "output": {}})
    await family.sweep()
    sql = "SELECT v.version FROM run r JOIN workflow_version v USING (version_id) WHERE r.run_id = %s"
    assert family.query(sql, family.child(run_id)) == [(1,)]


async def test_a_time_out_fails_the_task_and_asks_the_child_to_end(family: Family):
    parent = {**PARENT, "tasks": {**PARENT["tasks"], "bill": {**PARENT["tasks"]["bill"], "timeout": "1ms"}}}
    run_id = await family.waits(parent)
    await family.sweep()
    assert family.query("SELECT kind FROM timer") == [("wait",)]
    await family.apply((run_id, Due(1, 1, family.nonce(run_id, 1, 1), "wait")))
    assert (family.status(run_id), family.error(run_id)[0]) == ("failed", "TIMEOUT")
    await family.say_all()
    assert family.status(family.child(run_id)) == "cancelled"
    await family.say_all()
    assert await family.wrong() == []


async def test_an_output_that_only_its_own_run_can_read_fails_the_task_that_waits_for_it(family: Family):
    run_id = await family.waits()
    await family.sweep()
    reference = b'{"$object":{"sha256":"%b","bytes":100000}}' % (b"a" * 64)
    await family.apply(family.succeeded(family.child(run_id), output=reference))
    await family.say_all()
    assert family.error(run_id)[0] == "CHILD_FAILED"
    assert "large result" in family.error(run_id)[1]


async def test_doctor_finds_a_child_whose_parent_was_not_told(family: Family):
    run_id = await family.waits()
    await family.sweep()
    await family.apply(family.succeeded(family.child(run_id)))
    family.query("DELETE FROM inbox RETURNING 1")
    found = await family.wrong()
    assert any("is completed, its task waits, and nothing tells it" in detail for detail in found), found
