"""A YAML or JSON text, read as plain JSON data, with the line of everything in it and every fault that was met.

YAML is read by the rules of its version 1.2: `yes`, `no` and `on` are text, so is a date, and a key is always the text
that was written. Nothing is built but dicts, lists, text, numbers, booleans and null. Nothing recurses deeper than
DEPTH_MAX.
"""

import json.decoder
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from headrace.errors import Fault

Path = tuple[str | int, ...]
"""Keys and positions from the outside in."""

BYTES_MAX: Final = 1_048_576
"""1 MiB: what the API takes as a body; 10,000 tasks fit."""
DEPTH_MAX: Final = 64
"""Far deeper than anybody writes, far shallower than any stack."""
VALUES_MAX: Final = 500_000
"""A text of BYTES_MAX has no more; only aliases inside aliases (a "billion laughs") do."""
SYNTAX_FAULTS_MAX: Final = 100
"""A file of another kind is wrong everywhere, and nobody reads that list to its end."""

ODD_TEXT: Final = "text must not hold U+0000 or lone surrogates"
ODD_KEY: Final = "a key must not hold U+0000 or lone surrogates"

_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where PyYAML has it
_ODD: Final = re.compile("[\x00\ud800-\udfff]")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"(?:[-+]?[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?")
_DISPUTED: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|0o[0-7]+")
"""Numbers for YAML 1.2, but text or other numbers for the many readers of YAML 1.1: 007, 0o7, 1e3, -.5."""
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_STRING_TAG, _LIST_TAG, _MAP_TAG = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_INTEGERS: Final = range(-(2**63), 2**63)

_JSON_SPACE: Final = re.compile(r"[ \t\r\n]*")
_JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_scan_string: Final[Any] = json.decoder.scanstring  # type: ignore[attr-defined]  # not in typeshed
_JSON_WORDS: Final = {"true": True, "false": False, "null": None}
_JSON_WORD: Final = re.compile(r"[A-Za-z]+")


def format_path(path: Path) -> str:
    """Write a path for people: `tasks.charge.needs[0]`, and `tasks["odd name"]` where dots would mislead."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key):
            text += f".{key}" if text else key
        else:
            text += f"[{key[:100]!a}]"
    return text


@dataclass(slots=True)
class _Mark:
    """Where a value stands, and the marks of what is in it, by key or position."""

    at: int
    below: "dict[str | int, _Mark]"


_NOTHING_BELOW: Final[dict[str | int, _Mark]] = {}
"""Shared by all scalars, and never added to."""


class _Broken(Exception):
    """The rest cannot be read."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message, self.at = message, at


class Document:
    """What a text says. With `faults`, `data` is what could still be made of it; when `is_broken`, that is nothing.

    >>> document = Document("name: orders\\ntasks:\\n  pay: { run: pay, needs: [check] }")
    >>> document.data["tasks"]["pay"], document.line(("tasks", "pay", "needs", 0))
    ({'run': 'pay', 'needs': ['check']}, 3)
    """

    def __init__(self, text: str | bytes) -> None:
        self.data: Any = None
        self.faults: list[Fault] = []
        self.is_broken = True
        self._lines: list[int] | None = None
        """Where lines begin, when marks are positions in the text; None when they are lines."""
        self._root = _Mark(0, {})
        try:
            self._read(_decode(text))
        except _Broken as error:
            self._add((), error.message, error.at)

    def line(self, path: Path) -> int | None:
        """The 1-based line of a key or item; of the nearest thing around it, when it is not there itself."""
        mark = self._root
        for key in path:
            if key not in mark.below:
                break
            mark = mark.below[key]
        return self._to_line(mark.at)

    def _read(self, text: str) -> None:
        if text.lstrip(" \t\r\n").startswith("{"):
            self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
            self.data, self._root = _JsonReader(text, self._add).read()
        else:
            self.data, self._root = _YamlReader(text, self._add).read()
        self.is_broken = False

    def _add(self, path: Path, message: str, at: int) -> None:
        if len(self.faults) < SYNTAX_FAULTS_MAX:
            self.faults.append(Fault(format_path(path), message, self._to_line(at)))

    def _to_line(self, at: int) -> int:
        return at + 1 if self._lines is None else bisect_right(self._lines, at)


