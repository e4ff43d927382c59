"""The suite proves itself: bugs planted on purpose are found.

Each scenario is a part of the suite. It is green on our code, and red with the bug of its case in it.
"""

import asyncio
import gc
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from connectors import outbox_source, slot
from connectors.ownership import Ownership
from connectors.replication import ReplicationStream
from headrace.errors import UnavailableError
from headrace.messages import Due, Lost, Started
from state.outbox import PUBLICATION, OutboxMode, Record, statements
from state.pipe import Pipe
from tests.faults.inject import fault_injection
from tests.faults.planted.plants import ABSENT, PLANTS
from tests.faults.points import POINTS, SETTINGS
from tests.integration import test_run_agent as run_agent
from tests.integration import test_sweeps as sweeps
from tests.unit.machine_model import DOUBTFUL, HOPELESS, NONCE, Trial, task

SOON_SECONDS = 4.0
NAMED = {f"B{number:02}" for number in (1, 8, 12, 21, 22, 27, 31, 36, 46, 48, 77, 83, 92, 95, 96, 97, 100)}
"""The list in RELIABILITY.md §6."""


@contextmanager
def planted(name: str) -> Generator[None]:
    """With a bug in this process."""
    undo: list[Callable[[], None]] = []
    try:
        for target, change in PLANTS[name].changes:
            module, _, path = target.partition(":")
            undo.append(fault_injection.change(import_module(module), path, change))
        yield
    finally:
        for back in reversed(undo):
            back()


@contextmanager
def agent_on(database: str) -> Generator[run_agent.Engine]:
    engine = run_agent.Engine(database)
    try:
        yield engine
    finally:
        engine.close()


async def handed_out_twice(engine: run_agent.Engine) -> tuple[str, list[Any]]:
    """A run whose first task was lost and is with another worker: the old token is 1, the current one 2."""
    await engine.lease()
    run_id = await engine.start()
    lost = (run_id, Lost(0, 1, engine.nonce(run_id, 0, 1)))
    started = (run_id, Started(0, 2, engine.nonce(run_id, 0, 2), session=str(uuid4())))
    await engine.apply(lost, started)
    tasks = engine.tasks(run_id)
    assert tasks == [("running", 1, 2)]
    return run_id, tasks


# == the scenarios ====================================================================================================
async def b01_a_sweep_that_lost_the_race_changes_nothing(database: str) -> None:
    with agent_on(database) as engine:
        run_id, tasks = await handed_out_twice(engine)
        await engine.apply((run_id, Lost(0, 1, engine.nonce(run_id, 0, 1))))
        assert engine.tasks(run_id) == tasks


async def b08_a_failure_under_an_old_token_changes_nothing(database: str) -> None:
    with agent_on(database) as engine:
        run_id, tasks = await handed_out_twice(engine)
        await engine.apply(engine.failed(run_id, token=1))
        assert engine.tasks(run_id) == tasks
        assert engine.query("SELECT count(*) FROM attempt") == [(0,)]


async def b12_a_process_that_lost_its_partition_writes_nothing(database: str) -> None:
    with agent_on(database) as engine:
        await engine.lease()
        await run_agent.test_b12_a_process_that_lost_its_partition_writes_nothing(engine, database)


async def b22_a_result_and_the_next_command_are_one_transaction(database: str) -> None:
    """The agent dies right behind its first COMMIT."""
    collect = Pipe._collect

    def die_behind_the_commit(pipe: Pipe) -> None:
        collect(pipe)
        raise SystemExit

    with agent_on(database) as engine, pytest.MonkeyPatch.context() as patch:
        await engine.lease()
        run_id = await engine.start()
        with own_slot(database, "b22"):
            patch.setattr(Pipe, "_collect", die_behind_the_commit)
            with pytest.raises(SystemExit):
                await engine.agent(engine.batch(engine.succeeded(run_id)))
            assert engine.tasks(run_id) == [("completed", 1, 1), ("queued", 0, 1)]
            said = engine.query(
                "SELECT data FROM pg_logical_slot_get_binary_changes('b22', NULL, NULL, 'proto_version', '1', "
                "'publication_names', 'headrace_outbox', 'messages', 'true')"
            )
        assert any(b"headrace.commands.default" in data for (data,) in said)


