"""Spans leave the process by the exporter that the settings name."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

SCRIPT = """
from headrace.tracing import attempt_tracer, export_traces
export_traces("otlp")
with attempt_tracer().start_as_current_span("headrace.attempt"):
    pass
"""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector's address, and (path, body) of what it was sent."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_otlp_sends_spans_to_the_endpoint_that_the_environment_names(collector: tuple[str, list[tuple[str, bytes]]]):
    endpoint, got = collector
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    subprocess.run([sys.executable, "-c", SCRIPT], env=env, check=True, timeout=60)
    ((path, body),) = got
    assert path == "/v1/traces"
    assert b"headrace.attempt" in body
    assert b"headrace-worker" in body
