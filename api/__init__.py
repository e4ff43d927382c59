"""The HTTP face of the engine: start, query, approve, operate. It talks to Postgres only; Kafka may be away.

Every write is one transaction with its outbox message and the answer to its idempotency key. Reads take no lock.
"""
