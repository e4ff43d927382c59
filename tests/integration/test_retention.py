"""The retention on a real Postgres: what goes, what stays, and that nobody waits for it."""
# ruff: noqa: S608 - instants of this file

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from pydantic import SecretStr

from headrace.graph import from_data
from state.doctor import examine
from state.plans import Plans
from state.settings import EngineSettings
from state.sql import load
from state.starts import start_run
from state.store import Store
from state.workflows import publish
from streams import retention
from streams.retention import Retention
from tests.integration.test_doctor import SOUND

DAYS = 30.0
PARTS = """
    SELECT run_id, count(DISTINCT part)
    FROM (
      SELECT run_id, 1 AS part FROM run UNION ALL SELECT run_id, 2 FROM task
      UNION ALL SELECT run_id, 3 FROM attempt UNION ALL SELECT run_id, 4 FROM history
      UNION ALL SELECT run_id, 5 FROM approval UNION ALL SELECT run_id, 6 FROM dead_letter
      UNION ALL SELECT run_id, 7 FROM signal UNION ALL SELECT run_id, 8 FROM run_label) AS parts
    GROUP BY run_id
"""
AGO = "(finished_at, updated_at) = (now() - interval '31 d', now() - interval '31 d')"
LOCK_TIMEOUT = "100ms"
"""Nobody waits for longer, in either direction."""


