"""`headrace doctor` and `headrace workers`: is all well?"""

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from rich.console import RenderableType
from rich.text import Text

from headrace.cli.address import find_kafka
from headrace.cli.api import Api, Document
from headrace.cli.command import Exit, command
from headrace.cli.terminal import Terminal, ago, table
from headrace.engine import engine_command, engine_environment
from headrace.errors import ConfigurationError, UnavailableError

CONNECT_SECONDS: Final = 3.0
POSTGRES_PORT: Final = 5432


@command("doctor", panel="Repair", epilog="Exit codes: 0 all checks are fine, 1 one is not, also when the API is away.")
def doctor(
    terminal: Terminal,
    api: Api,
    full: Annotated[
        bool, typer.Option("--full", help="look at every run, however long it takes; needs HEADRACE_POSTGRES")
    ] = False,
) -> None:
    """Check every invariant, connections, versions, clock and lag; says which part is down. Changes nothing."""
    if full:
        report = examine_everything()
    else:
        try:
            report = api.get("/doctor")
        except UnavailableError as error:
            report = examine_connections(error)
    if (offsets := examine_offsets(report, find_kafka(None))) is not None:
        report["checks"].append(offsets)
        report["ok"] = report["ok"] and offsets["ok"]
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


def examine_everything() -> Document:
    """A pass over all runs takes longer than a request may: it goes to the database, past the API."""
    if not os.environ.get("HEADRACE_POSTGRES"):
        raise ConfigurationError("a full pass reads the database itself: set HEADRACE_POSTGRES")
    command = engine_command("state.doctor", "--json", "--full")
    done = subprocess.run(command, env=engine_environment({}), capture_output=True, text=True, check=False)
    try:
        report: Document = json.loads(done.stdout)
    except ValueError:
        raise UnavailableError(f"the examination ended early: {done.stderr.strip()[-1000:]}") from None
    return report


def examine_offsets(report: Document, bootstrap: str) -> Document | None:
    """Whether what was applied is in the log: an offset ahead of its log's end means that the log is not the one it
    was. None when the report has no offsets.
    """
    positions = [each for check in report["checks"] for each in check.pop("positions", None) or ()]
    known = [each for each in positions if each["next_offset"] is not None]
    if not known:
        return None
    try:
        ends = read_ends(bootstrap, {each["topic"] for each in known})
    except KafkaException as error:
        return _check("offsets", f"not looked at: {bootstrap} does not answer ({error.args[0].str()})")
    ended = [(each, ends.get((each["topic"], each["partition"], each["topic_id"]))) for each in known]
    looked_at = [(each, end) for each, end in ended if end is not None]
    wrong = [f"{p['topic']}/{p['partition']} {p['next_offset']} of {e}" for p, e in looked_at if p["next_offset"] > e]
    if wrong:
        detail = f"{len(wrong)} ahead of their log, such as {'; '.join(wrong[:3])}"
        hint = "records were lost: what is open is published again from Postgres; see docs/operations.md"
        return _check("offsets", detail, is_ok=False) | {"count": len(wrong), "hint": hint}
    others = len(known) - len(looked_at)
    rest = f"; {others} of logs that are not there any more, or whose identity cannot be told" if others else ""
    return _check("offsets", f"{len(looked_at)} partitions are not ahead of their logs{rest}")


def read_ends(bootstrap: str, topics: set[str]) -> dict[tuple[str, int, str], int]:
    """(topic, partition, topic id) -> the end of its log. A broker that cannot tell topic ids has none. Raises
    KafkaException.
    """
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
    admin = AdminClient(settings)
    there = admin.list_topics(timeout=CONNECT_SECONDS).topics
    names = [name for name in topics if name in there]
    ids = _topic_ids(admin, names)
    consumer = Consumer(settings | {"group.id": "headrace-doctor", "enable.auto.commit": False})
    try:
        return {
            (name, partition, ids[name]): consumer.get_watermark_offsets(
                TopicPartition(name, partition), CONNECT_SECONDS
            )[1]
            for name in names
            if name in ids
            for partition in there[name].partitions
        }
    finally:
        consumer.close()


def _topic_ids(admin: AdminClient, names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    ids = {}
    for name, found in admin.describe_topics(TopicCollection(names), request_timeout=CONNECT_SECONDS).items():
        try:
            ids[name] = str(found.result(CONNECT_SECONDS).topic_id)
        except (KafkaException, TimeoutError):
            continue  # the embedded log has none
    return ids


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
        detail = Text(_detail(check.get("detail")))
        if not check["ok"] and check.get("hint"):
            detail.append(f"\n{check['hint']}", style="yellow")
        rows.add_row(check["name"], terminal.sign("completed" if check["ok"] else "failed"), detail)
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
