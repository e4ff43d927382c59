"""A real database is put in each state a run can be in, and asked why the run does not move."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from pydantic import SecretStr
from uuid_utils import uuid7

from api.app import create_app
from api.settings import ApiSettings
from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import NotFoundError
from headrace.graph import from_data
from headrace.machine import Cancelled, Isolated, Released, advance
from headrace.messages import Error, Failed, Lost, Started, Succeeded
from state.explain import Code, explain_run, explain_task
from state.plans import Plans
from state.queries.explain import read_facts
from state.requests import request
from state.starts import start_run
from state.store import Rows, Store, StoredRun, execute
from state.workflows import publish
from streams.database import Database
from streams.run_cache import RunCache
from tests.caller import HEADERS

LEASE = 10.0
TASKS: dict[str, Any] = {
    "first": {"run": "t.first", "retry": {"attempts": 3, "delay": "40s"}},
    "second": {"run": "t.second", "needs": "first", "queue": "mail"},
    "third": {"run": "t.third", "needs": "second"},
}


class Yard:
    """Runs in one database, moved by hand; the engine seems to work until a test says otherwise."""

    def __init__(self, dsn: str, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection
        self.settings = ApiSettings(postgres=dsn, secret=SecretStr("0123456789abcdef"), lease_seconds=LEASE)
        self.store, self.plans, self.database = Store(self.settings), Plans(), Database(dsn)

    async def query(self, sql: str, *parameters: Any) -> list[Any]:
        cursor = await self.connection.execute(sql.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []

    async def engine_works(self) -> None:
        await self.query(
            "INSERT INTO partition_owner (topic, partition, epoch, topic_id, owner) "
            "SELECT 'headrace.events', p, 1, 'id', 'box/1' FROM generate_series(0, 15) p"
        )
        await self.query(
            "INSERT INTO sweep_pass "
            "SELECT unnest('{timers,ticks,sessions,lost,requests,approvals,topics}'::text[]), now(), 0"
        )
        await self.query("SELECT pg_create_logical_replication_slot('s' || current_database(), 'pgoutput')")
        await self.query(
            "INSERT INTO relay_owner (slot, owner, epoch, renewed_at, acked_lsn) "
            "VALUES ('s' || current_database(), 'box/2', 1, now(), pg_current_wal_lsn())"
        )
        await self.query("INSERT INTO watermark VALUES ('sessions', now() + interval '1 s')")

    async def start(self, tasks: dict[str, Any] = TASKS) -> str:
        workflow = from_data({"name": "w", "tasks": tasks})
        async with self.connection.transaction():
            await publish(self.connection, "default", workflow.name, workflow.canonical().decode())
            plan = await self.plans.latest(self.connection, "default", "w")
            run_id, _ = await start_run(self.connection, self.store, plan, b"{}", namespace="default")
        return run_id

    def load(self, run_id: str) -> StoredRun:
        key, cache = run_id.encode(), RunCache(self.database, self.plans)
        cache.load({key})
        run = cache.get(key)
        assert run is not None
        return run

    async def apply(self, run_id: str, event: Any) -> None:
        run = self.load(run_id)
        async with self.connection.transaction():
            (at,) = (await self.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"))[0]
            transition = advance(run.plan, run, event, at)
            assert transition is not None, event
            rows = Rows(self.store)
            rows.move(run, event, transition)
            await execute(self.connection, rows.calls())

    async def session(self, run_id: str = "", task: int = 0, token: int = 1, **given: Any) -> str:
        """A live session; it lists the task when a run is named. given: columns, as SQL."""
        session_id = str(uuid4())
        columns = {"queues": "'{default,mail}'", "slots": "4", "held": "1", "expires_at": "now() + interval '9 s'"}
        columns |= {name: str(value) for name, value in given.items()}
        await self.query(
            f"INSERT INTO worker_session (session_id, worker, seq, lease, renewed_at, {', '.join(columns)}) "  # noqa: S608
            f"VALUES (%s, 'box/3', 1, '10 s', now(), {', '.join(columns.values())})",
            session_id,
        )
        if run_id:
            await self.query(
                "INSERT INTO held_task VALUES (%s, %s, %s, %s, '{\"done\": 3}')", run_id, task, token, session_id
            )
        return session_id

    async def begin(self, run_id: str, session: str) -> None:
        await self.apply(run_id, Started(0, 1, "", session=session, worker="box/3", started=1))

    async def codes(self, run_id: str, task: str | None = None) -> list[str]:
        return [str(cause.code) for cause in await self.causes(run_id, task)]

    async def causes(self, run_id: str, task: str | None = None) -> list[Any]:
        facts, index = await read_facts(self.connection, self.settings, self.plans, UUID(run_id), task)
        return explain_run(facts) if index is None else explain_task(facts, index)

    async def later(self, seconds: int) -> None:
        """Let all that was handed out have been handed out so long ago."""
        await self.query("UPDATE task SET changed_at = changed_at - make_interval(secs => %s)", seconds)


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres, database_template: str) -> Iterator[str]:
    create_database(postgres.dsn, "test_explain", database_template)
    yield postgres.dsn_of("test_explain")
    drop_database(postgres.dsn, "test_explain")


@pytest.fixture
async def yard(database: str) -> AsyncIterator[Yard]:
    """Emptied, not copied: a copy takes a second."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        made = Yard(database, connection)
        tables = await made.query(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'schema_migration'"
        )
        async with connection.transaction():
            for (table,) in tables:
                await made.query(f'DELETE FROM "{table}"')  # noqa: S608
        await made.engine_works()
        yield made
        made.database.close()
        await made.query(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )


