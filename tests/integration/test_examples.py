"""The examples do what they say, on a real Kafka and a real Postgres; the demo does it on the embedded parts."""

import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self, TypeVar

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.client import Client
from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.kafka import ApacheKafka
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import ConflictError, DefinitionError, NonRetryable
from headrace.registry import Registry
from headrace.stack import Stack
from headrace.testing import Harness
from headrace.views import DeadLetter, Run, Task

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDERS = 12
WAIT_SECONDS = 90.0
DEMO_SECONDS = 240.0
T = TypeVar("T")


class Site(NamedTuple):
    """The examples' workers and the engine, up and running."""

    stack: Stack
    client: Client
    folder: Path
    warehouse: str
    """libpq URL of the database that the flights are loaded into."""


def until(fact: Callable[[], T | None], seconds: float = WAIT_SECONDS) -> T:
    """Wait for a fact and return it."""
    give_up_at = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < give_up_at, f"{fact} did not come true in {seconds:g} s"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module", autouse=True)
def examples_on_path() -> Iterator[None]:
    """As in a worker, which puts the folder of its file there."""
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def site(
    kafka: ApacheKafka, postgres: EmbeddedPostgres, database_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """One for the module: the examples do not meet, and starting it takes longer than most of them."""
    name, folder = f"examples_{uuid.uuid4().hex[:12]}", tmp_path_factory.mktemp("examples")
    for database, template in ((name, database_template), (f"{name}_flights", "template1")):
        create_database(postgres.dsn, database, template)
    settings = {
        "HEADRACE_SLOT": name,
        "ORDERS_DATA": str(folder / "orders"),
        "FLIGHTS_POSTGRES": postgres.dsn_of(f"{name}_flights"),
    }
    stack = Stack(
        EXAMPLES / "app.py",
        kafka=kafka.bootstrap,
        postgres=postgres.dsn_of(name),
        prefix=name,
        workers=2,
        settings=settings,
    )
    try:
        with stack, Client(stack.api_url, stack.token, actor="ada", roles=("release-managers", "sales")) as client:
            stack.wait_workers(2)
            yield Site(stack, client, folder, settings["FLIGHTS_POSTGRES"])
    finally:
        for database in (name, f"{name}_flights"):
            drop_database(postgres.dsn, database)


def demo_module() -> ModuleType:
    return importlib.import_module("demo")


def run_of(client: Client, run_id: str) -> Run:
    return client.wait(run_id, WAIT_SECONDS)


def task_of(client: Client, run: Run, name: str) -> Task:
    return next(task for task in client.tasks(run.run_id) if task.name == name)


def outcomes(client: Client, run: Run, task: str) -> list[tuple[int, str]]:
    return [(attempt.attempt, attempt.outcome) for attempt in client.attempts(f"{run.run_id}.{task}")]


# == orders ============================================================================================================
@pytest.fixture(scope="module")
def orders(site: Site, kafka: ApacheKafka) -> Iterator[list[dict[str, Any]]]:
    """Orders that were written to a topic: some twice, the first with a wrong amount, and two records that are none."""
    shop = importlib.import_module("orders.shop")
    topic = f"shop-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    site.client.publish((EXAMPLES / "orders" / "workflow.yaml").read_text())
    demo = demo_module()
    assert demo.subscribe(site.stack, topic=topic)
    placed = shop.make_orders(ORDERS)
    wrong = {**placed[0], "amount_cents": "49.00 EUR"}
    records = shop.write_orders([wrong, *placed[1:]])
    records.insert(2, shop.Record("", shop.GARBAGE, []))
    records.insert(5, shop.write_binary(placed[1], "viewed-1", shop.VIEWED))
    shop.send(kafka.bootstrap, topic, records)
    yield placed
    admin.delete_topics([topic])[topic].result(30)


def order_runs(site: Site) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in site.client.runs(workflow="orders", limit=200).items:
        found.setdefault(run.input["order_id"], []).append(run)
    return found


def wait_for_orders(site: Site, orders: list[dict[str, Any]]) -> dict[str, Run]:
    """One run for each, over; fails when an order has two."""

    def all_over() -> dict[str, list[Run]] | None:
        found = order_runs(site)
        is_over = len(found) == len(orders) and all(run.is_over for runs in found.values() for run in runs)
        return found if is_over else None

    found = until(all_over)
    assert {order: len(runs) for order, runs in found.items()} == {order["order_id"]: 1 for order in orders}
    return {order: runs[0] for order, runs in found.items()}


def parked(client: Client, kind: str, workflow: str | None = None) -> DeadLetter | None:
    letters = client.dead_letters(status="parked")
    return next((each for each in letters if each.kind == kind and workflow in (None, each.workflow)), None)


def test_each_order_runs_once_and_is_charged_once(site: Site, orders: list[dict[str, Any]]) -> None:
    runs = wait_for_orders(site, orders)
    right = [run for order, run in runs.items() if order != orders[0]["order_id"]]
    assert {run.status for run in right} == {"completed"}
    assert outcomes(site.client, right[0], "charge") == [(1, "failed"), (2, "failed"), (3, "completed")]
    world = importlib.import_module("orders.outside").Outside(site.folder / "orders").account()
    assert world.orders_charged_twice == 0
    assert world.calls >= 2 * len(right)


def test_an_unreadable_record_is_set_aside_and_its_partition_goes_on(site: Site, orders: list[dict[str, Any]]) -> None:
    letter = until(lambda: parked(site.client, "record"))
    assert letter.topic is not None
    assert letter.topic.startswith("shop-")
    assert (letter.partition, letter.offset) != (None, None)
    assert "JSON" in letter.reason
    wait_for_orders(site, orders)
    site.client.discard(letter.dead_letter_id, "not one of ours")
    assert parked(site.client, "record") is None


def test_a_wrong_order_is_repaired_and_completes(site: Site, orders: list[dict[str, Any]]) -> None:
    run = wait_for_orders(site, orders)[orders[0]["order_id"]]
    assert run.status == "failed"
    assert task_of(site.client, run, "validate").attempt == 1, "nobody tries again what cannot get better"
    assert task_of(site.client, run, "charge").status == "skipped"
    letter = until(lambda: parked(site.client, "task", "orders"))
    assert (letter.run_id, letter.task) == (run.run_id, "validate")
    site.client.replay(letter.dead_letter_id, input=orders[0])
    with pytest.raises(ConflictError):
        site.client.replay(letter.dead_letter_id, input=orders[0])
    until(lambda: site.client.run(run.run_id).status == "completed")
    world = importlib.import_module("orders.outside").Outside(site.folder / "orders").account()
    assert (world.charges, world.parcels, world.mails) == (ORDERS,) * 3
    assert world.cents == sum(order["amount_cents"] for order in orders)


# == flights ===========================================================================================================
@pytest.fixture(scope="module")
def direct() -> dict[str, Any]:
    """The totals, by carrier, computed without a workflow."""
    totals: dict[str, Any] = importlib.import_module("flights_etl.direct").compute()
    return totals


def test_the_flights_totals_equal_a_direct_computation(site: Site, direct: dict[str, Any]) -> None:
    build: Callable[[list[str]], Any] = importlib.import_module("flights_etl.workflow").build_workflow
    site.client.publish(build(sorted(direct)))
    run = run_of(site.client, site.client.start("flights_etl", {"folder": str(site.folder / "flights")}).run_id)
    assert run.status == "completed"
    report = run.outputs["report"]
    assert report["flights"] == 336_776
    assert report["carriers"].keys() == direct.keys()
    for carrier, totals in direct.items():
        for name, number in totals.items():
            assert math.isclose(report["carriers"][carrier][name], number, rel_tol=1e-9), (carrier, name)
    with psycopg.connect(site.warehouse) as connection:
        assert connection.execute("SELECT count(*) FROM flight").fetchone() == (336_776,)


def test_data_with_other_carriers_than_the_graph_are_refused(site: Site, direct: dict[str, Any]) -> None:
    build: Callable[[list[str]], Any] = importlib.import_module("flights_etl.workflow").build_workflow
    site.client.publish(build(sorted(direct)[1:]))
    run = run_of(site.client, site.client.start("flights_etl", {"folder": str(site.folder / "flights")}).run_id)
    assert run.status == "failed"
    assert task_of(site.client, run, "load").status == "skipped"


def test_the_flights_graph_is_as_wide_as_the_data() -> None:
    build: Callable[[list[str]], Any] = importlib.import_module("flights_etl.workflow").build_workflow
    workflow = build(["AA", "UA"])
    assert list(workflow.tasks) == ["extract", "validate", "transform_AA", "transform_UA", "load", "report"]
    with pytest.raises(DefinitionError):
        build(["A A"])


class Calm:
    """A context that lets its body work."""

    def __init__(self, run_id: str, token: int) -> None:
        self.run_id, self.token = run_id, token

    def heartbeat(self, details: object = None) -> None:
        """Nothing to stop for."""


class Killed(BaseException):
    pass


class Deadly(Calm):
    """A context whose body dies at its second heartbeat, as under SIGKILL."""

    beats = 0

    def heartbeat(self, details: object = None) -> None:
        self.beats += 1
        if self.beats == 2:
            raise Killed


def test_extraction_is_the_same_after_a_crash_and_after_a_repetition(tmp_path: Path) -> None:
    extract: Any = importlib.import_module("flights_etl.app").extract
    with pytest.raises(Killed):
        extract(Deadly("run", 1), tmp_path)
    assert not (tmp_path / "parts").exists()
    first = extract(Calm("run", 2), tmp_path)
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
    assert extract(Calm("run", 3), tmp_path) == first
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()} == written
    assert first.rows == 336_776
    assert len(first.parts) == 16


