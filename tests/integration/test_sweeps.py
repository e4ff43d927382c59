"""The sweeps on a real Postgres: what each finds, what it leaves alone, and what it says. Kafka's answers are given by
the test."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

import streams.sweeps
from headrace.graph import from_data
from state.counters import add_counters, read_counters
from state.outbox import Record, unbundle
from state.plans import Plans
from state.settings import EngineSettings
from state.starts import start_run
from state.store import Store
from state.workflows import publish
from streams.metrics import Metrics
from streams.sweeps import Sweeps
from streams.topics import Log

COMMANDS = "headrace.commands.default"
LEASE = 10.0


class Logs:
    """What the broker would answer about the command topic."""

    def __init__(self) -> None:
        self.log = Log("first", {0: 0})
        self.received = -1

    def read(self, topics: Any) -> dict[str, Log]:
        return {COMMANDS: self.log}

    def committed(self, logs: Any) -> dict[str, dict[int, int]]:
        return {COMMANDS: {0: self.received}}


class Yard:
    def __init__(self, dsn: str, connection: psycopg.AsyncConnection[Any]) -> None:
        self.dsn, self.connection, self.logs = dsn, connection, Logs()
        settings = EngineSettings(postgres=dsn, secret=SecretStr("0123456789abcdef"), lease_seconds=LEASE)
        self.store = Store(settings)
        self.sweeps = Sweeps(self.store, Plans(), self.logs, Metrics(CollectorRegistry()))  # type: ignore[arg-type]

    async def query(self, sql: str, *parameters: Any) -> list[Any]:
        cursor = await self.connection.execute(sql.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []

    async def start(self, **task: Any) -> str:
        workflow = from_data({"name": "w", "tasks": {"a": {"run": "t.a", **task}}})
        async with self.connection.transaction():
            await publish(self.connection, "default", workflow.name, workflow.canonical().decode())
            plan = await Plans().latest(self.connection, "default", "w")
            run_id, _ = await start_run(self.connection, self.store, plan, b"{}", namespace="default")
        await self.said()
        return run_id

    async def said(self, topic: str = "events") -> list[tuple[str, dict[str, Any]]]:
        """(run id, event) of all that was left in the outbox for a topic since the last look; what was left for others
        is passed over."""
        rows = await self.query(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', 'headrace_outbox', 'messages', 'true') WHERE get_byte(data, 0) = 77",
            self.slot,
        )
        records: list[Record] = []
        for (data,) in rows:
            content = bytes(data)
            records += unbundle(content[content.index(b"headrace\0") + 13 :])
        return [(r.key.decode(), json.loads(r.value)) for r in records if r.topic == f"headrace.{topic}"]

    @property
    def slot(self) -> str:
        return f"sweeps_{conninfo_to_dict(self.dsn)['dbname']}"

    async def session(self, *held: tuple[str, int, int], expires: str = "1 hour") -> str:
        session_id = str(uuid4())
        await self.query(
            "INSERT INTO worker_session (session_id, worker, queues, slots, seq, lease, renewed_at, expires_at) "
            "VALUES (%s, 'w', '{default}', 1, 1, '10 s', now(), now() + %s::interval)",
            session_id,
            expires,
        )
        for run_id, task, token in held:
            await self.query("INSERT INTO held_task VALUES (%s, %s, %s, %s)", run_id, task, token, session_id)
        return session_id

    async def watermark(self, at: str = "0 s") -> None:
        await self.query(
            "INSERT INTO watermark VALUES ('sessions', now() + %s::interval) "
            "ON CONFLICT (name) DO UPDATE SET at = excluded.at",
            at,
        )


@pytest.fixture
async def yard(database: str) -> AsyncIterator[Yard]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        made = Yard(database, connection)
        await made.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", made.slot)
        yield made


async def test_a_due_timer_is_said_once_and_again_only_when_nobody_applied_it(yard: Yard):
    run_id = await yard.start()
    await yard.query("INSERT INTO timer VALUES (%s, 0, 1, 'backoff', now() - interval '1 s')", run_id)
    await yard.query("INSERT INTO timer VALUES (%s, 1, 1, 'backoff', now() + interval '1 h')", run_id)
    assert await yard.sweeps._timers(yard.connection) == 1
    assert await yard.sweeps._timers(yard.connection) == 0
    ((key, event),) = await yard.said()
    assert (key, event["kind"], event["task"], event["token"]) == (run_id, "due", 0, 1)
    await yard.query("UPDATE timer SET said_at = now() - interval '6 s' WHERE task = 0")
    assert await yard.sweeps._timers(yard.connection) == 1


async def test_b07_two_processes_share_the_due_timers(yard: Yard, database: str):
    run_id = await yard.start()
    for task in range(10):
        await yard.query("INSERT INTO timer VALUES (%s, %s, 1, 'backoff', now() - interval '1 s')", run_id, task)
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        found = await asyncio.gather(yard.sweeps._timers(yard.connection), yard.sweeps._timers(other))
    assert sum(found) == 10
    assert len(await yard.said()) == 10


async def test_b05_a_session_is_judged_by_the_watermark_and_not_by_the_clock(yard: Yard):
    run_id = await yard.start()
    await yard.session((run_id, 0, 1), expires="-5 s")
    await yard.watermark("-1 minute")  # the session agent was down: it has not read what may be in the log
    assert await yard.sweeps._sessions(yard.connection) == 0
    await yard.watermark()
    assert await yard.sweeps._sessions(yard.connection) == 1
    ((key, event),) = await yard.said()
    assert (key, event["kind"], event["token"]) == (run_id, "lost", 1)
    assert await yard.query("SELECT count(*) FROM held_task") == [(0,)]


async def test_what_a_live_session_lists_as_well_is_not_lost(yard: Yard):
    run_id = await yard.start()
    await yard.session((run_id, 0, 1), expires="-5 s")
    await yard.session((run_id, 0, 1))
    await yard.watermark()
    assert await yard.sweeps._sessions(yard.connection) == 0
    assert await yard.said() == []


async def test_b17_a_running_task_whose_session_row_vanished_is_lost(yard: Yard):
    run_id = await yard.start()
    await yard.query("UPDATE task SET status = 'running', attempt = 1, session_id = %s", uuid4())
    await yard.query("UPDATE task SET changed_at = now() - interval '11 s'")
    await yard.watermark()
    assert await yard.sweeps._lost(yard.connection) == 1
    ((key, event),) = await yard.said()
    assert (key, event["kind"]) == (run_id, "lost")


async def test_a_running_task_that_its_live_session_lists_is_not_lost(yard: Yard):
    run_id = await yard.start()
    session_id = await yard.session((run_id, 0, 1))
    await yard.query("UPDATE task SET status = 'running', attempt = 1, session_id = %s", session_id)
    await yard.query("UPDATE task SET changed_at = now() - interval '1 h'")
    await yard.watermark()
    assert await yard.sweeps._lost(yard.connection) == 0


async def passes(yard: Yard, *marks: str) -> int:
    """Make one pass at each watermark; answers what the last one found."""
    found = 0
    for mark in marks:
        await yard.watermark(mark)
        found = await yard.sweeps._lost(yard.connection)
    return found


async def test_a_backlog_is_not_a_loss(yard: Yard):
    await yard.start()
    await yard.query("UPDATE task SET changed_at = now() - interval '1 h'")
    yard.logs.log, yard.logs.received = Log("first", {0: 500_000}), 3
    assert await passes(yard, "0 s", "10 s", "20 s", "30 s", "60 s") == 0
    assert await yard.said() == []


async def test_a_relay_that_is_behind_is_not_a_loss(yard: Yard):
    await yard.start()
    yard.logs.log, yard.logs.received = Log("first", {0: 5}), 5
    assert await passes(yard, "-1 h", "-1 h", "-1 h", "-50 minutes") == 0


async def test_a_command_that_was_received_and_never_listed_is_lost_a_lease_later(yard: Yard):
    run_id = await yard.start()
    yard.logs.log, yard.logs.received = Log("first", {0: 5}), 5
    assert await passes(yard, "1 s", "2 s", "11 s") == 0
    assert await passes(yard, "12 s") == 1
    ((key, event),) = await yard.said()
    assert (key, event["kind"], event["token"]) == (run_id, "lost", 1)
    assert await passes(yard, "13 s") == 0  # said once per lease


async def test_a_command_that_a_live_session_lists_is_not_lost(yard: Yard):
    run_id = await yard.start()
    await yard.session((run_id, 0, 1))
    yard.logs.log, yard.logs.received = Log("first", {0: 5}), 5
    assert await passes(yard, "1 s", "2 s", "12 s", "30 s") == 0


async def test_b95_a_command_topic_that_was_made_anew_has_lost_its_commands(yard: Yard):
    run_id = await yard.start()
    yard.logs.log, yard.logs.received = Log("first", {0: 5}), 0
    assert await passes(yard, "0 s") == 0
    yard.logs.log, yard.logs.received = Log("second", {0: 0}), -1
    assert await passes(yard, "1 s") == 0
    assert await passes(yard, "8 s") == 1
    assert (await yard.said())[0][0] == run_id


async def test_b97_a_lost_slot_has_lost_its_commands(yard: Yard):
    run_id = await yard.start()
    await yard.query(
        "INSERT INTO relay_owner (slot, owner, epoch, renewed_at, gap_at) VALUES ('s', 'o', 1, now(), now())"
    )
    assert await passes(yard, "1 s") == 0
    assert await passes(yard, "8 s") == 1
    assert (await yard.said())[0][0] == run_id


async def test_an_unapplied_request_is_said_again(yard: Yard):
    run_id, inbox_id = await yard.start(), uuid4()
    await yard.query(
        "INSERT INTO inbox (inbox_id, run_id, kind, body, said_at) "
        "VALUES (%s, %s, 'cancelled', '{}', now() - interval '6 s')",
        inbox_id,
        run_id,
    )
    assert await yard.sweeps._requests(yard.connection) == 1
    assert await yard.said() == [(run_id, {"kind": "requested", "inbox": str(inbox_id)})]
    assert await yard.sweeps._requests(yard.connection) == 0


@pytest.mark.parametrize(
    ("on_expiry", "outcome"), [("fail", "expired"), ("reject", "rejected"), ("approve", "approved")]
)
async def test_b82_an_expired_question_becomes_a_request(yard: Yard, on_expiry: str, outcome: str):
    run_id = await yard.start(approval={"title": "ok?", "expires": "1h", "on_expiry": on_expiry})
    assert await yard.sweeps._approvals(yard.connection) == 0
    await yard.query("UPDATE approval SET expires_at = now() - interval '1 s'")
    assert await yard.sweeps._approvals(yard.connection) == 1
    ((key, event),) = await yard.said()
    ((kind, body),) = await yard.query("SELECT kind, body FROM inbox WHERE inbox_id = %s", UUID(event["inbox"]))
    assert (key, kind, body["outcome"]) == (run_id, "decided", outcome)
    assert await yard.query("SELECT status, decided_by FROM approval") == [(outcome, "expiry")]
    assert await yard.sweeps._approvals(yard.connection) == 0


async def test_counters_of_all_processes_are_summed_up(yard: Yard):
    for _ in range(2):
        metrics = Metrics(CollectorRegistry())
        metrics.attempts.labels("failed").inc(3)
        metrics.seconds.observe(0.3)
        await add_counters(yard.connection, metrics.fresh())
        assert metrics.fresh() == []
    rows = {(row.sample, *row.labels.values()): row.value for row in await read_counters(yard.connection)}
    assert rows["headrace_task_attempts_total", "failed"] == 6
    assert rows["headrace_task_attempt_seconds_bucket", "0.5"] == 2
    assert ("headrace_task_attempt_seconds_bucket", "0.1") not in rows


async def test_the_timer_sweep_wakes_when_a_timer_is_due_and_not_before(yard: Yard):
    run_id = await yard.start()
    await yard.query("INSERT INTO timer VALUES (%s, 0, 1, 'backoff', now() + interval '0.6 s')", run_id)
    assert await yard.sweeps._timers(yard.connection) == 0
    await asyncio.wait_for(yard.sweeps._until_timer(yard.connection), 10)
    assert await yard.sweeps._timers(yard.connection) == 1


async def test_b27_a_timer_whose_row_vanished_is_made_again_from_its_task(yard: Yard):
    run_id = await yard.start()
    state = (
        "UPDATE task SET status = 'pending', attempt = 1, due_at = '2026-01-01Z', changed_at = now() - interval '2 s'"
    )
    await yard.query(f"{state} WHERE run_id = %s", run_id)
    assert await yard.sweeps._vanished(yard.connection) == 1
    assert await yard.sweeps._vanished(yard.connection) == 0
    timers = await yard.query("SELECT run_id::text, task, token, kind, due_at::text FROM timer")
    assert timers == [(run_id, 0, 1, "backoff", "2026-01-01 00:00:00+00")]
    assert await yard.sweeps._timers(yard.connection) == 1


async def test_a_parked_task_whose_row_vanished_waits_for_a_person_again(yard: Yard):
    run_id = await yard.start(effect="manual")
    error = json.dumps({"code": "AMBIGUOUS", "message": "who knows"})
    state = "UPDATE task SET status = 'waiting', attempt = 1, error = %s, changed_at = now() - interval '2 s'"
    await yard.query(f"{state} WHERE run_id = %s", error, run_id)
    await yard.query("UPDATE run SET status = 'waiting' WHERE run_id = %s", run_id)
    assert await yard.sweeps._vanished(yard.connection) == 1
    assert await yard.query("SELECT run_id::text, task, token FROM parked_task") == [(run_id, 0, 1)]


async def test_what_an_undone_transaction_said_is_said_again(yard: Yard, monkeypatch: pytest.MonkeyPatch):
    run_id = await yard.start()
    await yard.session((run_id, 0, 1), expires="-5 s")
    await yard.watermark()
    emit = streams.sweeps.emit

    async def break_off(*told: Any) -> None:
        await emit(*told)
        raise psycopg.OperationalError("the connection was lost before the commit")

    monkeypatch.setattr(streams.sweeps, "emit", break_off)
    with pytest.raises(psycopg.OperationalError):
        await yard.sweeps._sessions(yard.connection)
    monkeypatch.setattr(streams.sweeps, "emit", emit)
    await yard.sweeps._sessions(yard.connection)
    assert [event["kind"] for _, event in await yard.said()] == ["lost"]


@pytest.mark.parametrize("has_written", [True, False])
async def test_a_tick_claims_nothing_that_a_transaction_under_way_may_still_decide(yard: Yard, has_written: bool):
    """Or a command that is committed late would count as published before it was, and its task as lost."""

    async def tick() -> float:
        await yard.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", yard.slot)
        await yard.sweeps._ticks(yard.connection)
        ((content,),) = await yard.query(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', 'headrace_outbox', 'messages', 'true') WHERE get_byte(data, 0) = 77",
            yard.slot,
        )
        (record,) = unbundle(bytes(content)[bytes(content).index(b"headrace\0") + 13 :])
        return float(json.loads(record.value)["at"]) / 1e6

    async with await psycopg.AsyncConnection.connect(yard.dsn) as slow:
        cursor = await slow.execute("SELECT extract(epoch FROM now())::float8")
        ((begun,),) = await cursor.fetchall()
        if has_written:
            await slow.execute("INSERT INTO watermark VALUES ('something', now())")
        assert await tick() <= begun + 1e-5
        await slow.rollback()
        assert await tick() > begun


# == what waits behind a busy worker ===================================================================================
async def settle(yard: Yard, session_id: str, *, slots: int, held: int) -> None:
    await yard.query("UPDATE worker_session SET slots = %s, held = %s WHERE session_id = %s", slots, held, session_id)
    await yard.query("UPDATE task SET changed_at = now() - interval '2 s'")


async def stuck(yard: Yard) -> list[tuple[str, int]]:
    """Run and token of what workers are told to hand over."""
    await yard.sweeps._stuck(yard.connection)
    said = await yard.said("control")
    assert {order["kind"] for _, order in said} <= {"yield"}
    return [(run_id, order["token"]) for run_id, order in said]


async def test_what_waits_behind_a_busy_worker_is_asked_for_once_while_another_is_idle(yard: Yard):
    run_ids = [await yard.start() for _ in range(3)]
    busy = await yard.session(*((run_id, 0, 1) for run_id in run_ids))
    await settle(yard, busy, slots=1, held=3)
    runs = "UPDATE task SET status = 'running', attempt = 1, session_id = %s WHERE run_id = %s"
    await yard.query(runs, busy, run_ids[0])
    assert await stuck(yard) == [], "there is nobody else"
    idle = await yard.session()
    await settle(yard, idle, slots=4, held=3)
    assert await stuck(yard) == [(run_ids[1], 1)], "as many as can begin at once, the oldest first"
    assert await stuck(yard) == [], "the worker was told so"


@pytest.mark.parametrize("why", ["full", "draining", "ended", "silent", "another queue"])
async def test_nothing_is_moved_to_a_worker_that_would_not_take_it(yard: Yard, why: str):
    busy = await yard.session((run_id := await yard.start(), 0, 1))
    await settle(yard, busy, slots=1, held=2)
    other = await yard.session()
    await settle(yard, other, slots=1, held=1 if why == "full" else 0)
    changes = {
        "draining": "UPDATE worker_session SET draining = true WHERE session_id = %s",
        "ended": "UPDATE worker_session SET ended_at = now() WHERE session_id = %s",
        "silent": "UPDATE worker_session SET renewed_at = now() - interval '1 min' WHERE session_id = %s",
        "another queue": "UPDATE worker_session SET queues = '{mail}' WHERE session_id = %s",
    }
    if why in changes:
        await yard.query(changes[why], other)
    assert await stuck(yard) == []
    await yard.query(
        "UPDATE worker_session SET draining = false, ended_at = NULL, renewed_at = now(), queues = '{default}'"
    )
    await settle(yard, other, slots=1, held=0)
    assert await stuck(yard) == [(run_id, 1)]


async def test_what_has_waited_for_a_moment_only_stays_where_it_is(yard: Yard):
    busy = await yard.session((await yard.start(), 0, 1))
    await yard.session()
    await settle(yard, busy, slots=1, held=2)
    await yard.query("UPDATE task SET changed_at = now()")
    assert await stuck(yard) == []


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 6, 8, 16, 64])
def test_a_task_that_is_handed_out_again_comes_to_the_other_half_and_in_time_to_every_partition(partitions: int):
    store = Store(EngineSettings(postgres="", secret=SecretStr("0123456789abcdef"), partitions=partitions))
    places = [store.stride * token % partitions for token in range(partitions)]
    assert sorted(places) == list(range(partitions))
    assert partitions < 4 or partitions // 2 <= places[1] < partitions
