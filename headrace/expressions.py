"""`${{ CEL }}` in a task's `with` and `if`: compiled once, then evaluated for every task that starts.

A template is any JSON value. A string that is exactly one `${{ … }}` becomes the value of the expression, with its
type; in mixed text the values are written into the text (a string as it is, anything else as JSON). `$${{` stands for a
literal `${{`. An expression sees `input` (the run's input) and `tasks.NAME.output` (or `tasks["NAME"].output`). That
of a `wait` also sees `now`, the instant at which the wait begins; it is the only one that does, so that all others give
the same answer whenever they are asked. The `with` of a `map` also sees `item` and `index`, and that of a `compensate`
sees `task`, the one that is undone.

Rendering is on the hot path, so work is done by the cheapest means that gives the same answer:

    ${{ input }}, ${{ tasks.a.output }}     the payload's own bytes, never parsed
    ${{ tasks.a.output.total }}             one pass over each object on the way; the value keeps its bytes
    anything else                           CEL, over those parts of the payloads that it names

Payloads come in as strict JSON: the edge that accepted them has checked that. Nothing here keeps state between calls.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, cast

import cel
import msgspec

from headrace.document import ODD_KEY, ODD_TEXT, Path
from headrace.errors import PayloadError
from headrace.instant import ZONE_FUNCTIONS, call_zone_function, check_argument
from headrace.messages import PAYLOAD_BYTES_MAX

Outputs = Callable[[str], bytes | None]
"""Output of a task by name, as JSON; None when there is none (a skipped task), which an expression sees as null. By a
variable's name behind a dot, which no task has, also that: `.item`."""
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

_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_FIELD: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME: Final = r"[A-Za-z][A-Za-z0-9_-]*"
_PATH: Final = rf"""
    (?: input | tasks (?: \.({_FIELD}) | \["({_NAME})"\] | \['({_NAME})'\] ) \.output ) ((?:\.{_FIELD})*)
"""
_PLAIN_PATH: Final = re.compile(_PATH, re.VERBOSE)
_SOLE_PATH: Final = re.compile(rf"\$\{{\{{ \ * ({_PATH}) \ * \}}\}}", re.VERBOSE)
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
_WHO_KNOWS: Final = {
    "now": "; only a wait knows what time it is",
    "item": "; only the `with` of a map knows its items",
    "index": "; only the `with` of a map or of a repeat, and its `until`, count",
    "last": "; only the `with` of a repeat knows what came out of the round before",
    "output": "; only the `until` of a repeat knows what came out of the round, or write tasks.NAME.output",
}
_WORDS: Final = frozenset({"true", "false", "null", "in"})
_TYPES: Final = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"})
_MACROS: Final = frozenset({"all", "exists", "exists_one", "filter", "map"})
# The contract of the language, written down, so that a misspelt function is found at publish and not in a run.
_FUNCTIONS: Final = frozenset(
    {"bytes", "double", "duration", "dyn", "has", "int", "size", "string", "timestamp", "type", "uint"}
    | {"contains", "endsWith", "matches", "startsWith"}
    | {"getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getMonth"}
    | {"getHours", "getMilliseconds", "getMinutes", "getSeconds"}
    | ZONE_FUNCTIONS.keys()
)
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN_KEY: Final = re.compile(r"""'[^'"\\\x00-\x1f]*'|"[^"\\\x00-\x1f]*\"""")
_ODD: Final = re.compile("[\x00\ud800-\udfff]")
_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_COPIES_PER_ITEM: Final = 20
"""What else a macro does for an item, in units of one copied value (measured: about 5 µs to 0.25 µs)."""
_SURELY_CHEAP: Final = STEPS_MAX // (PAYLOAD_BYTES_MAX // 2)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

