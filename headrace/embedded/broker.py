"""A Kafka-compatible log in memory: librdkafka's mock cluster in a child process, up in a fraction of a second.

What it is for: `headrace dev` and the demo without Java. What it cannot do:

- It forgets everything when it stops. Kafka may vanish at any time by our promise, so nothing is lost but in-flight
  records; each start has its own `log_id`, since this log has no topic ids by which a client could tell.
- It keeps 5 MiB or 100,000 batches of a partition and drops what is older without a word.
- It has no requests that create, delete or describe topics. Topics are named at the start or by `create_topics`;
  one that a client names first appears with four partitions.
- It does not wake a waiting fetch: consumers set `fetch.wait.max.ms` to 10. No offsets by timestamp.

    python -m headrace.embedded.broker --port 9092 --topic headrace.events:16
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from headrace.embedded.mock_cluster import MockCluster
from headrace.embedded.process import ServerProcess, free_port, log_tail
from headrace.errors import HeadraceError, UnavailableError

REBALANCE_DELAY_MS = 200
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 1_000


class EmbeddedBroker:
    """The embedded log as a child process.

        with EmbeddedBroker({"headrace.events": 16}) as broker:
            Producer({"bootstrap.servers": broker.bootstrap})

    topics: name to number of partitions, made anew at every start.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        port: int | None = None,
        log: Path | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        heartbeat_ms: int = HEARTBEAT_MS,
    ) -> None:
        self._topics = dict(topics or {})
        self.port = port or free_port()
        self._timing = ("--session-timeout-ms", str(session_timeout_ms), "--heartbeat-ms", str(heartbeat_ms))
        self._own_dir = None if log else Path(tempfile.mkdtemp(prefix="headrace-broker-"))
        self.log = log or Path(str(self._own_dir)) / "broker.log"
        self.log_id = ""
        """Names this start's log; offsets of another `log_id` mean nothing here. Empty before the first start."""
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """The same over restarts."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def start(self) -> Self:
        """Start an empty log under a new `log_id`; returns once it answers. Raises UnavailableError."""
        assert not self.is_running, "already started"
        topics = [part for name, count in self._topics.items() for part in ("--topic", f"{name}:{count}")]
        self._process = ServerProcess.start(
            # `-P`: a module of the user's, in the working directory, must not shadow one of ours.
            [sys.executable, "-P", "-m", "headrace.embedded.broker", "--port", str(self.port), *self._timing, *topics],
            log=self.log,
            remove=[self._own_dir] if self._own_dir else [],
            talk=True,
        )
        self._read_answer()
        self.log_id = uuid.uuid4().hex
        return self

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics now and at every later start; one that exists keeps its partitions."""
        for name, partitions in topics.items():
            if self._topics.setdefault(name, partitions) == partitions and self._process:
                self._process.stdin.write(f"{name}:{partitions}\n".encode())
                self._process.stdin.flush()
                self._read_answer()

    def stop(self) -> None:
        if self._process:
            self._process.stop()
            self._process = None

    def kill9(self) -> None:
        if self._process:
            self._process.kill9()
            self._process = None

    def restart(self) -> Self:
        """Stop and start: the same address, an empty log, another `log_id`."""
        self.stop()
        return self.start()

    def close(self) -> None:
        self.stop()
        if self._own_dir:
            shutil.rmtree(self._own_dir, ignore_errors=True)

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

    def _read_answer(self) -> None:
        """The child answers each request, and its start, with one line of JSON."""
        assert self._process is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": log_tail(self.log)}
        if "error" in answer:
            if not line:
                self.stop()
            raise UnavailableError(f"the embedded log: {answer['error']}")


class _Topics:
    """What the child made; a repeated request changes nothing."""

    def __init__(self, cluster: MockCluster) -> None:
        self._cluster = cluster
        self._made: set[str] = set()

    def create(self, request: str) -> None:
        """request: `name:partitions`."""
        name, _, partitions = request.rpartition(":")
        if name not in self._made:
            self._cluster.create_topic(name, int(partitions))
            self._made.add(name)


def main() -> int:
    options = _parse()
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        cluster = MockCluster(options.port)
        topics = _Topics(cluster)
        cluster.set_group_timing(
            rebalance_delay_ms=REBALANCE_DELAY_MS,
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_ms=options.heartbeat_ms,
        )
        for topic in options.topic:
            topics.create(topic)
    except HeadraceError as error:
        sys.exit(str(error))
    _publish_address(f"127.0.0.1:{cluster.port}", options.port_file)
    threading.Thread(target=_serve_requests, args=(topics,), daemon=True).start()
    stopping.wait()
    cluster.close()
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.embedded.broker", description="A Kafka log in memory.")
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--topic", action="append", default=[], metavar="NAME:PARTITIONS")
    parser.add_argument("--port-file", type=Path, help="write the address here, as one line, once it answers")
    parser.add_argument("--session-timeout-ms", type=int, default=SESSION_TIMEOUT_MS)
    parser.add_argument("--heartbeat-ms", type=int, default=HEARTBEAT_MS)
    return parser.parse_args()


def _publish_address(address: str, port_file: Path | None) -> None:
    print(json.dumps({"bootstrap": address}), flush=True)
    if port_file:
        scratch = port_file.with_name(f"{port_file.name}.new")
        scratch.write_text(f"{address}\n")
        scratch.replace(port_file)


def _serve_requests(topics: _Topics) -> None:
    """One topic a line on standard input, one JSON object a line back; its end is no reason to stop."""
    for line in sys.stdin:
        try:
            topics.create(line.strip())
        except (HeadraceError, ValueError) as error:
            print(json.dumps({"error": str(error)}), flush=True)
        else:
            print("{}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
