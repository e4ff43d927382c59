"""A record of a user's topic, as a subscription sees it: a CloudEvent in either of its Kafka content modes, or any
JSON.

Source: CloudEvents 1.0.2, Kafka protocol binding 1.0.2 §3 (binary: attributes are headers `ce_*`; structured: the value
is the event).
"""

from typing import Any, Final

import msgspec

from headrace.errors import MessageError

STRUCTURED: Final = b"application/cloudevents+json"
_decode: Final = msgspec.json.decode


class Happening(msgspec.Struct, frozen=True):
    """What a record says."""

    attributes: dict[str, Any]
    """CloudEvents attributes (`id`, `source`, `type`, `subject`, `time` …); empty for a record that is no
    CloudEvent."""
    data: msgspec.Raw
    """JSON."""

    @property
    def identity(self) -> str | None:
        """Source and id of a CloudEvent: the same for every delivery and every copy of it."""
        source, id_ = self.attributes.get("source"), self.attributes.get("id")
        return f"{source} {id_}" if isinstance(source, str) and isinstance(id_, str) and id_ else None


def read_record(value: bytes | None, headers: dict[str, bytes]) -> Happening:
    """Read a record. Raises MessageError when its value is no JSON, or says that it is a CloudEvent and is none."""
    content_type = headers.get("content-type", b"").split(b";")[0].strip().lower()
    if content_type == STRUCTURED:
        return _structured(value or b"")
    if "ce_id" in headers:
        attributes = {name[3:]: _text(raw) for name, raw in headers.items() if name.startswith("ce_")}
        return Happening(attributes, _json(value or b"null"))
    return Happening({}, _json(value or b"null"))


def _structured(value: bytes) -> Happening:
    try:
        event = _decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise MessageError(f"no structured CloudEvent: {e}") from e
    if missing := [name for name in ("id", "source", "type", "specversion") if name not in event]:
        raise MessageError(f"a CloudEvent without {', '.join(missing)}")
    data = event.pop("data", msgspec.Raw(b"null"))
    attributes = {name: _decode(_json(bytes(raw))) for name, raw in event.items() if name != "data_base64"}
    return Happening(attributes, _json(bytes(data)))


def _json(raw: bytes) -> msgspec.Raw:
    try:
        _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise MessageError(f"the record is no JSON: {e}") from e
    return msgspec.Raw(raw)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        raise MessageError(f"a CloudEvents header is not UTF-8: {e}") from e