_ABSENT: Final = msgspec.Raw()
_encode: Final = msgspec.json.Encoder(order="deterministic").encode  # CEL maps come back in no order
_decode: Final = msgspec.json.Decoder().decode
_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ExpressionError(ValueError):
    """A template or condition that cannot be published. `path`: where in the value; empty for the value itself."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.message, self.path = message, path


# == templates and conditions ==========================================================================================
class Template:
    """A compiled `with`. Immutable, and safe to share between threads."""

    __slots__ = ("_frame", "_parts", "_sole", "_splices", "_whole", "reads", "references")

    def __init__(self, frame: tuple[bytes, ...], parts: dict[int, "_Part"]) -> None:
        """frame: the JSON text in pieces; parts: by their places in the frame, which are empty there."""
        self.references: frozenset[str] = frozenset().union(*(part.expression.references for part in parts.values()))
        """Names of the tasks whose outputs it reads."""
        self._frame = frame
        splices = {place: part for place, part in parts.items() if part.is_splice}
        self._splices = [
            # A value of n bytes nests n/2 deep at most, so the short ones need no second look.
            (place, part.expression.root, 2 * (DEPTH_MAX - part.depth), part)
            for place, part in splices.items()
        ]
        self._parts = [(place, part) for place, part in parts.items() if place not in splices]
        self.reads: frozenset[str] = frozenset().union(*(part.expression.references for _, part in self._parts))
        """Those of them that it looks into; the others are only handed on."""
        self._sole = parts[0] if len(frame) == 1 and self._parts else None
        self._whole = splices[0].expression.root if len(frame) == 1 and splices else None

    def knows(self, variable: str) -> bool:
        """Whether one of its expressions reads that variable."""
        expressions = [part.expression for _, part in self._parts] + [part.expression for *_, part in self._splices]
        return any(f".{variable}" in (each.root, *(root for root, _ in each.reads)) for each in expressions)

    def render(self, input: bytes, outputs: Outputs) -> bytes:
        """Make a task's input, as JSON bytes.

        Raises PayloadError: BAD_INPUT when an expression fails or gives what is not strict JSON, INPUT_TOO_LARGE.
        """
        if self._whole is not None:
            rendered = (outputs(self._whole) if self._whole else input) or b"null"
        elif self._sole is not None:
            rendered = bytes(self._sole.render(_reader(input, outputs)))
        else:
            rendered = self._fill(input, outputs)
        if len(rendered) > PAYLOAD_BYTES_MAX:
            message = f"the input of the task would be {len(rendered)} bytes, and {PAYLOAD_BYTES_MAX} are allowed"
            raise PayloadError(message, reason="INPUT_TOO_LARGE")
        return rendered

    def _fill(self, input: bytes, outputs: Outputs) -> bytes:
        pieces: list[bytes | msgspec.Raw] = [*self._frame]
        for place, root, surely_shallow, part in self._splices:
            raw = (outputs(root) if root else input) or b"null"
            if len(raw) > surely_shallow:
                part.check_depth(raw)
            pieces[place] = raw
        if self._parts:
            read = _reader(input, outputs)
            for place, part in self._parts:
                pieces[place] = part.render(read)
        return b"".join(pieces)


class _Compiled:
    """One compiled expression. Immutable, and safe to share between threads."""

    __slots__ = ("_expression",)

    def __init__(self, expression: "_Expression") -> None:
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
        read = _reader(input, outputs)
        if self._expression.program is None:
            answer = {b"true": True, b"false": False}.get(bytes(_read_path(self._expression, read)).strip())
        else:
            answer = _run(self._expression, read)
        if not isinstance(answer, bool):
            raise _bad_input(self._expression, "a condition must be true or false")
        return answer


class Value(_Compiled):
    """A compiled `for` or `until` of a wait: what it gives is no JSON yet."""

    __slots__ = ()

    def evaluate(self, input: bytes, outputs: Outputs, now: datetime) -> Any:
        """Text, a number, an instant, or anything else. Raises PayloadError(BAD_INPUT) when the evaluation fails."""
        read = _reader(input, outputs)
        if self._expression.program is None:
            return _decode(_read_path(self._expression, read))
        return _run(self._expression, read, now)


def compile_template(value: Any, variables: Variables = ()) -> Template:
    """Compile a task's `with`: any JSON value. Raises ExpressionError at the first thing that is wrong.

    variables: what its expressions see besides, which `outputs` has to know.

    >>> template = compile_template({"order": "${{ input }}", "note": "of ${{ tasks.price.output.total }} EUR"})
    >>> template.render(b'{"id":7}', {"price": b'{"total":12.5}'}.get)
    b'{"order":{"id":7},"note":"of 12.5 EUR"}'
    """
    frame: list[list[bytes]] = []
    parts: dict[int, _Part] = {}
    for piece in _pieces(value, (), variables):
        if isinstance(piece, _Part):
            parts[len(frame)] = piece
            frame.append([])
        elif frame and len(frame) - 1 not in parts:
            frame[-1].append(piece)
        else:
            frame.append([piece])
    return Template(tuple(map(b"".join, frame)), parts)


def compile_condition(text: str, variables: Variables = ()) -> Condition:
    """Compile a task's `if`: CEL, bare or as one `${{ … }}`. Raises ExpressionError.

    variables: as for `compile_template`.

    >>> compile_condition("tasks.price.output.total > 10.0").evaluate(b"{}", {"price": b'{"total":12.5}'}.get)
    True
    """
    return Condition(_parse(unwrap(text, variables), variables))


def compile_value(text: str) -> Value:
    """Compile an expression that may ask what time it is; `text` is exactly one `${{ … }}`. Raises ExpressionError.

    >>> friday = datetime.fromisoformat("2026-11-27T15:00:00Z")
    >>> value = compile_value('${{ nextWeekday(now, "09:00", input.zone) }}')
    >>> value.evaluate(b'{"zone":"Europe/Berlin"}', {}.get, friday)
    datetime.datetime(2026, 11, 30, 8, 0, tzinfo=datetime.timezone.utc)
    """
    stripped = text.strip()
    end = _find_end(stripped, 3) if stripped.startswith("${{") else 0
    if not end or end + 2 != len(stripped):
        raise ExpressionError("write the whole of it in one ${{ … }}")
    return Value(_parse(stripped[3:end].strip(), ("now",)))


def unwrap(text: str, variables: Variables = ()) -> str:
    """The CEL of a condition, without its `${{ }}` and the space around it. Raises ExpressionError."""
    if "${{" not in text:
        return text.strip()
    pieces = _split(text.strip(), variables)
    if len(pieces) != 1 or isinstance(pieces[0], str):
        raise ExpressionError("write the whole condition in one ${{ … }}, or without it")
    return pieces[0].text


@dataclass(frozen=True, slots=True)
class Finding:
    """What one string of a template refers to, or why it cannot be published."""

    path: Path
    references: frozenset[str] = frozenset()
    error: str | None = None


def inspect_template(value: Any, variables: Variables = ()) -> list[Finding]:
    """Look at every string of a template without stopping at a fault; strings without expressions are left out."""
    findings = []
    for path, leaf in _leaves(value, ()):
        try:
            names = _references(leaf, variables)
        except ExpressionError as error:
            findings.append(Finding(path, error=error.message))
            continue
        if names:
            findings.append(Finding(path, names))
    return findings


def _references(leaf: Any, variables: Variables) -> frozenset[str]:
    if isinstance(leaf, ExpressionError):
        raise leaf
    if not isinstance(leaf, str):
        _constant(leaf)
        return frozenset()
    return frozenset().union(*(piece.references for piece in _split(leaf, variables) if isinstance(piece, _Expression)))


# == the pieces of a template ==========================================================================================
@dataclass(frozen=True, slots=True)
class _Part:
    """One expression at its place in the JSON text."""

    expression: "_Expression"
    depth: int
    """How many objects and lists stand around it."""
    is_text: bool
    """It stands inside a string."""

    @property
    def is_splice(self) -> bool:
        """A whole payload, as a value."""
        return self.expression.is_whole and not self.is_text

    def render(self, read: "_Read") -> bytes | msgspec.Raw:
        if self.expression.program is None:
            raw = _read_path(self.expression, read)
        else:
            raw = _encode_result(self.expression, _run(self.expression, read))
        if self.is_text:
            return _as_text(bytes(raw))
        self.check_depth(raw)
        return raw

    def check_depth(self, raw: bytes | msgspec.Raw) -> None:
        """Raises PayloadError(BAD_INPUT) when the value nests too deep at this place."""
        if _is_deeper(raw, DEPTH_MAX - self.depth):
            raise _bad_input(self.expression, f"the result would nest objects and lists more than {DEPTH_MAX} deep")


def _pieces(value: Any, path: Path, variables: Variables) -> Iterator["bytes | _Part"]:
    """The JSON text of a template, cut where expressions stand. Recursion is bounded by DEPTH_MAX."""
    _check_place(value, path)
    if isinstance(value, dict):
        yield b"{"
        for position, (key, item) in enumerate(value.items()):
            yield (b"," if position else b"") + _encode(key) + b":"
            yield from _pieces(item, (*path, key), variables)
        yield b"}"
    elif isinstance(value, list | tuple):
        yield b"["
        for position, item in enumerate(value):
            if position:
                yield b","
            yield from _pieces(item, (*path, position), variables)
        yield b"]"
    elif isinstance(value, str):
        yield from _string_pieces(value, path, variables)
    else:
        yield _constant(value, path)


def _string_pieces(text: str, path: Path, variables: Variables) -> Iterator["bytes | _Part"]:
    try:
        pieces = _split(text, variables)
    except ExpressionError as error:
        raise ExpressionError(error.message, path) from None
    if len(pieces) == 1 and isinstance(pieces[0], _Expression):
        yield _Part(pieces[0], len(path), is_text=False)
        return
    yield b'"'
    for piece in pieces:
        yield _encode(piece)[1:-1] if isinstance(piece, str) else _Part(piece, len(path), is_text=True)
    yield b'"'


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """All in a template that is neither object nor list; a bad key or a place too deep is a leaf, as its error."""
    try:
        _check_place(value, path)
    except ExpressionError as error:
        yield error.path, error
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _leaves(item, (*path, position))
    else:
        yield path, value


def _check_place(value: Any, path: Path) -> None:
    if not isinstance(value, dict | list | tuple):
        return
    if len(path) >= DEPTH_MAX:
        raise ExpressionError(f"objects and lists may nest {DEPTH_MAX} deep", path)
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str):
            raise ExpressionError("keys of an object must be text", path)
        if "${{" in key:
            raise ExpressionError("a key cannot hold an expression", (*path, key))
        if _ODD.search(key):
            raise ExpressionError(ODD_KEY, path)


def _constant(value: Any, path: Path = ()) -> bytes:
    if isinstance(value, bool) or value is None:
        return _encode(value)
    if isinstance(value, int) and _INT_MIN <= value <= _INT_MAX:
        return _encode(value)
    if isinstance(value, float) and math.isfinite(value):
        return _encode(value)
    if isinstance(value, int):
        raise ExpressionError("integers must fit 64 bits; write a longer one as text", path)
    raise ExpressionError(f"not a JSON value: {value!r:.50}", path)


def _split(text: str, variables: Variables = ()) -> list["str | _Expression"]:
    """Cut a string into text and expressions; neighbours are never both text. At least one piece."""
    if _ODD.search(text):
        raise ExpressionError(ODD_TEXT)
    if sole := _SOLE_PATH.fullmatch(text):
        return [_parse(sole[1].strip(), variables)]
    pieces: list[str | _Expression] = []
    literal, position = "", 0
    while (start := text.find("${{", position)) >= 0:
        if start > position and text[start - 1] == "$":
            literal += text[position : start - 1] + "${{"
            position = start + 3
            continue
        end = _find_end(text, start + 3)
        if literal := literal + text[position:start]:
            pieces.append(literal)
        pieces.append(_parse(text[start + 3 : end].strip(), variables))
        literal, position = "", end + 2
    literal += text[position:]
    return [*pieces, literal] if literal or not pieces else pieces


def _find_end(text: str, start: int) -> int:
    """Where the `}}` of an expression stands; braces of CEL maps and whatever strings contain do not count."""
    depth = 0
    for kind, symbol, position in _symbols(text, start):
        if kind == "mark" and symbol == "{":
            depth += 1
        elif kind == "mark" and symbol == "}" and depth:
            depth -= 1
        elif kind == "mark" and symbol == "}" and text.startswith("}}", position):
            return position
    raise ExpressionError("${{ is not closed by }}")


# == expressions =======================================================================================================
_Wanted = dict[str, "_Wanted"]
"""Which fields of a value are read, and which fields of those; empty means the whole value."""


@dataclass(frozen=True, slots=True)
class _Expression:
    text: str
    references: frozenset[str]
    root: str = ""
    """Of a path: the task it starts from, or a variable behind a dot; empty for the run's input."""
    path: Path = ()
    program: cel.Program | None = None
    """None for a path, which is read without CEL."""
    reads: tuple[tuple[str, _Wanted], ...] = ()
    """What CEL is given, by root."""
    symbols: int = 0
    additions: int = 0
    costs: tuple[int, ...] = ()
    """How often one evaluation copies its data: the sum of costs[k] * items**k, see STEPS_MAX."""
    read_depth: int = 0
    """Most macros around a read."""
    zone_functions: frozenset[str] = frozenset()
    """Those of `headrace.instant` that it calls."""

    @property
    def is_cheap(self) -> bool:
        """No data of an allowed size can make it expensive."""
        return not self.additions and sum(self.costs) <= _SURELY_CHEAP and not any(self.costs[1:])

    @property
    def is_whole(self) -> bool:
        return self.program is None and not self.path


