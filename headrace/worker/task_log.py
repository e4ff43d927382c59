"""What bodies log, on its way to the engine: `ctx.log`, and whatever they write by the standard library's `logging`.

    body (any thread) ─▶ a bounded buffer ─▶ every FLUSH_SECONDS, per hand-out, ─▶ Kafka `<prefix>.logs`

Logging never holds up a body and never costs the worker its answers: it has a producer of its own, made with the first
line, and what does not fit is dropped and counted, which the log then says.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import msgspec
import structlog

from headrace.attempt import Attempt
from headrace.batch_producer import BatchProducer
from headrace.context import TASK_LOGGER, running
from headrace.messages import Logged, LogLine, encode
from headrace.worker.broker import Broker

FLUSH_SECONDS: Final = 0.25
WAITING_MAX: Final = 5_000
"""Lines that wait for the next flush, over all bodies of the worker."""
UNSENT_MAX: Final = 500
"""Records that wait for Kafka; while there are more, lines are dropped."""
LINES_MAX: Final = 10_000
"""Of one hand-out."""
MESSAGE_CHARS_MAX: Final = 8_000
FIELDS_BYTES_MAX: Final = 8_000
RECORD_LINES: Final = 200

_log = structlog.get_logger("headrace.worker")
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "exception": 40, "critical": 50}
_BOUND: Final = frozenset({"run_id", "task", "attempt", "token"})
"""What `ctx.log` says with every line; the row of the line has it."""
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TaskLog(logging.Handler):
    """Takes lines from any thread; `install` and `close` on the worker's event loop."""

    def __init__(self, broker: Broker, worker: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._broker, self._worker, self._loop = broker, worker, loop
        self._guard = threading.Lock()
        self._waiting: list[tuple[Attempt, LogLine]] = []
        self._dropped: dict[Attempt, int] = {}
        self._is_due = False
        self._producer: BatchProducer | None = None

    def install(self) -> None:
        """From here on what bodies write by `logging` is taken too; as the levels of its loggers let through."""
        logging.getLogger().addHandler(self)

    async def close_within(self, seconds: float) -> None:
        """Send what there is, as far as Kafka takes it in that time."""
        logging.getLogger().removeHandler(self)
        self._flush()
        if self._producer is not None:
            await self._producer.empty(seconds)
            await self._producer.close()

    # -- taking --------------------------------------------------------------------------------------------------------
    def emit(self, record: logging.LogRecord) -> None:
        """A record of the standard library: of a body of this worker, and not one of `ctx.log`, which was taken."""
        context = running.get(None)
        if context is None or record.name == TASK_LOGGER or context.hand_out.log is not self:
            return
        try:
            message = record.getMessage()
            if record.exc_info and record.exc_info[0] is not None:
                message += "\n" + (self.formatter or logging.Formatter()).formatException(record.exc_info)
            fields = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        except Exception as e:
            message, fields = f"a log record that cannot be formatted: {e!r}", {}
        self.add(context.hand_out, record.levelno, record.name, message, fields)

    def take(self, attempt: Attempt) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
        """A structlog processor, the first of `ctx.log`: takes the line, and lets it go on as it is."""

        def processor(_: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
            fields = {name: value for name, value in event.items() if name not in _BOUND and name != "event"}
            if fields.get("exc_info") or method == "exception":
                event_with_trace = structlog.processors.format_exc_info(None, method, {"exc_info": True, **fields})
                fields = dict(event_with_trace)
            self.add(attempt, _LEVELS.get(method, 20), "", str(event.get("event", "")), fields)
            return event

        return processor

    def add(self, attempt: Attempt, level: int, logger: str, message: str, fields: dict[str, Any]) -> None:
        with self._guard:
            number = attempt.lines
            attempt.lines = number + 1
            is_clogged = self._producer is not None and len(self._producer) > UNSENT_MAX
            if number >= LINES_MAX or len(self._waiting) >= WAITING_MAX or is_clogged:
                self._dropped[attempt] = self._dropped.get(attempt, 0) + 1
            else:
                line = LogLine(number, _now(), level, _text(logger, 200), _text(message), _fields(fields))
                self._waiting.append((attempt, line))
            if self._is_due:
                return
            self._is_due = True
        try:
            self._loop.call_soon_threadsafe(self._loop.call_later, FLUSH_SECONDS, self._flush)
        except RuntimeError:
            return  # the loop is closed: the worker ended without this body

    # -- sending -------------------------------------------------------------------------------------------------------
    def _flush(self) -> None:
        with self._guard:
            waiting, self._waiting = self._waiting, []
            dropped, self._dropped = self._dropped, {}
            self._is_due = False
            for attempt, count in dropped.items():
                text = f"{count} lines were dropped: a body may log {LINES_MAX:,} in one hand-out, and not faster than"
                line = LogLine(attempt.lines, _now(), logging.WARNING, "headrace", f"{text} Kafka takes them")
                attempt.lines += 1
                waiting.append((attempt, line))
        if not waiting:
            return
        by_attempt: dict[Attempt, list[LogLine]] = {}
        for attempt, line in waiting:
            by_attempt.setdefault(attempt, []).append(line)
        producer = self._opened()
        for attempt, lines in by_attempt.items():
            command = attempt.command
            for start in range(0, len(lines), RECORD_LINES):
                part = lines[start : start + RECORD_LINES]
                said = Logged(command.task, command.attempt, command.token, command.nonce, self._worker, part)
                producer.add(self._broker.logs, attempt.name[0], encode(said))
        producer.flush()

    def _opened(self) -> BatchProducer:
        if self._producer is None:
            self._producer = BatchProducer(self._broker.batch_producer(), self._on_refused, "lz4")
            self._producer.start()
        return self._producer

    def _on_refused(self, record: Any) -> None:
        _log.warning("kafka refuses log lines", reason=record.reason)


def _now() -> int:
    return time.time_ns() // 1000


def _text(value: str, chars: int = MESSAGE_CHARS_MAX) -> str:
    """What every store takes: no U+0000, no lone surrogate, not endless."""
    if len(value) > chars:
        value = f"{value[:chars]}… ({len(value):,} characters)"
    return value.replace("\0", "\\0").encode("utf-8", "replace").decode()


def _fields(fields: dict[str, Any]) -> msgspec.Raw:
    if not fields:
        return msgspec.Raw(b"null")
    plain = {_text(str(name), 200): _plain(value) for name, value in fields.items()}
    raw = encode(plain)
    if len(raw) > FIELDS_BYTES_MAX:
        raw = encode({name: _text(str(value), 200) for name, value in list(plain.items())[:20]})
    return msgspec.Raw(raw)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**53) < value < 2**53 else str(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, str):
        return _text(value)
    try:
        return _text(repr(value))
    except Exception:
        return f"<{type(value).__name__} without a repr>"
