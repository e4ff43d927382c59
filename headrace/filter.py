"""The filter of every list: one line of text, and what it means.

    status:failed workflow:orders started:>-2h input.customer:acme -queue:slow error:"time out"

A filter is clauses with spaces between them, all of which must hold; without any it takes everything.

    clause    ["-"] field ":" value {"," value}     any of the values will do; `-` turns the clause round
              ["-"] field ":" (">" | ">=" | "<" | "<=") value
    value     without spaces, or in double quotes; `*` stands for any text where the field takes that, `\\*` for itself
    instant   2026-11-01 (that day) · 2026-11-01T09:30Z (that minute) · 2026-11-01T09:30:00Z · -2h (so long ago) · now
    length    500ms · 30s · 1h30m

`str` of a filter is its text again, always the same for the same filter: what a page token is bound to, what is kept
as a view, and what the console shows as chips. Which fields there are, `headrace.filter_field` says; what they are in
SQL, `state.filter_sql`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Final, Literal, NamedTuple
from uuid import UUID

from headrace.duration import parse_duration
from headrace.errors import Fault, FilterError
from headrace.filter_field import Field, Kind, Noun, fields_of, find_field
from headrace.instant import format_instant, parse_instant

TEXT_MAX: Final = 4_000
"""Characters: what fits in an address with room to spare."""
CLAUSES_MAX: Final = 30
VALUES_MAX: Final = 100
INTEGER_MAX: Final = 2**31 - 1

Comparison = Literal["", ">", ">=", "<", "<="]
_FIELD: Final = re.compile(r"(-?)([A-Za-z_][A-Za-z0-9_.-]*):")
_COMPARISON: Final = re.compile(r">=|<=|>|<")
_BARE: Final = re.compile(r'[^\s,"\\]')
_QUOTED_IF: Final = re.compile(r'[\s,"]|^$|^[<>]')
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_MINUTE: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}([Zz]|[+-]\d{2}:\d{2})")
_MICROSECOND: Final = timedelta(microseconds=1)
_AGES_ARE_CHECKED_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Bounds(NamedTuple):
    """A range without its end; None: it is open there. Instants, or whole numbers (of a length: microseconds)."""

    low: datetime | int | None
    high: datetime | int | None


@dataclass(frozen=True)
class Clause:
    """One condition. A value keeps `\\*` and `\\\\` as they were written, so that a `*` which is meant can be told from
    one that stands for any text."""

    field: str
    values: tuple[str, ...]
    comparison: Comparison = ""
    is_negated: bool = False

    def __str__(self) -> str:
        return f"{'-' * self.is_negated}{self.field}:{self.comparison}{','.join(map(_written, self.values))}"


@dataclass(frozen=True)
class Filter:
    """What a list takes. Made by `parse`, so its fields are there and its values can be read."""

    of: Noun
    clauses: tuple[Clause, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.clauses))

    def named(self, field: str) -> tuple[Clause, ...]:
        """The clauses of a field."""
        return tuple(clause for clause in self.clauses if clause.field == field)

    def at(self, now: datetime) -> "Filter":
        """The same with every age as the instant that it means now: what is kept of an act on many."""
        return Filter(self.of, tuple(_dated(self.of, clause, now) for clause in self.clauses))

    def and_(self, field: str, *values: str) -> "Filter":
        """This filter and one clause more. Raises FilterError as `parse` does."""
        return parse(self.of, " ".join(filter(None, (str(self), str(Clause(field, tuple(map(escape, values))))))))


# == text to filter ====================================================================================================
def parse(of: Noun, text: str) -> Filter:
    """Read the text of a filter. Raises FilterError, which has every fault with the column (from 1) where it stands."""
    if len(text) > TEXT_MAX:
        raise _error([(1, f"a filter has at most {TEXT_MAX} characters")])
    faults: list[tuple[int, str]] = []
    clauses: list[Clause] = []
    for at, clause in _read_clauses(of, text, faults):
        faults += [(at, why) for why in _faults_of(of, clause)]
        if clause not in clauses:
            clauses.append(clause)
    if len(clauses) > CLAUSES_MAX:
        faults.append((1, f"a filter has at most {CLAUSES_MAX} clauses"))
    if faults:
        raise _error(sorted(faults))
    return Filter(of, tuple(clauses))


def _read_clauses(of: Noun, text: str, faults: list[tuple[int, str]]) -> Iterator[tuple[int, Clause]]:
    """(column, clause) of each that can be read at all."""
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        begins = at
        head = _FIELD.match(text, at)
        if head is None:
            at = _next_space(text, at)
            faults.append((begins + 1, _without_field(of, text[begins:at])))
            continue
        at = head.end()
        comparison = _COMPARISON.match(text, at)
        at = comparison.end() if comparison else at
        try:
            values, at = _read_values(text, at)
        except _Unreadable as unreadable:
            faults.append((unreadable.at + 1, unreadable.why))
            at = _next_space(text, max(at, unreadable.at))
            continue
        sign: Comparison = comparison[0] if comparison else ""  # type: ignore[assignment]  # as the pattern says
        yield begins + 1, Clause(head[2].lower() if "." not in head[2] else head[2], values, sign, head[1] == "-")


class _Unreadable(Exception):
    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at, self.why = at, why


def _read_values(text: str, at: int) -> tuple[tuple[str, ...], int]:
    values: list[str] = []
    while True:
        value, at = _read_quoted(text, at) if text[at : at + 1] == '"' else _read_bare(text, at)
        values.append(value)
        if text[at : at + 1] != ",":
            break
        at += 1
    if at < len(text) and not text[at].isspace():
        raise _Unreadable(at, f"a space, or a comma and another value, must stand before {text[at : at + 20]!r}")
    if len(values) > VALUES_MAX:
        raise _Unreadable(at, f"a clause has at most {VALUES_MAX} values")
    return tuple(values), at


def _read_bare(text: str, at: int) -> tuple[str, int]:
    begins, value = at, ""
    while at < len(text) and (found := _read_char(text, at, _BARE)):
        value, at = value + found, at + (2 if text[at] == "\\" else 1)
    if not value:
        raise _Unreadable(begins, 'a value is missing; an empty one is ""')
    return value, at


def _read_quoted(text: str, at: int) -> tuple[str, int]:
    begins, value = at, ""
    at += 1
    while at < len(text) and text[at] != '"':
        value, at = value + _read_char(text, at, None), at + (2 if text[at] == "\\" else 1)
    if at >= len(text):
        raise _Unreadable(begins, "the quotes that open here are not closed")
    return value, at + 1


def _read_char(text: str, at: int, taken: re.Pattern[str] | None) -> str:
    """The character at a place, with its backslash where that means something; empty when it ends the value."""
    char = text[at]
    if char == "\x00":
        raise _Unreadable(at, "a U+0000 is in nothing")
    if char != "\\":
        return char if taken is None or taken.match(char) else ""
    following = text[at + 1 : at + 2]
    if not following:
        raise _Unreadable(at, r"a backslash stands before what it is meant for: \* \" \\")
    return following if following not in "*\\" else char + following


def _next_space(text: str, at: int) -> int:
    while at < len(text) and not text[at].isspace():
        at += 1
    return at


def _without_field(of: Noun, word: str) -> str:
    said = word.lstrip("-").partition(":")[0]
    near = _nearest(of, said)
    example = f"{near}:…" if near else f"{_examples(of)}, such as {_examples(of).split(', ')[0]}:{said[:40]}"
    return f"{word[:40]!r} says no field; write {example}"


# == what is wrong with a clause =======================================================================================
def _faults_of(of: Noun, clause: Clause) -> Iterator[str]:
    field = find_field(of, clause.field)
    if field is None:
        head, _, part = clause.field.partition(".")
        same = fields_of(of).get(head)
        if same is not None and same.kind is Kind.JSON and not part:
            yield f"{head} is asked by a path, such as {head}.customer.id"
            return
        if same is not None and same.kind is Kind.LABEL:
            why = f"{part[:40]!r} names none" if part else "they are asked by name"
            yield f"{head}: {why}; labels have names such as {head}.customer: small letters, digits, `_`, `.` and `-`"
            return
        near = _nearest(of, clause.field)
        hint = f"did you mean {near}?" if near else f"there are {_examples(of)}"
        yield f"{of.replace('_', ' ')} have no field {clause.field[:40]!r}; {hint}"
        return
    if clause.comparison and not field.is_ordered:
        yield f"{field.name} cannot be compared with {clause.comparison}"
    elif clause.comparison and len(clause.values) > 1:
        yield f"{clause.comparison} takes one value"
    else:
        for value in clause.values:
            try:
                check(field, clause.comparison, value)
            except ValueError as error:
                yield f"{clause.field}: {error}"


def check(field: Field, comparison: Comparison, value: str) -> None:
    """Raises ValueError when a field cannot have such a value."""
    if len(value) > field.length_max:
        raise ValueError(f"a value has at most {field.length_max} characters")
    match field.kind:
        case Kind.CHOICE:
            if value not in field.choices:
                near = get_close_matches(value, field.choices, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(field.choices)}"
                raise ValueError(f"{value[:40]!r} is none; {hint}")
        case Kind.ID:
            read_id(value)
        case Kind.INTEGER | Kind.INSTANT | Kind.LENGTH:
            bounds(field, comparison, value, _AGES_ARE_CHECKED_AT)
        case Kind.JSON:
            if comparison:
                read_number(value)
        case Kind.WORD | Kind.TEXT | Kind.LABEL:
            if has_wildcard(value) and not field.is_wild:
                raise ValueError(r"it takes no *; for the character itself write \*")


def _nearest(of: Noun, name: str) -> str | None:
    found = get_close_matches(name.lower(), fields_of(of), 1, 0.5)
    return found[0] if found else None


def _examples(of: Noun) -> str:
    return ", ".join(fields_of(of))


def _error(faults: Iterable[tuple[int, str]]) -> FilterError:
    found = [Fault(f"filter:{at}", why) for at, why in faults]
    at, why = found[0].path.partition(":")[2], found[0].message
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return FilterError(f"column {at} of the filter: {why}{more}", found)


# == values ============================================================================================================
def escape(text: str) -> str:
    """A value that means this text and nothing else."""
    return text.replace("\\", "\\\\").replace("*", "\\*")


def literal(value: str) -> str:
    """The text that a value without a wildcard means."""
    return re.sub(r"\\([*\\])", r"\1", value)


def has_wildcard(value: str) -> bool:
    return "*" in re.sub(r"\\[*\\]", "", value)


def like(value: str) -> str:
    """A value as a pattern of SQL's LIKE."""
    parts = re.split(r"(\\[*\\]|\*)", value)
    return "".join("%" if part == "*" else re.sub(r"([%_\\])", r"\\\1", literal(part)) for part in parts)


