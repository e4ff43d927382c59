"""`python -m connectors`: the outbox relay. Settings come from the environment; SIGTERM and SIGINT stop it in order."""

import logging
import signal

import structlog
from prometheus_client import start_http_server

from connectors.dead_letter import DeadLetters
from connectors.relay import Relay
from connectors.settings import RelaySettings


def main() -> None:
    """Run one relay until it is told to stop; exit code 0 then, 1 with a traceback for a bug."""
    settings = RelaySettings()
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    relay = Relay(settings, DeadLetters(settings.postgres).set_aside)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: relay.stop())
    if settings.metrics_port is not None:
        start_http_server(settings.metrics_port, addr=settings.metrics_host)
    relay.run()


if __name__ == "__main__":
    main()
