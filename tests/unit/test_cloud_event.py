"""Records of users' topics, as a subscription sees them."""

import json

import pytest

from headrace.errors import MessageError
from streams.cloud_event import read_record

EVENT = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "order.placed", "data": {"total": 12}}


def test_a_structured_event_has_its_attributes_and_data():
    content_type = b"application/cloudevents+json; charset=utf-8"
    happening = read_record(json.dumps(EVENT).encode(), {"content-type": content_type})
    assert happening.identity == "/shop e-1"
    assert happening.attributes["type"] == "order.placed"
    assert json.loads(bytes(happening.data)) == {"total": 12}


def test_a_binary_event_has_its_attributes_in_headers():
    headers = {"ce_id": b"e-2", "ce_source": b"/shop", "ce_type": b"order.placed", "ce_specversion": b"1.0"}
    happening = read_record(b'{"total": 1.50}', headers)
    assert happening.identity == "/shop e-2"
    assert bytes(happening.data) == b'{"total": 1.50}'


def test_plain_json_has_no_identity_of_its_own():
    happening = read_record(b"[1, 2]", {})
    assert happening.identity is None
    assert happening.attributes == {}


def test_a_tombstone_is_null():
    assert bytes(read_record(None, {}).data) == b"null"


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b"\xff\xfe", {}),
        (b"{", {}),
        (b"[" * 100_000, {}),
        (b'{"id": "x"}', {"content-type": b"application/cloudevents+json"}),
        (b"not json", {"content-type": b"application/cloudevents+json"}),
        (b"{}", {"ce_id": b"\xff", "ce_source": b"s"}),
    ],
)
def test_what_cannot_be_read_says_so(value: bytes, headers: dict[str, bytes]):
    with pytest.raises(MessageError):
        read_record(value, headers)
