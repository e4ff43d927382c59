"""The crash-point sweep: each named point of RELIABILITY.md §3, before, after, and after but the reply is lost, on a
real Kafka and a real Postgres, while runs of four kinds are under way.

One set of processes lives through all of it. A point is armed by a file, so that only the process that meets it ends;
the supervisor starts it again.
"""

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import psycopg
import pytest

from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.kafka import ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.engine import engine_command, engine_environment
from headrace.stack import Stack
from headrace.supervisor import Child, Supervisor
from state.migrate import migrations
from tests.faults import effect_ledger
from tests.faults.points import ABSENT, CRASHED, POINTS, Place

INJECT = Path(__file__).parent / "inject"
LEASE_SECONDS = 2.0
HARD = ("loss", "death")
"""What a worker is killed for, beside the crash itself."""
FIRE_SECONDS = 30.0
END_SECONDS = 60.0
NAMED = {f"CP{number:02}" for number in range(1, 21)}

WORKFLOWS: Mapping[str, dict[str, Any]] = {
    "linear": {
        "a": {"run": "crash.quick"},
        "b": {"run": "crash.quick", "needs": "a"},
        "c": {"run": "crash.quick", "needs": "b", "exclusive": True},
    },
    "fan": {
        "first": {"run": "crash.quick"},
        "left": {"run": "crash.slow", "needs": "first"},
        "middle": {"run": "crash.quick", "needs": "first"},
        "right": {"run": "crash.quick", "needs": "first"},
        "last": {"run": "crash.quick", "needs": ["left", "middle", "right"]},
    },
    "retry": {
        "flaky": {"run": "crash.flaky", "retry": {"delay": "200ms", "jitter": 0}},
        "after": {"run": "crash.quick", "needs": "flaky"},
    },
    "ask": {
        "before": {"run": "crash.quick"},
        "gate": {"needs": "before", "approval": {"title": "Go on?"}},
        "after": {"run": "crash.quick", "needs": "gate"},
    },
    "broken": {"only": {"run": "crash.flaky", "retry": 1}},
}
KINDS = ("linear", "fan", "retry", "ask")
"""Those that end well by themselves; `broken` becomes a dead letter."""
EFFECTS = {name: sum(task.get("run") is not None for task in tasks.values()) for name, tasks in WORKFLOWS.items()}


FLAWS = {
    "a task that did not complete": """
        SELECT run_id, task, status FROM task WHERE run_id = ANY(%s::uuid[]) AND status <> 'completed'""",
    "a task with two results": """
        SELECT run_id, task FROM attempt WHERE run_id = ANY(%s::uuid[]) AND outcome = 'completed'
        GROUP BY 1, 2 HAVING count(*) > 1""",
    "a history with a gap": """
        SELECT r.run_id, r.row_version, array_agg(DISTINCT e.row_version) FROM run r JOIN run_event e USING (run_id)
        WHERE r.run_id = ANY(%s::uuid[]) GROUP BY 1, 2
        HAVING array_agg(DISTINCT e.row_version) <> ARRAY(SELECT generate_series(1, r.row_version))""",
    "attempts with a gap": """
        SELECT run_id, task, array_agg(attempt ORDER BY attempt) FROM attempt WHERE run_id = ANY(%s::uuid[])
        GROUP BY 1, 2 HAVING array_agg(attempt ORDER BY attempt) <> ARRAY(SELECT generate_series(1, max(attempt)))""",
    "a timer left": "SELECT run_id, task FROM timer WHERE run_id = ANY(%s::uuid[])",
    "a request left": "SELECT run_id, kind FROM inbox WHERE run_id = ANY(%s::uuid[]) AND applied_at IS NULL",
}
"""What no run may show once all have ended."""


class Fault(NamedTuple):
    point: str
    label: str
    when: str

    @property
    def place(self) -> Place:
        return POINTS[self.point].places[self.label]

    def __str__(self) -> str:
        return f"{self.point}-{self.label}-{self.when}"


FAULTS = [
    Fault(name, label, when)
    for name, point in POINTS.items()
    for label, place in point.places.items()
    for when in place.whens
    if place.need != "migration"
]


