"""Cases of a worker on a real Kafka; the engine is played by the test."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import Event as Flag
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from headrace.context import Context
from headrace.embedded.kafka import ApacheKafka
from headrace.errors import FencedError
from headrace.messages import PAYLOAD_BYTES_MAX, Abort, Failed, Requested, Started, Succeeded
from headrace.registry import Registry
from headrace.worker import Worker
from tests.integration.test_worker_kafka import Engine, create_topics, engine_on, recreate

LEASE_SECONDS = 1.0


@dataclass
class Sink:
    """The world outside: what was done there, and when bodies may go on to do it."""

    go: Flag = field(default_factory=Flag)
    mails: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)

    def bodies(self) -> Registry:
        registry = Registry()

        @registry.task("mail")
        def mail(ctx: Context) -> str:
            """Sends one e-mail at its end, and hears of nothing until then."""
            self.begun.append(ctx.token)
            self.go.wait(30)
            try:
                with ctx.effect() as key:
                    self.mails.append(key)
            except FencedError as e:
                self.refused.append(ctx.effect_key)
                raise e
            return "sent"

        @registry.task("long")
        def long(count: int) -> str:
            return "x" * count

        @registry.task("echo")
        async def echo(input: Any) -> Any:
            return input

        return registry


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.go.set()


@pytest.fixture
def engine(kafka: ApacheKafka, topic_prefix: str) -> Iterator[Engine]:
    create_topics(kafka.bootstrap, topic_prefix)
    with engine_on(kafka.bootstrap, topic_prefix) as made:
        yield made


@asynccontextmanager
async def working(engine: Engine, sink: Sink, **options: Any) -> AsyncGenerator[Worker]:
    worker = Worker(
        sink.bodies(), kafka=engine.bootstrap, prefix=engine.prefix, lease=LEASE_SECONDS, drain_seconds=5.0, **options
    )
    running = asyncio.ensure_future(worker.run())
    try:
        await engine.until(lambda: engine.heartbeats, "its first heartbeat")
        yield worker
    finally:
        worker.stop(now=True)
        await running


def answers(engine: Engine, run: str) -> list[int]:
    """The tokens of all that was reported of a run, but that bodies had begun."""
    return [event.token for event in engine.of(run) if not isinstance(event, Started | Requested)]


async def test_b16_an_effect_behind_a_lost_lease_is_not_begun_and_its_retry_has_the_same_key(
    engine: Engine, sink: Sink
) -> None:
    """Heartbeats are not answered for longer than the lease, and the body cannot be interrupted."""
    async with working(engine, sink) as worker:
        first, run = worker.session_id, engine.command("mail", token=1)
        await engine.until(lambda: sink.begun == [1])
        await engine.until(lambda: worker.session_id != first, "it fences itself")
        sink.go.set()
        await engine.until(lambda: sink.refused)
        assert sink.mails == []
        engine.command("mail", run=run, token=2)
        answer = await engine.answer(run)
        assert isinstance(answer, Succeeded)
        assert answer.token == 2
        assert sink.mails == sink.refused
        assert answers(engine, run) == [2]


async def test_b42_a_worker_that_was_cut_off_for_two_leases_drops_its_work_and_goes_on(
    engine: Engine, sink: Sink, kafka: ApacheKafka
) -> None:
    async with working(engine, sink) as worker:
        run = engine.command("mail", token=1)
        await engine.until(lambda: sink.begun == [1])
        engine.renew(LEASE_SECONDS)
        first, began = worker.session_id, time.monotonic()
        with frozen(kafka):
            while worker.session_id == first or time.monotonic() < began + 2 * LEASE_SECONDS:  # noqa: ASYNC110  # by its own clock, without a word from anybody
                await asyncio.sleep(0.02)
            sink.go.set()
            while not sink.refused:  # noqa: ASYNC110  # the body is in a thread
                await asyncio.sleep(0.02)
        engine.renew(LEASE_SECONDS)
        assert isinstance(await engine.answer(engine.command("echo")), Succeeded)
        await engine.until(lambda: engine.heartbeats[-1].session == worker.session_id)
        assert sink.mails == []
        assert worker.stats.dropped == 1
        assert answers(engine, run) == []


class frozen:
    """The path to Kafka carries nothing meanwhile."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self._pid = kafka.pid

    def __enter__(self) -> None:
        assert self._pid is not None
        os.kill(self._pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        assert self._pid is not None
        os.kill(self._pid, signal.SIGCONT)


@pytest.mark.parametrize("how", ["aborted", "a newer hand-out"])
async def test_b06_an_attempt_that_was_given_up_has_no_effect_and_says_nothing(
    engine: Engine, sink: Sink, how: str
) -> None:
    async with working(engine, sink) as worker:
        run = engine.command("mail", token=1)
        await engine.until(lambda: sink.begun == [1])
        if how == "aborted":
            engine.say(Abort(run, 0, 1, "timeout"))
            await engine.until(lambda: worker.stats.dropped == 1)
        engine.command("echo", {"attempt": 2}, run=run, token=2)
        answer = await engine.answer(run)
        sink.go.set()
        await engine.until(lambda: sink.refused)
        assert isinstance(answer, Succeeded)
        assert (answer.token, msgspec.json.decode(answer.output)) == (2, {"attempt": 2})
        assert sink.mails == []
        assert isinstance(await engine.answer(engine.command("echo")), Succeeded)
        assert answers(engine, run) == [2]


async def test_b85_a_result_at_the_limit_fits_kafka_and_a_byte_more_is_refused_before_it_is_sent(
    engine: Engine, sink: Sink
) -> None:
    async with working(engine, sink, name="w" * 200) as worker:
        quotes = 2
        sizes = {PAYLOAD_BYTES_MAX - 1: Succeeded, PAYLOAD_BYTES_MAX: Succeeded, PAYLOAD_BYTES_MAX + 1: Failed}
        runs = {size: engine.command("long", {"count": size - quotes}) for size in sizes}
        found = {size: await engine.answer(run) for size, run in runs.items()}
        assert {size: type(answer) for size, answer in found.items()} == sizes
        refused = found[PAYLOAD_BYTES_MAX + 1]
        assert isinstance(refused, Failed)
        assert (refused.error.code, refused.error.retryable) == ("RESULT_TOO_LARGE", False)
        behind = engine.command("echo", {"text": "x" * (PAYLOAD_BYTES_MAX - 11)})  # an input of just the limit
        answer = await engine.answer(behind)
        assert isinstance(answer, Succeeded)
        assert len(answer.output) == PAYLOAD_BYTES_MAX
        assert worker.stats.failed == 1


async def test_b95_a_worker_handles_all_of_a_topic_that_shrank(engine: Engine, sink: Sink) -> None:
    """Made anew with fewer records than the worker has read, and none of its own."""
    async with working(engine, sink):
        for run in [engine.command("echo") for _ in range(60)]:
            await engine.answer(run)
        admin, topic = AdminClient({"bootstrap.servers": engine.bootstrap}), f"{engine.prefix}.commands.default"
        admin.delete_topics([topic])[topic].result(30)
        await asyncio.to_thread(recreate, admin, topic)
        for run in [engine.command("echo") for _ in range(5)]:
            assert isinstance(await engine.answer(run), Succeeded)
