"""A database whose clock can be stepped, while the machine's stays as it is.

`now()` and `clock_timestamp()` of a schema that is looked at before `pg_catalog` add what the clock is ahead. Every
statement that names them without a schema asks the stepped clock, and so does every default of a column, when the
schema was there before the table. A transaction keeps the `now()` it began with, as it does in Postgres, and others see
the same of it in `pg_stat_activity`.
"""

from typing import Final, LiteralString

import psycopg

SCHEMA: Final[LiteralString] = """
CREATE SCHEMA skew;
CREATE TABLE skew.step (since timestamptz NOT NULL, ahead interval NOT NULL);
INSERT INTO skew.step VALUES ('-infinity', '0 s');
CREATE FUNCTION skew.at(instant timestamptz) RETURNS timestamptz STABLE LANGUAGE sql
  RETURN instant + (SELECT ahead FROM skew.step WHERE since <= instant ORDER BY since DESC LIMIT 1);
CREATE FUNCTION skew.now() RETURNS timestamptz STABLE LANGUAGE sql RETURN skew.at(pg_catalog.now());
CREATE FUNCTION skew.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
  RETURN skew.at(pg_catalog.clock_timestamp());
CREATE VIEW skew.pg_stat_activity AS
  SELECT datname, pid, backend_type, backend_xid, skew.at(xact_start) AS xact_start FROM pg_catalog.pg_stat_activity;
DO $$ BEGIN
  EXECUTE format('ALTER DATABASE %I SET search_path = public, skew, pg_catalog', current_database());
END $$
"""
STEP: Final[LiteralString] = "INSERT INTO skew.step VALUES (pg_catalog.clock_timestamp(), make_interval(secs => %s))"


class SteppingClock:
    """The clock of one database, to be made before the database is migrated."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._run(SCHEMA)

    def set_ahead(self, seconds: float) -> None:
        """Step: from here on the database's clock is so far ahead of the machine's, or behind it when negative."""
        self._run(STEP, seconds)

    def _run(self, statement: LiteralString, *parameters: float) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(statement, parameters or None)
