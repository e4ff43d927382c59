"""The table the flights end in: in Postgres, or in one SQLite file."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

BUSY_SECONDS = 60.0


class Flight(NamedTuple):
    """One row, as text; an empty number is unknown."""

    carrier: str
    flown_on: str
    origin: str
    dest: str
    cancelled: str
    dep_delay: str
    arr_delay: str
    air_time: str
    distance: str


class Totals(TypedDict):
    """Of one carrier."""

    flights: int
    cancelled: int
    departure_delay: float
    """Mean minutes of those that departed."""
    arrival_delay: float
    """Mean minutes of those that arrived."""
    miles: int


TABLE = """
CREATE TABLE IF NOT EXISTS flight (
    run_id text, carrier text, flown_on date, origin text, dest text,
    cancelled integer, dep_delay integer, arr_delay integer, air_time integer, distance integer
)
"""
TOTALS = """
SELECT carrier, count(*), sum(cancelled), sum(dep_delay), count(dep_delay), sum(arr_delay), count(arr_delay),
       sum(distance)
FROM flight WHERE run_id = {} GROUP BY carrier ORDER BY carrier
"""


class Warehouse:
    """postgres: libpq URL; None for the SQLite file at `path`."""

    def __init__(self, postgres: str | None, path: Path) -> None:
        self._postgres, self._path = postgres, path
        self.name = "postgres" if postgres else str(path)

    def replace(self, run_id: str, flights: Iterable[Flight]) -> int:
        """Make these the flights of the run, in one transaction, and return how many they are."""
        return self._replace_in_postgres(run_id, flights) if self._postgres else self._replace_in_file(run_id, flights)

    def totals(self, run_id: str) -> dict[str, Totals]:
        """By carrier."""
        return {
            carrier: Totals(
                flights=flights,
                cancelled=cancelled,
                departure_delay=departure_sum / departures,
                arrival_delay=arrival_sum / arrivals,
                miles=miles,
            )
            for carrier, flights, cancelled, departure_sum, departures, arrival_sum, arrivals, miles in self._sums(
                run_id
            )
        }

    def _sums(self, run_id: str) -> list[Any]:
        if self._postgres:
            import psycopg

            with psycopg.connect(self._postgres) as connection:
                return connection.execute(TOTALS.format("%s"), (run_id,)).fetchall()
        with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS)) as connection:
            return connection.execute(TOTALS.format("?"), (run_id,)).fetchall()

    def _replace_in_file(self, run_id: str, flights: Iterable[Flight]) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                connection.execute(TABLE)
                connection.execute("DELETE FROM flight WHERE run_id = ?", (run_id,))
                done = connection.executemany(f"INSERT INTO flight VALUES (?{', ?' * 9})", _known(run_id, flights))  # noqa: S608
                return done.rowcount

    def _replace_in_postgres(self, run_id: str, flights: Iterable[Flight]) -> int:
        import psycopg

        with psycopg.connect(self._postgres or "") as connection, connection.cursor() as cursor:
            # An attempt that was given up on may be loading still: the second one waits, then takes out its rows.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"flights_etl {run_id}",))
            cursor.execute(TABLE)
            cursor.execute("DELETE FROM flight WHERE run_id = %s", (run_id,))
            with cursor.copy("COPY flight FROM STDIN") as copy:
                for row in _known(run_id, flights):
                    copy.write_row(row)
            return cursor.rowcount


def _known(run_id: str, flights: Iterable[Flight]) -> Iterator[tuple[str | None, ...]]:
    """Rows with NULL for what is unknown."""
    return ((run_id, *(value or None for value in flight)) for flight in flights)
