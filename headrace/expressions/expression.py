"""One expression, compiled; and text, cut into expressions."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import cel

from headrace.document import ODD_TEXT, Path
from headrace.expressions.analysis import Analysis, Wanted
from headrace.expressions.language import EXPRESSION_CHARS_MAX, STEPS_MAX, WORDS, ExpressionError, Variables, symbols_of
from headrace.messages import PAYLOAD_BYTES_MAX

_FIELD: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME: Final = r"[A-Za-z][A-Za-z0-9_-]*"
_PATH: Final = rf"""
    (?: input | tasks (?: \.({_FIELD}) | \["({_NAME})"\] | \['({_NAME})'\] ) \.output ) ((?:\.{_FIELD})*)
"""
_PLAIN_PATH: Final = re.compile(_PATH, re.VERBOSE)
_SOLE_PATH: Final = re.compile(rf"\$\{{\{{ \ * ({_PATH}) \ * \}}\}}", re.VERBOSE)
ODD: Final = re.compile("[\x00\ud800-\udfff]")
_SURELY_CHEAP: Final = STEPS_MAX // (PAYLOAD_BYTES_MAX // 2)


@dataclass(frozen=True, slots=True)
class Expression:
    text: str
    references: frozenset[str]
    root: str = ""
    """Of a path: the task it starts from, or a variable behind a dot; empty for the run's input."""
    path: Path = ()
    program: cel.Program | None = None
    """None for a path, which is read without CEL."""
    reads: tuple[tuple[str, Wanted], ...] = ()
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
def parse_expression(text: str, variables: Variables = ()) -> Expression:
    """Compile one expression, or raise ExpressionError. Cached: graphs repeat themselves, and versions even more."""
    if not text:
        raise ExpressionError("the expression is empty")
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ExpressionError(f"an expression may have {EXPRESSION_CHARS_MAX} characters, this one has {len(text)}")
    if plain := _PLAIN_PATH.fullmatch(text):
        name = plain[1] or plain[2] or plain[3] or ""
        path = tuple(plain[4].split(".")[1:])
        if WORDS.isdisjoint(path) and plain[1] not in WORDS:
            return Expression(text, frozenset({name} if name else ()), root=name, path=path)
    return _compile(text, variables)


def _compile(text: str, variables: Variables) -> Expression:
    analysis = Analysis(text, variables)
    try:
        program = cel.compile(text)
    except ValueError as error:
        raise ExpressionError(_syntax_message(str(error))) from None
    if unseen := set(program.variables()) - analysis.seen:
        raise ExpressionError(f"cannot tell what {', '.join(sorted(unseen))} refers to")
    expression = Expression(
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


def split(text: str, variables: Variables = ()) -> list["str | Expression"]:
    """Cut a string into text and expressions; neighbours are never both text. At least one piece."""
    if ODD.search(text):
        raise ExpressionError(ODD_TEXT)
    if sole := _SOLE_PATH.fullmatch(text):
        return [parse_expression(sole[1].strip(), variables)]
    pieces: list[str | Expression] = []
    literal, position = "", 0
    while (start := text.find("${{", position)) >= 0:
        if start > position and text[start - 1] == "$":
            literal += text[position : start - 1] + "${{"
            position = start + 3
            continue
        end = find_end(text, start + 3)
        if literal := literal + text[position:start]:
            pieces.append(literal)
        pieces.append(parse_expression(text[start + 3 : end].strip(), variables))
        literal, position = "", end + 2
    literal += text[position:]
    return [*pieces, literal] if literal or not pieces else pieces


def find_end(text: str, start: int) -> int:
    """Where the `}}` of an expression stands; braces of CEL maps and whatever strings contain do not count."""
    depth = 0
    for kind, symbol, position in symbols_of(text, start):
        if kind == "mark" and symbol == "{":
            depth += 1
        elif kind == "mark" and symbol == "}" and depth:
            depth -= 1
        elif kind == "mark" and symbol == "}" and text.startswith("}}", position):
            return position
    raise ExpressionError("${{ is not closed by }}")
