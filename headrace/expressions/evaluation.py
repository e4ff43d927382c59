"""The value of an expression, from payloads as they lie."""

import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, cast

import cel
import msgspec

from headrace.errors import PayloadError
from headrace.expressions.analysis import Wanted
from headrace.expressions.expression import Expression
from headrace.expressions.language import DEPTH_MAX, GROWTH_BYTES_MAX, INT_MAX, INT_MIN, STEPS_MAX
from headrace.instant import call_zone_function

Outputs = Callable[[str], bytes | None]
"""Output of a task by name, as JSON; None when there is none (a skipped task), which an expression sees as null. By a
variable's name behind a dot, which no task has, also that: `.item`."""
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ABSENT: Final = msgspec.Raw()
encode: Final = msgspec.json.Encoder(order="deterministic").encode  # CEL maps come back in no order
decode: Final = msgspec.json.Decoder().decode
_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
Read = Callable[[str], bytes]
"""The payload of a task by name, of a variable by its name behind a dot, or of the run for the empty name."""


def reader(input: bytes, outputs: Outputs) -> Read:
    return lambda root: (outputs(root) if root else input) or b"null"


class _Field(msgspec.Struct, frozen=True):
    value: msgspec.Raw


@lru_cache(maxsize=4_096)
def _field_reader(key: str) -> Callable[[bytes | msgspec.Raw], _Field]:
    """Read one field of an object and skip the others, which is cheaper than a dict of all. Absent: no bytes."""
    struct = msgspec.defstruct("Field", [("value", msgspec.Raw, _ABSENT)], rename={"value": key})
    return cast("Callable[[bytes | msgspec.Raw], _Field]", msgspec.json.Decoder(struct).decode)


