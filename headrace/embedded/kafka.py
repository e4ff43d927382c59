"""A real Apache Kafka: one KRaft node, broker and controller in one JVM, from Maven's jars, on 127.0.0.1.

Tests and benchmarks run on it, and `headrace dev --kafka real`. It takes 2-4 s to start and 240 MB.
"""

import base64
import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headrace.embedded.process import ServerProcess, free_port, log_tail
from headrace.errors import ConfigurationError, UnavailableError

VERSION: Final = "4.4.0"
"""The version that `kafka-pom.xml` names."""
POM: Final = Path(__file__).with_name("kafka-pom.xml")
START_SECONDS: Final = 90.0
POLL_SECONDS: Final = 0.05

SETTINGS: Final[Mapping[str, str | int]] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    # One node: every replication factor is 1, and internal topics stay small.
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 4,
    "num.partitions": 4,
    "auto.create.topics.enable": "false",
    # A broker killed with SIGKILL waits for its own old session to run out: 12 s with the defaults, 4 s with these.
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "num.network.threads": 2,
    "num.io.threads": 4,
    "log.segment.bytes": 64 << 20,
    "log.cleaner.dedupe.buffer.size": 8 << 20,
    "log.cleaner.threads": 1,
}
LOGGING: Final = """\
Configuration:
  status: ERROR
  Appenders:
    Console: {name: out, target: SYSTEM_OUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: out}]}
    Logger:
      - {name: kafka.server.KafkaRaftServer, level: INFO}
"""


