"""The doctor finds nothing in a sound database, and each fault that is planted in one."""
# ruff: noqa: S608 - faults are written as SQL, with the ids of this file in it

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.cli.doctor import examine_offsets
from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.kafka import ApacheKafka
from headrace.embedded.postgres import EmbeddedPostgres
from state.doctor import ALL, OF_RUNS, Check, examine

DEFINITION = json.dumps({
    "name": "w",
    "tasks": {
        "a": {"run": "t.a", "retry": {"attempts": 2}},
        "b": {"run": "t.b", "needs": ["a"]},
        "c": {"needs": ["b"], "approval": {"title": "ok?"}},
    },
})  # fmt: skip
RUN = "00000000-0000-7000-8000-00000000000"
COMPLETED, BACKOFF, ASKED, PARKED, FAILED, RUNNING = (f"{RUN}{n}" for n in range(6))
SESSION = "3b241101-e2bb-4255-8caf-4136c566a962"
SOUND = f"""
INSERT INTO workflow (namespace, name, latest_version) VALUES ('default', 'w', 1);
INSERT INTO workflow_version (namespace, name, version, digest, definition)
  VALUES ('default', 'w', 1, 'd', '{DEFINITION}');
INSERT INTO run (run_id, version_id, status, row_version, input, finished_at)
  SELECT id::uuid, (SELECT max(version_id) FROM workflow_version), status::run_status, moved, '{{}}',
         CASE WHEN status IN ('completed', 'failed') THEN now() END
  FROM (VALUES ('{COMPLETED}', 'completed', 4), ('{BACKOFF}', 'running', 2), ('{ASKED}', 'waiting', 3),
               ('{PARKED}', 'waiting', 3), ('{FAILED}', 'failed', 3), ('{RUNNING}', 'running', 2))
    AS v (id, status, moved);
INSERT INTO history (run_id, row_version, at, kind) SELECT run_id, 1, now(), 'started' FROM run;
INSERT INTO trigger_key (namespace, key, run_id, digest) SELECT 'default', 'api:' || run_id, run_id, '' FROM run;
INSERT INTO task (run_id, task, status, attempt, token, session_id, due_at, error) VALUES
  ('{COMPLETED}', 0, 'completed', 1, 1, NULL, NULL, NULL), ('{COMPLETED}', 1, 'completed', 1, 1, NULL, NULL, NULL),
  ('{COMPLETED}', 2, 'completed', 0, 1, NULL, NULL, NULL), ('{BACKOFF}', 0, 'pending', 1, 1, NULL, now() + '1 h', NULL),
  ('{ASKED}', 0, 'completed', 1, 1, NULL, NULL, NULL), ('{ASKED}', 1, 'completed', 1, 1, NULL, NULL, NULL),
  ('{ASKED}', 2, 'waiting', 0, 1, NULL, NULL, NULL),
  ('{PARKED}', 0, 'waiting', 1, 1, NULL, NULL, '{{"code": "AMBIGUOUS"}}'),
  ('{FAILED}', 0, 'failed', 2, 2, NULL, NULL, '{{"code": "ERROR"}}'),
  ('{FAILED}', 1, 'skipped', 0, 0, NULL, NULL, NULL),
  ('{FAILED}', 2, 'skipped', 0, 0, NULL, NULL, NULL), ('{RUNNING}', 0, 'running', 1, 1, '{SESSION}', NULL, NULL);
INSERT INTO attempt (run_id, task, token, attempt, outcome, row_version, worker, ended_at) VALUES
  ('{COMPLETED}', 0, 1, 1, 'completed', 2, 'box/1', now()), ('{COMPLETED}', 1, 1, 1, 'completed', 3, 'box/1', now()),
  ('{BACKOFF}', 0, 1, 1, 'failed', 2, 'box/1', now()), ('{ASKED}', 0, 1, 1, 'completed', 2, 'box/1', now()),
  ('{ASKED}', 1, 1, 1, 'completed', 3, 'box/1', now()), ('{PARKED}', 0, 1, 1, 'lost', 3, 'box/1', now()),
  ('{FAILED}', 0, 1, 1, 'failed', 2, 'box/1', now()), ('{FAILED}', 0, 2, 2, 'failed', 3, 'box/1', now());
INSERT INTO history (run_id, row_version, at, kind, task, token, detail) VALUES
  ('{COMPLETED}', 4, now(), 'decided', 2, 1, '{{"outcome": "approved"}}'),
  ('{PARKED}', 2, now(), 'attempt_started', 0, 1, NULL),
  ('{RUNNING}', 2, now(), 'attempt_started', 0, 1, NULL);
INSERT INTO timer SELECT run_id, task, token, 'backoff', due_at FROM task WHERE due_at IS NOT NULL;
INSERT INTO approval (approval_id, run_id, task, token, title, approvers, on_expiry, status, decided_at) VALUES
  (gen_random_uuid(), '{COMPLETED}', 2, 1, '', '[]', 'fail', 'approved', now()),
  (gen_random_uuid(), '{ASKED}', 2, 1, '', '[]', 'fail', 'waiting', NULL);
INSERT INTO approval_vote (approval_id, actor, voter, decision, digest, source)
  SELECT approval_id, 'ada', 'ada', 'approve', '', 'api' FROM approval WHERE run_id = '{COMPLETED}';
INSERT INTO parked_task (run_id, task, token, error) VALUES ('{PARKED}', 0, 1, '{{}}');
INSERT INTO dead_letter (dead_letter_id, kind, run_id, task, token, reason)
  VALUES (gen_random_uuid(), 'task', '{FAILED}', 0, 2, 'ERROR');
INSERT INTO worker_session (session_id, worker, queues, slots, held, seq, lease, renewed_at, expires_at)
  VALUES ('{SESSION}', 'box/1', '{{default}}', 4, 1, 1, '10 s', now(), now() + '1 h');
INSERT INTO held_task VALUES ('{RUNNING}', 0, 1, '{SESSION}');
INSERT INTO watermark VALUES ('sessions', now());
INSERT INTO sweep_pass SELECT unnest('{{timers,lost,requests,retention}}'::text[]), now(), 0;
INSERT INTO partition_owner (topic, partition, epoch, next_offset, topic_id, owner)
  SELECT 'headrace.events', p, 1, 10, 'id', 'box/2' FROM generate_series(0, 3) AS p;
"""
REQUEST = (
    "INSERT INTO inbox (inbox_id, run_id, kind, body, created_at) VALUES (gen_random_uuid(), '{}', '{}', '{{}}', {})"
)
UNTIL = (
    f"DELETE FROM approval WHERE run_id = '{ASKED}'; "
    f"UPDATE task SET due_at = now() + '1 h' WHERE run_id = '{ASKED}' AND task = 2; "
)
"""The task waits for an instant, and not for a person."""
PAUSE = (
    f"UPDATE run SET status = 'paused', control = {{}}, row_version = 3 WHERE run_id = '{BACKOFF}'; "
    "INSERT INTO history (run_id, row_version, at, kind, detail) "
    f"VALUES ('{BACKOFF}', 3, now(), 'paused', '{{{{\"scope\": 1}}}}'); "
)
"""With 1 it is true."""
LISTENS = (
    f"DELETE FROM approval WHERE run_id = '{ASKED}'; "
    f"INSERT INTO signal_wait (run_id, task, token, name, key) VALUES ('{ASKED}', 2, 1, 'paid', 'a'); "
)
"""The task waits for a signal, and not for a person."""
NEW = "0199c3f4-5a6b-7c8d-9e0f-a1b2c3d4e5f6"
CHILD = (
    f"DELETE FROM approval WHERE run_id = '{ASKED}'; "
    "INSERT INTO child_run (parent_run_id, task, token, run_id, workflow, input, is_awaited, depth, status, asked_at, "
    f"ended_at) VALUES ('{ASKED}', 2, 1, '{{}}', 'w', '1', true, 1, '{{}}', {{}}, {{}}); "
)
"""The task waits for a run, and not for a person."""
SIGNAL = (
    "INSERT INTO signal (signal_id, run_id, name, key, data, status, task, token, row_version, settled_at) "
    "VALUES ('00000000-0000-7000-8000-0000000000aa', '{}', 'paid', {}, '1', '{}'{}); "
)
KEPT = SIGNAL.format(ASKED, "{}", "kept", ", NULL, NULL, NULL, NULL")
TAKEN = SIGNAL.format(COMPLETED, "NULL", "taken", ", 2, 1, 4, now()")
POSTED = (
    "INSERT INTO posted_signal (posted_id, name, key, data, sent_at, expires_at) VALUES ("
    "'00000000-0000-7000-8000-0000000000ff', 'paid', 'a', '1', now() - interval '1 min', now() + interval '1 d'); "
)
LATE = LISTENS + "UPDATE signal_wait SET began_at = now() - interval '1 min'; "
OFFERED = TAKEN.replace("settled_at)", "settled_at, posted_id, is_exclusive, offered_task, offered_token)").replace(
    "now())", "now(), '00000000-0000-7000-8000-0000000000ff', true, 2, 1)"
)
OUTPUT = f"""UPDATE task SET output = '{{"signal_id": "%s"}}' WHERE run_id = '{COMPLETED}' AND task = 2; """
DROP = "ALTER TABLE {} DROP CONSTRAINT {}; "
FAULTS: list[tuple[str, str]] = [
    ("statuses", f"UPDATE run SET status = 'waiting' WHERE run_id = '{RUNNING}'"),
    ("statuses", f"UPDATE task SET status = 'failed' WHERE run_id = '{COMPLETED}' AND task = 2"),
    ("attempts", f"UPDATE task SET attempt = 2, token = 2 WHERE run_id = '{BACKOFF}'"),
    ("attempts", f"DELETE FROM attempt WHERE run_id = '{FAILED}' AND attempt = 1"),
    ("attempts", "INSERT INTO attempt (run_id, task, token, attempt, outcome, row_version, worker, ended_at) "
                 f"VALUES ('{RUNNING}', 0, 1, 1, 'completed', 2, 'box/1', now())"),
    ("attempts", f"UPDATE task SET retries_from = -1 WHERE run_id = '{FAILED}' AND task = 0"),
    ("tokens", f"UPDATE attempt SET token = CASE attempt WHEN 1 THEN 4 ELSE 3 END WHERE run_id = '{FAILED}'; "
               f"UPDATE task SET token = 4 WHERE run_id = '{FAILED}' AND task = 0"),
    ("tokens", f"UPDATE attempt SET token = 7 WHERE run_id = '{FAILED}' AND attempt = 2"),
    ("tokens", DROP.format("attempt", "attempt_counts")
               + f"UPDATE attempt SET attempt = 3 - attempt WHERE run_id = '{FAILED}'"),
    ("history", f"DELETE FROM history WHERE run_id = '{COMPLETED}' AND row_version = 1"),
    ("history", f"UPDATE run SET row_version = row_version + 1 WHERE run_id = '{ASKED}'"),
    ("ended", f"UPDATE task SET changed_at = now() + '1 s' WHERE run_id = '{COMPLETED}' AND task = 1"),
    ("ended", f"UPDATE history SET at = now() + '1 s' WHERE run_id = '{FAILED}'"),
    ("ended", f"UPDATE attempt SET ended_at = now() + '1 s' WHERE run_id = '{FAILED}' AND attempt = 1"),
    ("ended", f"INSERT INTO timer VALUES ('{COMPLETED}', 0, 1, 'backoff', now() + '1 h')"),
    ("waits", f"DELETE FROM timer; UPDATE task SET due_at = NULL WHERE run_id = '{BACKOFF}'"),
    ("waits", f"DELETE FROM approval WHERE run_id = '{ASKED}'"),
    ("waits", "DELETE FROM parked_task"),
    ("waits", f"DELETE FROM held_task; DELETE FROM task WHERE run_id = '{RUNNING}'"),
    ("pauses", PAUSE.format(2)),
    ("pauses", PAUSE.format(1) + f"UPDATE history SET kind = 'resumed' WHERE run_id = '{BACKOFF}' AND row_version = 3"),
    ("pauses", f"DELETE FROM timer; UPDATE task SET due_at = NULL, withheld = 'body' WHERE run_id = '{BACKOFF}'"),
    ("statuses", PAUSE.format(1) + f"UPDATE run SET status = 'pausing' WHERE run_id = '{BACKOFF}'"),
    ("joins", f"DELETE FROM task WHERE run_id = '{ASKED}' AND task = 2"),
    ("joins", f"DELETE FROM task WHERE run_id = '{RUNNING}'"),
    ("orphan_timers", "DELETE FROM timer"),
    ("orphan_timers", UNTIL),
    ("orphan_approvals", f"UPDATE task SET due_at = now() + '1 h' WHERE run_id = '{ASKED}' AND task = 2; "
                         f"INSERT INTO timer VALUES ('{ASKED}', 2, 1, 'wait', now() + '1 h')"),
    ("orphan_timers", "UPDATE timer SET token = 2"),
    ("orphan_timers", f"DELETE FROM task WHERE run_id = '{BACKOFF}'"),
    ("orphan_timers", f"UPDATE timer SET due_at = due_at + '1 s' WHERE run_id = '{BACKOFF}'"),
    ("timers", "UPDATE timer SET due_at = now() - interval '1 min'"),
    ("approvals", f"INSERT INTO history (run_id, row_version, at, kind, task, token, detail) VALUES ('{COMPLETED}', 5, "
                  "now(), 'decided', 2, 1, '{\"outcome\": \"approved\"}')"),
    ("approvals", f"UPDATE approval SET status = 'rejected' WHERE run_id = '{COMPLETED}'"),
    ("approvals", "DELETE FROM approval_vote"),
    ("approvals", f"UPDATE approval SET needed = 2 WHERE run_id = '{COMPLETED}'"),
    ("approvals", "UPDATE approval_vote SET approval_id = "
                  f"(SELECT approval_id FROM approval WHERE run_id = '{ASKED}')"),
    ("approvals", f"UPDATE approval SET status = 'approved', decided_at = now() WHERE run_id = '{ASKED}'"),
    ("signals", TAKEN),
    ("signals", TAKEN + OUTPUT % "00000000-0000-7000-8000-0000000000ab"),
    ("signals", TAKEN.replace("2, 1, 4", "2, 2, 4") + OUTPUT % "00000000-0000-7000-8000-0000000000aa"),
    ("signals", LISTENS + KEPT.format("NULL")),
    ("signals", LISTENS + KEPT.format("'a'")),
    ("signals", LISTENS + "UPDATE signal_wait SET token = 2"),
    ("signals", LISTENS + f"UPDATE task SET status = 'completed' WHERE run_id = '{ASKED}'"),
    ("signals", KEPT.format("NULL").replace("kept", "sent")),
    ("children", CHILD.format(NEW, "asked", "now() - interval '2 min'", "NULL")),
    ("children", CHILD.format(NEW, "started", "now()", "NULL")),
    ("children", CHILD.format(RUNNING, "asked", "now()", "NULL")),
    ("children", CHILD.format(COMPLETED, "started", "now()", "NULL")),
    ("children", CHILD.format(COMPLETED, "completed", "now()", "now()")),
    ("posted_signals", LATE + POSTED),
    ("posted_signals", LATE + POSTED + "UPDATE signal_wait SET delivery = 'all'; "
                       f"UPDATE posted_signal SET taken_as = '{RUNNING}'"),
    ("posted_signals", POSTED + OFFERED + f"UPDATE posted_signal SET taken_as = '{RUNNING}'"),
    ("ended", LISTENS.replace(ASKED, COMPLETED)),
    ("waits", LISTENS + "DELETE FROM signal_wait"),
    ("orphan_approvals", f"UPDATE approval SET status = 'waiting', decided_at = NULL WHERE run_id = '{COMPLETED}'"),
    ("parked", "UPDATE parked_task SET token = 2"),
    ("parked", "UPDATE parked_task SET resolved_at = now(), resolved_by = 'ana'"),
    ("parked", f"UPDATE task SET status = 'completed', error = NULL WHERE run_id = '{PARKED}'"),
    ("unparked", "DELETE FROM parked_task"),
    ("dead_letters", "DELETE FROM dead_letter"),
    ("dead_letters", f"UPDATE task SET token = 3 WHERE run_id = '{FAILED}' AND task = 0"),
    ("dead_letters", "UPDATE dead_letter SET status = 'replayed', closed_at = now(), replay_token = 3"),
    ("dead_letters", "UPDATE dead_letter SET replay_of = gen_random_uuid()"),
    ("dead_letters", "UPDATE dead_letter SET replay_of = dead_letter_id"),
    ("triggers", f"UPDATE trigger_key SET run_id = gen_random_uuid() WHERE run_id = '{COMPLETED}'"),
    ("requests", REQUEST.format(RUNNING, "cancelled", "now() - interval '1 min'")),
    ("sessions", "UPDATE worker_session SET expires_at = now() - interval '1 min'"),
    ("holders", "DELETE FROM worker_session"),
    ("holders", "UPDATE worker_session SET ended_at = now() - interval '1 min'"),
    ("holders", "DELETE FROM held_task; UPDATE task SET changed_at = now() - interval '1 h' WHERE status = 'running'"),
    ("sweeps", "UPDATE sweep_pass SET at = now() - interval '2 min' WHERE name = 'lost'"),
    ("sweeps", "UPDATE sweep_pass SET at = now() - interval '20 min' WHERE name = 'retention'"),
    ("ticks", "UPDATE watermark SET at = now() - interval '2 min'"),
    ("partitions", "DELETE FROM partition_owner WHERE partition = 1"),
    ("relay", "INSERT INTO relay_owner VALUES ('s', 'box/4', 1, now() - interval '1 min', pg_current_wal_lsn())"),
    ("slot", "INSERT INTO relay_owner VALUES ('s', 'box/4', 1, now(), pg_current_wal_lsn())"),
    ("schema", "DELETE FROM schema_migration"),
    ("timeline", "INSERT INTO timeline VALUES (1, 1, 2, 100000, now() - interval '6 d', NULL, 1)"),
]  # fmt: skip
"""(the check that must find it, how it is planted)."""
LEGITIMATE = [
    "INSERT INTO timeline VALUES (1, 1, 2, 100000, now(), now(), 0)",
    "INSERT INTO timeline VALUES (1, 1, 2, 100000, now() - interval '8 d', NULL, 1)",
    REQUEST.format(RUNNING, "cancelled", "now()"),
    "UPDATE sweep_pass SET at = now() - interval '5 min' WHERE name = 'retention'",
    UNTIL + f"INSERT INTO timer VALUES ('{ASKED}', 2, 1, 'wait', now() + '1 h')",
    PAUSE.format(1),
    PAUSE.format(1) + f"DELETE FROM timer; UPDATE task SET due_at = NULL, withheld = 'body' WHERE run_id = '{BACKOFF}'",
    f"DELETE FROM timer; UPDATE task SET status = 'queued', due_at = NULL, token = 2 WHERE run_id = '{BACKOFF}'",
    f"UPDATE approval SET status = 'approved', decided_at = now(), decided_by = 'expiry' WHERE run_id = '{ASKED}'; "
    + REQUEST.format(ASKED, "decided", "now()"),
    CHILD.format(NEW, "asked", "now()", "NULL"),
    CHILD.format(RUNNING, "started", "now()", "NULL"),
    LISTENS,
    LISTENS + KEPT.format("'b'"),
    LISTENS + POSTED,
    LATE + POSTED.replace("'a'", "'b'"),
    LATE + POSTED.replace("'1 d'", "'-1 s'"),
    LATE + POSTED + f"UPDATE posted_signal SET taken_as = '{RUNNING}'",
    LISTENS + KEPT.format("NULL").replace("paid", "lost"),
    TAKEN + OUTPUT % "00000000-0000-7000-8000-0000000000aa",
    KEPT.format("NULL").replace("kept", "sent")
    + REQUEST.format(ASKED, "signalled", "now()").replace(
        "gen_random_uuid()", "'00000000-0000-7000-8000-0000000000aa'"
    ),
    "UPDATE parked_task SET resolved_at = now(); " + REQUEST.format(PARKED, "resolved", "now()"),
    "UPDATE dead_letter SET status = 'replayed', closed_at = now(), replay_token = 3; "
    + REQUEST.format(FAILED, "replayed", "now()"),
    # A cancel overtook the replay, and a rerun of another task took away all that it had left behind.
    "UPDATE dead_letter SET status = 'replayed', created_at = now() - interval '1 h', closed_at = now(); "
    "UPDATE dead_letter SET replay_token = 3; "
    f"UPDATE history SET kind = 'cancelled' WHERE run_id = '{FAILED}' AND row_version = 1",
    f"UPDATE run SET status = 'needs_attention', attention = true WHERE run_id = '{ASKED}'; "
    + REQUEST.format(ASKED, "decided", "now() - interval '1 h'"),
    "DELETE FROM dead_letter; UPDATE task SET error = '{\"code\": \"REJECTED\"}' WHERE status = 'failed'",
    f"UPDATE task SET status = 'running', lookups = 1, token = 2, error = '{{}}', session_id = '{SESSION}' "
    f"WHERE run_id = '{PARKED}'; DELETE FROM parked_task; UPDATE run SET status = 'running' WHERE run_id = '{PARKED}'; "
    f"INSERT INTO held_task VALUES ('{PARKED}', 0, 2, '{SESSION}')",
]
"""What looks odd and is not: something is on its way."""


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres, database_template: str) -> Iterator[str]:
    create_database(postgres.dsn, "test_doctor", database_template)
    with psycopg.connect(postgres.dsn_of("test_doctor"), autocommit=True) as connection, connection.transaction():
        connection.execute(SOUND.encode())
    yield postgres.dsn_of("test_doctor")
    drop_database(postgres.dsn, "test_doctor")


