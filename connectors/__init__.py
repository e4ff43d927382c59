"""Between Postgres and Kafka: the outbox relay, and the configuration that lets a real Debezium take its place."""
