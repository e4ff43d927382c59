"""Large results through a whole engine: the store has them, rows and records have references, retention ends both."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg
import pytest
from uuid_utils import uuid7

from headrace.embedded.kafka import ApacheKafka
from headrace.object_store import ObjectStore, references
from headrace.stack import Stack
from streams.objects import Objects
from tests.faults.starts import eventually, query

SIZE = 2_000_000
WORKFLOW: dict[str, Any] = {
    "name": "large",
    "tasks": {
        "make": {"run": "objects.make", "with": {"size": "${{ input.size }}"}},
        "measure": {
            "run": "objects.measure",
            "needs": "make",
            "with": {"doc": "${{ tasks.make.output }}", "unit": "${{ input.unit }}"},
        },
    },
    "output": {"doc": "${{ tasks.make.output }}", "length": "${{ tasks.measure.output }}"},
}


class Site(NamedTuple):
    stack: Stack
    http: httpx.Client
    folder: Path
    dsn: str


@pytest.fixture(scope="module")
def site(kafka: ApacheKafka, database_of_module: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("objects")
    prefix = f"t{time.time_ns():x}"
    with (
        Stack(
            Path(__file__).parent / "objects_app.py",
            kafka=kafka.bootstrap,
            postgres=database_of_module,
            data=data,
            prefix=prefix,
            log_level="warning",
            settings={"HEADRACE_SLOT": prefix},
        ) as stack,
        httpx.Client(base_url=stack.api_url, headers=stack.headers, timeout=10) as http,
    ):
        http.post("/workflows", json=WORKFLOW).raise_for_status()
        stack.wait_workers(1)
        yield Site(stack, http, data / "objects", database_of_module)


def ended(site: Site, size: int, unit: str = "characters") -> dict[str, Any]:
    input = {"size": size, "unit": unit}
    started = site.http.post("/workflows/large/runs", json={"input": input}).raise_for_status().json()
    eventually(lambda: read(site, started["run_id"])["finished_at"], "the run has ended", 60)
    return read(site, started["run_id"])


def completed(site: Site, size: int) -> dict[str, Any]:
    run = ended(site, size)
    assert run["status"] == "completed"
    return run


def read(site: Site, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = site.http.get(f"/runs/{run_id}").raise_for_status().json()
    return run


def test_a_large_result_is_kept_once_and_read_by_its_hash(site: Site):
    run = completed(site, SIZE)
    assert run["output"]["length"] == SIZE
    reference = run["output"]["doc"]["$object"]
    assert reference["bytes"] == SIZE + len('{"text":""}')
    (size,) = query(site.dsn, "SELECT max(pg_column_size(output)) FROM attempt WHERE run_id = %s", run["run_id"])[0]
    assert size < 300
    path = f"/runs/{run['run_id']}/objects/{reference['sha256']}"
    answer = site.http.get(path).raise_for_status()
    assert answer.json() == {"text": "x" * SIZE}
    assert answer.headers["etag"] == f'"{reference["sha256"]}"'
    assert [file.name for file in (site.folder / "runs" / run["run_id"]).iterdir()] == [f"{reference['sha256']}.json"]


def test_a_small_result_stays_where_it_was(site: Site):
    run = completed(site, 10)
    assert run["output"] == {"doc": {"text": "x" * 10}, "length": 10}
    assert not (site.folder / "runs" / run["run_id"]).exists()


def test_an_object_that_is_not_there_is_not_found(site: Site):
    run = completed(site, SIZE)
    good, other = run["output"]["doc"]["$object"]["sha256"], "0" * 64
    for run_id, sha256, status in (
        (run["run_id"], other, 404),
        (str(uuid7()), good, 404),
        (run["run_id"], good.upper(), 422),
        (run["run_id"], "..%2f..%2fkey", 404),
    ):
        assert site.http.get(f"/runs/{run_id}/objects/{sha256}").status_code == status
    (site.folder / "runs" / run["run_id"] / f"{good}.json").write_text("{}")
    answer = site.http.get(f"/runs/{run['run_id']}/objects/{good}")
    assert (answer.status_code, answer.json()["code"]) == (404, "HR-1015")


def test_an_input_that_refers_to_a_large_value_can_be_edited_and_replayed(site: Site):
    run = ended(site, SIZE, unit="ells")
    assert run["status"] == "failed"
    (letter,) = (each for each in site.http.get("/dead-letters").json()["items"] if each["run_id"] == run["run_id"])
    given = site.http.get(f"/dead-letters/{letter['dead_letter_id']}").raise_for_status().json()["input"]
    assert list(given["doc"]) == ["$object"]
    body = json.dumps({"input": {**given, "unit": "characters"}}, indent=2)
    headers = {"content-type": "application/json"}
    site.http.post(f"/dead-letters/{letter['dead_letter_id']}/replay", content=body, headers=headers).raise_for_status()
    eventually(lambda: read(site, run["run_id"])["status"] == "completed", "the replay has helped", 60)
    assert read(site, run["run_id"])["output"]["length"] == SIZE


def test_a_caller_cannot_send_a_reference(site: Site):
    forged = {"size": {"$object": {"sha256": "0" * 64, "bytes": 1}}}
    answer = site.http.post("/workflows/large/runs", json={"input": forged})
    assert (answer.status_code, answer.json()["code"]) == (422, "HR-1009")


# == the sweep =========================================================================================================
async def purge(dsn: str, objects: Objects) -> int:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        removed = await objects.purge(connection)
        assert await objects.purge(connection) == 0, "the pass is over"
    return removed


async def test_objects_go_after_their_runs_and_never_on_a_guess(database: str, tmp_path: Path):
    store = ObjectStore(tmp_path.as_uri())
    objects = Objects(store)
    hour = 3600 * 10**9
    removed, young = str(uuid7(nanoseconds=time.time_ns() - 48 * hour)), str(uuid7())
    kept = str(uuid7(nanoseconds=time.time_ns() - 72 * hour))
    query(
        database,
        "WITH w AS (INSERT INTO workflow (namespace, name, latest_version) VALUES ('default', 'w', 1)), v AS ("
        "INSERT INTO workflow_version (namespace, name, version, digest, definition) "
        "VALUES ('default', 'w', 1, 'd', '{}') RETURNING version_id) "
        "INSERT INTO run (run_id, version_id, status, row_version, input) "
        "SELECT %s, version_id, 'running', 1, '{}' FROM v",
        kept,
    )
    raw = {run_id: store.put(run_id, b"[1]") for run_id in (removed, kept, young)}
    (tmp_path / "runs" / "not-a-run").mkdir()
    (tmp_path / "runs" / "not-a-run" / "x.json").touch()
    assert await purge(database, objects) == 0, "a database that never removed anything proves nothing"
    query(database, "INSERT INTO watermark VALUES ('retention', now() - interval '1 day')")
    assert await purge(database, objects) == 1
    assert {name for page in store.pages() for name in page} == {kept, young, "not-a-run"}
    assert [len(list(references(raw[run_id]))) for run_id in (kept, young)] == [1, 1]
    assert await purge(database, objects) == 0
