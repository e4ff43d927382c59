"""What may be stored, at both edges."""

import contextlib
import dataclasses
import datetime
import decimal
import enum
import math
import socket
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import payload
from headrace.errors import PayloadError
from headrace.messages import PAYLOAD_BYTES_MAX


class Color(enum.StrEnum):
    RED = "red"


class Money(pydantic.BaseModel):
    amount: float
    at: datetime.datetime | None = None


@dataclasses.dataclass
class Order:
    id: int
    price: Money


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


class Trap(pydantic.BaseModel):
    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def boom(self) -> int:
        raise SystemExit(1)


class Renamed(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("not for you")


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def many_times(levels: int) -> list[Any]:
    """Small in memory, without end when written."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value] * 10
    return value


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def reason_of(value: object, annotation: Any = None) -> tuple[str, str]:
    with pytest.raises(PayloadError) as caught:
        payload.encode(value, annotation=annotation)
    return caught.value.reason, str(caught.value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(payload.INTEGER_MIN, payload.INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), children, max_size=4
        )
    ),
)


@given(JSON)
def test_json_data_comes_back_as_it_was_and_passes_the_check(value: Any) -> None:
    raw = payload.encode(value)
    payload.check(raw)
    assert msgspec.json.decode(raw) == value


def test_models_dataclasses_and_harmless_subclasses_are_stored() -> None:
    order = Order(1, Money(amount=2.5, at=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)))
    assert payload.encode({"o": [order]}) == b'{"o":[{"id":1,"price":{"amount":2.5,"at":"2026-01-02T00:00:00Z"}}]}'
    assert payload.encode(Renamed(a=1)) == b'{"a":1}'
    assert payload.encode((1, "b")) == b'[1,"b"]'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "nan"),
        ({"a": [1.0, -math.inf]}, "a[1]"),
        (Money(amount=math.inf), "inf"),
        ("a\0", "U+0000"),
        ({"a\0": 1}, "U+0000"),
        ("\ud800", "surrogate"),
        ({"\ud800": 1}, "surrogate"),
        (b"raw", "bytes"),
        ({1, 2}, "set"),
        (socket.socket, "type"),
        ((i for i in range(2)), "generator"),
        (cycle(), "contain itself"),
        (nested(65), "64 levels"),
        (2**63, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        ({1: 2}, "key of type int"),
        ({Color.RED: 2}, "Color"),
        (Color.RED, "Color"),
        (datetime.date(2026, 1, 1), "datetime.date"),
        (uuid.uuid4(), "UUID"),
        (decimal.Decimal(1), "Decimal"),
        (Unreadable(), "Unreadable"),
        ([object()], "[0]"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_its_type_and_path(value: object, text: str) -> None:
    reason, message = reason_of(value)
    assert reason == "BAD_RESULT"
    assert text in message


def test_the_size_limit_is_exact_and_endless_objects_end() -> None:
    assert len(payload.encode("x" * (PAYLOAD_BYTES_MAX - 2))) == PAYLOAD_BYTES_MAX
    for value in ["x" * (PAYLOAD_BYTES_MAX - 1), "\x01" * (PAYLOAD_BYTES_MAX // 2), "x" * (5 << 20), many_times(60)]:
        assert reason_of(value)[0] == "RESULT_TOO_LARGE"
    assert payload.encode(nested(64)) == b"[" * 64 + b"1" + b"]" * 64


@pytest.mark.parametrize(
    ("value", "annotation", "raw"),
    [
        (datetime.date(2026, 1, 2), datetime.date, b'"2026-01-02"'),
        (uuid.UUID(int=1), uuid.UUID | None, b'"00000000-0000-0000-0000-000000000001"'),
        (decimal.Decimal("1.50"), decimal.Decimal, b'"1.50"'),
        (Color.RED, Color, b'"red"'),
        ({"a": {"x"}}, dict[str, set[str]], b'{"a":["x"]}'),
        ({1: "x"}, dict[int, str], b'{"1":"x"}'),
        ({"amount": "2.5"}, Money, b'{"amount":2.5,"at":null}'),
        (None, type(None), b"null"),
    ],
)
def test_a_declared_type_is_stored_in_its_json_form(value: object, annotation: Any, raw: bytes) -> None:
    assert payload.encode(value, annotation=annotation) == raw


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("x", int),
        (3, type(None)),
        (math.nan, float),
        ({"a": math.nan}, dict[str, Any]),
        ([Money(amount=math.nan)], list[Money]),
        ({"a": {1}}, dict[str, Any]),
        (cycle(), list[Any]),
    ],
)
def test_a_declaration_does_not_let_through_what_it_does_not_cover(value: object, annotation: Any) -> None:
    assert reason_of(value, annotation)[0] == "BAD_RESULT"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b"\xef\xbb\xbf1",
        b"NaN",
        b"1e999",
        b"9223372036854775808",
        b'"\\u0000"',
        b'{"\\u0000":1}',
        b'"\\ud800"',
        b'"\xed\xa0\x80"',
        b'{"a":1,"a":2}',
        b'{"x":[{"a:":1,"\\u0061:":2}]}',
        b"[" * 65 + b"]" * 65,
        b"[" * 100_000,
        b'{"a":1} 2',
    ],
)
def test_bytes_from_outside_follow_the_same_rules(raw: bytes) -> None:
    with pytest.raises(PayloadError) as caught:
        payload.check(raw)
    assert caught.value.reason == "BAD_INPUT"


def test_bytes_at_the_limit_pass_and_one_more_does_not() -> None:
    payload.check(b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"')
    with pytest.raises(PayloadError) as caught:
        payload.check(b'"' + b"x" * (PAYLOAD_BYTES_MAX - 1) + b'"')
    assert caught.value.reason == "INPUT_TOO_LARGE"
    for raw in [b'{"a:b":{"a:b":"c:d"}}', b"[]", b" 1 ", b'"\\ud83d\\ude00"', b"-9223372036854775808"]:
        payload.check(raw)


def test_the_callers_ctrl_c_goes_on_as_it_came() -> None:
    class Slow:
        def __getattribute__(self, name: str) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        payload.encode_input({"a": Slow()})
    with pytest.raises(PayloadError, match="KeyboardInterrupt"):
        payload.encode({"a": Slow()})


def test_an_input_is_refused_in_the_words_of_an_input() -> None:
    with pytest.raises(PayloadError, match="the input of type dict at a holds set") as caught:
        payload.encode_input({"a": {1}})
    assert caught.value.reason == "BAD_INPUT"


@pytest.mark.parametrize("make", [lambda: math.nan, lambda: {1}, lambda: "\0", Unreadable, object, cycle, Trap])
def test_encode_raises_nothing_but_payload_errors(make: Callable[[], object]) -> None:
    for annotation in (None, Any, int, list[Any], Money, datetime.datetime):
        with contextlib.suppress(PayloadError):
            payload.check(payload.encode(make(), annotation=annotation))
