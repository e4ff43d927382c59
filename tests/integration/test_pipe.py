"""The connection of the hot path: what it says when it cannot be made ready."""

from collections.abc import Iterator

import psycopg
import pytest
from pydantic import SecretStr

from headrace.errors import UnavailableError
from state.pipe import Pipe
from state.settings import EngineSettings
from state.sql import Statement
from state.store import Store

STATEMENTS = list(Store(EngineSettings(secret=SecretStr("0123456789abcdef"))).statements())


def test_a_server_that_goes_away_while_statements_are_prepared_refuses_nothing(database: str) -> None:
    """It was taken for a refusal of the records that were to be applied, and a result that was there for a bad one."""

    def until_it_is_ended() -> Iterator[Statement]:
        yield from STATEMENTS[:3]
        with psycopg.connect(database, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        yield from STATEMENTS[3:]

    with pytest.raises(UnavailableError):
        Pipe(database, until_it_is_ended())


def test_a_statement_that_this_schema_does_not_take_refuses_nothing(database: str) -> None:
    with pytest.raises(UnavailableError, match="nowhere"):
        Pipe(database, [Statement("look", "SELECT 1 FROM nowhere")])
