"""One database for all tests here that need Postgres. Emptied before each, not copied: a copy takes a second."""

from collections.abc import AsyncIterator, Generator

import psycopg
import pytest
from psycopg import sql

from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.postgres import EmbeddedPostgres
from tests.conformance.world import World, world_on


@pytest.fixture(scope="session")
def cases_database(postgres: EmbeddedPostgres, database_template: str) -> Generator[str]:
    create_database(postgres.dsn, "test_cases", database_template)
    yield postgres.dsn_of("test_cases")
    if postgres.is_running:
        drop_database(postgres.dsn, "test_cases")


@pytest.fixture
def database(cases_database: str) -> str:
    """A migrated database with nothing in it."""
    with psycopg.connect(cases_database) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'schema_migration'"
        ).fetchall()
        for (table,) in tables:
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
    return cases_database


@pytest.fixture
async def world(database: str) -> AsyncIterator[World]:
    """With one process of agents and sweeps."""
    with world_on(database) as made:
        await made.streams()
        yield made
