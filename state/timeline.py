"""Which history of itself the database is on, and from where tokens are counted in it.

A standby that was promoted, or a backup that was restored, may lack what was committed last, while workers and Kafka
have heard of it: the lost future. Postgres gives each history a number of its own (manual, "Timelines"). One that is
new is noted here, by whoever connects first, and raises the epoch; every hand-out from then on has a token above the
floor of its epoch. So no token is given twice, and what a lost future handed out is refused by its token, like anything
stale.

A server that accepts writes stays on one timeline as long as a connection to it lasts, and a standby that is not
promoted yet refuses to answer. So it is enough to ask once for each connection.
"""

from typing import Any, Final, NamedTuple

import psycopg
import structlog

from state.sql import load

TOKENS_OF_AN_EPOCH: Final = 100_000
"""More hand-outs than one task gets between two failovers. Tokens are 32 bits wide: room for 21,000 failovers."""
_SQL: Final = load("timeline")
_log = structlog.get_logger(__name__)


class Timeline(NamedTuple):
    epoch: int
    """0 on the one that the database was made on."""
    token_floor: int
    noted_at: float
    """Seconds since 1970, by the database's clock."""


FIRST: Final = Timeline(0, 0, 0.0)


def read_timeline(connection: psycopg.Connection[Any]) -> Timeline:
    """Answer the timeline that the server is on; notes one that is new. connection: in autocommit. Raises
    psycopg.OperationalError on a standby that was not promoted."""
    with psycopg.RawCursor(connection) as cursor:
        while True:
            row = cursor.execute(_SQL.text("read_timeline")).fetchone()
            if row is not None and row[3]:
                return Timeline(*row[:3])
            _say(cursor.execute(_SQL.text("note_timeline"), (TOKENS_OF_AN_EPOCH,)).fetchone())


async def find_timeline(connection: psycopg.AsyncConnection[Any]) -> Timeline:
    """The same, on the event loop."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        while True:
            row = await (await cursor.execute(_SQL.text("read_timeline"))).fetchone()
            if row is not None and row[3]:
                return Timeline(*row[:3])
            _say(await (await cursor.execute(_SQL.text("note_timeline"), (TOKENS_OF_AN_EPOCH,))).fetchone())


def _say(noted: Any) -> None:
    if noted is None or not noted[0]:  # somebody else noted it, or it is the first
        return
    epoch, system, number, until = noted
    _log.warning(
        "the database is on another timeline: it failed over, or was restored",
        epoch=epoch,
        system=system,
        timeline=number,
        taken_over_until=None if until is None else until.isoformat(),
    )
