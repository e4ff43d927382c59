"""CPU, memory and log bytes of the processes that a benchmark runs, from /proc."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads; 0 when it is gone. Nanosecond accounting of the
    scheduler."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def resident_mib(pid: int) -> float:
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return 0.0


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`, and theirs."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parent = int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
                parents.setdefault(parent, []).append(int(entry))
    found = [pid]
    for known in found:
        found.extend(parents.get(known, []))
    return found[1:]


def postgres_part(pid: int) -> str:
    """What a Postgres process is, by its title."""
    title = ""
    with contextlib.suppress(OSError):
        title = Path(f"/proc/{pid}/cmdline").read_text()
    for word, part in (
        ("walsender", "postgres walsender"),
        ("walwriter", "postgres walwriter"),
        ("autovacuum", "postgres vacuum"),
        ("checkpointer", "postgres other"),
        ("background writer", "postgres other"),
        ("logical replication", "postgres other"),
    ):
        if word in title:
            return part
    return "postgres backends"


class Sampler:
    """CPU by part. A process that ends is known by its last sample, so sample often."""

    def __init__(self, roots: dict[str, int], postgres: int) -> None:
        """roots: part -> pid, counted with their children. postgres: pid of the postmaster."""
        self._roots, self._postgres = roots, postgres
        self._first: dict[tuple[str, int], float] = {}
        self._last: dict[tuple[str, int], float] = {}

    def sample(self) -> None:
        is_first = not self._last
        for part, pid in self._pids():
            seconds = cpu_seconds(pid)
            if seconds:
                self._first.setdefault((part, pid), seconds if is_first else 0.0)
                self._last[part, pid] = seconds

    def _pids(self) -> Iterable[tuple[str, int]]:
        for part, pid in self._roots.items():
            yield part, pid
            for child in children(pid):
                yield part, child
        yield "postgres other", self._postgres
        for pid in children(self._postgres):
            yield postgres_part(pid), pid

    def used(self) -> dict[str, float]:
        """Seconds of CPU by part since the first sample."""
        parts: dict[str, float] = {}
        for (part, pid), seconds in self._last.items():
            parts[part] = parts.get(part, 0.0) + seconds - self._first[part, pid]
        return parts


def log_bytes(folder: Path, word: str) -> int:
    """Bytes of Kafka's segments of the topics whose name holds `word`."""
    return sum(file.stat().st_size for file in folder.rglob("*.log") if word in str(file.parent))