def test_loading_twice_leaves_each_flight_once(tmp_path: Path) -> None:
    warehouse_module = importlib.import_module("flights_etl.warehouse")
    warehouse = warehouse_module.Warehouse(None, tmp_path / "flights.sqlite")
    flights = [
        warehouse_module.Flight("AA", "2013-01-01", "JFK", "MIA", "0", "2", "33", "160", "1089"),
        warehouse_module.Flight("AA", "2013-01-02", "JFK", "MIA", "1", "", "", "", "1089"),
    ]
    assert [warehouse.replace("run", flights) for _ in range(2)] == [2, 2]
    expected = {"flights": 2, "cancelled": 1, "departure_delay": 2.0, "arrival_delay": 33.0, "miles": 2178}
    assert warehouse.totals("run") == {"AA": expected}


# == documents =========================================================================================================
def test_a_blank_page_is_scanned_again_and_replayed_alone(site: Site, tmp_path: Path) -> None:
    scanner, client = importlib.import_module("documents.scanner"), site.client
    client.publish((EXAMPLES / "documents" / "workflow.yaml").read_text())
    scanner.scan(tmp_path / "scans", blank=(3,))
    given = {"document": "INV-2041", "scans": str(tmp_path / "scans"), "folder": str(tmp_path / "kept")}
    run = run_of(client, client.start("documents", given).run_id)
    assert (run.status, task_of(client, run, "validate").status) == ("failed", "skipped")
    letter = until(lambda: parked(client, "task", "documents"))
    assert (letter.run_id, letter.task) == (run.run_id, "read.2")
    assert "nothing to read" in letter.error["message"]
    again = scanner.scan_page(tmp_path / "again.png", 3)
    client.replay(letter.dead_letter_id, input={"number": 3, "image": str(again)})
    until(lambda: client.run(run.run_id).status == "completed")
    pages = [outcomes(client, run, f"read.{page}") for page in range(4)]
    once = [(1, "completed")]
    assert pages == [once, once, [(1, "failed"), (2, "completed")], once], "no other page was read again"
    output = client.run(run.run_id).output
    assert (output["total_cents"], output["customer"]) == (scanner.TOTAL_CENTS, "C-1042")
    record = json.loads(Path(output["file"]).read_text())
    assert [what for what, _ in record["positions"]] == [each.what for page in scanner.PAGES for each in page]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (("Total: 765.25", "Total: 765.52"), "do not add up"),
        (("Footrest: 39.75", "Footrest: 89.75"), "do not add up"),
        (("Page 2 of 4", "Page 3 of 4"), "page 2 of 4 does not say so"),
        (("Invoice INV-2041\nPage 4", "Invoice INV-2014\nPage 4"), "2 invoices"),
    ],
)
def test_pages_that_were_read_wrongly_are_no_invoice(spoil: tuple[str, str], why: str, tmp_path: Path) -> None:
    bodies, scanner = importlib.import_module("documents.app"), importlib.import_module("documents.scanner")
    pages = []
    for number in range(1, 5):
        text = tmp_path / f"{number}.txt"
        text.write_text("\n".join(scanner.write_lines(number)).replace(*spoil))
        pages.append(bodies.Page(number=number, text=text, lines=1))
    with pytest.raises(NonRetryable, match=why):
        bodies.validate(pages)


