"""The servers that all benchmarks of one command share, and the stacks that run on them."""

import contextlib
import os
import platform
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from benchmarks.bench import Bench
from benchmarks.interpreter import loop_milliseconds
from benchmarks.pgbench import single_row_commits
from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.kafka import VERSION, ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.stack import Stack
from state.settings import EngineSettings

ROOT: Final = Path(__file__).parent.parent
LEASE_SECONDS: Final = 30.0
STUCK_SECONDS: Final = 2.0
"""So that what is stuck can be asked for without waiting a minute."""
PARTITIONS: Final[int] = EngineSettings.model_fields["partitions"].default
"""The engine's own."""
POSTGRES: Final[Mapping[str, str]] = {"max_wal_size": "8GB", "checkpoint_timeout": "15min"}
SHARED_BUFFERS: Final = "512MB"
KAFKA: Final[Mapping[str, str | int]] = {"log.flush.interval.messages": "9223372036854775807"}
TOLD: Final = ("fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "checkpoint_timeout", "wal_level")


class Rig:
    """One Postgres and one Kafka.

    with Rig() as rig, rig.bench("headrace") as bench:
        bench.measure(10, "linear-10", "burst", "1000")
    """

    def __init__(
        self,
        *,
        host: str = "faust",
        partitions: int = PARTITIONS,
        shared_buffers: str = SHARED_BUFFERS,
        postgres: Mapping[str, str] = POSTGRES,
    ) -> None:
        """postgres: settings of the server."""
        self.host, self.partitions = host, partitions
        self._shared_buffers, self._settings = shared_buffers, dict(postgres)
        self.postgres = self._new_postgres()
        self.kafka = ApacheKafka(fetch_jars(), settings=KAFKA)
        self._parts = contextlib.ExitStack()

    def _new_postgres(self) -> EmbeddedPostgres:
        return EmbeddedPostgres(shared_buffers=self._shared_buffers, settings=self._settings)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as parts:  # closes what has started when the other does not start
            parts.enter_context(self.postgres)
            parts.enter_context(self.kafka)
            self._parts = parts.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.close()

    def facts(self) -> dict[str, Any]:
        """What everything runs on, for whoever reads the numbers."""
        with psycopg.connect(self.postgres.dsn) as connection:
            version = connection.info.server_version // 10_000
            settings = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in TOLD}
        return {
            "cores": os.cpu_count(),
            "python": {"version": platform.python_version(), "loop_ms": loop_milliseconds()},
            "postgres": {"version": version, **{name: row[0] for name, row in settings.items() if row}},
            "kafka": {"version": VERSION, "partitions": self.partitions},
            "host": self.host,
            "lease_seconds": LEASE_SECONDS,
        }

    def calibrate(self, seconds: int = 4) -> float:
        """Commits per second of single rows by 8 clients of pgbench, now."""
        return single_row_commits(self.postgres, seconds=seconds)

    @contextlib.contextmanager
    def bench(
        self,
        name: str,
        *,
        streams: int = 1,
        workers: int = 1,
        workflows: Sequence[Mapping[str, Any]] = (),
        own_postgres: bool = False,
    ) -> Generator[Bench]:
        """A stack with a database, topics and a slot of its own, all under `name`; dropped at the end.

        own_postgres: with a server of its own, for a stack that is measured beside another: a slot is fed with the
        log of the whole server.
        """
        with (
            self._new_postgres() if own_postgres else contextlib.nullcontext(self.postgres) as postgres,
            _database(postgres, name),
            Stack(
                ROOT / "benchmarks" / "app.py",
                kafka=self.kafka.bootstrap,
                postgres=postgres.url_of(name),
                workers=workers,
                streams=streams,
                lease_seconds=LEASE_SECONDS,
                partitions=self.partitions,
                prefix=name,
                log_level="warning",
                settings={
                    "HEADRACE_HOST": self.host,
                    "HEADRACE_SLOT": name,
                    "HEADRACE_API_STUCK_SECONDS": f"{STUCK_SECONDS:g}",
                },
            ) as stack,
            contextlib.closing(Bench(stack, postgres, self.kafka, name)) as bench,
        ):
            bench.publish(*workflows)
            stack.wait_workers(workers)
            yield bench


@contextlib.contextmanager
def _database(postgres: EmbeddedPostgres, name: str) -> Generator[None]:
    create_database(postgres.dsn, name)
    try:
        yield
    finally:
        drop_database(postgres.dsn, name)