# == QUEUED ============================================================================================================
async def test_no_worker_serves_the_queue(yard: Yard):
    run_id = await yard.start()
    assert await yard.codes(run_id) == ["NO_WORKER"]
    assert await yard.codes(run_id, "third") == ["NEEDS_UNFINISHED", "NO_WORKER"]
    (cause,) = await yard.causes(run_id, "first")
    assert (cause.points_to.kind, cause.points_to.id) == ("queue", "default")


async def test_workers_of_another_queue_do_not_count(yard: Yard):
    run_id = await yard.start()
    await yard.session(queues="'{mail}'")
    assert await yard.codes(run_id) == ["NO_WORKER"]
    await yard.session()
    assert await yard.codes(run_id) == ["NOT_RECEIVED"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"draining": "true"}, "WORKERS_DRAINING"),
        ({"held": "4"}, "WORKERS_FULL"),
        ({"expires_at": "now() - interval '1 s'"}, "NO_WORKER"),
        ({"ended_at": "now()"}, "NO_WORKER"),
    ],
)
async def test_a_worker_that_cannot_take_it(yard: Yard, given: dict[str, str], code: str):
    run_id = await yard.start()
    await yard.session("", 0, 1, **given)
    assert await yard.codes(run_id) == [code]


async def test_older_commands_in_the_queue_are_counted(yard: Yard):
    await yard.start()
    await yard.start()
    run_id = await yard.start()
    await yard.session(held="4")
    full, backlog = await yard.causes(run_id)
    assert (full.code, backlog.code) == (Code.WORKERS_FULL, Code.BACKLOG)
    assert "At least 2 older commands" in backlog.text


async def test_a_command_that_is_not_published(yard: Yard):
    await yard.query("UPDATE watermark SET at = now() - interval '1 min'")
    await yard.query("UPDATE relay_owner SET renewed_at = now() - interval '1 min'")
    run_id = await yard.start()
    await yard.session()
    assert await yard.codes(run_id) == ["NOT_PUBLISHED", "RELAY_AWAY", "TICKS_LATE"]


async def test_a_command_that_is_lost(yard: Yard):
    run_id = await yard.start()
    await yard.session()
    await yard.later(60)
    (cause,) = await yard.causes(run_id)
    assert cause.code is Code.COMMAND_LOST
    assert cause.until is not None


