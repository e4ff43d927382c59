"""`headrace send`: put a record into a topic, as another service would."""

import uuid
from typing import Annotated, Any, Final

import typer
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.cli.address import find_kafka
from headrace.cli.command import command
from headrace.cli.terminal import Terminal
from headrace.cli.value import read_text
from headrace.cli.worker_settings import read_settings
from headrace.errors import HeadraceError, UnavailableError

DELIVERY_SECONDS: Final = 10.0
AWAY: Final = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
    }
)


@command(
    "send",
    panel="Run things",
    epilog="Exit codes: 0 stored by Kafka, 1 refused by Kafka, 2 used wrongly, 5 Kafka away.",
)
def send(
    terminal: Terminal,
    topic: Annotated[str, typer.Argument(help="where to")],
    data: Annotated[
        str, typer.Option("--data", "-d", help="the value: text, usually JSON; @file, or - for standard input")
    ] = "{}",
    key: Annotated[str | None, typer.Option(help="the record's key")] = None,
    cloudevent: Annotated[bool, typer.Option("--cloudevent", help="add the headers of a CloudEvent")] = False,
    type: Annotated[str, typer.Option(help="of the CloudEvent")] = "headrace.sent",
    source: Annotated[str, typer.Option(help="of the CloudEvent")] = "headrace-cli",
    id: Annotated[
        str | None, typer.Option(help="of the CloudEvent; the same source and id again is a duplicate")
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(help="bootstrap servers; default HEADRACE_KAFKA, or a running dev")
    ] = None,
) -> None:
    """Send one record to a topic."""
    event_id = id or str(uuid.uuid4())
    headers = cloudevent_headers(type, source, event_id) if cloudevent or id else {}
    sent = produce(find_kafka(kafka), topic, read_text(data).encode(), key, headers)
    document = {**sent, **({"id": event_id, "source": source} if headers else {})}
    terminal.show(document, lambda: f"sent to {topic}, partition {sent['partition']}, offset {sent['offset']}")


def cloudevent_headers(type: str, source: str, id: str) -> dict[str, str]:
    """CloudEvents Kafka protocol binding 1.0.2, binary mode: attributes as `ce_` headers, the data alone as value."""
    attributes = {"ce_specversion": "1.0", "ce_id": id, "ce_source": source, "ce_type": type}
    return {**attributes, "content-type": "application/json"}


def produce(kafka: str, topic: str, value: bytes, key: str | None, headers: dict[str, str]) -> dict[str, Any]:
    """Send one record and wait until Kafka has it. Raises UnavailableError, or HeadraceError with Kafka's reason."""
    settings = {
        **read_settings({}).kafka_options,
        "bootstrap.servers": kafka,
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "message.timeout.ms": int(DELIVERY_SECONDS * 1000),
        "log_level": 0,
    }
    answers: list[tuple[KafkaError | None, Message]] = []
    try:
        producer = Producer(settings)
        producer.produce(
            topic,
            value,
            key,
            headers=list(headers.items()),
            on_delivery=lambda error, record: answers.append((error, record)),
        )
        producer.flush(DELIVERY_SECONDS + 1)
    except KafkaException as error:
        raise _refusal(kafka, error.args[0]) from None
    if not answers:
        raise UnavailableError(f"Kafka at {kafka} did not answer within {DELIVERY_SECONDS:g} s")
    refusal, record = answers[0]
    if refusal is not None:
        raise _refusal(kafka, refusal)
    return {"topic": topic, "partition": record.partition(), "offset": record.offset(), "key": key}


def _refusal(kafka: str, error: KafkaError) -> HeadraceError:
    if error.code() in AWAY:
        return UnavailableError(f"Kafka at {kafka} does not answer: {error.str()}")
    return HeadraceError(f"Kafka refused the record: {error.str()}")
