"""The engine's parts on a real Postgres, without a process, a broker or a worker: the test is all of these.

    world = World(dsn)                     # one log per topic, in memory
    run_id = await world.start(LINE)
    await world.settle()                   # relay and agents, until nothing is left to read
    world.say(run_id, world.succeeded(run_id, "a"))

So a test says what arrives, when, how often and in which order; who dies between two statements; and how old a row is.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import msgspec
import psycopg
from prometheus_client import CollectorRegistry
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from api.app import create_app
from api.settings import ApiSettings
from headrace.graph import from_data
from headrace.messages import (
    Command,
    ControlMessage,
    Error,
    Failed,
    Heartbeat,
    Started,
    Succeeded,
    Tick,
    decode_command,
    decode_control_message,
    encode,
    make_nonce,
)
from state.outbox import Record, unbundle
from state.plans import Plans
from state.starts import start_run
from state.store import Store
from state.workflows import publish
from streams.backlog import Backlog
from streams.batch import Batch
from streams.clock import DatabaseClock
from streams.database import Database
from streams.metrics import Metrics
from streams.ownership import Ownership
from streams.run_agent import RunAgent
from streams.run_cache import RunCache
from streams.session_agent import SessionAgent
from streams.sweeps import Sweeps
from streams.topics import Log
from streams.trigger_agent import TriggerAgent
from tests.caller import HEADERS

EVENTS, WORKERS, CONTROL = "headrace.events", "headrace.workers", "headrace.control"
COMMANDS = "headrace.commands.default"
SECRET = "0123456789abcdef"
LEASE_SECONDS = 10.0
GIVE_UP_SECONDS = 20.0


class Kept(NamedTuple):
    """A record in a log; has the face that confluent-kafka gives one."""

    place: tuple[str, int]
    content: tuple[bytes | None, bytes | None, Any]

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.place[1]

    def key(self) -> bytes | None:
        return self.content[0]

    def value(self) -> bytes | None:
        return self.content[1]

    def headers(self) -> Any:
        return self.content[2]


class Streams:
    """What one process of `python -m streams` consists of."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        store, plans, metrics = world.store, Plans(), Metrics(CollectorRegistry())
        self.metrics, self.database = metrics, Database(world.dsn)
        self.ownership, clock = Ownership(self.database, name), DatabaseClock(self.database)
        self.runs = RunAgent(store, self.ownership, self.database, RunCache(self.database, plans), clock, metrics)
        self.sessions = SessionAgent(store, self.ownership, self.database, metrics)
        backlog = Backlog("", 0, metrics)
        self.triggers = TriggerAgent(store, self.ownership, self.database, plans, clock, metrics, backlog)
        self.sweeps = Sweeps(store, plans, world, metrics)  # type: ignore[arg-type]
        self.rebuilds: list[str] = []
        self._epochs: dict[str, int] = {}
        self._next: dict[str, int] = {}

    async def own(self, *topics: str) -> None:
        """Take these topics over, as after a rebalance."""
        for topic in topics or (EVENTS, WORKERS):
            granted = await self.ownership.lease(topic, self.world.topic_ids[topic], [0])
            self._epochs[topic], following = granted[0]
            self._next[topic] = following or 0

    async def read(self, topic: str, count: int | None = None) -> int:
        """Let the agent of this topic have what it has not read; answers how many records that were."""
        records = self.world.logs[topic][self._next[topic] :][:count]
        if records:
            self._next[topic] += len(records)
            await self._apply(topic, records)
        return len(records)

    async def read_again(self, topic: str, offset: int) -> None:
        """Deliver records that were delivered before."""
        await self._apply(topic, self.world.logs[topic][offset:])

    async def sweep(self, name: str) -> int:
        """One pass of a sweep; answers what it found."""
        async with self.world.connection() as connection:
            found: int = await getattr(self.sweeps, f"_{name}")(connection)
            return found

    def close(self) -> None:
        self.runs.close()
        self.database.close()

    async def _apply(self, topic: str, records: list[Kept]) -> None:
        async with asyncio.timeout(GIVE_UP_SECONDS):
            await self._agent(topic)(self._batch(topic, records))

    def _agent(self, topic: str) -> Any:
        return {EVENTS: self.runs, WORKERS: self.sessions}.get(topic, self.triggers)

    def _batch(self, topic: str, records: list[Kept]) -> Batch:
        batch = Batch(topic, self.world.topic_ids[topic], {0: records}, {0: self._epochs[topic]})  # type: ignore[dict-item]
        batch.on_rebuild = self.rebuilds.append
        return batch


