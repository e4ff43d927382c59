"""Lists use their indexes, whatever the database holds."""

from typing import LiteralString
from uuid import UUID

import psycopg
import pytest

from state.queries.dead_letter import LetterFilter, find_dead_letters
from state.queries.run import list_history, list_runs
from state.sql import load

RUNS = load("run_queries")
TASKS = load("task_queries")


@pytest.fixture
def many(engine):
    """Thousands of finished runs of two versions, a few open ones."""
    connection = engine.connection
    connection.execute(
        """
        INSERT INTO workflow (namespace, name, latest_version) VALUES ('default', 'w', 2);
        INSERT INTO workflow_version (namespace, name, version, digest, definition)
          VALUES ('default', 'w', 1, 'a', '{"tasks": {"a": {}}}'), ('default', 'w', 2, 'b', '{"tasks": {"a": {}}}');
        INSERT INTO run (run_id, version_id, status, row_version, input, finished_at)
          SELECT (lpad(to_hex(n), 8, '0') || '-0000-7000-8000-000000000000')::uuid,
                 (SELECT min(version_id) FROM workflow_version) + CASE WHEN n = 7 THEN 0 ELSE 1 END,
                 CASE WHEN n % 500 = 0 THEN 'waiting' ELSE 'completed' END::run_status, 1, '{}',
                 CASE WHEN n % 500 = 0 THEN NULL ELSE now() END
          FROM generate_series(1, 20000) AS n;
        INSERT INTO task (run_id, task, status, attempt, token) SELECT run_id, 0, 'completed', 1, 1 FROM run;
        INSERT INTO attempt (run_id, task, token, attempt, outcome, row_version, worker, ended_at)
          SELECT run_id, 0, 1, 1, 'completed', 1, 'w', now() FROM run;
        INSERT INTO history (run_id, row_version, at, kind) SELECT run_id, 1, now(), 'started' FROM run;
        ANALYZE run; ANALYZE task; ANALYZE attempt; ANALYZE history; ANALYZE workflow_version;
        """
    )
    return connection


def explain(connection: psycopg.Connection, statement: LiteralString, **parameters) -> str:
    cursor = psycopg.ClientCursor(connection)
    rows = cursor.execute("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) " + statement, parameters).fetchall()
    return "\n".join(line for (line,) in rows)


LIST = {"namespace": "default", "before": "ffffffff-ffff-ffff-ffff-ffffffffffff", "limit": 51, "bytes": 10**7}


def test_lists_of_runs_walk_an_index_and_never_the_table(many):
    plans = {
        "run_key": explain(many, RUNS.text("list_runs"), status=None, workflow=None, **LIST),
        "run_open": explain(many, RUNS.text("list_open_runs"), status="waiting", workflow=None, **LIST),
        "run_of_a_version": explain(many, RUNS.text("list_runs_of_workflow"), status=None, workflow="w", **LIST),
    }
    for index, plan in plans.items():
        assert f"using {index} on run" in plan or f"using {index} on run r" in plan, plan
        assert "Seq Scan on run" not in plan, plan


async def test_a_list_is_planned_for_its_filters_however_often_it_was_asked_for(many, database):
    many.commit()
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        for _ in range(12):
            for status in (None, "failed", "waiting"):
                await list_runs(connection, "default", limit=51, status=status, workflow="w")
            await find_dead_letters(connection, "default", LetterFilter(), status="parked", limit=10)
        cursor = await connection.execute("SELECT statement FROM pg_prepared_statements")
        prepared = [statement for (statement,) in await cursor.fetchall()]
    assert not [
        statement for statement in prepared if "FROM workflow_version v" in statement or "dead_letter" in statement
    ]


def test_the_page_of_a_run_reads_only_its_own_rows(many):
    run_id = "00000fff-0000-7000-8000-000000000000"
    statements: list[tuple[LiteralString, dict[str, object]]] = [
        (RUNS.text("get_run"), {"run_id": run_id, "namespace": "default"}),
        (RUNS.text("count_tasks"), {"run_ids": [run_id]}),
        (RUNS.text("list_outputs"), {"run_ids": [run_id], "tasks": [0], "bytes": 10**7}),
        (RUNS.text("read_position"), {"run_id": run_id, "namespace": "default"}),
        (RUNS.text("list_history"), {"run_id": run_id, "row_version": 0, "is_attempt": False, "task": -1, "limit": 51}),
        (TASKS.text("list_tasks"), {"run_id": run_id, "first": 0, "end": 50, "bytes": 10**7}),
        (TASKS.text("list_attempts"), {"run_id": run_id, "task": 0, "after": 0, "limit": 51, "bytes": 10**7}),
    ]
    for statement, parameters in statements:
        plan = explain(many, statement, **parameters)
        for table in ("run", "task", "attempt", "history"):
            assert f"Seq Scan on {table}\n" not in plan, plan
            assert f"Seq Scan on {table} " not in plan, plan


WIDE = "000000ff-0000-7000-8000-000000000000"


@pytest.fixture
def wide(many):
    """A cancelled run of 10,000 tasks whose attempts ended in another order than that of their key; the last ones were
    ended by the cancel."""
    many.execute(
        """
        DELETE FROM attempt WHERE run_id = 'WIDE';
        INSERT INTO attempt (run_id, task, token, attempt, outcome, row_version, worker, ended_at)
          SELECT 'WIDE', n, 1, 1, CASE WHEN place > 9900 THEN 'cancelled' ELSE 'completed' END, least(place, 9901) + 2,
                 'w', now()
          FROM (SELECT n, (n * 7919) % 10000 AS place FROM generate_series(0, 9999) AS n) AS of_task;
        INSERT INTO history (run_id, row_version, at, kind, task, token)
          VALUES ('WIDE', 2, now(), 'attempt_started', 5, 1), ('WIDE', 9903, now(), 'cancelled', NULL, NULL);
        ANALYZE attempt; ANALYZE history;
        """.replace("WIDE", WIDE).encode()
    )
    return many


def test_a_page_of_a_long_history_builds_only_the_rows_on_it(wide):
    """Of the attempts that are not on it, only their places are looked at: 8 ms instead of 100."""
    place = {"run_id": WIDE, "row_version": 0, "is_attempt": False, "task": -1, "limit": 51}
    plan = explain(wide, RUNS.text("list_history"), **place)
    built = plan[plan.index("CTE Scan on place") :]
    assert "Sort Method: top-N heapsort" in plan, plan
    assert "Index Scan using attempt_key on attempt " in built, plan
    assert "rows=10000" not in built, plan


async def test_pages_of_a_history_are_its_events_in_order(wide, database):
    wide.commit()
    whole = wide.execute(
        "SELECT row_version, kind ^@ 'attempt_', coalesce(task, -1), actor, detail::text FROM run_event "
        "WHERE run_id = %s ORDER BY 1, 2, 3",
        (WIDE,),
    ).fetchall()
    read, after = [], (0, False, -1)
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        while page := await list_history(connection, UUID(WIDE), after=after, limit=3001):
            read += [(*row.key, row.actor, row.detail) for row in page]
            after = page[-1].key
    assert len(read) == 10_003
    assert read == whole


def test_the_statements_of_the_metrics_touch_open_runs_only(many):
    health = load("health_queries")
    for name in ("count_open_runs", "count_open_tasks"):
        plan = explain(many, health.text(name), limit=10_000)
        assert "using run_open on run" in plan or "on run_open" in plan, plan
        assert "Seq Scan on task" not in plan, plan