def test_taking_the_images_in_again_makes_no_second_copy(tmp_path: Path) -> None:
    bodies, scanner = importlib.import_module("documents.app"), importlib.import_module("documents.scanner")
    scanner.scan(tmp_path / "scans")
    first = bodies.upload(tmp_path / "scans", tmp_path / "kept", "INV-1")
    assert bodies.upload(tmp_path / "scans", tmp_path / "kept", "INV-1") == first
    assert len(list((tmp_path / "kept" / "images").iterdir())) == len(scanner.PAGES)


# == release ===========================================================================================================
def start_release(site: Site, folder: Path, version: str) -> Run:
    """Started, and past its checks: it waits for a person."""
    site.client.publish((EXAMPLES / "release" / "workflow.yaml").read_text())
    run = site.client.start("release", {"version": version, "folder": str(folder)})
    until(lambda: site.client.run(run.run_id).status == "waiting")
    return site.client.run(run.run_id)


def test_a_release_is_deployed_once_a_person_approves(site: Site, tmp_path: Path) -> None:
    run = start_release(site, tmp_path, "1.2.0")
    assert not (tmp_path / "current").exists()
    done = {task.name for task in site.client.tasks(run.run_id) if task.status == "completed"}
    assert done == {"build", "test", "secrets", "licences", "calls"}
    approval = next(each for each in site.client.approvals() if each.run_id == run.run_id)
    assert site.client.approve(approval.approval_id, "looks good").decided_by == "ada"
    run = run_of(site.client, run.run_id)
    assert run.status == "completed"
    assert run.outputs == {"smoke": {"status": "ok", "version": "1.2.0"}}
    greeting = subprocess.run(
        [sys.executable, tmp_path / "current" / "app.pyz", "Ada"], capture_output=True, text=True, check=True
    )
    assert greeting.stdout == "Hello, Ada!\n"


