"""The Faust host: an app, one agent per topic, Faust's supervision; our transport underneath.

What Faust sees: one constant virtual partition per topic, and one event when something waits for it. So its own
rebalance (stop the flow, clear queues, recover tables, seek, resume) runs once, at start; the real assignment lives in
the transport's thread and in Postgres. Faust fetches, assigns, commits and sends nothing: a vanilla agent costs 71 to
290 µs for each message, and loses messages when it raises, because an event counts as acknowledged once its stream is
finalised.

An event of Faust's is only word that batches wait in the transport's inbox, because Faust throws away what its queues
hold whenever it resumes their flow, which it does at the end of its start, after the first word may have come. A topic
is told of once, until its agent has looked; a word that got lost would be the last. So it is given again until then.

Hence no tables, no replies, no leader topic, no `app.send`, no `concurrency` above 1; Faust's sensors count words.
The app runs inside the caller's event loop without `faust.Worker`, which would take over stdout, logging and signals.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NoReturn

import faust
from faust.tables.manager import TableManager
from faust.transport import base
from faust.types import TP, ConsumerMessage, StreamT
from faust.types.app import AppT
from faust.types.tuples import Message as FaustMessage

from streams.batch import Apply, Body

for name in ("faust", "mode"):  # they tell each step of their start at INFO, and each service of a crash at ERROR
    logging.getLogger(name).setLevel(logging.CRITICAL)


AGAIN_SECONDS: Final = 0.2
"""How long a word may be on its way before it is given again."""


class FaustHost:
    """Applies batches in Faust agents; a body that raises crashes the app, and `serve` raises its error."""

    def __init__(self, name: str, bodies: Mapping[str, Body]) -> None:
        self._name, self._bodies = name, dict(bodies)
        self._words = Words()

    def tell(self, topic: str) -> None:
        self._words.give(topic)

    async def serve(self, apply: Apply) -> None:
        app = _create_app(self._name, self._words)
        for topic, body in self._bodies.items():
            _add_agent(app, topic, body, apply, self._words)
        await app.start()
        try:
            await app.wait_until_stopped()
        finally:
            await app.stop()
        if app.crash_reason is not None:
            raise app.crash_reason


class Words:
    """Topics of which Faust's agents have to hear, and those of which they have not heard yet."""

    def __init__(self) -> None:
        self._unheard: set[str] = set()
        self._words: asyncio.Queue[str] = asyncio.Queue()
        self._is_watching = False

    def give(self, topic: str) -> None:
        self._unheard.add(topic)
        self._words.put_nowait(topic)
        self._watch()

    async def next(self) -> str:
        return await self._words.get()

    def heard(self, topic: str) -> None:
        self._unheard.discard(topic)

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._give_again)

    def _give_again(self) -> None:
        self._is_watching = False
        for topic in list(self._unheard):
            self.give(topic)


class App(faust.App):
    """A Faust app that leaves no directories behind: nothing of it is kept on disk."""

    def _create_directories(self) -> None:
        pass


class NoTables(TableManager):
    """Faust's table manager without the second it waits at start for tables to be declared."""

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


class Schema(faust.Schema[None, str]):
    """No serialisation: the value of the event is a topic, which its agent knows."""

    def compile(self, app: AppT, **_: Any) -> Any:
        async def decode(message: FaustMessage, *, propagate: bool = False) -> Any:
            return app.create_event(None, message.value, None, message)

        return decode


def _create_app(name: str, words: Words) -> App:
    app = App(
        name,
        broker="kafka://nowhere",  # a URL must be given; the transport below replaces what it would select
        agent_supervisor="mode.CrashingSupervisor",  # a body that raises ends the process; a restarted agent would skip
        TableManager=NoTables,
        topic_disable_leader=True,
        topic_allow_declare=False,
        stream_wait_empty=False,  # our transport drains before Faust is stopped
        web_enabled=False,
        store="memory://",
        stream_recovery_delay=0.0,  # nothing is recovered
    )
    app.transport = Transport(app, words)
    return app


def _add_agent(app: App, topic: str, body: Body, apply: Apply, words: Words) -> None:
    async def agent(stream: StreamT[str]) -> None:
        async for _ in stream:
            words.heard(topic)
            await apply(topic, body)

    app.agent(app.topic(topic, schema=Schema(), acks=False), name=f"{topic}-agent")(agent)


class Consumer(base.Consumer):
    """Faust's view of the transport: words of topics, and offsets are none of its business."""

    transport: "Transport"
    _topics: frozenset[str] = frozenset()
    _given = 0

    async def subscribe(self, topics: Any) -> None:
        """Called by Faust once its agents run, and again with the same topics whenever it likes."""
        if not self._topics:
            self._topics = frozenset(topics)
            self.app.on_rebalance_start()
            self.add_future(self.on_partitions_assigned(self.assignment(), self.app.consumer_generation_id))

    def assignment(self) -> set[TP]:
        return {TP(topic, 0) for topic in self._topics}

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, FaustMessage]]:  # noqa: ASYNC109  # Faust's name
        """Yield without end; Faust cancels the fetcher that reads it."""
        while not self.should_stop:
            topic = await self.transport.words.next()
            self._given += 1
            yield TP(topic, 0), self._event_of(topic)

    def _event_of(self, topic: str) -> FaustMessage:
        """Wrap a word; its offset counts, so that it rises as Faust expects."""
        return ConsumerMessage(
            topic=topic,
            partition=0,
            offset=self._given,
            timestamp=time.time(),
            timestamp_type=0,
            headers=None,
            key=None,
            value=topic,  # type: ignore[arg-type]  # Faust says bytes, and only its serializers look
            checksum=None,
            tp=TP(topic, 0),
            generation_id=self.app.consumer_generation_id,
        )

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        return False

    async def seek_to_committed(self) -> dict[TP, int]:
        return {}

    def highwater(self, tp: TP) -> int:
        return 0

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("offsets and topics are not Faust's business here")

    _commit = _getmany = _new_topicpartition = _seek = _to_message = _refuse
    create_topic = earliest_offsets = highwaters = key_partition = position = seek_wait = topic_partitions = _refuse


class Transport(base.Transport):
    """Hands the words to Faust's consumer. Its producer stays abstract: it connects nowhere, and sending raises."""

    Consumer = Consumer
    driver_version = "headrace"

    def __init__(self, app: AppT, words: Words) -> None:
        super().__init__([], app)
        self.words = words