async def test_a_command_whose_log_is_gone(yard: Yard):
    run_id = await yard.start()
    await yard.session()
    await yard.later(5)
    await yard.query("INSERT INTO topic_log VALUES ('headrace.commands.default', 'new', now() - interval '1 s')")
    assert await yard.codes(run_id) == ["COMMAND_LOST"]


async def test_a_command_in_a_workers_hands(yard: Yard):
    run_id = await yard.start()
    session = await yard.session(run_id)
    assert await yard.codes(run_id) == ["RECEIVED"]
    await yard.query("UPDATE worker_session SET held = 5")
    (cause,) = await yard.causes(run_id)
    assert (cause.code, cause.points_to.id) == (Code.IN_PREFETCH, session)
    await yard.query("UPDATE worker_session SET expires_at = now() - interval '1 s'")
    assert await yard.codes(run_id) == ["SESSION_EXPIRED"]


async def test_a_claim_that_is_not_granted(yard: Yard):
    run_id = await yard.start({"first": {"run": "t.first", "exclusive": True}})
    await yard.session(run_id)
    assert await yard.codes(run_id) == ["CLAIM_NOT_GRANTED"]


# == RUNNING ===========================================================================================================
async def test_a_task_that_runs(yard: Yard):
    run_id = await yard.start()
    session = await yard.session(run_id)
    await yard.begin(run_id, session)
    (cause,) = await yard.causes(run_id)
    assert (cause.code, cause.points_to.id) == (Code.RUNNING, session)
    assert "worker box/3" in cause.text
    assert '{"done": 3}' in cause.text
    await yard.query("UPDATE worker_session SET draining = true")
    assert await yard.codes(run_id) == ["RUNNING", "WORKER_DRAINING"]


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        ("UPDATE worker_session SET expires_at = now() - interval '1 s'", "SESSION_EXPIRED"),
        ("UPDATE worker_session SET ended_at = now()", "SESSION_ENDED"),
        ("DELETE FROM worker_session", "SESSION_UNKNOWN"),
        ("DELETE FROM held_task", "NOT_LISTED"),
    ],
)
async def test_a_task_whose_holder_is_gone(yard: Yard, harm: str, code: str):
    run_id = await yard.start()
    await yard.begin(run_id, await yard.session(run_id))
    await yard.later(30)
    await yard.query(harm)
    assert await yard.codes(run_id) == [code]
    assert await yard.codes(run_id, "second") == ["NEEDS_UNFINISHED", code]


async def test_a_time_out_that_is_over(yard: Yard):
    run_id = await yard.start({"first": {"run": "t.first", "timeout": "1h"}})
    await yard.begin(run_id, await yard.session(run_id))
    assert await yard.codes(run_id) == ["RUNNING"]
    await yard.query("UPDATE task SET due_at = now() - interval '3 s'")
    assert await yard.codes(run_id) == ["TIMEOUT_OVERDUE", "RUNNING"]
    await yard.query("DELETE FROM timer")
    assert await yard.codes(run_id) == ["TIMER_MISSING", "RUNNING"]


# == PENDING ===========================================================================================================
async def fail(yard: Yard, code: str = "ERROR") -> str:
    run_id = await yard.start()
    await yard.apply(run_id, Failed(0, 1, "", Error(code, "it broke"), worker="box/3", started=1, finished=2))
    return run_id


async def test_a_task_in_its_backoff(yard: Yard):
    run_id = await fail(yard)
    (cause,) = await yard.causes(run_id)
    assert (cause.code, cause.points_to.kind) == (Code.BACKOFF, "timer")
    assert cause.until == (await yard.query("SELECT due_at FROM timer"))[0][0]
    assert "attempt 1 of 3 failed (ERROR)" in cause.text


