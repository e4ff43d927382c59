"""Subscriptions: which records of a user's topic start which workflow, or say which signal."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer, raw, reply
from api.bodies import check_labels, check_payload, read
from api.errors import faulty
from api.idempotency import perform
from api.identity import check_name
from api.openapi import answers, body
from api.paging import ByName, Limit, PageToken, cut, parse
from api.schemas.subscription import SignalOfRecord, Subscription, SubscriptionBody, SubscriptionPage
from api.signals import keep_seconds
from api.wiring import Wired
from headrace.errors import NotFoundError
from headrace.expressions import ExpressionError, compile_condition, compile_template
from state.queries.rows import Connection
from state.queries.subscription import SubscriptionRow, list_subscriptions
from state.subscriptions import create_subscription, delete_subscription
from state.workflows import list_versions

router = APIRouter(tags=["subscriptions"])


@router.post(
    "/subscriptions",
    status_code=201,
    responses=answers({201: Subscription, 200: Subscription}, 404, 408, 409, 413, 415),
    openapi_extra=body(SubscriptionBody),
)
async def create(request: Request, wired: Wired) -> Response:
    """Subscribe to a topic: every record from then on starts a run, or says a signal, once. The same content again is
    the same one.
    """
    asked, content = await read(request, SubscriptionBody)
    mapping = None if isinstance(asked.input, msgspec.UnsetType) else check_payload(asked.input, "input")
    _check_topic(asked.topic, wired.settings.prefix)
    _check_expressions(asked.filter, mapping)
    if (asked.workflow is None) == (asked.signal is None):
        raise faulty("signal", "a subscription has either `workflow` or `signal`")
    if asked.signal is not None:
        _check_signal(asked.signal)
    _check_labels(asked)

    async def act(connection: Connection) -> Answer:
        if asked.workflow is not None and not await list_versions(connection, wired.namespace, asked.workflow):
            raise NotFoundError(f"there is no workflow {asked.workflow}", workflow=asked.workflow)
        row, created = await create_subscription(
            connection,
            wired.namespace,
            name=asked.name,
            topic=asked.topic,
            workflow=asked.workflow,
            signal=None if asked.signal is None else msgspec.json.encode(asked.signal).decode(),
            filter=asked.filter,
            input=None if mapping is None else mapping.decode(),
            labels=msgspec.json.encode(asked.labels, order="sorted").decode() if asked.labels else None,
        )
        return answer(_subscription(row), 201 if created else 200)

    return await perform(wired, request, content, act)


@router.get("/subscriptions", responses=answers({200: SubscriptionPage}))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Subscriptions by name."""
    after = "" if page is None else parse(page, ByName).name
    async with wired.database.reading() as connection:
        rows = await list_subscriptions(connection, wired.namespace, limit=limit + 1, after=after)
    kept, following = cut(rows, limit, lambda row: (row.name,))
    return reply(SubscriptionPage([_subscription(row) for row in kept], following))


@router.delete(
    "/subscriptions/{name}", status_code=204, responses={204: {"description": "Deleted"}, **answers({}, 404)}
)
async def delete(name: str, request: Request, wired: Wired) -> Response:
    """Delete one. Runs that it started stay."""
    check_name(name, "subscription")

    async def act(connection: Connection) -> Answer:
        await delete_subscription(connection, wired.namespace, name)
        return Answer(200, b"null")

    response = await perform(wired, request, b"", act)
    headers = {key: value for key, value in response.headers.items() if key.startswith("idempotent")}
    return Response(status_code=204, headers=headers)


def _check_topic(topic: str, prefix: str) -> None:
    if topic.startswith(f"{prefix}."):
        raise faulty("topic", "is one of the engine's own")
    if topic in (".", ".."):
        raise faulty("topic", "is not a name Kafka allows")


def _check_signal(signal: SignalOfRecord) -> None:
    if signal.key is None and signal.run is None:
        raise faulty("signal", "has `run`, or a `key` for whoever waits for that")
    keep_seconds(signal.keep, "signal.keep")
    for name, text in (("key", signal.key), ("run", signal.run)):
        try:
            compiled = None if text is None else compile_template(text)
        except ExpressionError as error:
            raise faulty(f"signal.{name}", error.message) from None
        if compiled is not None and compiled.references:
            raise faulty(f"signal.{name}", "there are no tasks here, only `input`: the record")


def _check_labels(asked: SubscriptionBody) -> None:
    """Their names are known now, their values with each record."""
    if asked.labels and asked.signal is not None:
        raise faulty("labels", "a signal has none: they are of the runs that records start; leave them out")
    check_labels(dict.fromkeys(asked.labels, ""))
    for name, text in asked.labels.items():
        try:
            template = compile_template(text)
        except ExpressionError as error:
            raise faulty(f"labels.{name}", error.message) from None
        if template.references:
            raise faulty(f"labels.{name}", "there are no tasks here, only `input`: the record")


def _check_expressions(condition: str | None, mapping: bytes | None) -> None:
    """They see the record as `input`, and no tasks."""
    try:
        filtering = None if condition is None else compile_condition(condition)
    except ExpressionError as error:
        raise faulty("filter", error.message) from None
    try:
        value: Any = None if mapping is None else msgspec.json.decode(mapping)
        template = None if mapping is None else compile_template(value)
    except ExpressionError as error:
        raise faulty("input", error.message) from None
    for path, compiled in (("filter", filtering), ("input", template)):
        if compiled is not None and compiled.references:
            raise faulty(path, "there are no tasks here, only `input`: the record")


def _subscription(row: SubscriptionRow) -> Subscription:
    return Subscription(
        row.name,
        row.topic,
        row.workflow,
        row.filter,
        raw(row.input),
        row.enabled,
        row.created_at,
        row.waits_since,
        None if row.signal is None else msgspec.json.decode(row.signal, type=SignalOfRecord),
        {} if row.labels is None else msgspec.json.decode(row.labels, type=dict[str, str]),
    )
