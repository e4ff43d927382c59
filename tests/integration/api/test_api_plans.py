"""Lists use their indexes, whatever the database holds."""

import re
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from headrace.filter import parse
from state.filter_sql import conditions_of
from state.queries.dead_letter import find_dead_letters
from state.queries.rows import ID_MAX
from state.queries.run import HISTORY_BEGIN, HISTORY_END, list_history
from state.queries.search import FACET_ERRORS_MAX, find_runs
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


# == filters ===========================================================================================================
RUNS_AGO = 100_000


@pytest.fixture
async def history(engine, database):
    """So many runs of three workflows, one a second, the newest now: nearly all are completed; with their tasks. Of
    `rare` there are ten, the oldest."""
    engine.connection.execute(
        """
        INSERT INTO workflow (namespace, name, latest_version)
          VALUES ('default', 'often', 2), ('default', 'other', 1), ('default', 'rare', 1);
        INSERT INTO workflow_version (namespace, name, version, digest, definition)
          SELECT 'default', name, version, name || version,
                 '{"tasks": {"a": {"run": "x"}, "b": {"run": "y", "queue": "slow"}}}'
          FROM (VALUES ('often', 1), ('often', 2), ('other', 1), ('rare', 1)) AS given (name, version);
        CREATE TEMPORARY TABLE made AS
          SELECT n, (first_id_of(now() - n * interval '1 s')::text) AS first, now() - n * interval '1 s' AS at,
                 (SELECT version_id FROM workflow_version WHERE digest = CASE
                   WHEN n > %(runs)s - 10 THEN 'rare1' WHEN mod(n, 5) = 0 THEN 'other1' WHEN mod(n, 3) = 0 THEN 'often1'
                   ELSE 'often2' END) AS version_id,
                 (CASE WHEN mod(n, 500) = 0 THEN 'waiting' WHEN mod(n, 300) = 0 THEN 'failed' ELSE 'completed' END)
                   AS status
          FROM generate_series(0, %(runs)s - 1) AS n;
        INSERT INTO run (run_id, version_id, status, row_version, input, created_at, updated_at, finished_at)
          SELECT (left(first, 14) || '7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, version_id, status::run_status, 2,
                 json_build_object('customer', 'c' || mod(n, 1000)), at, at,
                 CASE WHEN status = 'waiting' THEN NULL ELSE at END
          FROM made;
        INSERT INTO task (run_id, task, status, attempt, token, error)
          SELECT run_id, place, CASE WHEN has_failed THEN 'failed' ELSE 'completed' END::task_status, 1, 1,
                 CASE WHEN has_failed THEN json '{"code": "ERROR", "message": "Time out"}' END
          FROM run CROSS JOIN generate_series(0, 1) AS place
          CROSS JOIN LATERAL (SELECT status = 'failed' AND place = 1 AS has_failed) AS told;
        INSERT INTO attempt (run_id, task, token, attempt, outcome, row_version, worker, ended_at, error)
          SELECT run_id, task, 1, 1, status::text, 2, 'host/1', now(), error FROM task;
        INSERT INTO history (run_id, row_version, at, kind, actor)
          SELECT run_id, 1, created_at, 'started', 'ana' FROM run;
        INSERT INTO run_label (run_id, name, value)
          SELECT run_id, name, value FROM run CROSS JOIN LATERAL (VALUES
            ('env', 'prod'), ('customer', input ->> 'customer'),
            ('incident', (SELECT 'i1' FROM workflow_version v WHERE v.version_id = run.version_id AND digest = 'rare1'))
          ) AS given (name, value) WHERE value IS NOT NULL;
        DROP TABLE made;
        """.replace("%(runs)s", str(RUNS_AGO)).encode()
    )
    engine.connection.execute("VACUUM ANALYZE run, run_label, task, attempt, history, workflow_version")
    connection = await psycopg.AsyncConnection.connect(database, autocommit=True)
    yield connection
    await connection.close()


async def plan_of(connection, of, text, statement, *, scanned=None, **more):
    """The plan of a search as it is sent: with its values as parameters."""
    made = await conditions_of(connection, "default", parse(of, text))
    if scanned is None:
        scanned = made.looks if made.has_looks else 51
    given = made.given(namespace="default", before=ID_MAX, scanned=scanned, limit=51, **more)
    cursor = await connection.execute(
        sql.SQL("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) ") + made.statement(statement), given, prepare=False
    )
    return "\n".join(line for (line,) in await cursor.fetchall())


