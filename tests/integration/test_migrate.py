"""The schema: made once however many make it, and saying again what the machine says."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.machine import RunStatus, TaskStatus
from state.migrate import migrate, migrations
from state.sql import FOLDER, load

RUN = "01a2289f-ec84-73e0-907f-576654f809f9"


def query(dsn: str, sql: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def insert(dsn: str, what: str) -> None:
    query(dsn, "INSERT INTO " + what.replace("ID", f"'{RUN}'"))


def test_processes_that_start_together_apply_each_migration_once(empty_database: str):
    with ThreadPoolExecutor(8) as pool:
        applied = list(pool.map(migrate, [empty_database] * 8))
    assert sorted(name for names in applied for name in names) == [migration.name for migration in migrations()]
    assert migrate(empty_database) == []


def test_a_migration_that_fails_leaves_nothing_of_itself(
    empty_database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "0001_half.sql").write_text("CREATE TABLE half (id int); SELECT 1 / 0;")
    monkeypatch.setattr("state.migrate.FOLDER", tmp_path)
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty_database)
    assert query(empty_database, "SELECT to_regclass('half')") == [(None,)]
    (tmp_path / "0001_half.sql").write_text("CREATE TABLE half (id int);")
    assert migrate(empty_database) == ["0001_half"]


def test_print_shows_the_sql_and_runs_none():
    told = subprocess.run(
        [sys.executable, "-m", "state.migrate", "--print"], capture_output=True, text=True, check=True,
        env={"HEADRACE_POSTGRES": "host=127.0.0.1 port=1"}, cwd=Path(__file__).parents[2],
    ).stdout  # fmt: skip
    assert "CREATE TABLE run (" in told


def test_statuses_equal_the_enums_of_postgres(database: str):
    for name, statuses in (("task_status", TaskStatus), ("run_status", RunStatus)):
        labels = query(database, f"SELECT unnest(enum_range(NULL::{name}))::text")
        assert [label for (label,) in labels] == [status.value for status in statuses]


def test_every_named_statement_is_one_that_postgres_can_prepare(database: str):
    """Placeholders are either $1 or %(name)s; the second kind is turned into the first. Conditions of filters are
    parts: what is made of them is planned by Postgres in test_api_plans.py."""
    with psycopg.connect(database, autocommit=True) as connection:
        for file in sorted(FOLDER.glob("*.sql")):
            if file.stem in ("candidates", "search") or file.stem.startswith("filter_"):
                continue
            for name, statement in load(file.stem).items():
                names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.sql)))
                sql = statement.sql.replace("%%", "%").rstrip().rstrip(";")
                for number, parameter in enumerate(names, 1):
                    sql = sql.replace(f"%({parameter})s", f"${number}")
                try:
                    prepared = connection.pgconn.prepare(b"", sql.encode())
                except Exception as e:  # pragma: no cover
                    pytest.fail(f"{file.name} {name}: {e}")
                message = prepared.get_error_message()
                # A parameter whose type only its caller knows is not a fault of the statement.
                assert prepared.status in (0, 1, 2) or "could not determine data type" in message, f"{name}: {message}"


@pytest.mark.parametrize(
    ("what", "sql"),
    [
        ("a token below its attempts", "task VALUES (ID, 0, 'queued', 2, 1)"),
        ("open without a token", "task VALUES (ID, 0, 'queued', 0, 0)"),
        ("held while not running", "task (run_id, task, status, token, session_id) VALUES (ID, 0, 'queued', 1, ID)"),
        ("a timer when completed", "task (run_id, task, status, token, due_at) VALUES (ID, 0, 'completed', 1, now())"),
        (
            "terminal without an end",
            "run (run_id, version_id, status, row_version, input) VALUES (ID, 1, 'failed', 1, '1')",
        ),
        ("an output of a failure", "attempt VALUES (ID, 0, 1, 1, 'failed', 2, 'w', now(), now(), now(), '1')"),
        ("attempt 2 of hand-out 1", "attempt VALUES (ID, 0, 1, 2, 'failed', 2, 'w', now(), now(), now())"),
        ("decided without a time", "approval VALUES (ID, 'default', ID, 0, 1, 't', '[]', 'fail', 'approved')"),
        ("a dead letter of no task", "dead_letter (dead_letter_id, kind, reason) VALUES (ID, 'task', 'r')"),
    ],
)
def test_constraints_say_again_what_the_machine_says(database: str, what: str, sql: str):
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(database, sql)


def test_b59_an_attempt_of_one_hand_out_is_recorded_once(database: str):
    attempt = "attempt VALUES (ID, 0, 1, 1, 'failed', 2, 'w', now(), now(), now())"
    insert(database, attempt)
    with pytest.raises(psycopg.errors.UniqueViolation):
        insert(database, attempt)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("batch", "save_runs"),
        ("batch", "complete_tasks"),
        ("batch", "hand_out_tasks"),
        ("batch", "save_tasks"),
        ("run", "load_runs"),
    ],
)
def test_the_hot_statements_look_rows_up_by_key(database: str, file: str, name: str):
    """Pinned plans, as the hot connection has them: no scan of a whole table, whatever the statistics say."""
    from state.pipe import OPTIONS

    with psycopg.connect(database, autocommit=True, options=OPTIONS) as connection:
        connection.execute(f"PREPARE hot AS {load(file).text(name)}".encode())
        row = connection.execute(
            "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'hot'"
        ).fetchone()
        nulls = ", ".join(["NULL"] * (row[0] if row else 0))
        plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN EXECUTE hot({nulls})".encode()))
    assert "Seq Scan" not in plan, plan