async def test_a_timer_that_is_late_or_missing(yard: Yard):
    run_id = await fail(yard)
    await yard.query("UPDATE task SET due_at = now() - interval '1 min'")
    await yard.query("UPDATE timer SET due_at = now() - interval '1 min'")
    assert await yard.codes(run_id) == ["TIMER_OVERDUE"]
    await yard.query("UPDATE timer SET said_at = now()")
    assert await yard.codes(run_id) == ["TIMER_OVERDUE", "PARTITION_SILENT"]
    await yard.query("DELETE FROM timer")
    assert await yard.codes(run_id) == ["TIMER_MISSING"]


async def test_b101_a_body_that_no_worker_has_is_a_cause_that_anybody_sees(yard: Yard):
    run_id = await fail(yard, "UNKNOWN_TASK")
    assert await yard.codes(run_id) == ["BACKOFF", "BODY_UNKNOWN"]


async def test_a_task_that_needs_others(yard: Yard):
    run_id = await yard.start()
    await yard.apply(run_id, Succeeded(0, 1, "", worker="box/3", started=1, finished=2))
    await yard.query("UPDATE watermark SET at = now() + interval '1 s'")
    first, second = await yard.causes(run_id, "third")
    assert (first.code, first.points_to.id) == (Code.NEEDS_UNFINISHED, f"{run_id}.second")
    assert (second.code, second.points_to.id) == (Code.NO_WORKER, "mail")
    await yard.query("DELETE FROM task WHERE task = 1")
    assert await yard.codes(run_id, "second") == ["JOIN_MISSED"]
    assert await yard.codes(run_id) == ["NOTHING_OPEN"]


# == WAITING ===========================================================================================================
ASKED: dict[str, Any] = {"ask": {"approval": {"title": "Ship it?", "approvers": ["lead"], "expires": "2d"}}}


async def test_an_approval(yard: Yard):
    run_id = await yard.start(ASKED)
    ((approval_id, expires_at),) = await yard.query("SELECT approval_id, expires_at FROM approval")
    (cause,) = await yard.causes(run_id)
    assert (cause.code, cause.points_to.id, cause.until) == (Code.APPROVAL_OPEN, str(approval_id), expires_at)
    assert cause.acts[0] == (f"headrace approve {run_id} --task ask", f"POST /approvals/{approval_id}/approve")
    await yard.query("UPDATE approval SET expires_at = now()")
    assert await yard.codes(run_id) == ["APPROVAL_EXPIRED"]
    await yard.query("UPDATE approval SET status = 'approved', decided_at = now(), decided_by = 'ana'")
    (cause,) = await yard.causes(run_id)
    assert cause.code is Code.DECISION_NOT_APPLIED
    assert "no request carries it" in cause.text
    body = {"task": 0, "token": 1, "outcome": "approved"}
    async with yard.connection.transaction():
        await request(yard.connection, yard.store, run_id, "decided", body, "ana")
    assert await yard.codes(run_id, "ask") == ["REQUEST_NOT_APPLIED", "DECISION_NOT_APPLIED"]
    await yard.query("DELETE FROM approval")
    assert "APPROVAL_MISSING" in await yard.codes(run_id)


async def test_an_approval_of_several_says_who_has_voted_and_what_comes_next(yard: Yard):
    approval = {"approvers": ["ada", "grace"], "needed": 2, "remind": "1h", "expires": "1d", "on_expiry": "escalate",
                "escalate": [{"to": ["alan"]}]}  # fmt: skip
    run_id = await yard.start({"ask": {"approval": approval}})
    await yard.query(
        "INSERT INTO approval_vote (approval_id, actor, voter, in_place_of, decision, digest, source) "
        "SELECT approval_id, 'eve', 'ada', 'ada', 'approve', '', 'api' FROM approval"
    )
    (cause,) = await yard.causes(run_id)
    for words in (
        "1 of 2 have said yes: eve in place of ada; it waits for grace.", "the next of its escalation is asked in",
        "They are reminded in",
    ):  # fmt: skip
        assert words in cause.text
    await yard.query("UPDATE approval SET expires_at = now()")
    assert await yard.codes(run_id) == ["APPROVAL_OPEN"], "its expiry is no end while somebody is left to ask"


