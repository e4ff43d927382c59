"""Any JSON value with expressions in it: compiled once, rendered for every task that starts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.document import ODD_KEY, Path
from headrace.errors import PayloadError
from headrace.expressions.evaluation import (
    Outputs,
    Read,
    as_text,
    bad_input,
    encode,
    encode_result,
    is_deeper,
    read_path,
    reader,
    run,
)
from headrace.expressions.expression import ODD, Expression, split
from headrace.expressions.language import DEPTH_MAX, INT_MAX, INT_MIN, ExpressionError, Variables
from headrace.messages import PAYLOAD_BYTES_MAX


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
            rendered = bytes(self._sole.render(reader(input, outputs)))
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
            read = reader(input, outputs)
            for place, part in self._parts:
                pieces[place] = part.render(read)
        return b"".join(pieces)


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
    return frozenset().union(*(piece.references for piece in split(leaf, variables) if isinstance(piece, Expression)))


# == the pieces of a template ==========================================================================================
@dataclass(frozen=True, slots=True)
class _Part:
    """One expression at its place in the JSON text."""

    expression: Expression
    depth: int
    """How many objects and lists stand around it."""
    is_text: bool
    """It stands inside a string."""

    @property
    def is_splice(self) -> bool:
        """A whole payload, as a value."""
        return self.expression.is_whole and not self.is_text

    def render(self, read: Read) -> bytes | msgspec.Raw:
        if self.expression.program is None:
            raw = read_path(self.expression, read)
        else:
            raw = encode_result(self.expression, run(self.expression, read))
        if self.is_text:
            return as_text(bytes(raw))
        self.check_depth(raw)
        return raw

    def check_depth(self, raw: bytes | msgspec.Raw) -> None:
        """Raises PayloadError(BAD_INPUT) when the value nests too deep at this place."""
        if is_deeper(raw, DEPTH_MAX - self.depth):
            raise bad_input(self.expression, f"the result would nest objects and lists more than {DEPTH_MAX} deep")


def _pieces(value: Any, path: Path, variables: Variables) -> Iterator["bytes | _Part"]:
    """The JSON text of a template, cut where expressions stand. Recursion is bounded by DEPTH_MAX."""
    _check_place(value, path)
    if isinstance(value, dict):
        yield b"{"
        for position, (key, item) in enumerate(value.items()):
            yield (b"," if position else b"") + encode(key) + b":"
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
        pieces = split(text, variables)
    except ExpressionError as error:
        raise ExpressionError(error.message, path) from None
    if len(pieces) == 1 and isinstance(pieces[0], Expression):
        yield _Part(pieces[0], len(path), is_text=False)
        return
    yield b'"'
    for piece in pieces:
        yield encode(piece)[1:-1] if isinstance(piece, str) else _Part(piece, len(path), is_text=True)
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
        if ODD.search(key):
            raise ExpressionError(ODD_KEY, path)


def _constant(value: Any, path: Path = ()) -> bytes:
    if isinstance(value, bool) or value is None:
        return encode(value)
    if isinstance(value, int) and INT_MIN <= value <= INT_MAX:
        return encode(value)
    if isinstance(value, float) and math.isfinite(value):
        return encode(value)
    if isinstance(value, int):
        raise ExpressionError("integers must fit 64 bits; write a longer one as text", path)
    raise ExpressionError(f"not a JSON value: {value!r:.50}", path)
