"""What an expression refers to, and what it costs."""

import re
from typing import Final

from headrace.document import Path
from headrace.expressions.language import (
    EXPRESSION_NESTING_MAX,
    EXPRESSION_SYMBOLS_MAX,
    FUNCTIONS,
    MACRO_NESTING_MAX,
    MACROS,
    TYPES,
    WHO_KNOWS,
    WORDS,
    ExpressionError,
    Variables,
    symbols_of,
)
from headrace.instant import ZONE_FUNCTIONS, check_argument

_PLAIN_KEY: Final = re.compile(r"""'[^'"\\\x00-\x1f]*'|"[^"\\\x00-\x1f]*\"""")
_COPIES_PER_ITEM: Final = 20
"""What else a macro does for an item, in units of one copied value (measured: about 5 µs to 0.25 µs)."""
Wanted = dict[str, "Wanted"]
"""Which fields of a value are read, and which fields of those; empty means the whole value."""


class Analysis:
    """One pass over the symbols of an expression: what it refers to, and whether it stays within the limits.

    CEL has no way to declare variables, so a name is a variable of ours, a macro's variable, a type, or a mistake.
    """

    def __init__(self, text: str, variables: Variables) -> None:
        self.variables = variables
        self.zone_functions: set[str] = set()
        self.symbols = [(kind, symbol) for kind, symbol, _ in symbols_of(text)]
        self.names: set[str] = set()
        self.seen: set[str] = set(TYPES)
        """Every variable that was understood, to compare with what CEL itself found."""
        self.reads: dict[str, Wanted] = {}
        self.additions = self.read_depth = 0
        self.costs = [0] * (MACRO_NESTING_MAX + 2)
        self._bound: list[str | None] = []
        """For each open bracket, the macro variable it declares."""
        if len(self.symbols) > EXPRESSION_SYMBOLS_MAX:
            count = len(self.symbols)
            raise ExpressionError(f"an expression may have {EXPRESSION_SYMBOLS_MAX} symbols, this one has {count}")
        for position, (kind, symbol) in enumerate(self.symbols):
            if kind == "mark":
                self._visit_mark(position, symbol)
            elif kind == "name":
                self._visit_name(position, symbol)

    def plain_path(self) -> tuple[str, Path] | None:
        """(root, path) when the whole expression is a path from one of our variables, such as `input["a"].b[0]`."""
        if self._symbol(0) == "input":
            root, position = "", 1
        elif self._symbol(0) in self.variables and self._symbol(0) != "now":
            root, position = f".{self._symbol(0)}", 1
        elif self._symbol(0) == "tasks" and len(self.names) == 1:
            root, position = next(iter(self.names)), self._after_accessor(self._after_accessor(1))
        else:
            return None
        path: list[str | int] = []
        while position < len(self.symbols):
            key = self._accessor(position)
            if key is None:
                return None
            path.append(key)
            position = self._after_accessor(position)
        return root, tuple(path)

    def _symbol(self, position: int) -> str:
        return self.symbols[position][1] if 0 <= position < len(self.symbols) else ""

    def _accessor(self, position: int) -> str | int | None:
        """The constant key of `.key`, `["key"]` or `[0]` that begins here, if one does."""
        kind, key = self.symbols[position + 1] if position + 1 < len(self.symbols) else ("", "")
        if self._symbol(position) == "." and kind == "name":
            return None if self._symbol(position + 2) == "(" else key
        if self._symbol(position) != "[" or self._symbol(position + 2) != "]":
            return None
        if kind == "string" and _PLAIN_KEY.fullmatch(key):
            return key[1:-1]
        return int(key) if kind == "number" and key.isdecimal() and len(key) < 10 else None

    def _after_accessor(self, position: int) -> int:
        return position + (2 if self._symbol(position) == "." else 3)

    def _visit_mark(self, position: int, symbol: str) -> None:
        if symbol in "([{":
            if len(self._bound) == EXPRESSION_NESTING_MAX:
                raise ExpressionError(f"brackets may nest {EXPRESSION_NESTING_MAX} deep")
            self._bound.append(self._macro_variable(position) if symbol == "(" else None)
        elif symbol in ")]}" and self._bound:
            self._bound.pop()
        elif symbol == "+":
            self.additions += 1
        elif symbol == "." and not self._is_operand(position - 1):
            raise ExpressionError("a name cannot begin with a dot")

    def _is_operand(self, position: int) -> bool:
        kind, symbol = self.symbols[position] if position >= 0 else ("", "")
        return kind in ("name", "string", "number") or symbol in (")", "]", "}")

    def _macro_variable(self, position: int) -> str | None:
        if self._symbol(position - 1) not in MACROS or self._symbol(position - 2) != ".":
            return None
        macro, name, depth = self._symbol(position - 1), self._symbol(position + 1), self._macro_depth()
        if name in ("input", "tasks", *self.variables):
            raise ExpressionError(f"a variable of {macro} cannot be called {name}")
        if depth == MACRO_NESTING_MAX:
            raise ExpressionError(f"macros such as map and filter may nest {MACRO_NESTING_MAX} deep")
        self.costs[depth] += _COPIES_PER_ITEM
        self.costs[depth + 1] += macro in ("filter", "map")  # they copy their list for each item
        self.seen.add(name)
        return name

    def _macro_depth(self) -> int:
        return sum(name is not None for name in self._bound)

    def _visit_name(self, position: int, name: str) -> None:
        is_field, after = self._symbol(position - 1) == ".", self._symbol(position + 1)
        if after == "(":
            if name not in FUNCTIONS and not (is_field and name in MACROS):
                known = ", ".join(sorted(FUNCTIONS | MACROS))
                raise ExpressionError(f"there is no function {name}; known are {known}")
            if name in ZONE_FUNCTIONS:
                self._visit_zone_function(name, position, is_method=is_field)
        elif after == "{":
            raise ExpressionError(f"{name}{{…}} builds a message type, and there are none here")
        elif is_field or name in WORDS or name in self._bound or name in TYPES:
            return
        elif name == "input":
            self._add_read("", position + 1)
            self.seen.add(name)
        elif name == "tasks":
            self._visit_task(position)
        elif name in self.variables:
            self.seen.add(name)
            if name != "now":
                self._add_read(f".{name}", position + 1)
        else:
            message = f"unknown variable {name}; an expression sees input and tasks.NAME.output"
            raise ExpressionError(message + WHO_KNOWS.get(name, ""))

    def _visit_zone_function(self, name: str, position: int, *, is_method: bool) -> None:
        """Check what can be: how many arguments there are, and those that are written down."""
        kinds = ("an instant", *ZONE_FUNCTIONS[name].parameters)
        if is_method:
            raise ExpressionError(f"write {name}({', '.join(kinds)})")
        self.zone_functions.add(name)
        arguments = self._arguments(position + 1)
        if len(arguments) != len(kinds):
            raise ExpressionError(f"{name} takes {len(kinds)} arguments: {', '.join(kinds)}")
        for kind, argument in zip(kinds, arguments, strict=True):
            if len(argument) == 1 and argument[0][0] == "string" and _PLAIN_KEY.fullmatch(argument[0][1]):
                try:
                    check_argument(kind, argument[0][1][1:-1])
                except ValueError as error:
                    raise ExpressionError(str(error)) from None

    def _arguments(self, opening: int) -> list[list[tuple[str, str]]]:
        """The symbols of each argument of a call, by the place of its opening bracket."""
        arguments: list[list[tuple[str, str]]] = [[]]
        depth = 0
        for kind, symbol in self.symbols[opening:]:
            if kind == "mark" and symbol in "([{":
                depth += 1
            elif kind == "mark" and symbol in ")]}":
                depth -= 1
            if not depth:
                break
            if kind == "mark" and symbol == "," and depth == 1:
                arguments.append([])
            elif depth > 1 or symbol != "(" or kind != "mark":
                arguments[-1].append((kind, symbol))
        return arguments if arguments != [[]] else []

    def _visit_task(self, position: int) -> None:
        name = self._accessor(position + 1)
        if not isinstance(name, str):
            raise ExpressionError('a task must be named: tasks.NAME.output or tasks["NAME"].output')
        after = self._after_accessor(position + 1)
        if self._accessor(after) != "output":
            hint = f'; for a name with a dash write tasks["{name}-…"]' if self._symbol(after) == "-" else ""
            raise ExpressionError(f"of a task only its output can be read: tasks.{name}.output{hint}")
        self.names.add(name)
        self.seen.add("tasks")
        self._add_read(name, self._after_accessor(after))

    def _add_read(self, root: str, position: int) -> None:
        depth = self._macro_depth()
        self.costs[depth] += 1
        self.read_depth = max(self.read_depth, depth)
        is_new = root not in self.reads
        wanted = self.reads.setdefault(root, {})
        while isinstance(key := self._accessor(position), str):
            if not wanted and not is_new:  # the whole of it is read elsewhere
                return
            is_new = key not in wanted
            wanted = wanted.setdefault(key, {})
            position = self._after_accessor(position)
        wanted.clear()