async def b27_a_timer_whose_wake_up_was_dropped_fires(database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        yard = sweeps.Yard(database, connection)
        await yard.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", yard.slot)
        await sweeps.test_a_due_timer_is_said_once_and_again_only_when_nobody_applied_it(yard)


async def b31_work_goes_on_after_postgres_ended_every_connection(database: str) -> None:
    with agent_on(database) as engine:
        await engine.lease()
        run_id = await engine.start()
        await engine.apply((None, b"x"))
        engine.query(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        )
        await asyncio.wait_for(engine.agent(engine.batch(engine.succeeded(run_id))), SOON_SECONDS)
        assert engine.tasks(run_id)[0] == ("completed", 1, 1)


def b48_a_join_with_a_failed_need_is_decided(database: str) -> None:
    trial = Trial(task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c"))
    assert trial.succeed("a")
    assert trial.fail("b", HOPELESS)
    assert trial.succeed("c")
    assert trial.states["d"] == "skipped"
    assert trial.status == "failed"


async def b83_a_result_that_postgres_refuses_ends_as_bad_result(database: str) -> None:
    with agent_on(database) as engine:
        await engine.lease()
        await run_agent.test_b29_a_result_that_postgres_refuses_ends_as_bad_result_and_the_others_go_on(engine)


async def b92_a_record_whose_application_failed_is_applied_later(database: str) -> None:
    run, calls = Pipe.run, list[int]()

    def fail_once(pipe: Pipe, given: Any) -> None:
        calls.append(len(given))
        if len(calls) == 1:
            raise UnavailableError("Postgres: no answer")
        run(pipe, given)

    with agent_on(database) as engine, pytest.MonkeyPatch.context() as patch:
        await engine.lease()
        run_id = await engine.start()
        patch.setattr(Pipe, "run", fail_once)
        await engine.apply(engine.succeeded(run_id))
        assert engine.tasks(run_id)[0] == ("completed", 1, 1)


async def b95_a_topic_made_anew_is_read_from_its_beginning(database: str) -> None:
    with agent_on(database) as engine:
        await engine.lease()
        await run_agent.test_another_log_starts_at_its_beginning(engine)


def b96_a_transaction_that_commits_late_is_published_late(database: str) -> None:
    def insert(connection: psycopg.Connection[Any], value: bytes) -> None:
        for statement, parameters in statements([Record("t", b"key", value)], OutboxMode.TABLE):
            psycopg.RawCursor(connection).execute(statement, parameters)

    def read(stream: ReplicationStream) -> list[bytes]:
        return [
            record.value
            for transaction in stream.transactions(SOON_SECONDS)
            if transaction.changes
            for record in outbox_source.read_records(transaction, [])
        ]

    with psycopg.connect(database) as early, psycopg.connect(database) as late, own_slot(database, "b96"):
        stream = ReplicationStream(database, "b96", PUBLICATION, 0, "b96")
        try:
            insert(early, b"1")
            insert(late, b"2")
            late.commit()
            first = wait_for(lambda: read(stream))
            early.commit()
            assert [*first, *wait_for(lambda: read(stream))] == [b"2", b"1"]
        finally:
            stream.close()


def b97_a_slot_made_anew_is_noticed(database: str) -> None:
    ownership = Ownership(database, "b97", "one", 5.0)
    with psycopg.connect(database, autocommit=True) as connection:
        try:
            with own_slot(database, "b97"):
                assert ownership.claim()
                slot.prepare(connection, ownership)
                connection.execute(
                    "UPDATE relay_owner SET gap_at = NULL, acked_lsn = confirmed_flush_lsn FROM pg_replication_slots"
                )
                connection.execute("SELECT pg_drop_replication_slot('b97')")
                connection.execute("SELECT pg_logical_emit_message(true, 'headrace', 'committed in between')")
                connection.execute("SELECT pg_create_logical_replication_slot('b97', 'pgoutput')")
                slot.prepare(connection, ownership)
                assert connection.execute("SELECT gap_at IS NOT NULL FROM relay_owner").fetchall() == [(True,)]
        finally:
            ownership.release()
            ownership.close()


def x01_an_ambiguous_end_of_a_manual_task_is_a_persons_question(database: str) -> None:
    trial = Trial(task("a", effect="manual"))
    assert trial.claim("a")
    assert trial.fail("a", DOUBTFUL)
    assert trial.states["a"] == "waiting"


def x02_a_repeated_result_counts_once(database: str) -> None:
    trial = Trial(task("a"), task("b", "a"))
    assert trial.succeed("a")
    assert not trial.succeed("a")


def x03_a_timer_that_is_not_due_changes_nothing(database: str) -> None:
    trial = Trial(task("a"))
    assert trial.fail("a")
    before = trial.state("a")
    assert not trial.tell(Due(0, trial.token("a"), NONCE, "backoff"))
    assert trial.state("a") == before


@contextmanager
def own_slot(database: str, name: str) -> Generator[None]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        try:
            yield
        finally:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots "
                "WHERE slot_name = %s AND active_pid IS NOT NULL",
                [name],
            )
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


def wait_for(look: Callable[[], list[bytes]]) -> list[bytes]:
    """What the first look that finds something finds; nothing after a while."""
    give_up_at = time.monotonic() + 2 * SOON_SECONDS
    while time.monotonic() < give_up_at:  # a look may end early, at a word from the server that brings nothing
        if found := look():
            return found
    return []


Scenario = Callable[[str], Awaitable[None] | None]
SCENARIOS: Mapping[str, Scenario] = {
    name.partition("_")[0].upper(): scenario
    for name, scenario in list(globals().items())
    if name[0] in "bx" and name[1:3].isdigit()
}


async def run(scenario: Scenario, database: str) -> None:
    done = scenario(database)
    if inspect.isawaitable(done):
        await done


# == the proof ========================================================================================================
def test_every_bug_on_the_list_is_planted_or_has_a_reason():
    assert PLANTS.keys() | ABSENT.keys() >= NAMED
    assert not PLANTS.keys() & ABSENT.keys()
    assert PLANTS.keys() == SCENARIOS.keys()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_without_the_bug_its_scenario_is_green(name: str, database: str):
    await run(SCENARIOS[name], database)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what fails midway closes nothing
@pytest.mark.parametrize("name", SCENARIOS)
async def test_with_the_bug_planted_its_scenario_is_red(name: str, database: str):
    with planted(name), pytest.raises((AssertionError, TimeoutError)):
        await run(SCENARIOS[name], database)
    gc.collect()  # here, so that no later test is told


# == the switch =======================================================================================================
def ask_child(inject: Mapping[str, Any], code: str) -> subprocess.CompletedProcess[str]:
    folder = Path(fault_injection.__file__).parent
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    env = {**os.environ, "PYTHONPATH": path, "HEADRACE_INJECT": json.dumps(inject)}
    return subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_plant_is_a_switch_in_the_environment_of_a_child_process():
    code = "import sys, headrace.machine; print(sys.modules['headrace.machine.advance']._failed.__name__)"
    assert ask_child({"plant": "B08"}, code).stdout == "unchecked\n"
    assert ask_child({"plant": "B27"}, code).stdout == "_failed\n"


@pytest.mark.parametrize(
    "inject", [{"plant": "B00"}, {"crash": "CP00"}, {"armed": "/nowhere", "plant": "B00"}, {"nothing": 1}]
)
def test_an_injection_that_makes_no_sense_ends_the_process(inject: Mapping[str, Any]):
    told = ask_child(inject, "print('went on')")
    assert (told.returncode, told.stdout) == (fault_injection.REFUSED, "")
    assert "HEADRACE_INJECT" in told.stderr


def test_a_name_that_is_gone_ends_the_process(tmp_path: Path):
    code = "import fault_injection as f, sys; sys.meta_path.insert(0, f.Hook({'string': [('gone', lambda _: 1)]}));"
    told = ask_child({"plant": "B08"}, f"{code} sys.modules.pop('string', None); import string; print('went on')")
    assert (told.returncode, told.stdout) == (fault_injection.REFUSED, "")
    assert "string:gone cannot be wrapped" in told.stderr


@pytest.mark.parametrize(
    "target",
    sorted(
        {place.target for point in POINTS.values() for place in point.places.values()}
        | SETTINGS.keys()
        | {target for plant in PLANTS.values() for target, _ in plant.changes}
    ),
)
def test_what_is_wrapped_exists(target: str):
    module, _, path = target.partition(":")
    fault_injection.change(import_module(module), path, lambda before: before)()
