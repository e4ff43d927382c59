"""An attempt ends without a word, in the middle of its effect: what each policy makes of it, on real services."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.embedded.kafka import ApacheKafka
from headrace.stack import Stack


def _workflow(name: str, **options: Any) -> dict[str, Any]:
    body = {"run": "effects.charge", "retry": {"attempts": 3, "delay": 0.1}, **options}
    return {"name": name, "tasks": {"charge": body}}


WORKFLOWS = [
    _workflow("idempotent"),
    _workflow("manual", effect="manual"),
    _workflow("reconcile", effect="reconcile", lookup="effects.find_charge"),
    _workflow("exclusive", exclusive=True),
]


class Engine:
    def __init__(self, stack: Stack, ledger: Path) -> None:
        self.http, self._ledger = httpx.Client(base_url=stack.api_url, headers=stack.headers, timeout=10), ledger

    def start(self, workflow: str, **input: Any) -> str:
        answer = self.http.post(f"/workflows/{workflow}/runs", json={"input": input})
        return str(answer.raise_for_status().json()["run_id"])

    def task(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/tasks/{run_id}.charge").raise_for_status().json()
        return found

    def status(self, run_id: str) -> str:
        return str(self.task(run_id)["status"])

    def outcomes(self, run_id: str) -> list[str]:
        attempts = self.http.get(f"/tasks/{run_id}.charge/attempts").raise_for_status().json()["items"]
        return [attempt["outcome"] for attempt in attempts]

    def effects(self, run_id: str) -> int:
        return self._ledger.read_text().count(run_id)

    def resolve(self, run_id: str, outcome: str, **more: Any) -> httpx.Response:
        return self.http.post(f"/tasks/{run_id}.charge/resolve", json={"outcome": outcome, **more})

    def parked(self, run_id: str) -> list[dict[str, Any]]:
        items = self.http.get("/parked-tasks").raise_for_status().json()["items"]
        return [item for item in items if item["run_id"] == run_id]


@pytest.fixture(scope="module")
def engine(kafka: ApacheKafka, database_of_module: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("effects")
    ledger = folder / "ledger"
    ledger.touch()
    prefix = f"t{time.time_ns():x}"
    with Stack(
        Path(__file__).parent / "effects_app.py",
        kafka=kafka.bootstrap,
        postgres=database_of_module,
        data=folder / "data",
        lease_seconds=5.0,
        prefix=prefix,
        log_level="warning",
        settings={"HEADRACE_SLOT": prefix, "LEDGER": str(ledger)},
    ) as stack:
        made = Engine(stack, ledger)
        for workflow in WORKFLOWS:
            made.http.post("/workflows", json=workflow).raise_for_status()
        stack.wait_workers(1)
        yield made
        made.http.close()


def until(fact: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    give_up_at = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < give_up_at, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


def test_every_policy_runs_a_body_that_ends_well_once(engine: Engine):
    runs = [engine.start(workflow["name"]) for workflow in WORKFLOWS]
    for run_id in runs:
        until(lambda run_id=run_id: engine.status(run_id) == "completed", "completed")
        assert (engine.outcomes(run_id), engine.effects(run_id)) == (["completed"], 1)


def test_an_idempotent_effect_is_simply_tried_again(engine: Engine):
    run_id = engine.start("idempotent", dies="after")
    until(lambda: engine.status(run_id) == "completed", "completed")
    assert (engine.outcomes(run_id), engine.effects(run_id)) == (["lost", "completed"], 2)


@pytest.mark.parametrize(
    ("dies", "charged_by", "outcomes"),
    [("after", "the lookup", ["lost"]), ("before", "the body", ["lost", "completed"])],
)
def test_a_lookup_tells_whether_to_try_again(engine: Engine, dies: str, charged_by: str, outcomes: list[str]):
    run_id = engine.start("reconcile", dies=dies)
    until(lambda: engine.status(run_id) == "completed", "completed")
    assert engine.task(run_id)["output"] == {"charged_by": charged_by}
    assert (engine.outcomes(run_id), engine.effects(run_id)) == (outcomes, 1)


def test_a_lookup_that_cannot_tell_leaves_it_to_a_person(engine: Engine):
    run_id = engine.start("reconcile", dies="before", lookup="unknown")
    until(lambda: len(engine.parked(run_id)) == 1, "parked")
    assert engine.resolve(run_id, "did_not_happen").status_code == 200
    until(lambda: engine.status(run_id) == "completed", "completed")
    assert engine.effects(run_id) == 1


def test_a_person_says_that_it_happened(engine: Engine):
    run_id = engine.start("manual", dies="after")
    until(lambda: len(engine.parked(run_id)) == 1, "parked")
    assert engine.task(run_id)["error"]["code"] == "AMBIGUOUS"
    assert engine.resolve(run_id, "happened", output={"charged_by": "hand"}, comment="seen").status_code == 200
    assert engine.resolve(run_id, "fail").status_code == 409
    until(lambda: engine.status(run_id) == "completed", "completed")
    assert engine.task(run_id)["output"] == {"charged_by": "hand"}
    assert (engine.effects(run_id), engine.parked(run_id)) == (1, [])
    assert engine.resolve(run_id, "fail").status_code == 409


def test_a_person_says_that_it_did_not_happen(engine: Engine):
    run_id = engine.start("manual", dies="before")
    until(lambda: len(engine.parked(run_id)) == 1, "parked")
    assert engine.resolve(run_id, "did_not_happen").status_code == 200
    until(lambda: engine.status(run_id) == "completed", "completed")
    assert (engine.outcomes(run_id), engine.effects(run_id)) == (["lost", "completed"], 1)


def test_a_person_gives_a_parked_task_up(engine: Engine):
    run_id = engine.start("manual", dies="after")
    until(lambda: len(engine.parked(run_id)) == 1, "parked")
    assert engine.resolve(run_id, "fail", output=1).status_code == 422
    assert engine.resolve(run_id, "fail").status_code == 200
    until(lambda: engine.status(run_id) == "failed", "failed")
    letters = engine.http.get("/dead-letters", params={"filter": f"run:{run_id}"}).json()["items"]
    assert [letter["run_id"] for letter in letters].count(run_id) == 1
    assert engine.effects(run_id) == 1


def test_a_cancel_takes_a_parked_task_with_it(engine: Engine):
    run_id = engine.start("manual", dies="after")
    until(lambda: len(engine.parked(run_id)) == 1, "parked")
    assert engine.http.post(f"/runs/{run_id}/cancel", json={}).status_code == 202
    until(lambda: engine.status(run_id) == "cancelled", "cancelled")
    assert engine.parked(run_id) == []


def test_an_exclusive_body_that_dies_is_run_again_after_the_first_is_gone(engine: Engine):
    run_id = engine.start("exclusive", dies="before")
    until(lambda: engine.status(run_id) == "completed", "completed")
    assert (engine.outcomes(run_id), engine.effects(run_id)) == (["lost", "completed"], 1)


def test_a_task_that_is_not_parked_cannot_be_resolved(engine: Engine):
    run_id = engine.start("manual")
    until(lambda: engine.status(run_id) == "completed", "completed")
    assert engine.resolve(run_id, "happened").status_code == 409
    assert engine.http.post("/tasks/nothing/resolve", json={"outcome": "fail"}).status_code == 404
