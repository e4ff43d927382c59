"""What the relay counts, for Prometheus."""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from state.outbox import Record

RECORDS: Final = Counter("headrace_outbox_records_total", "Records delivered to Kafka.", ["topic"])
TRANSACTIONS: Final = Counter("headrace_outbox_transactions_total", "Transactions whose records were all delivered.")
SET_ASIDE: Final = Counter(
    "headrace_outbox_set_aside_total", "Records that Kafka refused for ever, or that could not be read."
)
LAG_BYTES: Final = Gauge(
    "headrace_outbox_lag_bytes", "Log that Postgres keeps for the relay: written, not yet acknowledged."
)
IS_OWNER: Final = Gauge("headrace_outbox_owner", "1 while this relay publishes, 0 while it stands by.")
PUBLISH_SECONDS: Final = Histogram(
    "headrace_outbox_publish_seconds",
    "From handing a batch of records to the producer to Kafka's last acknowledgement.",
    buckets=(0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5, 30),
)


def count_delivered(records: Sequence[Record], transactions: int, seconds: float) -> None:
    for topic, count in Tally(record.topic for record in records).items():
        RECORDS.labels(topic).inc(count)
    TRANSACTIONS.inc(transactions)
    PUBLISH_SECONDS.observe(seconds)
