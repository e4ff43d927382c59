"""What was asked from outside, and what came of it: every call of a client, and every fault of the nemesis.

One entry is one dictionary, also a line of a file. A call has `op`, `at`, `done_at`, `outcome`:

    OK       it happened: 2xx
    FAIL     it did not happen: refused, or never sent
    UNKNOWN  it may have happened, but only whole: no answer, or a 5xx

A fault has `op: fault`, `kind`, `at` (begins), `healed_at`, `fired` (how often it really did something).
"""

import json
import threading
from pathlib import Path
from typing import Any


class ClientLog:
    """Append-only; safe from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._lock = threading.Lock()
        self.entries: list[dict[str, Any]] = []

    def add(self, entry: dict[str, Any]) -> None:
        with self._lock:
            self.entries.append(entry)
            self._file.write(json.dumps(entry, default=str) + "\n")

    def close(self) -> None:
        self._file.close()


def read_client_log(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
