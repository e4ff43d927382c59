"""Connections to Postgres for the relay's own small statements, and the parameters that all its connections share."""

from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

TCP_PROBES: Final[dict[str, Any]] = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""libpq parameters: a peer that vanished without a word is noticed in about ten seconds."""
STATEMENT_TIMEOUT: Final = "3s"
"""Below the lease: a relay that waits for a statement must still be able to give up in time."""


def describe(postgres: str, application_name: str) -> str:
    """Complete a connection string or URL: who we are, how a dead peer is found out, and that text is UTF-8."""
    return make_conninfo(postgres, application_name=application_name, client_encoding="utf8", **TCP_PROBES)


def connect(postgres: str, application_name: str) -> psycopg.Connection[tuple[Any, ...]]:
    """An ordinary connection in autocommit. Raises psycopg.OperationalError."""
    connection = psycopg.connect(describe(postgres, application_name), autocommit=True)
    connection.execute("SELECT set_config('statement_timeout', %s, false)", (STATEMENT_TIMEOUT,))
    return connection