class Archive:
    def __init__(self, dsn: str, connection: psycopg.AsyncConnection[Any]) -> None:
        self.dsn, self.connection = dsn, connection
        self.retention = Retention(DAYS)

    async def query(self, sql: str, *parameters: Any) -> list[Any]:
        cursor = await self.connection.execute(sql.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []

    async def add(self, ms: int, *, ended: str | None = "40 days", moves: int = 3) -> UUID:
        """A run that began `ms` after the epoch and ended so long ago; None: it goes on."""
        run_id = UUID(int=(ms << 80) | (7 << 76) | (8 << 60) | uuid4().int & 0xFFFF_FFFF)
        await self.query(
            "INSERT INTO run (run_id, version_id, status, row_version, input, finished_at, updated_at) "
            "SELECT %s, 1, CASE WHEN %s THEN 'failed' ELSE 'running' END::run_status, %s, '{}', now() - %s::interval, "
            "now() - coalesce(%s, '40 days')::interval",
            run_id,
            ended is not None,
            moves,
            ended,
            ended,
        )
        await self.query(
            "INSERT INTO task (run_id, task, status, attempt, token) VALUES (%s, 0, 'failed', 1, 1)", run_id
        )
        await self.query(
            "INSERT INTO attempt (run_id, task, token, attempt, outcome, row_version, worker, ended_at) "
            "VALUES (%s, 0, 1, 1, 'failed', 2, 'w', now())",
            run_id,
        )
        await self.query("INSERT INTO history (run_id, row_version, at, kind) VALUES (%s, 1, now(), 'started')", run_id)
        await self.query(
            "INSERT INTO approval (approval_id, run_id, task, token, title, approvers, on_expiry, status, decided_at) "
            "VALUES (gen_random_uuid(), %s, 0, 1, '', '[]', 'fail', 'approved', now())",
            run_id,
        )
        await self.query(
            "INSERT INTO dead_letter (dead_letter_id, kind, status, run_id, task, token, reason, closed_at) "
            "VALUES (gen_random_uuid(), 'task', 'discarded', %s, 0, 1, 'ERROR', now())",
            run_id,
        )
        await self.query(
            "INSERT INTO signal (signal_id, run_id, name, data, status) "
            "VALUES (gen_random_uuid(), %s, 'n', '1', 'kept')",
            run_id,
        )
        await self.query("INSERT INTO run_label (run_id, name, value) VALUES (%s, 'customer', 'acme')", run_id)
        return run_id

    async def left(self) -> set[UUID]:
        """The runs that are there, with all that belongs to them; none has lost a part."""
        runs = await self.query(PARTS)
        assert all(parts == 8 for _, parts in runs), runs
        return {run_id for run_id, _ in runs}


@pytest.fixture
async def archive(database: str) -> AsyncIterator[Archive]:
    async with await psycopg.AsyncConnection.connect(
        database, autocommit=True, options=f"-c lock_timeout={LOCK_TIMEOUT}"
    ) as connection:
        yield Archive(database, connection)


async def test_a_run_leaves_with_all_that_belongs_to_it_when_its_time_is_over(archive: Archive):
    old = await archive.add(1)
    young = await archive.add(2, ended="29 days")
    assert await archive.retention.purge(archive.connection) == 1
    assert await archive.left() == {young} != {old}


async def test_open_runs_stay_however_old_they_are(archive: Archive):
    open_runs = {await archive.add(ms, ended=None) for ms in (1, 3, 5)}
    for ms in (0, 2, 4, 6):
        await archive.add(ms)
    assert await archive.retention.purge(archive.connection) == 4
    assert await archive.left() == open_runs


async def test_nothing_leaves_unless_it_was_asked_for(archive: Archive):
    run_id = await archive.add(1)
    assert await Retention(0).purge(archive.connection) == 0
    assert await archive.left() == {run_id}


async def test_a_run_with_a_parked_letter_stays_whole_until_somebody_has_decided(archive: Archive):
    run_id = await archive.add(1)
    await archive.query("UPDATE dead_letter SET status = 'parked', closed_at = NULL")
    assert await archive.retention.purge(archive.connection) == 0
    assert await archive.left() == {run_id}
    await archive.query("UPDATE dead_letter SET status = 'discarded', closed_at = now()")
    assert await Retention(DAYS).purge(archive.connection) == 1


async def test_a_run_with_a_request_that_nobody_applied_stays(archive: Archive):
    run_id = await archive.add(1)
    request = "INSERT INTO inbox (inbox_id, run_id, kind, body) VALUES (gen_random_uuid(), %s, 'replayed', '{}')"
    await archive.query(request, run_id)
    assert await archive.retention.purge(archive.connection) == 0
    assert await archive.left() == {run_id}


async def test_a_trigger_key_outlives_its_run_and_starts_no_other(archive: Archive):
    store = Store(EngineSettings(postgres=archive.dsn, secret=SecretStr("0123456789abcdef")))
    workflow = from_data({"name": "w", "tasks": {"a": {"run": "t.a"}}})

    async def start() -> tuple[str, bool]:
        async with archive.connection.transaction():
            await publish(archive.connection, "default", workflow.name, workflow.canonical().decode())
            plan = await Plans().latest(archive.connection, "default", "w")
            old = "00000000-0001-7000-8000-000000000001"
            run_id, begun = await start_run(
                archive.connection, store, plan, b"{}", namespace="default", key="api:order-1", run_id=old
            )
            return run_id, begun is not None

    run_id, is_new = await start()
    assert is_new
    await archive.query(f"UPDATE run SET status = 'completed', {AGO}")
    assert await archive.retention.purge(archive.connection) == 1
    assert await start() == (run_id, False)
    assert await archive.query("SELECT count(*) FROM run") == [(0,)]


async def test_what_is_left_is_sound(archive: Archive):
    """All that the doctor checks of runs holds behind a retention as it did before, and keys of removed runs are no
    fault."""
    await archive.query(SOUND)
    ended = await archive.query(f"UPDATE run SET {AGO} WHERE finished_at IS NOT NULL RETURNING run_id")
    await archive.query("UPDATE task SET changed_at = changed_at - interval '32 days'")
    await archive.query("UPDATE attempt SET ended_at = ended_at - interval '32 days'")
    await archive.query("UPDATE history SET at = at - interval '32 days'")
    await archive.query("UPDATE dead_letter SET status = 'discarded', closed_at = now()")
    assert await archive.retention.purge(archive.connection) == len(ended) == 2
    left_over = "SELECT count(*) FROM trigger_key WHERE run_id NOT IN (SELECT run_id FROM run)"
    assert await archive.query(left_over) == [(2,)]
    checks = {check.name: check for check in await examine(archive.connection)}
    looked_at = ("statuses", "attempts", "tokens", "history", "ended", "waits", "joins", "approvals", "unparked")
    looked_at += ("dead_letters", "triggers", "orphan_timers", "orphan_approvals", "parked")
    assert [checks[name] for name in looked_at if not checks[name].ok] == []
    await archive.query("DELETE FROM watermark WHERE name = 'retention'")
    checks = {check.name: check for check in await examine(archive.connection)}
    assert checks["triggers"].count == 2


async def test_a_slice_is_bounded_in_runs_and_in_rows(archive: Archive, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retention, "SLICE_RUNS", 3)
    monkeypatch.setattr(retention, "SLICE_MOVES", 10)
    for ms, moves in enumerate((6, 6, 6, 1, 1, 1, 1, 50)):
        await archive.add(ms, moves=moves)
    removed = [await archive.retention.purge(archive.connection) for _ in range(6)]
    assert removed == [2, 3, 3, 0, 0, 0]
    assert await archive.left() == set()


async def test_a_pass_goes_on_behind_what_stays_and_begins_at_the_oldest_again(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retention, "SLICE_RUNS", 2)
    first = await archive.add(0, ended=None)
    stays = {first, await archive.add(1, ended=None)}
    for ms in (2, 3):
        await archive.add(ms)
    assert [await archive.retention.purge(archive.connection) for _ in range(3)] == [0, 2, 0]
    await archive.query(
        f"UPDATE run SET status = 'cancelled', {AGO} WHERE run_id = %s",
        first,
    )
    assert await archive.retention.purge(archive.connection) == 1
    assert await archive.left() == stays - {first}


async def test_it_waits_for_no_writer_and_no_reader(archive: Archive):
    held, read, other = [await archive.add(ms) for ms in range(3)]
    async with (
        await psycopg.AsyncConnection.connect(archive.dsn) as writer,
        await psycopg.AsyncConnection.connect(archive.dsn) as reader,
    ):
        await writer.execute("UPDATE run SET updated_at = now() WHERE run_id = %s", (held,))
        await reader.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await reader.execute("SELECT FROM attempt WHERE run_id = %s", (read,))
        assert await archive.retention.purge(archive.connection) == 2
        seen = await reader.execute("SELECT count(*) FROM attempt WHERE run_id = ANY(%s)", ([read, other],))
        assert await seen.fetchone() == (2,)
    assert await archive.left() == {held}


async def test_a_run_that_is_moved_on_while_the_retention_looks_at_it_stays(archive: Archive):
    """A replay reopened it after the statement's snapshot: whoever has the row's lock next looks again."""
    run_id = await archive.add(1)
    purge = load("retention").text("purge_runs")
    async with await psycopg.AsyncConnection.connect(archive.dsn) as slow:
        cursor = psycopg.AsyncRawCursor(slow)
        await slow.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        await archive.query("UPDATE run SET status = 'running', finished_at = NULL")
        await cursor.execute(purge, (UUID(int=0), DAYS * 86_400, 500, 2_000))
        assert (await cursor.fetchall())[0][0] == 0
    assert await archive.left() == {run_id}


async def test_a_run_that_somebody_asked_to_rerun_stays(archive: Archive):
    """Who asks for that touches it, in the transaction of the request."""
    run_id = await archive.add(1)
    await archive.query(load("control").text("touch_run") % {"run_id": f"'{run_id}'", "namespace": "'default'"})
    assert await archive.retention.purge(archive.connection) == 0
    assert await archive.left() == {run_id}


async def test_nobody_waits_for_a_slice_under_way(archive: Archive):
    """Readers of everything, writers of open runs, and starts go on while its transaction is open: it has locks on rows
    of ended runs, and on tables only those that every writer has."""
    await archive.add(1)
    going = await archive.add(2, ended=None)
    async with await psycopg.AsyncConnection.connect(archive.dsn) as purging, purging.transaction():
        assert await archive.retention.purge(purging) == 1
        assert len(await archive.left()) == 2
        await archive.query("UPDATE run SET row_version = row_version + 1 WHERE run_id = %s", going)
        await archive.query("UPDATE task SET token = 2 WHERE run_id = %s", going)
        await archive.add(3)
        locks = await archive.query(
            "SELECT DISTINCT mode FROM pg_locks WHERE locktype = 'relation' AND pid = %s", purging.info.backend_pid
        )
        assert {mode for (mode,) in locks} <= {"AccessShareLock", "RowShareLock", "RowExclusiveLock"}
        assert await Retention(DAYS).purge(archive.connection) == 0  # one at a time
    assert len(await archive.left()) == 2


async def test_old_fates_of_records_leave_too(archive: Archive):
    fates = (
        'INSERT INTO trigger_event (subscription_id, topic, partition, "offset", fate, at) '
        "SELECT gen_random_uuid(), 't', 0, n, 'filtered', now() - n * interval '1 day' FROM generate_series(1, 60) AS n"
    )
    await archive.query(fates)
    await archive.retention.purge(archive.connection)
    assert await archive.query('SELECT count(*), max("offset") FROM trigger_event') == [(29, 29)]


async def test_a_slice_looks_rows_up_by_key(archive: Archive):
    """Whatever the statistics say: here they say that there is nothing."""
    retention_sql = load("retention")
    async with archive.connection.transaction():
        await archive.query(retention_sql.text("begin_slice"))
        await archive.query(f"PREPARE slice AS {retention_sql.text('purge_runs')}")
        arguments = "'00000000-0000-0000-0000-000000000000', 1, 500, 2000"
        for mode in ("force_custom_plan", "force_generic_plan"):
            await archive.query(f"SET LOCAL plan_cache_mode = {mode}")
            rows = await archive.query(f"EXPLAIN EXECUTE slice ({arguments})")
            plan = "\n".join(line for (line,) in rows)
            assert "Seq Scan" not in plan, plan
            assert "Index Only Scan using run_key on run" in plan, plan
