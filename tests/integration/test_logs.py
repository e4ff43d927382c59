"""What bodies log, from a real worker over Kafka into Postgres, and out of the API: once, bounded, and only theirs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner
from uuid_utils import uuid7

from headrace.cli import load_commands
from headrace.cli.command import app
from headrace.embedded.kafka import ApacheKafka
from headrace.messages import Logged, LogLine, encode, make_nonce
from headrace.stack import Stack
from state.sql import load
from tests.faults.starts import eventually

WORKFLOWS: list[dict[str, Any]] = [
    {"name": "charge", "tasks": {"charge": {"run": "logs.charge", "retry": {"attempts": 3, "delay": "10ms"}}}},
    {"name": "odd", "tasks": {"odd": {"run": "logs.odd"}}},
    {"name": "many", "tasks": {"many": {"run": "logs.many"}}},
]


class Site(NamedTuple):
    stack: Stack
    http: httpx.Client
    dsn: str
    kafka: str
    prefix: str


@pytest.fixture(scope="module")
def site(kafka: ApacheKafka, database_of_module: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    prefix = f"t{time.time_ns():x}"
    with (
        Stack(
            Path(__file__).parent / "logs_app.py",
            kafka=kafka.bootstrap,
            postgres=database_of_module,
            data=tmp_path_factory.mktemp("logs"),
            prefix=prefix,
            log_level="warning",
            worker_log_level="info",
            settings={"HEADRACE_SLOT": prefix},
        ) as stack,
        httpx.Client(base_url=stack.api_url, headers=stack.headers, timeout=10) as http,
    ):
        for workflow in WORKFLOWS:
            http.post("/workflows", json=workflow).raise_for_status()
        stack.wait_workers(1)
        yield Site(stack, http, database_of_module, kafka.bootstrap, prefix)


def ended(site: Site, workflow: str, input: dict[str, Any]) -> str:
    answer = site.http.post(f"/workflows/{workflow}/runs", json={"input": input}).raise_for_status().json()
    run_id: str = answer["run_id"]
    eventually(lambda: site.http.get(f"/runs/{run_id}").json()["finished_at"], "the run has ended", 60)
    return run_id


def read(site: Site, run_id: str, **wanted: Any) -> list[dict[str, Any]]:
    answer = site.http.get(f"/runs/{run_id}/logs", params={"limit": 1000, **wanted}).raise_for_status().json()
    lines: list[dict[str, Any]] = answer["items"]
    return lines


def messages(lines: list[dict[str, Any]]) -> list[str]:
    return [line["message"].splitlines()[0] for line in lines]


def test_both_ways_of_logging_come_once_in_order_by_attempt_with_their_fields(site: Site):
    run_id = ended(site, "charge", {"fails": 1})
    eventually(lambda: len(read(site, run_id)) == 5, "all lines are there")
    lines = read(site, run_id)
    assert messages(lines) == [
        "charging", "the bank is slow", "the bank failed",
        "charging", "the bank is slow",
    ]  # fmt: skip
    assert [(line["attempt"], line["level"], line["logger"]) for line in lines[:3]] == [
        (1, "info", ""),
        (1, "warning", "bank"),
        (1, "error", ""),
    ]
    assert lines[0]["fields"] == {"card": "4711", "amount": 12.5, "attempt_number": 1}
    assert lines[1]["fields"] == {"waited": 3}
    assert "ValueError: no answer" in lines[2]["fields"]["exception"]
    assert {line["task"] for line in lines} == {"charge"}
    assert [line["attempt"] for line in lines] == [1, 1, 1, 2, 2]


def test_lines_are_found_by_level_text_task_and_attempt(site: Site):
    run_id = ended(site, "charge", {"fails": 1})
    eventually(lambda: len(read(site, run_id)) == 5, "all lines are there")
    assert messages(read(site, run_id, level="error")) == ["the bank failed"]
    assert messages(read(site, run_id, q="BANK IS")) == ["the bank is slow"] * 2
    assert messages(read(site, run_id, q="4711", attempt=2)) == ["charging"]
    assert len(read(site, run_id, task="charge")) == 5
    assert messages(read(site, run_id, tail=True, limit=2)) == ["charging", "the bank is slow"]
    first = read(site, run_id, limit=1)[0]
    assert len(read(site, run_id, after=first["line_id"])) == 4
    assert site.http.get(f"/runs/{run_id}/logs", params={"task": "none"}).status_code == 422
    assert site.http.get(f"/runs/{uuid7()}/logs").status_code == 404


def test_odd_values_and_long_ones_are_told_as_far_as_a_row_can_hold_them(site: Site):
    run_id = ended(site, "odd", {})
    eventually(lambda: len(read(site, run_id)) == 2, "both lines are there")
    zero, long = read(site, run_id)
    assert zero["message"] == "zero \\0 and ?"
    assert zero["fields"] == {"nan": "nan", "odd": "<Odd without a repr>", "big": str(2**80), "nothing": None}
    assert long["message"].endswith("… (20,005 characters)")
    assert len(json.dumps(long)) < 20_000


def test_a_body_that_logs_without_end_loses_lines_and_says_how_many(site: Site):
    run_id = ended(site, "many", {"lines": 30_000})
    eventually(lambda: bool(read(site, run_id, q="were dropped")), "the log says what it lacks")

    def counted() -> tuple[int, int]:
        with psycopg.connect(site.dsn) as connection:
            found = connection.execute(
                "SELECT count(*) FILTER (WHERE logger <> 'headrace'), "
                "coalesce(sum(substring(message FROM '^[0-9]+')::int) FILTER (WHERE logger = 'headrace'), 0) "
                "FROM log_line WHERE run_id = %s",
                (run_id,),
            ).fetchone()
        assert found is not None
        return int(found[0]), int(found[1])

    eventually(lambda: sum(counted()) == 30_000, "what came and what was dropped is all there was")
    assert 0 < counted()[0] <= 10_000


def test_a_record_that_comes_twice_counts_once_and_a_forged_one_not_at_all(site: Site):
    run_id = ended(site, "charge", {"fails": 0})
    eventually(lambda: len(read(site, run_id)) == 2, "both lines are there")
    secret = site.stack.settings["HEADRACE_SECRET"].encode()
    token = read(site, run_id)[0]["token"]
    nonce = make_nonce(secret, run_id.encode(), 0, token)
    now = time.time_ns() // 1000
    true = Logged(0, 1, token, nonce, "w", [LogLine(7, now, 20, "", "came twice")])
    forged = Logged(0, 1, token, "0" * len(nonce), "w", [LogLine(8, now, 20, "", "forged")])
    last = Logged(0, 1, token, nonce, "w", [LogLine(9, now, 20, "", "behind them")])
    producer = Producer({"bootstrap.servers": site.kafka})
    for said in (true, true, forged, last):
        producer.produce(f"{site.prefix}.logs", encode(said), run_id.encode())
    producer.produce(f"{site.prefix}.logs", b"garbage", run_id.encode())
    producer.flush(10)
    eventually(lambda: "behind them" in messages(read(site, run_id)), "the last one came")
    assert messages(read(site, run_id)) == ["charging", "the bank is slow", "came twice", "behind them"]
    eventually(
        lambda: any(letter["topic"] == f"{site.prefix}.logs" for letter in letters(site)), "what cannot be read is kept"
    )


def letters(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.http.get("/dead-letters").raise_for_status().json()["items"]
    return found


def test_followers_hear_every_line_and_the_end(site: Site):
    answer = site.http.post("/workflows/charge/runs", json={"input": {"fails": 2}}).raise_for_status().json()
    heard = []
    with site.http.stream("GET", f"/runs/{answer['run_id']}/logs/events", timeout=60) as source:
        for line in source.iter_lines():
            if line.startswith("data: "):
                heard.append(json.loads(line[6:]))
    assert [line["attempt"] for line in heard] == [1, 1, 1, 2, 2, 2, 3, 3]
    resumed = []
    url = f"/runs/{answer['run_id']}/logs/events"
    with site.http.stream("GET", url, headers={"Last-Event-ID": str(heard[5]["line_id"])}, timeout=60) as source:
        resumed = [json.loads(line[6:]) for line in source.iter_lines() if line.startswith("data: ")]
    assert resumed == heard[6:]


def test_the_command_line_prints_them_for_people_and_for_programs(site: Site):
    run_id = ended(site, "charge", {"fails": 0})
    eventually(lambda: len(read(site, run_id)) == 2, "both lines are there")
    load_commands()
    ask = ["logs", run_id, "--api", site.stack.api_url, "--token", site.stack.token]
    shown = CliRunner().invoke(app, [*ask, "--level", "warning"])
    assert shown.exit_code == 0, shown.output
    assert "warning" in shown.stdout
    assert "charge#1 the bank is slow waited=3" in shown.stdout
    assert "charging" not in shown.stdout
    programs = CliRunner().invoke(app, [*ask, "--json", "--follow"])
    assert [json.loads(line)["message"] for line in programs.stdout.splitlines()] == ["charging", "the bank is slow"]


def test_the_oldest_lines_leave_when_there_are_too_many(database: str):
    sql = load("log_line").text("trim_log_lines")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO log_line (run_id, task, token, seq, attempt, at, level, worker, logger, message) "
            "SELECT gen_random_uuid(), 0, 1, n, 1, now(), 20, 'w', '', 'm' FROM generate_series(1, 100) n"
        )
        raw = psycopg.RawCursor(connection)
        raw.execute(sql, (30, 50))
        assert raw.rowcount == 50
        raw.execute(sql, (30, 50))
        assert raw.rowcount == 20
        raw.execute(sql, (30, 50))
        assert raw.rowcount == 0
        kept = connection.execute("SELECT count(*), min(seq) FROM log_line").fetchone()
        assert kept == (30, 71)
