"""The shop: it writes its orders to a Kafka topic, as CloudEvents.

    python examples/orders/shop.py --orders 10 [--topic shop.orders] [--kafka 127.0.0.1:9092]

Records come in both content modes of the CloudEvents binding for Kafka, and some come twice, as they do when a producer
is not sure that it was heard.
"""

import argparse
import json
import os
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Producer

TOPIC = "shop.orders"
PLACED = "shop.order.placed"
VIEWED = "shop.order.viewed"
SOURCE = "//shop/till-1"
GARBAGE = b'\xff\xfe{"amount_cents": 24'
"""What a broken producer leaves: no JSON, and not even UTF-8."""
PRICES_CENTS = {"lamp": 2450, "chair": 8900, "desk": 31900}


class Record(NamedTuple):
    key: str
    value: bytes
    headers: list[tuple[str, str | bytes | None]]


def make_orders(count: int) -> list[dict[str, Any]]:
    """Orders `A-0001` and so on, all of them right."""
    skus = sorted(PRICES_CENTS)
    return [
        {
            "order_id": f"A-{number:04}",
            "sku": (sku := skus[number % len(skus)]),
            "quantity": (quantity := 1 + number % 3),
            "amount_cents": PRICES_CENTS[sku] * quantity,
            "email": f"customer{number}@example.org",
        }
        for number in range(1, count + 1)
    ]


def write_binary(order: dict[str, Any], event_id: str, kind: str = PLACED) -> Record:
    """Attributes as headers; the value is the order."""
    attributes = {"id": event_id, "source": SOURCE, "type": kind, "specversion": "1.0", "subject": order["order_id"]}
    headers: list[tuple[str, str | bytes | None]] = [
        ("content-type", b"application/json"),
        *((f"ce_{name}", text.encode()) for name, text in attributes.items()),
    ]
    return Record(order["order_id"], json.dumps(order).encode(), headers)


def write_structured(order: dict[str, Any], event_id: str, kind: str = PLACED) -> Record:
    """The value is the whole event."""
    event = {
        "id": event_id,
        "source": SOURCE,
        "type": kind,
        "specversion": "1.0",
        "subject": order["order_id"],
        "data": order,
    }
    return Record(order["order_id"], json.dumps(event).encode(), [("content-type", b"application/cloudevents+json")])


def write_orders(orders: Sequence[dict[str, Any]], *, repeat_every: int = 5) -> list[Record]:
    """One event per order, in turns binary and structured; every fifth comes twice."""
    records = []
    for number, order in enumerate(orders):
        write = write_structured if number % 2 else write_binary
        record = write(order, str(uuid.uuid5(uuid.NAMESPACE_URL, f"{SOURCE}/{order['order_id']}")))
        records += [record] * (2 if number % repeat_every == 0 else 1)
    return records


def send(kafka: str, topic: str, records: Iterable[Record]) -> None:
    """Returns when the log has them all; raises RuntimeError when it has not."""
    failed: list[str] = []
    # The default partitioner of librdkafka is not the one of Java; with this one, all clients agree where a key goes.
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "partitioner": "murmur2_random"})
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            headers=record.headers,
            on_delivery=lambda error, _: failed.append(str(error)) if error else None,
        )
    if producer.flush(30) or failed:
        raise RuntimeError(f"not all records reached {topic}: {failed[:3] or 'Kafka does not answer'}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Place some orders.")
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--kafka", default=os.environ.get("HEADRACE_KAFKA", "127.0.0.1:9092"))
    given = parser.parse_args()
    records = write_orders(make_orders(given.orders))
    send(given.kafka, given.topic, records)
    print(f"sent {len(records)} records with {given.orders} orders to {given.topic}")


if __name__ == "__main__":
    main()
