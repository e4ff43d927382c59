"""Records of a user's topic, at so many per second, from a process of its own.

    python -m benchmarks.records BOOTSTRAP TOPIC PER_SECOND SECONDS

A record is due at its time; one that is late is sent as soon as it can be. Prints one JSON line:
{"starting": seconds, "asked": how many were due, "sent": how many Kafka acknowledged}.
"""

import argparse
import json
import time
from typing import Any

from confluent_kafka import KafkaError, Message, Producer


class Records:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"})
        self._topic, self.acknowledged = topic, 0

    def send(self, per_second: float, seconds: float) -> dict[str, Any]:
        total, first = round(per_second * seconds), time.time()
        for number in range(total):
            due = first + number / per_second
            if (early := due - time.time()) > 0.005:
                self._producer.poll(early)
            self._put(json.dumps({"due": round(due * 1_000_000)}).encode())
        self._producer.flush(60)
        return {"starting": seconds, "asked": total, "sent": self.acknowledged}

    def _put(self, value: bytes) -> None:
        while True:
            try:
                return self._producer.produce(self._topic, value, on_delivery=self._note)
            except BufferError:
                self._producer.poll(0.1)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        self.acknowledged += error is None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.records")
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("per_second", type=float)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    print(json.dumps(Records(options.bootstrap, options.topic).send(options.per_second, options.seconds)))


if __name__ == "__main__":
    main()
