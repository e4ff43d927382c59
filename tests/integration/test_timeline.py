"""What the engine makes of a database that is on another timeline than the one it noted last: rows say so in these
tests. `tests/faults/test_failover.py` promotes a real standby under a whole engine."""

import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from uuid_utils import uuid7

from connectors.ownership import Ownership
from state.timeline import TOKENS_OF_AN_EPOCH, Timeline, find_timeline, read_timeline
from tests.faults.starts import eventually, query
from tests.integration.test_run_agent import Engine
from tests.integration.test_sweeps import Yard

PREDECESSOR = "UPDATE timeline SET number = number - 1"
"""What a promoted standby finds: a row of the timeline that its own comes after."""
NOTED = "SELECT epoch, token_floor, lost_records FROM timeline ORDER BY epoch"


def read(dsn: str) -> Timeline:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return read_timeline(connection)


def test_the_first_timeline_has_no_floor(database: str):
    assert read(database)[:2] == (0, 0)
    assert read(database)[:2] == (0, 0)
    assert query(database, NOTED) == [(0, 0, 0)]


def test_another_timeline_raises_the_epoch_once_whoever_notes_it(database: str):
    read(database)
    query(database, PREDECESSOR)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(read, [database] * 8))
    assert {(epoch, floor) for epoch, floor, _ in found} == {(1, TOKENS_OF_AN_EPOCH)}
    assert query(database, NOTED) == [(0, 0, 0), (1, TOKENS_OF_AN_EPOCH, 0)]


def test_a_timeline_between_that_this_database_never_saw_has_its_epoch_too(database: str):
    read(database)
    query(database, "UPDATE timeline SET number = number - 2")
    assert read(database).epoch == 2


def test_another_cluster_is_another_timeline_whatever_its_number(database: str):
    read(database)
    query(database, "UPDATE timeline SET system_identifier = 1, number = 17")
    assert read(database).epoch == 1


async def test_both_ways_to_ask_answer_the_same(database: str):
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        first = await find_timeline(connection)
    assert read(database) == first


# == the relay =========================================================================================================
def test_a_position_is_not_recorded_on_another_timeline_than_it_was_reached_on(database: str):
    """Numerically it may lie far ahead there, and all that is before it would never be read."""
    ownership = Ownership(database, "s", "relay", lease_seconds=60.0)
    try:
        assert ownership.claim()
        query(database, "UPDATE relay_owner SET timeline = timeline - 1, acked_lsn = '0/10'")
        ownership.delivered = 2**60
        eventually(lambda: not ownership.is_held(), "the hold is lost", 10)
        assert query(database, "SELECT acked_lsn::text FROM relay_owner") == [("0/10",)]
        assert ownership.claim()
        assert (ownership.delivered, ownership.recorded) == (16, 16)
    finally:
        ownership.close()


# == the run agent =====================================================================================================
async def test_a_late_answer_about_a_run_that_was_removed_is_no_lost_future(database: str):
    read(database)
    query(database, PREDECESSOR)
    engine = Engine(database, timeline_of=lambda pipe: pipe.timeline)
    try:
        await engine.lease()
        lost, removed = str(uuid7()), str(uuid7(nanoseconds=time.time_ns() - 3600 * 10**9))
        await engine.apply(engine.succeeded(removed), engine.succeeded(lost))
        assert lost_records(database) == 2
        query(database, "INSERT INTO watermark VALUES ('retention', now() - interval '1 minute')")
        await engine.apply(engine.succeeded(removed), engine.succeeded(lost))
        assert lost_records(database) == 3
    finally:
        engine.close()


def lost_records(database: str) -> int:
    return int(query(database, "SELECT lost_records FROM timeline ORDER BY epoch DESC LIMIT 1")[0][0])


# == the sweep =========================================================================================================
@pytest.fixture
async def yard(database: str) -> AsyncIterator[Yard]:
    """The database has failed over."""
    read(database)
    query(database, PREDECESSOR)
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        made = Yard(database, connection)
        await made.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", made.slot)
        yield made


async def strays(yard: Yard) -> list[tuple[str, int, int]]:
    """What workers are told to stop, by one pass."""
    await yard.sweeps._stop_strays(yard.connection)
    said = [(run_id, order["task"], order["token"]) for run_id, order in await yard.said("control")]
    return sorted(said)


async def test_what_no_hand_out_of_this_database_explains_is_told_to_stop(yard: Yard):
    known, unknown = await yard.start(), str(uuid4())
    await yard.session((known, 0, 1), (known, 0, 2), (unknown, 0, 1))
    assert await strays(yard) == [], "its transaction may only not be visible yet"
    wrong = sorted([(known, 0, 2), (unknown, 0, 1)])
    assert await strays(yard) == wrong
    assert await strays(yard) == wrong, "until it is no longer listed"
    await yard.query("DELETE FROM held_task")
    assert await strays(yard) == []


async def test_what_became_visible_meanwhile_is_no_stray(yard: Yard):
    run_id = await yard.start()
    await yard.session((run_id, 0, 2))
    assert await strays(yard) == []
    await yard.query("UPDATE task SET token = 2")
    assert await strays(yard) == []
    assert await strays(yard) == []


async def test_a_database_that_never_failed_over_has_no_strays(database: str):
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        yard = Yard(database, connection)
        await yard.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", yard.slot)
        await yard.session((str(uuid4()), 0, 1))
        assert await strays(yard) == []
        assert await strays(yard) == []
