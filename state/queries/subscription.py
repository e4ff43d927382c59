"""Subscriptions."""

from datetime import datetime
from typing import NamedTuple

from state.queries.rows import Connection, fetch, fetch_one
from state.sql import load

_SQL = load("subscription_queries")


class SubscriptionRow(NamedTuple):
    name: str
    topic: str
    workflow: str | None
    """None: its records say a signal."""
    filter: str | None
    input: str | None
    enabled: bool
    created_at: datetime
    waits_since: datetime | None
    signal: str | None = None
    """JSON."""
    labels: str | None = None
    """Templates by name, as JSON; None for none."""


async def get_subscription(connection: Connection, namespace: str, name: str) -> SubscriptionRow | None:
    return await fetch_one(connection, SubscriptionRow, _SQL.text("get_subscription"), namespace=namespace, name=name)


async def list_subscriptions(
    connection: Connection, namespace: str, *, limit: int, after: str = ""
) -> list[SubscriptionRow]:
    """By name. after: the last name seen."""
    return await fetch(
        connection, SubscriptionRow, _SQL.text("list_subscriptions"), namespace=namespace, after=after, limit=limit
    )
