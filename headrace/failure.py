"""What a body raised, as data: the one place where an exception becomes a `messages.Error`.

The exception may be anything: its `str()` may fail, its text may hold what Postgres cannot store, it may be a
SystemExit. Sizes are bounded because an error is stored with its attempt and shown to people.
"""

import traceback
from typing import Final

from headrace.errors import NonRetryable, PayloadError, RetryAfter
from headrace.messages import Error
from headrace.payload import type_name

MESSAGE_BYTES_MAX: Final = 4_096
TRACE_BYTES_MAX: Final = 8_192
_FRAMES_MAX: Final = 40


def describe(error: BaseException) -> Error:
    """Never raises. The innermost frames are kept when a traceback is too long: they say what failed."""
    if isinstance(error, PayloadError):
        return Error(code=_payload_code(error), message=text_of(error), type=type_name(error), retryable=False)
    return Error(
        code="ERROR",
        message=text_of(error),
        type=bounded(type_name(error), 200),
        trace=_trace(error),
        retryable=not isinstance(error, NonRetryable),
        retry_after=_delay_seconds(error),
    )


def text_of(error: BaseException) -> str:
    try:
        return bounded(str(error), MESSAGE_BYTES_MAX)
    except BaseException:  # user code
        return f"{type_name(error)} whose text cannot be read"


def bounded(text: str, bytes_max: int, *, keep_end: bool = False) -> str:
    """Cut to so many bytes of UTF-8, with U+0000 and lone surrogates written as escapes."""
    raw = text.replace("\0", "\\u0000").encode("utf-8", "backslashreplace")
    if len(raw) > bytes_max:
        raw = b"... " + raw[4 - bytes_max :] if keep_end else raw[: bytes_max - 4] + b" ..."
    return raw.decode("utf-8", "ignore")


def _payload_code(error: PayloadError) -> str:
    reason = getattr(error, "reason", None)
    return bounded(reason, 60) if isinstance(reason, str) else "BAD_RESULT"


def _trace(error: BaseException) -> str:
    try:
        frames = error.__traceback__.tb_next if error.__traceback__ else None  # the first frame is ours
        lines = traceback.format_exception(type(error), error, frames, limit=-_FRAMES_MAX)
        return bounded("".join(lines), TRACE_BYTES_MAX, keep_end=True)
    except BaseException:  # user code, through str() and repr()
        return ""


def _delay_seconds(error: BaseException) -> float | None:
    if not isinstance(error, RetryAfter):
        return None
    try:
        return max(0.0, error.delay.total_seconds())
    except BaseException:  # a subclass that never set it
        return None
