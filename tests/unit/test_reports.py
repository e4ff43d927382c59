"""What a worker tells when Kafka will never take an answer."""

from typing import Any

import pytest
from msgspec import Raw

import headrace.worker.reports
from headrace.batch_producer import Refused
from headrace.errors import ConfigurationError
from headrace.messages import Error, Failed, Succeeded, decode_event, encode
from headrace.worker.broker import Broker
from headrace.worker.reports import Reports


class Producer:
    def __init__(self, options: dict[str, Any], on_refused: Any) -> None:
        self.options, self.on_refused = options, on_refused
        self.added: list[tuple[bytes, bytes, Any]] = []

    def add(self, topic: str, key: bytes, value: bytes, headers: Any = ()) -> None:
        self.added.append((key, value, headers))

    def flush(self) -> None:
        return None


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    made: list[Producer] = []

    def make(*given: Any) -> Producer:
        made.append(Producer(*given))
        return made[-1]

    monkeypatch.setattr(headrace.worker.reports, "BatchProducer", make)
    Reports(Broker("nowhere:1"))
    return made[0]


def answer(size: int) -> bytes:
    return encode(
        Succeeded(3, 7, "n", session="s", worker="w", started=1, finished=2, output=Raw(b'"%s"' % (b"x" * size)))
    )


def test_a_result_too_large_for_kafka_fails_its_attempt_for_that(producer: Producer):
    producer.on_refused(Refused("e", b"run", answer(10_000), [("traceparent", b"t")], "too large", True))
    ((key, value, headers),) = producer.added
    event = decode_event(value)
    assert isinstance(event, Failed)
    assert (key, event.task, event.token, event.nonce, headers) == (b"run", 3, 7, "n", [("traceparent", b"t")])
    assert (event.error.code, event.error.retryable) == ("RESULT_TOO_LARGE", False)


def test_what_is_refused_for_another_reason_says_that(producer: Producer):
    producer.on_refused(Refused("e", b"run", answer(10_000), [], "corrupt", False))
    event = decode_event(producer.added[0][1])
    assert isinstance(event, Failed)
    assert event.error.code == "RESULT_REFUSED"
    assert "corrupt" in event.error.message


def test_a_refused_failure_that_cannot_be_told_shorter_is_not_sent_for_ever(producer: Producer):
    failed = Failed(3, 7, "n", Error("ERROR", "no"), "s", "w", 1, 2)
    producer.on_refused(Refused("e", b"run", encode(failed), [], "corrupt", False))
    assert producer.added == []


def test_options_of_librdkafka_connect_the_other_client_in_the_same_way():
    options = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "u"}
    found = Broker("h:1", options=options | {"sasl.password": "p", "socket.keepalive.enable": "true"}).batch_producer()
    assert found == {
        "bootstrap_servers": "h:1",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }


def test_tls_is_checked_as_the_options_say():
    strict = Broker("h:1", options={"security.protocol": "SSL"}).batch_producer()["ssl_context"]
    loose = Broker("h:1", options={"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"})
    assert (strict.check_hostname, strict.verify_mode.name) == (True, "CERT_REQUIRED")
    assert loose.batch_producer()["ssl_context"].verify_mode.name == "CERT_NONE"


@pytest.mark.parametrize("option", ["sasl.oauthbearer.config", "ssl.keystore.location"])
def test_a_way_to_connect_that_is_not_known_is_refused_and_not_left_out(option: str):
    with pytest.raises(ConfigurationError, match=option):
        Broker("h:1", options={option: "x"}).batch_producer()
