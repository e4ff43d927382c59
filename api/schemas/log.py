"""What bodies logged."""

from typing import Literal

import msgspec

from api.schemas.wire import Instant


class LogLine(msgspec.Struct):
    """What a body logged."""

    line_id: int
    at: Instant
    """By the clock of its worker."""
    task: str
    attempt: int
    token: int
    level: Literal["debug", "info", "warning", "error"]
    worker: str
    logger: str
    """Empty: `ctx.log`."""
    message: str
    fields: msgspec.Raw | None
    """What was said with it, by name."""


class LogPage(msgspec.Struct):
    items: list[LogLine]
    last: int
    """`after` of the next page."""
