"""What the statements of the outbox do, on the model."""

from typing import Any

from state.outbox import Record, bundle
from tests.simulation.postgres import Transaction
from tests.simulation.statements.registry import model


@model
def publish_messages(t: Transaction, contents: Any) -> list[tuple[Any, ...]]:
    for content in contents:
        t.emit(content)
    return []


@model
def emit_message(t: Transaction, content: bytes) -> list[tuple[Any, ...]]:
    t.emit(content)
    return []


@model
def publish_rows(
    t: Transaction, ids: Any, topics: Any, keys: Any, types: Any, payloads: Any, partitions: Any, traces: Any
) -> list[tuple[Any, ...]]:
    """The outbox table, read by the same relay: packed as a bundle, which the relay tells from it no more."""
    rows = zip(topics, keys, payloads, partitions, traces, strict=True)
    records = [Record(topic, key.encode(), value.encode(), p, trace) for topic, key, value, p, trace in rows]
    t.emit(bundle(records))
    return []


@model
def delete_rows(t: Transaction, ids: Any) -> list[tuple[Any, ...]]:
    return []
