"""Everything Headrace needs, running on this machine: Kafka and Postgres (embedded or given), the engine, workers.

    with Stack("app.py", workers=2) as stack:
        httpx.get(f"{stack.api_url}/runs", headers=stack.headers)
        stack.kill9("worker-1")                    # it comes back; another worker takes over what it held

The processes are named `streams-1`, `relay-1`, `api`, `worker-1` …; the embedded servers `broker` and `postgres`.
`headrace dev`, the demo, the integration tests and the benchmarks all start this.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

import httpx

from headrace.embedded.broker import EmbeddedBroker
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import children_of, free_port
from headrace.engine import child_environment, engine_command, engine_environment
from headrace.errors import UnavailableError
from headrace.supervisor import Log, Supervisor

LEASE_SECONDS: Final = 10.0
"""On one machine a lost worker is noticed sooner than over a network, and the embedded log's session timeout is 6 s."""
PARTITIONS: Final = 4
"""What the embedded log gives a topic that nobody created, so that all queues are alike."""
DRAIN_SECONDS: Final = 2.5
"""How long bodies may finish when a worker stops: a person waits at Ctrl-C, or for a reload."""
READY_SECONDS: Final = 60.0
MEND_SECONDS: Final = 0.5
LINES_MAX: Final = 5_000
"""Lines of output kept for whoever asks after the fact."""
ENGINE_ONLY: Final = ("HEADRACE_POSTGRES", "HEADRACE_SECRET", "HEADRACE_API_LOCAL_TOKEN")
"""Settings that a worker has no business with."""


