"""A desk: the API, a run agent that a test drives by hand, and the outbox as the relay would read it."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import psycopg
from prometheus_client import CollectorRegistry
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from api.app import create_app
from api.settings import ApiSettings
from headrace.messages import (
    Command,
    Error,
    Event,
    Failed,
    Requested,
    Succeeded,
    decode_command,
    encode,
    make_nonce,
)
from state.bulk_steps import step
from state.outbox import Record, unbundle
from state.plans import Plans
from state.store import Rows, Store, execute_sync
from streams.batch import Batch
from streams.clock import DatabaseClock
from streams.database import Database
from streams.metrics import Metrics
from streams.ownership import Ownership
from streams.run_agent import RunAgent
from streams.run_cache import RunCache
from tests.caller import HEADERS

SECRET = "0123456789abcdef"
EVENTS = "headrace.events"
ORDERS = {
    "name": "orders",
    "tasks": {
        "validate": {"run": "orders.validate", "retry": {"attempts": 1}},
        "charge": {
            "run": "payments.charge",
            "needs": ["validate"],
            "retry": {"attempts": 2, "delay": 0, "jitter": 0},
            "with": {"total": "${{ tasks.validate.output.total }}", "order": "${{ input.id }}"},
        },
    },
}


class Message:
    """A record as the transport hands it out."""

    def __init__(self, topic: str, offset: int, key: bytes, value: bytes | None, headers: Any = ()) -> None:
        self._fields = (topic, offset, key, value, list(headers))

    def topic(self) -> str:
        return self._fields[0]

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._fields[1]

    def key(self) -> bytes:
        return self._fields[2]

    def value(self) -> bytes | None:
        return self._fields[3]

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._fields[4]


class Desk:
    """The API, a run agent that is handed records by the test, and the outbox as the relay would read it."""

    def __init__(self, dsn: str, api: httpx.AsyncClient, settings: ApiSettings) -> None:
        self.dsn, self.api, self.store = dsn, api, Store(settings)
        self.database = Database(dsn)
        self.ownership = Ownership(self.database, "one")
        plans, self.clock, self.metrics = Plans(), DatabaseClock(self.database), Metrics(CollectorRegistry())
        cache = RunCache(self.database, plans)
        self.agent = RunAgent(self.store, self.ownership, self.database, cache, self.clock, self.metrics)
        self.plans = plans
        self.epoch = self.next = 0

    @property
    def slot(self) -> str:
        return f"letters_{conninfo_to_dict(self.dsn)['dbname']}"

    def query(self, sql: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    # -- Kafka
    def published(self, topic: str) -> list[Record]:
        """What was left in the outbox for a topic since the last look; the rest of it is thrown away."""
        rows = self.query(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', 'headrace_outbox', 'messages', 'true') WHERE get_byte(data, 0) = 77",
            self.slot,
        )
        contents = [bytes(data) for (data,) in rows]
        records = [r for content in contents for r in unbundle(content[content.index(b"headrace\0") + 13 :])]
        return [record for record in records if record.topic == topic]

    def commands(self) -> list[Command]:
        return [decode_command(record.value) for record in self.published("headrace.commands.default")]

    async def apply(self, *records: tuple[str, Event]) -> None:
        """Let the run agent read these records."""
        messages = [
            Message(EVENTS, self.next + n, key.encode(), encode(event)) for n, (key, event) in enumerate(records)
        ]
        self.next += len(messages)
        batch = Batch(EVENTS, "log", {0: messages}, {0: self.epoch})  # type: ignore[dict-item]
        await asyncio.wait_for(self.agent(batch), 15)

    async def apply_requests(self) -> int:
        rows = self.query("SELECT run_id, inbox_id FROM inbox WHERE applied_at IS NULL ORDER BY inbox_id")
        await self.apply(*[(str(run_id), Requested(str(inbox_id))) for run_id, inbox_id in rows])
        return len(rows)

    # -- a worker
    def hand_out(self, run_id: str, task: int = 0, token: int | None = None) -> tuple[int, int, str]:
        """Task, token and nonce of its latest hand-out, or of another."""
        if token is None:
            token = int(self.query("SELECT token FROM task WHERE run_id = %s AND task = %s", run_id, task)[0][0])
        return task, token, make_nonce(self.store.secret, run_id.encode(), task, token)

    async def succeed(self, run_id: str, task: int = 0, output: bytes = b"null") -> None:
        answer = Succeeded(*self.hand_out(run_id, task), worker="host/1", output=msgspec.Raw(output))
        await self.apply((run_id, answer))

    async def fail(self, run_id: str, task: int = 0, message: str = "it broke", **error: Any) -> None:
        """Let the body raise until no try is left."""
        while self.query(
            "SELECT 1 FROM task WHERE run_id = %s AND task = %s AND status IN ('queued', 'running')", run_id, task
        ):
            failed = Failed(*self.hand_out(run_id, task), Error("ERROR", message, **error), worker="host/1")
            await self.apply((run_id, failed))

    # -- people
    async def read(self, path: str, **query: Any) -> Any:
        response = await self.api.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    async def letters(self, **query: Any) -> list[dict[str, Any]]:
        return list((await self.read("/dead-letters", **query))["items"])

    async def post(self, path: str, body: Any = None, *, who: str = "ana", status: int = 202) -> dict[str, Any]:
        response = await self.api.post(path, json=body or {}, headers={"Headrace-Actor": who})
        assert response.status_code == status, response.text
        return dict(response.json())

    async def start(self, input: Any = None, workflow: str = "orders") -> str:
        answer = await self.post(f"/workflows/{workflow}/runs", {"input": input or {}}, status=201)
        return str(answer["run_id"])

    async def bury(self, count: int = 1, message: str = "it broke") -> list[tuple[str, str]]:
        """Runs whose first task fails for good: (run id, dead letter id), oldest first."""
        made = []
        for n in range(count):
            run_id = await self.start({"id": n})
            await self.fail(run_id, message=message)
            ((id_,),) = self.query("SELECT dead_letter_id FROM dead_letter WHERE run_id = %s", run_id)
            made.append((run_id, str(id_)))
        return made

    def bury_record(self, value: bytes, offset: int = 7, topic: str = "shop.orders", **more: Any) -> str:
        """Set a record aside, as the agents do."""
        rows = Rows(self.store)
        rows.bury_record("default", None, topic, 0, offset, b"k", value, "not JSON: at byte 3", **more)
        with psycopg.connect(self.dsn) as connection:
            execute_sync(connection, rows.calls())
        return str(self.query("SELECT dead_letter_id FROM dead_letter ORDER BY dead_letter_id DESC LIMIT 1")[0][0])

    # -- the sweep
    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            yield connection

    async def step(self) -> int:
        async with self.connection() as connection, connection.transaction():
            return await step(connection, self.store, self.plans)

    async def step_until_over(self, replay_id: str, seconds: float = 30) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while (progress := await self.read(f"/dead-letters/replays/{replay_id}"))["status"] == "running":
            assert time.monotonic() < deadline, progress
            if not await self.step():
                await asyncio.sleep(0.01)
        return dict(progress)


DeskType = TypeVar("DeskType", bound=Desk)


@asynccontextmanager
async def open_desk(
    kind: type[DeskType], dsn: str, *workflows: dict[str, Any], **settings: Any
) -> AsyncGenerator[DeskType]:
    """A desk of that kind on a database of its own, with these workflows published."""
    wanted = ApiSettings(postgres=dsn, secret=SecretStr(SECRET), api_pool_size=8, **settings)
    app = create_app(wanted)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers=HEADERS, timeout=20
        ) as api,
    ):
        made = kind(dsn, api, wanted)
        made.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", made.slot)
        made.epoch = (await made.ownership.lease(EVENTS, "log", [0]))[0][0]
        for workflow in workflows:
            response = await api.post("/workflows", json=workflow)
            assert response.status_code == 201, response.text
        yield made
        made.agent.close()
        made.database.close()
        made.query("SELECT pg_drop_replication_slot(%s)", made.slot)


SWEEP = """
import asyncio, sys, psycopg
from pydantic import SecretStr
from state.bulk_steps import step
from state.plans import Plans
from state.settings import EngineSettings
from state.store import Store

async def main():
    store = Store(EngineSettings(postgres=sys.argv[1], secret=SecretStr(sys.argv[2])))
    async with await psycopg.AsyncConnection.connect(sys.argv[1], autocommit=True) as connection:
        while True:
            async with connection.transaction():
                await step(connection, store, Plans())
            await asyncio.sleep(0.005)

asyncio.run(main())
"""


@contextmanager
def sweeps(desk: Desk) -> Generator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Start processes that carry bulks out; killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", SWEEP, desk.dsn, SECRET]
        started.append(subprocess.Popen(command, cwd=Path(__file__).parents[2]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
