"""Create and delete subscriptions, in the caller's open transaction."""

from uuid import UUID

from uuid_utils import uuid7

from headrace.errors import ConflictError, NotFoundError
from state.queries.rows import Connection, fetch_one
from state.queries.subscription import SubscriptionRow, get_subscription
from state.sql import load

_SQL = load("subscription_queries")


async def create_subscription(
    connection: Connection,
    namespace: str,
    *,
    name: str,
    topic: str,
    workflow: str | None,
    signal: str | None = None,
    filter: str | None = None,
    input: str | None = None,
    labels: str | None = None,
) -> tuple[SubscriptionRow, bool]:
    """Create one; answers (row, whether it is new). The same content again is the same subscription.

    workflow: what its records start, or signal: what they say, as JSON text. input, labels: templates as JSON text.
    Raises ConflictError when the name stands for something else: delete that first, so that nobody changes what records
    do by accident.
    """
    row = await fetch_one(
        connection,
        SubscriptionRow,
        _SQL.text("insert_subscription"),
        subscription_id=UUID(str(uuid7())),
        namespace=namespace,
        name=name,
        topic=topic,
        workflow=workflow,
        signal=signal,
        filter=filter,
        input=input,
        labels=labels,
    )
    if row is not None:
        return row, True
    row = await get_subscription(connection, namespace, name)
    if row is None or (row.topic, row.workflow, row.signal, row.filter, row.input, row.labels) != (
        topic,
        workflow,
        signal,
        filter,
        input,
        labels,
    ):
        raise ConflictError(f"subscription {name} exists with other content; delete it first", subscription=name)
    return row, False


async def delete_subscription(connection: Connection, namespace: str, name: str) -> None:
    """Delete one; runs that it started stay. Raises NotFoundError."""

    def deleted(name: str) -> str:
        return name

    statement = _SQL.text("delete_subscription")
    if await fetch_one(connection, deleted, statement, namespace=namespace, name=name) is None:
        raise NotFoundError(f"there is no subscription {name}", subscription=name)