def copy_plain(data: Any, add: Callable[[Path, str], None], path: Path = ()) -> Any:
    """Copy parsed data as plain JSON, so that later changes to it change nothing here; `add` hears of what is none.

    For data that did not come from Document: an API body, Python values. Tuples become lists, what is wrong null.
    """
    if isinstance(data, dict | list | tuple):
        if len(path) >= DEPTH_MAX:
            add(path, f"nested more than {DEPTH_MAX} deep")
            return None
        if not isinstance(data, dict):
            return [copy_plain(item, add, (*path, position)) for position, item in enumerate(data)]
        for key in data:
            if not isinstance(key, str):
                add(path, f"a key must be text, and {key!r:.50} is not")
            elif _ODD.search(key):
                add(path, ODD_KEY)
        return {key: copy_plain(item, add, (*path, key)) for key, item in data.items() if isinstance(key, str)}
    if (fault := _scalar_fault(data)) is not None:
        add(path, fault)
        return None
    return data


def _scalar_fault(value: Any) -> str | None:
    if isinstance(value, str):
        return ODD_TEXT if _ODD.search(value) else None
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return None if value in _INTEGERS else "an integer must fit 64 bits; write a longer one as text"
    if isinstance(value, float):
        return None if abs(value) < float("inf") else "JSON has no such number"
    return f"{type(value).__name__} is not a JSON type"


def _decode(text: str | bytes) -> str:
    encoded = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if len(encoded) > BYTES_MAX:
        raise _Broken(f"{len(encoded)} bytes are too many: a definition may have {BYTES_MAX}", 0)
    try:
        decoded = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise _Broken("not UTF-8", encoded.count(b"\n", 0, error.start)) from None
    readable = decoded.removeprefix("\ufeff")
    if odd := _ODD.search(readable):
        raise _Broken("U+0000 and lone surrogates are not allowed", readable.count("\n", 0, odd.start()))
    return readable


# == YAML ==============================================================================================================
def _events(text: str) -> Iterator[Any]:
    yield from yaml.parse(text, Loader=_Loader)


@dataclass(slots=True)
class _Anchor:
    """A finished value that aliases may repeat."""

    value: Any
    mark: _Mark
    count: int
    height: int


@dataclass(slots=True)
class _Open:
    """A map or list whose end has not come yet."""

    value: Any
    mark: _Mark
    path: Path
    anchor: str | None
    key: str | None = None
    key_line: int = 0
    begun_at: int = 0
    """How many values had been read when it began."""
    height: int = 1


