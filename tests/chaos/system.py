"""The system under test: every process of Headrace, as in production but on one machine, and what stands around it.

Each group of processes reaches Kafka and Postgres through a fault proxy of its own. `direct` addresses go round them:
they are the oracle's.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import psycopg

from headrace.embedded.kafka import SETTINGS, ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import free_port
from headrace.engine import child_environment, engine_command, engine_environment
from headrace.stack import worker_command
from headrace.supervisor import Supervisor
from tests.caller import HEADERS, TOKEN
from tests.chaos.proxy import Proxies

LEASE_SECONDS: Final = 2.0
SESSION_TIMEOUT_MS: Final = 2_000
HEARTBEAT_MS: Final = 400
PARTITIONS: Final = 4
SLOTS: Final = 8
PREFIX: Final = "headrace"
QUEUE: Final = "default"
KAFKA_GROUPS: Final = ("workers", "streams", "relay")
POSTGRES_GROUPS: Final = ("streams", "relay", "api")
CHECKOUT: Final = Path(__file__).resolve().parents[2]
INJECT: Final = CHECKOUT / "tests" / "faults" / "inject"
FENCED: Final = "the lease ran out without a renewal"
"""What a worker says when it fences itself."""
READY_SECONDS: Final = 90.0


class System:
    """Made once a test. folder: logs, ledger and data; kept by the caller when something was found.

    plant: a planted bug (tests/faults/planted) that every process has; then there are no crash points.
    """

    def __init__(self, folder: Path, seed: int, plant: str = "") -> None:
        self.folder, self.seed, self.plant = folder, seed, plant
        self.folder.mkdir(parents=True, exist_ok=True)
        self.proxies = Proxies()
        self.postgres = EmbeddedPostgres(folder / "postgres", port=free_port(), settings={"max_wal_size": "1GB"})
        self.kafka = _kafka(folder / "kafka")
        self._log = (folder / "processes.log").open("a", buffering=1)
        self._log_lock = threading.Lock()
        self.supervisor = Supervisor({}, self.note, grace_seconds=8.0)
        self.api_ports = {name: free_port() for name in ("api-1", "api-2")}
        self.ledger_file = folder / "ledger.jsonl"
        self._ledger: subprocess.Popen[str] | None = None
        self._ledger_port = 0
        self._secret = secrets.token_urlsafe(32)
        self._extra = 0
        self.on_burst: Callable[[int, str], object] = lambda count, workflow: None
        """Asks the driver for so many starts at once, of a workflow or, with "", of any; from any thread."""
        self.on_fenced: Callable[[str], object] = lambda _: None
        """Told the name of a worker that fenced itself; from any thread."""
        self.orders = folder / "order.json"
        """Where the processes look for the crash point that is armed now."""

    # == life ==========================================================================================================
    def start(self) -> None:
        """Returns once every part answers; raises UnavailableError."""
        self._start_ledger()
        self.postgres.start()
        self.proxies.start()
        for group in POSTGRES_GROUPS:
            self.proxies.add(f"{group}-postgres", self.postgres.port)
        for group in KAFKA_GROUPS:
            self.proxies.add(f"{group}-kafka", self.kafka.listener_ports[group], self.kafka.proxy_ports[group])
        self.kafka.start()
        self.supervisor.run("migrate", engine_command("state.migrate"), env=self._engine("direct"))
        for name in ("streams-1", "streams-2", "relay-1", "relay-2", "api-1", "api-2", "worker-1", "worker-2"):
            self.add(name)
        self.supervisor.wait_ready(self._answers, seconds=READY_SECONDS, what="the system")

    def close(self) -> None:
        """Nothing is left running, whatever state it is in. Safe to repeat."""
        for pid in self.supervisor.pids().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.supervisor.stop([name for name in self.supervisor.names() if name.startswith("worker")])
        for server in (self.kafka, self.postgres):
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid or 0, signal.SIGCONT) if server.pid else None
            server.close()
        self.proxies.close()
        if self._ledger is not None:
            self._ledger.terminate()
            self._ledger.wait(10)
        self._log.close()
        self._keep_logs_only()

    def _keep_logs_only(self) -> None:
        """The servers' data is large, and what it says is in the dump."""
        for name, log in (("kafka", self.kafka.log), ("postgres", self.postgres.log)):
            with contextlib.suppress(OSError):
                shutil.copy(log, self.folder / f"{name}.log")
            shutil.rmtree(self.folder / name, ignore_errors=True)
        if not self.postgres.data_dir.is_relative_to(self.folder):  # as root it may have been put elsewhere
            shutil.rmtree(self.postgres.data_dir, ignore_errors=True)

    def _start_ledger(self) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.chaos.ledger",
            "--file",
            str(self.ledger_file),
            "--seed",
            str(self.seed),
        ]
        self._ledger = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
        assert self._ledger.stdout is not None
        self._ledger_port = int(self._ledger.stdout.readline())

    def ask_ledger(self, **asked: Any) -> dict[str, Any]:
        """One request of the nemesis or of a person."""
        with socket.create_connection(("127.0.0.1", self._ledger_port), 5) as connection:
            connection.sendall(json.dumps(asked).encode() + b"\n")
            with connection.makefile("rb") as file:
                answer: dict[str, Any] = json.loads(file.readline())
        return answer

    # == processes =====================================================================================================
    def add(self, name: str, **settings: str) -> None:
        """Start one more process; its kind is the first part of its name."""
        kind = name.split("-")[0]
        if kind == "worker":
            argv = [*worker_command(str(Path(__file__).with_name("app.py")), (), SLOTS), "--name", name]
            env = child_environment({**self._common("workers"), **settings})
        else:
            argv = engine_command({"streams": "streams", "relay": "connectors", "api": "api"}[kind])
            more = {"HEADRACE_API_PORT": str(self.api_ports[name])} if kind == "api" else {}
            env = {**self._engine(kind), **more, **settings}
        inject = {"plant": self.plant} if self.plant else {"armed": str(self.orders), "process": name}
        path = [str(INJECT), *filter(None, [env.get("PYTHONPATH")])]
        env |= {"HEADRACE_INJECT": json.dumps(inject), "PYTHONPATH": os.pathsep.join(path)}
        self.supervisor.add(name, argv, env=env)

    def add_extra(self, kind: str, **settings: str) -> str:
        """A process beyond the usual set, for a while; ended by `remove`."""
        self._extra += 1
        name = f"{kind}-x{self._extra}"
        self.add(name, **settings)
        return name

    def remove(self, name: str, number: int = signal.SIGTERM) -> None:
        self.supervisor.end(name, number)

    def names(self, kind: str) -> list[str]:
        """The usual processes of one kind."""
        return [name for name in self.supervisor.names() if name.startswith(f"{kind}-") and "-x" not in name]

    def pid(self, name: str) -> int | None:
        return self.supervisor.pids().get(name)

    def body_pid(self, name: str) -> int | None:
        """The process of a worker that runs the bodies: the child of its parent, when it has one."""
        pid = self.pid(name)
        if pid is None:
            return None
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(pid).children()
            return children[0].pid if children else pid
        return None

    def signal(self, name: str, number: int) -> bool:
        """Signal a process and its children; False when it does not run."""
        pid = self.pid(name)
        if pid is None:
            return False
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
                process.send_signal(number)
            return True
        return False

    # == addresses =====================================================================================================
    @property
    def api_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.api_ports.values()]

    def _common(self, group: str) -> dict[str, str]:
        return {
            "HEADRACE_KAFKA": self.kafka.address(group),
            "HEADRACE_PREFIX": PREFIX,
            "HEADRACE_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
            "HEADRACE_DRAIN_SECONDS": "2",
            "HEADRACE_LOG_LEVEL": "info",
            "HEADRACE_TOPIC_IDS": "true",
            "CHAOS_LEDGER": str(self._ledger_port),
        }

    def _engine(self, group: str) -> dict[str, str]:
        proxy = self.proxies.by_group.get(f"{group}-postgres")
        port = proxy.port if proxy else self.postgres.port
        settings = {
            **self._common(group if group in KAFKA_GROUPS else "direct"),
            "HEADRACE_POSTGRES": f"postgresql://postgres@127.0.0.1:{port}/postgres",
            "HEADRACE_SECRET": self._secret,
            "HEADRACE_PARTITIONS": str(PARTITIONS),
            "HEADRACE_API_HOST": "127.0.0.1",
            "HEADRACE_API_LOCAL_TOKEN": TOKEN,
            "HEADRACE_API_DRAIN_SECONDS": "1",
            "HEADRACE_RELAY_LEASE": "2",
            "HEADRACE_RELAY_TAKEOVER": "1",
        }
        return engine_environment(settings)

    # == looking =======================================================================================================
    def connect(self, **more: Any) -> "psycopg.Connection[Any]":
        """Round the proxies; raises psycopg.OperationalError while Postgres is away."""
        return psycopg.connect(self.postgres.dsn, autocommit=True, connect_timeout=3, **more)

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def _answers(self) -> bool:
        try:
            for url in self.api_urls:
                httpx.get(f"{url}/health", timeout=2).raise_for_status()
            items = httpx.get(f"{self.api_urls[0]}/workers", params={"limit": 200}, headers=HEADERS, timeout=2).json()[
                "items"
            ]
            return sum(bool(item["live"]) for item in items) >= 2
        except (httpx.HTTPError, KeyError):
            return False

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        self.supervisor.wait_ready(self._answers, seconds=seconds, what="the system")

    def note(self, name: str, line: str) -> None:
        """One line of a process, or of the nemesis, into the common log."""
        if FENCED in line:
            self.on_fenced(name)
        with self._log_lock, contextlib.suppress(ValueError):
            self._log.write(f"{time.time():.3f} {name:<10} {line}\n")