class ApacheKafka:
    """One Kafka node.

        with ApacheKafka(fetch_jars()) as kafka:
            Producer({"bootstrap.servers": kafka.bootstrap})

    data_dir: kept and used again; None for a temporary one, removed at `close`.
    session_timeout_ms, heartbeat_interval_ms: how soon a group notices that a consumer died, for both group protocols;
        under KIP-848 the broker decides it. Keep the first below the lease.
    settings: more of server.properties, over SETTINGS.
    """

    def __init__(
        self,
        jars: Path,
        data_dir: Path | None = None,
        port: int | None = None,
        *,
        heap: str = "512m",
        session_timeout_ms: int = 10_000,
        heartbeat_interval_ms: int = 1_000,
        settings: Mapping[str, str | int] | None = None,
        java: str = "java",
    ) -> None:
        self._jars = jars.absolute()
        self._is_temporary = data_dir is None
        self.data_dir = (data_dir or Path(tempfile.mkdtemp(prefix="headrace-kafka-"))).absolute()
        self.port = port or free_port()
        self._controller_port = free_port()
        self._heap = heap
        self._java = java
        self._groups = _group_settings(session_timeout_ms, heartbeat_interval_ms)
        self._settings = dict(settings or {})
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """The same over restarts and wipes."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.data_dir / "broker.log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def properties(self) -> dict[str, str | int]:
        """All of server.properties."""
        return {
            **SETTINGS,
            **self._groups,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.data_dir / "log"),
            **self._settings,
        }

    def start(self) -> Self:
        """Start, formatting the storage first if it is empty; returns once the broker answers.

        Raises ConfigurationError when there is no Java, UnavailableError with the end of the log.
        """
        assert not self.is_running, "already started"
        if shutil.which(self._java) is None:
            raise ConfigurationError("Apache Kafka needs Java 17 or later: `java` was not found on PATH")
        self._write_configuration()
        if not (self.data_dir / "log" / "meta.properties").exists():
            self._format()
        self._process = ServerProcess.start(
            self._command("kafka.Kafka", "-XX:+UseG1GC", f"-Xmx{self._heap}", "-Xms128m", arguments=[self._properties]),
            log=self.log,
            grace_seconds=20.0,
            remove=[self.data_dir] if self._is_temporary else [],
        )
        self._wait_until_ready(self._process)
        return self

    def stop(self) -> None:
        """Stop in order: the next start needs no recovery."""
        if self._process:
            self._process.stop()
            self._process = None

    def kill9(self) -> None:
        if self._process:
            self._process.kill9()
            self._process = None

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def wipe(self) -> None:
        """Forget everything: the next `start` is a new cluster, with new topic ids, at the same address."""
        assert not self.is_running, "stop or kill it first"
        shutil.rmtree(self.data_dir / "log", ignore_errors=True)

    def close(self) -> None:
        """Stop, and remove what was temporary."""
        self.stop()
        if self._is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _properties(self) -> Path:
        return self.data_dir / "server.properties"

    def _write_configuration(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "log4j2.yaml").write_text(LOGGING)
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))

    def _command(self, main: str, *options: str, arguments: list[str | Path]) -> list[str | Path]:
        return [
            *(self._java, *options, "-Djava.awt.headless=true"),
            f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.yaml'}",
            *("-cp", self._jars / "*", main, *arguments),
        ]

    def _format(self) -> None:
        # One short run: a small heap, and no time spent on optimising.
        command = self._command(
            "kafka.tools.StorageTool",
            *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            arguments=["format", "-t", _cluster_id(), "-c", self._properties],
        )
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if result.returncode != 0:
            raise UnavailableError(f"Kafka's storage was not formatted:\n{result.stdout.strip()}")

    def _wait_until_ready(self, process: ServerProcess) -> None:
        give_up_at = time.monotonic() + START_SECONDS
        while not _answers(self.port):
            if not process.is_running or time.monotonic() > give_up_at:
                self.kill9()
                raise UnavailableError(f"Kafka did not start:\n{log_tail(self.log)}")
            time.sleep(POLL_SECONDS)


def fetch_jars(into: Path | None = None) -> Path:
    """Return a folder with Kafka's jars, filled by Maven unless it is there; safe from several processes at once.

    into: the folder; None for `kafka-VERSION` in the user's cache.
    Raises ConfigurationError (no `mvn`) or UnavailableError (Maven failed; its output is in the message).
    """
    folder = (into or _cache() / f"kafka-{VERSION}").absolute()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            _download(folder)
    return folder


def _download(folder: Path) -> None:
    """The folder appears whole or not at all: it is filled under another name."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigurationError("fetching Apache Kafka needs Maven: `mvn` was not found on PATH")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        jars = Path(scratch) / "jars"
        # Maven writes beside the pom, which may be in a read-only installation.
        pom = Path(shutil.copy(POM, scratch))
        result = subprocess.run(
            [
                *(maven, "--batch-mode", "--quiet", "--file", pom, "dependency:copy-dependencies"),
                *("-DincludeScope=runtime", f"-DoutputDirectory={jars}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise UnavailableError(f"Maven did not fetch Apache Kafka:\n{result.stdout.strip()}")
        jars.rename(folder)


@contextlib.contextmanager
def _alone(lock: Path) -> Generator[None]:
    """Hold a lock between processes; the kernel lets go of it when its holder dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cache() -> Path:
    """The XDG base directory specification's cache; an empty variable counts as unset."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def _group_settings(session_timeout_ms: int, heartbeat_interval_ms: int) -> dict[str, str | int]:
    """The broker has lower bounds of its own (45 s and 5 s under KIP-848), so they are lowered as well."""
    return {
        "group.consumer.min.session.timeout.ms": session_timeout_ms,
        "group.consumer.session.timeout.ms": session_timeout_ms,
        "group.consumer.min.heartbeat.interval.ms": heartbeat_interval_ms,
        "group.consumer.heartbeat.interval.ms": heartbeat_interval_ms,
        "group.min.session.timeout.ms": min(session_timeout_ms, 6_000),
    }


def _cluster_id() -> str:
    """16 random bytes as URL-safe base64, which Kafka's own ids are; StorageTool reads a leading dash as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return text


def _answers(port: int) -> bool:
    """Ask for ApiVersions v0 (key 18), which every broker answers before anything else."""
    body = struct.pack(">hhih", 18, 0, 1, -1)  # key, version, correlation id, no client id
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.settimeout(2)
            connection.sendall(struct.pack(">i", len(body)) + body)
            return len(connection.recv(64)) > 8
    except OSError:
        return False
