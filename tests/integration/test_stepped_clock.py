"""What the sweeps and the session agent's watermark make of a database whose clock was stepped: rows of before the step
are set by the test. `tests/faults/test_clock.py` steps the clock under a whole engine."""

from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from state.sql import load
from streams.clock import Steps
from tests.integration.test_sweeps import LEASE, Yard

FORWARDS, BACKWARDS = "-30 s", "30 s"
"""Where a step leaves what was written right before it."""


@pytest.fixture
async def stepped(database: str) -> AsyncIterator[Yard]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        made = Yard(database, connection)
        await made.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", made.slot)
        yield made


async def raise_watermark(yard: Yard, seconds: float) -> float:
    """A tick arrives that was said so many seconds from now; answers how far from now the mark is then."""
    ((now,),) = await yard.query("SELECT (extract(epoch FROM now()) * 1000000)::bigint")
    cursor = psycopg.AsyncRawCursor(yard.connection)
    await cursor.execute(load("session").text("raise_watermark"), ("sessions", now + round(seconds * 1_000_000)))
    ((apart,),) = await yard.query("SELECT extract(epoch FROM at - now())::float8 FROM watermark")
    return float(apart)


async def test_a_mark_follows_a_clock_that_was_stepped_back(stepped: Yard):
    await stepped.watermark(BACKWARDS)
    assert await raise_watermark(stepped, -1.0) == pytest.approx(-1.0, abs=0.5)


async def test_a_tick_that_comes_twice_lowers_no_mark(stepped: Yard):
    await stepped.watermark()
    assert await raise_watermark(stepped, -60.0) == pytest.approx(0.0, abs=0.5)


async def test_a_mark_of_before_a_step_back_ends_no_session(stepped: Yard):
    run_id = await stepped.start()
    await stepped.session((run_id, 0, 1), expires="10 s")
    await stepped.watermark(BACKWARDS)
    assert await stepped.sweeps._sessions(stepped.connection) == 0
    assert await stepped.query("SELECT ended_at FROM worker_session") == [(None,)]


async def test_a_session_that_was_not_renewed_since_a_step_back_ends(stepped: Yard):
    run_id = await stepped.start()
    await stepped.session((run_id, 0, 1), expires="40 s")
    await stepped.query("UPDATE worker_session SET renewed_at = now() + %s::interval", BACKWARDS)
    await stepped.watermark()
    assert await stepped.sweeps._sessions(stepped.connection) == 1


async def test_nothing_is_called_lost_for_a_lease_behind_a_step(stepped: Yard, monkeypatch: pytest.MonkeyPatch):
    run_id = await stepped.start()
    session_id = await stepped.session((run_id, 0, 1), expires="10 s")
    await stepped.query("UPDATE task SET status = 'running', attempt = 1, session_id = %s", session_id)
    stepped.sweeps._steps.note(0, 0, 0)  # the clock said 1970 a moment ago
    await stepped.query("UPDATE worker_session SET expires_at = now() + %s::interval", FORWARDS)
    await stepped.query("UPDATE task SET changed_at = now() + %s::interval", FORWARDS)
    await stepped.query("DELETE FROM held_task")
    await stepped.watermark()
    assert await stepped.sweeps._sessions(stepped.connection) == 0
    assert await stepped.sweeps._lost(stepped.connection) == 0
    assert await stepped.query("SELECT ended_at FROM worker_session") == [(None,)]

    monkeypatch.setattr(Steps, "seconds_ago", lambda _: LEASE + 1.0)
    await stepped.sweeps._sessions(stepped.connection)
    assert await stepped.sweeps._lost(stepped.connection) == 1
    assert await stepped.query("SELECT count(*) FROM worker_session WHERE ended_at IS NULL") == [(0,)]


@pytest.mark.parametrize(("seconds", "said"), [(-1, 0), (5, 0), (30, 1)])
async def test_what_was_said_before_a_step_back_is_said_again(stepped: Yard, seconds: int, said: int):
    """A few seconds ahead is what a transaction that began later has said."""
    run_id = await stepped.start()
    at = f"{seconds} s"
    await stepped.query("INSERT INTO timer VALUES (%s, 0, 1, 'backoff', now(), now() + %s::interval)", run_id, at)
    await stepped.query(
        "INSERT INTO inbox (inbox_id, run_id, kind, body, said_at) "
        "VALUES (gen_random_uuid(), %s, 'cancelled', '{}', now() + %s::interval)",
        run_id,
        at,
    )
    assert await stepped.sweeps._timers(stepped.connection) == said
    assert await stepped.sweeps._requests(stepped.connection) == said


async def test_a_run_ends_no_earlier_than_it_was_last_moved(stepped: Yard):
    run_id = await stepped.start()
    await stepped.query("UPDATE run SET updated_at = now() + %s::interval", BACKWARDS)
    saved = ([UUID(run_id)], [1], [2], ["completed"], [0])
    await psycopg.AsyncRawCursor(stepped.connection).execute(load("batch")["save_runs"].sql, saved)
    assert await stepped.query("SELECT finished_at = updated_at AND finished_at > now() FROM run") == [(True,)]