class ListeningKafka(ApacheKafka):
    """Kafka with one listener for each group of clients, advertised at the port of that group's proxy."""

    listener_ports: dict[str, int]
    proxy_ports: dict[str, int]

    def address(self, group: str) -> str:
        port = self.proxy_ports.get(group)
        return f"127.0.0.1:{port}" if port else self.bootstrap


def _kafka(folder: Path) -> ListeningKafka:
    port, controller = free_port(), free_port()
    listener_ports = {group: free_port() for group in KAFKA_GROUPS}
    proxy_ports = {group: free_port() for group in KAFKA_GROUPS}
    names = {group: group.upper() for group in KAFKA_GROUPS}
    direct = f"PLAINTEXT://127.0.0.1:{port}"
    listeners = [direct, *(f"{names[g]}://127.0.0.1:{listener_ports[g]}" for g in KAFKA_GROUPS)]
    advertised = [direct, *(f"{names[g]}://127.0.0.1:{proxy_ports[g]}" for g in KAFKA_GROUPS)]
    protocols = [str(SETTINGS["listener.security.protocol.map"]), *(f"{name}:PLAINTEXT" for name in names.values())]
    kafka = ListeningKafka(
        fetch_jars(),
        folder,
        port,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        settings={
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{controller}"]),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(protocols),
        },
    )
    kafka.listener_ports, kafka.proxy_ports = listener_ports, proxy_ports
    return kafka
