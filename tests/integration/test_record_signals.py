"""A record of a user's topic says one signal: on a real Postgres, with records of the test, and over Kafka."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from pydantic import SecretStr

from headrace.embedded.broker import EmbeddedBroker
from headrace.graph import from_data
from headrace.messages import Requested
from state.plans import Plans
from state.posted_signals import offer_signals
from state.settings import EngineSettings
from state.starts import start_run
from state.store import Key, Store
from state.workflows import publish
from streams.transport import run
from tests.integration.test_run_agent import Engine
from tests.integration.test_triggers import STRUCTURED, TOPIC, Shop, event, until

PAID: dict[str, Any] = {
    "name": "order",
    "tasks": {
        "paid": {"signal": {"name": "paid", "key": "${{ input.id }}"}},
        "ship": {"run": "t.ship", "needs": "paid"},
    },
}
FOR_A_KEY = {"name": "paid", "key": "${{ input.data.order }}"}
FOR_A_RUN = {"name": "paid", "run": "${{ input.data.run }}"}


class Bank(Shop):
    """A trigger agent whose records say signals, and the runs that wait for them."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.store = Store(EngineSettings(postgres=dsn, secret=SecretStr("0123456789abcdef")))
        self.keys: set[Key] = set()
        self.agent._on_keys = self.keys.update  # pyright: ignore[reportPrivateUsage]

    def listen(self, signal: dict[str, Any], filter: str | None = None, data: Any = None, name: str = "bank") -> None:
        self.query(
            "INSERT INTO subscription (subscription_id, name, topic, signal, filter, input) "
            "VALUES (gen_random_uuid(), %s, %s, %s, %s, %s) RETURNING 1",
            name, TOPIC, json.dumps(signal), filter, None if data is None else json.dumps(data),
        )  # fmt: skip
        self.agent.look()

    async def order(self, id: str = "o-1") -> str:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            workflow = from_data(PAID)
            await publish(connection, "default", workflow.name, workflow.canonical().decode())
            plan = await Plans().latest(connection, "default", "order")
            given = json.dumps({"id": id}).encode()
            run_id, _ = await start_run(connection, self.store, plan, given, namespace="default")
        return run_id

    def posted(self) -> list[Any]:
        return self.query("SELECT name, key, data FROM posted_signal ORDER BY sent_at, posted_id")

    def reasons(self) -> list[str]:
        return [reason for (reason,) in self.query('SELECT reason FROM dead_letter ORDER BY "offset"')]


@pytest.fixture
async def bank(database: str) -> AsyncIterator[Bank]:
    made = Bank(database)
    made.epoch = (await made.ownership.lease(TOPIC, "log", [0]))[0][0]
    yield made
    await made.backlog.close()
    made.database.close()


def payment(order: str = "o-1", **more: Any) -> bytes:
    return json.dumps({"order": order, **more}).encode()


async def test_one_posted_signal_for_each_record(bank: Bank):
    bank.listen(FOR_A_KEY, data={"sum": "${{ input.data.sum }}"})
    await bank.apply(payment(sum=3), payment("o-2", sum=4))
    assert bank.posted() == [("paid", "o-1", {"sum": 3}), ("paid", "o-2", {"sum": 4})]
    assert bank.fates() == ["signalled", "signalled"]
    ids = bank.query("SELECT posted_id FROM posted_signal ORDER BY key")
    assert bank.query('SELECT signal_id FROM trigger_event ORDER BY "offset"') == ids
    assert bank.query("SELECT DISTINCT actor FROM posted_signal") == [("subscription bank",)]
    assert bank.keys == {Key("default", "paid", "o-1"), Key("default", "paid", "o-2")}
    kept = "SELECT count(*) FROM posted_signal WHERE expires_at BETWEEN now() + '23 h' AND now() + '25 h'"
    assert bank.query(kept) == [(2,)]


async def test_a_record_read_again_and_a_cloud_event_that_comes_twice_are_one_signal(bank: Bank):
    bank.listen({**FOR_A_KEY, "key": "${{ input.id }}"})
    await bank.apply(event("a"), event("b"), event("a"), headers=STRUCTURED)
    await bank.apply(event("b"), headers=STRUCTURED, at=3)
    assert [key for _, key, _ in bank.posted()] == ["a", "b"]
    assert bank.fates() == ["signalled", "signalled", "duplicate", "duplicate"]
    first, _, again, _ = bank.query('SELECT signal_id FROM trigger_event ORDER BY "offset"')
    assert first == again
    bank.query("UPDATE partition_owner SET next_offset = 3 RETURNING 1")
    bank.ownership.refresh(TOPIC)
    await bank.apply(event("b"), headers=STRUCTURED, at=3)
    assert len(bank.posted()) == 2


async def test_the_filter_decides_which_records_say_it(bank: Bank):
    bank.listen(FOR_A_KEY, filter="input.data.sum > 10")
    await bank.apply(payment(sum=3), payment("o-2", sum=40))
    assert (bank.fates(), [key for _, key, _ in bank.posted()]) == (["filtered", "signalled"], ["o-2"])


async def test_what_cannot_be_read_or_evaluated_is_set_aside_and_the_next_record_is_told(bank: Bank):
    bank.listen(FOR_A_KEY)
    await bank.apply(b"\xff\xfe", b'{"no": "order"}', b'{"order": {}}', payment())
    assert bank.fates() == ["failed", "failed", "failed", "signalled"]
    assert len(bank.posted()) == 1
    unread, unevaluated, no_key = bank.reasons()
    assert "no JSON" in unread
    assert "'order'" in unevaluated
    assert "the key of signal paid must be" in no_key
    assert bank.query('SELECT "offset", value FROM dead_letter ORDER BY "offset"')[1] == (1, b'{"no": "order"}')


