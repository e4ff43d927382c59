"""What an expression may say, and how much of it."""

import re
from collections.abc import Iterator
from typing import Final

from headrace.document import Path
from headrace.instant import ZONE_FUNCTIONS

Variables = tuple[str, ...]
OF_AN_ITEM: Final = ("item", "index")
OF_A_ROUND: Final = ("last", "index")
OF_ITS_END: Final = ("output", "index")
"""Variables of a map: the item, and its place in the list from 0."""
OF_A_COMPENSATION: Final = ("task",)
"""The task that is undone: its `input`, and its `output`, null when it did not complete."""

EXPRESSION_CHARS_MAX: Final = 4_000
"""Longer than anybody can review; it bounds the time to compile one."""
EXPRESSION_SYMBOLS_MAX: Final = 500
"""The evaluator recurses once for each operator: 250 of them fit the stack of a thread of 256 KiB, 500 do not."""
EXPRESSION_NESTING_MAX: Final = 32
"""Brackets inside brackets; the parser gives up at about 90."""
MACRO_NESTING_MAX: Final = 2
"""`map` inside `map` costs n², one more n³."""
STEPS_MAX: Final = 5_000_000
"""Bound on the values that CEL copies in one evaluation, about a second. It copies a variable whenever it is read, and
a list whenever a macro appends to it: `map` over 20,000 objects took 15 s. An evaluation cannot be interrupted."""
GROWTH_BYTES_MAX: Final = 64_000_000
"""Bound on the bytes an evaluation can multiply its data to, by `s + s + …` or by naming a payload inside a macro."""
DEPTH_MAX: Final = 64
"""Objects and lists inside one another in a payload; common parsers elsewhere stop at 100."""

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
_SYMBOL: Final = re.compile(
    r"""
      (?P<space> [ \t\r\n\f]+ )
    | (?P<string> [bB]?[rR][bB]? (?: \"{3}[\s\S]*?\"{3} | '{3}[\s\S]*?'{3} | "[^"\r\n]*" | '[^'\r\n]*' )
                | [bB]? (?: \"{3}(?:[^\\]|\\[\s\S])*?\"{3} | '{3}(?:[^\\]|\\[\s\S])*?'{3}
                          | "(?:[^"\\\r\n]|\\.)*" | '(?:[^'\\\r\n]|\\.)*' ) )
    | (?P<number> 0[xX][0-9a-fA-F]+[uU]? | (?:[0-9]+\.[0-9]+|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?[uU]? )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<comment> // )
    | (?P<mark> && | \|\| | [=!<>]= | [-+*/%!<>?:.,()\[\]{}] )
    """,
    re.VERBOSE,
)
WHO_KNOWS: Final = {
    "now": "; only a wait knows what time it is",
    "item": "; only the `with` of a map knows its items",
    "index": "; only the `with` of a map or of a repeat, and its `until`, count",
    "last": "; only the `with` of a repeat knows what came out of the round before",
    "output": "; only the `until` of a repeat knows what came out of the round, or write tasks.NAME.output",
}
WORDS: Final = frozenset({"true", "false", "null", "in"})
TYPES: Final = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"})
MACROS: Final = frozenset({"all", "exists", "exists_one", "filter", "map"})
# The contract of the language, written down, so that a misspelt function is found at publish and not in a run.
FUNCTIONS: Final = frozenset(
    {"bytes", "double", "duration", "dyn", "has", "int", "size", "string", "timestamp", "type", "uint"}
    | {"contains", "endsWith", "matches", "startsWith"}
    | {"getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getMonth"}
    | {"getHours", "getMilliseconds", "getMinutes", "getSeconds"}
    | ZONE_FUNCTIONS.keys()
)


class ExpressionError(ValueError):
    """A template or condition that cannot be published. `path`: where in the value; empty for the value itself."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.message, self.path = message, path


def symbols_of(text: str, start: int = 0) -> Iterator[tuple[str, str, int]]:
    """(kind, symbol, position) of everything but space. Raises ExpressionError at what can be no symbol."""
    position = start
    while position < len(text):
        match = _SYMBOL.match(text, position)
        if match is None or match.lastgroup is None:
            raise ExpressionError(f"syntax error at column {position - start + 1}: unexpected {text[position]!r}")
        if match.lastgroup == "comment":
            raise ExpressionError("comments are not allowed in an expression")
        if match.lastgroup != "space":
            yield match.lastgroup, match[0], position
        position = match.end()
