"""`python -m api`: serve the HTTP API until SIGTERM or SIGINT, then finish what has begun.

Event streams end at once, so that their callers turn to another process; other requests have
HEADRACE_API_DRAIN_SECONDS.
"""

import asyncio
import logging
import signal
import socket
import sys
from types import FrameType

import structlog
import uvicorn

from api.access import check_exposure
from api.app import create_app, read_settings
from api.settings import ApiSettings
from api.wiring import Wiring
from headrace.errors import HeadraceError


class _Server(uvicorn.Server):
    """Tells the streams as soon as a signal comes: uvicorn itself would wait for them to end."""

    def __init__(self, config: uvicorn.Config, wiring: Wiring) -> None:
        super().__init__(config)
        self._wiring = wiring

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            name = f"[{host}]" if ":" in host else host
            structlog.get_logger("api").info("serving", address=f"http://{name}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike the inherited one it does not remember the signal to raise it again: a stop in order ends with 0."""
        self._wiring.is_draining = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _configure_log(settings: ApiSettings) -> None:
    level = logging.getLevelNamesMapping().get(settings.log_level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer() if not sys.stderr.isatty() else structlog.dev.ConsoleRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main() -> None:
    try:
        settings = read_settings()
        app = create_app(settings)
        asyncio.run(check_exposure(settings))  # uvicorn would say it with a traceback
    except HeadraceError as error:
        sys.exit(f"{error.code} {error.message}")
    _configure_log(settings)
    wiring: Wiring = app.state.wiring
    config = uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(int(settings.api_drain_seconds), 1),
    )
    _Server(config, wiring).run()


if __name__ == "__main__":
    main()