class InjectingSupervisor(Supervisor):
    """Puts the injection into every process it starts, under the process' own name."""

    armed: Path

    def add(self, name: str, *args: Any, env: Mapping[str, str] | None = None, **kwargs: Any) -> Child:
        return super().add(name, *args, env=injected(env or {}, armed=str(self.armed), process=name), **kwargs)


def injected(env: Mapping[str, str], **what: Any) -> dict[str, str]:
    """An environment with the injection in it: the folder before all else on the path, and what is to happen."""
    path = os.pathsep.join([str(INJECT), *filter(None, [env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))])])
    return {**env, "PYTHONPATH": path, "HEADRACE_INJECT": json.dumps(what)}


class Stand:
    """The processes under test, the client that starts runs, and the checker."""

    def __init__(self, stack: Stack, armed: Path, ledger: Path) -> None:
        self.stack, self.armed, self.ledger = stack, armed, ledger
        self.client = httpx.Client(base_url=stack.api_url, headers=stack.headers, timeout=10)
        self.orders = 0

    # -- the client
    def ask(self, method: str, path: str, body: Any = None, *, taken: tuple[int, ...] = (200, 201, 202)) -> Any:
        """Ask until it is answered, as a client does that repeats what it has no answer to."""

        def answer() -> Any:
            try:
                found = self.client.request(method, path, json=body)
            except httpx.TransportError:
                return None
            assert found.status_code in taken or found.status_code >= 500, found.text
            return found if found.status_code in taken else None

        return until(answer, f"{method} {path} is answered").json()

    def start(self, workflow: str, key: str, **more: Any) -> str:
        run: dict[str, Any] = self.ask("POST", f"/workflows/{workflow}/runs", {"input": {"n": 1, **more}, "key": key})
        return str(run["run_id"])

    def approve_all(self) -> None:
        for approval in self.ask("GET", "/approvals")["items"]:
            self.ask("POST", f"/approvals/{approval['approval_id']}/approve", taken=(200, 409))

    def query(self, sql: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(self.stack.postgres, autocommit=True, connect_timeout=5) as connection:
            return connection.execute(sql.encode(), parameters).fetchall()

    def ended(self, run_ids: list[str]) -> bool:
        self.approve_all()
        statuses = "SELECT count(*) FROM run WHERE run_id = ANY(%s::uuid[]) AND finished_at IS NOT NULL"
        return bool(self.query(statuses, run_ids)[0][0] == len(run_ids))

    # -- the fault
    def arm(self, fault: Fault) -> None:
        self.disarm()
        self.orders += 1
        order = {
            "id": self.orders, "point": fault.point, "place": fault.label, "when": fault.when,
            "process": fault.place.process, "nth": fault.place.nth,
        }  # fmt: skip
        part = self.armed.with_suffix(".part")
        part.write_text(json.dumps(order))
        part.rename(self.armed)

    def disarm(self) -> None:
        self.armed.unlink(missing_ok=True)
        Path(f"{self.armed}.fired").unlink(missing_ok=True)

    def has_fired(self) -> bool:
        return Path(f"{self.armed}.fired").exists()

    def fire(self, fault: Fault, run_ids: list[str]) -> None:
        """Do what the place needs beside runs, and wait until it has been met."""
        match fault.place.need:
            case "stop":
                names = self.stack.supervisor.names()
                self.stack.supervisor.restart(next(name for name in names if name.startswith(fault.place.process)))
            case "loss":
                os.killpg(self.stack.pids()[self.busy_worker(run_ids)], signal.SIGKILL)
            case "death":
                self.stack.kill9_body(self.busy_worker(run_ids))
            case "replay":
                for letter in self.ask("GET", "/dead-letters")["items"]:
                    self.ask("POST", f"/dead-letters/{letter['dead_letter_id']}/replay", taken=(202, 409))
            case "bulk replay":
                chosen = {"filter": "workflow:broken", "rate": 1000}
                self.ask("POST", "/dead-letters/replay", chosen, taken=(202, 409))
            case _:
                pass
        until(self._has_fired_meanwhile, f"{fault} fires", FIRE_SECONDS)

    def _has_fired_meanwhile(self) -> bool:
        self.approve_all()
        return self.has_fired()

    def busy_worker(self, run_ids: list[str]) -> str:
        """One that runs a task of these runs, and has said so."""
        held = """
            SELECT worker FROM held_task h JOIN worker_session s USING (session_id)
            JOIN task t ON (t.run_id, t.task, t.token) = (h.run_id, h.task, h.token) AND t.status = 'running'
            WHERE s.ended_at IS NULL AND t.run_id = ANY(%s::uuid[]) LIMIT 1"""
        return str(until(lambda: self.query(held, run_ids), "a worker lists what it runs")[0][0])

    def wait_ready(self, *processes: str) -> None:
        """Until every process of these kinds does its work: only from then on a stop of it goes in order."""
        for process in processes:
            until(partial(self._is_ready, process), f"{process} is there")

    def _is_ready(self, process: str) -> bool:
        wanted = [name for name in self.stack.supervisor.names() if name.startswith(process)]
        pids = {name: pid for name, pid in self.stack.pids().items() if name in wanted}
        if len(pids) < len(wanted):
            return False
        match process:
            case "streams":
                owners = self.query("SELECT DISTINCT split_part(owner, '/', 2)::int FROM partition_owner")
                return {pid for (pid,) in owners} == set(pids.values())
            case "relay":
                owners = self.query(
                    "SELECT split_part(owner, ':', 2)::int FROM relay_owner WHERE acked_lsn IS NOT NULL"
                )
                return {pid for (pid,) in owners} == set(pids.values())
            case "worker":
                live = """
                    SELECT worker, extract(epoch FROM max(started_at)) FROM worker_session WHERE ended_at IS NULL
                    GROUP BY 1"""
                began: dict[str, float] = dict(self.query(live))
                return all(began.get(name, 0) > psutil.Process(pid).create_time() for name, pid in pids.items())
            case _:
                return bool(self.ask("GET", "/health"))

    # -- the checker
    def check(self, run_ids: Mapping[str, str], losses: int) -> None:
        """Each run completed once, each effect happened, attempts and history have no gap, and nothing is left open."""
        ids = list(run_ids.values())
        statuses = self.query("SELECT run_id::text, status::text FROM run WHERE run_id = ANY(%s::uuid[])", ids)
        assert dict(statuses) == dict.fromkeys(ids, "completed")
        assert len(self.query("SELECT key FROM trigger_key WHERE run_id = ANY(%s::uuid[])", ids)) == len(ids)
        for what, sql in FLAWS.items():
            assert self.query(sql, ids) == [], what
        calls = effect_ledger.calls(self.ledger, ids)
        assert len(calls) == sum(EFFECTS[workflow.partition("/")[0]] for workflow in run_ids)
        assert max(calls.values()) <= 1 + losses


def until(fact: Callable[[], Any], what: str, seconds: float = END_SECONDS) -> Any:
    """Wait for a fact and answer it."""
    give_up_at = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < give_up_at, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[ApacheKafka]:
    """Its groups notice a dead member within a second, which is most of what a crash of an agent costs."""
    with ApacheKafka(fetch_jars(), session_timeout_ms=1_000, heartbeat_interval_ms=200) as broker:
        yield broker


@pytest.fixture(scope="module")
def stand(
    own_kafka: ApacheKafka,
    postgres: EmbeddedPostgres,
    database_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("crash")
    effect_ledger.create(folder / "ledger.db")
    name = f"crash_{uuid.uuid4().hex[:12]}"
    create_database(postgres.dsn, name, database_template)
    stack = Stack(
        Path(__file__).parent / "crash_app.py",
        kafka=own_kafka.bootstrap,
        postgres=postgres.dsn_of(name),
        data=folder / "data",
        workers=2,
        lease_seconds=LEASE_SECONDS,
        prefix=name,
        log_level="warning",
        settings={"HEADRACE_SLOT": name, "HEADRACE_RELAY_LEASE": "2", "LEDGER": str(folder / "ledger.db")},
    )
    stack.supervisor = InjectingSupervisor({}, stack._note)
    stack.supervisor.armed = folder / "armed.json"
    with pytest.MonkeyPatch.context() as patch, stack:
        patch.setattr("headrace.supervisor.BACKOFF_SECONDS", (0.1,))  # these processes die on purpose
        stand = Stand(stack, folder / "armed.json", folder / "ledger.db")
        for workflow, tasks in WORKFLOWS.items():
            stand.ask("POST", "/workflows", {"name": workflow, "tasks": tasks})
        stack.wait_workers(2)
        stand.wait_ready("streams", "relay", "worker")
        yield stand
        stand.client.close()
    drop_database(postgres.dsn, name)


def test_every_crash_point_has_its_place_or_a_reason():
    assert POINTS.keys() | ABSENT.keys() >= NAMED
    assert not POINTS.keys() & ABSENT.keys()


@pytest.mark.parametrize("fault", [f for f in FAULTS if "replay" not in f.place.need], ids=str)
def test_a_crash_point_loses_nothing_and_repeats_nothing(stand: Stand, fault: Fault):
    seconds = {"seconds": 3.0} if fault.place.need in HARD else {}
    runs = {f"{name}/0": stand.start(name, f"{fault}/{name}/0", **seconds) for name in ("fan", "retry")}
    stand.arm(fault)
    runs |= {f"{name}/1": stand.start(name, f"{fault}/{name}/1", **seconds) for name in KINDS}
    stand.fire(fault, [runs["fan/1"]])  # begun last: it still runs when somebody is killed for it
    until(lambda: stand.ended(list(runs.values())), f"all runs end after {fault}")
    stand.disarm()
    stand.check(runs, losses=2 if fault.place.need in HARD else 1)
    stand.wait_ready(fault.place.process, *(["worker"] if fault.place.need in HARD else []))


@pytest.mark.parametrize("fault", [f for f in FAULTS if "replay" in f.place.need], ids=str)
def test_a_replay_that_dies_half_way_is_made_once(stand: Stand, fault: Fault):
    runs = {f"broken/{n}": stand.start("broken", f"{fault}/{n}") for n in range(3)}
    ids = list(runs.values())
    until(lambda: stand.ended(ids), "all are dead letters")
    stand.arm(fault)
    stand.fire(fault, ids)
    completed = "SELECT count(*) FROM run WHERE run_id = ANY(%s::uuid[]) AND status = 'completed'"
    until(lambda: stand.query(completed, ids) == [(3,)], f"all are replayed after {fault}")
    stand.disarm()
    stand.check(runs, losses=0)
    letters = "SELECT run_id::text, status FROM dead_letter WHERE run_id = ANY(%s::uuid[])"
    assert sorted(stand.query(letters, ids)) == [(run_id, "replayed") for run_id in sorted(ids)]
    replays = "SELECT count(*) FROM history WHERE run_id = ANY(%s::uuid[]) AND kind = 'replayed'"
    assert stand.query(replays, ids) == [(3,)]
    stand.wait_ready(fault.place.process)


def run_migration(dsn: str, **what: Any) -> int:
    env = injected(engine_environment({"HEADRACE_POSTGRES": dsn}), process="migrate", **what)
    return subprocess.run(engine_command("state.migrate"), env=env, timeout=60, check=False).returncode


@pytest.mark.parametrize("when", POINTS["CP18"].places["statement"].whens)
def test_a_migration_killed_at_any_statement_is_finished_by_the_next(empty_database: str, when: str):
    crashes = 0
    while run_migration(empty_database, crash="CP18", when=when, nth=crashes + 1) == CRASHED:
        crashes += 1
        with psycopg.connect(empty_database, autocommit=True) as connection:
            there = "SELECT to_regclass('schema_migration') IS NOT NULL, to_regclass('run') IS NOT NULL"
            has_records, has_runs = connection.execute(there).fetchall()[0]
            recorded = has_records and connection.execute("SELECT count(*) FROM schema_migration").fetchall()[0][0]
        assert has_runs == bool(recorded)
    assert crashes > 4
    with psycopg.connect(empty_database) as connection:
        names = connection.execute("SELECT name FROM schema_migration ORDER BY 1").fetchall()
    assert [name for (name,) in names] == [migration.name for migration in migrations()]