def read_id(value: str) -> UUID:
    """Raises ValueError."""
    try:
        return UUID(value)
    except ValueError:
        raise ValueError(f"{value[:40]!r} is no id, such as 019b0000-0000-7000-8000-000000000000") from None


def read_number(value: str) -> Decimal:
    """Raises ValueError."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError(f"{value[:40]!r} is no number, and only numbers are compared") from None
    if not number.is_finite() or abs(number.adjusted()) > 300:
        raise ValueError(f"{value[:40]!r} is too large a number")
    return number


def bounds(field: Field, comparison: Comparison, value: str, now: datetime) -> Bounds:
    """What a value of an ordered field stands for: a whole number, an instant, or a length in microseconds. Raises
    ValueError.

    `started:2026-11-01` is that whole day, so `>` of it begins with the next one.
    """
    first, behind = _extent(field, value, now)
    match comparison:
        case ">":
            return Bounds(behind, None)
        case ">=":
            return Bounds(first, None)
        case "<":
            return Bounds(None, first)
        case "<=":
            return Bounds(None, behind)
        case _:
            return Bounds(first, behind)


def _extent(field: Field, value: str, now: datetime) -> tuple[datetime, datetime] | tuple[int, int]:
    """A value as a range without its end."""
    match field.kind:
        case Kind.INSTANT:
            return _instant(value, now)
        case Kind.LENGTH:
            length = parse_duration(value) // _MICROSECOND
            return length, length + 1
        case _:
            if not re.fullmatch(r"-?\d{1,10}", value) or abs(int(value)) >= INTEGER_MAX:
                raise ValueError(f"{value[:40]!r} is no whole number")
            return int(value), int(value) + 1


def _instant(value: str, now: datetime) -> tuple[datetime, datetime]:
    if value == "now":
        return now, now + _MICROSECOND
    if re.match(r"-\d", value):
        at = now - parse_duration(value[1:])
        return at, at + _MICROSECOND
    try:
        if _DAY.fullmatch(value):
            at = parse_instant(f"{value}T00:00:00Z")
            return at, at + timedelta(days=1)
        at = parse_instant(value)
        return at, at + (timedelta(minutes=1) if _MINUTE.fullmatch(value) else _MICROSECOND)
    except (ValueError, OverflowError):
        hint = f"; so long ago is -{value}" if re.fullmatch(r"(\d+(\.\d+)?(us|ms|[smhd]))+", value) else ""
        raise ValueError(
            f"{value[:40]!r} is no instant: write 2026-11-01, 2026-11-01T09:30Z or an age such as -2h{hint}"
        ) from None


def _dated(of: Noun, clause: Clause, now: datetime) -> Clause:
    field = find_field(of, clause.field)
    if field is None or field.kind is not Kind.INSTANT:
        return clause
    values = (
        format_instant(_instant(each, now)[0]) if each == "now" or each[0] == "-" else each for each in clause.values
    )
    return Clause(clause.field, tuple(values), clause.comparison, clause.is_negated)


def _written(value: str) -> str:
    escaped = value.replace('"', '\\"')
    return f'"{escaped}"' if _QUOTED_IF.search(value) else value
