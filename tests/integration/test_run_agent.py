"""The run agent on a real Postgres: what one batch of records does, and what no batch may do. No broker is involved."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import psycopg
import pytest
from prometheus_client import CollectorRegistry

import streams.run_agent
from headrace.graph import from_data
from headrace.messages import (
    Abort,
    Due,
    Error,
    Event,
    Failed,
    Granted,
    Lost,
    Requested,
    Started,
    Succeeded,
    encode,
    make_nonce,
)
from state.doctor import examine
from state.outbox import unbundle
from state.pipe import Pipe
from state.plans import Plans
from state.requests import request
from state.settings import EngineSettings
from state.starts import start_run
from state.store import Rows, Store
from state.timeline import FIRST, Timeline
from state.workflows import publish
from streams.batch import Batch
from streams.clock import DatabaseClock
from streams.database import Database
from streams.metrics import Metrics
from streams.ownership import Ownership
from streams.run_agent import RunAgent
from streams.run_cache import RunCache

SECRET = "0123456789abcdef"
TOPIC = "headrace.events"
CHAIN: dict[str, Any] = {
    "name": "chain",
    "tasks": {
        "a": {"run": "t.a", "retry": {"attempts": 2, "delay": 0, "jitter": 0}},
        "b": {"run": "t.b", "needs": ["a"], "with": {"a": "${{ tasks.a.output }}"}},
    },
}


class Record:
    """A record as confluent-kafka hands it out."""

    def __init__(
        self, offset: int, key: bytes | None, value: bytes | None, partition: int = 0, topic: str = TOPIC
    ) -> None:
        self._fields = (topic, partition, offset, key, value)

    def topic(self) -> str:
        return self._fields[0]

    def partition(self) -> int:
        return self._fields[1]

    def offset(self) -> int:
        return self._fields[2]

    def key(self) -> bytes | None:
        return self._fields[3]

    def value(self) -> bytes | None:
        return self._fields[4]

    def headers(self) -> list[Any]:
        return []


class Engine:
    """A run agent that owns partition 0, and hands on the statements that look at its database."""

    def __init__(
        self, dsn: str, owner: str = "one", timeline_of: Callable[[Pipe], Timeline] = lambda pipe: FIRST
    ) -> None:
        self.store = Store(EngineSettings(postgres=dsn, secret=msgspec.convert(SECRET, str)))  # type: ignore[arg-type]
        self.dsn, self.plans, self.database = dsn, Plans(), Database(dsn)
        self.ownership = Ownership(self.database, owner)
        self.metrics = Metrics(CollectorRegistry())
        cache = RunCache(self.database, self.plans)
        self.agent = RunAgent(
            self.store, self.ownership, self.database, cache, DatabaseClock(self.database), self.metrics,
            timeline_of=timeline_of,
        )  # fmt: skip
        self.epoch, self.next = 0, 0

    def close(self) -> None:
        self.agent.close()
        self.database.close()

    async def lease(self) -> None:
        self.epoch, next_offset = (await self.ownership.lease(TOPIC, "log", [0]))[0]
        self.next = next_offset or 0

    def batch(self, *records: tuple[str | bytes | None, Event | bytes | None], at: int | None = None) -> Batch:
        first = self.next if at is None else at
        made = [
            Record(
                first + i,
                key.encode() if isinstance(key, str) else key,
                value if isinstance(value, bytes) or value is None else encode(value),
            )
            for i, (key, value) in enumerate(records)
        ]
        self.next = max(self.next, first + len(made))
        return Batch(TOPIC, "log", {0: made}, {0: self.epoch})  # type: ignore[dict-item]

    async def apply(self, *records: tuple[str | bytes | None, Event | bytes | None], at: int | None = None) -> None:
        await asyncio.wait_for(self.agent(self.batch(*records, at=at)), 15)

    def query(self, sql: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(sql.encode(), parameters).fetchall()

    async def start(self, definition: dict[str, Any] = CHAIN, input: Any = None, namespace: str = "default") -> str:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            workflow = from_data(definition)
            await publish(connection, namespace, workflow.name, workflow.canonical().decode())
            plan = await self.plans.latest(connection, namespace, workflow.name)
            run_id, _ = await start_run(
                connection,
                self.store,
                plan,
                json.dumps(input or {}).encode(),
                namespace=namespace,
                actor="ada",
            )
        return run_id

    def nonce(self, run_id: str, task: int, token: int) -> str:
        return make_nonce(self.store.secret, run_id.encode(), task, token)

    def succeeded(self, run_id: str, task: int = 0, token: int = 1, output: bytes = b"1") -> tuple[str, Event]:
        nonce = self.nonce(run_id, task, token)
        return run_id, Succeeded(task, token, nonce, worker="w", started=1, finished=2, output=msgspec.Raw(output))

    def failed(self, run_id: str, task: int = 0, token: int = 1, **error: Any) -> tuple[str, Event]:
        return run_id, Failed(task, token, self.nonce(run_id, task, token), Error("ERROR", "no", **error), worker="w")

    def tasks(self, run_id: str) -> list[tuple[str, int, int]]:
        return self.query("SELECT status::text, attempt, token FROM task WHERE run_id = %s ORDER BY task", run_id)

    def status(self, run_id: str) -> str:
        return str(self.query("SELECT status::text FROM run WHERE run_id = %s", run_id)[0][0])


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    made = Engine(database)
    await made.lease()
    yield made
    made.close()


async def test_results_move_a_run_to_its_end(engine: Engine):
    run_id = await engine.start()
    assert engine.tasks(run_id) == [("queued", 0, 1)]
    await engine.apply(engine.succeeded(run_id))
    assert engine.tasks(run_id) == [("completed", 1, 1), ("queued", 0, 1)]
    await engine.apply(engine.succeeded(run_id, task=1))
    assert engine.status(run_id) == "completed"
    assert engine.query("SELECT row_version FROM run_event WHERE run_id = %s ORDER BY 1", run_id) == [(1,), (2,), (3,)]


async def test_a_repeated_result_counts_once(engine: Engine):
    run_id = await engine.start()
    await engine.apply(engine.succeeded(run_id), engine.succeeded(run_id))
    await engine.apply(engine.succeeded(run_id, output=b"2"))
    assert engine.query("SELECT output::text FROM attempt WHERE run_id = %s", run_id) == [("1",)]
    assert engine.tasks(run_id) == [("completed", 1, 1), ("queued", 0, 1)]


async def test_a_record_delivered_again_is_not_applied_again(engine: Engine):
    run_id = await engine.start()
    await engine.apply(engine.failed(run_id))
    await engine.apply(engine.failed(run_id), at=0)
    assert engine.tasks(run_id) == [("queued", 1, 2)]


async def test_a_stale_token_changes_nothing(engine: Engine):
    run_id = await engine.start()
    await engine.apply((run_id, Lost(0, 1, engine.nonce(run_id, 0, 1))))
    assert engine.tasks(run_id) == [("queued", 0, 2)]
    await engine.apply(engine.succeeded(run_id, token=1))
    assert engine.tasks(run_id) == [("queued", 0, 2)]


async def test_a_guessed_nonce_completes_nothing(engine: Engine):
    run_id = await engine.start()
    await engine.apply((run_id, Succeeded(0, 1, "0" * 24)))
    assert engine.tasks(run_id) == [("queued", 0, 1)]
    assert engine.metrics.forged._value.get() == 1
    assert engine.metrics.stale._value.get() == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"no run id", b"{}"),
        (None, None),
        (b"01a2289f-ec84-73e0-907f-576654f809f9", b"\xff\x00\xfe"),
        (b"01a2289f-ec84-73e0-907f-576654f809f9", b'{"kind": "succeeded"}'),
        (b"01a2289f-ec84-73e0-907f-576654f809f9", b'{"kind": "later", "v": 1}'),
        (b"01a2289f-ec84-73e0-907f-576654f809f9", b'{"kind": "lost", "task": 0, "token": 1, "nonce": "", "v": 2}'),
    ],
)
async def test_an_unreadable_record_is_set_aside_and_the_next_one_applied(engine: Engine, key: bytes, value: bytes):
    run_id = await engine.start()
    await engine.apply((key, value), engine.succeeded(run_id))
    assert engine.tasks(run_id)[0] == ("completed", 1, 1)
    ((kind, topic, partition, offset, kept, reason),) = engine.query(
        'SELECT kind, topic, partition, "offset", value, reason FROM dead_letter'
    )
    assert (kind, topic, partition, offset) == ("record", TOPIC, 0, 0)
    assert kept == value
    assert reason


async def test_an_event_of_an_unknown_run_holds_nothing_up_twice(engine: Engine):
    unknown = "01a2289f-ec84-73e0-907f-576654f809f9"
    run_id = await engine.start()
    await engine.apply((unknown, Lost(0, 1, engine.nonce(unknown, 0, 1))))
    started = asyncio.get_running_loop().time()
    await engine.apply((unknown, Lost(0, 1, engine.nonce(unknown, 0, 1))), engine.succeeded(run_id))
    assert engine.tasks(run_id)[0][0] == "completed"
    assert asyncio.get_running_loop().time() - started < 5


async def test_b29_a_result_that_postgres_refuses_ends_as_bad_result_and_the_others_go_on(engine: Engine):
    good, bad = await engine.start(), await engine.start()
    nonce = engine.nonce(bad, 0, 1)
    event = Succeeded(0, 1, nonce, worker="nul \0 in a name", started=1, finished=2, output=msgspec.Raw(b"1"))
    await engine.apply((bad, event), engine.succeeded(good))
    assert engine.tasks(good)[0] == ("completed", 1, 1)
    assert engine.status(bad) == "failed"
    assert engine.query("SELECT error ->> 'code' FROM attempt WHERE run_id = %s", bad) == [("BAD_RESULT",)]


async def test_a_bug_parks_the_run_that_met_it_and_no_other(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    good, bad = await engine.start(), await engine.start()
    advance = streams.run_agent.advance

    def buggy(plan: Any, run: Any, event: Any, at: int) -> Any:
        if run.key == bad.encode() and isinstance(event, Succeeded):
            raise ZeroDivisionError("planted")
        return advance(plan, run, event, at)

    monkeypatch.setattr(streams.run_agent, "advance", buggy)
    await engine.apply(engine.succeeded(bad), engine.succeeded(good))
    assert engine.status(bad) == "needs_attention"
    assert engine.tasks(good)[0] == ("completed", 1, 1)
    ((reason, trace),) = engine.query("SELECT reason, error ->> 'trace' FROM dead_letter WHERE run_id = %s", bad)
    assert "ZeroDivisionError" in reason
    assert "planted" in trace


async def test_b92_a_hole_is_never_skipped(engine: Engine):
    run_id = await engine.start()
    rebuilt: list[str] = []
    batch = engine.batch((None, b"x"))
    await engine.agent(batch)
    beyond = engine.batch(engine.succeeded(run_id), at=7)
    beyond.on_rebuild = rebuilt.append
    await engine.agent(beyond)
    assert "expected 1, got 7" in rebuilt[0]
    assert engine.tasks(run_id) == [("queued", 0, 1)]
    assert engine.query("SELECT next_offset FROM partition_owner") == [(1,)]


async def test_b12_a_process_that_lost_its_partition_writes_nothing(engine: Engine, database: str):
    run_id = await engine.start()
    stale = engine.batch(engine.succeeded(run_id))
    successor = Engine(database, "two")
    await successor.lease()
    await asyncio.wait_for(engine.agent(stale), 15)
    assert engine.tasks(run_id) == [("queued", 0, 1)]
    await successor.apply(successor.succeeded(run_id))
    assert engine.tasks(run_id)[0] == ("completed", 1, 1)
    successor.close()


async def test_another_writer_of_the_run_makes_the_batch_read_again(engine: Engine):
    run_id = await engine.start()
    await engine.apply((run_id, Started(0, 1, engine.nonce(run_id, 0, 1), session=run_id)))
    engine.query("UPDATE run SET row_version = row_version + 1 WHERE run_id = %s RETURNING 1", run_id)
    await engine.apply(engine.succeeded(run_id))
    assert engine.tasks(run_id)[0] == ("completed", 1, 1)
    assert engine.metrics.overtaken._value.get() == 1


async def test_another_log_starts_at_its_beginning(engine: Engine):
    run_id = await engine.start()
    await engine.apply((None, b"x"), (None, b"y"), (None, b"z"))
    granted = await engine.ownership.lease(TOPIC, "another log", [0])
    assert granted[0][1] is None
    engine.epoch = granted[0][0]
    await engine.apply(engine.succeeded(run_id), at=0)
    assert engine.tasks(run_id)[0] == ("completed", 1, 1)


@pytest.mark.parametrize("runs", [1, 40])
async def test_a_batch_of_any_size_takes_the_same_statements(
    engine: Engine, runs: int, monkeypatch: pytest.MonkeyPatch
):
    ids = [await engine.start() for _ in range(runs)]
    seen: list[list[str]] = []
    original: Callable[..., None] = streams.run_agent.Pipe.run

    def spy(self: Any, calls: Any) -> None:
        seen.append([name for name, _ in calls])
        original(self, calls)

    monkeypatch.setattr(streams.run_agent.Pipe, "run", spy)
    await engine.apply(*[engine.succeeded(run_id) for run_id in ids])
    assert seen == [["fence", "save_runs", "hand_out_tasks", "complete_tasks", "insert_attempts", "publish_messages"]]


async def test_a_cancel_from_the_inbox_is_applied_once(engine: Engine):
    run_id = await engine.start()
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        inbox = await request(connection, engine.store, run_id, "cancelled", {"reason": "wrong order"}, "ann")
    await engine.apply((run_id, Requested(inbox)), (run_id, Requested(inbox)))
    assert engine.status(run_id) == "cancelled"
    assert engine.query("SELECT applied_at IS NOT NULL FROM inbox") == [(True,)]
    assert engine.query("SELECT kind, actor FROM history WHERE run_id = %s AND kind = 'cancelled'", run_id) == [
        ("cancelled", "ann")
    ]


async def test_a_request_said_under_another_runs_key_moves_nobody_and_is_still_there(engine: Engine):
    asked, other = await engine.start(), await engine.start()
    async with await psycopg.AsyncConnection.connect(engine.dsn, autocommit=True) as connection:
        inbox = await request(connection, engine.store, asked, "cancelled", {}, "ann")
    await engine.apply((other, Requested(inbox)))
    assert (engine.status(asked), engine.status(other)) == ("running", "running")
    await engine.apply((asked, Requested(inbox)))
    assert (engine.status(asked), engine.status(other)) == ("cancelled", "running")


async def test_exhausted_retries_make_a_dead_letter_and_skip_what_needs_it(engine: Engine):
    run_id = await engine.start()
    await engine.apply(engine.failed(run_id))
    await engine.apply(engine.failed(run_id, token=2))
    assert engine.status(run_id) == "failed"
    assert engine.tasks(run_id) == [("failed", 2, 2), ("skipped", 0, 0)]
    assert engine.query("SELECT reason, status FROM dead_letter") == [("ERROR", "parked")]


FLOW: dict[str, Any] = {
    "name": "flow",
    "output": {"paid": "${{ tasks.large.output }}", "alarm": "${{ tasks.alarm.output }}"},
    "tasks": {
        "a": {"run": "t.a"},
        "small": {"run": "t.b", "needs": ["a"], "if": "tasks.a.output < 10"},
        "large": {"run": "t.b", "needs": ["a"], "if": "tasks.a.output >= 10"},
        "meet": {"run": "t.c", "needs": ["small", "large"], "join": "any"},
        "pause": {"needs": ["meet"], "wait": {"until": "${{ now + duration('1h') }}"}},
        "alarm": {"run": "t.d", "needs": ["meet", "pause"], "join": "on_failure"},
        "last": {"run": "t.e", "needs": ["pause", "alarm"], "join": "always"},
    },
}


async def test_branches_joins_a_wait_and_an_output_are_what_postgres_holds(engine: Engine, database: str):
    run_id = await engine.start(FLOW)
    states = [("completed", 1, 1), ("skipped", 0, 0)]
    await engine.apply(engine.succeeded(run_id, 0, output=b"50"))
    assert engine.tasks(run_id) == [*states, ("queued", 0, 1)]
    await engine.apply(engine.succeeded(run_id, 2, output=b'{"sum":50}'))
    states += [("completed", 1, 1)]
    assert engine.tasks(run_id) == [*states, ("queued", 0, 1)]
    other = Engine(database, "two")  # knows only what Postgres holds
    try:
        await other.lease()
        await other.apply(other.succeeded(run_id, 3))
        states += [("completed", 1, 1)]
        assert other.tasks(run_id) == [*states, ("waiting", 0, 1)]
        assert other.status(run_id) == "waiting"
        ((kind, token, is_due),) = other.query("SELECT kind, token, due_at <= now() FROM timer")
        assert (kind, token, is_due) == ("wait", 1, False)
        due = Due(4, 1, other.nonce(run_id, 4, 1), "wait")
        await other.apply((run_id, due))
        assert other.status(run_id) == "waiting"  # not early
        other.query("UPDATE task SET due_at = now() - interval '1 s' WHERE status = 'waiting' RETURNING 1")
        other.close()
        other = Engine(database, "three")
        await other.lease()
        await other.apply((run_id, due))
        assert other.query("SELECT count(*) FROM timer") == [(0,)]
        states += [("completed", 0, 1), ("skipped", 0, 0)]
        assert other.tasks(run_id) == [*states, ("queued", 0, 1)]
        await other.apply(other.succeeded(run_id, 6))
        assert other.tasks(run_id) == [*states, ("completed", 1, 1)]
        assert other.status(run_id) == "completed"
        assert other.query("SELECT output::text, output_error FROM run") == [('{"alarm":null,"paid":{"sum":50}}', None)]
        ((until,),) = other.query("SELECT output ->> 'until' FROM task WHERE task = 4")
        assert until.endswith("Z")
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
            wrong = [check for check in await examine(connection) if check.name in OF_A_RUN and not check.ok]
        assert not wrong
    finally:
        other.close()


OF_A_RUN = {"statuses", "attempts", "tokens", "history", "ended", "waits", "joins", "orphan_timers", "orphan_approvals"}


async def test_the_outbox_holds_a_command_for_every_hand_out(engine: Engine):
    engine.query("SELECT pg_create_logical_replication_slot('agent_test', 'pgoutput')")
    try:
        run_id = await engine.start()
        await engine.apply(engine.succeeded(run_id))
        rows = engine.query(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('agent_test', NULL, NULL, 'proto_version', '1', "
            "'publication_names', 'headrace_outbox', 'messages', 'true') WHERE get_byte(data, 0) = 77"
        )
        records = [r for (data,) in rows for r in unbundle(bytes(data)[bytes(data).index(b"headrace\0") + 13 :])]
        assert [(r.topic, r.key, json.loads(r.value)["name"]) for r in records] == [
            ("headrace.commands.default", run_id.encode(), "a"),
            ("headrace.commands.default", run_id.encode(), "b"),
        ]
        assert json.loads(records[1].value)["input"] == {"a": 1}
    finally:
        engine.query("SELECT pg_drop_replication_slot('agent_test')")


async def test_a_request_that_cannot_be_understood_parks_its_run_and_no_other(engine: Engine):
    good, bad = await engine.start(), await engine.start()
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        inbox = await request(connection, engine.store, bad, "decided", {"task": "no number"}, "ann")
    await engine.apply((bad, Requested(inbox)), engine.succeeded(good))
    assert engine.status(bad) == "needs_attention"
    assert engine.tasks(good)[0] == ("completed", 1, 1)


async def test_b78_a_request_that_comes_while_a_run_is_parked_waits_for_its_release(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    run_id = await engine.start({"name": "ask", "tasks": {"ok": {"approval": {"title": "ok?"}}}})
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        broken = await request(connection, engine.store, run_id, "decided", {"task": "no number"}, "ann")
        body = {"task": 0, "token": 1, "outcome": "approved"}
        decided = await request(connection, engine.store, run_id, "decided", body, "ann")
        released = await request(connection, engine.store, run_id, "released", {}, "ann")
    await engine.apply((run_id, Requested(broken)), (run_id, Requested(decided)))
    assert engine.status(run_id) == "needs_attention"
    await engine.apply((run_id, Requested(released)), (run_id, Requested(decided)))
    assert engine.status(run_id) == "completed"


@pytest.mark.parametrize("together", [False, True], ids=["two batches", "one batch"])
async def test_a_lost_attempt_names_the_worker_that_ran_it(engine: Engine, together: bool):
    run_id = await engine.start()
    nonce = engine.nonce(run_id, 0, 1)
    said = [(run_id, Started(0, 1, nonce, session=run_id, worker="w-7")), (run_id, Lost(0, 1, nonce))]
    for batch in [said] if together else [[one] for one in said]:
        await engine.apply(*batch)
    assert engine.query("SELECT outcome, worker FROM attempt") == [("lost", "w-7")]
    assert engine.tasks(run_id)[0] == ("queued", 1, 2)


async def test_a_question_asked_and_withdrawn_in_one_batch_is_closed(engine: Engine):
    definition = {"name": "ask", "tasks": {"a": {"run": "t.a"}, "ok": {"needs": ["a"], "approval": {"title": "ok?"}}}}
    run_id = await engine.start(definition)
    async with await psycopg.AsyncConnection.connect(engine.dsn) as connection:
        cancelled = await request(connection, engine.store, run_id, "cancelled", {}, "ann")
    await engine.apply(engine.succeeded(run_id), (run_id, Requested(cancelled)))
    assert engine.status(run_id) == "cancelled"
    assert engine.query("SELECT status FROM approval") == [("cancelled",)]


async def test_a_claim_is_answered_with_its_owner_each_time_and_a_stale_one_with_an_abort(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    said: list[Any] = []
    control = Rows.control
    monkeypatch.setattr(Rows, "control", lambda rows, key, message: (said.append(message), control(rows, key, message)))
    await engine.lease()
    run_id = await engine.start({"name": "claimed", "tasks": {"a": {"run": "t.a", "effect": "manual"}}})
    session, other = "11" * 16, "22" * 16

    def claim(token: int, who: str) -> tuple[str, Event]:
        return run_id, Started(0, token, engine.nonce(run_id, 0, token), who, who, claim=True)

    await engine.apply(claim(1, session))
    await engine.apply(claim(1, other))
    assert said == [Granted(run_id, 0, 1, session)] * 2
    assert engine.tasks(run_id) == [("running", 1, 1)]
    await engine.apply((run_id, Lost(0, 1, engine.nonce(run_id, 0, 1), begun=False)))
    said.clear()
    await engine.apply(claim(1, other))
    assert said == [Abort(run_id, 0, 1, "stale")]
    assert engine.tasks(run_id) == [("queued", 1, 2)]


async def test_a_run_that_another_process_moved_meanwhile_is_not_judged_by_an_old_copy(engine: Engine, database: str):
    """A partition that comes back: what its former owner remembers of a run is older than Postgres."""
    other = Engine(database, "two")
    try:
        await engine.lease()
        run_id = await engine.start()
        await engine.apply(engine.failed(run_id))  # in memory from here on: token 2
        await other.lease()
        other.plans = engine.plans
        await other.apply(engine.failed(run_id, token=2, retryable=False))
        async with await psycopg.AsyncConnection.connect(database) as connection:
            body = {"task": 0, "token": 2}
            inbox = await request(connection, engine.store, run_id, "replayed", body, "ann")
        await engine.lease()
        await engine.apply((run_id, Requested(inbox)))
        assert engine.tasks(run_id)[0] == ("queued", 2, 3), "the old copy took the replay for stale"
    finally:
        other.close()