class Stack:
    """One Headrace. `start` returns when the API answers; `close` leaves nothing behind but a given data folder.

    app: the user's file, `app.py` or `app.py:registry`, for the workers; None for a stack without workers.
    kafka, postgres: bootstrap servers and libpq URL of running ones; None for embedded ones.
    data: where the embedded Postgres and the secret are kept; None for a temporary folder, removed at `close`.
    port: of the API; None for a free one.
    settings: more of `HEADRACE_*` for all processes, whole names.
    can_crash: whether the API, and so the console, may ask for a worker to be killed, to see what becomes of its tasks.
    log: gets every line of every process; the last of them are kept in `lines` as well.
    """

    def __init__(
        self,
        app: str | Path | None = None,
        *,
        kafka: str | None = None,
        postgres: str | None = None,
        data: Path | None = None,
        port: int | None = None,
        workers: int = 1,
        streams: int = 1,
        relays: int = 1,
        queues: Sequence[str] = (),
        slots: int | None = None,
        lease_seconds: float = LEASE_SECONDS,
        partitions: int = PARTITIONS,
        prefix: str = "headrace",
        log_level: str = "info",
        worker_log_level: str | None = None,
        settings: Mapping[str, str] | None = None,
        can_crash: bool = False,
        log: Log | None = None,
    ) -> None:
        self._app = app
        self._given_kafka, self._given_postgres = kafka, postgres
        self._is_temporary = data is None
        self.data = (data or Path(tempfile.mkdtemp(prefix="headrace-"))).absolute()
        self.port = port or free_port()
        self._counts = {"streams": streams, "connectors": relays}
        self._workers, self._queues, self._slots = workers, tuple(queues), slots
        self._partitions, self._prefix = partitions, prefix
        self._more = dict(settings or {})
        self.token = f"hr_{secrets.token_urlsafe(32)}"
        """The local token of the API: it may everything, for as long as this stack is there."""
        self._own_settings = {
            "HEADRACE_API_LOCAL_TOKEN": self.token,
            "HEADRACE_API": self.api_url,
            "HEADRACE_PREFIX": prefix,
            "HEADRACE_PARTITIONS": str(partitions),
            "HEADRACE_LEASE_SECONDS": f"{lease_seconds:g}",
            "HEADRACE_API_HOST": "127.0.0.1",
            "HEADRACE_API_PORT": str(self.port),
            "HEADRACE_API_DRAIN_SECONDS": "1",
            "HEADRACE_DRAIN_SECONDS": f"{DRAIN_SECONDS:g}",
            "HEADRACE_LOG_LEVEL": log_level,
            "HEADRACE_OBJECTS": (self.data / "objects").as_uri(),
            "HEADRACE_TOPIC_IDS": "true" if kafka else "false",
        }
        self._crashes = self.data / "crash" if can_crash else None
        if self._crashes:
            self._own_settings["HEADRACE_API_CRASH_FOLDER"] = str(self._crashes)
        self._worker_settings = {"HEADRACE_LOG_LEVEL": worker_log_level or log_level}
        self._log = log
        self.lines: deque[tuple[str, str]] = deque(maxlen=LINES_MAX)
        """(process, line), the latest LINES_MAX."""
        self.broker: EmbeddedBroker | None = None
        self.postgres_server: EmbeddedPostgres | None = None
        self.supervisor = Supervisor({}, self._note)
        self._closing = threading.Event()
        self._mender: threading.Thread | None = None

    # == addresses =====================================================================================================
    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """What a call of the API carries so that it is known."""
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def console_url(self) -> str:
        return f"{self.api_url}/console/"

    @property
    def kafka(self) -> str:
        """Bootstrap servers; the same over restarts of the embedded log."""
        return self._given_kafka or (self.broker.bootstrap if self.broker else "")

    @property
    def postgres(self) -> str:
        """libpq URL of the state store."""
        return self._given_postgres or (self.postgres_server.url if self.postgres_server else "")

    @property
    def settings(self) -> dict[str, str]:
        """`HEADRACE_*` of the engine's processes as they are now: for a process that joins from outside."""
        given = {"HEADRACE_KAFKA": self.kafka, "HEADRACE_POSTGRES": self.postgres, "HEADRACE_SECRET": self._secret()}
        log_id = {"HEADRACE_LOG_ID": self.broker.log_id} if self.broker else {}
        return {**self._own_settings, **given, **log_id, **self._more}

    # == life ==========================================================================================================
    def start(self) -> Self:
        """Raises ConfigurationError or UnavailableError; what was started by then is stopped again."""
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            self._start_servers()
            self._start_engine()
            for _ in range(self._workers if self._app else 0):
                self.add_worker()
            self.supervisor.wait_ready(self._answers, seconds=READY_SECONDS, what="the API", of=["api"])
            self._mender = threading.Thread(target=self._mend, name="mend", daemon=True)
            self._mender.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop the workers first, while somebody takes back what they hold; then the engine; then the servers."""
        self._closing.set()
        if self._mender:
            self._mender.join(timeout=5)
        self.supervisor.stop(self._worker_names())
        for server in (self.broker, self.postgres_server):
            if server:
                server.close()
        if self._is_temporary:
            shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def add_worker(
        self,
        app: str | Path | None = None,
        *,
        queues: Sequence[str] = (),
        slots: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """Start one more worker and return its name. app, queues, slots: as for the stack, and its own by default."""
        name = self._next_name("worker")
        target = str(app or self._app)
        argv = [*worker_command(target, queues or self._queues, slots or self._slots), "--name", name]
        env = child_environment({**self.settings, **self._worker_settings, **self._more, **(settings or {})})
        self.supervisor.add(name, argv, env={key: env[key] for key in env if key not in ENGINE_ONLY})
        return name

    def add_streams(self) -> str:
        """Start one more process of stream agents and return its name."""
        return self._add_engine("streams", "streams")

    def add_relay(self) -> str:
        """Start one more relay, which stands by until it can take over, and return its name."""
        return self._add_engine("relay", "connectors")

    def restart_workers(self) -> None:
        """Stop all workers in order and start them anew, to take up changed code."""
        self.supervisor.restart(*self._worker_names())

    def kill9(self, name: str) -> int | None:
        """End a process or an embedded server by SIGKILL, as a crash would; it comes back. Returns the id it had."""
        server = {"broker": self.broker, "postgres": self.postgres_server}.get(name)
        if server is None:
            return self.supervisor.kill(name, signal.SIGKILL)
        pid = server.pid
        server.kill9()
        return pid

    def kill9_body(self, name: str) -> int | None:
        """End the process in which a worker runs its bodies, as a crash in one of them would; its parent speaks for it
        and starts another. Returns the id it had. `kill9` of a worker ends both: its host is lost."""
        parent = self.supervisor.child(name).pid
        pid = next(iter(children_of(parent)), None) if parent else None
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid

    def pids(self) -> dict[str, int]:
        """The process ids of all that runs, by name, embedded servers first."""
        servers = {"broker": self.broker, "postgres": self.postgres_server}
        embedded = {name: server.pid for name, server in servers.items() if server and server.pid}
        return {**embedded, **self.supervisor.pids()}

    def wait_workers(self, count: int, *, seconds: float = READY_SECONDS) -> None:
        """Wait until that many worker sessions hold a lease. Raises UnavailableError."""
        self.supervisor.wait_ready(lambda: self._live_workers() >= count, seconds=seconds, what=f"{count} workers")

    # == parts =========================================================================================================
    def _start_servers(self) -> None:
        """Both at once: each waits mostly for its own process."""
        pool = ThreadPoolExecutor(2)
        try:
            for part in [pool.submit(start) for start in (self._start_broker, self._start_postgres)]:
                part.result()
        finally:
            pool.shutdown()  # an interrupt waits for what has begun: it cannot be stopped before it is there

    def _start_broker(self) -> None:
        if self._given_kafka:
            return
        commands = [f"commands.{queue}" for queue in {*self._queues, "default"}]
        counts = dict.fromkeys(("workers", "control", "dead-letters"), 1)
        counts |= dict.fromkeys(("events", *commands), self._partitions)
        topics = {f"{self._prefix}.{name}": count for name, count in counts.items()}
        self.broker = EmbeddedBroker(topics, log=self.data / "broker.log")
        self.broker.start()

    def _start_postgres(self) -> None:
        if not self._given_postgres:
            self.postgres_server = EmbeddedPostgres(self.data / "postgres")
            self.postgres_server.start()

    def _start_engine(self) -> None:
        self.supervisor.run("migrate", engine_command("state.migrate"), env=engine_environment(self.settings))
        for _ in range(self._counts["streams"]):
            self.add_streams()
        for _ in range(self._counts["connectors"]):
            self.add_relay()
        self.supervisor.add("api", engine_command("api"), env=engine_environment(self.settings))

    def _add_engine(self, kind: str, module: str) -> str:
        name = self._next_name(kind)
        self.supervisor.add(name, engine_command(module), env=engine_environment(self.settings))
        return name

    def _worker_names(self) -> list[str]:
        return [name for name in self.supervisor.names() if name.startswith("worker")]

    def _next_name(self, kind: str) -> str:
        taken = self.supervisor.names()
        return next(name for number in range(1, len(taken) + 2) if (name := f"{kind}-{number}") not in taken)

    def _secret(self) -> str:
        """One per data folder: a run that outlives a restart must still accept the results of its commands."""
        path = self.data / "secret"
        with contextlib.suppress(FileNotFoundError):
            return path.read_text().strip()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret := secrets.token_urlsafe(32))
        return secret

    def _mend(self) -> None:
        """Start an embedded server again when it died; the log comes back empty and under another identity."""
        while not self._closing.wait(MEND_SECONDS):
            self._crash()
            try:
                if self.postgres_server and not self.postgres_server.is_running:
                    self._note("postgres", "died; starting it again")
                    self.postgres_server.kill9()
                    self.postgres_server.start()
                if self.broker and not self.broker.is_running:
                    self._note("broker", "died; starting it again, empty")
                    self._renew_broker(self.broker)
            except UnavailableError as error:
                self._note("stack", str(error))

    def _crash(self) -> None:
        """Kill the workers that somebody wants to see crash; what was asked is forgotten first, so it is done once."""
        asked = sorted(self._crashes.iterdir()) if self._crashes and self._crashes.is_dir() else []
        for file in asked:
            file.unlink(missing_ok=True)
            if file.name in self._worker_names():
                self._note("dev", f"crashes {file.name}, as it was asked to")
                self.kill9(file.name)

    def _renew_broker(self, broker: EmbeddedBroker) -> None:
        broker.kill9()
        broker.start()
        names = [name for name in self.supervisor.names() if name.startswith("streams")]
        for name in names:
            self.supervisor.child(name).env["HEADRACE_LOG_ID"] = broker.log_id
        self.supervisor.restart(*names)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.api_url}/health", timeout=2).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def _live_workers(self) -> int:
        try:
            answer = httpx.get(f"{self.api_url}/workers", params={"limit": 200}, headers=self.headers, timeout=2)
            return sum(item["live"] for item in answer.raise_for_status().json()["items"])
        except httpx.HTTPError:
            return 0

    def _note(self, name: str, line: str) -> None:
        self.lines.append((name, line))
        if self._log:
            self._log(name, line)


def worker_command(app: str, queues: Sequence[str] = (), slots: int | None = None) -> list[str]:
    """What starts one worker on the user's file."""
    options = [part for queue in queues for part in ("--queue", queue)]
    options += ["--slots", str(slots)] if slots else []
    return [sys.executable, "-P", "-m", "headrace", "worker", app, *options]