async def test_a_task_that_waits_for_a_person_after_an_ambiguous_end(yard: Yard):
    run_id = await yard.start({"pay": {"run": "t.pay", "effect": "manual"}})
    await yard.begin(run_id, await yard.session(run_id))
    await yard.apply(run_id, Lost(0, 1, "", reason="its worker died", begun=True))
    (cause,) = await yard.causes(run_id, "pay")
    assert (cause.code, cause.points_to) == (Code.PARKED, ("parked_task", f"{run_id}.pay", "/parked-tasks"))
    assert len(cause.acts) == 3
    assert await yard.codes(run_id) == ["PARKED"]
    await yard.query("UPDATE parked_task SET resolved_at = now(), resolved_by = 'ana'")
    assert await yard.codes(run_id) == ["DECISION_NOT_APPLIED"]
    await yard.query("DELETE FROM parked_task")
    assert await yard.codes(run_id) == ["PARKED_MISSING"]


async def test_a_task_whose_effect_is_looked_up(yard: Yard):
    run_id = await yard.start({"pay": {"run": "t.pay", "effect": "reconcile", "lookup": "t.look"}})
    await yard.begin(run_id, await yard.session(run_id))
    await yard.apply(run_id, Lost(0, 1, "", reason="its worker died", begun=True))
    await yard.query("UPDATE watermark SET at = now() + interval '1 s'")
    assert await yard.codes(run_id) == ["LOOKING_UP", "NOT_RECEIVED"]


# == the run ===========================================================================================================
async def test_a_request_that_is_not_applied(yard: Yard):
    run_id = await yard.start()
    await yard.begin(run_id, await yard.session(run_id))
    async with yard.connection.transaction():
        await request(yard.connection, yard.store, run_id, "cancelled", {"reason": "enough"}, "ana")
    assert await yard.codes(run_id) == ["REQUEST_NOT_APPLIED", "RUNNING"]
    await yard.query("UPDATE inbox SET created_at = now() - interval '1 min'")
    assert await yard.codes(run_id, "third") == [
        "REQUEST_NOT_APPLIED", "NEEDS_UNFINISHED", "RUNNING", "PARTITION_SILENT",
    ]  # fmt: skip


async def test_a_run_that_stands_aside(yard: Yard):
    run_id = await yard.start()
    await yard.apply(run_id, Isolated(Error("INTERNAL", "deciding an event raised KeyError")))
    codes = await yard.codes(run_id)
    assert codes == ["NEEDS_ATTENTION", "NO_WORKER"]
    assert "KeyError" in (await yard.causes(run_id))[0].text
    assert (await yard.codes(run_id, "third"))[0] == "NEEDS_ATTENTION"
    await yard.apply(run_id, Released("ana"))
    assert await yard.codes(run_id) == ["NO_WORKER"]


async def test_runs_that_have_ended_say_how(yard: Yard):
    completed = await yard.start({"only": {"run": "t.only"}})
    await yard.apply(completed, Succeeded(0, 1, "", worker="box/3", started=1, finished=2))
    assert await yard.codes(completed) == ["RUN_COMPLETED"]
    assert await yard.codes(completed, "only") == ["TASK_COMPLETED"]

    failed = await yard.start()
    broken = Error("ERROR", "it broke", retryable=False)
    await yard.apply(failed, Failed(0, 1, "", broken, worker="box/3", started=1, finished=2))
    ((letter,),) = await yard.query("SELECT dead_letter_id FROM dead_letter")
    first, second = await yard.causes(failed)
    assert (first.code, second.code, second.points_to.id) == (Code.RUN_FAILED, Code.TASK_FAILED, str(letter))
    assert await yard.codes(failed, "third") == ["TASK_SKIPPED", "TASK_FAILED"]

    cancelled = await yard.start()
    await yard.begin(cancelled, await yard.session(cancelled))
    await yard.apply(cancelled, Cancelled("enough", "ana"))
    (cause,) = await yard.causes(cancelled)
    assert (cause.code, cause.text) == (Code.RUN_CANCELLED, "The run was cancelled by ana: enough.")
    assert await yard.codes(cancelled, "first") == ["TASK_CANCELLED", "STILL_HELD"]


