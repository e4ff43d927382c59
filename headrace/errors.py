"""Every error a user can meet.

    HeadraceError                HR-1000
    ├── ConfigurationError       HR-1001  found at start; names the setting
    ├── DefinitionError          HR-1002  the workflow is wrong: every fault with path and line -> 422
    ├── MessageError             HR-1003  cannot decode, or unknown wire version -> dead letter, keep consuming
    ├── NotFoundError            HR-1004  no such workflow, run, task, approval, dead letter -> 404
    ├── ConflictError            HR-1005  already decided, or wrong state for this request -> 409
    ├── FencedError              HR-1006  the token is no longer current -> stop this attempt, write nothing
    ├── UnavailableError         HR-1007  broker or database away -> retry with backoff; 503 with Retry-After
    │   └── UnreadableError      HR-1014  this process is older than that version of a workflow -> ask a newer one
    ├── InvariantError           HR-1008  we are wrong -> isolate the run (dead letter, NEEDS_ATTENTION)
    ├── PayloadError             HR-1009  not strict JSON, or too large -> 422, or FAILED(BAD_RESULT)
    │   └── FilterError          HR-1033  the text of a filter is wrong: every fault with its column -> 422
    ├── KeyReusedError           HR-1010  the idempotency key was used with another body -> 422
    ├── NonRetryable             HR-1011  raised by a body: do not try again
    ├── RetryAfter               HR-1012  raised by a body: try again after this delay
    ├── AmbiguousError           HR-1013  raised by a body: its effect may have happened -> by the task's `effect`
    ├── MissingObjectError       HR-1015  the object store lacks a large value, or has another -> 404; retry
    ├── ForbiddenError           HR-1017  this person may not do that -> 403
    └── AccessError              HR-1030  who calls is not known, or their token may not do this -> 401, 403

Named for what the caller does next. Ids are fields, not only prose. docs/errors.md has a section for each code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar


class HeadraceError(Exception):
    """Every error of Headrace; `code` is stable, `fields` carries the ids it is about."""

    code: ClassVar[str] = "HR-1000"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = fields


class ConfigurationError(HeadraceError):
    code = "HR-1001"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in a definition."""

    path: str
    """Where, as a path of keys: `tasks.charge.needs[0]`; empty for the document as a whole."""
    message: str
    line: int | None = None
    """1-based line in the YAML or JSON text; None when it was built in Python."""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line is not None else ""
        return f"{where}{self.path or 'document'}: {self.message}"


class DefinitionError(HeadraceError):
    """A workflow that cannot be published; `faults` has every fault, in the order of the document."""

    code = "HR-1002"

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


class MessageError(HeadraceError):
    code = "HR-1003"


class NotFoundError(HeadraceError):
    code = "HR-1004"


class ConflictError(HeadraceError):
    code = "HR-1005"


class FencedError(HeadraceError):
    code = "HR-1006"


class UnavailableError(HeadraceError):
    code = "HR-1007"


class UnreadableError(UnavailableError):
    """A published version that this process cannot read, as an older one meets in a rolling update."""

    code = "HR-1014"


class InvariantError(HeadraceError):
    code = "HR-1008"


class PayloadError(HeadraceError):
    """`reason` is the stable word stored with a failed attempt: BAD_RESULT, RESULT_TOO_LARGE, BAD_INPUT,
    INPUT_TOO_LARGE."""

    code = "HR-1009"

    def __init__(self, message: str, reason: str = "BAD_RESULT", **fields: Any) -> None:
        super().__init__(message, **fields)
        self.reason = reason


class FilterError(PayloadError):
    """The text of a filter that cannot be read; the path of a fault is `filter:` and its column, from 1."""

    code = "HR-1033"

    def __init__(self, message: str, faults: Sequence[Fault] = (), **fields: Any) -> None:
        super().__init__(message, "BAD_INPUT", **fields)
        self.faults = list(faults)


class KeyReusedError(HeadraceError):
    code = "HR-1010"


class NonRetryable(HeadraceError):
    """Raise it in a body when another try cannot help: the task fails at once."""

    code = "HR-1011"


class RetryAfter(HeadraceError):
    """Raise it in a body to be tried again after `delay` instead of the backoff; it still uses up an attempt."""

    code = "HR-1012"

    def __init__(self, delay: timedelta | float, message: str = "") -> None:
        super().__init__(message or f"try again after {delay}")
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)


class AmbiguousError(HeadraceError):
    """Raise it in a body that cannot tell whether its effect happened: a time-out of the system it called, say.

    Under `effect: idempotent` the task is tried again; `reconcile` asks its lookup, `manual` a person.
    """

    code = "HR-1013"


class MissingObjectError(HeadraceError):
    """A large value that the object store does not have, or has with another content."""

    code = "HR-1015"


class ForbiddenError(HeadraceError):
    """Whoever acts is known, and may not do this: decide a question that is for others, say."""

    code = "HR-1017"


class AccessError(HeadraceError):
    """The API does not know who calls, or their token is not for this."""

    code = "HR-1030"