class _YamlReader:
    """Builds data from the parser's events, so that nothing is resolved, constructed or recursed behind our back."""

    def __init__(self, text: str, add: Any) -> None:
        self._text, self._add = text, add
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchor] = {}
        self._count = 0
        self._result: tuple[Any, _Mark] | None = None

    def read(self) -> tuple[Any, _Mark]:
        try:
            for event in _events(self._text):
                self._visit(event, event.start_mark.line)
        except yaml.MarkedYAMLError as error:
            line = getattr(error.problem_mark or error.context_mark, "line", 0)
            raise _Broken(f"YAML: {error.problem or error.context}", line) from None
        except yaml.reader.ReaderError as error:
            raise _Broken(f"YAML: {error.reason}", self._text.count("\n", 0, error.position)) from None
        if self._result is None:
            raise _Broken("the document is empty", 0)
        return self._result

    def _visit(self, event: Any, line: int) -> None:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._visit_scalar(event, line)
        elif kind is yaml.MappingStartEvent:
            self._begin(event, {}, _MAP_TAG, line)
        elif kind is yaml.SequenceStartEvent:
            self._begin(event, [], _LIST_TAG, line)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            self._end()
        elif kind is yaml.AliasEvent:
            self._visit_alias(event.anchor, line)
        elif kind is yaml.DocumentStartEvent and self._result is not None:
            raise _Broken("a second document begins here; write one workflow a file", line)

    def _visit_scalar(self, event: Any, line: int) -> None:
        if self._wants_key():
            if event.anchor:
                raise _Broken("a key cannot have an anchor", line)
            self._set_key(event.value, line, is_plain=not event.style)
            return
        self._check_tag(event.tag, _STRING_TAG, line)
        value: Any = event.value
        if not event.style and event.tag is None:
            value = self._resolve(event.value, line)
        elif _ODD.search(value):
            self._add(self._path(), ODD_TEXT, line)
        mark = _Mark(line, _NOTHING_BELOW)
        if event.anchor:
            self._anchors[event.anchor] = _Anchor(value, mark, 1, 0)
        self._place(value, mark, 1, 0, line)

    def _begin(self, event: Any, value: Any, tag: str, line: int) -> None:
        if self._wants_key():
            raise _Broken("a key must be text, not a map or list", line)
        if len(self._open) >= DEPTH_MAX:
            raise _Broken(f"nested more than {DEPTH_MAX} deep", line)
        self._check_tag(event.tag, tag, line)
        self._open.append(_Open(value, _Mark(line, {}), self._path(), event.anchor, begun_at=self._count))

    def _end(self) -> None:
        done = self._open.pop()
        count = self._count - done.begun_at + 1
        self._count = done.begun_at
        if done.anchor:
            self._anchors[done.anchor] = _Anchor(done.value, done.mark, count, done.height)
        self._place(done.value, done.mark, count, done.height, done.mark.at)

    def _visit_alias(self, name: str | None, line: int) -> None:
        if self._wants_key():
            raise _Broken("a key must be text, not an alias", line)
        anchor = self._anchors.get(name or "")
        if anchor is None:
            raise _Broken(f"alias *{name} stands before its anchor is complete", line)
        self._place(anchor.value, anchor.mark, anchor.count, anchor.height, line)

    def _place(self, value: Any, mark: _Mark, count: int, height: int, line: int) -> None:
        """Put a finished value where it belongs. An alias puts the same value again, and counts again.

        count: of the value and all in it. height: of maps and lists in one another, 0 for a scalar.
        """
        self._count += count
        if self._count > VALUES_MAX:
            raise _Broken(f"more than {VALUES_MAX} values, with what the aliases repeat", line)
        if len(self._open) + height > DEPTH_MAX:
            raise _Broken(f"nested more than {DEPTH_MAX} deep", line)
        if not self._open:
            self._result = value, mark
            return
        around = self._open[-1]
        if height >= around.height:
            around.height = height + 1
        if isinstance(around.value, list):
            around.mark.below[len(around.value)] = mark
            around.value.append(value)
        elif around.key is not None:
            around.mark.below[around.key] = _Mark(around.key_line, mark.below)
            around.value[around.key] = value
            around.key = None

    def _wants_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is None

    def _set_key(self, key: str, line: int, *, is_plain: bool) -> None:
        around = self._open[-1]
        around.key, around.key_line = key, line
        if key == "<<" and is_plain:
            raise _Broken("merge keys (<<) are not supported: write the fields out", line)
        if key in around.value:
            self._add(self._path(), duplicate_message(around.path, around.mark.below[key].at + 1), line)
        if _ODD.search(key):
            self._add(around.path, ODD_KEY, line)

    def _path(self) -> Path:
        if not self._open:
            return ()
        around = self._open[-1]
        return (*around.path, len(around.value) if isinstance(around.value, list) else around.key or "")

    def _check_tag(self, tag: str | None, allowed: str, line: int) -> None:
        if tag is not None and tag not in (allowed, "!"):
            self._add(self._path(), f"tags such as {tag} are not supported", line)

    def _resolve(self, text: str, line: int) -> Any:
        """What a plain scalar means by the core schema of YAML 1.2."""
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            value: int | float = int(text, 0) if len(text) <= 30 else 2**100
        elif _FLOAT.fullmatch(text):
            value = float(text)
        elif _NOT_FINITE.fullmatch(text):
            value = float("inf")
        elif _DISPUTED.fullmatch(text):
            message = f"{text[:50]} means different things to different readers: quote it, or write 7, -0.5, 1.0e+3"
            self._add(self._path(), message, line)
            return 0
        else:
            return text
        if (fault := _scalar_fault(value)) is not None:
            self._add(self._path(), fault, line)
            return 0
        return value


