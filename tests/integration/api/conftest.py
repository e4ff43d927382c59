"""The API on a real Postgres, in this process; and a stand-in for the run agent that applies events one by one."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import psycopg
import pytest
from fastapi import FastAPI
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from api.app import create_app
from api.settings import ApiSettings
from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.machine import (
    Cancelled,
    Decided,
    Isolated,
    MachineEvent,
    Migrated,
    Paused,
    Prioritised,
    Released,
    Replayed,
    Reran,
    Resumed,
    Signalled,
    Supplied,
    Terminated,
    advance,
)
from headrace.machine.status import AWAITS_PERMIT, PAUSED
from headrace.messages import Admitted, Error, Failed, Started, Succeeded
from state.plans import Plans
from state.pools import grant_slots
from state.store import Rows, Store, StoredRun, execute_sync
from streams.database import Database
from streams.permits import Permits
from streams.run_cache import RunCache, signal_of
from tests.caller import HEADERS

SECRET = "a secret of sixteen characters"


class Engine:
    """Applies events to runs as the run agent does, each in a transaction of its own."""

    def __init__(self, dsn: str, settings: ApiSettings) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.store, self.plans, self.database = Store(settings), Plans(), Database(dsn)

    def load(self, run_id: str) -> StoredRun:
        key, cache = run_id.encode(), RunCache(self.database, self.plans)
        cache.load({key})
        run = cache.get(key)
        assert run is not None
        return run

    def apply(self, run_id: str, event: MachineEvent) -> bool:
        """Whether it changed anything."""
        run = self.load(run_id)
        with self.connection.transaction():
            at = self.connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()
            assert at is not None
            transition = advance(run.plan, run, event, at[0])
            if transition is None:
                return False
            rows = Rows(self.store)
            rows.move(run, event, transition)
            execute_sync(self.connection, rows.calls())
        return True

    def complete(self, run_id: str, task: str, output: bytes = b"null") -> None:
        index, token = self._current(run_id, task)
        event = Succeeded(index, token, "", worker="host/1", started=1, finished=2, output=msgspec.Raw(output))
        assert self.apply(run_id, event)

    def start_body(self, run_id: str, task: str) -> None:
        index, token = self._current(run_id, task)
        session = "3b241101-e2bb-4255-8caf-4136c566a962"
        assert self.apply(run_id, Started(index, token, "", session=session, worker="host/1", started=1))

    def fail(self, run_id: str, task: str, *, retryable: bool = False) -> None:
        index, token = self._current(run_id, task)
        error = Error("ERROR", "it broke", retryable=retryable)
        assert self.apply(run_id, Failed(index, token, "", error, worker="host/1", started=1, finished=2))

    async def admit(self) -> None:
        """Grant what is free in every pool, and tell the runs."""
        async with await psycopg.AsyncConnection.connect(self.store.settings.postgres) as connection:
            granted = await grant_slots(connection, 100)
        for run_id, task, token in granted:
            assert self.apply(str(run_id), Admitted(task, token, ""))

    async def permit(self) -> None:
        """Give the permits of limits that are free, and tell the runs."""
        async with await psycopg.AsyncConnection.connect(self.store.settings.postgres, autocommit=True) as connection:
            await Permits(self.store).grant(connection)
        self.apply_requests()

    def isolate(self, run_id: str) -> None:
        assert self.apply(run_id, Isolated(Error("INTERNAL", "deciding an event raised")))

    def _current(self, run_id: str, task: str) -> tuple[int, int]:
        run = self.load(run_id)
        place = run.plan.find(task)
        assert place is not None
        return place, run.task(place).token

    def apply_requests(self) -> list[str]:
        """Apply what waits in the inbox, in order; answers the kinds."""
        rows = self.connection.execute(
            "SELECT inbox_id, run_id, kind, body::text, actor FROM inbox WHERE applied_at IS NULL ORDER BY inbox_id"
        ).fetchall()
        for inbox_id, run_id, kind, body, actor in rows:
            self.apply(str(run_id), self._event(inbox_id, kind, body, actor))
            self.connection.execute("UPDATE inbox SET applied_at = now() WHERE inbox_id = %s", (inbox_id,))
        return [row[2] for row in rows]

    def _event(self, inbox_id: Any, kind: str, body: str, actor: str) -> MachineEvent:
        given = msgspec.json.decode(body)
        if "version_id" in given:
            plan = RunCache(self.database, self.plans).plan(given["version_id"])
            assert plan is not None
            if kind == "migrated":
                return Migrated(plan, given["reason"], actor, given.get("resumes", 0))
            return msgspec.structs.replace(_event(kind, body, actor), plan=plan)
        return self._signal(inbox_id) if kind == "signalled" else _event(kind, body, actor)

    def _signal(self, signal_id: Any) -> Signalled:
        row = self.connection.execute(
            "SELECT signal_id, name, key, data::text, actor, 0, offered_task, coalesce(offered_token, 0) "
            "FROM signal WHERE signal_id = %s",
            (signal_id,),
        ).fetchone()
        assert row is not None
        return signal_of(*row)

    def count(self, table: str) -> int:
        row = self.connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)))
        return int(row.fetchall()[0][0])


def _event(kind: str, body: str, actor: str) -> MachineEvent:
    class Body(msgspec.Struct):
        task: int = 0
        token: int = 0
        outcome: str = ""
        comment: str = ""
        reason: str = ""
        scope: int = PAUSED
        row_version: int = 0
        priority: int = 0
        tasks: tuple[int, ...] = ()
        output: msgspec.Raw = msgspec.Raw(b"null")
        votes: msgspec.Raw = msgspec.Raw(b"[]")
        form: msgspec.Raw = msgspec.Raw(b"null")
        input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    given = msgspec.json.decode(body, type=Body)
    if kind == "cancelled":
        return Cancelled(given.reason, actor)
    if kind == "terminated":
        return Terminated(given.reason, actor)
    if kind == "supplied":
        return Supplied(given.task, given.token, bytes(given.output), given.reason, actor)
    if kind == "reran":
        raw = None if isinstance(given.input, msgspec.UnsetType) else bytes(given.input)
        return Reran(given.row_version, given.tasks, raw, given.reason, actor)
    if kind in ("paused", "resumed"):
        return (Paused if kind == "paused" else Resumed)(given.scope, given.reason, actor, given.task)
    if kind == "permitted":
        return Resumed(AWAITS_PERMIT)
    if kind == "prioritised":
        return Prioritised(given.priority, given.reason, actor)
    if kind == "released":
        return Released(actor)
    if kind == "decided":
        votes, form = bytes(given.votes), bytes(given.form)
        return Decided(given.task, given.token, given.outcome, actor, given.comment, votes, form)
    raw = None if isinstance(given.input, msgspec.UnsetType) else bytes(given.input)
    return Replayed(given.task, given.token, actor, raw)


class Api(httpx.AsyncClient):
    """A caller of the API; what it sends and gets back is JSON."""

    async def publish(self, text: str) -> dict[str, Any]:
        response = await self.post("/workflows", content=text, headers={"content-type": "application/yaml"})
        assert response.status_code in (200, 201), response.text
        return dict(response.json())

    async def start(self, workflow: str, input: Any = None, **others: Any) -> str:
        response = await self.post(f"/workflows/{workflow}/runs", json={"input": input, **others})
        assert response.status_code in (200, 201), response.text
        return str(response.json()["run_id"])

    async def read(self, path: str, **query: Any) -> Any:
        response = await self.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    async def pages(self, path: str, **query: Any) -> list[list[Any]]:
        """Every page of a list."""
        pages, token = list[list[Any]](), None
        while True:
            content = await self.read(path, **query, **({} if token is None else {"page": token}))
            pages.append(content["items"])
            token = content["next"]
            if token is None:
                return pages


ORDERS = """
name: orders
tasks:
  validate: { run: orders.validate }
  charge: { run: payments.charge, needs: validate, with: { total: "${{ tasks.validate.output.total }}" } }
  notify: { run: mail.notify, needs: charge }
