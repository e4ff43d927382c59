"""Make and drop databases on an embedded server; needs psycopg, of the engine extra."""

import time
from typing import LiteralString

import psycopg
from psycopg import errors, sql

DROP_SECONDS = 10.0
"""How long a drop tries again when a relay takes its slot back in between."""

# A slot belongs to one database and refuses its drop; a walsender lets go of its slot a moment after it is terminated.
END_RELAYS: LiteralString = """
SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s AND active_pid IS NOT NULL
"""
DROP_SLOTS: LiteralString = """
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s AND NOT active
"""


def create_database(dsn: str, name: str, template: str = "template1") -> None:
    """Copy `template`, to which nobody may be connected. dsn: any other database of the server."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


def drop_database(dsn: str, name: str) -> None:
    """Drop it with its logical slots, whoever is connected; nothing happens when there is none.

    Raises psycopg's ObjectInUse when a slot is taken again and again for DROP_SECONDS.
    """
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    give_up_at = time.monotonic() + DROP_SECONDS
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            try:
                connection.execute(END_RELAYS, [name])
                connection.execute(DROP_SLOTS, [name])
                connection.execute(statement)
                return
            except (errors.ObjectInUse, errors.UndefinedObject):
                if time.monotonic() > give_up_at:
                    raise
