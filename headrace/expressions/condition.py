"""An expression by itself: what decides, and what a wait waits for."""

from datetime import datetime
from typing import Any

from headrace.expressions.evaluation import Outputs, bad_input, decode, read_path, reader, run
from headrace.expressions.expression import Expression, find_end, parse_expression, split
from headrace.expressions.language import ExpressionError, Variables


class _Compiled:
    """One compiled expression. Immutable, and safe to share between threads."""

    __slots__ = ("_expression",)

    def __init__(self, expression: Expression) -> None:
        self._expression = expression

    @property
    def references(self) -> frozenset[str]:
        """Names of the tasks whose outputs it reads."""
        return self._expression.references

    reads = references


class Condition(_Compiled):
    """A compiled `if`."""

    __slots__ = ()

    def evaluate(self, input: bytes, outputs: Outputs) -> bool:
        """Decide. Raises PayloadError(BAD_INPUT) when the evaluation fails or the answer is neither true nor false."""
        read = reader(input, outputs)
        if self._expression.program is None:
            answer = {b"true": True, b"false": False}.get(bytes(read_path(self._expression, read)).strip())
        else:
            answer = run(self._expression, read)
        if not isinstance(answer, bool):
            raise bad_input(self._expression, "a condition must be true or false")
        return answer


class Value(_Compiled):
    """A compiled `for` or `until` of a wait: what it gives is no JSON yet."""

    __slots__ = ()

    def evaluate(self, input: bytes, outputs: Outputs, now: datetime) -> Any:
        """Text, a number, an instant, or anything else. Raises PayloadError(BAD_INPUT) when the evaluation fails."""
        read = reader(input, outputs)
        if self._expression.program is None:
            return decode(read_path(self._expression, read))
        return run(self._expression, read, now)


def compile_condition(text: str, variables: Variables = ()) -> Condition:
    """Compile a task's `if`: CEL, bare or as one `${{ … }}`. Raises ExpressionError.

    variables: as for `compile_template`.

    >>> compile_condition("tasks.price.output.total > 10.0").evaluate(b"{}", {"price": b'{"total":12.5}'}.get)
    True
    """
    return Condition(parse_expression(unwrap(text, variables), variables))


def compile_value(text: str) -> Value:
    """Compile an expression that may ask what time it is; `text` is exactly one `${{ … }}`. Raises ExpressionError.

    >>> friday = datetime.fromisoformat("2026-11-27T15:00:00Z")
    >>> value = compile_value('${{ nextWeekday(now, "09:00", input.zone) }}')
    >>> value.evaluate(b'{"zone":"Europe/Berlin"}', {}.get, friday)
    datetime.datetime(2026, 11, 30, 8, 0, tzinfo=datetime.timezone.utc)
    """
    stripped = text.strip()
    end = find_end(stripped, 3) if stripped.startswith("${{") else 0
    if not end or end + 2 != len(stripped):
        raise ExpressionError("write the whole of it in one ${{ … }}")
    return Value(parse_expression(stripped[3:end].strip(), ("now",)))


def unwrap(text: str, variables: Variables = ()) -> str:
    """The CEL of a condition, without its `${{ }}` and the space around it. Raises ExpressionError."""
    if "${{" not in text:
        return text.strip()
    pieces = split(text.strip(), variables)
    if len(pieces) != 1 or isinstance(pieces[0], str):
        raise ExpressionError("write the whole condition in one ${{ … }}, or without it")
    return pieces[0].text
