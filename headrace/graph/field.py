"""What one field takes: names, limits, and the short forms of a definition."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, StrictStr, WithJsonSchema

from headrace.document import BYTES_MAX
from headrace.duration import format_duration, parse_positive_duration
from headrace.expressions import OF_ITS_END, ExpressionError, unwrap
from headrace.instant import format_instant, parse_instant
from headrace.machine.place import ITEMS_MAX

DEFINITION_BYTES_MAX: Final = BYTES_MAX
"""As text and in its canonical form, so that what was published once can be published again from what is stored."""
TASKS_MAX: Final = ITEMS_MAX
"""What fits DEFINITION_BYTES_MAX; the check takes about a second. Items of maps have the numbers behind."""
NEEDS_MAX: Final = 10_000
"""A task may wait for all the others."""
ROUNDS_MAX: Final = 1_000
"""Of a repeat; every round leaves a row."""
ATTEMPTS_MAX: Final = 1_000
"""More is a loop and not a retry; every attempt leaves a row."""
DESCRIPTION_CHARS_MAX: Final = 2_000
KEY_CHARS_MAX: Final = 200
LIMIT_RUNS_MAX: Final = 1_000
"""Of one key. What more runs share is a pool."""
PARALLEL: Final = 1_000
"""Items of one map under way at once, unless it says otherwise: one decision hands out no more than so many."""

Join = Literal["all", "any", "always", "on_failure", "finally"] | int
TASK_NAME: Final = r"[A-Za-z][A-Za-z0-9_-]{0,99}"
DOTTED_NAME: Final = r"[A-Za-z][A-Za-z0-9_.-]{0,99}"
_QUEUE_NAME: Final = r"[a-z][a-z0-9-]{0,49}"


def _matches(pattern: str, what: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"{value[:120]!a} is no name of a {what}")
        return value

    return check


def text_schema(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"}


# Names travel through URLs, Kafka keys, logs and pages, so they are plain ASCII.
TaskName = Annotated[
    StrictStr,
    AfterValidator(_matches(TASK_NAME, "task: a letter, then up to 99 letters, digits, _ and -")),
    WithJsonSchema(text_schema(TASK_NAME)),
]
WorkflowName = Annotated[
    StrictStr,
    AfterValidator(_matches(DOTTED_NAME, "workflow: a letter, then up to 99 letters, digits, _, . and -")),
    WithJsonSchema(text_schema(DOTTED_NAME)),
]
BodyName = Annotated[
    StrictStr,
    AfterValidator(_matches(DOTTED_NAME, "body: a letter, then up to 99 letters, digits, _, . and -")),
    WithJsonSchema(text_schema(DOTTED_NAME)),
]
SignalName = Annotated[
    StrictStr,
    AfterValidator(_matches(DOTTED_NAME, "signal: a letter, then up to 99 letters, digits, _, . and -")),
    WithJsonSchema(text_schema(DOTTED_NAME)),
]
QueueName = Annotated[
    StrictStr,
    AfterValidator(_matches(_QUEUE_NAME, "queue: a small letter, then up to 49 small letters, digits and -")),
    WithJsonSchema(text_schema(_QUEUE_NAME)),
]

PoolName = Annotated[
    StrictStr,
    AfterValidator(_matches(DOTTED_NAME, "pool: a letter, then up to 99 letters, digits, _, . and -")),
    WithJsonSchema(text_schema(DOTTED_NAME)),
]


def one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def attempts_only(value: Any) -> Any:
    return {"attempts": value} if isinstance(value, int) and not isinstance(value, bool) else value


def name_only(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def body_only(value: Any) -> Any:
    return {"run": value} if isinstance(value, str) else value


def known_join(value: Any) -> Any:
    """Said in one message: pydantic would say it once for each kind of join."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value not in JOINS and not (is_number and 1 <= value <= NEEDS_MAX):
        raise ValueError(_JOIN_WANTED)
    return value


JOINS: Final = ("all", "any", "always", "on_failure", "finally")
_JOIN_WANTED: Final = f"must be {', '.join(JOINS)}, or how many of its needs have to complete"


def length_only(value: Any) -> Any:
    return {"for": value} if isinstance(value, str | int | float | timedelta) else value


def not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("null says nothing: leave `with` out for the run's input, or write {} for none")
    return value


def list_only(value: Any) -> Any:
    return {"over": value} if isinstance(value, str | list | tuple) else value


def list_given(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) <= ITEMS_MAX:
        return list(value)
    if isinstance(value, str) and value.strip().startswith("${{"):
        return value.strip()
    raise ValueError(f"must be a list of up to {ITEMS_MAX:,} items, or one ${{{{ … }}}} that gives one")


def condition_text(value: Any) -> Any:
    """One spelling for one condition. A wrong one stays as it is: the graph check reports it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return unwrap(value) if isinstance(value, str) else value
    except ExpressionError:
        return value


def until_text(value: Any) -> Any:
    try:
        return unwrap(value, OF_ITS_END) if isinstance(value, str) else value
    except ExpressionError:
        return value


def length_text(value: Any) -> Any:
    """One spelling for one length. An expression stays as it is."""
    if value is None or (isinstance(value, str) and "${{" in value):
        return value.strip() if value else value
    return format_duration(parse_positive_duration(value))


def instant_text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return value.strip() if "${{" in value else format_instant(parse_instant(value))


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
