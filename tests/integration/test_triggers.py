"""A record of a user's topic starts one run: on a real Postgres, with the records handed in by the test."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from headrace.embedded.broker import EmbeddedBroker
from headrace.embedded.kafka import ApacheKafka
from headrace.graph import from_data
from state import running
from state.plans import Plans
from state.settings import EngineSettings
from state.store import Store
from state.workflows import publish
from streams import trigger_agent
from streams.backlog import Backlog
from streams.batch import Batch
from streams.clock import DatabaseClock
from streams.database import Database
from streams.metrics import Metrics
from streams.ownership import Ownership
from streams.topics import Topics
from streams.transport import run
from streams.trigger_agent import TriggerAgent, follow
from tests.conftest import SESSION_TIMEOUT_MS

TOPIC = "shop.orders"
LIMIT = 10
STRUCTURED = [("content-type", b"application/cloudevents+json")]


class Record:
    def __init__(self, offset: int, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
        self._offset, self._value, self._headers = offset, value, headers

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers


class Shop:
    """A trigger agent with one workflow, and subscriptions made by the test."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.database = dsn, Database(dsn)
        store = Store(EngineSettings(postgres=dsn, secret=SecretStr("0123456789abcdef")))
        self.ownership = Ownership(self.database, "one")
        self.metrics = Metrics(CollectorRegistry())
        self.backlog = Backlog(dsn, LIMIT, self.metrics)
        clock, plans = DatabaseClock(self.database), Plans()
        self.agent = TriggerAgent(store, self.ownership, self.database, plans, clock, self.metrics, self.backlog)
        self.epoch = 0

    def query(self, sql: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(sql.encode(), parameters).fetchall()

    def subscribe(self, name: str = "orders", filter: str | None = None, input: Any = None, labels: Any = None) -> None:
        self.query(
            "INSERT INTO subscription (subscription_id, name, topic, workflow, filter, input, labels) "
            "VALUES (gen_random_uuid(), %s, %s, 'order', %s, %s, %s) RETURNING 1",
            name,
            TOPIC,
            filter,
            None if input is None else json.dumps(input),
            None if labels is None else json.dumps(labels),
        )
        self.agent.look()

    async def apply(self, *values: bytes | None, headers: Any = (), at: int = 0) -> None:
        await asyncio.wait_for(self.begin(*values, headers=headers, at=at), 15)

    def begin(self, *values: bytes | None, headers: Any = (), at: int = 0) -> asyncio.Task[None]:
        records = [Record(at + i, value, list(headers)) for i, value in enumerate(values)]
        batch = Batch(TOPIC, "log", {0: records}, {0: self.epoch})  # type: ignore[dict-item]
        return asyncio.create_task(self.agent(batch))

    def fill(self, runs: int = LIMIT) -> None:
        """So many runs are under way."""
        self.query(
            "INSERT INTO run (run_id, version_id, status, row_version, input) "
            "SELECT gen_random_uuid(), 1, 'running', 1, '{}' FROM generate_series(1, %s) RETURNING 1",
            runs,
        )

    def end(self, runs: int) -> None:
        self.query(
            "UPDATE run SET status = 'completed', finished_at = now() "
            "WHERE run_id IN (SELECT run_id FROM run WHERE status = 'running' LIMIT %s) RETURNING 1",
            runs,
        )

    def position(self) -> list[Any]:
        return self.query("SELECT next_offset FROM partition_owner WHERE topic = %s", TOPIC)

    def inputs(self) -> list[Any]:
        return [value for (value,) in self.query("SELECT input FROM run ORDER BY run_id")]

    def fates(self) -> list[str]:
        return [fate for (fate,) in self.query('SELECT fate FROM trigger_event ORDER BY "offset", subscription_id')]


@pytest.fixture
async def shop(database: str) -> AsyncIterator[Shop]:
    made = Shop(database)
    async with await psycopg.AsyncConnection.connect(database) as connection:
        workflow = from_data({"name": "order", "tasks": {"a": {"run": "shop.a"}}})
        await publish(connection, "default", workflow.name, workflow.canonical().decode())
    made.epoch = (await made.ownership.lease(TOPIC, "log", [0]))[0][0]
    yield made
    await made.backlog.close()
    made.database.close()


def event(id: str, total: float = 12, type: str = "order.placed") -> bytes:
    data = {"specversion": "1.0", "id": id, "source": "/shop", "type": type, "data": {"total": total}}
    return json.dumps(data).encode()


async def test_one_run_for_each_record(shop: Shop):
    shop.subscribe()
    await shop.apply(b'{"n": 1}', b'{"n": 2}')
    assert shop.inputs() == [{"n": 1}, {"n": 2}]
    assert shop.query("SELECT count(*) FROM task WHERE status = 'queued'") == [(2,)]
    assert shop.fates() == ["started", "started"]


async def test_a_cloud_event_that_comes_twice_is_one_run(shop: Shop):
    shop.subscribe()
    await shop.apply(event("a"), event("b"), event("a"), headers=STRUCTURED)
    await shop.apply(event("b"), headers=STRUCTURED, at=3)
    assert shop.inputs() == [{"total": 12}, {"total": 12}]
    assert shop.fates() == ["started", "started", "duplicate", "duplicate"]


async def test_a_record_read_again_is_one_run(shop: Shop):
    shop.subscribe()
    await shop.apply(b"{}")
    shop.query("UPDATE partition_owner SET next_offset = 0 RETURNING 1")
    shop.ownership.refresh(TOPIC)
    await shop.apply(b"{}")
    assert shop.inputs() == [{}]
    assert sorted(shop.fates()) == ["duplicate", "started"]


async def test_filter_and_mapping_see_attributes_and_data(shop: Shop):
    shop.subscribe(
        filter="input.type == 'order.placed' && input.data.total > 10",
        input={"amount": "${{ input.data.total }}", "order": "${{ input.id }}"},
    )
    await shop.apply(event("a"), event("b", total=5), event("c", type="order.seen"), headers=STRUCTURED)
    assert shop.inputs() == [{"amount": 12, "order": "a"}]
    assert shop.fates() == ["started", "filtered", "filtered"]


async def test_a_record_labels_its_run_with_what_it_holds(shop: Shop):
    shop.subscribe(
        labels={"order": "${{ input.data.id }}", "note": "${{ input.data.note }}", "type": "of ${{ input.topic }}"}
    )
    await shop.apply(b'{"id": 7, "note": null}', b'{"id": "a", "note": true}')
    found = shop.query(
        "SELECT json_object_agg(l.name, l.value ORDER BY l.name) FROM run_label l GROUP BY l.run_id ORDER BY l.run_id"
    )
    assert found == [
        ({"order": "7", "type": f"of {TOPIC}"},),
        ({"note": "true", "order": "a", "type": f"of {TOPIC}"},),
    ]
    await shop.apply(b'{"id": 7, "note": null}')  # read again
    assert shop.query("SELECT count(*) FROM run_label") == [(5,)]


async def test_a_record_whose_label_no_run_could_have_is_set_aside_with_the_reason(shop: Shop):
    shop.subscribe(labels={"order": "${{ input.data.id }}"})
    await shop.apply(b'{"id": {"n": 1}}', b'{"id": "%s"}' % (b"x" * 201), b"{}", b'{"id": 1}')
    assert shop.fates() == ["failed", "failed", "failed", "started"]
    reasons = [reason for (reason,) in shop.query('SELECT reason FROM dead_letter ORDER BY "offset"')]
    assert "labels.order: the value of a label is a text" in reasons[0]
    assert "labels.order: has 201 characters" in reasons[1]


async def test_what_cannot_be_read_is_set_aside_and_the_next_record_starts_its_run(shop: Shop):
    shop.subscribe()
    await shop.apply(b"\xff\xfe", b'{"text": "\\u0000"}', b'{"n": 3}')
    assert shop.inputs() == [{"n": 3}]
    assert shop.fates() == ["failed", "failed", "started"]
    assert shop.query('SELECT topic, "offset", value FROM dead_letter ORDER BY "offset"') == [
        (TOPIC, 0, b"\xff\xfe"),
        (TOPIC, 1, b'{"text": "\\u0000"}'),
    ]


async def test_an_unknown_workflow_sets_the_record_aside(shop: Shop):
    shop.subscribe()
    shop.query("UPDATE subscription SET workflow = 'nobody' RETURNING 1")
    shop.agent.look()
    await shop.apply(b"{}")
    assert shop.fates() == ["failed"]
    assert "nobody" in shop.query("SELECT reason FROM dead_letter")[0][0]


async def test_two_subscriptions_of_a_topic_are_two_runs(shop: Shop):
    shop.subscribe("one")
    shop.subscribe("two")
    await shop.apply(b"{}")
    assert len(shop.inputs()) == 2


async def test_offsets_without_a_record_hold_nothing_up(shop: Shop):
    shop.subscribe()
    await shop.apply(b'{"n": 1}')
    await shop.apply(b'{"n": 2}', at=5)
    assert shop.inputs() == [{"n": 1}, {"n": 2}]


async def test_the_trace_of_the_record_goes_on_in_the_run(shop: Shop):
    shop.subscribe()
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await shop.apply(b"{}", headers=[("traceparent", trace.encode()), ("other", None)])
    assert shop.query("SELECT traceparent FROM run") == [(trace,)]


# == too many runs under way ===========================================================================================
@pytest.fixture
async def full(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop with as many runs as it takes, which looks again at once."""
    monkeypatch.setattr(trigger_agent, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(running, "READ_SECONDS", 0.0)
    shop.subscribe()
    shop.fill()
    return shop


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not fact():  # noqa: ASYNC110  # nothing tells us
            await asyncio.sleep(0.01)


async def test_records_wait_while_too_many_runs_are_under_way_and_offsets_stay(full: Shop):
    waiting = full.begin(b'{"n": 1}', b'{"n": 2}')
    await until(lambda: full.metrics.trigger_wait_seconds._value.get() > 0.05)
    assert not waiting.done()
    assert full.position() == [(None,)]
    assert full.fates() == []
    full.end(1)
    waited = full.metrics.trigger_wait_seconds._value.get()
    await until(lambda: full.metrics.trigger_wait_seconds._value.get() > waited + 0.05)
    assert not waiting.done()  # 9 of 10: not below nine tenths yet
    full.end(1)
    await asyncio.wait_for(waiting, 15)
    assert full.fates() == ["started", "started"]
    assert full.position() == [(2,)]
    assert full.metrics.trigger_waits._value.get() == 1


async def test_a_subscription_says_since_when_it_waits(full: Shop):
    waiting = full.begin(b"{}")
    await until(lambda: full.query("SELECT waits_since IS NOT NULL FROM subscription") == [(True,)])
    full.end(LIMIT)
    await asyncio.wait_for(waiting, 15)
    assert full.query("SELECT waits_since FROM subscription") == [(None,)]


async def test_what_a_process_that_died_left_is_taken_back_by_the_next(shop: Shop):
    shop.subscribe()
    shop.query("UPDATE subscription SET waits_since = now() RETURNING 1")
    await shop.apply(b"{}")
    assert shop.query("SELECT waits_since FROM subscription") == [(None,)]


async def test_the_loop_goes_on_while_postgres_counts(full: Shop):
    with psycopg.connect(full.dsn) as other:
        other.execute("LOCK TABLE run IN ACCESS EXCLUSIVE MODE")  # the count hangs
        waiting = full.begin(b"{}")
        beats = 0
        async with asyncio.timeout(10):
            while beats < 20:
                await asyncio.sleep(0.01)
                beats += 1
        assert not waiting.done()
    full.end(LIMIT)
    await asyncio.wait_for(waiting, 15)


async def test_a_stop_ends_the_waiting_and_the_next_owner_gets_the_records(full: Shop):
    waiting = full.begin(b'{"n": 1}')
    await until(lambda: full.metrics.trigger_wait_seconds._value.get() > 0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert full.position() == [(None,)]
    full.end(LIMIT)
    await full.apply(b'{"n": 1}')
    assert full.fates() == ["started"]


async def test_a_partition_that_another_process_took_waits_no_longer(full: Shop):
    waiting = full.begin(b"{}")
    await until(lambda: full.metrics.trigger_wait_seconds._value.get() > 0)
    full.query("UPDATE partition_owner SET epoch = epoch + 1 RETURNING 1")
    await asyncio.wait_for(waiting, 15)
    assert full.fates() == []


async def test_topics_that_are_left_give_their_waiting_records_back(full: Shop):
    """The set of topics changes while records wait: the transport is stopped, which waits for its bodies."""
    served: list[set[str]] = []

    async def serve(topics: set[str], stop: asyncio.Event) -> None:
        body = full.begin(b"{}") if not served else None
        served.append(topics)
        await stop.wait()
        if body is not None:
            await asyncio.wait_for(body, 3)

    following = asyncio.create_task(follow(full.agent, serve, lambda names: names))
    await until(lambda: full.metrics.trigger_wait_seconds._value.get() > 0)
    full.query(
        "INSERT INTO subscription (subscription_id, name, topic, workflow) "
        "VALUES (gen_random_uuid(), 'other', 'shop.refunds', 'order') RETURNING 1"
    )
    await until(lambda: len(served) == 2)
    following.cancel()
    assert served == [{TOPIC}, {TOPIC, "shop.refunds"}]
    assert full.position() == [(None,)]


@pytest.mark.parametrize("log", ["kafka", "embedded_broker"])
async def test_the_first_record_of_a_topic_that_a_subscription_waited_for_is_read_soon(
    shop: Shop, log: str, topic_prefix: str, request: pytest.FixtureRequest
):
    """The topic is made by whoever sends to it, long after the subscription was."""
    broker: ApacheKafka | EmbeddedBroker = request.getfixturevalue(log)
    is_real, topic = log == "kafka", f"{topic_prefix}.later"
    topics = Topics(EngineSettings(postgres=shop.dsn, kafka=broker.bootstrap, topic_ids=is_real, log_id="log"))
    shop.subscribe()
    shop.query("UPDATE subscription SET topic = %s RETURNING 1", topic)

    async def serve(wanted: set[str], stop: asyncio.Event) -> None:
        await run(
            "plain", bootstrap=broker.bootstrap, group=topic_prefix, bodies=dict.fromkeys(wanted, shop.agent),
            lease=shop.ownership.lease, conf={"fetch.wait.max.ms": 10}, topic_ids=is_real, log_id="log", stop=stop,
            handle_signals=False,
        )  # fmt: skip

    following = asyncio.create_task(follow(shop.agent, serve, topics.find))
    try:
        await asyncio.sleep(4)  # the case itself: a consumer that asked in vain has cached that by then
        if is_real:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            await asyncio.to_thread(admin.create_topics([NewTopic(topic, 2, 1)])[topic].result, 15)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(topic, b'{"n": 1}', partition=1)
        assert await asyncio.to_thread(producer.flush, 15) == 0
        sent_at = time.monotonic()
        while not shop.fates():
            assert time.monotonic() < sent_at + 60
            await asyncio.sleep(0.05)
        waited = time.monotonic() - sent_at
        assert waited < 8, f"{waited:.1f} s"  # about two; a consumer that asked in vain needs 10 s and more
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        topics.close()


async def test_a_member_whose_records_wait_keeps_its_partitions_and_leaves_when_told(
    full: Shop, embedded_broker: EmbeddedBroker, topic_prefix: str
):
    """With the real transport: longer than the group waits for a member that does not poll, then a stop."""
    topic, stop = f"{topic_prefix}.orders", asyncio.Event()
    full.query("UPDATE subscription SET topic = %s RETURNING 1", topic)
    producer = Producer({"bootstrap.servers": embedded_broker.bootstrap})
    producer.produce(topic, b'{"n": 1}', partition=0)
    assert await asyncio.to_thread(producer.flush, 15) == 0
    serving = asyncio.create_task(
        run(
            "plain",
            bootstrap=embedded_broker.bootstrap,
            group=topic_prefix,
            bodies=dict.fromkeys(full.agent.look(), full.agent),
            lease=full.ownership.lease,
            conf={"fetch.wait.max.ms": 10},
            topic_ids=False,
            stop=stop,
            handle_signals=False,
        )
    )
    await until(lambda: full.metrics.trigger_wait_seconds._value.get() > 0)
    epochs = full.query("SELECT partition, epoch FROM partition_owner WHERE topic = %s ORDER BY 1", topic)
    await asyncio.sleep(SESSION_TIMEOUT_MS / 1000 + 2)
    assert full.query("SELECT partition, epoch FROM partition_owner WHERE topic = %s ORDER BY 1", topic) == epochs
    full.agent.is_leaving = True
    stop.set()
    began = time.monotonic()
    await asyncio.wait_for(serving, 10)
    assert time.monotonic() - began < 4
    assert full.fates() == []
