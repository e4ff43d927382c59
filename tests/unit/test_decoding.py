"""pgoutput frames, made by hand after the manual: whole transactions come out, whatever is cut, mixed in or new."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.decoding import Decoder, Insert, Keepalive, Message, Transaction, format_lsn
from connectors.slot import find_gap
from headrace.errors import MessageError


def wal(body):
    return b"w" + struct.pack(">QQQ", 100, 100, 0) + body


def begin():
    return wal(b"B" + struct.pack(">QQI", 150, 0, 7))


def commit(end_lsn):
    return wal(b"C" + struct.pack(">BQQQ", 0, end_lsn - 1, end_lsn, 0))


def message(content, prefix=b"headrace", is_transactional=True):
    return wal(
        b"M" + struct.pack(">BQ", is_transactional, 120) + prefix + b"\0" + struct.pack(">I", len(content)) + content
    )


def relation(columns, table=b"outbox", number=9):
    head = b"R" + struct.pack(">I", number) + b"public\0" + table + b"\0d" + struct.pack(">H", len(columns))
    return wal(head + b"".join(b"\1" + column + b"\0" + struct.pack(">Ii", 25, -1) for column in columns))


def insert(values, number=9):
    cells = [b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value for value in values]
    return wal(b"I" + struct.pack(">I", number) + b"N" + struct.pack(">H", len(values)) + b"".join(cells))


def feed(*frames):
    decoder = Decoder()
    return [found for frame in frames if (found := decoder.feed(frame)) is not None]


def test_a_transaction_comes_out_whole_with_its_commit():
    assert feed(begin(), message(b"one"), message(b"", b"other"), commit(200)) == [
        Transaction(200, [Message(b"headrace", b"one"), Message(b"other", b"")])
    ]


def test_a_row_carries_its_columns_by_name_and_null_as_none():
    frames = [begin(), relation([b"id", b"payload", b"partition"]), insert([b"1", b"{}", None]), commit(200)]
    assert feed(*frames) == [Transaction(200, [Insert("outbox", {"id": b"1", "payload": b"{}", "partition": None})])]


def test_a_table_announced_again_is_read_by_its_new_columns():
    frames = [relation([b"a"]), relation([b"a", b"b"]), begin(), insert([b"1", b"2"]), commit(9)]
    assert feed(*frames) == [Transaction(9, [Insert("outbox", {"a": b"1", "b": b"2"})])]


def test_a_half_read_transaction_waits_for_its_end():
    decoder = Decoder()
    assert decoder.feed(begin()) is None
    assert decoder.feed(message(b"one")) is None
    assert decoder.is_inside
    assert decoder.feed(b"k" + struct.pack(">QQB", 170, 0, 1)) == Keepalive(170, is_reply_wanted=True)
    assert decoder.feed(message(b"two")) is None
    found = decoder.feed(commit(200))
    assert isinstance(found, Transaction)
    assert [change.content for change in found.changes if isinstance(change, Message)] == [b"one", b"two"]
    assert not decoder.is_inside


def test_a_message_outside_of_transactions_is_not_an_outbox():
    assert feed(message(b"now", is_transactional=False), begin(), commit(5)) == [Transaction(5, [])]


def test_updates_deletes_and_later_inventions_are_passed_over():
    assert feed(begin(), wal(b"U...."), wal(b"D"), wal(b"T"), wal(b"Y"), wal(b"O"), wal(b"z"), commit(5)) == [
        Transaction(5, [])
    ]


@given(st.sampled_from([message(b"content"), insert([b"abc", None])]), st.integers(0, 200))
def test_a_frame_cut_short_is_a_message_error(frame, size):
    decoder = Decoder()
    decoder.feed(relation([b"x", b"y"]))
    with pytest.raises(MessageError):
        decoder.feed(frame[: min(size, len(frame) - 1)])


def test_a_row_of_a_table_never_announced_is_a_message_error():
    with pytest.raises(MessageError):
        feed(begin(), insert([b"1"]))


@pytest.mark.parametrize("frame", [b"", b"x", b"k", b"w"])
def test_an_unknown_frame_is_a_message_error(frame):
    with pytest.raises(MessageError):
        feed(frame)


def test_positions_are_written_as_postgres_writes_them():
    assert format_lsn(0x16_B374D848) == "16/B374D848"
    assert format_lsn(0) == "0/0"


def test_a_slot_that_continues_where_the_row_says_has_no_gap():
    assert find_gap(exists=True, is_lost=False, confirmed=50, acked=60, log_end=100) is None
    assert find_gap(exists=True, is_lost=False, confirmed=60, acked=60, log_end=60) is None


@pytest.mark.parametrize(
    "sight",
    [
        {"exists": False, "confirmed": 0},
        {"is_lost": True},
        {"confirmed": 61},
        {"acked": 101},
    ],
)
def test_a_slot_that_is_not_the_one_we_knew_has_a_gap(sight):
    known = {"exists": True, "is_lost": False, "confirmed": 50, "acked": 60, "log_end": 100}
    assert find_gap(**(known | sight)) is not None
