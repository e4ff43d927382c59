"""CPU, memory and log bytes of the processes that a benchmark runs, from /proc."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

POSTGRES: Final = "postgres"
_MEMORY: Final = re.compile(r"^(VmRSS|RssAnon|RssShmem):\s+(\d+) kB", re.MULTILINE)


def thread_seconds(pid: int) -> dict[int, float]:
    """User and system time of each thread of a process, by its number; empty when it is gone. Nanosecond accounting of
    the scheduler. It has no sum of a process that threads which ended are part of."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found[int(thread.name)] = int((thread / "schedstat").read_text().split()[0]) / 1e9
    return found


def resident_mib(pid: int) -> dict[str, float]:
    """VmRSS, RssAnon and RssShmem of a process; empty when it is gone."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return {name: int(kib) / 1024 for name, kib in _MEMORY.findall(status)}
    return {}


def families(roots: list[int]) -> dict[int, list[int]]:
    """Each of `roots` with its children and theirs, from one look at /proc."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parent = int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
                parents.setdefault(parent, []).append(int(entry))
    found = {root: [root] for root in roots}
    for family in found.values():
        for known in family:
            family.extend(parents.get(known, []))
    return found


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
    """CPU and memory by part. A thread that ends is known by its last sample, so sample often."""

    def __init__(self, roots: dict[str, int], postgres: int) -> None:
        """roots: part -> pid, counted with their children. postgres: pid of the postmaster."""
        self._roots, self._postgres = roots, postgres
        self._first: dict[tuple[str, int], float] = {}
        self._last: dict[tuple[str, int], float] = {}
        self.most_mib: dict[str, float] = {}
        """The most memory that each part was seen to hold."""

    def sample(self) -> None:
        is_first = not self._last
        for part, pid in self._processes():
            for thread, seconds in thread_seconds(pid).items():
                self._first.setdefault((part, thread), seconds if is_first else 0.0)
                self._last[part, thread] = seconds

    def sample_memory(self) -> dict[str, float]:
        """MiB by part. Postgres: what each of its processes has of its own, and once what they share."""
        found: dict[str, float] = {}
        shared = 0.0
        for part, pid in self._processes():
            memory = resident_mib(pid)
            if part.startswith(POSTGRES):
                shared = max(shared, memory.get("RssShmem", 0.0))
                found[POSTGRES] = found.get(POSTGRES, 0.0) + memory.get("RssAnon", 0.0)
            else:
                found[part] = found.get(part, 0.0) + memory.get("VmRSS", 0.0)
        found[POSTGRES] = found.get(POSTGRES, 0.0) + shared
        for part, mib in found.items():
            self.most_mib[part] = max(self.most_mib.get(part, 0.0), mib)
        return found

    def _processes(self) -> Iterator[tuple[str, int]]:
        found = families([*self._roots.values(), self._postgres])
        for part, root in self._roots.items():
            for pid in found[root]:
                yield part, pid
        postmaster, *servers = found[self._postgres]
        yield "postgres other", postmaster
        for pid in servers:
            yield postgres_part(pid), pid

    def used(self) -> dict[str, float]:
        """Seconds of CPU by part since the first sample."""
        parts: dict[str, float] = {}
        for (part, thread), seconds in self._last.items():
            parts[part] = parts.get(part, 0.0) + seconds - self._first[part, thread]
        return parts


def log_bytes(folder: Path, prefix: str) -> int:
    """Bytes of Kafka's segments of the topics whose name begins with `prefix`."""
    return sum(file.stat().st_size for file in folder.glob(f"**/{prefix}*/*.log"))