def duplicate_message(around: Path, first_line: int | None = None) -> str:
    """What to say of a key that stands twice in the map at `around`."""
    kind = "duplicate task name" if around == ("tasks",) else "duplicate key"
    return f"{kind}, first on line {first_line}" if first_line else kind


# == JSON ==============================================================================================================
class _JsonReader:
    """A strict JSON parser that remembers positions; the standard one forgets them, and takes NaN and duplicates."""

    def __init__(self, text: str, add: Any) -> None:
        self._text, self._add = text, add

    def read(self) -> tuple[Any, _Mark]:
        value, mark, position = self._read_value(self._skip(0), ())
        if (rest := self._skip(position)) < len(self._text):
            raise _Broken("JSON: something follows the end of the document", rest)
        return value, mark

    def _skip(self, position: int) -> int:
        match = _JSON_SPACE.match(self._text, position)
        return match.end() if match else position

    def _read_value(self, position: int, path: Path) -> tuple[Any, _Mark, int]:
        opening = self._text[position : position + 1]
        if opening in ("{", "["):
            if len(path) >= DEPTH_MAX:
                raise _Broken(f"nested more than {DEPTH_MAX} deep", position)
            read = self._read_object if opening == "{" else self._read_list
            return read(position, path, _Mark(position, {}))
        if opening == '"':
            text, end = self._read_string(position, path)
            return text, _Mark(position, _NOTHING_BELOW), end
        value, end = self._read_word(position, path)
        return value, _Mark(position, _NOTHING_BELOW), end

    def _read_object(self, position: int, path: Path, mark: _Mark) -> tuple[Any, _Mark, int]:
        result: dict[str, Any] = {}
        at = self._skip(position + 1)
        if self._text.startswith("}", at):
            return result, mark, at + 1
        while True:
            if not self._text.startswith('"', at):
                raise _Broken("JSON: expected a key in double quotes", at)
            key, end = self._read_string(at, path)
            if key in result:
                first = self._text.count("\n", 0, mark.below[key].at) + 1
                self._add((*path, key), duplicate_message(path, first), at)
            colon = self._expect(self._skip(end), ":")
            result[key], below, end = self._read_value(self._skip(colon), (*path, key))
            mark.below[key] = _Mark(at, below.below)
            end = self._skip(end)
            if self._text.startswith("}", end):
                return result, mark, end + 1
            at = self._skip(self._expect(end, ","))

    def _read_list(self, position: int, path: Path, mark: _Mark) -> tuple[Any, _Mark, int]:
        result: list[Any] = []
        at = self._skip(position + 1)
        if self._text.startswith("]", at):
            return result, mark, at + 1
        while True:
            value, below, end = self._read_value(at, (*path, len(result)))
            mark.below[len(result)] = below
            result.append(value)
            end = self._skip(end)
            if self._text.startswith("]", end):
                return result, mark, end + 1
            at = self._skip(self._expect(end, ","))

    def _expect(self, position: int, character: str) -> int:
        if not self._text.startswith(character, position):
            raise _Broken(f"JSON: expected {character!r}", min(position, len(self._text) - 1))
        return position + 1

    def _read_string(self, position: int, path: Path) -> tuple[str, int]:
        try:
            text, end = _scan_string(self._text, position + 1, True)
        except ValueError as error:
            at = getattr(error, "pos", position)
            raise _Broken(f"JSON: {getattr(error, 'msg', error)}", at) from None
        if _ODD.search(text):
            self._add(path, ODD_TEXT, position)
        return text, end

    def _read_word(self, position: int, path: Path) -> tuple[Any, int]:
        word = _JSON_WORD.match(self._text, position)
        if word is not None and word[0] in _JSON_WORDS:
            return _JSON_WORDS[word[0]], word.end()
        number = _JSON_NUMBER.match(self._text, position)
        if number is None:
            raise _Broken("JSON: expected a value", min(position, len(self._text) - 1))
        if number[1] or number[2]:
            value: int | float = float(number[0])
        else:
            value = int(number[0]) if len(number[0]) <= 30 else 2**100
        if (fault := _scalar_fault(value)) is not None:
            self._add(path, fault, position)
            return 0, number.end()
        return value, number.end()