@lru_cache(maxsize=10_000)
def _parse(text: str, variables: Variables = ()) -> _Expression:
    """Compile one expression, or raise ExpressionError. Cached: graphs repeat themselves, and versions even more."""
    if not text:
        raise ExpressionError("the expression is empty")
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ExpressionError(f"an expression may have {EXPRESSION_CHARS_MAX} characters, this one has {len(text)}")
    if plain := _PLAIN_PATH.fullmatch(text):
        name = plain[1] or plain[2] or plain[3] or ""
        path = tuple(plain[4].split(".")[1:])
        if _WORDS.isdisjoint(path) and plain[1] not in _WORDS:
            return _Expression(text, frozenset({name} if name else ()), root=name, path=path)
    return _compile(text, variables)


def _compile(text: str, variables: Variables) -> _Expression:
    analysis = _Analysis(text, variables)
    try:
        program = cel.compile(text)
    except ValueError as error:
        raise ExpressionError(_syntax_message(str(error))) from None
    if unseen := set(program.variables()) - analysis.seen:
        raise ExpressionError(f"cannot tell what {', '.join(sorted(unseen))} refers to")
    expression = _Expression(
        text,
        frozenset(analysis.names),
        program=program,
        reads=tuple(analysis.reads.items()),
        symbols=len(analysis.symbols),
        additions=analysis.additions,
        costs=tuple(analysis.costs),
        read_depth=analysis.read_depth,
        zone_functions=frozenset(analysis.zone_functions),
    )
    if (plain := analysis.plain_path()) is not None:
        return replace(expression, root=plain[0], path=plain[1], program=None)
    return expression


