"""`headrace doctor` and `headrace workers`: is all well?"""

import os
import socket
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import typer
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from rich.console import RenderableType
from rich.text import Text

from headrace.cli.address import find_kafka
from headrace.cli.api import Api, Document
from headrace.cli.command import Exit, command
from headrace.cli.terminal import Terminal, ago, table
from headrace.errors import UnavailableError

CONNECT_SECONDS: Final = 3.0
POSTGRES_PORT: Final = 5432


@command("doctor", panel="Repair", epilog="Exit codes: 0 all checks are fine, 1 one is not, also when the API is away.")
def doctor(terminal: Terminal, api: Api) -> None:
    """Check connections, versions, clock, lag, and every run's status; says which part is down."""
    try:
        report = api.get("/doctor")
    except UnavailableError as error:
        report = examine_connections(error)
    terminal.show(report, lambda: _draw_report(report, terminal))
    if not report["ok"]:
        raise typer.Exit(Exit.FAILED)


@command("workers", panel="Run things", epilog="Exit codes: 0 listed (also when there are none), 5 API away.")
def list_workers(terminal: Terminal, api: Api) -> None:
    """List worker sessions: what they serve, what they hold, whether their lease is alive."""
    answer = api.page("/workers", limit=1_000)
    if not answer["items"]:
        terminal.say("no workers; start one: headrace worker app.py")
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: _draw_workers(answer["items"]))


def examine_connections(api_error: UnavailableError) -> Document:
    """What can be told without the API, in the form of its own report."""
    api = {"name": "api", "ok": False, "detail": api_error.message.splitlines()[0], "count": 1}
    checks = [api, _examine_kafka(find_kafka(None))]
    if dsn := os.environ.get("HEADRACE_POSTGRES"):
        checks.append(_examine_postgres(dsn))
    return {"ok": False, "checks": checks}


def _examine_kafka(bootstrap: str) -> Document:
    try:
        found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=CONNECT_SECONDS)
    except KafkaException as error:
        return _check("kafka", f"{bootstrap} does not answer: {error.args[0].str()}", is_ok=False)
    return _check("kafka", f"{bootstrap} answers: {len(found.brokers)} broker(s), {len(found.topics)} topics")


def _examine_postgres(dsn: str) -> Document:
    """Only whether somebody listens: this library carries no Postgres client."""
    host, port = address_of(dsn)
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        return _check("postgres", f"{host}:{port} does not answer: {error.strerror or error}", is_ok=False)
    return _check("postgres", f"{host}:{port} accepts connections")


def address_of(dsn: str) -> tuple[str, int]:
    """Host and port of a libpq URL or `key=value` string."""
    if "://" in dsn:
        parts = urlsplit(dsn)
        return parts.hostname or "127.0.0.1", parts.port or POSTGRES_PORT
    values: Mapping[str, str] = dict(part.split("=", 1) for part in dsn.split() if "=" in part)
    return values.get("hostaddr") or values.get("host", "127.0.0.1"), int(values.get("port", POSTGRES_PORT))


def _check(name: str, detail: str, *, is_ok: bool = True) -> Document:
    return {"name": name, "ok": is_ok, "detail": detail, "count": 0 if is_ok else 1}


def _draw_report(report: Document, terminal: Terminal) -> RenderableType:
    rows = table("check", "", "detail")
    for check in report["checks"]:
        rows.add_row(
            check["name"], terminal.sign("completed" if check["ok"] else "failed"), Text(_detail(check.get("detail")))
        )
    return rows


def _detail(detail: Any) -> str:
    if isinstance(detail, Mapping):
        return ", ".join(f"{key} {value}" for key, value in detail.items())
    return "" if detail is None else str(detail)


def _draw_workers(items: list[Document]) -> RenderableType:
    rows = table("worker", "state", "queues", "holds", "slots", "version", "started", "renewed")
    for item in items:
        state = "lost" if not item["live"] else "draining" if item.get("draining") else "live"
        rows.add_row(
            item["worker"],
            Text(state, style={"live": "green", "draining": "yellow", "lost": "red"}[state]),
            ", ".join(item.get("queues") or ()),
            str(item.get("held", "")),
            str(item.get("slots", "")),
            item.get("library") or "",
            ago(item.get("started_at")),
            ago(item.get("renewed_at")),
        )
    return rows
