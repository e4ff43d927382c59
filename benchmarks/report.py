"""What one command measured: a table for people at once, and a file for programs that grows with it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import Measurement
from benchmarks.table import spreads, table


class Report:
    """path: the JSON file; written again after every part, so that a command that is ended keeps what it had."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self._path, self.parts = path, dict[str, Any](facts=facts)
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        name: str,
        title: str,
        rows: Sequence[tuple[str, str]],
        found: Sequence[Measurement],
        *,
        pgbench_c8: float | None = None,
        **more: Any,
    ) -> None:
        """found: the repetitions. pgbench_c8: the calibration of the same minute."""
        told = [*rows, *([("pgbench c8, commits/s", f"{pgbench_c8:,.0f}")] if pgbench_c8 else [])]
        print(table(f"{name}  {title}", told), flush=True)
        self.parts[name] = {
            "title": title,
            "pgbench_c8": pgbench_c8,
            **more,
            "min_median_max": spreads(found) if found else {},
            "repeats": list(found),
        }
        self.save()

    def save(self) -> None:
        self._path.write_text(json.dumps(self.parts, indent=1))
