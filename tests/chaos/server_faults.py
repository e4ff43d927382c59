"""Faults of Kafka and Postgres themselves: stopped, killed, frozen, emptied, full."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

import psycopg

from tests.chaos.fault import Fault
from tests.chaos.readers import read_up_to
from tests.chaos.record_sender import TOPIC as NEWS
from tests.chaos.system import PREFIX

READ_TOPICS: Final = (f"{PREFIX}.events", NEWS)
"""Of which the oracle asks for each record."""


class KillKafka(Fault):
    kind = "F15 Kafka killed"
    uses = frozenset({"kafka"})
    lasts = (0.5, 6.0)

    def begin(self) -> None:
        self.system.kafka.kill9()
        self.fired += 1

    def heal(self) -> None:
        if not self.system.kafka.is_running:
            self.system.kafka.start()


class FreezeKafka(Fault):
    kind = "F16 Kafka frozen"
    uses = frozenset({"kafka"})
    lasts = (2.0, 8.0)

    def begin(self) -> None:
        _signal(self.system.kafka.pid, signal.SIGSTOP)
        self.fired += 1

    def heal(self) -> None:
        _signal(self.system.kafka.pid, signal.SIGCONT)


class KafkaLosesTail(KillKafka):
    kind = "F17 Kafka loses its tail"
    lasts = (0.0, 0.5)
    share = 0.7

    def begin(self) -> None:
        """What a power cut does: acknowledged records at the end are gone, while the group's offsets stay."""
        self.facts["read"] = read_up_to(self.system, *READ_TOPICS)
        super().begin()
        self.fired = 0
        for log in sorted((self.system.kafka.data_dir / "log").glob("headrace.*-*/*.log")):
            size = log.stat().st_size
            if size:
                with log.open("r+b") as file:
                    file.truncate(int(size * self.draw.uniform(0.3, 0.95)))
                self.fired += 1
        self.facts["loses_records"] = True


class KafkaWiped(KillKafka):
    kind = "F18 Kafka wiped"
    lasts = (0.0, 1.0)
    share = 0.7

    def begin(self) -> None:
        self.facts["read"] = read_up_to(self.system, *READ_TOPICS)
        super().begin()
        self.system.kafka.wipe()
        self.facts["loses_records"] = True


class PostgresStoppedFast(Fault):
    kind = "F20 Postgres stopped fast"
    uses = frozenset({"postgres"})
    lasts = (0.2, 3.0)

    def begin(self) -> None:
        self.system.postgres.stop()
        self.fired += 1

    def heal(self) -> None:
        if not self.system.postgres.is_running:
            self.system.postgres.start()


class PostgresStoppedImmediately(PostgresStoppedFast):
    kind = "F20 Postgres stopped immediately"

    def begin(self) -> None:
        """SIGQUIT: no checkpoint; the next start recovers."""
        _signal(self.system.postgres.pid, signal.SIGQUIT)
        end = time.monotonic() + 10
        while self.system.postgres.is_running and time.monotonic() < end:
            time.sleep(0.02)
        self.system.postgres.kill9()
        self.fired += 1


class PostgresKilled(PostgresStoppedFast):
    kind = "F20 Postgres killed"

    def begin(self) -> None:
        self.system.postgres.kill9()
        self.fired += 1


class PostgresFrozen(Fault):
    kind = "F16 Postgres frozen"
    uses = frozenset({"postgres"})
    lasts = (1.0, 5.0)

    def begin(self) -> None:
        """All its processes: backends too."""
        self._pids = _family(self.system.postgres.pid)
        for pid in self._pids:
            _signal(pid, signal.SIGSTOP)
            self.fired = 1

    def heal(self) -> None:
        for pid in self._pids:
            _signal(pid, signal.SIGCONT)


class BackendsTerminated(Fault):
    kind = "F26 all Postgres sessions ended"
    uses = frozenset({"postgres"})
    lasts = (0.0, 0.0)

    def begin(self) -> None:
        for _ in range(self.draw.choice((1, 3))):
            ended = self.system.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND backend_type IN ('client backend', 'walsender')"
            )
            self.fired += len(ended)
            time.sleep(0.5)


class ConnectionsExhausted(Fault):
    kind = "F26 Postgres connections exhausted"
    uses = frozenset({"postgres"})
    lasts = (2.0, 4.0)

    def begin(self) -> None:
        self._held: list[psycopg.Connection[object]] = []
        with contextlib.suppress(psycopg.OperationalError):
            for _ in range(200):
                self._held.append(self.system.connect())
        self.fired += len(self._held)

    def heal(self) -> None:
        for connection in self._held:
            connection.close()


def _signal(pid: int | None, number: int) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _family(pid: int | None) -> list[int]:
    """A process and its children, parent first."""
    if pid is None:
        return []
    with contextlib.suppress(OSError):
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return [pid]