TABLES = ("run", "run_label", "task", "attempt", "history")


def scanned_whole(plan):
    return [table for table in TABLES if re.search(rf"Seq Scan on {table}( |$)", plan, re.MULTILINE)]


OF_RUNS = {
    "": "run_key",
    "status:completed": "run_key",
    "status:waiting": "run_open",
    "is:open": "run_open",
    "is:stuck": "run_open",
    "is:stuck workflow:rare": "run_open",
    "-is:stuck": "run_key",
    "status:failed,cancelled": "run_ended_badly",
    "status:failed workflow:often": "run_ended_badly",
    "workflow:often": "run_of_a_version",
    "workflow:rare": "run_of_a_version",
    "workflow:often status:completed": "run_of_a_version",
    "-workflow:rare": "run_key",
    "queue:slow": "run_of_a_version",
    "started:>-1h": "run_key",
    "started:<-1h -workflow:other": "run_key",
    "run:019b0000-0000-7000-8000-000000000000": "run_key",
    "key:order-7": "",
    "parent:019b0000-0000-7000-8000-000000000000": "",
    "took:>1h": "run_key",
    "failed:b": "run_key",
    "failed:*": "run_key",
    'error:"time out"': "run_key",
    "code:ERROR workflow:often": "run_of_a_version",
    "waits:person,slot,signal,child,retry,time": "run_open",
    "pool:shop": "run_open",
    "trigger:api by:ana": "run_key",
    "input.customer:c7": "run_key",
    "input.amount:>100 output.total:7": "run_key",
    "label.customer:c7": "run_label_of_a_value",
    "label.customer:c7,c8 workflow:often": "run_label_of_a_value",
    "label.env:prod": "run_label_of_a_value",
    "label.env:prod started:<-1h": "run_label_of_a_value",
    "label.env:prod took:>1h": "run_label_of_a_value",
    "label.incident:i1": "run_label_of_a_value",
    "label.nobody:x": "run_label_of_a_value",
    "label.env:prod label.customer:nobody": "run_label_of_a_value",
    "label.customer:c7 is:open": "run_open",
    "label.customer:c7 status:failed": "run_ended_badly",
    "label.incident:* workflow:often": "run_of_a_version",
    "label.customer:c*": "run_key",
    "-label.env:prod": "run_key",
}


async def test_no_filter_walks_a_table_however_many_runs_there_are(history):
    for text, index in OF_RUNS.items():
        plan = await plan_of(history, "runs", text, "find_runs")
        assert re.search(rf"(using|on) {index}", plan), (text, plan)
        assert not scanned_whole(plan), (text, plan)
        for statement, more in (
            ("count_runs", {}),
            ("count_facets", {"values_max": 20, "errors": FACET_ERRORS_MAX, "label_counted": "customer"}),
            ("count_by_time", {"buckets": 60}),
            ("find_last_candidate", {}),
        ):
            plan = await plan_of(history, "runs", text, statement, scanned=5_000, **more)
            assert not scanned_whole(plan), (text, statement, plan)


async def test_no_list_of_what_runs_consist_of_walks_a_table(history):
    searches = {
        ("tasks", "find_tasks"): (
            {"at_task": 2**31 - 1},
            ["", "status:failed", "task:b queue:slow", "error:time workflow:rare", "label.customer:c7", "label.env:p*"],
        ),
        ("attempts", "find_attempts"): (
            {"at_task": 2**31 - 1, "at_token": 2**31 - 1},
            ["", "outcome:failed worker:h* took:>1s", "-task:a", "label.env:prod"],
        ),
        ("history", "find_events"): (
            {"at_row_version": 2**31 - 1, "at_attempt": True, "at_task": 2**31 - 1},
            ["", "kind:started by:ana", "kind:cancelled run_status:failed", "detail:x workflow:often"],
        ),
    }  # fmt: skip
    for (of, statement), (after, texts) in searches.items():
        for text in texts:
            plan = await plan_of(history, of, text, statement, scanned=2_000, at_run=ID_MAX, **after)
            assert not scanned_whole(plan), (of, text, plan)


