"""The connection that sweeps share: one at a time, made anew when it was lost, closed when nobody needs it."""

import asyncio

import psycopg
import pytest

from streams.lane import Connection, Lane


async def backend(connection: Connection) -> int:
    (found,) = await (await connection.execute("SELECT pg_backend_pid()")).fetchone() or (0,)
    return int(found)


async def test_those_who_share_a_lane_have_one_connection_one_behind_the_other(database: str) -> None:
    lane, inside, most, seen = Lane(database), 0, 0, set[int]()

    async def work() -> None:
        nonlocal inside, most
        async with lane.enter() as connection:
            inside += 1
            most = max(most, inside)
            seen.add(await backend(connection))
            inside -= 1

    await asyncio.gather(*(work() for _ in range(5)))
    await lane.close()
    assert (most, len(seen)) == (1, 1)


async def test_a_connection_that_was_lost_fails_who_is_in_and_the_next_has_another(database: str) -> None:
    lane = Lane(database)
    async with lane.enter() as connection:
        first = await backend(connection)
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        await other.execute("SELECT pg_terminate_backend(%s)", (first,))
    with pytest.raises(psycopg.OperationalError):
        async with lane.enter() as connection:
            await backend(connection)
    async with lane.enter() as connection:
        assert await backend(connection) != first
    await lane.close()


async def test_a_failure_in_the_middle_of_a_transaction_leaves_nothing_to_the_next(database: str) -> None:
    lane = Lane(database)

    async def begin_and_die() -> None:
        async with lane.enter() as connection:
            await connection.execute("BEGIN")
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await begin_and_die()
    async with lane.enter() as connection:
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    await lane.close()


async def test_a_lane_is_closed_but_not_under_somebody(database: str) -> None:
    lane = Lane(database)
    async with lane.enter() as connection:
        await lane.close()
        assert not connection.closed
    await lane.close()
    assert connection.closed