class World:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.settings = ApiSettings(
            postgres=dsn, secret=SecretStr(SECRET), lease_seconds=LEASE_SECONDS, api_pool_size=8
        )
        self.store = Store(self.settings)
        self.logs: dict[str, list[Kept]] = defaultdict(list)
        self.topic_ids: dict[str, str] = defaultdict(lambda: "the first log")
        self.received = -1
        """How far workers have received the command topic."""
        self.processes: list[Streams] = []
        self._slot = f"cases_{conninfo_to_dict(dsn)['dbname']}"

    # -- life
    def open(self) -> None:
        self.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self._slot)

    def close(self) -> None:
        for process in self.processes:
            process.close()
        self.query("SELECT pg_drop_replication_slot(%s)", self._slot)

    async def streams(self, name: str = "one") -> Streams:
        """Another process, which takes the engine's topics over."""
        process = Streams(self, name)
        self.processes.append(process)
        await process.own()
        return process

    @property
    def one(self) -> Streams:
        """The process that came last."""
        return self.processes[-1]

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            yield connection

    @asynccontextmanager
    async def api(self) -> AsyncGenerator[httpx.AsyncClient]:
        app = create_app(self.settings)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers=HEADERS, timeout=20
            ) as client,
        ):
            yield client

    # -- Postgres
    def query(self, sql: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def tasks(self, run_id: str) -> list[tuple[str, int, int]]:
        """(status, attempt, token) of every task that was ever handed out, in the order of the graph."""
        return self.query("SELECT status::text, attempt, token FROM task WHERE run_id = %s ORDER BY task", run_id)

    def status(self, run_id: str) -> str:
        return str(self.query("SELECT status::text FROM run WHERE run_id = %s", run_id)[0][0])

    def attempts(self, run_id: str) -> list[tuple[int, str]]:
        return self.query("SELECT attempt, outcome FROM attempt WHERE run_id = %s ORDER BY task, token", run_id)

    def reason(self, run_id: str) -> str:
        """The code of the error of its failed task."""
        rows = self.query("SELECT error ->> 'code' FROM task WHERE run_id = %s AND status = 'failed'", run_id)
        return str(rows[0][0])

    def has_gapless_history(self, run_id: str) -> bool:
        rows = self.query("SELECT DISTINCT row_version FROM run_event WHERE run_id = %s ORDER BY 1", run_id)
        last = self.query("SELECT row_version FROM run WHERE run_id = %s", run_id)
        return [version for (version,) in rows] == list(range(1, last[0][0] + 1))

    def watermark(self, at: str = "0 s") -> None:
        """How far the session agent has come."""
        self.query(
            "INSERT INTO watermark VALUES ('sessions', now() + %s::interval) "
            "ON CONFLICT (name) DO UPDATE SET at = excluded.at",
            at,
        )

    # -- Kafka
    def append(self, topic: str, key: bytes | None, value: bytes | None, headers: Any = ()) -> None:
        log = self.logs[topic]
        log.append(Kept((topic, len(log)), (key, value, list(headers))))

    def committed_records(self) -> list[Record]:
        """What was left in the outbox since the last look, in the order of the commits."""
        rows = self.query(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', 'headrace_outbox', 'messages', 'true') WHERE get_byte(data, 0) = 77",
            self._slot,
        )
        contents = [bytes(data) for (data,) in rows]
        return [r for content in contents for r in unbundle(content[content.index(b"headrace\0") + 13 :])]

    def relay(self) -> int:
        """Publish what was committed; answers how much."""
        records = self.committed_records()
        for record in records:
            self.append(record.topic, record.key, record.value, record.headers)
        return len(records)

    def read(self, topics: Iterable[str]) -> dict[str, Log]:
        """What the broker says to the sweep that looks for lost commands."""
        return {topic: Log(self.topic_ids[topic], {0: len(self.logs[topic])}) for topic in topics}

    def committed(self, logs: dict[str, Log]) -> dict[str, dict[int, int]]:
        return {topic: {0: self.received} for topic in logs}

    async def settle(self) -> None:
        """Relay and agents of the last process, until nobody has anything left to read."""
        while self.relay() + await self.one.read(EVENTS) + await self.one.read(WORKERS):
            pass

    # -- runs
    async def start(self, definition: dict[str, Any], input: Any = None, key: str | None = None) -> str:
        workflow, plans = from_data(definition), Plans()
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            await publish(connection, "default", workflow.name, workflow.canonical().decode())
            plan = await plans.latest(connection, "default", workflow.name)
            raw = json.dumps(input or {}).encode()
            run_id, _ = await start_run(connection, self.store, plan, raw, namespace="default", key=key)
        return run_id

    def commands(self, run_id: str) -> list[Command]:
        """All that were published for a run."""
        records = [
            record for topic, log in self.logs.items() if topic.startswith("headrace.commands.") for record in log
        ]
        return [decode_command(record.value()) for record in records if record.key() == run_id.encode()]

    def hand_outs(self, run_id: str) -> list[tuple[str, int, int]]:
        """(task, attempt, token) of the same."""
        return [(command.name, command.attempt, command.token) for command in self.commands(run_id)]

    def control(self) -> list[ControlMessage]:
        return [decode_control_message(record.value()) for record in self.logs[CONTROL]]

    # -- a worker
    def nonce(self, run_id: str, task: int, token: int) -> str:
        return make_nonce(self.store.secret, run_id.encode(), task, token)

    def current(self, run_id: str, task: int = 0) -> tuple[int, int, str]:
        """What every answer to the task's present hand-out begins with."""
        ((token,),) = self.query("SELECT token FROM task WHERE run_id = %s AND task = %s", run_id, task)
        return task, token, self.nonce(run_id, task, token)

    def hand_out(self, run_id: str, task: int, token: int) -> tuple[int, int, str]:
        return task, token, self.nonce(run_id, task, token)

    def say(self, run_id: str, *events: Any) -> None:
        """Put what a worker answers into the log."""
        for event in events:
            self.append(EVENTS, run_id.encode(), event if isinstance(event, bytes) else encode(event))

    async def succeed(self, run_id: str, task: int = 0, output: bytes = b"null") -> None:
        self.say(run_id, Succeeded(*self.current(run_id, task), worker="w", output=msgspec.Raw(output)))
        await self.settle()

    async def fail(self, run_id: str, task: int = 0, **error: Any) -> None:
        self.say(run_id, Failed(*self.current(run_id, task), Error("ERROR", "it broke", **error), worker="w"))
        await self.settle()

    async def begin(self, run_id: str, session: str, task: int = 0) -> None:
        self.say(run_id, Started(*self.current(run_id, task), session=session, worker="w"))
        await self.settle()

    def beat(self, session: str, seq: int, *held: tuple[str, int, int], worker: str = "w", **more: Any) -> None:
        """Put a heartbeat into the log."""
        beat = Heartbeat(session, worker, seq, ["default"], list(held), LEASE_SECONDS, slots=4, **more)
        self.append(WORKERS, session.encode(), encode(beat))

    def tick(self) -> None:
        """What the sweeps say to the session agent, as if it had just been published."""
        ((at,),) = self.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        self.append(WORKERS, b"tick", encode(Tick(at)))

    def let_expire(self, session: str) -> None:
        """Let a session's lease have run out, by the watermark too."""
        self.query("UPDATE worker_session SET expires_at = now() - interval '5 s' WHERE session_id = %s", session)
        self.watermark()


def new_session() -> str:
    """As a worker makes one."""
    return uuid4().hex


@contextmanager
def world_on(dsn: str) -> Generator[World]:
    world = World(dsn)
    world.open()
    try:
        yield world
    finally:
        world.close()
