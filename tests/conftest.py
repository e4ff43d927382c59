"""Services for the tests: each is started when the first test asks for it, and shared by the session.

    postgres          a real Postgres          database    a migrated database of the test's own, as a DSN
    kafka             a real Apache Kafka      topic_prefix  keeps one test's topics apart from another's
    embedded_broker   the log of `headrace dev`

They end with the session, also when pytest is killed: see `headrace.embedded.reaper`.
"""

import importlib
import os
import uuid
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

from headrace.embedded.broker import EmbeddedBroker
from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.kafka import ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from tests.caller import TOKEN

os.environ["HEADRACE_API_LOCAL_TOKEN"] = TOKEN
TEMPLATE = "headrace_template"
SESSION_TIMEOUT_MS = 3_000
HEARTBEAT_MS = 500
ADMIN_SECONDS = 10.0
if "CI" in os.environ:
    # Examples are the same every time there; but they draw constants of whichever modules happen to be loaded.
    _constants = providers._local_constants
    providers._get_local_constants = lambda: _constants


@pytest.fixture(scope="session")
def postgres() -> Generator[EmbeddedPostgres]:
    """One real server for the session, durable as in production; HEADRACE_TEST_PG_BIN names other binaries."""
    binaries = os.environ.get("HEADRACE_TEST_PG_BIN")
    with EmbeddedPostgres(bin_dir=Path(binaries) if binaries else None) as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Generator[ApacheKafka]:
    """One real broker for the session, whose groups notice a dead consumer within three seconds."""
    jars = fetch_jars()
    with ApacheKafka(
        jars, heap="512m", session_timeout_ms=SESSION_TIMEOUT_MS, heartbeat_interval_ms=HEARTBEAT_MS
    ) as broker:
        yield broker


@pytest.fixture(scope="session")
def embedded_broker() -> Generator[EmbeddedBroker]:
    """One embedded log for the session; make topics with more than four partitions by `create_topics`."""
    with EmbeddedBroker(session_timeout_ms=SESSION_TIMEOUT_MS, heartbeat_ms=HEARTBEAT_MS) as broker:
        yield broker


@pytest.fixture(scope="session")
def database_template(postgres: EmbeddedPostgres) -> str:
    """The name of a database into which every migration has run; nothing may stay connected to it."""
    migrate: Callable[[str], list[str]] = importlib.import_module("state.migrate").migrate
    create_database(postgres.dsn, TEMPLATE)
    migrate(postgres.dsn_of(TEMPLATE))
    return TEMPLATE


@pytest.fixture
def database(postgres: EmbeddedPostgres, database_template: str) -> Generator[str]:
    """The DSN of a migrated database that only this test uses."""
    name = f"test_{uuid.uuid4().hex}"
    create_database(postgres.dsn, name, database_template)
    yield postgres.dsn_of(name)
    if postgres.is_running:  # otherwise the test killed it, and it goes with its data
        drop_database(postgres.dsn, name)


@pytest.fixture(scope="module")
def database_of_module(postgres: EmbeddedPostgres, database_template: str) -> Generator[str]:
    """The DSN of a migrated database that only this module uses."""
    name = f"test_{uuid.uuid4().hex}"
    create_database(postgres.dsn, name, database_template)
    yield postgres.dsn_of(name)
    if postgres.is_running:
        drop_database(postgres.dsn, name)


@pytest.fixture
def empty_database(postgres: EmbeddedPostgres) -> Generator[str]:
    """The DSN of a database with nothing in it."""
    name = f"test_{uuid.uuid4().hex}"
    create_database(postgres.dsn, name)
    yield postgres.dsn_of(name)
    if postgres.is_running:  # otherwise the test killed it, and it goes with its data
        drop_database(postgres.dsn, name)


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> Generator[str]:
    """A prefix for this test's topics and groups; on a real broker its topics are deleted afterwards."""
    prefix = f"t{uuid.uuid4().hex[:12]}"
    yield prefix
    if "kafka" in request.fixturenames:
        delete_topics(request.getfixturevalue("kafka"), prefix)


def delete_topics(kafka: ApacheKafka, prefix: str) -> None:
    from confluent_kafka.admin import AdminClient

    if not kafka.is_running:
        return
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    names = [name for name in admin.list_topics(timeout=ADMIN_SECONDS).topics if name.startswith(prefix)]
    if names:
        for deleted in admin.delete_topics(names, request_timeout=ADMIN_SECONDS).values():
            deleted.result(ADMIN_SECONDS)
