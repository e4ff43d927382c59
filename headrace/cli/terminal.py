"""What a command prints: for people with colours and tables, or one JSON document for programs."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDE: Final = 200
"""Columns when nobody looks: an id that is cut cannot be used by the next program."""
STYLES: Final[Mapping[str, tuple[str, str, str]]] = {
    # status: sign, sign without Unicode, colour
    "pending": ("○", ".", "dim"),
    "queued": ("◌", "~", "cyan"),
    "running": ("●", ">", "bright_blue"),
    "waiting": ("◔", "?", "yellow"),
    "completed": ("✓", "+", "green"),
    "failed": ("✗", "x", "bold red"),
    "skipped": ("»", "-", "dim"),
    "cancelled": ("⊘", "/", "magenta"),
    "needs_attention": ("!", "!", "bold red"),
    "pausing": ("◖", "=", "yellow"),
    "paused": ("‖", "=", "yellow"),
    "terminated": ("⊗", "#", "bold magenta"),
    "cancelling": ("⊖", "/", "yellow"),
    "compensating": ("↺", "<", "yellow"),
    "compensated": ("↩", "<", "magenta"),
    "compensation_failed": ("✗", "x", "bold red"),
}


class Terminal:
    """Where a command's answer goes. Data on standard output, everything else on standard error."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.is_json = is_json
        self.console = _console(sys.stdout)
        self.errors = _console(sys.stderr)

    @property
    def is_live(self) -> bool:
        """Whether a display that redraws itself makes sense."""
        return self.console.is_terminal and not self.is_json

    def show(self, document: object, draw: Callable[[], RenderableType]) -> None:
        """Print `document` as JSON, or what `draw` makes of it."""
        if self.is_json:
            self.print_json(document)
        else:
            self.console.print(draw())

    def print_json(self, document: object) -> None:
        """Indented for people at a terminal, one line for programs."""
        indent = 2 if self.console.is_terminal else None
        print(json.dumps(document, indent=indent, ensure_ascii=False, default=str), flush=True)

    def say(self, text: str | Text) -> None:
        """A line for people; programs do not get it."""
        if not self.is_json:
            self.console.print(text, highlight=False)

    def fail(self, message: str, *, code: str, details: list[dict[str, Any]] | None = None) -> None:
        """An error, on standard error; with `--json` as an object there."""
        if self.is_json:
            error = {"code": code, "message": message, **({"errors": details} if details else {})}
            print(json.dumps({"error": error}, ensure_ascii=False), file=sys.stderr, flush=True)
            return
        first, *rest = message.splitlines() or [""]
        self.errors.print(Text.assemble(("error ", "bold red"), first), highlight=False, soft_wrap=True)
        for line in rest:
            self.errors.print(Text(f"  {line}"), highlight=False, soft_wrap=True)
        for detail in details or ():
            where = f"line {detail['line']}: " if detail.get("line") else ""
            fault = f"{detail.get('path') or 'document'}: {detail.get('message')}"
            if where or fault not in message:  # a single fault is often all that the message says
                self.errors.print(Text(f"  {where}{fault}"), soft_wrap=True)

    def status(self, status: str) -> Text:
        """A status with its sign and colour."""
        return Text.assemble(self.sign(status), " ", (status.replace("_", " "), STYLES.get(status, ("", "", ""))[2]))

    def sign(self, status: str) -> Text:
        fancy, plain, style = STYLES.get(status, ("·", "·", ""))
        return Text(fancy if self.can_draw else plain, style=style)

    @property
    def can_draw(self) -> bool:
        """Whether standard output takes more than ASCII."""
        return "utf" in (self.console.encoding or "").lower()


def table(*columns: str) -> Table:
    """A table without lines; what does not fit is folded, never cut."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=number == 0)
    return made


def ago(instant: str | None, now: datetime | None = None) -> str:
    """An RFC 3339 instant as an age in words; empty for None."""
    at = parse_instant(instant)
    if at is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def between(begin: str | None, end: str | None) -> str:
    """The time between two RFC 3339 instants in words; empty when one is missing."""
    first, last = parse_instant(begin), parse_instant(end)
    return span((last - first).total_seconds()) if first and last else ""


def span(seconds: float) -> str:
    """12 ms, 3.4 s, 2 min, 5 h, 3 d."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size * 1.5 or unit == "min":
            return f"{seconds / size:.0f} {unit}"
    return ""


def parse_instant(instant: str | None) -> datetime | None:
    return datetime.fromisoformat(instant.replace("Z", "+00:00")) if instant else None


def _console(stream: Any) -> Console:
    # A pipe has no width of its own; COLUMNS, when set, is the user's wish.
    width = None if stream.isatty() or os.environ.get("COLUMNS") else WIDE
    return Console(file=stream, width=width, highlight=False)