async def test_a_record_says_a_signal_to_the_run_that_it_names(bank: Bank, database: str):
    run_id = await bank.order()
    bank.listen(FOR_A_RUN)
    record = json.dumps({"run": run_id, "sum": 3}).encode()
    await bank.apply(record, record)
    assert bank.fates() == ["signalled", "signalled"]  # two records: two places in the topic
    bank.query("UPDATE partition_owner SET next_offset = 0 RETURNING 1")
    bank.ownership.refresh(TOPIC)
    await bank.apply(record)
    assert sorted(bank.fates()) == ["duplicate", "signalled", "signalled"]
    (first,), (second,) = bank.query("SELECT signal_id FROM signal ORDER BY sent_at, signal_id")
    assert bank.query("SELECT count(*) FROM inbox WHERE kind = 'signalled'") == [(2,)]
    assert {row[0] for row in bank.query("SELECT run_id::text FROM trigger_event")} == {run_id}
    engine = Engine(database)
    await engine.lease()
    await engine.apply((run_id, Requested(str(first))), (run_id, Requested(str(second))))
    engine.close()
    assert bank.query("SELECT status FROM signal ORDER BY status") == [("kept",), ("taken",)]
    assert bank.query("SELECT output -> 'data' FROM task WHERE task = 0") == [({"run": run_id, "sum": 3},)]


async def test_a_run_that_cannot_be_told_sets_the_record_aside(bank: Bank):
    run_id = await bank.order()
    bank.listen(FOR_A_RUN, filter="input.data.to == 'paid'")
    bank.listen({"name": "news", "run": "${{ input.data.run }}"}, filter="input.data.to == 'news'", name="news")
    unknown = "01890a5d-ac96-774b-bcce-b302099a8057"
    bank.query("UPDATE run SET status = 'cancelled', finished_at = now() RETURNING 1")
    await bank.apply(
        payment(run=unknown, to="paid"), payment(run="?", to="paid"), payment(run=run_id, to="news"),
        payment(run=run_id, to="paid"),
    )  # fmt: skip
    reasons = bank.reasons()
    assert [f"there is no run {unknown}" in reasons[0], "no id of a run" in reasons[1]] == [True, True]
    assert ["waits for signal 'news'" in reasons[2], "cancelled already" in reasons[3]] == [True, True]
    assert bank.query("SELECT count(*) FROM signal") == bank.query("SELECT count(*) FROM inbox") == [(0,)]
    assert bank.query("SELECT fate, count(*) FROM trigger_event GROUP BY fate ORDER BY fate") == [
        ("failed", 4), ("filtered", 4),
    ]  # fmt: skip


async def test_a_posted_signal_comes_to_the_run_that_waits_for_its_key(bank: Bank, database: str):
    run_id = await bank.order()
    bank.listen(FOR_A_KEY)
    await bank.apply(payment(sum=3))
    async with await psycopg.AsyncConnection.connect(database) as connection:  # as the sweep does that is told of it
        assert await offer_signals(connection, bank.store, bank.keys) == 1
    ((signal_id,),) = bank.query("SELECT signal_id FROM signal")
    engine = Engine(database)
    await engine.lease()
    await engine.apply((run_id, Requested(str(signal_id))))
    engine.close()
    assert bank.query("SELECT status::text FROM task ORDER BY task") == [("completed",), ("queued",)]


async def test_records_start_runs_and_say_signals_side_by_side(bank: Bank):
    await bank.order()
    bank.subscribe()
    bank.listen(FOR_A_KEY)
    await bank.apply(payment(), payment("o-2"))
    assert sorted(bank.fates()) == ["signalled", "signalled", "started", "started"]


async def test_over_kafka_each_record_is_one_signal_also_after_a_restart(
    bank: Bank, embedded_broker: EmbeddedBroker, topic_prefix: str
):
    topic = f"{topic_prefix}.payments"
    bank.listen(FOR_A_KEY)
    bank.query("UPDATE subscription SET topic = %s RETURNING 1", topic)
    producer = Producer({"bootstrap.servers": embedded_broker.bootstrap})

    def produce(*values: bytes, id: str | None = None) -> None:
        named: dict[str, str | bytes | None] = {"ce_id": id, "ce_source": "/bank", "ce_type": "paid"}
        for value in values:
            producer.produce(topic, value, partition=0, headers=None if id is None else named)
        assert producer.flush(15) == 0

    async def serve(stop: asyncio.Event) -> None:
        await run(
            "plain",
            bootstrap=embedded_broker.bootstrap,
            group=topic_prefix,
            bodies=dict.fromkeys(bank.agent.look(), bank.agent),
            lease=bank.ownership.lease,
            conf={"fetch.wait.max.ms": 10, "auto.offset.reset": "earliest"},
            topic_ids=False,
            stop=stop,
            handle_signals=False,
        )

    await asyncio.to_thread(produce, payment("o-1"), b"no json", payment("o-2"))
    await asyncio.to_thread(produce, payment("o-3"), payment("o-3"), id="p-3")  # one event, delivered twice
    for _ in range(2):
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(stop))
        await until(lambda: len(bank.fates()) >= 5)
        stop.set()
        await asyncio.wait_for(serving, 15)
    assert [key for _, key, _ in bank.posted()] == ["o-1", "o-2", "o-3"]
    assert bank.fates() == ["signalled", "failed", "signalled", "signalled", "duplicate"]
    assert "no JSON" in bank.reasons()[0]
