"""The one log of `headrace dev`: the lines of all processes, each with the name of its process in its colour."""

import json
import re
import sys
import threading
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.text import Text

COLOURS: Final = {
    "worker": ("green", "bright_green", "dark_green", "spring_green3"),
    "streams": ("bright_blue",),
    "relay": ("magenta",),
    "api": ("cyan",),
    "broker": ("yellow",),
    "postgres": ("yellow",),
    "dev": ("bold white",),
    "run": ("bold",),
}
NAME_WIDTH: Final = 10
_STAMP: Final = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:?\d*[.,\d]*(Z|[+-]\d\d:?\d\d)?\s+")
"""The process's own time: ours is shown instead."""


class DevLog:
    """Prints whole lines from several threads. As JSON, one object a line: `{"at", "process", "line"}`."""

    def __init__(self, *, is_json: bool = False) -> None:
        self._is_json = is_json
        self._console = Console(highlight=False, soft_wrap=True)
        self._lock = threading.Lock()

    def __call__(self, process: str, line: str) -> None:
        now = datetime.now().astimezone()
        with self._lock:
            if self._is_json:
                document = {"at": now.isoformat(timespec="milliseconds"), "process": process, "line": line}
                print(json.dumps(document, ensure_ascii=False), flush=True)
            elif line.strip():
                self._print(now, process, line)

    def _print(self, now: datetime, process: str, line: str) -> None:
        shown = Text.assemble(
            (f"{now:%H:%M:%S} ", "dim"),
            (f"{process:<{NAME_WIDTH}} ", colour_of(process)),
            Text.from_ansi(readable(line)),
        )
        try:
            self._console.print(shown)
        except BrokenPipeError:  # whoever read us is gone; the processes matter more than the lines
            sys.stdout = sys.stderr


def readable(line: str) -> str:
    """The line without the process's own time; a structured one as `level event name=value`."""
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except ValueError:
            return line
        if isinstance(fields, dict) and "event" in fields:
            fields.pop("timestamp", None)
            level, event, trace = fields.pop("level", "info"), fields.pop("event"), fields.pop("exception", "")
            rest = " ".join(f"{name}={value}" for name, value in fields.items())
            return f"[{level:<8}] {event} {rest}".rstrip() + (f"\n{trace}" if trace else "")
    return _STAMP.sub("", line)


def colour_of(process: str) -> str:
    kind, _, number = process.rpartition("-")
    colours = COLOURS.get(kind or process, ("white",))
    return colours[(int(number) - 1) % len(colours)] if number.isdigit() and kind else colours[0]