def _syntax_message(message: str) -> str:
    found = re.search(r"<input>:(\d+):(\d+): (?:Syntax error: )?(.+)", message)
    if found is None:
        return f"syntax error: {message[:200]}"
    told = f"syntax error at column {found[2]}: {found[3].split(' expecting ')[0][:200]}"
    word = re.search(r"\.(true|false|null|in)'$", told)
    return told if word is None else f'{told}; a name that is a word of the language stands in brackets: ["{word[1]}"]'


def _symbols(text: str, start: int = 0) -> Iterator[tuple[str, str, int]]:
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


class _Analysis:
    """One pass over the symbols of an expression: what it refers to, and whether it stays within the limits.

    CEL has no way to declare variables, so a name is a variable of ours, a macro's variable, a type, or a mistake.
    """

    def __init__(self, text: str, variables: Variables) -> None:
        self.variables = variables
        self.zone_functions: set[str] = set()
        self.symbols = [(kind, symbol) for kind, symbol, _ in _symbols(text)]
        self.names: set[str] = set()
        self.seen: set[str] = set(_TYPES)
        """Every variable that was understood, to compare with what CEL itself found."""
        self.reads: dict[str, _Wanted] = {}
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
        if self._symbol(position - 1) not in _MACROS or self._symbol(position - 2) != ".":
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
            if name not in _FUNCTIONS and not (is_field and name in _MACROS):
                known = ", ".join(sorted(_FUNCTIONS | _MACROS))
                raise ExpressionError(f"there is no function {name}; known are {known}")
            if name in ZONE_FUNCTIONS:
                self._visit_zone_function(name, position, is_method=is_field)
        elif after == "{":
            raise ExpressionError(f"{name}{{…}} builds a message type, and there are none here")
        elif is_field or name in _WORDS or name in self._bound or name in _TYPES:
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
            raise ExpressionError(message + _WHO_KNOWS.get(name, ""))

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