def test_a_rejected_release_deploys_nothing(site: Site, tmp_path: Path) -> None:
    run = start_release(site, tmp_path, "1.3.0")
    approval = next(each for each in site.client.approvals() if each.run_id == run.run_id)
    site.client.reject(approval.approval_id, "not on a Friday")
    assert run_of(site.client, run.run_id).status == "failed"
    assert task_of(site.client, run, "deploy").status == "skipped"
    assert not (tmp_path / "current").exists()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("find_secrets", 'password = "hunter2hunter2"'),
        ("find_unsafe_calls", "subprocess.run('ls', shell=True)"),
        ("find_unsafe_calls", "eval(input())"),
        ("test", "raise SystemExit(3)"),
    ],
)
def test_a_check_refuses_what_it_is_there_for(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = importlib.import_module("release.app")
    source = tmp_path / "greeter"
    source.mkdir()
    for file in release.SOURCE.glob("*.py"):
        (source / file.name).write_text(file.read_text())
    with (source / "greeting.py").open("a") as file:
        file.write(f"\n\nimport subprocess\n{line}\n")
    monkeypatch.setattr(release, "SOURCE", source)
    built = release.build("1.0.0", tmp_path)
    with pytest.raises(NonRetryable):
        getattr(release, name)(Path(built.archive))


# == settlement ========================================================================================================
@pytest.fixture
def settlements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.setenv("SETTLEMENT_DATA", str(tmp_path))
    bodies, registry = importlib.import_module("settlement.app"), Registry()
    for name in ("hold", "release", "assess", "waive", "settle", "find", "reverse", "confirm", "record"):
        registry.task(f"settlement.{name}")(getattr(bodies, name))
    with Harness((EXAMPLES / "settlement" / "workflow.yaml").read_text(), registry) as harness:
        yield harness


def payment(payee: str, cents: int) -> dict[str, Any]:
    return {"payment": {"id": "P-1", "payer": "Ada", "payee": payee, "cents": cents}}


def ledger_of(folder: Path) -> Any:
    return importlib.import_module("settlement.ledger").Ledger(folder)


def test_a_small_payment_needs_nobody(settlements: Harness, tmp_path: Path) -> None:
    settlements.crash_next("settle", after_its_effect=True)
    run = settlements.start(payment("Grace", 4_900))
    settlements.run_until_idle()
    assert (run.status, run.tasks["agreed"], run.output) == ("completed", "skipped", {"receipt": "settle-P-1"})
    assert ledger_of(tmp_path).balances() == {"Ada": -4_900, "Grace": 4_900}, "looked up, and not settled twice"
    assert ledger_of(tmp_path).audited() == ["P-1"]


def test_a_large_payment_is_settled_once_two_of_three_agree(settlements: Harness, tmp_path: Path) -> None:
    run = settlements.start(payment("Grace", 250_000))
    assert run.question("agreed").title == "Pay 2500 EUR to Grace?"
    run.approve("agreed", by="ada")
    assert (run.status, ledger_of(tmp_path).booked("P-1")) == ("waiting", ["hold"])
    run.approve("agreed", by="grace")
    assert (run.status, ledger_of(tmp_path).booked("P-1")) == ("completed", ["hold", "settle"])


def test_a_payment_that_is_refused_gives_back_what_was_held(settlements: Harness, tmp_path: Path) -> None:
    run = settlements.start(payment("Grace", 250_000))
    run.reject("agreed", by="alan")
    settlements.run_until_idle()
    assert (run.status, ledger_of(tmp_path).booked("P-1")) == ("compensated", ["hold", "release"])
    assert ledger_of(tmp_path).balances() == {}


def test_a_payment_that_cannot_be_confirmed_is_undone_backwards(settlements: Harness, tmp_path: Path) -> None:
    settlements.crash_next("settle.compensate", after_its_effect=True)
    run = settlements.start(payment("closed-account", 4_900))
    settlements.run_until_idle()
    assert (run.status, ledger_of(tmp_path).balances()) == ("compensated", {})
    assert ledger_of(tmp_path).booked("P-1") == ["hold", "settle", "reverse", "release"]
    assert run.compensations == {"hold": "completed", "settle": "completed"}


# == demo follow-up ===================================================================================================
FOLLOW_UP = {
    "contact": {"name": "Ada", "email": "ada@example.org", "zone": "Europe/Berlin"},
    "owner": "grace",
    "topic": "durable workflows",
}


@pytest.fixture
def follow_ups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    """It is Friday afternoon in Berlin."""
    monkeypatch.setenv("FOLLOW_UP_DATA", str(tmp_path))
    bodies = importlib.import_module("demo_follow_up.app")
    registry = Registry()
    for name in ("draft", "send_mail", "find_mail", "note_in_crm", "notify_owner"):
        registry.task(f"follow_up.{name}")(getattr(bodies, name))
    workflow = (EXAMPLES / "demo_follow_up" / "workflow.yaml").read_text()
    with Harness(workflow, registry, at="2026-11-27T16:30:00+01:00") as harness:
        yield harness


def office(folder: Path) -> Any:
    return importlib.import_module("demo_follow_up.outside").Outside(folder)


def test_a_follow_up_takes_from_friday_to_thursday(follow_ups: Harness, tmp_path: Path) -> None:
    follow_ups.crash_next("mail", after_its_effect=True)
    run = follow_ups.start(FOLLOW_UP)
    follow_ups.run_until_idle()
    assert follow_ups.now.strftime("%A, %H:%M UTC") == "Monday, 08:00 UTC", "nine in Berlin"
    follow_ups.advance(hours=3)
    run.approve("agreed", by="grace", roles=["sales"])
    assert (run.task("mail").attempt, len(office(tmp_path).done("mail"))) == (1, 1), "looked up, and not sent twice"
    assert [note["email"] for note in office(tmp_path).done("crm")] == ["ada@example.org"]
    follow_ups.advance(days=3)
    assert follow_ups.now.strftime("%A") == "Thursday"
    assert (run.status, run.output) == ("completed", {"sent": f"{run.run_id}.mail", "replied": False})
    assert office(tmp_path).done("messenger") == [{"owner": "grace", "text": "Ada has not replied"}]


@pytest.mark.parametrize("days", [0, 2])
def test_a_reply_needs_no_reminder_whenever_it_comes(follow_ups: Harness, tmp_path: Path, days: int) -> None:
    run = follow_ups.start(FOLLOW_UP)
    follow_ups.run_until_idle()
    run.approve("agreed", by="grace", roles=["sales"])
    follow_ups.advance(days=days)
    run.signal("mail.replied", {"text": "Tuesday"}, key="alan@example.org")
    assert run.status == "waiting", "somebody else's reply"
    run.signal("mail.replied", {"text": "Tuesday"}, key="ada@example.org")
    assert (run.status, run.output["replied"], office(tmp_path).done("messenger")) == ("completed", True, [])


def test_a_follow_up_that_nobody_agrees_to_sends_nothing(follow_ups: Harness, tmp_path: Path) -> None:
    run = follow_ups.start(FOLLOW_UP)
    follow_ups.run_until_idle()
    follow_ups.advance(days=2)
    assert run.status == "failed"
    assert office(tmp_path).done("mail") == []


# == the demo ==========================================================================================================
class Demo:
    """`python examples/demo.py` as a process; `mark` is in the environment of all that it starts."""

    def __init__(self, *options: str, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, EXAMPLES / "demo.py", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment, "DEMO_MARK": self.mark},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_said(self, pattern: str) -> re.Match[str]:
        """Read on until it says that."""
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it never said {pattern}:\n{said}")

    def finish(self) -> tuple[int, str]:
        """Wait for its end; its exit status, and what it said since. Nothing of it may be left."""
        said, _ = self.process.communicate(timeout=DEMO_SECONDS)
        assert self.running() == [], said
        return self.process.returncode, said

    def running(self) -> list[str]:
        found = psutil.process_iter(["cmdline", "environ"])
        marked = [each for each in found if (each.info["environ"] or {}).get("DEMO_MARK") == self.mark]
        return [" ".join(each.info["cmdline"] or []) for each in marked]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["streams-1", "relay-1"])