async def test_a_search_looks_at_so_many_rows_and_no_more(history):
    """Of a hundred thousand, none of which it finds."""
    found = await find_runs(history, "default", parse("runs", "input.customer:nobody"), limit=51)
    assert found.ids == []
    assert found.bound is not None
    plan = await plan_of(history, "runs", "input.customer:nobody", "find_runs")
    assert max(map(int, re.findall(r"actual rows=(\d+)", plan))) <= 5_000, plan
    for text in ("label.env:prod input.customer:nobody", "label.env:prod label.customer:nobody", "label.nobody:*"):
        plan = await plan_of(history, "runs", text, "find_runs")
        assert max(map(int, re.findall(r"actual rows=(\d+)", plan))) <= 5_000, plan
    rest = await find_runs(history, "default", parse("runs", "workflow:rare input.customer:nobody"), limit=51)
    assert (rest.ids, rest.bound) == ([], None)  # all ten were looked at


async def test_a_page_along_a_label_reads_the_runs_on_it_only(history):
    """However many have that label; and of an end of the time that is asked for, those of the hour that ids may be off
    by."""
    most = {
        "label.env:prod": 51,
        "label.customer:c7": 51,
        "label.incident:i1": 10,
        "label.env:prod started:>-20h": 51,
        "label.env:prod started:<-20h": 51 + 3_600,
    }
    for text, runs in most.items():
        plan = await plan_of(history, "runs", text, "find_runs")
        read = [int(rows) * int(loops) for rows, loops in re.findall(r"on run\b.*actual rows=(\d+) loops=(\d+)", plan)]
        assert 0 < sum(read) <= runs, (text, plan)


async def test_a_list_is_planned_for_its_filters_however_often_it_was_asked_for(many, database):
    many.commit()
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        for _ in range(12):
            for text in ("", "status:failed", "status:waiting workflow:w"):
                await find_runs(connection, "default", parse("runs", text), limit=51)
            await find_dead_letters(connection, "default", parse("dead_letters", ""), limit=10)
        cursor = await connection.execute("SELECT statement FROM pg_prepared_statements")
        prepared = [statement for (statement,) in await cursor.fetchall()]
    assert not [statement for statement in prepared if "place" in statement]


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


@pytest.mark.parametrize(
    ("name", "begin"), [("list_history", HISTORY_BEGIN), ("list_history_back", HISTORY_END)], ids=["oldest", "newest"]
)
def test_a_page_of_a_long_history_builds_only_the_rows_on_it(wide, name, begin):
    """Of the attempts that are not on it, only their places are looked at: 8 ms instead of 100."""
    place = dict(zip(("row_version", "is_attempt", "task"), begin, strict=True))
    plan = explain(wide, RUNS.text(name), run_id=WIDE, limit=51, **place)
    built = plan[plan.index("CTE Scan on place") :]
    assert "Sort Method: top-N heapsort" in plan, plan
    assert "Index Scan using attempt_key on attempt " in built, plan
    assert "rows=10000" not in built, plan


@pytest.mark.parametrize("is_newest_first", [False, True], ids=["oldest", "newest"])
async def test_pages_of_a_history_are_its_events_in_order(wide, database, is_newest_first):
    wide.commit()
    whole = wide.execute(
        "SELECT row_version, kind ^@ 'attempt_', coalesce(task, -1), actor, detail::text FROM run_event "
        "WHERE run_id = %s ORDER BY 1, 2, 3",
        (WIDE,),
    ).fetchall()
    read, after = [], None
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        while page := await list_history(
            connection, UUID(WIDE), after=after, is_newest_first=is_newest_first, limit=3001
        ):
            read += [(*row.key, row.actor, row.detail) for row in page]
            after = page[-1].key
    assert len(read) == 10_003
    assert read == (whole[::-1] if is_newest_first else whole)


def test_the_statements_of_the_metrics_touch_open_runs_only(many):
    health = load("health_queries")
    for name in ("count_open_runs", "count_open_tasks"):
        plan = explain(many, health.text(name), limit=10_000)
        assert "using run_open on run" in plan or "on run_open" in plan, plan
        assert "Seq Scan on task" not in plan, plan
