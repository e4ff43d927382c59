"""Cases on the whole set of processes: workers that are killed, frozen and woken, agents that are killed."""

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from headrace.embedded.kafka import ApacheKafka
from headrace.embedded.process import children_of
from headrace.stack import Stack

LEASE_SECONDS = 6.0
PATIENT_SECONDS = 30.0
"""A lease longer than agents are away that are started again: a worker that hears nothing for so long gives up by
itself, and rightly."""
"""On top of a lease, until a loss is found and said."""
RUNS = 16
SLOTS = 40
AGAIN = {"attempts": 3, "delay": 0, "jitter": 0}


def workflow(name: str, **task: Any) -> dict[str, Any]:
    return {"name": name, "tasks": {"t": {"run": "cases.held", **task}}}


WORKFLOWS = [
    workflow("held", retry=AGAIN),
    workflow("once", retry=1),
    {
        "name": "timed",
        "tasks": {
            "t": {"run": "cases.held", "retry": AGAIN, "timeout": "1s"},
            "u": {"run": "cases.echo", "needs": ["t"], "with": "${{ tasks.t.output }}"},
        },
    },
]


@dataclass
class Case:
    """The processes, and what they left behind."""

    stack: Stack
    folder: Path
    http: httpx.Client

    def start(self, workflow: str, then: str, gate: str) -> str:
        given = {"input": {"then": then, "gate": gate}}
        return str(self.http.post(f"/workflows/{workflow}/runs", json=given).raise_for_status().json()["run_id"])

    def open(self, gate: str) -> None:
        (self.folder / gate).touch()

    def query(self, sql: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(self.stack.postgres, autocommit=True) as connection:
            return connection.execute(sql.encode(), parameters).fetchall()

    def running(self) -> dict[str, str]:
        """The worker of every first task that is recorded as running."""
        return dict(
            self.query(
                "SELECT run_id::text, worker FROM task JOIN worker_session USING (session_id) "
                "WHERE status = 'running' AND task = 0"
            )
        )

    def attempts(self, run_id: str, task: int = 0) -> list[str]:
        rows = self.query("SELECT outcome FROM attempt WHERE run_id = %s AND task = %s ORDER BY attempt", run_id, task)
        return [outcome for (outcome,) in rows]

    def status(self, run_id: str) -> str:
        return str(self.query("SELECT status::text FROM run WHERE run_id = %s", run_id)[0][0])

    def noted(self, what: str, run_id: str) -> list[int]:
        """In which attempts of a run this was done."""
        lines = [line.split() for line in (self.folder / "ledger").read_text().splitlines()]
        return [int(attempt) for done, key, attempt in lines if done == what and key.startswith(run_id)]


@contextmanager
def case_on(kafka: ApacheKafka, database: str, folder: Path, **options: Any) -> Generator[Case]:
    prefix = f"t{time.time_ns():x}"
    (folder / "ledger").touch()
    with (
        Stack(
            Path(__file__).with_name("cases_app.py"),
            kafka=kafka.bootstrap,
            postgres=database,
            data=folder / "data",
            slots=SLOTS,
            partitions=6,
            prefix=prefix,
            log_level="warning",
            settings={"HEADRACE_SLOT": prefix, "CASES": str(folder)},
            **options,
        ) as stack,
        httpx.Client(base_url=stack.api_url, headers=stack.headers, timeout=10) as http,
    ):
        for definition in WORKFLOWS:
            http.post("/workflows", json=definition).raise_for_status()
        stack.wait_workers(options["workers"])
        yield Case(stack, folder, http)


@pytest.fixture
def patient(kafka: ApacheKafka, database: str, tmp_path: Path) -> Iterator[Case]:
    with case_on(kafka, database, tmp_path, workers=1, lease_seconds=PATIENT_SECONDS) as case:
        yield case


@pytest.fixture(scope="module")
def case(kafka: ApacheKafka, database_of_module: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("cases")
    with case_on(kafka, database_of_module, folder, workers=3, lease_seconds=LEASE_SECONDS) as case:
        yield case


def until(fact: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    give_up_at = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < give_up_at, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


def signal_worker(stack: Stack, name: str, number: signal.Signals) -> None:
    """To the process that runs the bodies, and to its parent, which would speak for it."""
    parent = stack.pids()[name]
    for pid in (parent, *children_of(parent)):
        os.kill(pid, number)


def test_b05_agents_that_are_killed_and_come_back_begin_no_second_attempt(patient: Case) -> None:
    case = patient
    run_id = case.start("held", "effect", "b05")
    until(lambda: run_id in case.running(), "the task runs")
    assert case.stack.kill9("streams-1")
    ((before,),) = case.query("SELECT renewed_at FROM worker_session")
    heard = "SELECT renewed_at > %s AND renewed_at > w.at - interval '5 s' FROM worker_session, watermark w"
    until(lambda: case.query(heard, before) == [(True,)], "the agents are back and have read what waited")
    swept = "SELECT count(*) FROM sweep_pass WHERE name IN ('lost', 'sessions') AND at > %s + interval '5 s'"
    until(lambda: case.query(swept, before) == [(2,)], "the sweeps have looked")
    assert (case.attempts(run_id), case.noted("effect", run_id)) == ([], [])
    case.open("b05")
    until(lambda: case.status(run_id) == "completed", "completed")
    assert (case.attempts(run_id), case.noted("effect", run_id)) == (["completed"], [1])


def test_b06_what_follows_a_task_out_of_time_begins_once_and_from_the_second_attempt(case: Case) -> None:
    run_id = case.start("timed", "ok", "b06")
    until(lambda: case.status(run_id) == "completed", "completed")
    case.open("b06")  # the first attempt goes on only now
    assert case.attempts(run_id) == ["failed", "completed"]
    assert case.noted("echo", run_id) == [1]
    assert case.http.get(f"/tasks/{run_id}.u").json()["output"] == "attempt 2"


@dataclass(frozen=True)
class Aftermath:
    """Of one worker killed with its host, and one frozen for longer than its lease and woken."""

    case: Case
    runs: dict[str, list[str]]
    killed: set[str]
    frozen: set[str]

    def of(self, kind: str, among: set[str]) -> list[str]:
        found = [run_id for run_id in self.runs[kind] if run_id in among]
        assert found, "the worker held none of them"
        return found


@pytest.fixture(scope="module")
def aftermath(case: Case) -> Aftermath:
    kinds = {"fails": ("held", "fail"), "acts": ("held", "effect"), "acts once": ("once", "effect")}
    runs = {kind: [case.start(*told, "woken") for _ in range(RUNS)] for kind, told in kinds.items()}
    everyone = {run_id for of_kind in runs.values() for run_id in of_kind}
    until(lambda: everyone <= case.running().keys(), "all run")
    holders = case.running()
    killed, frozen = [{r for r in everyone if holders[r] == name} for name in ("worker-1", "worker-2")]
    signal_worker(case.stack, "worker-2", signal.SIGSTOP)
    case.stack.kill9("worker-1")
    until(lambda: all(case.attempts(run_id)[:1] == ["lost"] for run_id in killed), "the killed one's are lost")
    until(lambda: all(case.attempts(run_id)[:1] == ["lost"] for run_id in frozen), "the frozen one's are lost")
    case.open("woken")
    until(lambda: everyone.isdisjoint(case.running().keys()), "the others have ended")
    signal_worker(case.stack, "worker-2", signal.SIGCONT)
    woken = {"fails": "failed", "acts": "refused", "acts once": "refused"}
    until(
        lambda: all(1 in case.noted(word, r) for kind, word in woken.items() for r in runs[kind] if r in frozen),
        "every body that was frozen has gone on",
    )
    until(lambda: all(case.status(run_id) in ("completed", "failed") for run_id in everyone), "all ended")
    return Aftermath(case, runs, killed, frozen)


def test_b08_a_failure_reported_by_a_worker_that_was_frozen_damages_nothing(aftermath: Aftermath) -> None:
    case = aftermath.case
    for run_id in aftermath.of("fails", aftermath.frozen):
        assert case.noted("failed", run_id) == [1]
        assert (case.attempts(run_id), case.status(run_id)) == (["lost", "completed"], "completed")
    live = "SELECT count(*) FROM worker_session WHERE worker = 'worker-2' AND ended_at IS NULL"
    until(lambda: case.query(live) == [(1,)], "it works on under another session")


def test_b16_the_effect_of_a_body_that_was_frozen_happens_once(aftermath: Aftermath) -> None:
    case = aftermath.case
    for run_id in aftermath.of("acts", aftermath.frozen):
        assert 1 in case.noted("refused", run_id)
        (attempt,) = case.noted("effect", run_id)  # on a starved machine the second may lose its lease as well
        assert attempt > 1
    for run_id in aftermath.of("acts once", aftermath.frozen):
        assert case.noted("effect", run_id) == []


def test_b17_what_a_worker_held_is_handed_out_again_though_it_came_back_under_its_name(aftermath: Aftermath) -> None:
    case = aftermath.case
    for run_id in aftermath.of("acts", aftermath.killed):
        assert (case.attempts(run_id), case.noted("effect", run_id)) == (["lost", "completed"], [2])
    lives = (
        "SELECT count(*) > 1, count(*) FILTER (WHERE ended_at IS NULL) FROM worker_session WHERE worker = 'worker-1'"
    )
    until(lambda: case.query(lives) == [(True, 1)], "it came back")


def test_b20_the_only_attempt_of_a_lost_worker_fails_its_task(aftermath: Aftermath) -> None:
    case = aftermath.case
    for run_id in aftermath.of("acts once", aftermath.killed | aftermath.frozen):
        assert (case.attempts(run_id), case.status(run_id)) == (["lost"], "failed")
        (letter,) = case.http.get("/dead-letters", params={"filter": f"run:{run_id}"}).json()["items"]
        assert letter["reason"] == "WORKER_LOST"


def test_b42_a_worker_that_was_frozen_leaves_no_second_process_behind(aftermath: Aftermath) -> None:
    stack = aftermath.case.stack
    assert len(children_of(stack.pids()["worker-2"])) == 1
    run_id = aftermath.case.start("held", "effect", "woken")
    until(lambda: aftermath.case.status(run_id) == "completed", "completed")