@pytest.fixture
async def connection(database: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A sound database; what a test does in it is taken back."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        yield connection


LATELY = "UPDATE sweep_pass SET at = now(); UPDATE watermark SET at = now()"
"""The database is sound however long the tests before took."""


class _Undo(Exception):
    pass


async def diagnose(connection: psycopg.AsyncConnection[Any], harm: str = "", *, runs: int = ALL) -> dict[str, Check]:
    """What the doctor says with the harm done, which is undone afterwards."""
    checks: list[Check] = []
    try:
        async with connection.transaction():
            await connection.execute(LATELY.encode())
            if harm:
                await connection.execute(harm.encode())
            # Inside a transaction that has written, the isolation level stands; the checks are the same.
            checks += await _examine_here(connection, runs)
            raise _Undo
    except _Undo:
        pass
    return {check.name: check for check in checks}


async def _examine_here(connection: psycopg.AsyncConnection[Any], runs: int) -> list[Check]:
    class Here:
        """The connection, without the one statement that only a fresh transaction takes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

        async def execute(self, query: Any, *parameters: Any) -> Any:
            if "ISOLATION" not in str(query):
                return await connection.execute(query, *parameters)

    return await examine(Here(), runs=runs)  # type: ignore[arg-type]


HERE = {"relay", "server"}
"""There is no relay here, and the test server may lack wal_level=logical."""


JOINS = {"all": "all", "any": "any", "two": 2, "always": "always", "failed": "on_failure"}
JOINED = json.dumps({
    "name": "j",
    "tasks": {need: {"run": "t.x"} for need in "abc"}
    | {name: {"run": "t.x", "needs": ["a", "b", "c"], "join": join} for name, join in JOINS.items()},
})  # fmt: skip
ENDS = {
    "open": "'running', NULL", "completed": "'completed', NULL", "failed": """'failed', '{"code": "ERROR"}'""",
    "skipped": """'skipped', '{"code": "CONDITION_FALSE"}'""",
    "unreached": """'skipped', '{"code": "UPSTREAM_FAILED"}'""",
}  # fmt: skip


def is_decided(join: str | int, ends: tuple[str, ...]) -> bool:
    if "open" not in ends:
        return True
    completed, has_failed = ends.count("completed"), bool({"failed", "unreached"} & set(ends))
    return (join == "all" and has_failed) or completed >= {"any": 1, 2: 2}.get(join, 4)


async def test_a_join_that_is_decided_and_was_left_is_found_whatever_it_asks(connection: psycopg.AsyncConnection[Any]):
    harm = f"""
    INSERT INTO workflow_version (namespace, name, version, digest, definition)
      VALUES ('default', 'w', 2, 'j', '{JOINED}');"""
    left = 0
    for number, ends in enumerate(product(ENDS, repeat=3)):
        run = f"00000000-0000-7000-9000-{number:012}"
        harm += f"""
        INSERT INTO run (run_id, version_id, status, row_version, input)
          SELECT '{run}', max(version_id), 'running', 1, '{{}}' FROM workflow_version;"""
        harm += "".join(
            f"INSERT INTO task (run_id, task, token, status, error) VALUES ('{run}', {task}, 1, {ENDS[end]});"
            for task, end in enumerate(ends)
        )
        left += sum(is_decided(join, ends) for join in JOINS.values())
    assert (await diagnose(connection, harm))["joins"].count == left > 300


@pytest.mark.parametrize("runs", [ALL, 1_000])
async def test_a_sound_database_has_no_findings(connection: psycopg.AsyncConnection[Any], runs: int):
    checks = await diagnose(connection, runs=runs)
    assert [check for check in checks.values() if not check.ok and check.name not in HERE] == []
    assert {check.name for check in OF_RUNS} < checks.keys()
    assert all(checks[check.name].detail.startswith("6 runs ") for check in OF_RUNS)


@pytest.mark.parametrize(("name", "harm"), FAULTS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(FAULTS)])
async def test_a_planted_fault_is_found(connection: psycopg.AsyncConnection[Any], name: str, harm: str):
    check = (await diagnose(connection, harm))[name]
    assert not check.ok, check
    assert check.count >= 1
    assert check.hint, check
    assert "cannot be checked" not in check.detail


@pytest.mark.parametrize("harm", LEGITIMATE, ids=range(len(LEGITIMATE)))
async def test_what_is_on_its_way_is_no_finding(connection: psycopg.AsyncConnection[Any], harm: str):
    checks = await diagnose(connection, harm)
    assert [check for check in checks.values() if not check.ok and check.name not in HERE | {"history"}] == []


async def test_every_check_has_a_planted_fault(connection: psycopg.AsyncConnection[Any]):
    elsewhere = {"maps", "pools", "permits", "cancels"}
    assert set(await diagnose(connection)) - {"server", "clock"} - elsewhere == {name for name, _ in FAULTS}
    # Those are planted where there are some: test_maps.py, test_pools.py, test_limits.py, test_cleanup.py.


async def test_a_finding_has_at_most_three_examples(connection: psycopg.AsyncConnection[Any]):
    check = (await diagnose(connection, "UPDATE run SET row_version = row_version + 1"))["history"]
    assert check.count == 6
    assert check.detail.startswith("6 runs looked at; 6 wrong, such as ")
    assert check.detail.count(RUN) == 3


async def test_a_sample_looks_at_open_and_new_runs_and_says_how_many(connection: psycopg.AsyncConnection[Any]):
    many = """INSERT INTO run (run_id, version_id, status, row_version, input, finished_at)
              SELECT ('00000000-0001-7000-8000-' || lpad(n::text, 12, '0'))::uuid, (SELECT max(version_id) FROM run),
                     'failed', 1, '{}', now() FROM generate_series(1, 3000) AS n;
              INSERT INTO history (run_id, row_version, at, kind) SELECT run_id, 1, now(), 'started' FROM run
                ON CONFLICT DO NOTHING; ANALYZE run"""
    checks = await diagnose(connection, many, runs=5)
    looked_at = int(checks["history"].detail.split()[0])
    assert 5 + 4 <= looked_at <= 15  # the newest, the open ones, and up to five of all
    assert int((await diagnose(connection, many))["history"].detail.split()[0]) == 3006


async def test_a_statement_that_is_refused_fails_its_own_check_only(connection: psycopg.AsyncConnection[Any]):
    checks = await diagnose(connection, "DROP VIEW run_event; ALTER TABLE history RENAME COLUMN at TO moved_at")
    refused = {name for name, check in checks.items() if "cannot be checked" in check.detail}
    assert refused == {"ended", "dead_letters"}
    assert checks["statuses"].ok


def test_the_program_says_what_it_looked_at_and_its_exit_code_says_whether_all_is_well(database: str):
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "state.doctor", *options]
        environment = os.environ | {"HEADRACE_POSTGRES": database}
        folder = Path(__file__).parents[2]
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )

    done = run("--full")
    assert done.returncode == 1  # no relay
    assert "ok    statuses          6 runs derived again" in done.stdout
    assert "WRONG relay" in done.stdout
    report = json.loads(run("--json").stdout)
    partitions = next(check for check in report["checks"] if check["name"] == "partitions")
    assert [position["next_offset"] for position in partitions["positions"]] == [10] * 4


def test_the_examination_cannot_write(database: str):
    async def look() -> str:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
            said: list[str] = []
            original = connection.execute

            async def execute(query: Any, *parameters: Any, **more: Any) -> Any:
                cursor = await original(query, *parameters, **more)
                if "set_config" in str(query):
                    row = await (await original("SHOW transaction_read_only")).fetchone()
                    said.append(row[0] if row else "")
                return cursor

            connection.execute = execute  # type: ignore[method-assign]
            await examine(connection, runs=10)
            return said[0]

    import asyncio

    assert asyncio.run(look()) == "on"


# == the log ===========================================================================================================
def report(topic: str, topic_id: str, *offsets: int | None) -> dict[str, Any]:
    positions = [
        {"topic": topic, "partition": p, "next_offset": offset, "topic_id": topic_id}
        for p, offset in enumerate(offsets)
    ]
    return {
        "ok": True,
        "checks": [{"name": "partitions", "ok": True, "detail": "", "count": 0, "positions": positions}],
    }


def test_offsets_ahead_of_the_log_are_found(kafka: ApacheKafka, topic_prefix: str):
    from confluent_kafka import Producer, TopicCollection
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topic = f"{topic_prefix}.events"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 2, 1)]).values():
        made.result(10)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(3):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(10) == 0
    topic_id = str(admin.describe_topics(TopicCollection([topic]))[topic].result(10).topic_id)

    found = examine_offsets(report(topic, topic_id, 3, 0), kafka.bootstrap)
    assert found is not None
    assert (found["ok"], found["detail"]) == (True, "2 partitions are not ahead of their logs")
    found = examine_offsets(report(topic, topic_id, 4, None), kafka.bootstrap)
    assert found is not None
    assert (found["ok"], found["count"]) == (False, 1)
    assert f"{topic}/0 4 of 3" in found["detail"]
    found = examine_offsets(report(topic, "another log", 4, None), kafka.bootstrap)
    assert found is not None
    assert found["ok"]


def test_without_kafka_offsets_are_not_judged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.cli.doctor.CONNECT_SECONDS", 0.3)
    found = examine_offsets(report("t", "id", 4), "127.0.0.1:9")
    assert found is not None
    assert found["ok"]
    assert found["detail"].startswith("not looked at")
    assert examine_offsets({"ok": True, "checks": [{"name": "clock", "ok": True}]}, "127.0.0.1:9") is None


@contextmanager
def relay_at_work(database: str) -> Generator[None]:
    """Commit positions and tell the slot, over and over, in the order of a relay."""
    ended = threading.Event()

    def work(connection: psycopg.Connection[Any]) -> None:
        while not ended.is_set():
            connection.execute("UPDATE relay_owner SET acked_lsn = pg_current_wal_lsn()")
            connection.execute("SELECT pg_replication_slot_advance(slot, acked_lsn) FROM relay_owner")

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('doctor', 'pgoutput')")
        connection.execute("INSERT INTO relay_owner VALUES ('doctor', 'box/4', 1, now(), pg_current_wal_lsn())")
        thread = threading.Thread(target=work, args=(connection,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            connection.execute("DELETE FROM relay_owner")
            connection.execute("SELECT pg_drop_replication_slot('doctor')")


async def test_a_slot_that_moves_while_the_doctor_looks_is_not_ahead(
    database: str, connection: psycopg.AsyncConnection[Any]
):
    with relay_at_work(database):
        for _ in range(10):
            found = {check.name: check for check in await examine(connection, runs=1)}["slot"]
            assert "bytes behind" in found.detail
            assert "further" not in found.detail