# == evaluation ========================================================================================================
_Read = Callable[[str], bytes]
"""The payload of a task by name, of a variable by its name behind a dot, or of the run for the empty name."""


def _reader(input: bytes, outputs: Outputs) -> _Read:
    return lambda root: (outputs(root) if root else input) or b"null"


class _Field(msgspec.Struct, frozen=True):
    value: msgspec.Raw


@lru_cache(maxsize=4_096)
def _field_reader(key: str) -> Callable[[bytes | msgspec.Raw], _Field]:
    """Read one field of an object and skip the others, which is cheaper than a dict of all. Absent: no bytes."""
    struct = msgspec.defstruct("Field", [("value", msgspec.Raw, _ABSENT)], rename={"value": key})
    return cast("Callable[[bytes | msgspec.Raw], _Field]", msgspec.json.Decoder(struct).decode)


def _read_path(expression: _Expression, read: _Read) -> bytes | msgspec.Raw:
    """Follow a path and keep the bytes of what it leads to; the answer is that of CEL."""
    here: bytes | msgspec.Raw = read(expression.root)
    key: str | int = ""
    try:
        for key in expression.path:
            here = _field_reader(key)(here).value if isinstance(key, str) else _decode_list(here)[key]
            if here is _ABSENT:
                raise _bad_input(expression, f"there is no field {key!r}")
    except IndexError:
        raise _bad_input(expression, f"there is no item {key}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        kind = "a list" if isinstance(key, int) else "an object"
        raise _bad_input(expression, f"cannot read {key!r}, because what should hold it is not {kind}") from error
    return here


def _prune(raw: bytes | msgspec.Raw, wanted: _Wanted) -> Any:
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
    value = _decode(raw)
    if _LONG_NUMBER.search(raw):
        for item in _walk(value):
            if isinstance(item, int) and not _INT_MIN <= item <= _INT_MAX:
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


def _run(expression: _Expression, read: _Read, now: datetime | None = None) -> Any:
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
        raise _bad_input(expression, f"there is no field {error.args[0]!r}") from error
    except BaseException as error:  # a panic in the evaluator is no Exception; it must fail one task, not the process
        raise _bad_input(expression, str(error).split(". CEL does not coerce")[0][:300]) from error


def _run_with_zones(expression: _Expression, program: cel.Program, context: dict[str, Any]) -> Any:
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


def _check_cost(expression: _Expression, context: dict[str, Any]) -> None:
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


def _encode_result(expression: _Expression, value: Any) -> bytes:
    if (fault := _find_fault(value, 0)) is not None:
        raise _bad_input(expression, fault)
    return _encode(value)


def _find_fault(value: Any, depth: int) -> str | None:
    """Why a value is no strict JSON, if it is not. Recursion is bounded by DEPTH_MAX."""
    if isinstance(value, str):
        return "the result holds U+0000" if "\x00" in value else None
    if isinstance(value, int) and not _INT_MIN <= value <= _INT_MAX:
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


def _as_text(raw: bytes) -> bytes:
    """A JSON value as it reads inside a JSON string."""
    raw = raw.strip()
    if raw.startswith(b'"'):
        return raw[1:-1]
    return _encode(raw.decode())[1:-1] if raw[:1] in (b"{", b"[") else raw


def _is_deeper(value: bytes | msgspec.Raw, depth_max: int) -> bool:
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


def _bad_input(expression: _Expression, message: str) -> PayloadError:
    text = expression.text if len(expression.text) <= 200 else expression.text[:200] + "…"
    return PayloadError(f"{text}: {message}", reason="BAD_INPUT")
