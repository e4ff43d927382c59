"""Dead letters of one cause have one fingerprint, and only they."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.graph import from_data
from headrace.machine import Plan, compile_plan
from headrace.messages import Error
from state.fingerprint import (
    MESSAGE_CHARS_MAX,
    Header,
    decode_headers,
    encode_headers,
    label_record,
    label_task,
    normalise,
)


def plan(name: str = "orders", version: int = 1) -> Plan:
    definition = {"name": name, "tasks": {"charge": {"run": "t.charge"}, "ship": {"run": "t.ship"}}}
    return compile_plan(from_data(definition), version=version)


def mark(message: str = "no", task: int = 0, *, code: str = "ERROR", type: str = "", of: Plan | None = None) -> str:
    return label_task(Error(code, message, type), of or plan(), task).fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 has no total", "order 4711 has no total"),
        ("took 1.5 s", "took 12,000.25 s"),
        ("off by -1e-9", "off by 3E+7"),
        ("no run 0190a6c8-1c4e-7b2a-9d3e-0123456789ab", "no run 0190A6C8-1C4E-7B2A-9D3E-FFFFFFFFFFFF"),
        ("trace 4bf92f3577b34da6a3ce929d0e0e4736", "trace 00000000000000000000000000000001"),
        ("at 0x7f3a2b", "at 0x1"),
        ("commit 3fa9c01d is gone", "commit 1234abcd is gone"),
        ("since 2026-11-29T10:00:03.125Z", "since 2025-01-02 23:59:59+01:00"),
        ("on 2026-11-29", "on 1999-12-31"),
        ("at 23:59:59.5", "at 00:00:00"),
        ("KeyError: 'total'", "KeyError: 'amount of it'"),
        ('unknown sku "A-1"', 'unknown sku "it\'s \\"new\\" B-22"'),
        ("no file `a.csv`", "no file `b c.csv`"),
        ("no file “a”", "no file “b”"),
        ("host 10.0.0.1:5432 refused", "host 192.168.17.4:80 refused"),
        ("two\n  lines", "two lines"),
    ],
)
def test_what_differs_from_case_to_case_does_not_count(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)
    assert mark(one) == mark(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no such order", "no such account"),
        ("can't read the user's file", "can't read the group's file"),
        ("the feedface failed", "the deadbeef failed"),
    ],
)
def test_words_count(one: str, other: str) -> None:
    assert mark(one) != mark(other)


def test_where_it_happened_counts() -> None:
    marks = [
        mark(),
        mark(task=1),
        mark(of=plan(version=2)),
        mark(of=plan("returns")),
        mark(code="TIMEOUT"),
        mark(type="ValueError"),
        label_record(Error("ERROR", "no"), "charge").fingerprint,
        label_record(Error("ERROR", "no"), "other").fingerprint,
    ]
    assert len(set(marks)) == len(marks)


def test_a_label_holds_nothing_that_postgres_refuses() -> None:
    label = label_record(Error("BAD\0", "a\0b" + "x" * 5_000), "t")
    assert (label.code, label.message[:4], len(label.message)) == ("BAD\\0", "a\\0b", MESSAGE_CHARS_MAX + 1)
    assert "\0" not in "".join(label)


@given(st.text(alphabet="ab'\"`\\ 0f-:.x\n“”٣", max_size=MESSAGE_CHARS_MAX))
def test_no_number_stays_in_a_normal_form(message: str) -> None:
    assert not any(character.isdigit() for character in normalise(message))


@pytest.mark.parametrize("message", ["'\\" * 5_000, "'" * 5_000, "0" * 5_000, "a-" * 5_000, "“" * 5_000, "\\" * 5_000])
def test_an_odd_message_costs_little(message: str) -> None:
    started = time.process_time()
    normalise(message)
    assert time.process_time() - started < 2


def test_headers_keep_their_order_their_bytes_and_their_repetitions() -> None:
    stored = encode_headers([("a", b"1"), ("a", b"\xff"), ("b", None)])
    assert stored is not None
    expected = [Header("a", "1"), Header("a", "/w==", "base64"), Header("b", None)]
    assert decode_headers(stored.decode()) == expected
    assert encode_headers([]) is None
    assert decode_headers(None) == []
    assert decode_headers('{"traceparent": "00"}') == [Header("traceparent", "00")]
