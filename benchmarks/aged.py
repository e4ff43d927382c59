"""An engine with history: many finished runs, written straight into Postgres.

They are copies of a few runs that the engine has really finished, so that every row is as the engine leaves it, in
every table that has a `run_id`, whatever its columns are. A copy has ids of its own and its instants moved into the
past; nothing else differs. One run in BAD_EVERY has failed, one was cancelled.
"""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import httpx
import psycopg
from psycopg import sql

from benchmarks.bench import Bench, run_id_of_now
from benchmarks.workflows import FAILING, STRANDED, VICTIM
from state.doctor import OF_RUNS, examine

TEMPLATES: Final = 8
BAD_EVERY: Final = 1_000
SPACING_SECONDS: Final = 0.5
"""Between the starts of two copies: a million are a week's."""
RUNS_PER_TRANSACTION: Final = 5_000
"""Every row of it is decoded by the relay's slot, in memory as long as the transaction is small."""
LAG_BYTES_MAX: Final = 64 * 1024 * 1024
"""Copying waits for the relay: WAL that it has not read is kept, and the slot is lost past a limit."""
PATIENCE_SECONDS: Final = 120.0
EXAMINED_MAX: Final = 100_000
"""Runs that the doctor looks at: the newest, and as many of the others. They are all alike."""
OF_ROWS: Final = {*(check.name for check in OF_RUNS), "orphan_timers", "orphan_approvals", "parked", "triggers"}

_TABLES: Final = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY(i.indkey))
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
  AND a.attgenerated = ''
  AND EXISTS (SELECT FROM pg_attribute k WHERE k.attrelid = c.oid AND k.attname = 'run_id' AND NOT k.attisdropped)
ORDER BY c.relname, a.attnum"""
_COPIES: Final = """
CREATE TABLE benchmark_copy AS
SELECT n, (%(templates)s::uuid[])[CASE n %% %(bad)s WHEN 0 THEN %(good)s + 1 WHEN 1 THEN %(good)s + 2
                                  ELSE 1 + n %% %(good)s END] AS of_run,
       %(last)s::timestamptz - make_interval(secs => (%(runs)s - n) * %(spacing)s) AS at
FROM generate_series(1, %(runs)s) AS n"""
_IDS: Final = """
ALTER TABLE benchmark_copy ADD run_id uuid, ADD earlier interval;
UPDATE benchmark_copy SET
  run_id = (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
            || substr(md5(n::text), 4, 15))::uuid,
  earlier = (SELECT created_at FROM run WHERE run.run_id = of_run) - at;
ALTER TABLE benchmark_copy ADD PRIMARY KEY (n)"""
_LAG: Final = """
SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)), 0)::float
FROM pg_replication_slots WHERE database = current_database()"""
_OPEN: Final = "SELECT count(*) FROM run WHERE finished_at IS NULL"
_COPY_OF: Final = """
SELECT run_id FROM benchmark_copy WHERE of_run = %(run)s ORDER BY n DESC LIMIT 1"""
_OF_NEW: Final = "SELECT run_id FROM run WHERE run_id > %(since)s ORDER BY run_id"
_IS_RUNNING: Final = "SELECT count(*) FROM task WHERE run_id = %(run)s AND status IN ('queued', 'running')"
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z?")


class Column(NamedTuple):
    name: str
    type: str
    is_key: bool
    """Part of the primary key."""


def fill(bench: Bench, workflow: str, runs: int) -> None:
    """Have so many finished runs in the database. Raises SystemExit when the doctor finds fault with any of them, or
    when the API does not read one as its template."""
    began = time.monotonic()
    templates = _finish_templates(bench, workflow)
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        _copy(bench, connection, templates, runs)
        for template in templates:
            _compare(bench, template)
        connection.execute("DROP TABLE benchmark_copy")
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")
    _wait_for_relay(bench)
    size = float(bench.one("SELECT pg_database_size(current_database())::float")) / 2**30
    print(f"bench: {runs} finished runs written in {time.monotonic() - began:.0f} s, {size:.2f} GiB\n", flush=True)
    asyncio.run(_examine(bench, min(runs, EXAMINED_MAX)))


def strand(bench: Bench, runs: int) -> None:
    """Have so many open runs that are stuck, by the API's own word."""
    bench.publish(STRANDED)
    bench.load(STRANDED["name"], "burst", str(runs), "--no-wait")
    bench.wait(lambda: _count(bench, "is:stuck") == runs, PATIENCE_SECONDS, f"{runs} runs to be stuck")


def _count(bench: Bench, filter: str) -> int:
    answer = httpx.get(f"{bench.stack.api_url}/runs/count", headers=bench.stack.headers, params={"filter": filter})
    return int(answer.raise_for_status().json()["count"])