def read_path(expression: Expression, read: Read) -> bytes | msgspec.Raw:
    """Follow a path and keep the bytes of what it leads to; the answer is that of CEL."""
    here: bytes | msgspec.Raw = read(expression.root)
    key: str | int = ""
    try:
        for key in expression.path:
            here = _field_reader(key)(here).value if isinstance(key, str) else _decode_list(here)[key]
            if here is _ABSENT:
                raise bad_input(expression, f"there is no field {key!r}")
    except IndexError:
        raise bad_input(expression, f"there is no item {key}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        kind = "a list" if isinstance(key, int) else "an object"
        raise bad_input(expression, f"cannot read {key!r}, because what should hold it is not {kind}") from error
    return here


def _prune(raw: bytes | msgspec.Raw, wanted: Wanted) -> Any:
    """Decode what an expression reads of a payload: CEL takes 2 µs for every object it is given."""
    if not wanted:
        return _decode_exactly(raw)
    fields = {}
    for key, below in wanted.items():
        try:
            found = _field_reader(key)(raw).value
        except msgspec.ValidationError:
            return _decode_exactly(raw)  # not an object, as CEL will say where it matters
        if found is not _ABSENT:
            fields[key] = _prune(found, below)
    return fields


def _decode_exactly(raw: bytes | msgspec.Raw) -> Any:
    """Raises ValueError on an integer that CEL would turn into a float without a word."""
    value = decode(raw)
    if _LONG_NUMBER.search(raw):
        for item in _walk(value):
            if isinstance(item, int) and not INT_MIN <= item <= INT_MAX:
                raise ValueError(f"the integer {item} does not fit 64 bits; only a plain path can carry it on")
    return value


def _walk(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        yield item
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def run(expression: Expression, read: Read, now: datetime | None = None) -> Any:
    """Evaluate by CEL. Raises PayloadError(BAD_INPUT) whatever goes wrong inside."""
    if expression.program is None:
        raise AssertionError("a path is read, not run")
    try:
        context: dict[str, Any] = {} if now is None else {"now": now}
        for root, wanted in expression.reads:
            value = _prune(read(root), wanted)
            if root.startswith("."):
                context[root[1:]] = value
            elif root:
                context.setdefault("tasks", {})[root] = {"output": value}
            else:
                context["input"] = value
        if not expression.is_cheap:
            _check_cost(expression, context)
        if expression.zone_functions:
            return _run_with_zones(expression, expression.program, context)
        return expression.program.execute(context)
    except (KeyboardInterrupt, SystemExit):
        raise
    except KeyError as error:
        raise bad_input(expression, f"there is no field {error.args[0]!r}") from error
    except BaseException as error:  # a panic in the evaluator is no Exception; it must fail one task, not the process
        raise bad_input(expression, str(error).split(". CEL does not coerce")[0][:300]) from error


def _run_with_zones(expression: Expression, program: cel.Program, context: dict[str, Any]) -> Any:
    """With the functions of `headrace.instant`. One that is refused must not raise: the evaluator would print that."""
    refused: list[ValueError] = []

    def bind(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return call_zone_function(name, arguments)
            except ValueError as error:
                refused.append(error)
                return None

        return call

    functions = {name: bind(name) for name in expression.zone_functions}
    try:
        answer = program.execute(cel.Context(variables=context, functions=functions))
    except Exception as error:
        raise refused[0] if refused else error from None
    if refused:
        raise refused[0]
    return answer


def _check_cost(expression: Expression, context: dict[str, Any]) -> None:
    """Raises ValueError when the evaluation could take too long, or too much memory."""
    values = items = size = 0
    for value in _walk(context):
        values += 1
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict | list):
            items = max(items, len(value))
    # What the expression adds by itself: lists written in it, and sums of lists.
    values = values * (expression.additions + 1) + expression.symbols
    items = items * (expression.additions + 1) + expression.symbols
    if values * sum(cost * items**power for power, cost in enumerate(expression.costs)) > STEPS_MAX:
        raise ValueError(f"it could take more than {STEPS_MAX:,} steps on so much data; let a task do it")
    if size * (expression.additions + 1) * items**expression.read_depth > GROWTH_BYTES_MAX:
        raise ValueError("its result could be too large on so much data; let a task do it")


def encode_result(expression: Expression, value: Any) -> bytes:
    if (fault := _find_fault(value, 0)) is not None:
        raise bad_input(expression, fault)
    return encode(value)


def _find_fault(value: Any, depth: int) -> str | None:
    """Why a value is no strict JSON, if it is not. Recursion is bounded by DEPTH_MAX."""
    if isinstance(value, str):
        return "the result holds U+0000" if "\x00" in value else None
    if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
        return "the result holds an integer beyond 64 bits with a sign"
    if value is None or isinstance(value, int):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"the result holds {value}, which JSON cannot say"
    if not isinstance(value, dict | list):
        return f"the result holds a {type(value).__name__}, which JSON cannot say; convert it, as with string(…)"
    if depth >= DEPTH_MAX:
        return f"the result nests objects and lists more than {DEPTH_MAX} deep"
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return "the result holds an object with a key that is not text"
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return next((fault for item in items if (fault := _find_fault(item, depth + 1))), None)


def as_text(raw: bytes) -> bytes:
    """A JSON value as it reads inside a JSON string."""
    raw = raw.strip()
    if raw.startswith(b'"'):
        return raw[1:-1]
    return encode(raw.decode())[1:-1] if raw[:1] in (b"{", b"[") else raw


def is_deeper(value: bytes | msgspec.Raw, depth_max: int) -> bool:
    """Whether objects and lists nest deeper, without parsing: each pass takes the innermost brackets away."""
    raw = bytes(value)
    if len(raw) <= 2 * depth_max:
        return False
    if raw.count(b"[") + raw.count(b"{") <= depth_max:
        return False
    brackets = _STRING.sub(b"", raw).translate(_TO_SQUARE, _NOT_BRACKETS)
    for _ in range(depth_max):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def bad_input(expression: Expression, message: str) -> PayloadError:
    text = expression.text if len(expression.text) <= 200 else expression.text[:200] + "…"
    return PayloadError(f"{text}: {message}", reason="BAD_INPUT")