"""
RELEASE = """
name: release
tasks:
  build: { run: ci.build }
  ask: { needs: build, approval: { title: "Ship it?", approvers: ["role:lead"], expires: 2d } }
  ship: { run: ci.ship, needs: ask }
"""


@pytest.fixture(scope="session")
def shared_database(postgres: EmbeddedPostgres, database_template: str) -> Generator[str]:
    create_database(postgres.dsn, "test_api", database_template)
    yield postgres.dsn_of("test_api")
    if postgres.is_running:
        drop_database(postgres.dsn, "test_api")


@pytest.fixture
def database(shared_database: str) -> str:
    """A migrated database with nothing in it. Emptied, not copied: a copy takes a second."""
    with psycopg.connect(shared_database) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'schema_migration'"
        ).fetchall()
        for (table,) in tables:
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
    return shared_database


@pytest.fixture
def settings(database: str) -> ApiSettings:
    return ApiSettings(postgres=database, secret=SECRET, api_pool_size=8)  # type: ignore[arg-type]  # made a SecretStr


@pytest.fixture
async def app(settings: ApiSettings) -> AsyncGenerator[FastAPI]:
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        yield app


@asynccontextmanager
async def client(app: FastAPI) -> AsyncGenerator[Api]:
    async with Api(
        transport=httpx.ASGITransport(app),
        base_url="http://127.0.0.1",
        timeout=20,
        headers={**HEADERS, "Headrace-Roles": "lead"},
    ) as api:
        yield api


@pytest.fixture
async def api(app: FastAPI) -> AsyncGenerator[Api]:
    async with client(app) as api:
        yield api


@pytest.fixture
def engine(database: str, settings: ApiSettings) -> Generator[Engine]:
    engine = Engine(database, settings)
    yield engine
    engine.connection.close()
    engine.database.close()


class Wire:
    """A TCP path to Postgres that a test can cut and join again."""

    def __init__(self, dsn: str) -> None:
        self.to = conninfo_to_dict(dsn)
        self.is_cut = False
        self.server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()

    async def open(self, dsn: str) -> str:
        self.server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        return make_conninfo(dsn, host="127.0.0.1", hostaddr="127.0.0.1", port=port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.close()
            return
        host, port = str(self.to.get("host", "127.0.0.1")), self.to.get("port", 5432)
        if host.startswith("/"):
            there, back = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            there, back = await asyncio.open_connection(host, int(str(port)))
        self.writers |= {writer, back}
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    def cut(self) -> None:
        self.is_cut = True
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def close(self) -> None:
        self.cut()
        if self.server is not None:
            self.server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while content := await reader.read(65536):
            writer.write(content)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def wire(database: str) -> AsyncGenerator[Wire]:
    wire = Wire(database)
    yield wire
    await wire.close()


@pytest.fixture
def definitions() -> dict[str, str]:
    return {"orders": ORDERS, "release": RELEASE}