def _finish_templates(bench: Bench, workflow: str) -> list[UUID]:
    """Runs that the engine finished: TEMPLATES that completed, one that failed, one that was cancelled."""
    since = run_id_of_now()
    bench.publish(FAILING, VICTIM)
    bench.load(workflow, "burst", str(TEMPLATES))
    good = [row[0] for row in bench.rows(_OF_NEW, since=since)]
    bad = [_start(bench, name) for name in (FAILING["name"], VICTIM["name"])]
    bench.wait(lambda: bool(bench.one(_IS_RUNNING, run=bad[1])), PATIENCE_SECONDS, "the run to cancel runs")
    httpx.post(
        f"{bench.stack.api_url}/runs/{bad[1]}/cancel", headers=bench.stack.headers, json={"reason": "benchmark"}
    ).raise_for_status()
    bench.wait(lambda: bench.one(_OPEN) == 0, PATIENCE_SECONDS, "the runs to copy end")
    return [*good, *bad]


def _start(bench: Bench, workflow: str) -> UUID:
    answer = httpx.post(
        f"{bench.stack.api_url}/workflows/{workflow}/runs", headers=bench.stack.headers, json={"input": {}}
    )
    return UUID(answer.raise_for_status().json()["run_id"])


def _copy(bench: Bench, connection: psycopg.Connection[Any], templates: Sequence[UUID], runs: int) -> None:
    first = connection.execute("SELECT min(created_at) - interval '1 minute' FROM run").fetchone()
    values = {
        "templates": list(templates),
        "good": TEMPLATES,
        "bad": BAD_EVERY,
        "runs": runs,
        "spacing": SPACING_SECONDS,
        "last": first[0] if first else None,
    }
    connection.execute(_COPIES.encode(), values)
    for change in _IDS.split(";"):
        connection.execute(change.encode())
    statements = [_statement(table, columns) for table, columns in _tables(connection).items()]
    for begun in range(0, runs, RUNS_PER_TRANSACTION):
        with connection.transaction():
            for statement in statements:
                connection.execute(statement, {"first": begun + 1, "last": begun + RUNS_PER_TRANSACTION})
        _wait_for_relay(bench)


def _tables(connection: psycopg.Connection[Any]) -> dict[str, list[Column]]:
    found: dict[str, list[Column]] = {}
    for table, *column in connection.execute(_TABLES.encode()).fetchall():
        found.setdefault(table, []).append(Column(*column))
    found.pop("benchmark_copy")
    return found


def _statement(table: str, columns: list[Column]) -> sql.Composed:
    """Copy a table's rows of the templates."""
    return sql.SQL(
        "INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT {values}"
        " FROM benchmark_copy c JOIN {table} t ON t.run_id = c.of_run"
        " WHERE c.n BETWEEN %(first)s AND %(last)s ORDER BY c.n"
    ).format(
        table=sql.Identifier(table),
        names=sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
        values=sql.SQL(", ").join(map(_value, columns)),
    )


def _value(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    if column.name == "run_id":
        return sql.SQL("c.run_id")
    if column.type == "uuid" and column.is_key:
        return sql.SQL("md5(t.{}::text || c.n)::uuid").format(name)
    if column.type == "text" and column.is_key and column.name == "key":
        return sql.SQL("t.{} || '/' || c.n").format(name)
    if column.type == "timestamp with time zone":
        return sql.SQL("t.{} - c.earlier").format(name)
    return sql.SQL("t.{}").format(name)


def _wait_for_relay(bench: Bench) -> None:
    bench.wait(lambda: float(bench.one(_LAG)) < LAG_BYTES_MAX, PATIENCE_SECONDS, "the relay has read what was written")


def _compare(bench: Bench, template: UUID) -> None:
    """Raises SystemExit when the API reads a run and its copy differently."""
    copy = bench.one(_COPY_OF, run=template)
    seen = [_as_read(bench, run) for run in (template, copy)]
    if seen[0] != seen[1]:
        raise SystemExit(f"bench: the API reads {copy}, the copy of {template}, differently:\n{seen}")


def _as_read(bench: Bench, run: UUID) -> list[Any]:
    """What the API says of a run, without its id and its instants."""
    paths = (f"/runs/{run}", f"/runs/{run}/tasks", f"/runs/{run}/history")
    answers = [
        httpx.get(f"{bench.stack.api_url}{path}", headers=bench.stack.headers).raise_for_status().text for path in paths
    ]
    return [json.loads(_INSTANT.sub("(then)", answer.replace(str(run), "(run)"))) for answer in answers]


async def _examine(bench: Bench, runs: int) -> None:
    """Raises SystemExit when a check of the doctor that looks at rows fails; others look at how the engine does."""
    async with await psycopg.AsyncConnection.connect(bench.dsn, autocommit=True) as connection:
        checks = await examine(connection, runs=runs)
    if faults := [f"{check.name}: {check.detail}" for check in checks if not check.ok and check.name in OF_ROWS]:
        raise SystemExit("bench: the doctor finds fault with the finished runs:\n" + "\n".join(faults))