def test_the_demo_loses_nothing_when_one_more_process_is_killed(victim: str) -> None:
    with Demo("--orders", "10", "--kill", victim) as demo:
        status, said = demo.finish()
    assert status == 0, said
    assert said.splitlines()[-1] == "demo: 17 runs completed, 112 tasks, 0 lost"
    assert "killed worker-1" in said


@pytest.mark.slow
def test_the_demo_outlives_its_api_stays_up_when_asked_and_stops_at_a_signal() -> None:
    with Demo("--orders", "5", "--kill", "api", KEEP="1") as demo:
        api = demo.wait_said(r"still up. API (\S+?),")[1]
        token = demo.wait_said(r"HEADRACE_API_TOKEN=(\S+)")[1]
        with Client(api, token) as client:
            assert {run.status for run in client.runs().items} == {"completed", "compensated"}
        demo.process.send_signal(signal.SIGINT)
        status, said = demo.finish()
    assert (status, said.splitlines()[-1]) == (0, "demo: 12 runs completed, 87 tasks, 0 lost")


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nothing_running() -> None:
    with Demo() as demo:
        demo.wait_said("wrote")
        demo.process.send_signal(signal.SIGINT)
        status, said = demo.finish()
    assert (status, said.splitlines()[-1]) == (130, "demo: interrupted; everything was stopped")


def test_the_subscription_is_what_the_topic_holds() -> None:
    subscription = json.loads((EXAMPLES / "orders" / "subscription.json").read_text())
    shop = importlib.import_module("orders.shop")
    assert subscription["topic"] == shop.TOPIC
    assert shop.PLACED in subscription["filter"]
    assert importlib.import_module("orders.app").PRICES_CENTS == shop.PRICES_CENTS
