"""Bring a database's schema up to date: forward only, safe to run from several processes at once.

python -m state.migrate            apply what is missing
python -m state.migrate --print    show it without running it
"""

import argparse
import re
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from headrace.errors import ConfigurationError
from state.settings import EngineSettings

FOLDER: Final = Path(__file__).parent / "migrations"
_NAME: Final = re.compile(r"^\d{4}_[a-z0-9_]+\.sql$")
# "HEADRACE" as a number: one advisory lock for all migrations of a database, so that processes that start together take
# turns.
_LOCK: Final = 0x4845414452414345
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS schema_migration (name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())
"""
_SESSION: Final = "SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', '60s', false)"


class Migration(NamedTuple):
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All migrations, in order. Raises ConfigurationError on a file whose name does not say its place."""
    files = sorted(FOLDER.glob("*.sql"))
    if wrong := [file.name for file in files if not _NAME.match(file.name)]:
        raise ConfigurationError(f"migrations are named NNNN_what_changes.sql, not {wrong}")
    return [Migration(file.stem, file.read_text(encoding="utf-8")) for file in files]


def pending(connection: psycopg.Connection) -> list[Migration]:
    """Those that this database has not seen yet. Needs the table of applied migrations."""
    done = {name for (name,) in connection.execute("SELECT name FROM schema_migration").fetchall()}
    return [migration for migration in migrations() if migration.name not in done]


def migrate(dsn: str) -> list[str]:
    """Apply what is missing and return the names applied, in order. Each migration is one transaction with its own
    record.

    Opens its own connection. Repeating it, also from several processes at once, applies each migration once.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_SESSION)
        connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        try:
            connection.execute(_TABLE)
            applied = []
            for migration in pending(connection):
                with connection.transaction():
                    connection.execute(migration.sql.encode())
                    connection.execute("INSERT INTO schema_migration (name) VALUES (%s)", (migration.name,))
                applied.append(migration.name)
            return applied
        finally:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m state.migrate", description=__doc__)
    parser.add_argument("--print", action="store_true", help="show the SQL of all migrations without running it")
    if parser.parse_args().print:
        for migration in migrations():
            print(f"-- {migration.name}\n{migration.sql}")
        return
    applied = migrate(EngineSettings().postgres)
    print("\n".join(f"applied {name}" for name in applied) or "up to date")


if __name__ == "__main__":
    main()
