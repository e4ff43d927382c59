"""Durable workflows: Kafka wakes workers, Postgres decides."""

__version__ = "0.1.0"
