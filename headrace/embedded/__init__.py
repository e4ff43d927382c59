"""Servers that `headrace dev`, the demo and the tests start for themselves: Postgres, and two Kafka-compatible logs.

    postgres.EmbeddedPostgres   a real server, from the machine's own binaries or from the engine extra's
    broker.EmbeddedBroker       a log in memory, up in milliseconds; `broker` says what it cannot do
    kafka.ApacheKafka           the real thing, one node, from Maven's jars

Each listens on the loopback only, keeps its port from start to start, and ends when the process that started it does,
however that process ends (`reaper`). Nothing is imported here: the broker runs as `python -m headrace.embedded.broker`.
"""
