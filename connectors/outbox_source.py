"""What a committed transaction left in the outbox: its logical messages and its rows in table `outbox`, as records."""

from typing import Final

from connectors.decoding import Insert, Message, Transaction
from connectors.publisher import Refusal
from headrace.errors import MessageError
from state.outbox import MESSAGE_PREFIX, Record, unbundle

_PREFIX: Final = MESSAGE_PREFIX.encode()
_TABLE: Final = "outbox"


def read_records(transaction: Transaction, refusals: list[Refusal]) -> list[Record]:
    """Read a transaction's records in the order in which it left them; what is not ours is passed over.

    What claims to be ours and cannot be read is added to `refusals`, as a record without a topic: it must not stop
    those behind it.
    """
    records: list[Record] = []
    for change in transaction.changes:
        try:
            if isinstance(change, Message):
                if change.prefix == _PREFIX:
                    records += unbundle(change.content)
            elif change.table == _TABLE:
                records.append(_read_row(change))
        except MessageError as error:
            content = change.content if isinstance(change, Message) else repr(change.row).encode()
            refusals.append(Refusal(Record("", b"", content), str(error)))
    return records


def _read_row(insert: Insert) -> Record:
    row = insert.row
    topic, key, value = row.get("aggregatetype"), row.get("aggregateid"), row.get("payload")
    if topic is None or key is None or value is None:
        raise MessageError("a row of the outbox lacks aggregatetype, aggregateid or payload")
    partition, traceparent = row.get("partition"), row.get("traceparent")
    return Record(
        topic.decode(),
        key,
        value,
        None if partition is None else int(partition),
        None if traceparent is None else traceparent.decode(),
    )
