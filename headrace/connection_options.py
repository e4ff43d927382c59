"""How to connect to Kafka, from librdkafka's names, which the settings speak, to what aiokafka takes."""

import ssl
from collections.abc import Mapping
from typing import Any, Final

from aiokafka.helpers import create_ssl_context

from headrace.errors import ConfigurationError

_NAMES: Final = {
    "client.id": "client_id",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
}
_FILES: Final = {
    "ssl.ca.location": "cafile",
    "ssl.certificate.location": "certfile",
    "ssl.key.location": "keyfile",
    "ssl.key.password": "password",
}
_SSL: Final = frozenset(
    {*_FILES, "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification", "ssl.ca.pem"}
)
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")


def connection_options(servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """What `AIOKafkaProducer` takes to reach the same brokers in the same way; tuning of librdkafka is left out.

    Raises ConfigurationError for a way to connect that aiokafka does not know, since leaving it out could mean to
    connect without it.
    """
    found: dict[str, Any] = {"bootstrap_servers": servers}
    for name, value in options.items():
        if name in _NAMES:
            found[_NAMES[name]] = value
        elif name == "security.protocol":
            found["security_protocol"] = value.upper()
        elif name.startswith(("sasl.", "ssl.")) and name not in _SSL:
            raise ConfigurationError(
                f"answers cannot be sent with the Kafka option {name}: leave it out, or see {_DOC}"
            )
    mechanism = found.get("sasl_mechanism", "PLAIN")
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(f"sasl.mechanism {mechanism} is not one of {', '.join(_MECHANISMS)}: see {_DOC}")
    if found.get("security_protocol", "").endswith("SSL"):
        found["ssl_context"] = _context(options)
    return found


_DOC: Final = "docs/decisions/0009-batch-producer.md"


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    files = {ours: options[name] for name, ours in _FILES.items() if name in options}
    context: ssl.SSLContext = create_ssl_context(cadata=options.get("ssl.ca.pem"), **files)
    if options.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    if options.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
