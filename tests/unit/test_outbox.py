"""The outbox codec: what goes in comes out, in order per topic, and nothing else is taken for it."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.decoding import Insert, Message, Transaction
from connectors.outbox_source import read_records
from connectors.publisher import Refusal
from headrace.errors import MessageError
from state import outbox
from state.outbox import OutboxMode, Record, bundle, bundles, statements, table_columns, unbundle

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RECORDS = [
    Record("headrace.commands.io", b"run-1", b'{"task":1}', 7),
    Record("headrace.events", b"run-1", b'{"kind":"due"}'),
    Record("headrace.commands.io", b"run-1", b'{"task":2}', 8, TRACE),
    Record("headrace.events", b"run-2", b'{"kind":"lost"}', None, TRACE),
]

any_record = st.builds(
    Record,
    st.sampled_from(["a", "b", "c"]),
    st.binary(max_size=20),
    st.binary(max_size=50),
    st.none() | st.integers(0, 500),
    st.none() | st.text(max_size=60),
)


def by_topic(records):
    return {
        topic: [record for record in records if record.topic == topic] for topic in {record.topic for record in records}
    }


@given(st.lists(any_record))
def test_a_bundle_gives_back_its_records_in_order_per_topic(records):
    assert by_topic(unbundle(bundle(records))) == by_topic(records)


def test_a_topic_is_written_once_and_defaults_not_at_all():
    content = bundle([Record("headrace.events", b"k", b"v")] * 100)
    assert content.count(b"headrace.events") == 1
    assert len(content) < 100 * 7 + 30


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1", b"{}", bundle(RECORDS)[:-1], bundle(RECORDS) + b"x", msgspec.msgpack.encode([["t", [["k", 1]]]])],
)
def test_what_is_no_bundle_is_a_message_error(content):
    with pytest.raises(MessageError):
        unbundle(content)


def test_a_transaction_is_one_message_until_it_is_too_large_to_be_decoded(monkeypatch):
    assert len(bundles(RECORDS)) == 1
    assert bundles([]) == []
    monkeypatch.setattr(outbox, "BUNDLE_BYTES_MAX", 100)
    parts = bundles([Record("t", b"k", b"v" * 40)] * 5 + [Record("t", b"k", b"w" * 500)])
    assert [len(unbundle(part)) for part in parts] == [2, 2, 1, 1]


def test_columns_stand_in_the_order_of_the_insert():
    columns = table_columns(RECORDS)
    assert f"({', '.join(columns)})" in outbox.INSERT_ROWS
    assert columns["aggregatetype"] == [record.topic for record in RECORDS]
    assert columns["aggregateid"] == ["run-1", "run-1", "run-1", "run-2"]
    assert columns["payload"][0] == '{"task":1}'
    assert columns["partition"] == [7, None, 8, None]
    assert columns["traceparent"] == [None, None, TRACE, TRACE]


def test_row_ids_rise_and_never_repeat():
    ids = table_columns(RECORDS * 50)["id"]
    assert len(set(ids)) == len(ids)
    assert all(a < b for a, b in pairwise(ids))


@pytest.mark.parametrize("record", [Record("t", b"\xff", b"{}"), Record("t", b"k", b"\xff"), Record("t", b"k", b"\0")])
def test_the_table_refuses_what_is_not_text(record):
    with pytest.raises(MessageError):
        table_columns([record])


def test_no_records_need_no_statement():
    assert statements([], OutboxMode.MESSAGES) == statements([], OutboxMode.TABLE) == []


def as_row(record):
    def text(value):
        return None if value is None else str(value).encode()

    return Insert(
        "outbox",
        {"aggregatetype": record.topic.encode(), "aggregateid": record.key, "payload": record.value}
        | {"partition": text(record.partition), "traceparent": text(record.traceparent)},
    )


def test_both_sources_read_the_same_records():
    refusals: list[Refusal] = []
    rows = Transaction(1, [as_row(record) for record in RECORDS])
    message = Transaction(1, [Message(b"headrace", bundle(RECORDS))])
    assert read_records(rows, refusals) == RECORDS
    assert by_topic(read_records(message, refusals)) == by_topic(RECORDS)
    assert refusals == []


def test_foreign_messages_and_tables_are_passed_over():
    refusals: list[Refusal] = []
    changes: list[Message | Insert] = [Message(b"another", b"\xff"), Insert("audit", {"id": b"1"})]
    assert read_records(Transaction(1, changes), refusals) == []
    assert refusals == []


def test_an_unreadable_bundle_does_not_stop_the_records_around_it():
    refusals: list[Refusal] = []
    broken = Insert("outbox", {"aggregatetype": b"t", "aggregateid": None, "payload": b"v"})
    changes: list[Message | Insert] = [Message(b"headrace", b"\xc1"), broken, as_row(RECORDS[0])]
    assert read_records(Transaction(1, changes), refusals) == RECORDS[:1]
    assert [refusal.record.topic for refusal in refusals] == ["", ""]
    assert refusals[0].record.value == b"\xc1"