# == the engine ========================================================================================================
@pytest.mark.parametrize(
    ("harm", "codes"),
    [
        ("DELETE FROM sweep_pass", ["STREAMS_AWAY"]),
        ("UPDATE sweep_pass SET at = now() - interval '1 min'", ["STREAMS_AWAY"]),
        ("UPDATE sweep_pass SET at = now() - interval '1 min' WHERE name IN ('lost', 'topics')", ["KAFKA_AWAY"]),
        ("UPDATE sweep_pass SET at = now() - interval '1 min' WHERE name = 'timers'", ["SWEEP_LATE"]),
        ("DELETE FROM relay_owner", ["RELAY_AWAY"]),
        ("UPDATE relay_owner SET renewed_at = to_timestamp(0)", ["RELAY_AWAY"]),
        ("SELECT pg_drop_replication_slot('s' || current_database())", ["SLOT_LOST"]),
        ("DELETE FROM partition_owner", ["PARTITION_UNOWNED"]),
        ("UPDATE watermark SET at = now() - interval '1 min'", ["TICKS_LATE"]),
    ],
)
async def test_trouble_of_the_engine_stands_behind(yard: Yard, harm: str, codes: list[str]):
    run_id = await yard.start(ASKED)
    await yard.query(harm)
    assert await yard.codes(run_id) == ["APPROVAL_OPEN", *codes]


# == reading ===========================================================================================================
async def test_what_is_not_there_is_not_found(yard: Yard):
    run_id = await yard.start()
    for run, task in ((str(uuid7()), None), (run_id, "nothing")):
        with pytest.raises(NotFoundError):
            await yard.causes(run, task)


def wide(tasks: int) -> dict[str, Any]:
    fan: dict[str, Any] = {f"t{i}": {"run": "t.x"} for i in range(tasks)}
    return {**fan, "join": {"run": "t.x", "needs": list(fan)}}


async def test_an_explanation_takes_as_many_statements_for_a_wide_run_as_for_a_narrow_one(yard: Yard):
    counts: list[int] = []
    original = psycopg.AsyncCursor.execute

    async def counted(self: Any, *arguments: Any, **more: Any) -> Any:
        counts[-1] += 1
        return await original(self, *arguments, **more)

    runs = [await yard.start(wide(tasks)) for tasks in (1, 300)]
    for run_id in runs:
        for task in (None, "join"):
            await yard.causes(run_id, task)  # loads the versions
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(psycopg.AsyncCursor, "execute", counted)
                counts.append(0)
                await yard.causes(run_id, task)
    assert counts == [7, 7, 7, 7]


async def test_the_api_answers_with_causes(yard: Yard):
    run_id = await yard.start(ASKED)
    app = create_app(yard.settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers=HEADERS) as api,
    ):
        run = (await api.get(f"/runs/{run_id}/explain")).json()
        task = (await api.get(f"/tasks/{run_id}.ask/explain")).json()
        missing = await api.get(f"/tasks/{run_id}.nothing/explain")
    assert (run["status"], run["task"], run["causes"][0]["code"]) == ("waiting", None, "APPROVAL_OPEN")
    assert (task["status"], task["task"], task["causes"][0]["code"]) == ("waiting", "ask", "APPROVAL_OPEN")
    assert run["causes"][0]["points_to"]["link"].startswith("/approvals/")
    assert run["causes"][0]["since"].endswith("Z")
    assert missing.status_code == 404
